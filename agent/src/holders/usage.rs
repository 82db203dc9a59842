//! What is seen on the GPUs of the open windows, and what the agent reports of it.
//!
//! Owned by the inventory, which looks whenever the driver was asked. The agent reports that nobody is there only if it
//! watched all of the time itself, and that nobody ever was only if no agent before it saw anybody: the disk holds the
//! windows in which somebody was seen. What cannot be seen is unclear, never nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::desired::DesiredLease;
use fleet_core::ending::WindowUse;
use fleet_core::gpu::Presence;
use fleet_core::id::{AllocationId, ReservationId};
use fleet_core::lease::LeaseHolder;
use fleet_core::time::Millis;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::{Handle, Observers};
use crate::attempts::Registry;
use crate::gpu::GpuSnapshot;
use crate::outbox::Outbox;
use crate::processes::Process;
use crate::state_file::{self, StateFileError};
use fleet_user::Users;

const FILE: &str = "usage.json";
const VERSION: u32 = 1;
/// The owner may pause this long: between two programs they have not gone.
const PAUSE: Duration = Duration::from_secs(300);
/// How often the descriptors of all processes are checked where the driver shows nobody.
const DESCRIPTORS_EVERY: Duration = Duration::from_secs(60);

/// What a look needs, and the outbox for its report.
#[derive(Debug, Clone, Copy)]
pub struct UsageParts<'a> {
    pub holders: &'a Handle,
    pub observers: &'a Observers,
    pub users: &'a Users,
    pub registry: &'a Registry,
    pub outbox: &'a Outbox,
}

/// One look at the GPUs of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Glance {
    Nobody,
    /// Somebody, but no process of the owner outside of jobs.
    Others,
    Unclear,
    Owner,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    v: u32,
    /// Windows in which somebody was seen.
    came: BTreeSet<ReservationId>,
}

/// What is known of one window.
#[derive(Debug, Default)]
struct Watched {
    said: Option<WindowUse>,
    /// Since when the owner is not there.
    away: Option<Instant>,
    /// Since when nobody is.
    empty: Option<Instant>,
}

impl Watched {
    /// What is to be said after this look, if anything new.
    fn look(&mut self, glance: Glance, came: bool, now: Instant) -> Option<WindowUse> {
        match glance {
            Glance::Owner => (self.away, self.empty) = (None, None),
            Glance::Unclear => self.empty = None,
            Glance::Others => {
                self.away.get_or_insert(now);
                self.empty = None;
            }
            Glance::Nobody => {
                self.away.get_or_insert(now);
                self.empty.get_or_insert(now);
            }
        }
        let long = |since: Option<Instant>| since.is_some_and(|at| now.duration_since(at) >= PAUSE);
        let was_there = matches!(self.said, None | Some(WindowUse::Used));
        let paused = came && was_there && !long(self.away);
        let seen = match glance {
            Glance::Owner => WindowUse::Used,
            Glance::Unclear if self.said == Some(WindowUse::Used) => return None,
            Glance::Unclear => WindowUse::Unclear,
            Glance::Others | Glance::Nobody if paused => return None,
            Glance::Others => WindowUse::Others,
            Glance::Nobody => {
                let empty = self.empty.map_or(Duration::ZERO, |at| now.duration_since(at));
                WindowUse::Nobody {
                    since_ms: Millis(u64::try_from(empty.as_millis()).unwrap_or(0)),
                }
            }
        };
        let same = |said: &WindowUse| std::mem::discriminant(said) == std::mem::discriminant(&seen);
        // Since when nobody is there does not change while nobody is.
        if self.said.as_ref().is_some_and(same) {
            return None;
        }
        self.said = Some(seen);
        Some(seen)
    }
}

/// See the module's doc.
#[derive(Debug)]
pub struct Usages {
    path: PathBuf,
    stored: Stored,
    watched: BTreeMap<ReservationId, Watched>,
    /// When all descriptors were checked, and on which GPUs, by minor number, somebody was.
    descriptors: Option<(Instant, Vec<(u32, Process)>)>,
}

