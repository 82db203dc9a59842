//! What people type, turned into ids: whole ids, unique prefixes, job names, `@last`, `titan01:3`.

use std::collections::BTreeSet;

use fleet_core::Fsm;
use fleet_core::id::{JobId, ReservationId, SeriesId};
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::reservation::{Reservation, ReservationState};
use fleet_core::view::reservation::Listed;
use fleet_proto::v1;
use fleet_proto::v1::Resolved;
use tonic::Status;

use super::Context;
use crate::callers::Caller;

/// Most candidates sent back for an ambiguous text.
const CANDIDATES_MAX: usize = 20;

fn found(kind: &str, id: &impl ToString) -> Resolved {
    Resolved { kind: kind.to_owned(), id: id.to_string(), owner: String::new() }
}

impl Context {
    /// All that somebody may mean by a text.
    pub(super) async fn resolve(
        &self,
        caller: &Caller,
        asked: &v1::ResolveRequest,
    ) -> Result<v1::ResolveResponse, Status> {
        let mut items = self.raft.read(|fsm| resolve(fsm, caller, &asked.text, &asked.kind));
        // A node that was removed still has its story; commands mean what is in the fleet.
        if items.is_empty()
            && asked.kind.is_empty()
            && let Ok(node) = NodeName::parse(&asked.text)
            && self.removal(&node).await?.is_some()
        {
            items.push(removed_node(&node));
        }
        Ok(v1::ResolveResponse { items })
    }
}

/// Everything `text` could mean for `caller`, best first. An exact match is alone.
pub(super) fn resolve(fsm: &Fsm, caller: &Caller, text: &str, kind: &str) -> Vec<Resolved> {
    let Caller { name: caller, admin, .. } = caller;
    let owned = |found: Resolved| Resolved {
        owner: owner(fsm, &found)
            .filter(|owner| *admin && *owner != caller)
            .map_or(String::new(), |owner| owner.to_string()),
        ..found
    };
    meant(fsm, caller, text, kind).into_iter().map(owned).collect()
}

fn owner<'f>(fsm: &'f Fsm, found: &Resolved) -> Option<&'f UserName> {
    match found.kind.as_str() {
        "job" => fsm.job(&JobId::parse(&found.id).ok()?).map(|job| &job.owner),
        "reservation" => fsm.owner_of_reservation(&ReservationId::parse(&found.id).ok()?),
        "series" => {
            let id = SeriesId::parse(&found.id).ok()?;
            let of_it = |r: &&Reservation| r.series.as_ref().is_some_and(|s| s.id == id);
            // Those that a release means; an earlier date may have been given to somebody else.
            let waits = |r: &&Reservation| r.state == ReservationState::Scheduled;
            let mut waiting = fsm.reservations().filter(of_it).filter(waits);
            waiting.next().or_else(|| fsm.reservations().find(of_it)).map(|r| &r.owner)
        }
        _ => None,
    }
}

