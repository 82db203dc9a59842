//! Why a GPU is in its state.

use std::fmt;

use crate::view::GpuReason;

impl fmt::Display for GpuReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuReason::BeingEmptied => write!(f, "being proven empty"),
            GpuReason::NotAnswering => write!(f, "it does not answer any more"),
            GpuReason::DriverReleased => {
                write!(f, "not measured: the node is drained and its driver is released")
            }
            GpuReason::DriverSilent => write!(f, "the driver does not answer"),
            GpuReason::Dirty(why) => f.write_str(why),
            GpuReason::NodeClosed(node, why) => write!(f, "{node}: {why}"),
            GpuReason::Replaced => write!(f, "the next card in its slot takes its place"),
        }
    }
}
