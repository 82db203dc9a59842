//! OCI containers: from the order of the controllers, and what this node has prepared for it, to a bundle and an order for
//! the shim.
//!
//! The agent calls [`prepare`] with both, then [`crate::unit::Launcher::launch`]. Only this module and the shim know
//! the OCI runtime. Nothing here touches a user's path: that is done as the user, by the shim's child.

mod bundle;
mod destination;
mod discover;
mod environment;
pub(crate) mod gpus;
mod prepared;
mod seccomp;
mod spec;

pub use bundle::{PrepareError, prepare};
pub use discover::{DiscoverError, Runtime, discover};
pub use environment::EnvironmentError;
pub use prepared::{Card, Image, NodeSettings, Prepared, Rlimit};
pub(crate) use spec::CONTROL_NODES;
