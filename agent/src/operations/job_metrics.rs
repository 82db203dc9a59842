//! The metrics of running attempts: the table, and where the values come from.
//!
//! The label is `allocation`, not `job`: Prometheus has a `job` of its own. It joins them with `id` of
//! `fleet_gpu_held_by`.

use std::fmt;

use fleet_daemon::metrics::{Metric, Page, Unit};

use super::Sights;
use crate::job_use::JobUse;

const LABELS: &[&str] = &["allocation", "user"];

const CPU: Metric = Metric::counter(
    "fleet_attempt_cpu_seconds_total",
    Unit::Seconds,
    "Processor time of the attempt.",
)
.with(LABELS);
const MEMORY: Metric = Metric::gauge(
    "fleet_attempt_memory_bytes",
    Unit::Bytes,
    "Host memory of the attempt, with its page cache.",
)
.with(LABELS);
const MEMORY_PEAK: Metric = Metric::gauge(
    "fleet_attempt_memory_peak_bytes",
    Unit::Bytes,
    "The most host memory that the attempt had.",
)
.with(LABELS);
const READ: Metric = Metric::counter(
    "fleet_attempt_read_bytes_total",
    Unit::Bytes,
    "Read from block devices by the attempt.",
)
.with(LABELS);
const WRITTEN: Metric = Metric::counter(
    "fleet_attempt_written_bytes_total",
    Unit::Bytes,
    "Written to block devices by the attempt; unknown on cgroup v1.",
)
.with(LABELS);
const PIDS: Metric =
    Metric::gauge("fleet_attempt_pids", Unit::None, "Processes and threads of the attempt.")
        .with(LABELS);
const STALL: Metric = Metric::counter(
    "fleet_attempt_stall_seconds_total",
    Unit::Seconds,
    "Time in which a thread of the attempt waited for the resource; only with cgroup v2.",
)
.with(&["allocation", "user", "resource"]);

/// The table.
pub(super) const METRICS: [Metric; 7] = [CPU, MEMORY, MEMORY_PEAK, READ, WRITTEN, PIDS, STALL];

const MICROS: f64 = 1_000_000.0;

/// What is not known has no value, and an attempt without a known owner has none at all.
pub(super) fn write(sights: &Sights, page: &mut Page<'_>) -> fmt::Result {
    let seen = sights.job_uses.latest();
    let uses = seen.iter().filter_map(|(id, found)| {
        let owner = sights.registry.get(id)?.owner?;
        Some(([id.to_string(), owner.to_string()], found))
    });
    let uses: Vec<([String; 2], &JobUse)> = uses.collect();
    let mut each = |metric: &Metric, value: fn(&JobUse) -> Option<u64>, unit: f64| {
        let known = uses
            .iter()
            .filter_map(|(labels, found)| Some((labels.clone(), value(found)? as f64 / unit)));
        page.many(metric, known.collect::<Vec<_>>())
    };
    each(&CPU, |found| found.cpu_usec, MICROS)?;
    each(&MEMORY, |found| found.memory_bytes, 1.0)?;
    each(&MEMORY_PEAK, |found| found.memory_peak_bytes, 1.0)?;
    each(&READ, |found| found.read_bytes, 1.0)?;
    each(&WRITTEN, |found| found.written_bytes, 1.0)?;
    each(&PIDS, |found| found.pids, 1.0)?;
    let stalls = uses.iter().flat_map(|([id, user], found)| {
        let all =
            [("cpu", found.cpu_stall), ("memory", found.memory_stall), ("io", found.io_stall)];
        all.into_iter().filter_map(move |(resource, stall)| {
            let seconds = stall?.total_usec as f64 / MICROS;
            Some(([id.clone(), user.clone(), resource.to_owned()], seconds))
        })
    });
    page.many(&STALL, stalls.collect::<Vec<_>>())
}