impl Usages {
    /// Reads what was seen before.
    pub fn open(state_dir: &Path) -> Result<Self, StateFileError> {
        let path = state_dir.join(FILE);
        let stored = state_file::read(&path, VERSION)?;
        let stored = stored.unwrap_or(Stored { v: VERSION, came: BTreeSet::new() });
        Ok(Self { path, stored, watched: BTreeMap::new(), descriptors: None })
    }

    /// Looks at the windows that are open, and says what changed.
    pub async fn look(
        &mut self,
        parts: UsageParts<'_>,
        snapshot: &Arc<GpuSnapshot>,
        leases: &[DesiredLease],
    ) {
        // Controllers without rules do not know what to do with it.
        if parts.holders.orders().rules.is_none() {
            return;
        }
        let mut open = BTreeMap::new();
        for lease in leases.iter().filter(|lease| !lease.ending) {
            if let LeaseHolder::Reservation(id) = &lease.holder {
                open.insert(id.clone(), lease);
            }
        }
        self.watched.retain(|id, _| {
            let kept = open.contains_key(id);
            if !kept {
                parts.outbox.drop_use(id);
            }
            kept
        });
        let mut came = self.stored.came.clone();
        came.retain(|id| open.contains_key(id));
        for (id, lease) in open {
            let glance = self.glance(parts, snapshot, lease).await;
            if matches!(glance, Glance::Owner | Glance::Others) {
                came.insert(id.clone());
            }
            let came = came.contains(&id);
            let watched = self.watched.entry(id.clone()).or_default();
            if let Some(seen) = watched.look(glance, came, Instant::now()) {
                tracing::debug!(reservation = %id, ?seen, came, "use of a window");
                parts.outbox.use_seen(&id, seen, came);
            }
        }
        self.store(came).await;
    }

    async fn store(&mut self, came: BTreeSet<ReservationId>) {
        if came == self.stored.came {
            return;
        }
        self.stored.came = came;
        let stored = Stored { v: VERSION, came: self.stored.came.clone() };
        let path = self.path.clone();
        let done = spawn_blocking(move || state_file::replace(&path, &stored)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "who used which window is not on the disk");
        }
    }

    async fn glance(
        &mut self,
        parts: UsageParts<'_>,
        snapshot: &Arc<GpuSnapshot>,
        lease: &DesiredLease,
    ) -> Glance {
        let mut glance = Glance::Nobody;
        // Where nobody knows the owner's number, any process may be theirs.
        let owners = uids(parts.users, lease).await;
        let mut minors = Vec::new();
        for gpu in &lease.gpus {
            let attempts = parts.registry.on_gpu(gpu);
            if !attempts.is_empty() {
                glance = glance.max(Glance::Others);
            }
            let state = snapshot.gpu(gpu).filter(|state| state.presence == Presence::Present);
            let listed = state.and_then(|state| state.telemetry.processes.value());
            let (Some(state), Some(listed)) = (state, listed) else {
                glance = glance.max(Glance::Unclear);
                continue;
            };
            let pids: Vec<u32> = listed.iter().map(|listed| listed.pid).collect();
            let observer = parts.observers.now();
            let owners_here = owners.clone();
            let of_pids = move || {
                let all = pids.into_iter().filter_map(|pid| observer.process(pid));
                let all = all.filter(|found| !observer.is_baseline(found));
                all.map(|found| of_process(&found, owners_here.as_deref(), &attempts)).max()
            };
            let seen = spawn_blocking(of_pids).await.unwrap_or(Some(Glance::Unclear));
            glance = seen.map_or(glance, |seen| glance.max(seen));
            minors.push(state.info.minor);
        }
        if glance != Glance::Nobody {
            return glance;
        }
        self.by_descriptor(parts.observers, snapshot, &minors, owners.as_deref()).await
    }

    /// The driver shows nobody: who has them open all the same, as of a minute ago at most.
    async fn by_descriptor(
        &mut self,
        observers: &Observers,
        snapshot: &GpuSnapshot,
        minors: &[u32],
        owners: Option<&[u32]>,
    ) -> Glance {
        let old = |(at, _): &(Instant, _)| at.elapsed() >= DESCRIPTORS_EVERY;
        if self.descriptors.as_ref().is_none_or(old) {
            let all: Vec<u32> = snapshot.gpus.iter().map(|state| state.info.minor).collect();
            let observers = observers.clone();
            let look = move || {
                let observer = observers.now();
                let mut open = observer.by_descriptors(&all);
                // Monitoring a GPU does not count as using it.
                open.retain(|(_, found)| !observer.has_known_name(found));
                open
            };
            let found = spawn_blocking(look).await.unwrap_or_default();
            self.descriptors = Some((Instant::now(), found));
        }
        let open = self.descriptors.iter().flat_map(|(_, open)| open);
        let mine = open.filter(|(minor, _)| minors.contains(minor));
        let seen = mine.map(|(_, found)| of_process(found, owners, &[])).max();
        seen.unwrap_or(Glance::Nobody)
    }
}

