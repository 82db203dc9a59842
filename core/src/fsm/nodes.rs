//! Nodes: registration, reboot, cordon, drain, liveness, conditions.

use std::collections::BTreeMap;

use super::{Fsm, Turn, cluster::check_text};
use crate::allocation::Phase;
use crate::event::Event;
use crate::gpu::{GPUS_PER_NODE_MAX, Gpu, Presence};
use crate::health::{CONDITIONS_PER_NODE_MAX, Condition, Severity, Subject};
use crate::id::AllocationId;
use crate::name::{GpuUuid, NodeName};
use crate::node::{
    Cordon, DEADLINE_SLACK, Drain, Liveness, MachineIdentity, NODES_MAX, Node, NodeFacts,
};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::{Millis, Timestamp};
use crate::window::{Enforcement, EnforcementOrder};

impl Fsm {
    /// Only records the order: the images on a node's disk are not part of the fleet's state.
    pub(super) fn order_images_removal(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        image: Option<&str>,
    ) -> Result<Reply, Rejection> {
        self.node_mut(node)?;
        if let Some(image) = image {
            check_text("image", image)?;
        }
        let (node, image, by) = (node.clone(), image.map(str::to_owned), turn.actor.display_name());
        turn.say(Event::ImagesRemovalOrdered { node, image, by });
        Ok(Reply::Done)
    }

