//! Judges approvals: what is above the limit holds nothing until somebody approves it who may, and is not approved for
//! longer than it waits.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::approval::ApprovalEvent;
use fleet_core::command::{Command, Envelope, LimitsCommand, ReservationCommand};
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::id::ReservationId;
use fleet_core::name::UserName;
use fleet_core::reply::Reply;
use fleet_core::reservation::WaitOverWhy;
use fleet_core::risk::RiskEvent;
use fleet_core::time::{Millis, Timestamp};
use fleet_core::{Fsm, Who};

use super::waiters::{OVER_LATE_MAX, Waiting};
use super::{APPROVED, APPROVERS, DENIED, LAPSED, LONGEST_MS, TAKEN_MEANWHILE, Week};

/// Who asks, and what has become of it.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    /// From now on nobody reserves for longer than [`LONGEST_MS`] without approval.
    are_limited: bool,
    asking: BTreeMap<ReservationId, Asking>,
    approved: BTreeSet<ReservationId>,
}

/// One request that nobody has decided.
#[derive(Debug)]
struct Asking {
    users: BTreeSet<UserName>,
    /// It is for that start alone, and the GPUs were free then.
    earliest: Timestamp,
    latest: Timestamp,
}

impl Week {
    /// Returns what was approved.
    pub(super) fn judge_approvals(
        &mut self,
        envelope: &Envelope,
        outcome: &Outcome,
        fsm: &Fsm,
        counted: &mut Vec<&'static str>,
    ) -> Result<Option<ReservationId>, String> {
        let mut approved = None;
        for event in &outcome.events {
            match event {
                Event::Approval(of) => match &**of {
                    ApprovalEvent::Asked { reservation, latest_start, .. } => {
                        self.asked_for_more(envelope, reservation, *latest_start)?;
                    }
                    ApprovalEvent::Given { reservation, .. } => {
                        let asked = self.decided(envelope, reservation, fsm)?;
                        let taken = matches!(outcome.reply, Ok(Reply::ReservationWaits { .. }));
                        counted.push(APPROVED);
                        // It was free when they asked, else they would have been refused.
                        counted.extend((taken && asked.for_one_start()).then_some(TAKEN_MEANWHILE));
                        self.approvals.approved.insert(reservation.clone());
                        approved = Some(reservation.clone());
                    }
                    ApprovalEvent::ApproversSet { .. } => {}
                },
                Event::ReservationWaitOver { reservation, why } => {
                    self.asked_in_vain(envelope, (reservation, why), fsm, counted)?;
                }
                Event::ReservationCancelled { reservation, .. } => {
                    self.approvals.asking.remove(reservation);
                }
                Event::ReservationCreated { reservation, starts_at, ends_at, .. } => {
                    self.approvals.judge_booked(reservation, ends_at.since(*starts_at))?;
                }
                Event::Risk(risk) => self.approvals.note_stand_in(risk),
                _ => {}
            }
        }
        if let Command::Limits(LimitsCommand::Set { .. }) = &envelope.command {
            self.approvals.are_limited = true;
        }
        for (id, asking) in &self.approvals.asking {
            if !fsm.waitlist().waits(id).is_some_and(|waiter| waiter.asks()) {
                return Err(format!("the request of {id} is gone, and nobody decided it"));
            }
            if fsm.now() > asking.latest + OVER_LATE_MAX {
                return Err(format!("{id} waits for approval beyond its latest start"));
            }
        }
        Ok(approved)
    }

    fn asked_for_more(
        &mut self,
        envelope: &Envelope,
        id: &ReservationId,
        latest: Timestamp,
    ) -> Result<(), String> {
        let Command::Reservation(ReservationCommand::Wait { wish, ask: Some(_), .. }) =
            &envelope.command
        else {
            return Err(format!("{id} asks for approval, and nobody asked for that"));
        };
        let users = wish.users().cloned().collect();
        let asking = Asking { users, earliest: wish.window.starts_at, latest };
        self.approvals.asking.insert(id.clone(), asking);
        Ok(())
    }

    /// Somebody approves or denies it: they must be one of those who may, and do it in time.
    fn decided(
        &mut self,
        envelope: &Envelope,
        id: &ReservationId,
        fsm: &Fsm,
    ) -> Result<Asking, String> {
        let Some(asked) = self.approvals.asking.remove(id) else {
            return Err(format!("{id} is decided, and does not ask"));
        };
        let Who::User { name, .. } = &envelope.actor.who else {
            return Err(format!("{id} is decided by {:?}", envelope.actor.who));
        };
        let may = APPROVERS.contains(&name.as_str()) && !asked.users.contains(name);
        if !may && name.as_str() != "root" {
            return Err(format!("{id} is decided by {name}, who may not: {asked:?}"));
        }
        match fsm.now() > asked.latest {
            true => Err(format!("{id} is decided after its latest start: {asked:?}")),
            false => Ok(asked),
        }
    }

    fn asked_in_vain(
        &mut self,
        envelope: &Envelope,
        (id, why): (&ReservationId, &WaitOverWhy),
        fsm: &Fsm,
        counted: &mut Vec<&'static str>,
    ) -> Result<(), String> {
        match why {
            WaitOverWhy::Denied { .. } => {
                counted.push(DENIED);
                return self.decided(envelope, id, fsm).map(drop);
            }
            WaitOverWhy::NotApproved => counted.push(LAPSED),
            _ => {}
        }
        match (self.approvals.asking.remove(id), why) {
            (Some(asked), WaitOverWhy::NotApproved) if fsm.now() > asked.latest => Ok(()),
            (
                None,
                WaitOverWhy::TooLate
                | WaitOverWhy::Refused { .. }
                | WaitOverWhy::NotAccepted { .. },
            ) => Ok(()),
            (asked, _) => Err(format!("{id} is over by {why:?}: {asked:?}")),
        }
    }

    /// One that was approved waits like others from now on, if there is nothing free for it.
    pub(super) fn wait_from_now_on(&mut self, id: &ReservationId, fsm: &Fsm) {
        let Some((order, waiter)) = fsm.waitlist().all().find(|(_, w)| w.wish.id == *id) else {
            return;
        };
        if let Some(waiting) = Waiting::of(&waiter.wish, waiter.latest_start, fsm.now()) {
            self.orders.insert(id.clone(), (order, waiting.earliest()));
            self.waiting.insert(order, waiting.with_place(waiter.placed));
        }
    }
}

impl Approvals {
    /// It lasts as long as the one that it stands in for.
    fn note_stand_in(&mut self, risk: &RiskEvent) {
        if let RiskEvent::StandsIn { reservation, stand_in, .. } = risk
            && self.approved.contains(reservation)
        {
            self.approved.insert(stand_in.clone());
        }
    }

    fn judge_booked(&self, id: &ReservationId, length: Millis) -> Result<(), String> {
        if self.asking.contains_key(id) {
            return Err(format!("{id} has GPUs, and nobody has approved it"));
        }
        match self.are_limited && length.0 > LONGEST_MS && !self.approved.contains(id) {
            true => Err(format!("{id} lasts {length:?}, above the limit, and is not approved")),
            false => Ok(()),
        }
    }
}

impl Asking {
    fn for_one_start(&self) -> bool {
        self.latest == self.earliest
    }
}
