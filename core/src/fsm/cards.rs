//! Cards that are put into another machine.
//!
//! The node that reports a card has it from the moment on in which nothing names the card on the node before: no lease, no
//! promise. Until then its facts keep the card.

use super::{Fsm, Turn};
use crate::event::Event;
use crate::gpu::{Gpu, Presence};
use crate::name::{GpuUuid, NodeName};
use crate::node::Liveness;
use crate::time::Timestamp;

impl Fsm {
    /// Why a card that this node reports still counts on another one, if so. It may turn up in another machine once it
    /// left the first, and nobody holds it there or was promised it there: a promise names the node.
    pub(super) fn stays_elsewhere(&self, name: &NodeName, uuid: &GpuUuid) -> Option<String> {
        let known = self.gpus.get(uuid).filter(|known| known.node != *name)?;
        let from = &known.node;
        let silent = self.nodes.get(from).is_none_or(|n| n.liveness == Liveness::Unreachable);
        if known.presence != Presence::Lost && !silent {
            return Some(format!("{from} reports it too"));
        }
        if let Some(hold) = self.holds.get(uuid) {
            return Some(format!("{} still has it on {from}", self.holder_text(hold)));
        }
        let here = self.reservations.counting_on(from).find(|r| r.gpus.contains(uuid));
        let mut coming = self.reservations.coming_to(from);
        let coming = coming.find(|(_, next)| next.gpus.contains(uuid)).map(|(r, _)| r);
        let promised = here.or(coming)?;
        Some(format!("it is promised to {} of {} on {from}", promised.id, promised.owner))
    }

    /// Whether the node has reported this card before, and it did not count there.
    pub(super) fn counts_elsewhere(&self, name: &NodeName, uuid: &GpuUuid) -> bool {
        self.nodes.get(name).is_some_and(|n| n.facts.gpus.iter().any(|gpu| gpu.uuid == *uuid))
    }

    /// Cards that nothing keeps on another node any more count where they are.
    pub(super) fn settle_cards(&mut self, turn: &mut Turn<'_>) {
        for name in self.cards_elsewhere.clone() {
            let Some(node) = self.nodes.get(&name) else {
                self.cards_elsewhere.remove(&name);
                continue;
            };
            let free = |gpu: &&Gpu| self.stays_elsewhere(&name, &gpu.uuid).is_none();
            let free: Vec<Gpu> = node.facts.gpus.iter().filter(free).cloned().collect();
            for gpu in free {
                self.take_gpu(turn, &name, &gpu, false);
                let what = format!("{} counts here from now on", gpu.uuid);
                turn.say(Event::NodeFactsChanged { node: name.clone(), what });
                let Some(node) = self.nodes.get_mut(&name) else { continue };
                node.gpus.push(gpu.uuid.clone());
                node.facts.gpus.retain(|other| other.uuid != gpu.uuid);
                if node.facts.gpus.is_empty() {
                    self.cards_elsewhere.remove(&name);
                }
            }
            self.sort_gpus(&name);
            self.settle_replacements(turn, &name);
        }
    }

    /// Now, if some card can be counted where it is.
    pub(super) fn cards_due(&self) -> Option<Timestamp> {
        let nodes = self.cards_elsewhere.iter().filter_map(|name| self.nodes.get(name));
        let free = |node: &crate::node::Node| {
            let mut cards = node.facts.gpus.iter();
            cards.any(|gpu| self.stays_elsewhere(&node.name, &gpu.uuid).is_none())
        };
        nodes.into_iter().any(free).then_some(self.now)
    }
}