fn meant(fsm: &Fsm, caller: &UserName, text: &str, kind: &str) -> Vec<Resolved> {
    let wants = |k: &str| kind.is_empty() || kind == k;
    if text == "@last" {
        return last(fsm, caller, kind);
    }
    let mut candidates = Vec::new();
    if wants("job") {
        candidates.extend(fsm.jobs().keys().map(|id| found("job", id)));
    }
    if wants("reservation") {
        candidates.extend(fsm.reservations().map(|r| found("reservation", &r.id)));
        let listed = Listed::all(fsm).map(|listed| &listed.waiter().wish.id);
        candidates.extend(listed.map(|id| found("reservation", id)));
    }
    // Only where a series is asked for: it has no story of its own.
    if kind == "series" {
        let all = fsm.reservations().filter_map(|r| r.series.as_ref());
        let ids: BTreeSet<&SeriesId> = all.map(|series| &series.id).collect();
        candidates.extend(ids.into_iter().map(|id| found("series", id)));
    }
    if wants("node") {
        candidates.extend(fsm.nodes().keys().map(|name| found("node", name)));
    }
    if wants("gpu") {
        candidates.extend(fsm.gpus().keys().map(|uuid| found("gpu", uuid)));
        if let Some(gpu) = indexed(fsm, text) {
            return vec![gpu];
        }
    }
    if let Some(exact) = candidates.iter().find(|c| c.id == text) {
        return vec![exact.clone()];
    }
    if wants("gpu")
        && let Ok(uuid) = GpuUuid::parse(text)
        && fsm.is_former_gpu(&uuid)
    {
        return vec![found("gpu", &uuid)];
    }
    // What has left the fleet still has its story; commands mean what is in it.
    if kind.is_empty()
        && let Some((node, index)) = number(text)
        && let Some(uuid) = fsm.former_gpu_named(node, index)
    {
        return vec![found("gpu", uuid)];
    }
    if wants("job") {
        let named = newest_named(fsm, caller, text);
        if !named.is_empty() {
            return named;
        }
    }
    // A prefix may leave out the kind: `4k7` is `job-4k7wq2`.
    let begins = |c: &Resolved| {
        let bare = c.id.split_once('-').map_or(c.id.as_str(), |(_, bare)| bare);
        c.id.starts_with(text) || (c.kind != "node" && bare.starts_with(text))
    };
    let mut hits: Vec<Resolved> =
        if text.is_empty() { Vec::new() } else { candidates.into_iter().filter(begins).collect() };
    hits.truncate(CANDIDATES_MAX);
    hits
}

/// The caller's newest job or reservation.
fn last(fsm: &Fsm, caller: &UserName, kind: &str) -> Vec<Resolved> {
    let job = fsm
        .jobs()
        .values()
        .filter(|j| j.owner == *caller)
        .max_by_key(|j| j.queue.submitted)
        .map(|j| (j.submitted_at, found("job", &j.id)));
    let booked = fsm.reservations().map(|r| (&r.owner, r.created_at, &r.id));
    let listed = Listed::all(fsm).map(Listed::waiter);
    let listed = listed.map(|waiter| (&waiter.wish.owner, waiter.since, &waiter.wish.id));
    let reservation = booked
        .chain(listed)
        .filter(|(owner, ..)| *owner == caller)
        .max_by_key(|(_, made_at, id)| (*made_at, *id))
        .map(|(_, made_at, id)| (made_at, found("reservation", id)));
    let newest = match kind {
        "job" => job,
        "reservation" => reservation,
        _ => job.into_iter().chain(reservation).max_by_key(|(at, _)| *at),
    };
    newest.map(|(_, found)| found).into_iter().collect()
}

/// `titan01:3`.
fn indexed(fsm: &Fsm, text: &str) -> Option<Resolved> {
    let (node, index) = number(text)?;
    Some(found("gpu", &fsm.gpu_named(node, index)?.uuid))
}

fn number(text: &str) -> Option<(&str, u32)> {
    let (node, index) = text.rsplit_once(':')?;
    Some((node, index.parse().ok()?))
}

/// A node that is in the fleet no more, and whose story is asked for.
fn removed_node(name: &NodeName) -> Resolved {
    found("node", name)
}

/// The caller's open jobs of that name; without one, their newest finished one.
fn newest_named(fsm: &Fsm, caller: &UserName, name: &str) -> Vec<Resolved> {
    let mut named: Vec<_> =
        fsm.jobs().values().filter(|j| j.owner == *caller && j.spec.name == name).collect();
    named.sort_by_key(|j| std::cmp::Reverse(j.queue.submitted));
    let open: Vec<Resolved> =
        named.iter().filter(|j| !j.state.is_final()).map(|j| found("job", &j.id)).collect();
    if open.is_empty() {
        return named.first().map(|j| found("job", &j.id)).into_iter().collect();
    }
    open
}
