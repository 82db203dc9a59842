//! Which windows this node holds, and what is to be done about them now. Pure: time, table and orders come in.
//!
//! Kept by the reconcile task. Orders replace lower ones only; what is not named is left alone. Stages only go
//! forward, but for a window that was given longer after it had been closed, or given again after it was taken back.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::allocation::{GIVES_WAY_LEAD, StopWhy};
use fleet_core::desired::{DesiredLease, DesiredNode};
use fleet_core::ending::{EndPolicy, ReservationRules};
use fleet_core::id::{AllocationId, LeaseId, ReservationId};
use fleet_core::lease::{Epoch, LeaseHolder};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::window::{Enforcement, EnforcementSwitch, NodeGrant, WindowReport};
use serde::{Deserialize, Serialize};

use crate::grant::Grant;
use crate::table::{Release, Row, Table};

/// How long a window that is over is remembered, so that an old order for it is known as such.
const KEEP: Millis = Millis::days(1);
/// Most windows remembered; a controller hands out fewer.
pub const WINDOWS_MAX: usize = 4_096;
/// Most settings of the switch kept for the record.
const SWITCHES_MAX: usize = 100;
/// Longest grant by root: an emergency that lasts longer has controllers to be asked.
pub const GRANT_MAX: Millis = Millis::days(7);

/// Where a window is in its life on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Waiting,
    Open,
    /// Over; what ran in it is ended and its GPUs are being proven empty.
    Closing,
    Closed,
}

/// One window in this node's hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowInHand {
    pub revision: Epoch,
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
    pub withdrawn: bool,
    pub granted: Option<NodeGrant>,
    pub stage: Stage,
    /// Only where no controller answered then.
    pub opened_at: Option<Timestamp>,
    pub closed_at: Option<Timestamp>,
    /// What happens at its end, where the reservation says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_end: Option<EndPolicy>,
    /// Who else may use its GPUs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
}

/// By when an attempt is to be over, as its controller last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub epoch: Epoch,
    pub ends_at: Option<Timestamp>,
    pub within: Option<ReservationId>,
    /// This node stopped it while no controller answered.
    #[serde(default)]
    pub stopped: Option<(StopWhy, Timestamp)>,
    /// This node asked it for a checkpoint, because it must leave soon and no controller answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promises {
    pub windows: BTreeMap<ReservationId, WindowInHand>,
    pub attempts: BTreeMap<AllocationId, Promise>,
    /// How root set the switch, last last.
    #[serde(default)]
    pub switches: Vec<EnforcementSwitch>,
    /// How windows end, as a controller last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<ReservationRules>,
    /// How people are held to their reservations here, as an admin last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<Enforcement>,
}

/// What of a document was new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    pub windows: bool,
    pub attempts: bool,
}

/// One thing to do while no controller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Stop {
        id: AllocationId,
        epoch: Epoch,
        grace: Millis,
        why: StopWhy,
        /// The reason as the job's log names it.
        said: String,
    },
    /// It must leave soon: ask it for a checkpoint.
    Ask(AllocationId),
    /// The same as `Stop`, where root has switched stopping off: only said.
    Overruns {
        id: AllocationId,
        why: StopWhy,
    },
    /// Its time is over: prove its GPUs empty.
    Prove {
        lease: LeaseId,
        epoch: Epoch,
        gpus: Vec<GpuUuid>,
        reserved_for: BTreeSet<UserName>,
    },
    Opened(ReservationId),
    Closed(ReservationId),
}

/// Why root's wish is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a controller answers")]
    NotAlone,
    #[error(
        "nobody knows what time it is: no controller was heard since this machine booted, and its clock cannot be right"
    )]
    NoTime,
    #[error("{gpu} is in use by {by}")]
    InUse { gpu: GpuUuid, by: AllocationId },
    #[error("{gpu} is promised to {owner} ({reservation})")]
    Promised {
        gpu: GpuUuid,
        owner: UserName,
        reservation: ReservationId,
        from: Timestamp,
        until: Timestamp,
    },
    #[error("a grant lasts 1 second to {GRANT_MAX}")]
    Length,
    #[error("this node holds {WINDOWS_MAX} windows already")]
    Full,
    #[error("there is no grant {id} that is not over")]
    NoGrant { id: ReservationId },
    #[error("the controllers have made {id} a reservation; `fleet release {id}` ends it")]
    TakenOver { id: ReservationId },
}

