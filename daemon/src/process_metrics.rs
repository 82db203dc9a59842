//! What every program tells of itself, under the names that all Prometheus libraries use.
//!
//! Read from `/proc/self` at each look; what cannot be read has no value.

use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use crate::logging::Logging;
use crate::metrics::{Metric, Page, Source, Unit};
use crate::progress::Progress;

const CPU: Metric = Metric::counter(
    "process_cpu_seconds_total",
    Unit::Seconds,
    "Processor time used, user and system.",
);
const RESIDENT: Metric =
    Metric::gauge("process_resident_memory_bytes", Unit::Bytes, "Memory in RAM.");
const VIRTUAL: Metric =
    Metric::gauge("process_virtual_memory_bytes", Unit::Bytes, "Address space in use.");
const OPEN_FDS: Metric = Metric::gauge("process_open_fds", Unit::None, "Open files and sockets.");
const MAX_FDS: Metric =
    Metric::gauge("process_max_fds", Unit::None, "How many files and sockets may be open.");
const STARTED: Metric = Metric::gauge(
    "process_start_time_seconds",
    Unit::Seconds,
    "When the process started, since 1970.",
);
const LOG_LINES: Metric =
    Metric::counter("fleet_log_lines_total", Unit::None, "Lines written to the log.")
        .with(&["level"]);
const STUCK: Metric = Metric::gauge(
    "fleet_stuck_loops",
    Unit::None,
    "Main loops that make no progress. Above 0 the watchdog is not fed.",
);

/// The table.
pub const METRICS: [Metric; 8] =
    [CPU, RESIDENT, VIRTUAL, OPEN_FDS, MAX_FDS, STARTED, LOG_LINES, STUCK];

/// The source.
#[derive(Debug)]
pub struct ProcessSource {
    logging: Logging,
    progress: Progress,
    started: Option<f64>,
}

/// What `/proc/self/stat` says.
struct Stat {
    cpu_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl ProcessSource {
    pub fn new(logging: Logging, progress: Progress) -> Self {
        Self { logging, progress, started: started() }
    }
}

impl Source for ProcessSource {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let stat = read_stat();
        page.maybe(&CPU, stat.as_ref().map(|stat| stat.cpu_seconds))?;
        page.maybe(&RESIDENT, stat.as_ref().map(|stat| stat.resident_bytes))?;
        page.maybe(&VIRTUAL, stat.as_ref().map(|stat| stat.virtual_bytes))?;
        page.maybe(&OPEN_FDS, fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64))?;
        page.maybe(&MAX_FDS, max_fds())?;
        page.maybe(&STARTED, self.started)?;
        let lines = self.logging.counts().map(|(level, n)| ([level.to_owned()], n as f64));
        page.many(&LOG_LINES, lines)?;
        page.one(&STUCK, self.progress.stuck().len() as f64)
    }
}

/// A value that `sysconf` has on every Linux.
fn conf(var: SysconfVar) -> Option<f64> {
    sysconf(var).ok().flatten().map(|value| value as f64)
}

/// The fields behind the program's name, which may hold spaces and brackets. See proc_pid_stat(5).
fn fields() -> Option<Vec<u64>> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    // The first is a letter, some are negative: those are not asked for.
    Some(rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
}

fn read_stat() -> Option<Stat> {
    let fields = fields()?;
    // Numbered from 3, the state, in the manual.
    let field = |number: usize| fields.get(number - 3).map(|value| *value as f64);
    Some(Stat {
        cpu_seconds: (field(14)? + field(15)?) / conf(SysconfVar::CLK_TCK)?,
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * conf(SysconfVar::PAGE_SIZE)?,
    })
}

/// Start of the process in seconds since 1970: now, less its age by the clock since boot.
fn started() -> Option<f64> {
    let ticks = *fields()?.get(22 - 3)? as f64;
    // Not by /proc/uptime: a unit may hide all of /proc but the processes.
    let up = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?).as_secs_f64();
    let age = up - ticks / conf(SysconfVar::CLK_TCK)?;
    let age = Duration::try_from_secs_f64(age.max(0.0)).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.checked_sub(age)?.as_secs_f64())
}

fn max_fds() -> Option<f64> {
    let limits = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    limits.ok().map(|(soft, _)| soft as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_itself() {
        let stat = read_stat().expect("/proc is there");
        assert!(stat.resident_bytes > 100_000.0 && stat.virtual_bytes >= stat.resident_bytes);
        assert!(stat.cpu_seconds >= 0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let age = now.as_secs_f64() - started().expect("a start");
        assert!((-1.0..3_600.0).contains(&age), "{age}");
        assert!(max_fds().expect("a limit") >= 3.0);
    }

    #[test]
    fn rows_are_well_formed() {
        let problems: Vec<_> = METRICS.iter().filter_map(Metric::problem).collect();
        assert_eq!(problems, Vec::<String>::new());
    }
}
