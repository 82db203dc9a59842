//! Attempts on this node: one task each, from the order to the proven end.
//!
//! - [`order`]: what an order means on this node. [`programs`]: what makes the containers.
//! - [`begin`]: everything before the first process. [`task`]: from there to the last one. [`ending`]: the
//!   words for how it ended. [`checkpoints`]: what it saves;
//!   [`asking`]: asking it to save soon.
//! - What they all share is in [`parts`], what is kept of each in [`crate::attempts`].
//!
//! A task tells the reconcile task what happened and takes orders from it; it decides nothing itself, and
//! it never ends a job because something was missing from a message or because the agent stops.

mod asking;
mod begin;
mod blame;
mod checkpoints;
mod ending;
mod lost;
mod order;
mod parts;
mod programs;
mod task;

pub use asking::Asker;
pub use begin::Begin;
pub use ending::{of_exit, without_exit};
pub use lost::end_group;
pub(crate) use lost::end_unrecorded;
pub(crate) use order::checkpoint_base;
pub use parts::{AttemptParts, Starts};
pub use programs::Programs;
pub use task::{AttemptOrder, Happening, Tell, spawn};
