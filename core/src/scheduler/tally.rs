//! What each person has had of the fleet lately, with what they hold now.
//!
//! Called by the scheduler for the order of the queue, and for the answer of `fleet share`. It reads all that runs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::allocation::Allocation;
use crate::fair_share::{Amount, Rate, UseOf};
use crate::job::Job;
use crate::name::{ProjectName, UserName};
use crate::project::Project;
use crate::reservation::{Reservation, ReservationState};
use crate::state::Fsm;
use crate::state::charged::ends_by;
use crate::time::{Millis, Timestamp};

/// Who used something in this time is a person of the project.
pub const ACTIVE_FOR: Millis = Millis::days(30);

/// One person in one project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Had {
    /// What they used, as it counts now, with what runs.
    pub used: Amount,
    /// What they may still hold of what they hold now, for one half-life at most.
    pub ahead: Amount,
    /// Thousandths of a GPU that they hold now.
    pub holds: u64,
    /// When a use of theirs ended last; now where something of theirs runs or waits.
    pub last: Timestamp,
}

impl Had {
    /// What their place in the queue follows from.
    pub fn load(&self) -> Amount {
        self.used.plus(self.ahead)
    }
}

/// All of them, by project.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally<'a> {
    pub projects: BTreeMap<&'a ProjectName, BTreeMap<&'a UserName, Had>>,
}

impl<'a> Tally<'a> {
    /// As it is at the state's own time.
    pub fn of(fsm: &'a Fsm) -> Self {
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        let mut this = Self::default();
        for (project, user, used) in fsm.fair_share().used() {
            let had = this.had((project, user));
            had.used = had.used.plus(used.now(now, half_life));
            had.last = had.last.max(used.last());
        }
        for (_, standing) in fsm.all_standings() {
            match standing {
                Cow::Borrowed(standing) => {
                    for charged in &standing.charged {
                        this.holds((&charged.project, &charged.owner), charged.use_of(fsm), fsm);
                    }
                }
                // Of a node that this command has changed.
                Cow::Owned(standing) => {
                    for charged in &standing.charged {
                        let Some(job) = fsm.job(&charged.job) else { continue };
                        let account = (&job.spec.project, &job.owner);
                        this.holds(account, charged.use_of(fsm), fsm);
                    }
                }
            }
        }
        let active = |r: &&Reservation| r.state == ReservationState::Active;
        for reservation in fsm.open_reservations().filter(active) {
            let Some(used) = use_of_reservation(fsm, reservation) else { continue };
            let used = UseOf { to: reservation.window.ends_at, ..used };
            this.holds((&reservation.project, &reservation.owner), used, fsm);
        }
        for job in fsm.queue() {
            this.had((&job.spec.project, &job.owner)).last = now;
        }
        this
    }

    fn had(&mut self, (project, user): (&'a ProjectName, &'a UserName)) -> &mut Had {
        self.projects.entry(project).or_default().entry(user).or_default()
    }

    fn holds(&mut self, account: (&'a ProjectName, &'a UserName), running: UseOf, fsm: &Fsm) {
        let (now, half_life) = (fsm.now(), fsm.fair_share().half_life);
        let had = self.had(account);
        had.used = had.used.plus(running.now(now, half_life));
        had.ahead = had.ahead.plus(running.rate.times(running.to.since(now).min(half_life)));
        had.holds = had.holds.saturating_add(running.rate.0);
        had.last = now;
    }

    /// What the project is due beside the others: what an admin said, else the number of its people.
    pub fn weight(&self, fsm: &Fsm, project: &ProjectName) -> u64 {
        let said = fsm.projects().get(project).and_then(|project: &Project| project.weight);
        said.map_or_else(|| self.people(fsm, project), u64::from)
    }

    /// How many people had something in it lately; at least one.
    pub fn people(&self, fsm: &Fsm, project: &ProjectName) -> u64 {
        let since = fsm.now() - ACTIVE_FOR;
        let people = self.projects.get(project).into_iter().flat_map(BTreeMap::values);
        (people.filter(|had| had.last >= since).count() as u64).max(1)
    }
}

/// By when an attempt outside of reservations is over.
pub(super) fn end_of(allocation: &Allocation, job: &Job, now: Timestamp) -> Timestamp {
    ends_by(allocation).unwrap_or(now + job.time_left())
}

/// What a reservation had of its GPUs by now; nothing where it never held them.
pub(crate) fn use_of_reservation(fsm: &Fsm, reservation: &Reservation) -> Option<UseOf> {
    let lease = fsm.lease(reservation.lease.as_ref()?)?;
    let opened = reservation.handed_out.as_ref().and_then(|given| given.opened_at);
    // By the node's clock, and never before it was promised.
    let opened = opened.map(|opened| opened.max(reservation.window.starts_at));
    let from = opened.map_or(lease.granted_at, |opened| opened.min(lease.granted_at));
    let to = fsm.now().min(reservation.window.ends_at);
    Some(UseOf { rate: Rate::of(lease.gpus.len(), 0), from, to })
}
