//! Releases GPUs: the agent releases a lease that is over only when its GPUs are proven empty.
//!
//! - [`mod@prove`]: one task per lease that ends; it asks the driver and `/proc` until both say "nobody", ends
//!   what is left of the lease's own attempts by their cgroups, and leaves people's processes to
//!   [`crate::holders`].
//! - [`floors`]: how much memory an idle GPU shows.
//!
//! A GPU that is lost or does not answer is never released here: nothing about it is proven.

mod floors;
mod prove;

pub use floors::Floors;
pub use prove::{Proof, prove};