impl WindowInHand {
    fn is_over(&self) -> bool {
        self.stage == Stage::Closed || (self.withdrawn && self.stage == Stage::Waiting)
    }

    /// What this node reports of the window to the controllers.
    pub fn report(&self, id: &ReservationId) -> WindowReport {
        WindowReport {
            reservation: id.clone(),
            revision: self.revision,
            owner: self.owner.clone(),
            gpus: self.gpus.clone(),
            window: self.window,
            withdrawn: self.withdrawn,
            opened_at: self.opened_at,
            closed_at: self.closed_at,
            granted: self.granted.clone(),
            with: self.with.clone(),
        }
    }
}

impl Promises {
    /// What root's switch says.
    pub fn enforcement(&self) -> Enforcement {
        self.switches.last().map(|switch| switch.mode).unwrap_or_default()
    }

    /// Root sets the switch. Each time is for the record, so none gets the time of an earlier one: the time it
    /// has is returned.
    pub fn set_switch(&mut self, switch: EnforcementSwitch) -> Timestamp {
        let after = self.switches.last().map(|last| last.at + Millis(1));
        let at = after.map_or(switch.at, |after| after.max(switch.at));
        self.switches.push(EnforcementSwitch { at, ..switch });
        let excess = self.switches.len().saturating_sub(SWITCHES_MAX);
        self.switches.drain(..excess);
        at
    }

    /// Takes the orders of a document over. Says what is to be stored; `old` hears of orders that are older
    /// than what is held.
    pub fn take(&mut self, desired: &DesiredNode, mut old: impl FnMut(&ReservationId)) -> Taken {
        let mut taken = Taken::default();
        if desired.rules.is_some() && desired.rules != self.rules {
            self.rules = desired.rules;
            taken.windows = true;
        }
        if desired.enforce.is_some() && desired.enforce != self.enforce {
            self.enforce = desired.enforce;
            taken.windows = true;
        }
        for told in &desired.windows {
            let known = self.windows.get(&told.reservation);
            match known.map(|held| held.revision) {
                Some(have) if told.revision < have => {
                    old(&told.reservation);
                    continue;
                }
                Some(have) if told.revision == have => continue,
                // Not taken, so not confirmed either: the controller says so to those who ask.
                None if self.windows.len() >= WINDOWS_MAX => continue,
                Some(_) | None => {}
            }
            // Taken back, and given again at another time or on other GPUs: what was done about the old one is over.
            let moved = known.is_some_and(|held| held.withdrawn && !told.withdrawn);
            let again = known.is_some_and(|held| {
                let over = matches!(held.stage, Stage::Closing | Stage::Closed);
                moved || (over && told.window.ends_at > held.window.ends_at)
            });
            let stage = match known {
                Some(held) if !again || told.withdrawn => held.stage,
                Some(_) | None => Stage::Waiting,
            };
            let held = WindowInHand {
                revision: told.revision,
                lease: told.lease.clone(),
                epoch: told.epoch,
                owner: told.owner.clone(),
                gpus: told.gpus.clone(),
                window: told.window,
                withdrawn: told.withdrawn,
                granted: known.and_then(|held| held.granted.clone()),
                stage,
                opened_at: known.and_then(|held| held.opened_at).filter(|_| !moved),
                closed_at: known.and_then(|held| held.closed_at).filter(|_| !again),
                at_end: told.at_end,
                with: told.with.clone(),
            };
            self.windows.insert(told.reservation.clone(), held);
            taken.windows = true;
        }
        for wanted in &desired.allocations {
            let known = self.attempts.get(&wanted.id).filter(|known| known.epoch == wanted.epoch);
            let promise = Promise {
                epoch: wanted.epoch,
                ends_at: wanted.ends_at,
                within: wanted.within.clone(),
                stopped: known.and_then(|known| known.stopped.clone()),
                asked: known.is_some_and(|known| known.asked && known.ends_at == wanted.ends_at),
            };
            if self.attempts.get(&wanted.id) != Some(&promise) {
                self.attempts.insert(wanted.id.clone(), promise);
                taken.attempts = true;
            }
        }
        taken
    }

