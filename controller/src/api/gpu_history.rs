//! `fleet gpu history`: who had a GPU, from when to when, from the audit log.
//!
//! The fold of the GPU's own records is pure. How a stay ended stands in the records of its holder.

use fleet_core::audit::AuditBody;
use fleet_core::id::{AllocationId, JobId, ReservationId};
use fleet_core::lease::{Lease, LeaseHolder};
use fleet_core::name::GpuUuid;
use fleet_core::view::{Names, NamesAt};
use fleet_core::{Event, Fsm, Rejection, Timestamp};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Response, Status};

use super::Context;
use crate::audit::{PAGE_RECORDS_MAX, Query, RecordOrder};

/// Most records of the GPU that are read of the time that is asked for, the newest first.
const RECORDS_MAX: usize = 10_000;
/// Records of before that time say who had the GPU when it began; so many are read.
const RECORDS_BEFORE_MAX: usize = 1_000;
/// Records of after that time say how long it was kept; so many are read.
const RECORDS_AFTER_MAX: usize = PAGE_RECORDS_MAX;
/// Most stays of one answer, the newest, and those that last.
const STAYS_MAX: usize = 300;
/// Records of a holder that are looked through for its end, the newest first.
const END_RECORDS_MAX: usize = 20;

/// Somebody had the GPU for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stay {
    /// An attempt or a reservation.
    holder: String,
    /// The attempt's job, or the reservation.
    shown: String,
    owner: String,
    /// `None`: before the first record that was read.
    from: Option<Timestamp>,
    /// `None`: it has it still.
    until: Option<Timestamp>,
    declared_by: Option<String>,
}

impl Context {
    pub(super) async fn get_gpu_history(
        &self,
        request: Request<v1::GetGpuHistoryRequest>,
    ) -> Result<Response<v1::GpuHistory>, Status> {
        self.callers.user(&request).await?;
        self.newest().await?;
        Ok(Response::new(self.gpu_history(request.get_ref()).await?))
    }

    /// The stays that touch the time from `from` to `until`, the oldest first.
    pub(super) async fn gpu_history(
        &self,
        request: &v1::GetGpuHistoryRequest,
    ) -> Result<v1::GpuHistory, Status> {
        let bad =
            |e: fleet_core::name::NameError| to_status(&Rejection::field("uuid", e.to_string()));
        let gpu = GpuUuid::parse(&request.uuid).map_err(bad)?;
        let now = self.raft.read(Fsm::now);
        if self.raft.read(|fsm| fsm.gpu_name_at(&gpu, now)).is_none() {
            return Err(to_status(&Rejection::not_found("gpu", &gpu)));
        }
        let from = Timestamp(request.from_unix_ms);
        let until = match request.until_unix_ms {
            0 => Timestamp(u64::MAX),
            until => Timestamp(until),
        };
        if until <= from {
            return Err(to_status(&Rejection::field("until", "must be later than the beginning")));
        }
        let (records, complete_from) = self.records_of_gpu(&gpu, from, until).await?;
        let mut stays = stays(records.iter().rev(), &gpu);
        let holders = self.raft.read(|fsm| holders(fsm, &gpu));
        add_missing(&mut stays, holders);
        stays.retain(|stay| stay.touches(from, until));
        let cut = cut_to(&mut stays, STAYS_MAX);
        let mut items = Vec::new();
        for stay in stays {
            let end = self.end_of(&stay).await?;
            items.push(self.raft.read(|fsm| {
                let at = stay.from.or(stay.until).unwrap_or(now);
                let name = NamesAt::new(fsm, at).gpu(&gpu);
                let owner = match stay.owner.is_empty() {
                    true => owner_of(fsm, &stay.shown).unwrap_or_default(),
                    false => stay.owner,
                };
                v1::GpuStay {
                    holder: stay.shown,
                    owner,
                    node: name.as_ref().map(|name| name.node.to_string()).unwrap_or_default(),
                    index: name.map_or(0, |name| name.index),
                    from_unix_ms: stay.from.map_or(0, |at| at.0),
                    until_unix_ms: stay.until.map_or(0, |at| at.0),
                    end,
                }
            }));
        }
        let complete_from = complete_from.max(cut).filter(|at| *at > from);
        Ok(v1::GpuHistory {
            items,
            complete_from_unix_ms: complete_from.map_or(0, |at| at.0),
            pruned_until_unix_ms: self.pruned_since(from).map_or(0, |until| until.0),
        })
    }

