//! The number in `titan01:3`: which card has it, and what becomes of it when cards come and go.
//!
//! The driver counts the cards that it finds at each boot: where one is gone, those behind it move up. People say
//! `titan01:3` and mean a card, so the fleet gives the number itself, and a card keeps it as long as it is known to its
//! node, in whichever slot it is (bus numbers change too when a card is taken out). One that is lost keeps it as well,
//! until an admin forgets it. Then the card that is in its slot by now takes its number, with what is promised of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fsm, Turn, cluster::check_text};
use crate::calendar::Calendar;
use crate::event::Event;
use crate::gpu::{FORMER_NAMES_KEPT, FormerName, Gpu, GpuName, Presence};
use crate::id::ReservationId;
use crate::lease::LeaseHolder;
use crate::name::{GpuUuid, NodeName};
use crate::rejection::Rejection;
use crate::reply::Reply;

/// What stands in the way of forgetting a card, as far as it is named.
const NAMED_MAX: usize = 5;

impl Fsm {
    /// The numbers of a node's cards, and the cards that were forgotten and that it may still count among its lost ones.
    pub(crate) fn numbers_of(
        &self,
        node: &NodeName,
    ) -> (BTreeMap<GpuUuid, u32>, BTreeSet<GpuUuid>) {
        let numbers = self.gpus_of(node).map(|gpu| (gpu.uuid.clone(), gpu.index));
        let former = self.former_names.keys();
        let forgotten = former.filter(|uuid| self.is_forgotten(node, uuid)).cloned();
        (numbers.collect(), forgotten.collect())
    }

    /// Whether a report names a card that was forgotten and did not come back.
    pub(super) fn is_forgotten(&self, node: &NodeName, uuid: &GpuUuid) -> bool {
        let former = self.former_names.get(uuid).and_then(|former| former.last());
        let forgotten = former.is_some_and(|last| last.forgotten && last.name.node == *node);
        forgotten && !self.gpus.contains_key(uuid)
    }

    /// The number of a card that its node reports: the one that it had, else the driver's if nobody has it, else the
    /// first that is free.
    pub(super) fn number_for(&self, node: &NodeName, reported: &Gpu) -> u32 {
        let others = || self.gpus.on(node).filter(move |gpu| gpu.uuid != reported.uuid);
        let taken: BTreeSet<u32> = others().map(|gpu| gpu.index).collect();
        let known = self.gpus.get(&reported.uuid).filter(|known| known.node == *node);
        // Two cards could have one number before the fleet gave them: a lost one keeps it, else the first by its UUID.
        let rank = |gpu: &Gpu| (gpu.presence != Presence::Lost, gpu.uuid.clone());
        let own = rank(reported);
        let keeps = known.filter(|known| {
            others().filter(|other| other.index == known.index).all(|other| own < rank(other))
        });
        keeps.map(|known| known.index).unwrap_or_else(|| {
            let wanted = reported.driver_index.unwrap_or(reported.index);
            let free = || (0..).find(|number| !taken.contains(number));
            Some(wanted).filter(|wanted| !taken.contains(wanted)).or_else(free).unwrap_or(wanted)
        })
    }

    /// The oldest name of the fleet makes room.
    fn note_former_name(&mut self, uuid: &GpuUuid, name: GpuName, forgotten: bool) {
        let until = self.now;
        let kept: usize = self.former_names.values().map(Vec::len).sum();
        if kept >= FORMER_NAMES_KEPT
            && let Some(oldest) = self
                .former_names
                .iter()
                .filter_map(|(uuid, former)| Some((former.first()?.until, uuid.clone())))
                .min()
                .map(|(_, uuid)| uuid)
            && let Some(former) = self.former_names.get_mut(&oldest)
        {
            former.remove(0);
            if former.is_empty() {
                self.former_names.remove(&oldest);
            }
        }
        self.former_names.entry(uuid.clone()).or_default().push(FormerName {
            name,
            until,
            forgotten,
        });
    }

    /// The cards of a node that is removed: later stories still have their names.
    pub(super) fn drop_gpus_of(&mut self, node: &NodeName) {
        let names = self.gpus.on(node).map(|gpu| (gpu.uuid.clone(), gpu.name()));
        let names: Vec<(GpuUuid, GpuName)> = names.collect();
        for (uuid, name) in names {
            self.gpus.remove(&uuid);
            self.note_former_name(&uuid, name, false);
        }
    }

    /// Says that a card is called something else from now on.
    pub(super) fn note_new_name(&mut self, turn: &mut Turn<'_>, uuid: &GpuUuid, former: GpuName) {
        let Some(name) = self.gpu_name(uuid).filter(|name| *name != former) else { return };
        self.note_former_name(uuid, former.clone(), false);
        turn.say(Event::GpuRenamed {
            gpu: uuid.clone(),
            node: name.node,
            from: former.to_string(),
            index: name.index,
        });
    }

