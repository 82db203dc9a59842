//! Defines the JSON of what a job uses of its node.

use serde::Serialize;

use super::values::{Time, time};
use crate::v1 as pb;

/// What a job's newest attempt uses. Null everywhere: the kernel of its node does not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobUse {
    /// Processor time since the attempt's start, in microseconds.
    pub cpu_microseconds: Option<u64>,
    /// Of late, in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Host memory, with the page cache of what it read and wrote.
    pub memory_bytes: Option<u64>,
    /// The most host memory that it had.
    pub memory_peak_bytes: Option<u64>,
    /// Read from block devices since the attempt's start.
    pub read_bytes: Option<u64>,
    /// Written to block devices since the attempt's start; null on cgroup v1.
    pub written_bytes: Option<u64>,
    /// Its processes and threads.
    pub pids: Option<u64>,
    /// How much of the last ten seconds at least one of its threads waited for a processor, in percent.
    pub cpu_stall_percent: Option<u32>,
    /// The same for memory.
    pub memory_stall_percent: Option<u32>,
    /// The same for block devices.
    pub io_stall_percent: Option<u32>,
    /// When that was measured; null: not known.
    pub measured_at: Option<Time>,
}

impl From<pb::JobUse> for JobUse {
    fn from(measured: pb::JobUse) -> Self {
        Self {
            cpu_microseconds: measured.cpu_usec,
            cpu_millis: measured.cpu_millis,
            memory_bytes: measured.memory_bytes,
            memory_peak_bytes: measured.memory_peak_bytes,
            read_bytes: measured.read_bytes,
            written_bytes: measured.written_bytes,
            pids: measured.pids,
            cpu_stall_percent: measured.cpu_stall_percent,
            memory_stall_percent: measured.memory_stall_percent,
            io_stall_percent: measured.io_stall_percent,
            measured_at: time(measured.measured_at_unix_ms),
        }
    }
}
