//! Says that one user may open one GPU, and until when.
//!
//! The calendar in this node's hands makes grants, the gate puts them in force, and terminals name whose a GPU is by them.

use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Timestamp;

/// See the module's doc.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    pub owner: UserName,
    pub gpu: GpuUuid,
    /// When it is over, where that is known: for a boot after that.
    pub until: Option<Timestamp>,
}