/// The numbers of those who may use the GPUs of a lease; none where one of them is not known.
async fn uids(users: &Users, lease: &DesiredLease) -> Option<Vec<u32>> {
    let mut uids = Vec::new();
    for user in lease.users() {
        uids.push(users.resolve(user.as_str(), None).await.ok()?.uid);
    }
    Some(uids)
}

fn of_process(found: &Process, owners: Option<&[u32]>, attempts: &[AllocationId]) -> Glance {
    let a_jobs = attempts.iter().any(|id| found.is_of(id));
    match owners {
        _ if a_jobs => Glance::Others,
        Some(owners) if !owners.contains(&found.uid) => Glance::Others,
        Some(_) | None => Glance::Owner,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn nobody(seen: Option<WindowUse>) -> bool {
        matches!(seen, Some(WindowUse::Nobody { .. }))
    }

    #[test]
    fn a_window_that_nobody_came_for_is_told_at_once_and_only_once() {
        let (mut watched, start) = (Watched::default(), Instant::now());
        assert!(nobody(watched.look(Glance::Nobody, false, start)));
        let later = start + Duration::from_secs(60);
        assert_eq!(watched.look(Glance::Nobody, false, later), None);
        assert_eq!(watched.look(Glance::Unclear, false, later), Some(WindowUse::Unclear));
        // Time in which nothing could be seen was not watched: the count starts again.
        let again = watched.look(Glance::Nobody, false, later);
        assert_eq!(again, Some(WindowUse::Nobody { since_ms: Millis::ZERO }));
        assert_eq!(watched.look(Glance::Others, true, later), Some(WindowUse::Others));
        assert_eq!(watched.look(Glance::Owner, true, later), Some(WindowUse::Used));
        assert_eq!(watched.look(Glance::Owner, true, later), None);
    }

    #[test]
    fn who_pauses_has_not_gone() {
        let (mut watched, start) = (Watched::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(watched.look(Glance::Owner, true, at(0)), Some(WindowUse::Used));
        assert_eq!(watched.look(Glance::Nobody, true, at(10)), None);
        assert_eq!(watched.look(Glance::Owner, true, at(200)), None);
        assert_eq!(watched.look(Glance::Nobody, true, at(210)), None);
        assert_eq!(watched.look(Glance::Unclear, true, at(220)), None, "the driver pauses too");
        assert_eq!(watched.look(Glance::Others, true, at(300)), None);
        assert_eq!(watched.look(Glance::Nobody, true, at(400)), None);
        let gone = watched.look(Glance::Nobody, true, at(510));
        assert_eq!(gone, Some(WindowUse::Nobody { since_ms: Millis::secs(110) }));
        assert_eq!(watched.look(Glance::Others, true, at(520)), Some(WindowUse::Others));
    }

    #[test]
    fn a_new_agent_remembers_who_came_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let id = ReservationId::parse("res-r").unwrap();
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut usages = Usages::open(dir.path()).unwrap();
        rt.block_on(usages.store(BTreeSet::from([id.clone()])));
        assert!(Usages::open(dir.path()).unwrap().stored.came.contains(&id));
        // To it an empty GPU is a pause, until it has watched for long enough.
        let (mut watched, start) = (Watched::default(), Instant::now());
        assert_eq!(watched.look(Glance::Nobody, true, start), None);
        assert!(nobody(watched.look(Glance::Nobody, true, start + PAUSE)));
    }
}
