//! The facts about the attempts of this node, for all parts that only need those.
//!
//! - [`record`]: what is kept of each on the disk, and where. [`registry`]: the attempts by id, for those who only look.
//!
//! `crate::allocations` carries attempts out and writes the records; `crate::reconcile` fills the registry, and owns the
//! table of where each one is ([`fleet_node::table`]). Nothing here starts or stops anything.

mod record;
mod registry;

pub use record::{AllocationDir, Record, RecordError, allocations_dir, list, volatile_dir};
pub(crate) use record::{Asked, OpenRequest};
pub use registry::{Registry, Shown};