    /// While a controller answers it leads, and the promises follow what it says of the leases.
    pub fn follow(&mut self, leases: &[DesiredLease], now: Timestamp) -> bool {
        let mut changed = false;
        for (id, held) in &mut self.windows {
            let holder = LeaseHolder::Reservation(id.clone());
            let lease = leases.iter().find(|lease| lease.holder == holder);
            let over = held.withdrawn || held.window.ends_at <= now;
            let stage = match (held.stage, lease) {
                (Stage::Waiting, Some(lease)) if !lease.ending => Stage::Open,
                (Stage::Open | Stage::Closing, Some(lease)) if lease.ending => Stage::Closed,
                (_, None) if over => Stage::Closed,
                (stage, _) => stage,
            };
            changed |= stage != held.stage;
            held.stage = stage;
        }
        changed
    }

    /// Forgets what is over and on record: windows long past that `said` the controllers know of, and attempts
    /// that are not here any more.
    pub fn tidy(
        &mut self,
        now: Timestamp,
        table: &Table,
        said: impl Fn(&ReservationId) -> bool,
    ) -> Vec<ReservationId> {
        let over = |id: &ReservationId, held: &WindowInHand| {
            held.is_over() && held.window.ends_at + KEEP <= now && said(id)
        };
        let gone: Vec<ReservationId> = self
            .windows
            .iter()
            .filter(|(id, held)| over(id, held))
            .map(|(id, _)| id.clone())
            .collect();
        self.windows.retain(|id, _| !gone.contains(id));
        self.attempts.retain(|id, _| table.rows.contains_key(id));
        gone
    }

    /// What is to be done at `now` while no controller answers. Doing it, noting it in the table and asking again
    /// gives nothing more.
    pub fn keep(&mut self, now: Timestamp, table: &Table) -> Vec<Step> {
        let mut steps = Vec::new();
        let ids: Vec<ReservationId> = self.windows.keys().cloned().collect();
        // What ends makes room for what begins at the same moment.
        for id in &ids {
            self.end_if_over(id, now, table, &mut steps);
        }
        for id in &ids {
            self.clear_the_way(id, now, table, &mut steps);
            self.open_if_due(id, now, table, &mut steps);
        }
        steps
    }

    fn end_if_over(
        &mut self,
        id: &ReservationId,
        now: Timestamp,
        table: &Table,
        steps: &mut Vec<Step>,
    ) {
        let Some(held) = self.windows.get(id) else { return };
        let over = held.withdrawn || held.window.ends_at <= now;
        match held.stage {
            Stage::Waiting | Stage::Open if !over => return,
            Stage::Closed => return,
            Stage::Waiting => {
                // Its time passed unused: nothing was opened, nothing is to be proven.
                if let Some(held) = self.windows.get_mut(id).filter(|held| !held.withdrawn) {
                    held.stage = Stage::Closed;
                }
                return;
            }
            Stage::Open | Stage::Closing => {}
        }
        let inside = self.inside(id, table);
        let why = StopWhy::ReservationEnded;
        if self.enforcement() != Enforcement::On && !inside.is_empty() {
            // It stays open as long as somebody overruns it.
            steps.extend(inside.into_iter().map(|(id, _)| Step::Overruns { id, why: why.clone() }));
            return;
        }
        for (attempt, row) in inside {
            let Some(order) = row.order.as_ref().filter(|_| row.stop_grace.is_none()) else {
                continue;
            };
            let (epoch, grace, said) = (row.epoch, order.spec.stop_grace, why.said(Some(id)));
            steps.push(Step::Stop { id: attempt, epoch, grace, why: why.clone(), said });
        }
        let Some(held) = self.windows.get_mut(id) else { return };
        if held.stage == Stage::Open {
            held.stage = Stage::Closing;
            held.closed_at = Some(now);
            steps.push(Step::Closed(id.clone()));
        }
        let (lease, epoch, gpus) = (held.lease.clone(), held.epoch, held.gpus.clone());
        match table.releases.get(&lease) {
            Some((known, Release::Released)) if *known == epoch => held.stage = Stage::Closed,
            Some((known, Release::Proving)) if *known == epoch => {}
            _ if table.in_use(&lease, &gpus) => {}
            _ => {
                let reserved_for = self.next_users(id, &gpus, now);
                steps.push(Step::Prove { lease, epoch, gpus, reserved_for });
            }
        }
    }

