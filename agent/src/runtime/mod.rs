//! OCI containers: from what the agent knows about an allocation to a bundle, an order and a running shim.
//!
//! The agent calls [`prepare`], then [`crate::unit::Launcher::launch`]. Only this module and the shim know
//! the OCI runtime. Nothing here touches a user's path: that is done as the user, by the shim's child.

mod allocation;
mod bundle;
mod destination;
mod discover;
mod environment;
pub(crate) mod gpus;
mod seccomp;
mod spec;

pub use allocation::{
    AllocationSpec, Gpu, Image, ImageConfig, JobUser, NodeSettings, Resources, Rlimit, Volume,
};
pub use bundle::{PrepareError, prepare};
pub use discover::{DiscoverError, Runtime, discover};
pub use environment::EnvironmentError;
pub(crate) use spec::CONTROL_NODES;
