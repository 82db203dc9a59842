//! What each running attempt uses of the machine: processor time, memory, I/O, processes, pressure.
//!
//! `server` runs the task. The link sends what it saw with the heartbeats, and the metrics show it. It only reads
//! ([`read`]), nothing is stored, and what the kernel does not say stays unknown: it is never zero.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::id::AllocationId;
use fleet_kernel::cgroup::Cgroup;
use fleet_node::AttemptPhase;
use fleet_proto::v1;
use fleet_shim::order::ShimState;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;

use crate::attempts::Registry;

/// Between two looks. Processor use is the mean of this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// An older value counts as unknown: a read can hang.
const FRESH_FOR: Duration = LOOK_EVERY.saturating_mul(3);

/// What an attempt uses. `None`: this kernel does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobUse {
    /// Processor time since its start, in microseconds.
    pub cpu_usec: Option<u64>,
    /// Thousandths of a processor, between the last two looks.
    pub cpu_millis: Option<u64>,
    /// With the page cache of what it read and wrote.
    pub memory_bytes: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    /// From block devices, since its start.
    pub read_bytes: Option<u64>,
    /// Unknown on cgroup v1.
    pub written_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Waiting for a processor.
    pub cpu_stall: Option<Stall>,
    pub memory_stall: Option<Stall>,
    pub io_stall: Option<Stall>,
}

/// The kernel's pressure stall information (PSI): how long at least one thread waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// Of the last ten seconds, in percent, rounded.
    pub percent: u32,
    /// Since its start, in microseconds.
    pub total_usec: u64,
}

impl JobUse {
    /// As a heartbeat carries it. The controller puts in the time, by its own clock.
    fn to_wire(self) -> v1::JobUse {
        let percent = |stall: Option<Stall>| stall.map(|stall| stall.percent);
        v1::JobUse {
            cpu_usec: self.cpu_usec,
            cpu_millis: self.cpu_millis,
            memory_bytes: self.memory_bytes,
            memory_peak_bytes: self.memory_peak_bytes,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            pids: self.pids,
            cpu_stall_percent: percent(self.cpu_stall),
            memory_stall_percent: percent(self.memory_stall),
            io_stall_percent: percent(self.io_stall),
            measured_at_unix_ms: 0,
        }
    }
}

/// What was read of each attempt, and when.
type Seen = BTreeMap<AllocationId, (Instant, JobUse)>;

/// What was seen last. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobUses(watch::Receiver<Arc<Seen>>);

impl Default for JobUses {
    /// Where nobody looks.
    fn default() -> Self {
        Self(watch::channel(Arc::default()).1)
    }
}

impl JobUses {
    /// What the attempts use, as far as it was seen lately.
    pub fn latest(&self) -> BTreeMap<AllocationId, JobUse> {
        let (seen, now) = (self.0.borrow().clone(), Instant::now());
        let fresh = |at: Instant| now.saturating_duration_since(at) <= FRESH_FOR;
        let fresh = seen.iter().filter(|(_, (at, _))| fresh(*at));
        fresh.map(|(id, (_, found))| (id.clone(), *found)).collect()
    }

    /// As a heartbeat carries it.
    pub fn to_wire(&self) -> Vec<v1::MeasuredJob> {
        let one = |(id, found): (AllocationId, JobUse)| v1::MeasuredJob {
            allocation: id.to_string(),
            r#use: Some(found.to_wire()),
        };
        self.latest().into_iter().map(one).collect()
    }
}

/// The task; see the module's doc.
#[derive(Debug)]
pub struct Watcher {
    registry: Registry,
    seen: watch::Sender<Arc<Seen>>,
}

impl Watcher {
    pub fn new(registry: Registry) -> (Self, JobUses) {
        let (seen, uses) = watch::channel(Arc::default());
        (Self { registry, seen }, JobUses(uses))
    }

    pub async fn run(self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looker = Looker::default();
        loop {
            ticks.tick().await;
            let running = self.running();
            if running.is_empty() && self.seen.borrow().is_empty() {
                continue;
            }
            let registry = self.registry.clone();
            let look = spawn_blocking(move || {
                let group_of = |id: &AllocationId| {
                    let state = ShimState::read(registry.dir(id).path());
                    state.ok().flatten().map(|state| state.cgroup)
                };
                let seen = looker.look(&running, group_of, Instant::now);
                (looker, seen)
            });
            let seen;
            (looker, seen) = look.await.unwrap_or_else(|error| {
                tracing::warn!(%error, "what the jobs use is not known");
                Default::default()
            });
            self.seen.send_replace(Arc::new(seen));
        }
    }

    /// Attempts that have processes.
    fn running(&self) -> BTreeSet<AllocationId> {
        let runs = |id: &AllocationId| {
            let shown = self.registry.get(id);
            shown.is_some_and(|shown| *shown.phase.borrow() == AttemptPhase::Running)
        };
        self.registry.ids().into_iter().filter(runs).collect()
    }
}

/// One attempt that is watched.
#[derive(Debug)]
struct Watched {
    group: Cgroup,
    /// Its processor time, and when that was.
    before: Option<(Instant, u64)>,
    /// It could not be read, and the log says so.
    warned: bool,
}

/// Where the groups of attempts are, and what they had used at the last look.
#[derive(Debug, Default)]
struct Looker(BTreeMap<AllocationId, Watched>);

impl Looker {
    /// Reads what each of `running` uses. One whose group is not known yet, or of which nothing is known, is left out.
    fn look(
        &mut self,
        running: &BTreeSet<AllocationId>,
        group_of: impl Fn(&AllocationId) -> Option<Cgroup>,
        now: impl Fn() -> Instant,
    ) -> Seen {
        self.0.retain(|id, _| running.contains(id));
        for id in running {
            if !self.0.contains_key(id)
                && let Some(group) = group_of(id)
            {
                self.0.insert(id.clone(), Watched { group, before: None, warned: false });
            }
        }
        let read = self.0.iter_mut().map(|(id, watched)| {
            // A read can take long: each group has its own time.
            let now = now();
            (id.clone(), (now, watched.look(id, now)))
        });
        read.filter(|(_, (_, found))| *found != JobUse::default()).collect()
    }
}

impl Watched {
    fn look(&mut self, id: &AllocationId, now: Instant) -> JobUse {
        // cgroups-rs panics at some contents of files: the other attempts stay known.
        let found = catch_unwind(AssertUnwindSafe(|| read::read(&self.group)));
        let found = found.unwrap_or_else(|_| {
            if !self.warned {
                tracing::warn!(%id, "cgroups-rs panics at its control group: what it uses is not known");
            }
            self.warned = true;
            JobUse::default()
        });
        let cpu_millis = self.before.zip(found.cpu_usec).and_then(|((then, usec), used)| {
            let usec = u128::from(used.checked_sub(usec)?);
            let passed = now.saturating_duration_since(then).as_micros();
            u64::try_from((usec * 1_000).checked_div(passed)?).ok()
        });
        self.before = found.cpu_usec.map(|usec| (now, usec));
        JobUse { cpu_millis, ..found }
    }
}

#[cfg(test)]
mod tests;