    /// Whose own programs may be on the GPUs already: the next window is theirs and open.
    fn next_users(
        &self,
        id: &ReservationId,
        gpus: &[GpuUuid],
        now: Timestamp,
    ) -> BTreeSet<UserName> {
        let next = self.windows.iter().find(|(other, held)| {
            *other != id && held.is_open(now) && gpus.iter().all(|gpu| held.gpus.contains(gpu))
        });
        next.into_iter().flat_map(|(_, held)| held.users()).cloned().collect()
    }

    /// The live attempts that run under a window's lease.
    fn inside(&self, id: &ReservationId, table: &Table) -> Vec<(AllocationId, Row)> {
        let within = |attempt: &AllocationId| {
            self.attempts.get(attempt).and_then(|promise| promise.within.as_ref()) == Some(id)
        };
        let live = table.rows.iter().filter(|(attempt, row)| row.is_live() && within(attempt));
        live.map(|(attempt, row)| (attempt.clone(), row.clone())).collect()
    }

    /// Ends what is past its time on the GPUs of a window that is about to open, early enough for its grace; what
    /// nobody else was promised the GPUs of runs on, whatever its time.
    fn clear_the_way(
        &mut self,
        id: &ReservationId,
        now: Timestamp,
        table: &Table,
        steps: &mut Vec<Step>,
    ) {
        let Some(held) = self.windows.get(id) else { return };
        if held.stage != Stage::Waiting || held.withdrawn {
            return;
        }
        let (said, on) = (gives_way(id, &held.owner), self.enforcement() == Enforcement::On);
        let mut asked = Vec::new();
        for (attempt, row) in &table.rows {
            let Some(at) = self.must_leave_at(id, held, attempt, row) else { continue };
            if row.stop_grace.is_some() {
                continue;
            }
            if at > now {
                if on && self.ask_at(attempt, row, at).is_some_and(|at| at <= now) {
                    asked.push(attempt.clone());
                }
                continue;
            }
            let (id, why) = (attempt.clone(), StopWhy::TimeLimit);
            let grace = row.order.as_ref().map_or(Millis::ZERO, |order| order.spec.stop_grace);
            steps.push(match on {
                true => Step::Stop { id, epoch: row.epoch, grace, why, said: said.clone() },
                false => Step::Overruns { id, why },
            });
        }
        for attempt in asked {
            if let Some(promise) = self.attempts.get_mut(&attempt) {
                promise.asked = true;
            }
            steps.push(Step::Ask(attempt));
        }
    }

    /// When the node must tell an attempt in the way of a window to stop. Never before the attempt's own time is over.
    fn must_leave_at(
        &self,
        id: &ReservationId,
        held: &WindowInHand,
        attempt: &AllocationId,
        row: &Row,
    ) -> Option<Timestamp> {
        let promise = self.attempts.get(attempt);
        let within = promise.and_then(|promise| promise.within.as_ref());
        let in_the_way = row.is_live() && row.gpus().iter().any(|gpu| held.gpus.contains(gpu));
        // What runs in another window ends with that.
        if !in_the_way || within.is_some_and(|w| w == id || self.windows.contains_key(w)) {
            return None;
        }
        let grace = row.order.as_ref().map_or(Millis::ZERO, |order| order.spec.stop_grace);
        let early = held.window.starts_at - grace;
        Some(promise.and_then(|promise| promise.ends_at).map_or(early, |end| end.max(early)))
    }

