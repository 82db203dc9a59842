//! Reboots that wait until their node is empty.
//!
//! The wish drains the node; the desired state orders the reboot once nothing is there any more; the next boot ends the
//! wish. What an admin cordons or drains on their own stays, also when it is decided while the wish is there.

use super::{Fsm, Turn, cluster::check_text};
use crate::event::Event;
use crate::name::NodeName;
use crate::node::{Cordon, Drain, Liveness, Node};
use crate::reboot::{DesiredReboot, RebootAnswer, RebootWish};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::ReservationState;
use crate::time::Timestamp;

impl Fsm {
    /// Asked again it is the same wish, unless the node could not carry it out: then it tries once more.
    pub(super) fn ask_reboot(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_text("reason", reason)?;
        let (by, since) = (turn.actor.display_name(), self.now);
        let node = self.node_mut(name)?;
        let before = node.reboot.take_if(|wish| wish.problem().is_some());
        if node.reboot.is_some() {
            return Ok(Reply::Done);
        }
        let ours =
            |free: bool, was: fn(&RebootWish) -> bool| free || before.as_ref().is_some_and(was);
        let (cordoned, drained) = (
            ours(node.cordon.is_none(), |wish| wish.cordoned),
            ours(node.drain.is_none(), |wish| wish.drained),
        );
        let why = match reason.trim() {
            "" => "to be rebooted".to_owned(),
            reason => format!("to be rebooted: {reason}"),
        };
        node.cordon.get_or_insert_with(|| Cordon { by: by.clone(), reason: why, since });
        node.drain.get_or_insert(Drain { since, deadline: None });
        let (reason, boot_id) = (reason.to_owned(), node.facts.boot_id.clone());
        let wish = RebootWish { by, reason, since, boot_id, cordoned, drained, answer: None };
        let (by, reason) = (wish.by.clone(), wish.reason.clone());
        node.reboot = Some(wish);
        turn.say(Event::NodeRebootAsked { node: name.clone(), by, reason });
        self.review_node(turn, name);
        self.say_if_drained(turn, name);
        Ok(Reply::Done)
    }

    pub(super) fn cancel_reboot(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
    ) -> Result<Reply, Rejection> {
        let by = turn.actor.display_name();
        if self.node_mut(node)?.reboot.is_some() {
            turn.say(Event::NodeRebootCancelled { node: node.clone(), by });
            self.reopen(turn, node);
        }
        Ok(Reply::Done)
    }

    /// The wish is over: what was closed for it alone is open again.
    fn reopen(&mut self, turn: &mut Turn<'_>, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let Some(wish) = node.reboot.take() else { return };
        if wish.cordoned {
            node.cordon = None;
        }
        if wish.drained {
            node.drain = None;
        }
        self.review_node(turn, name);
    }

    /// The node rebooted, no matter who caused it.
    pub(super) fn reboot_is_over(&mut self, turn: &mut Turn<'_>, name: &NodeName) {
        if self.nodes.get(name).is_some_and(|node| node.reboot.is_some()) {
            turn.say(Event::NodeRebootDone { node: name.clone() });
            self.reopen(turn, name);
        }
    }

    /// What the agent made of the order of `since`.
    pub(super) fn reboot_answered(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        since: Timestamp,
        problem: Option<&String>,
    ) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let Some(wish) = node.reboot.as_mut().filter(|wish| wish.since == since) else { return };
        let (answer, event) = match problem.cloned() {
            None => (RebootAnswer::Begun, Event::NodeRebootBegun { node: name.clone() }),
            Some(why) => {
                let event = Event::NodeRebootFailed { node: name.clone(), why: why.clone() };
                (RebootAnswer::Failed { why }, event)
            }
        };
        if wish.answer.as_ref() != Some(&answer) {
            wish.answer = Some(answer);
            turn.say(event);
        }
    }

    /// What a reboot of this node waits for: work, people, proof. Nothing: it is ordered now.
    pub fn reboot_waits_for(&self, node: &Node) -> Vec<String> {
        let active = |r: &&crate::reservation::Reservation| r.state == ReservationState::Active;
        let jobs = self.allocations.on(&node.name);
        let mut waits: Vec<String> = jobs.map(|a| a.job.to_string()).collect();
        waits
            .extend(self.reservations.open_on(&node.name).filter(active).map(|r| r.id.to_string()));
        if waits.is_empty() && self.leases.on(&node.name).next().is_some() {
            waits.push("GPUs that are not proven empty yet".to_owned());
        }
        if node.liveness != Liveness::Ready || node.uncounted {
            waits.push("its agent, which is not heard".to_owned());
        }
        waits
    }

    /// Why the agent does not carry out the order. What it said of an order that is taken back by now is old.
    pub fn reboot_problem<'a>(&self, node: &'a Node) -> Option<&'a str> {
        let problem = node.reboot.as_ref()?.problem()?;
        self.reboot_waits_for(node).is_empty().then_some(problem)
    }

    /// The order for the agent, once nothing is in its way.
    pub(crate) fn desired_reboot(&self, name: &NodeName) -> Option<DesiredReboot> {
        let node = self.nodes.get(name)?;
        let wish = node.reboot.as_ref()?;
        let due = wish.boot_id == node.facts.boot_id && self.reboot_waits_for(node).is_empty();
        due.then(|| DesiredReboot { since: wish.since, boot_id: wish.boot_id.clone() })
    }
}
