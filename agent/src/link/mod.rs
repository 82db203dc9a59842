//! The agent's link to the leading controller: reports out, orders in, heartbeats both ways.
//!
//! - [`session`]: one connection.
//!
//! One task that connects for ever: to each address in turn, with a back-off. Losing the connection
//! changes nothing on the node. Orders are taken only from documents that are not older than the newest
//! seen, and nothing is ever concluded from what a document does not say.

mod backoff;
mod session;

pub use session::{Link, LinkParts};
