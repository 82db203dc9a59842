//! Between the wire and the core: wishes come in with the path of the field that is wrong, refusals
//! go out whole.

pub mod freshness;
pub mod rejection;
pub mod wish;
