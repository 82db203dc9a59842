//! Makes stays of leases: who had which GPUs, for what, from when to when.
//!
//! Called where a lease is granted, ended and released. A stay ends when the GPUs were proven empty, by the fleet's time.
//! A node that was away says at once what ended and what is empty. Then its own time of the end counts, since nobody
//! knows when it proved the GPUs empty, and somebody else may have had them since.

use std::collections::BTreeMap;

use super::{Fsm, Turn};
use crate::event::Event;
use crate::id::{LeaseId, ReservationId};
use crate::job::Job;
use crate::lease::{Account, EndHeard, Lease, LeaseHolder};
use crate::name::GpuUuid;
use crate::reservation::{Reservation, ReservationState};
use crate::stay::Stay;
use crate::time::{Millis, Timestamp, Window};

/// An end that is heard later than this is one of a node that was away.
const HEARD_LATE: Millis = Millis::secs(10);
/// GPUs that are released within this time after such an end were empty before it was heard.
const SAID_TOGETHER: Millis = Millis::minutes(1);
/// Of a GPU that is not known any more.
const MODEL_UNKNOWN: &str = "unknown";

impl Fsm {
    /// All GPUs that somebody holds at `now`, and since when.
    pub fn open_stays(&self, now: Timestamp) -> impl Iterator<Item = Stay> + '_ {
        let leased = self.leases().values().map(move |lease| self.stay_of(lease, now));
        let alone = self.reservations().filter_map(move |r| {
            let open = r.state == ReservationState::Scheduled;
            self.stay_alone(r, now).filter(|_| open)
        });
        leased.chain(alone)
    }

    /// What the lease comes to if its GPUs are released at `now`.
    pub(super) fn stay_of(&self, lease: &Lease, now: Timestamp) -> Stay {
        let parent = lease.parent.as_ref().and_then(|id| self.leases.get(id));
        let within = parent.and_then(|parent| match &parent.holder {
            LeaseHolder::Reservation(id) => Some(id.clone()),
            LeaseHolder::Allocation(_) => None,
        });
        let from = lease.held_from;
        let mut until = ended_by(lease, now);
        if let Some(parent) = parent {
            until = until.min(ended_by(parent, now));
        }
        let until = until.max(from);
        let within_stay = |lost: Window| Window {
            starts_at: lost.starts_at.clamp(from, until),
            ends_at: lost.ends_at.clamp(from, until),
        };
        let lost = lease.lost.map(within_stay).filter(|lost| lost.starts_at < lost.ends_at);
        Stay {
            holder: lease.holder.clone(),
            owner: lease.owner.clone(),
            account: lease.account.clone(),
            within,
            node: lease.node.clone(),
            models: self.models_of(&lease.gpus),
            from,
            until,
            lost,
        }
    }

    /// Since when the time of a lease counts that is granted now.
    pub(super) fn held_from(&self, holder: &LeaseHolder) -> Timestamp {
        let LeaseHolder::Reservation(id) = holder else { return self.now };
        let r = self.reservations.get(id).filter(|r| closed_alone(r).is_none());
        r.and_then(opened_alone).map_or(self.now, |opened| opened.min(self.now))
    }

    /// Its node opened it alone, before the lease that it has.
    pub(super) fn note_opening(&mut self, id: &ReservationId) {
        let Some(r) = self.reservations.get(id) else { return };
        let (lease, opened) = (r.lease.clone(), opened_alone(r));
        let lease = lease.and_then(|lease| self.leases.get_mut(&lease));
        if let (Some(lease), Some(opened)) = (lease, opened) {
            lease.held_from = lease.held_from.min(opened);
        }
    }

    /// Of a reservation that its node opened alone and that has no lease: by the node's clock, and never more than was
    /// promised.
    pub(super) fn stay_alone(&self, r: &Reservation, now: Timestamp) -> Option<Stay> {
        let leased = r.lease.is_some() || r.handed_out.as_ref().is_some_and(|given| given.leased);
        let from = opened_alone(r).filter(|_| !leased)?;
        let until = closed_alone(r).map_or(r.window.ends_at, |closed| closed.min(r.window.ends_at));
        let until = until.min(now);
        (from < until).then(|| Stay {
            holder: LeaseHolder::Reservation(r.id.clone()),
            owner: r.owner.clone(),
            account: Account { project: r.project.clone(), class: None },
            within: None,
            node: r.node.clone(),
            models: self.models_of(&r.gpus),
            from,
            until,
            lost: None,
        })
    }

    /// Says what its node did alone, of a reservation without a lease: what follows is another stay.
    pub(super) fn tell_what_its_node_opened(&self, turn: &mut Turn<'_>, id: &ReservationId) {
        let r = self.reservations.get(id);
        if let Some(stay) = r.and_then(|r| self.stay_alone(r, self.now)) {
            turn.say(Event::ServedByNode(Box::new(stay)));
        }
    }

    /// The same where its node has ended it by now. What its node opened and did not end is a part of the lease to come.
    pub(super) fn tell_what_its_node_ended(&self, turn: &mut Turn<'_>, id: &ReservationId) {
        if self.reservations.get(id).and_then(closed_alone).is_some() {
            self.tell_what_its_node_opened(turn, id);
        }
    }

    fn models_of(&self, gpus: &[GpuUuid]) -> BTreeMap<String, u32> {
        let mut models = BTreeMap::new();
        for uuid in gpus {
            let model = self.gpus.get(uuid).map_or(MODEL_UNKNOWN, |gpu| gpu.model.as_str());
            *models.entry(model.to_owned()).or_insert(0) += 1;
        }
        models
    }

    /// For what the job's GPUs count: those of a reservation count for the reservation.
    pub(super) fn account_of(&self, job: &Job, parent: Option<&LeaseId>) -> Account {
        match parent.and_then(|id| self.leases.get(id)) {
            Some(parent) => parent.account.clone(),
            None => {
                Account { project: job.spec.project.clone(), class: Some(job.spec.class.clone()) }
            }
        }
    }

    /// What the lease is for ended at `at`, its node says now.
    pub(super) fn note_end(&mut self, lease: &LeaseId, at: Timestamp) {
        let heard = self.now;
        if let Some(lease) = self.leases.get_mut(lease) {
            lease.ended.get_or_insert(EndHeard { at: at.min(heard), heard });
        }
    }
}

/// When the reservation's node opened it alone: never before it was promised.
fn opened_alone(r: &Reservation) -> Option<Timestamp> {
    let opened = r.handed_out.as_ref()?.opened_at?;
    Some(opened.max(r.window.starts_at))
}

/// When the node ended what it had opened alone.
fn closed_alone(r: &Reservation) -> Option<Timestamp> {
    let given = r.handed_out.as_ref()?;
    given.closed_at.filter(|closed| given.opened_at.is_none_or(|opened| opened <= *closed))
}

fn ended_by(lease: &Lease, now: Timestamp) -> Timestamp {
    let late = |end: &&EndHeard| end.heard.since(end.at) > HEARD_LATE;
    let end = lease.ended.as_ref().filter(late);
    match end {
        Some(end) if now.since(end.heard) <= SAID_TOGETHER => end.at,
        Some(_) | None => now,
    }
}
