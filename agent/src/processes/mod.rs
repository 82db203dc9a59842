//! Processes on the GPUs of this node: who they are, whose they are, and how a signal reaches one of them and no other.
//!
//! - [`observer`]: who has a GPU open; `proc_link` is how it looks at what they have open.
//! - [`spared`]: pure, whose processes are left alone. [`pidfd`]: signals.
//!
//! The proof that a GPU is empty, the inventory, `crate::holders` and shutdowns look here. Nothing here decides to end a
//! process: `crate::holders` does, and `crate::checkpoint` asks a job's program to save.

mod observer;
pub(crate) mod pidfd;
mod proc_link;
mod spared;

pub use observer::{Foreign, Observer, Process};
pub use spared::Spared;
