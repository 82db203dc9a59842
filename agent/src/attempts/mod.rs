//! The facts about the attempts of this node, for all parts that only need those.
//!
//! - [`record`]: what is kept of each on the disk, and where. [`table`]: where each one is, plain data of the reconcile task.
//! - [`registry`]: the attempts by id, for those who only look.
//!
//! `crate::allocations` carries attempts out and writes the records; `crate::reconcile` owns the table and fills the
//! registry. Nothing here starts or stops anything.

mod record;
mod registry;
mod table;

pub use record::{AllocationDir, Record, RecordError, allocations_dir, list, volatile_dir};
pub(crate) use record::{Asked, OpenRequest};
pub use registry::{Registry, Shown};
pub use table::{AttemptPhase, Release, Row, Table};