    /// When an attempt that must leave at `at` is asked for a checkpoint; `None` if it was, or if it saves none.
    fn ask_at(&self, attempt: &AllocationId, row: &Row, at: Timestamp) -> Option<Timestamp> {
        let saves = row.order.as_ref().is_some_and(|order| order.spec.checkpoint.is_some());
        let waits = self.attempts.get(attempt).is_some_and(|promise| !promise.asked);
        (saves && waits).then_some(at - GIVES_WAY_LEAD)
    }

    fn open_if_due(
        &mut self,
        id: &ReservationId,
        now: Timestamp,
        table: &Table,
        steps: &mut Vec<Step>,
    ) {
        let Some(held) = self.windows.get(id) else { return };
        let due = held.stage == Stage::Waiting
            && !held.withdrawn
            && held.window.starts_at <= now
            && now < held.window.ends_at;
        let others = |(attempt, row): (&AllocationId, &Row)| {
            self.must_leave_at(id, held, attempt, row).is_some()
                || (row.is_live()
                    && row.gpus().iter().any(|gpu| held.gpus.contains(gpu))
                    && self.attempts.get(attempt).and_then(|p| p.within.as_ref()) != Some(id))
        };
        if !due || table.rows.iter().any(others) {
            return;
        }
        if let Some(held) = self.windows.get_mut(id) {
            held.stage = Stage::Open;
            held.opened_at = Some(now);
            steps.push(Step::Opened(id.clone()));
        }
    }

    /// The next instant after `now` at which `keep` may have something to do.
    pub fn next_instant(&self, now: Timestamp, table: &Table) -> Option<Timestamp> {
        let edges = self.windows.values().filter(|held| held.stage != Stage::Closed);
        let edges = edges.flat_map(|held| [held.window.starts_at, held.window.ends_at]);
        let waiting =
            self.windows.iter().filter(|(_, h)| h.stage == Stage::Waiting && !h.withdrawn);
        let leaving = waiting.flat_map(|(id, held)| {
            let rows = table.rows.iter();
            rows.flat_map(move |(attempt, row)| {
                let at = self.must_leave_at(id, held, attempt, row);
                let ask = at.and_then(|at| self.ask_at(attempt, row, at));
                ask.into_iter().chain(at)
            })
        });
        edges.chain(leaving).filter(|at| *at > now).min()
    }

    /// The window that somebody else has a GPU by now, where an order for these GPUs must be out of date.
    pub fn closed_to(
        &self,
        gpus: &[GpuUuid],
        within: Option<&ReservationId>,
        now: Timestamp,
    ) -> Option<&ReservationId> {
        let open = self.windows.iter().find(|(id, held)| {
            Some(*id) != within
                && held.is_open(now)
                && held.opened_at.is_some()
                && held.gpus.iter().any(|gpu| gpus.contains(gpu))
        });
        open.map(|(id, _)| id)
    }