    pub(super) fn register_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        facts: &NodeFacts,
    ) -> Result<Reply, Rejection> {
        check_facts(name, facts)?;
        let Some(known) = self.nodes.get(name) else {
            return self.admit_node(turn, name, facts);
        };
        if known.facts.machine != facts.machine {
            let why = "its machine id differs from the one that joined".to_owned();
            return Err(Rejection::NodeIdentity { node: name.clone(), why });
        }
        let rebooted = known.facts.boot_id != facts.boot_id;
        let uncounted = known.uncounted;
        self.certificate_shown(turn.actor);
        self.forget_use(name, rebooted);
        if rebooted {
            let boot_id = facts.boot_id.clone();
            turn.say(Event::NodeRebooted { node: name.clone(), boot_id });
            // A backup does not know which boot it was that ended what: the node says so itself when it is asked.
            if !uncounted {
                self.forget_boot(turn, name, facts);
            }
        }
        self.take_facts(turn, name, facts);
        if rebooted {
            self.lift_exclusions(turn, name, "it rebooted");
            self.reboot_is_over(turn, name);
        }
        self.heard(turn, name);
        Ok(Reply::Done)
    }

    fn admit_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        facts: &NodeFacts,
    ) -> Result<Reply, Rejection> {
        if self.nodes.len() >= NODES_MAX {
            let what = "nodes".to_owned();
            return Err(Rejection::LimitReached { what, limit: NODES_MAX as u64 });
        }
        // Two clones may have joined before either was known here.
        self.check_no_clone(name, &facts.machine)?;
        check_no_twins(name, facts)?;
        self.certificate_shown(turn.actor);
        let node = Node {
            name: name.clone(),
            facts: NodeFacts { gpus: Vec::new(), ..facts.clone() },
            gpus: Vec::new(),
            liveness: Liveness::Ready,
            liveness_since: self.now,
            silent_since: None,
            cordon: None,
            drain: None,
            suspended: None,
            conditions: Vec::new(),
            clearing: Vec::new(),
            registered_at: self.now,
            // One that joined after the backup is asked too.
            uncounted: self.restored.is_some(),
            enforcement: None,
            enforce: None,
            reboot: None,
            use_counted: Timestamp::default(),
        };
        self.nodes.insert(name.clone(), node);
        self.lift_exclusions(turn, name, "it joined again");
        turn.say(Event::NodeRegistered {
            node: name.clone(),
            gpus: u32::try_from(facts.gpus.len()).unwrap_or(u32::MAX),
            boot_id: facts.boot_id.clone(),
        });
        self.take_facts(turn, name, facts);
        Ok(Reply::Done)
    }

    /// No two nodes have one machine id: a copy of a machine's disk has it too. The firmware's UUID does not count,
    /// since boards exist that all have the same. Nodes that are in already stay in.
    pub(super) fn check_no_clone(
        &self,
        name: &NodeName,
        machine: &MachineIdentity,
    ) -> Result<(), Rejection> {
        if machine.machine_id.is_empty() {
            return Ok(());
        }
        let same = |node: &&Node| node.facts.machine.machine_id == machine.machine_id;
        // All nodes, whenever an agent joins or registers. An index by machine id is worth it: 1 ms with 10,000 nodes.
        match self.nodes.values().filter(|node| node.name != *name).find(same) {
            None => Ok(()),
            Some(holder) => {
                let (node, holder) = (name.clone(), holder.name.clone());
                Err(Rejection::MachineIdTaken { node, holder })
            }
        }
    }

    /// Everything of the boot before is gone, provably so for the GPUs that are still there.
    fn forget_boot(&mut self, turn: &mut Turn<'_>, name: &NodeName, facts: &NodeFacts) {
        let there: Vec<&GpuUuid> = facts.gpus.iter().map(|gpu| &gpu.uuid).collect();
        // One that is still in its slot after the machine was off was not swapped.
        for gpu in facts.gpus.iter().filter(|gpu| gpu.presence == Presence::Present) {
            if let Some(known) = self.gpus.get_mut(&gpu.uuid) {
                known.replaced_by_next = false;
            }
        }
        let earlier = self.allocations.on(name).filter(|a| a.boot_id != facts.boot_id);
        let earlier: Vec<AllocationId> = earlier.map(|a| a.id.clone()).collect();
        let mut lost: Vec<AllocationId> = Vec::new();
        for id in earlier {
            let Some(allocation) = self.allocations.get_mut(&id) else { continue };
            // Not begun as far as is known: its agent has a record of it if it was, and says so; else it begins now.
            let waits = allocation.phase == Phase::Placed
                && allocation.gpus.iter().all(|gpu| there.contains(&gpu));
            match waits {
                true => allocation.boot_id.clone_from(&facts.boot_id),
                false => lost.push(allocation.id.clone()),
            }
        }
        for id in lost {
            self.lose_allocation(turn, &id, format!("{name} rebooted"));
        }
        let stays: Vec<GpuUuid> = self
            .leases
            .on(name)
            .flat_map(|l| l.gpus.iter())
            .filter(|gpu| !there.contains(gpu))
            .cloned()
            .collect();
        // A card that did not come back proves nothing about what it was doing.
        if stays.is_empty() {
            self.release_all_of(turn, name);
        }
    }

    /// Takes over what the agent says of its machine and its GPUs.
    pub(super) fn take_facts(&mut self, turn: &mut Turn<'_>, name: &NodeName, facts: &NodeFacts) {
        let let_go = self.note_driver(turn, name, facts);
        let mut reported: Vec<&Gpu> = facts.gpus.iter().collect();
        reported.sort_by_key(|gpu| gpu.driver_index.unwrap_or(gpu.index));
        reported
            .retain(|gpu| gpu.presence == Presence::Present || !self.is_forgotten(name, &gpu.uuid));
        let mut order = Vec::with_capacity(reported.len());
        let mut elsewhere = Vec::new();
        for gpu in reported {
            let known = self.gpus.get(&gpu.uuid);
            if gpu.presence == Presence::Lost && known.is_some_and(|known| known.node != *name) {
                // An agent remembers what left its machine: that is no claim to it.
                continue;
            }
            if let Some(why) = self.stays_elsewhere(name, &gpu.uuid) {
                if !self.counts_elsewhere(name, &gpu.uuid) {
                    let what = format!("{} does not count here yet: {why}", gpu.uuid);
                    turn.say(Event::NodeFactsChanged { node: name.clone(), what });
                }
                elsewhere.push(gpu.clone());
                continue;
            }
            self.take_gpu(turn, name, gpu, let_go);
            order.push(gpu.uuid.clone());
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return };
        // A card that was there and is not named any more is lost, not forgotten.
        let gone: Vec<GpuUuid> =
            node.gpus.iter().filter(|uuid| !order.contains(uuid)).cloned().collect();
        order.extend(gone.iter().cloned());
        node.gpus = order;
        node.facts = NodeFacts { gpus: elsewhere, ..facts.clone() };
        match node.facts.gpus.is_empty() {
            true => self.cards_elsewhere.remove(name),
            false => self.cards_elsewhere.insert(name.clone()),
        };
        for uuid in gone {
            if let Some(gpu) = self.gpus.get_mut(&uuid).filter(|gpu| gpu.node == *name)
                && gpu.presence != Presence::Lost
            {
                gpu.presence = Presence::Lost;
                gpu.lost_since = Some(now);
                let what = format!("{uuid} is not in the machine any more");
                turn.say(Event::NodeFactsChanged { node: name.clone(), what });
            }
        }
        self.sort_gpus(name);
        self.settle_replacements(turn, name);
    }

    /// Says once that the agent released the driver, or loaded it again. Returns whether either is so: then it need
    /// not be said of each GPU.
    fn note_driver(&self, turn: &mut Turn<'_>, name: &NodeName, facts: &NodeFacts) -> bool {
        let known = self.nodes.get(name).is_some_and(|node| node.facts.driver_released);
        if known != facts.driver_released {
            let what = match facts.driver_released {
                true => "nothing is left there: its GPU driver is released and can be upgraded",
                false => "its GPU driver is taken up again",
            };
            turn.say(Event::NodeFactsChanged { node: name.clone(), what: what.to_owned() });
        }
        known || facts.driver_released
    }

    pub(super) fn take_gpu(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        gpu: &Gpu,
        let_go: bool,
    ) {
        let before = self.gpus.get(&gpu.uuid);
        let new_dirt = gpu.dirty.as_ref().filter(|_| before.is_none_or(|b| b.dirty.is_none()));
        let changed_presence = before
            .is_some_and(|b| b.presence != gpu.presence)
            .then_some(gpu.presence)
            .filter(|now| !let_go || *now == Presence::Lost);
        if let Some(old) = before.map(|b| b.node.clone()).filter(|old| old != name)
            && let Some(node) = self.nodes.get_mut(&old)
        {
            node.gpus.retain(|uuid| *uuid != gpu.uuid);
        }
        let node = name.clone();
        if let Some(why) = new_dirt {
            let what = format!("{} is in use without a lease: {why}", gpu.uuid);
            turn.say(Event::NodeFactsChanged { node: node.clone(), what });
        }
        if let Some(presence) = changed_presence {
            let word = match presence {
                Presence::Present => "answers again",
                Presence::Lost => "is lost",
                Presence::Unknown => "does not answer",
            };
            let what = format!("{} {word}", gpu.uuid);
            turn.say(Event::NodeFactsChanged { node: node.clone(), what });
        }
        let former = before.map(Gpu::name);
        let stayed = before.filter(|before| before.node == *name);
        let here_since = stayed.map_or(Some(self.now), |before| before.here_since);
        let lost_since = match gpu.presence {
            Presence::Lost => stayed.and_then(|before| before.lost_since).or(Some(self.now)),
            Presence::Present | Presence::Unknown => None,
        };
        // One that is back was not replaced.
        let replaced_by_next = before.is_some_and(|before| {
            let back = before.presence == Presence::Lost && gpu.presence == Presence::Present;
            before.node == *name && before.replaced_by_next && !back
        });
        let (index, driver_index) =
            (self.number_for(name, gpu), gpu.driver_index.unwrap_or(gpu.index));
        let taken = Gpu {
            node,
            index,
            driver_index: Some(driver_index),
            here_since,
            lost_since,
            replaced_by_next,
            ..gpu.clone()
        };
        self.gpus.insert(gpu.uuid.clone(), taken);
        if let Some(former) = former {
            self.note_new_name(turn, &gpu.uuid, former);
        }
    }

    pub(super) fn node_mut(&mut self, name: &NodeName) -> Result<&mut Node, Rejection> {
        self.nodes.get_mut(name).ok_or_else(|| Rejection::not_found("node", name))
    }

    pub(super) fn cordon_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        let (by, since) = (turn.actor.display_name(), self.now);
        let node = self.node_mut(name)?;
        let reason = reason.to_owned();
        node.cordon = Some(Cordon { by: by.clone(), reason: reason.clone(), since });
        if let Some(wish) = &mut node.reboot {
            wish.cordoned = false;
        }
        turn.say(Event::NodeCordoned { node: name.clone(), by, reason });
        Ok(Reply::Done)
    }

    pub(super) fn uncordon_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
    ) -> Result<Reply, Rejection> {
        let by = turn.actor.display_name();
        let node = self.node_mut(name)?;
        let closed = node.cordon.is_some() || node.drain.is_some() || node.suspended.is_some();
        node.cordon = None;
        node.drain = None;
        node.suspended = None;
        // Without the drain it would never be empty.
        if node.reboot.take().is_some() {
            turn.say(Event::NodeRebootCancelled { node: name.clone(), by: by.clone() });
        }
        let why = format!("uncordoned by {by}");
        if closed {
            turn.say(Event::NodeUncordoned { node: name.clone(), by });
        }
        self.lift_exclusions(turn, name, &why);
        self.review_node(turn, name);
        Ok(Reply::Done)
    }

    pub(super) fn drain_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        reason: &str,
        deadline: Option<Timestamp>,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        if deadline.is_some_and(|at| at > Timestamp::MAX_ACCEPTED) {
            return Err(Rejection::field("deadline", "beyond the year 9998"));
        }
        if let Some(past) = deadline.map(|at| self.now.since(at))
            && past > DEADLINE_SLACK
        {
            let problem = format!("it passed {past} ago; `now` ends everything at once");
            return Err(Rejection::field("deadline", problem));
        }
        let (by, since) = (turn.actor.display_name(), self.now);
        let node = self.node_mut(name)?;
        let reason = reason.to_owned();
        node.cordon = Some(Cordon { by: by.clone(), reason: reason.clone(), since });
        node.drain = Some(Drain { since, deadline });
        if let Some(wish) = &mut node.reboot {
            (wish.cordoned, wish.drained) = (false, false);
        }
        turn.say(Event::NodeDraining { node: name.clone(), by, reason, deadline });
        self.review_node(turn, name);
        self.say_if_drained(turn, name);
        Ok(Reply::Done)
    }

    /// How the node is to hold people to their reservations. The same order again changes nothing, not even since
    /// when.
    pub(super) fn enforce_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        mode: Enforcement,
    ) -> Result<Reply, Rejection> {
        let (by, since) = (turn.actor.display_name(), self.now);
        let node = self.node_mut(name)?;
        let before = node.enforcement_ordered();
        if before != mode {
            node.enforce = Some(EnforcementOrder { mode, by: by.clone(), since });
            turn.say(Event::NodeEnforcementSet { node: name.clone(), mode, before, by });
        }
        Ok(Reply::Done)
    }

    pub(super) fn say_if_drained(&self, turn: &mut Turn<'_>, name: &NodeName) {
        let draining = self.nodes.get(name).is_some_and(|node| node.drain.is_some());
        if draining && self.is_empty(name) {
            turn.say(Event::NodeDrained { node: name.clone() });
        }
    }

    /// Nobody's work is on the node, and no GPU of it is held or still being proven empty. A reservation that begins
    /// later does not count.
    pub fn is_empty(&self, name: &NodeName) -> bool {
        let works = self.allocations.on(name).next().is_some();
        let held = self.leases.on(name).next().is_some();
        !works && !held
    }

    pub(super) fn suspend_node(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        let node = self.node_mut(name)?;
        if node.suspended.is_none() {
            node.suspended = Some(reason.to_owned());
            turn.say(Event::NodeSuspended { node: name.clone(), reason: reason.to_owned() });
        }
        Ok(Reply::Done)
    }

    /// Silence changes what may be placed, and nothing else.
    pub(super) fn set_liveness(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        liveness: Liveness,
        silent_for: Millis,
    ) -> Result<Reply, Rejection> {
        let now = self.now;
        let node = self.node_mut(name)?;
        if node.liveness == liveness {
            return Ok(Reply::Done);
        }
        node.liveness = liveness;
        node.liveness_since = now;
        node.silent_since = match liveness {
            Liveness::Ready => None,
            Liveness::Suspect | Liveness::Unreachable => Some(now - silent_for),
        };
        turn.say(Event::LivenessChanged { node: name.clone(), liveness });
        match liveness {
            Liveness::Ready => self.hand_out_due(turn),
            Liveness::Suspect | Liveness::Unreachable => self.forget_use(name, false),
        }
        Ok(Reply::Done)
    }

    fn heard(&mut self, turn: &mut Turn<'_>, name: &NodeName) {
        // A node that was admitted cannot be missing; silence it never had is no change.
        if let Some(node) = self.nodes.get_mut(name)
            && node.liveness != Liveness::Ready
        {
            node.liveness = Liveness::Ready;
            node.liveness_since = self.now;
            node.silent_since = None;
            turn.say(Event::LivenessChanged { node: name.clone(), liveness: Liveness::Ready });
            self.hand_out_due(turn);
        }
    }

    /// Takes the whole set of conditions; says what changed and lets each allocation see it.
    pub(super) fn take_conditions(
        &mut self,
        turn: &mut Turn<'_>,
        name: &NodeName,
        conditions: &[Condition],
    ) -> Result<(), Rejection> {
        if conditions.len() > CONDITIONS_PER_NODE_MAX {
            let what = "conditions of one node".to_owned();
            return Err(Rejection::LimitReached { what, limit: CONDITIONS_PER_NODE_MAX as u64 });
        }
        // Of a card that was forgotten its agent may still say what it was like.
        let known = |c: &&Condition| match &c.subject {
            Subject::Gpu(uuid) => !self.is_forgotten(name, uuid),
            Subject::Node => true,
        };
        let conditions: Vec<Condition> = conditions.iter().filter(known).cloned().collect();
        let nodes = self.nodes.len();
        let now = self.now;
        let node = self.node_mut(name)?;
        let before = std::mem::replace(&mut node.conditions, conditions.clone());
        let mut bad = false;
        for condition in &conditions {
            let old = before.iter().find(|old| same_key(old, condition));
            let was = old.filter(|old| old.is_active()).map(|old| old.severity);
            match (was, condition.is_active()) {
                (None, true) => {
                    bad |= condition.severity >= Severity::Degraded;
                    turn.say(raised(name, condition));
                }
                (Some(severity), true) if severity != condition.severity => {
                    bad |= condition.severity >= Severity::Degraded;
                    turn.say(changed(name, condition));
                }
                // The driver reported the same once more: the user who has the GPU now is to hear of it.
                (Some(_), true) if is_told_again(old, condition) => {
                    turn.say(changed(name, condition));
                }
                (Some(_), false) => turn.say(cleared(name, condition)),
                (None, false) | (Some(_), true) => {}
            }
        }
        for old in before.iter().filter(|old| old.is_active()) {
            if !conditions.iter().any(|new| same_key(old, new)) {
                turn.say(cleared(name, old));
            }
        }
        self.close_clear_orders(name);
        if bad && let Some(freeze) = self.storm.note(name, nodes, now) {
            turn.say(Event::EvictionsFrozen { affected: freeze.affected, of: freeze.of });
        }
        self.review_node(turn, name);
        Ok(())
    }

    pub(super) fn thaw_evictions(&mut self, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        if self.storm.thaw() {
            turn.say(Event::EvictionsThawed { by: turn.actor.display_name() });
            let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
            for name in names {
                self.review_node(turn, &name);
            }
        }
        Ok(Reply::Done)
    }
}

