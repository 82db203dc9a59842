//! Places that are held for running jobs that must leave theirs. The scheduler says which; here they are windows like others.

use crate::id::AllocationId;
use crate::name::{GpuUuid, NodeName};
use crate::time::Window;

/// A place that is held for a running job that must leave: GPUs of one node, which no other job is given meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPlace {
    /// The attempt that must leave.
    pub allocation: AllocationId,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
}