    /// The leases of the windows that are open at `now`, for those who ask whose a GPU is.
    pub fn leases(&self, now: Timestamp) -> impl Iterator<Item = DesiredLease> + '_ {
        self.windows.iter().filter(move |(_, held)| held.is_open(now)).map(|(id, held)| {
            DesiredLease {
                id: held.lease.clone(),
                epoch: held.epoch,
                gpus: held.gpus.clone(),
                owner: held.owner.clone(),
                holder: LeaseHolder::Reservation(id.clone()),
                ending: false,
                with: held.with.clone(),
            }
        })
    }

    /// Who may open which GPU because a window of theirs is open; where the time is not known, by its stage alone.
    pub fn open_to(&self, now: Option<Timestamp>) -> BTreeSet<Grant> {
        let open = |held: &&WindowInHand| match now {
            Some(now) => held.is_open(now),
            None => held.stage == Stage::Open && !held.withdrawn,
        };
        let grants = |held: &WindowInHand| {
            let until = Some(held.window.ends_at);
            let users: Vec<UserName> =
                std::iter::once(&held.owner).chain(&held.with).cloned().collect();
            let gpus = held.gpus.clone().into_iter();
            gpus.flat_map(move |gpu| {
                let grant =
                    |owner: &UserName| Grant { owner: owner.clone(), gpu: gpu.clone(), until };
                users.iter().map(grant).collect::<Vec<_>>()
            })
        };
        self.windows.values().filter(open).flat_map(grants).collect()
    }

    /// Root gives a user GPUs for a while. `id` is drawn by the caller.
    pub fn grant(
        &mut self,
        id: ReservationId,
        owner: UserName,
        gpus: Vec<GpuUuid>,
        window: Window,
        grant: NodeGrant,
        table: &Table,
    ) -> Result<(), Refused> {
        let length = window.ends_at.since(window.starts_at);
        if length < Millis::secs(1) || length > GRANT_MAX {
            return Err(Refused::Length);
        }
        if self.windows.len() >= WINDOWS_MAX {
            return Err(Refused::Full);
        }
        for gpu in &gpus {
            let user = table.rows.iter().find(|(_, row)| row.is_live() && row.gpus().contains(gpu));
            if let Some((by, _)) = user {
                return Err(Refused::InUse { gpu: gpu.clone(), by: by.clone() });
            }
            let promised = self.windows.iter().find(|(_, held)| {
                !held.is_over() && held.gpus.contains(gpu) && held.window.overlaps(&window)
            });
            if let Some((reservation, held)) = promised {
                return Err(Refused::Promised {
                    gpu: gpu.clone(),
                    owner: held.owner.clone(),
                    reservation: reservation.clone(),
                    from: held.window.starts_at,
                    until: held.window.ends_at,
                });
            }
        }
        // Lower than any order of a controller, which takes it over with a lease of its own.
        let epoch = Epoch::default();
        let lease = LeaseId::of_grant(&id);
        let opened_at = Some(window.starts_at);
        let (withdrawn, granted, stage, closed_at) = (false, Some(grant), Stage::Open, None);
        let held = WindowInHand {
            revision: epoch,
            lease,
            epoch,
            owner,
            gpus,
            window,
            withdrawn,
            granted,
            stage,
            opened_at,
            closed_at,
            at_end: None,
            with: BTreeSet::new(),
        };
        self.windows.insert(id, held);
        Ok(())
    }

    /// Root takes a grant back early. Gives the end that it had.
    pub fn revoke(&mut self, id: &ReservationId, now: Timestamp) -> Result<Timestamp, Refused> {
        let held = self.windows.get_mut(id);
        let own = held.filter(|held| held.granted.is_some() && held.stage == Stage::Open);
        let held = own.ok_or_else(|| Refused::NoGrant { id: id.clone() })?;
        if held.revision != Epoch::default() {
            return Err(Refused::TakenOver { id: id.clone() });
        }
        let ended_at = held.window.ends_at;
        held.window.ends_at = now.max(held.window.starts_at + Millis(1));
        Ok(ended_at)
    }

    /// A grant that was not taken back after all, unless its GPUs are being emptied already.
    pub fn revive(&mut self, id: &ReservationId, ends_at: Timestamp) {
        if let Some(held) = self.windows.get_mut(id).filter(|held| held.stage == Stage::Open) {
            held.window.ends_at = ends_at;
        }
    }
}

/// Why an attempt is stopped whose time is over.
fn gives_way(id: &ReservationId, owner: &UserName) -> String {
    format!("its time is over: reservation {id} of {owner} begins on its GPUs")
}

impl WindowInHand {
    /// Everybody who may use its GPUs without a job.
    pub(crate) fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }

    /// Whether it is somebody's now.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.stage == Stage::Open && !self.withdrawn && now < self.window.ends_at
    }
}
