//! Above a limit somebody approves: who may, and what follows.
//!
//! What waits for approval is on the waiting list and is not served. Approved, it is served like the others, and limits
//! do not count for it any more. Called for the commands; `fsm/waitlist.rs` ends what nobody approved in time.

use super::cluster::check_text;
use super::waitlist::booking_of;
use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::approval::ApprovalEvent;
use crate::calendar::Calendar;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::id::ReservationId;
use crate::node::Node;
use crate::people::{People, PeopleChange};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{Place, WaitOverWhy};
use crate::scheduler::claims;
use crate::state::wish::{Wish, broken};
use crate::time::{Timestamp, Window};
use crate::waitlist::Waiter;

/// What somebody who decides about a reservation above a limit wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalEffect {
    /// Where and when it would be, if it was approved now; or why it would have to wait.
    pub place: Result<Place, Rejection>,
    /// GPUs in service that it could have by what it asks for.
    pub gpus_like_it: u32,
    /// Those of them that nobody has at any time while it lasts, without its own.
    pub left_free: u32,
    /// What its owner has reserved at the same time without it, at most.
    pub owner_has: u32,
}

impl Fsm {
    /// What follows if the one that waits under that id is approved now. Works on a copy, as the state's own time is that
    /// of its last entry; and reads the calendar of all GPUs.
    ///
    /// # Errors
    /// Nothing under that id waits for approval.
    pub fn effect_of_approval(
        &self,
        id: &ReservationId,
        now: Timestamp,
    ) -> Result<ApprovalEffect, Rejection> {
        let trial = self.as_of(now);
        let (_, waiter) = trial.check_approval(id)?;
        let place = trial.place_beyond_limits(waiter);
        let starts_at = waiter.earliest_start().max(trial.now);
        let earliest = Window { starts_at, ends_at: starts_at + waiter.length() };
        let window = place.as_ref().map_or(earliest, |(window, ..)| *window);
        let wish = &waiter.wish.gpus;
        let meant = Wish::new(wish);
        let like_it = |gpu: &&Gpu| {
            let node = trial.nodes.get(&gpu.node);
            let serves = |node: &Node| node.closed().is_none() && broken(node, gpu).is_none();
            node.is_some_and(serves) && meant.means(gpu)
        };
        let gpus: Vec<&Gpu> = trial.gpus.values().filter(like_it).collect();
        let held = claims::held_within(&trial, &window);
        let calendar = Calendar::within(&trial, &window).with_held(&trial, &held);
        let own = place.as_ref().map_or(&[][..], |(.., gpus)| gpus);
        let is_left = |gpu: &&&Gpu| calendar.on(&gpu.uuid).is_empty() && !own.contains(&gpu.uuid);
        let left = gpus.iter().filter(is_left).count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(ApprovalEffect {
            gpus_like_it: count(gpus.len()),
            left_free: count(left),
            owner_has: count(trial.most_at_once(&booking_of(&waiter.wish, window))),
            place: place.map(|(window, node, gpus)| Place {
                node,
                gpus,
                window,
                wish: wish.clone(),
            }),
        })
    }

    /// Who may approve reservations above a limit, beside admins.
    pub fn approvers(&self) -> &People {
        &self.approvers
    }

    /// Whether the actor may approve or deny what waits under that id: nobody decides for themselves.
    pub fn may_approve(&self, actor: &Actor, id: &ReservationId) -> bool {
        let Who::User { name, admin, .. } = &actor.who else { return false };
        if *admin {
            return true;
        }
        // Most people are none, and a list of requests asks this of each.
        if !self.approvers.has(name, actor) {
            return false;
        }
        let is_own = self.waitlist.waits(id).is_some_and(|waiter| {
            let asked = matches!(&waiter.by.who, Who::User { name: by, .. } if by == name);
            asked || waiter.wish.users().any(|user| user == name)
        });
        !is_own
    }

    pub(super) fn check_approval(&self, id: &ReservationId) -> Result<(u64, &Waiter), Rejection> {
        let why = match self.waitlist.find(id) {
            Some((order, waiter)) if waiter.asks() => {
                return match waiter.latest_start < self.now {
                    true => {
                        Err(Rejection::AlreadyEnded { id: id.to_string(), state: "over".into() })
                    }
                    false => Ok((order, waiter)),
                };
            }
            Some((_, waiter)) => match &waiter.approval {
                Some(approval) => {
                    let by = approval.given_by.as_deref().unwrap_or_default();
                    format!("{by} has approved it already")
                }
                None => "it is within all limits and needs no approval".to_owned(),
            },
            None if self.reservations.get(id).is_some() => {
                self.open_reservation(id)?;
                "it has its GPUs and needs no approval".to_owned()
            }
            None => return Err(self.has_no_place(id)),
        };
        Err(Rejection::NotChangeable { id: id.to_string(), why })
    }

    pub(super) fn approve_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
    ) -> Result<Reply, Rejection> {
        let (order, waiter) = self.check_approval(id)?;
        self.may_still_wait(waiter)?;
        let by = turn.actor.display_name();
        self.waitlist.approve(order, by.clone(), self.now);
        let reservation = id.clone();
        turn.say(Event::Approval(Box::new(ApprovalEvent::Given { reservation, by })));
        if self.serve_now(turn, order) {
            return Ok(Reply::ReservationCreated { id: id.clone() });
        }
        self.say_it_waits(turn, id);
        Ok(Reply::ReservationWaits { id: id.clone() })
    }

    pub(super) fn check_denial(&self, id: &ReservationId, why: &str) -> Result<u64, Rejection> {
        check_text("reason", why)?;
        if why.trim().is_empty() {
            return Err(Rejection::field("reason", "is required: the owner reads it"));
        }
        self.check_approval(id).map(|(order, _)| order)
    }

    pub(super) fn deny_reservation(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ReservationId,
        why: &str,
    ) -> Result<Reply, Rejection> {
        let order = self.check_denial(id, why)?;
        let (by, why) = (turn.actor.display_name(), why.to_owned());
        self.end_wait(turn, order, WaitOverWhy::Denied { by, why });
        Ok(Reply::Done)
    }

    pub(super) fn set_approvers(
        &mut self,
        turn: &mut Turn<'_>,
        change: &PeopleChange,
    ) -> Result<Reply, Rejection> {
        let before = self.approvers.clone();
        let now = before.changed(change, "approvers")?;
        self.check_groups(&before, &now)?;
        if now == before {
            return Ok(Reply::Unchanged);
        }
        self.approvers = now.clone();
        let by = turn.actor.display_name();
        turn.say(Event::Approval(Box::new(ApprovalEvent::ApproversSet { now, before, by })));
        Ok(Reply::Done)
    }
}
