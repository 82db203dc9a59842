//! Planted bugs, which the measures must find. They live here, around the product, and nowhere in it.

use fleet_core::Fsm;
use fleet_core::command::Preempt;
use fleet_core::fair_share::HALF_LIFE_MAX;
use fleet_core::time::Millis;

use crate::agents::Agents;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// What people used counts for ever.
    ShareNotDecayed,
    /// The job that runs longest leaves, instead of the one that loses least.
    VictimByAge,
}

/// All of them, by the name to ask for them.
pub(crate) const ALL: [(&str, Bug); 2] =
    [("share-not-decayed", Bug::ShareNotDecayed), ("victim-by-age", Bug::VictimByAge)];

impl Bug {
    /// The half-life that the bug sets, if it sets one.
    pub(crate) fn half_life(self) -> Option<Millis> {
        (self == Bug::ShareNotDecayed).then_some(HALF_LIFE_MAX)
    }

    /// The order as the bug would have it, where that is another one.
    pub(crate) fn order(self, fsm: &Fsm, order: &Preempt, agents: &Agents<'_>) -> Option<Preempt> {
        match self {
            Bug::ShareNotDecayed => None,
            Bug::VictimByAge => by_age(fsm, order, agents),
        }
    }
}

/// Another order for the same job on the same node: what began first leaves, until that is enough.
fn by_age(fsm: &Fsm, order: &Preempt, agents: &Agents<'_>) -> Option<Preempt> {
    let job = fsm.job(&order.job)?;
    let priority = fsm.class(&job.spec.class)?.priority;
    let victims_now: Vec<_> = order.victims.keys().filter_map(|id| fsm.allocation(id)).collect();
    let free = order.gpus.iter().filter(|g| !victims_now.iter().any(|v| v.gpus.contains(g)));
    let mut changed = Preempt { gpus: free.cloned().collect(), ..order.clone() };
    changed.victims.clear();
    for id in agents.oldest_first() {
        if changed.gpus.len() >= job.spec.gpus.count as usize {
            break;
        }
        let Some(a) = fsm.allocation(&id).filter(|a| a.node == order.node) else { continue };
        let Some(of) = fsm.job(&a.job) else { continue };
        let Some(class) = fsm.class(&of.spec.class) else { continue };
        let may = fsm.guaranteed_until(of).is_some_and(|until| until <= fsm.now());
        if !may || class.priority >= priority || a.stop.is_some() || !a.causes.is_empty() {
            continue;
        }
        let wait = if of.spec.checkpoint.is_some() { class.save_limit } else { Millis::ZERO };
        changed.victims.insert(id, fsm.now() + wait);
        changed.gpus.extend(a.gpus.iter().cloned());
    }
    changed.gpus.truncate(job.spec.gpus.count as usize);
    (changed.gpus.len() == job.spec.gpus.count as usize).then_some(changed)
}
