//! Attempts on this node: one task each, from the order to the proven end.
//!
//! - [`record`]: what is kept of each on disk. [`order`]: from the controller's order to the runtime's.
//! - [`begin`]: everything before the first process. [`task`]: from there to the last one. [`ending`]: the
//!   words for how it ended. [`checkpoints`]: what it saves;
//!   [`asking`]: asking it to save soon.
//! - [`registry`]: the attempts by id, for those who only look. [`node`]: what they all share.
//!
//! A task tells the reconcile task what happened and takes orders from it; it decides nothing itself, and
//! it never ends a job because something was missing from a message or because the agent stops.

mod asking;
mod begin;
mod blame;
mod checkpoints;
mod ending;
mod lost;
mod node;
mod order;
mod record;
mod registry;
mod task;

pub use asking::Asker;
pub use begin::Begin;
pub use ending::{of_exit, without_exit};
pub use lost::end_group;
pub(crate) use lost::end_unrecorded;
pub use node::{NodeContext, Parts, allocations_dir, volatile_dir};
pub(crate) use order::checkpoint_base;
pub use record::{AllocationDir, Record, RecordError, list};
pub use registry::{Registry, Shown};
pub use task::{AttemptOrder, Happening, Tell, spawn};