    /// The newest first, from some of after `until` back to some of before `from`; and the time of the oldest, where
    /// records of the time itself were left out.
    async fn records_of_gpu(
        &self,
        gpu: &GpuUuid,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<(Vec<AuditBody>, Option<Timestamp>), Status> {
        let after = Query {
            object: Some(gpu.to_string()),
            since: Some(until),
            limit: RECORDS_AFTER_MAX,
            ..Query::default()
        };
        let after = self.records(after).await?.records.into_iter().rev();
        let mut records: Vec<AuditBody> = after.map(|record| record.body).collect();
        let most = records.len() + RECORDS_MAX;
        let (mut to_seq, mut before) = (None, 0);
        loop {
            let query = Query {
                object: Some(gpu.to_string()),
                order: RecordOrder::NewestFirst,
                until: Some(until),
                to_seq,
                limit: PAGE_RECORDS_MAX,
                ..Query::default()
            };
            let page = self.records(query).await?;
            before += page.records.iter().filter(|record| record.body.at < from).count();
            records.extend(page.records.into_iter().map(|record| record.body));
            let Some(next) = page.next else { return Ok((records, None)) };
            if before >= RECORDS_BEFORE_MAX || records.len() >= most {
                let oldest = records.last().map(|body| body.at);
                return Ok((records, oldest));
            }
            to_seq = Some(next);
        }
    }

    /// Why it was over, from what is on record of its holder.
    async fn end_of(&self, stay: &Stay) -> Result<String, Status> {
        if stay.until.is_none() {
            return Ok(String::new());
        }
        let query = Query {
            object: Some(stay.holder.clone()),
            order: RecordOrder::NewestFirst,
            limit: END_RECORDS_MAX,
            ..Query::default()
        };
        let page = self.records(query).await?;
        let events = page.records.iter().flat_map(|record| record.body.events.iter().rev());
        let own = events.filter(|event| event.objects().contains(&stay.holder));
        Ok(how_it_ended(&own.collect::<Vec<_>>(), stay))
    }
}

/// Who has the GPU now, by the state: where that began long ago, no record of it is read.
fn holders(fsm: &Fsm, gpu: &GpuUuid) -> Vec<Stay> {
    let Some(hold) = fsm.hold(gpu) else { return Vec::new() };
    let leases = std::iter::once(&hold.lease).chain(&hold.child);
    let held = leases.filter_map(|id| fsm.lease(id));
    let stay = |lease: &Lease| Stay {
        owner: lease.owner.to_string(),
        from: Some(lease.granted_at),
        ..match &lease.holder {
            LeaseHolder::Allocation(id) => Stay::of_holder(id.as_str()),
            LeaseHolder::Reservation(id) => Stay::of_holder(id.as_str()),
        }
    };
    held.map(stay).collect()
}

pub(super) fn owner_of(fsm: &Fsm, shown: &str) -> Option<String> {
    let job = JobId::parse(shown).ok().and_then(|id| Some(fsm.job(&id)?.owner.to_string()));
    let reservation =
        || Some(fsm.reservation(&ReservationId::parse(shown).ok()?)?.owner.to_string());
    job.or_else(reservation)
}

fn add_missing(stays: &mut Vec<Stay>, holders: Vec<Stay>) {
    for holder in holders {
        if !stays.iter().any(|stay| stay.until.is_none() && stay.holder == holder.holder) {
            stays.push(holder);
        }
    }
    stays.sort_by_key(|stay| stay.from);
}

/// Leaves out the oldest of those that are over. The time from which on none is left out.
fn cut_to(stays: &mut Vec<Stay>, most: usize) -> Option<Timestamp> {
    let mut spare = stays.len().saturating_sub(most);
    let mut cut = None;
    stays.retain(|stay| {
        let left_out = spare > 0 && stay.until.is_some();
        if left_out {
            spare -= 1;
            cut = cut.max(stay.until);
        }
        !left_out
    });
    cut
}

impl Stay {
    /// Of this attempt or reservation, of which no more is known.
    fn of_holder(holder: &str) -> Self {
        let job = AllocationId::parse(holder).ok().map(|attempt| attempt.job().to_string());
        Self {
            holder: holder.to_owned(),
            shown: job.unwrap_or_else(|| holder.to_owned()),
            owner: String::new(),
            from: None,
            until: None,
            declared_by: None,
        }
    }