fn same_key(a: &Condition, b: &Condition) -> bool {
    a.subject == b.subject && a.kind == b.kind
}

fn gpu_of(condition: &Condition) -> Option<GpuUuid> {
    match &condition.subject {
        Subject::Node => None,
        Subject::Gpu(uuid) => Some(uuid.clone()),
    }
}

fn is_told_again(old: Option<&Condition>, new: &Condition) -> bool {
    new.is_told() && old.is_some_and(|old| old.reason != new.reason)
}

fn raised(node: &NodeName, c: &Condition) -> Event {
    Event::ConditionRaised {
        node: node.clone(),
        gpu: gpu_of(c),
        kind: c.kind.to_string(),
        severity: c.severity,
        message: format!("{}; {}", c.reason, c.message),
    }
}

fn changed(node: &NodeName, c: &Condition) -> Event {
    Event::ConditionChanged {
        node: node.clone(),
        gpu: gpu_of(c),
        kind: c.kind.to_string(),
        severity: c.severity,
        message: format!("{}; {}", c.reason, c.message),
    }
}

pub(super) fn cleared(node: &NodeName, c: &Condition) -> Event {
    Event::ConditionCleared { node: node.clone(), gpu: gpu_of(c), kind: c.kind.to_string() }
}

fn check_reason(reason: &str) -> Result<(), Rejection> {
    check_text("reason", reason)?;
    if reason.trim().is_empty() {
        return Err(Rejection::field("reason", "needed, because others will read it"));
    }
    Ok(())
}

