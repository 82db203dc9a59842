//! What a node has too little of to begin anything. No GPU is at fault, so running jobs continue and none is evicted.

use super::{Condition, Subject};

/// One thing that a node lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    Disk,
    Inodes,
    /// The disk takes no writes at all.
    ReadOnly,
    Processes,
    Memory,
}

impl Shortage {
    pub const ALL: [Self; 5] =
        [Self::Disk, Self::Inodes, Self::ReadOnly, Self::Processes, Self::Memory];

    /// The kind of its condition.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Disk => "disk_full",
            Self::Inodes => "inodes_used_up",
            Self::ReadOnly => "disk_read_only",
            Self::Processes => "processes_used_up",
            Self::Memory => "memory_used_up",
        }
    }

    /// What it means and what helps, for people.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Disk | Self::Inodes => {
                "delete files that do not belong to fleet, or make the disk larger"
            }
            Self::ReadOnly => {
                "the kernel log says why; new work starts again when the disk is writable"
            }
            Self::Processes => "end processes, or raise kernel.pid_max",
            Self::Memory => "end the programs that use the memory",
        }
    }
}

/// Whether a node with this condition takes no new work for want of room.
pub fn begins_nothing(condition: &Condition) -> bool {
    condition.subject == Subject::Node
        && condition.is_active()
        && Shortage::ALL.iter().any(|shortage| shortage.kind() == condition.kind)
}