    /// An admin's word that a card does not come back; with `replace`, as soon as another one is in its slot.
    pub(super) fn forget_gpu(
        &mut self,
        turn: &mut Turn<'_>,
        uuid: &GpuUuid,
        reason: &str,
        replace: bool,
    ) -> Result<Reply, Rejection> {
        check_text("reason", reason)?;
        if reason.trim().is_empty() {
            return Err(Rejection::field("reason", "say what became of the card"));
        }
        let gpu = self.gpus.get(uuid).ok_or_else(|| Rejection::not_found("GPU", uuid))?;
        let lost = gpu.presence == Presence::Lost;
        if replace && (!lost || self.successor(gpu).is_none()) {
            let by = turn.actor.display_name();
            let (gpu, name, reason) = (uuid.clone(), gpu.name(), reason.to_owned());
            if let Some(known) = self.gpus.get_mut(uuid) {
                known.replaced_by_next = true;
            }
            turn.say(Event::GpuReplacementAwaited { gpu, node: name.node, by, reason });
            return Ok(Reply::Done);
        }
        if !lost {
            let what = gpu.name().to_string();
            let why = match gpu.presence {
                Presence::Unknown => "its driver does not answer, so nobody knows",
                Presence::Present | Presence::Lost => "it is in its machine",
            };
            return Err(Rejection::NotForgotten { what, why: vec![why.to_owned()] });
        }
        self.forget(turn, uuid, reason)?;
        Ok(Reply::Done)
    }

    /// The card that came into the slot of a lost one. One that was there before and has that address now is none: buses
    /// are counted again where a card is taken out.
    fn successor(&self, lost: &Gpu) -> Option<&Gpu> {
        let there = |gpu: &&Gpu| {
            let came_later = gpu
                .here_since
                .is_some_and(|since| lost.lost_since.is_none_or(|lost| since >= lost));
            gpu.uuid != lost.uuid
                && gpu.presence == Presence::Present
                && !lost.pci_bus_id.is_empty()
                && gpu.pci_bus_id == lost.pci_bus_id
                && came_later
        };
        let node = self.nodes.get(&lost.node)?;
        node.gpus.iter().filter_map(|uuid| self.gpus.get(uuid)).find(there)
    }

    /// Takes a lost card out of the inventory. What was promised of it goes to its successor where that is the same
    /// model; else nothing happens, and the refusal names what stands in the way.
    fn forget(
        &mut self,
        turn: &mut Turn<'_>,
        uuid: &GpuUuid,
        reason: &str,
    ) -> Result<(), Rejection> {
        let Some(lost) = self.gpus.get(uuid).cloned() else { return Ok(()) };
        let name = lost.name();
        let successor = self.successor(&lost).cloned();
        let heir = successor.as_ref().filter(|gpu| gpu.model == lost.model).map(|gpu| &gpu.uuid);
        let mut in_the_way = self.holders_of(uuid);
        let (said, before) = (turn.events.len(), self.reservations.clone());
        in_the_way.extend(self.leave_promises(turn, uuid, heir));
        if !in_the_way.is_empty() {
            self.reservations = before;
            turn.events.truncate(said);
            let more = in_the_way.len().saturating_sub(NAMED_MAX);
            in_the_way.truncate(NAMED_MAX);
            if more > 0 {
                in_the_way.push(format!("{more} more"));
            }
            return Err(Rejection::NotForgotten { what: name.to_string(), why: in_the_way });
        }
        if let Some(heir) = heir {
            for job in self.jobs.values_mut().filter(|job| !job.state.is_final()) {
                swap(&mut job.spec.gpus.uuids, uuid, heir);
            }
        }
        self.gpus.remove(uuid);
        if let Some(node) = self.nodes.get_mut(&lost.node) {
            node.gpus.retain(|known| known != uuid);
        }
        self.drop_conditions_of(turn, &lost);
        self.note_former_name(uuid, name.clone(), true);
        turn.say(Event::GpuForgotten {
            gpu: uuid.clone(),
            node: name.node.clone(),
            index: name.index,
            by: turn.actor.display_name(),
            reason: reason.to_owned(),
        });
        if let Some(next) = successor
            && let Some(gpu) = self.gpus.get_mut(&next.uuid)
        {
            gpu.index = name.index;
            self.note_new_name(turn, &next.uuid, next.name());
            self.sort_gpus(&name.node);
        }
        Ok(())
    }

    /// Cards whose replacement an admin announced, and that another one is in the slot of.
    pub(super) fn settle_replacements(&mut self, turn: &mut Turn<'_>, node: &NodeName) {
        let awaited = |gpu: &&Gpu| {
            gpu.replaced_by_next && gpu.presence == Presence::Lost && self.successor(gpu).is_some()
        };
        let due: Vec<GpuUuid> =
            self.gpus_of(node).filter(awaited).map(|gpu| gpu.uuid.clone()).collect();
        for uuid in due {
            // Where something still holds it, it is tried again with the next release there.
            drop(self.forget(turn, &uuid, "another card is in its slot"));
        }
    }

