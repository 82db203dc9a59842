//! Clearing what a GPU still carries of a fault that is over, by an admin's decision.
//!
//! What an event raised, or what has destroyed work, stays until somebody looked ([`Condition::is_told`]). The
//! admin's order is kept here until the node's report no longer shows what was to be cleared; the agent
//! carries it out. An order names each condition with its age, so that a fault that came later is not
//! cleared unseen.

use super::{Fsm, Turn, cluster::check_text};
use crate::event::Event;
use crate::gpu::Presence;
use crate::health::{Condition, Subject};
use crate::name::{GpuUuid, NodeName};
use crate::node::{ClearOrder, Liveness};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Fsm {
    /// Orders that everything of the GPU that stays by itself be cleared. With nothing to clear, nothing
    /// happens.
    pub(super) fn clear_gpu(
        &mut self,
        turn: &mut Turn<'_>,
        gpu: &GpuUuid,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_text("reason", reason)?;
        let (node, orders) = self.clearable(gpu)?;
        let Some(known) = self.nodes.get_mut(&node) else { return Ok(Reply::Done) };
        let new: Vec<ClearOrder> =
            orders.into_iter().filter(|order| !known.clearing.contains(order)).collect();
        if !new.is_empty() {
            turn.say(Event::GpuClearOrdered {
                node,
                gpu: gpu.clone(),
                by: turn.actor.display_name(),
                reason: reason.to_owned(),
                kinds: new.iter().map(|order| order.kind.clone()).collect(),
            });
            known.clearing.extend(new);
        }
        Ok(Reply::Done)
    }

    /// What an order would clear, or why it cannot be given: the fault is still there, or nobody knows.
    fn clearable(&self, uuid: &GpuUuid) -> Result<(NodeName, Vec<ClearOrder>), Rejection> {
        let gpu = self.gpus.get(uuid).ok_or_else(|| Rejection::not_found("GPU", uuid))?;
        let not_found = || Rejection::not_found("node", &gpu.node);
        let node = self.nodes.get(&gpu.node).ok_or_else(not_found)?;
        let what = gpu.name().to_string();
        let refused =
            |why: &str| Rejection::StillObserved { what: what.clone(), why: why.to_owned() };
        match (node.liveness, gpu.presence) {
            (Liveness::Suspect | Liveness::Unreachable, _) => {
                return Err(refused("its node is silent, so nobody knows how it is"));
            }
            (Liveness::Ready, Presence::Lost) => return Err(refused("it is still gone")),
            (Liveness::Ready, Presence::Unknown) if node.facts.driver_released => {
                return Err(refused("its driver is released: uncordon its node first"));
            }
            (Liveness::Ready, Presence::Unknown) => {
                return Err(refused("it still does not answer"));
            }
            (Liveness::Ready, Presence::Present) => {}
        }
        let own = |c: &&Condition| c.subject == Subject::Gpu(uuid.clone()) && c.is_active();
        let (told, observed): (Vec<&Condition>, Vec<&Condition>) =
            node.conditions.iter().filter(own).partition(|c| self.may_be_cleared(c));
        if told.is_empty() && !observed.is_empty() {
            let reasons: Vec<&str> = observed.iter().map(|c| c.reason.as_str()).collect();
            return Err(refused(&format!("it is still so ({})", reasons.join("; "))));
        }
        let order =
            |c: &Condition| ClearOrder { gpu: uuid.clone(), kind: c.kind.clone(), since: c.since };
        Ok((node.name.clone(), told.into_iter().map(order).collect()))
    }

    fn may_be_cleared(&self, condition: &Condition) -> bool {
        condition.is_told()
    }

    /// After a report: what it shows no more has been cleared, or has become something else.
    pub(super) fn close_clear_orders(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let conditions = &node.conditions;
        node.clearing.retain(|order| {
            conditions.iter().any(|c| {
                c.subject == Subject::Gpu(order.gpu.clone())
                    && (&c.kind, c.since) == (&order.kind, order.since)
            })
        });
    }
}