    fn touches(&self, from: Timestamp, until: Timestamp) -> bool {
        let begins = self.from.is_none_or(|at| at < until);
        begins && self.until.is_none_or(|at| at > from)
    }
}

/// What the records of the GPU say, oldest first. A job within a reservation has it as well as the reservation.
fn stays<'a>(records: impl IntoIterator<Item = &'a AuditBody>, gpu: &GpuUuid) -> Vec<Stay> {
    let mut stays: Vec<Stay> = Vec::new();
    for body in records {
        for event in body.events.iter().filter(|event| gpus_of(event).contains(gpu)) {
            match event {
                Event::GpusReleased { holder, declared_by, .. } => {
                    release(&mut stays, holder, body.at, declared_by.as_ref());
                }
                Event::WindowClosedByNode { reservation, at, .. } => {
                    release(&mut stays, reservation.as_str(), *at, None);
                }
                _ => {
                    let Some(stay) = begun(event, body.at) else { continue };
                    // Its node opened it before it was started here.
                    let open = |old: &Stay| old.until.is_none() && old.holder == stay.holder;
                    if !stays.iter().any(open) {
                        stays.push(stay);
                    }
                }
            }
        }
    }
    stays.sort_by_key(|stay| stay.from);
    stays
}

fn gpus_of(event: &Event) -> &[GpuUuid] {
    match event {
        Event::JobPlaced { gpus, .. }
        | Event::AttemptAdopted { gpus, .. }
        | Event::ReservationStarted { gpus, .. }
        | Event::WindowOpenedByNode { gpus, .. }
        | Event::WindowClosedByNode { gpus, .. }
        | Event::GpusReleased { gpus, .. } => gpus,
        _ => &[],
    }
}

fn begun(event: &Event, at: Timestamp) -> Option<Stay> {
    let (holder, owner, from) = match event {
        Event::JobPlaced { allocation, owner, .. } => (allocation.as_str(), owner, at),
        Event::AttemptAdopted { allocation, owner, .. } => (allocation.as_str(), owner, at),
        Event::ReservationStarted { reservation, owner, .. } => (reservation.as_str(), owner, at),
        Event::WindowOpenedByNode { reservation, owner, at, .. } => {
            (reservation.as_str(), owner, *at)
        }
        _ => return None,
    };
    let owner = owner.to_string();
    Some(Stay { owner, from: Some(from), ..Stay::of_holder(holder) })
}

fn release(stays: &mut Vec<Stay>, holder: &str, at: Timestamp, declared_by: Option<&String>) {
    let mut open = stays.iter_mut().rev().filter(|stay| stay.until.is_none());
    if let Some(stay) = open.find(|stay| stay.holder == holder) {
        stay.until = Some(at);
        stay.declared_by = declared_by.cloned();
        return;
    }
    // Its node closed it before, and the GPU was proven empty later.
    if stays.iter().any(|stay| stay.holder == holder) {
        return;
    }
    let (until, declared_by) = (Some(at), declared_by.cloned());
    stays.push(Stay { until, declared_by, ..Stay::of_holder(holder) });
}

/// Why it was over, from its holder's events, the newest first: the stop that somebody ordered says more than the end that
/// came of it.
fn how_it_ended(events: &[&Event], stay: &Stay) -> String {
    let ordered = events.iter().find_map(|event| match event {
        Event::JobStopping { why, .. } | Event::ReservationEnding { why, .. } => Some(why.clone()),
        Event::EvictionStarted { causes, .. } => Some(format!("evicted ({})", causes.join(", "))),
        _ => None,
    });
    let ended = || {
        events.iter().find_map(|event| match event {
            Event::AttemptEnded { end, .. } => Some(end.to_string()),
            Event::WindowClosedByNode { node, .. } => Some(format!("{node} ended it on its own")),
            _ => None,
        })
    };
    let declared = stay.declared_by.as_ref().map(|by| format!("declared free by {by}"));
    let all = ordered.or_else(ended).into_iter().chain(declared);
    all.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