    /// Gives what was promised of a lost card to the one in its slot, or to another that meets the same wish. Returns
    /// what has no other place.
    fn leave_promises(
        &mut self,
        turn: &mut Turn<'_>,
        lost: &GpuUuid,
        heir: Option<&GpuUuid>,
    ) -> Vec<String> {
        // Those that hold it are named as holders. All reservations and jobs are read: only when an admin forgets a card.
        let named = self.reservations.counting().filter(|r| r.gpus.contains(lost));
        let named = named.filter(|r| r.lease.is_none());
        let named: Vec<ReservationId> = named.map(|r| r.id.clone()).collect();
        let mut stay = Vec::new();
        let coming = self.reservations.coming().filter(|(_, next)| next.gpus.contains(lost));
        for (r, _) in coming.filter(|(r, _)| !named.contains(&r.id)) {
            stay.push(format!("reservation {} of {} is to move to it", r.id, r.owner));
        }
        let (by, now) = (turn.actor.display_name(), self.now);
        for id in named {
            let free = self.reservations.get(&id).is_some_and(|r| r.handed_out.is_none());
            let found = match heir.filter(|heir| self.is_left_to(&id, heir)) {
                Some(heir) => self.reservations.get(&id).map(|r| {
                    let mut gpus = r.gpus.clone();
                    swap(&mut gpus, lost, heir);
                    (r.node.clone(), gpus)
                }),
                None => free.then(|| self.better_place(&id)).flatten(),
            };
            let Some(mut r) = self.reservations.get_mut(&id) else { continue };
            let Some((node, gpus)) = found else {
                stay.push(format!("reservation {id} of {} names it", r.owner));
                continue;
            };
            if let Some(heir) = heir {
                swap(&mut r.wish.uuids, lost, heir);
            }
            (r.node, r.gpus) = (node.clone(), gpus.clone());
            r.mark_changed(by.clone(), now);
            drop(r);
            let why = "a lost card was forgotten".to_owned();
            turn.say(Event::ReservationMoved { reservation: id, node, gpus, why, waits_for: None });
        }
        let waits = self.jobs.values().filter(|job| {
            let named = &job.spec.gpus.uuids;
            let open = !job.state.is_final() && job.allocation().is_none();
            open && named.contains(lost) && heir.is_none_or(|heir| named.contains(heir))
        });
        stay.extend(waits.map(|job| format!("job {} of {} waits for it", job.id, job.owner)));
        stay
    }

    /// Who holds a lost card, as far as anybody knows.
    fn holders_of(&self, uuid: &GpuUuid) -> Vec<String> {
        let Some(hold) = self.holds.get(uuid) else { return Vec::new() };
        let leases = std::iter::once(&hold.lease).chain(&hold.child);
        let holder = |lease: &crate::lease::Lease| match &lease.holder {
            LeaseHolder::Reservation(id) => format!("reservation {id} of {} holds it", lease.owner),
            LeaseHolder::Allocation(id) => {
                format!("job {} of {} holds it", id.job(), lease.owner)
            }
        };
        leases.filter_map(|id| self.leases.get(id)).map(holder).collect()
    }

    /// Whether a reservation of the lost card can go to the one in its slot: no agent has it in its hands, and nobody
    /// else was promised that one meanwhile.
    fn is_left_to(&self, id: &ReservationId, heir: &GpuUuid) -> bool {
        let Some(r) = self.reservations.get(id) else { return false };
        let claim = r.claim();
        let calendar = Calendar::of_nodes(self, [&r.node]);
        let is_busy = calendar.on(heir).iter().any(|busy| busy.window.overlaps(&claim));
        r.handed_out.is_none() && !r.gpus.contains(heir) && !is_busy
    }

    fn drop_conditions_of(&mut self, turn: &mut Turn<'_>, lost: &Gpu) {
        let Some(node) = self.nodes.get_mut(&lost.node) else { return };
        let of_it = |c: &crate::health::Condition| matches!(&c.subject, crate::health::Subject::Gpu(uuid) if *uuid == lost.uuid);
        let (gone, kept) = std::mem::take(&mut node.conditions).into_iter().partition(of_it);
        node.conditions = kept;
        node.clearing.retain(|order| order.gpu != lost.uuid);
        for condition in gone.iter().filter(|condition| condition.is_active()) {
            turn.say(super::nodes::cleared(&lost.node, condition));
        }
    }

    /// A node lists its cards by their numbers.
    pub(super) fn sort_gpus(&mut self, name: &NodeName) {
        let gpus = &self.gpus;
        if let Some(node) = self.nodes.get_mut(name) {
            node.gpus.sort_by_key(|uuid| gpus.get(uuid).map(|gpu| gpu.index));
        }
    }
}

/// Puts one card in the place of another.
fn swap(gpus: &mut [GpuUuid], lost: &GpuUuid, heir: &GpuUuid) {
    for gpu in gpus.iter_mut().filter(|gpu| *gpu == lost) {
        gpu.clone_from(heir);
    }
}