/// Checks what an agent says before any of it is believed.
pub(super) fn check_facts(name: &NodeName, facts: &NodeFacts) -> Result<(), Rejection> {
    if facts.gpus.len() > GPUS_PER_NODE_MAX {
        let what = format!("GPUs of {name}");
        return Err(Rejection::LimitReached { what, limit: GPUS_PER_NODE_MAX as u64 });
    }
    if facts.machine.machine_id.is_empty() || facts.boot_id.is_empty() {
        return Err(Rejection::field("facts.machine", "machine id and boot id are needed"));
    }
    let mut uuids: Vec<&GpuUuid> = facts.gpus.iter().map(|gpu| &gpu.uuid).collect();
    uuids.sort();
    uuids.dedup();
    if uuids.len() != facts.gpus.len() {
        return Err(Rejection::field("facts.gpus", "names a UUID twice"));
    }
    Ok(())
}

/// No two cards that a node joins with may have one number or one slot: then nobody knows which is which.
fn check_no_twins(name: &NodeName, facts: &NodeFacts) -> Result<(), Rejection> {
    let mut seen: BTreeMap<(&str, String), &GpuUuid> = BTreeMap::new();
    for gpu in facts.gpus.iter().filter(|gpu| gpu.presence == Presence::Present) {
        let number = ("number", gpu.driver_index.unwrap_or(gpu.index).to_string());
        let slot = ("PCI address", gpu.pci_bus_id.clone());
        for key in [number, slot].into_iter().filter(|(_, value)| !value.is_empty()) {
            let (what, value) = (key.0, key.1.clone());
            if let Some(other) = seen.insert(key, &gpu.uuid) {
                let problem = format!(
                    "{name} reports two GPUs with the {what} {value}: {other} and {}; look at `nvidia-smi -L` there",
                    gpu.uuid
                );
                return Err(Rejection::field("facts.gpus", problem));
            }
        }
    }
    Ok(())
}
