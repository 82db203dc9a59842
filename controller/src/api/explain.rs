//! `fleet why`: how an object stands now, and its story from the audit log.

use std::collections::BTreeMap;

use fleet_core::access::AccessEvent;
use fleet_core::audit::AuditBody;
use fleet_core::id::{JobId, ReservationId};
use fleet_core::job::JobState;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::reason::Wait;
use fleet_core::scheduler;
use fleet_core::time::{Millis, Timestamp};
use fleet_core::view::reservation::Listed;
use fleet_core::view::{self, Names, NamesAt, share, text};
use fleet_core::{Event, Fsm};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::Status;

use super::gpu_faults;
use super::{Context, views};
use crate::audit::{PAGE_RECORDS_MAX, Page, Query, RecordOrder};

/// Lines of a story where nobody says how many; the whole is in the audit log.
const STORY_LINES: usize = 200;
/// Most lines of one, whatever was asked for.
const STORY_LINES_MAX: usize = PAGE_RECORDS_MAX;
/// Most nodes of a line that are named.
const NODES_NAMED_MAX: usize = 8;

impl Context {
    /// Tells what happened to a thing, within the time that is asked for, and why it is as it is.
    pub(super) async fn explain(
        &self,
        request: &v1::ExplainRequest,
    ) -> Result<v1::Explanation, Status> {
        let id = request.id.as_str();
        let mut explanation = match self.standing(id) {
            Ok(standing) => standing,
            Err(unknown) => self.removed(id).await?.ok_or(unknown)?,
        };
        if let Ok(gpu) = GpuUuid::parse(id) {
            explanation.details.extend(self.went_with(&gpu).await?);
        }
        let lines = match request.lines {
            0 => STORY_LINES,
            lines => (lines as usize).min(STORY_LINES_MAX),
        };
        let at = |unix_ms| Some(Timestamp(unix_ms)).filter(|at| at.0 > 0);
        let (since, until) = (at(request.from_unix_ms), at(request.until_unix_ms));
        explanation.pruned_until_unix_ms = self.pruned_of(id, since).map_or(0, |until| until.0);
        let query = Query { since, until, ..own_records(id, lines) };
        let page = self.records(query).await?;
        // Each has a line at least.
        explanation.older_lines = page.behind;
        if let Ok(job) = JobId::parse(id) {
            // Where it was is known from before the time that is asked for.
            let whole = match (since, until) {
                (None, None) => None,
                (Some(_), _) | (_, Some(_)) => Some(self.records(own_records(id, lines)).await?),
            };
            let (told, cut) = self.gpu_faults(&job, whole.as_ref().unwrap_or(&page)).await?;
            explanation.story = told;
            explanation.older_lines += if whole.is_none() { cut } else { 0 };
        }
        let own = page.records.iter().rev().flat_map(|record| events_about(&record.body, id));
        explanation.story.extend(self.story(own, id));
        let within = |line: &v1::StoryLine| {
            let at = Timestamp(line.at_unix_ms);
            since.is_none_or(|since| at >= since) && until.is_none_or(|until| at < until)
        };
        explanation.story.retain(within);
        // Stable sort: of the same record, the lines about a GPU stay before the lines about the job.
        explanation.story.sort_by_key(|line| line.audit_seq);
        let spare = explanation.story.len().saturating_sub(lines);
        explanation.story.drain(..spare);
        explanation.older_lines += spare as u64;
        Ok(explanation)
    }

    /// Until when records were pruned, where some may have been about this thing.
    fn pruned_of(&self, id: &str, since: Option<Timestamp>) -> Option<Timestamp> {
        let began = self.raft.read(|fsm| {
            let job = JobId::parse(id).ok().and_then(|id| Some(fsm.job(&id)?.submitted_at));
            let reservation = || {
                let id = ReservationId::parse(id).ok()?;
                let listed = || Listed::of(fsm, &id).map(|listed| listed.waiter().since);
                fsm.reservation(&id).map(|r| r.created_at).or_else(listed)
            };
            job.or_else(reservation)
        });
        self.pruned_since(began.max(since).unwrap_or_default())
    }

    /// How a node stands that was removed.
    async fn removed(&self, id: &str) -> Result<Option<v1::Explanation>, Status> {
        let Ok(node) = NodeName::parse(id) else { return Ok(None) };
        let removal = self.removal(&node).await?;
        Ok(removal.map(|removal| v1::Explanation {
            id: id.to_owned(),
            kind: "node".to_owned(),
            summary: self.raft.read(|fsm| removal.said(fsm.now())),
            ..v1::Explanation::default()
        }))
    }

    /// The removal that took a GPU out of the fleet with its node.
    async fn went_with(&self, gpu: &GpuUuid) -> Result<Option<String>, Status> {
        let left = self.raft.read(|fsm| {
            let left_at = fsm.gpu_left_at(gpu)?;
            Some((fsm.gpu_name_at(gpu, fsm.now())?.node, left_at))
        });
        let Some((node, left_at)) = left else { return Ok(None) };
        let removal = self.removal(&node).await?.filter(|removal| removal.at == left_at);
        Ok(removal
            .map(|removal| format!("{node} {}", self.raft.read(|fsm| removal.said(fsm.now())))))
    }

    /// The last removal of a node, as far as the newest records of that name hold one.
    pub(super) async fn removal(&self, node: &NodeName) -> Result<Option<Removal>, Status> {
        let page = self.records(own_records(node.as_str(), PAGE_RECORDS_MAX)).await?;
        Ok(page.records.iter().find_map(|record| removal_in(&record.body, node)))
    }

    pub(super) async fn records(&self, query: Query) -> Result<Page, Status> {
        let page = self.audit().query(query).await;
        page.map_err(|error| Status::internal(format!("read the audit log: {error}")))
    }

    /// The story lines about a job's GPUs while the job had them, and how many lines are left out, as far as known.
    /// `page` has the newest of the job's own records.
    async fn gpu_faults(
        &self,
        job: &JobId,
        page: &Page,
    ) -> Result<(Vec<v1::StoryLine>, u64), Status> {
        let oldest_first = || page.records.iter().rev().map(|record| &record.body);
        let cut = gpu_faults::first_attempt(oldest_first(), job).filter(|_| page.next.is_some());
        let mut placement = Page::default();
        if let Some(attempt) = cut {
            let object = Some(attempt.to_string());
            let to_seq = page.next;
            placement =
                self.records(Query { object, to_seq, limit: 1, ..Query::default() }).await?;
        }
        let behind = placement.records.iter().map(|record| &record.body);
        let (mut lines, mut cut) = (Vec::new(), 0);
        for stay in gpu_faults::stays(behind.chain(oldest_first()), job) {
            let query = Query {
                object: Some(stay.gpu.to_string()),
                from_seq: Some(stay.placed_at),
                until: stay.until,
                order: RecordOrder::NewestFirst,
                limit: gpu_faults::RECORDS_MAX,
                ..Query::default()
            };
            let page = self.records(query).await?;
            cut += u64::from(page.next.is_some());
            let records = page.records.iter().rev().map(|record| &record.body);
            lines.extend(self.story(gpu_faults::meanwhile(records, &stay), job.as_str()));
        }
        lines.sort_by_key(|line| line.audit_seq);
        let spare = lines.len().saturating_sub(gpu_faults::LINES_MAX);
        lines.drain(..spare);
        Ok((lines, cut + spare as u64))
    }

    /// Lines of the story of `id`.
    fn story<'a>(
        &self,
        found: impl IntoIterator<Item = (&'a AuditBody, &'a Event)>,
        id: &str,
    ) -> Vec<v1::StoryLine> {
        self.raft
            .read(|fsm| found.into_iter().map(|(body, event)| line(fsm, body, event, id)).collect())
    }

    fn standing(&self, id: &str) -> Result<v1::Explanation, Status> {
        let not_found = || to_status(&fleet_core::Rejection::not_found("object", id));
        if let Ok(job) = JobId::parse(id) {
            return self.job_standing(&job).ok_or_else(not_found);
        }
        if let Ok(reservation) = ReservationId::parse(id) {
            return self.reservation_standing(&reservation).ok_or_else(not_found);
        }
        if let Ok(gpu) = GpuUuid::parse(id) {
            return self.gpu_standing(&gpu).ok_or_else(not_found);
        }
        let node = NodeName::parse(id).map_err(|_| not_found())?;
        self.node_standing(&node).ok_or_else(not_found)
    }

    fn job_standing(&self, id: &JobId) -> Option<v1::Explanation> {
        self.raft.read(|fsm| {
            let job = fsm.job(id)?;
            let plan = self.plan.of(fsm);
            let view = views::job(fsm, &self.sessions, &plan, job, false);
            let mut details = Vec::new();
            if job.state == JobState::Queued
                && let Some(explained) = scheduler::explain(fsm, id)
            {
                details.push(text::place(
                    explained.place,
                    share::behind_classes(fsm, job),
                    &share::place_by(fsm, job),
                ));
                let never = |wait: &Wait| wait.is_forever() && wait.is_for_the_fleet();
                if explained.reason.as_ref().is_some_and(never) {
                    details.push("it can never start in this fleet as it is".to_owned());
                }
                let starts = explained.reason.is_none();
                details.extend(said_once(explained.verdicts.iter().map(|v| {
                    let verdict = text::verdict(&v.node, v.obstacle.as_ref(), starts);
                    (v.node.to_string(), verdict.to_string())
                })));
            }
            if !view.status.is_empty() {
                details.push(format!("it says: {}", view.status));
            }
            if let Some(checkpoint) = job.newest_saved() {
                let number =
                    if checkpoint.number == 0 { checkpoint.seq } else { checkpoint.number };
                let content = checkpoint.facts.content.word();
                details.push(format!(
                    "newest checkpoint: {} (number {number}, {content})",
                    checkpoint.path
                ));
            }
            details.extend(next_checkpoint(&view, fsm.now()));
            details.extend(view.checkpoint_notes.iter().cloned());
            if !view.question.is_empty() {
                details.push(format!(
                    "answer it with: fleet job restart {id} --from CHECKPOINT, or --from-scratch"
                ));
            }
            if let Some(deferral) = &view.deferral {
                details
                    .push(format!("its eviction waits because of: {}", deferral.causes.join(", ")));
            }
            Some(v1::Explanation {
                id: id.to_string(),
                kind: "job".to_owned(),
                summary: job_sentence(job.state, &view),
                details,
                expected_start_unix_ms: view.earliest_start_unix_ms,
                ..v1::Explanation::default()
            })
        })
    }

    fn reservation_standing(&self, id: &ReservationId) -> Option<v1::Explanation> {
        self.raft.read(|fsm| {
            let r = views::reservation_of(fsm, &self.sessions, id)?;
            let gpus: Vec<String> =
                r.gpus.iter().map(|g| format!("{}:{}", g.node, g.index)).collect();
            let gpus = if gpus.is_empty() { r.waits_for } else { gpus.join(", ") };
            let idle = fsm.reservation(id).and_then(view::reservation::idle);
            let idle = idle.map(|idle| idle.told(fsm.now()));
            let why = idle.into_iter().chain((!r.reason.is_empty()).then(|| r.reason.clone()));
            let why: Vec<String> = why.collect();
            let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
            Some(v1::Explanation {
                id: id.to_string(),
                kind: "reservation".to_owned(),
                summary: format!("{gpus} for {}, {}{why}", r.owner, r.state),
                ..v1::Explanation::default()
            })
        })
    }

    fn gpu_standing(&self, id: &GpuUuid) -> Option<v1::Explanation> {
        self.raft.read(|fsm| {
            let Some(gpu) = fsm.gpu(id) else {
                let name = fsm.gpu_name_at(id, fsm.now())?;
                return Some(v1::Explanation {
                    id: id.to_string(),
                    kind: "gpu".to_owned(),
                    summary: format!("was {name} and is not in the fleet any more"),
                    ..v1::Explanation::default()
                });
            };
            let g = views::gpu(fsm, &self.sessions, gpu);
            let holder = match (g.held_by.as_str(), g.job.as_str(), g.reservation.as_str()) {
                ("", _, _) => String::new(),
                (owner, "", reservation) => format!(", held by {owner} ({reservation})"),
                (owner, job, _) => format!(", held by {owner} ({job})"),
            };
            let why = if g.reason.is_empty() { String::new() } else { format!(": {}", g.reason) };
            let details = g.conditions.iter().map(condition_line);
            Some(v1::Explanation {
                id: id.to_string(),
                kind: "gpu".to_owned(),
                summary: format!(
                    "{}:{} ({}) is {}{holder}{why}",
                    g.node, g.index, g.model, g.state
                ),
                details: details.collect(),
                ..v1::Explanation::default()
            })
        })
    }

    fn node_standing(&self, name: &NodeName) -> Option<v1::Explanation> {
        self.raft.read(|fsm| {
            let n = views::node(fsm, &self.sessions, fsm.node(name)?);
            let why = if n.reason.is_empty() { String::new() } else { format!(": {}", n.reason) };
            let mut details: Vec<String> = n.conditions.iter().map(condition_line).collect();
            if !n.jobs.is_empty() {
                details.push(format!("runs {}", n.jobs.join(", ")));
            }
            details.extend(n.reboot.as_ref().map(rebooting));
            Some(v1::Explanation {
                id: name.to_string(),
                kind: "node".to_owned(),
                summary: format!("{}{why}; {} of {} GPUs free", n.state, n.gpus_free, n.gpus),
                details,
                ..v1::Explanation::default()
            })
        })
    }
}

/// How far a reboot is that somebody wants.
fn rebooting(reboot: &v1::NodeReboot) -> String {
    let how = match reboot {
        v1::NodeReboot { problem, .. } if !problem.is_empty() => format!("it cannot: {problem}"),
        v1::NodeReboot { begun: true, .. } => "it goes down now".to_owned(),
        v1::NodeReboot { waits_for, .. } if waits_for.is_empty() => {
            "its agent has the order".to_owned()
        }
        v1::NodeReboot { waits_for, .. } => format!("it waits for {}", waits_for.join(", ")),
    };
    format!("will reboot, ordered by {}: {how}", reboot.by)
}

/// What was seen, and what helps.
fn condition_line(c: &v1::Condition) -> String {
    format!("{}: {}; {}", c.severity, c.reason, c.message)
}

/// The record's events that are about `id`, in the order they happened.
fn events_about<'a>(
    body: &'a AuditBody,
    id: &'a str,
) -> impl Iterator<Item = (&'a AuditBody, &'a Event)> + use<'a> {
    let about = move |event: &&Event| event.objects().iter().any(|object| object == id);
    body.events.iter().filter(about).map(move |event| (body, event))
}

/// How a node left the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Removal {
    at: Timestamp,
    by: String,
    reason: String,
}

impl Removal {
    fn said(&self, now: Timestamp) -> String {
        let ago = now.since(self.at);
        format!("was removed from the fleet {ago} ago by {}: {}", self.by, self.reason)
    }
}

fn removal_in(body: &AuditBody, removed: &NodeName) -> Option<Removal> {
    events_about(body, removed.as_str()).find_map(|(_, event)| match event {
        Event::Access(AccessEvent::NodeRemoved { node, by, reason }) if node == removed => {
            Some(Removal { at: body.at, by: by.clone(), reason: reason.clone() })
        }
        _ => None,
    })
}

/// What is on record of it, the newest first.
fn own_records(id: &str, limit: usize) -> Query {
    let (object, order) = (Some(id.to_owned()), RecordOrder::NewestFirst);
    Query { object, order, limit, ..Query::default() }
}

/// One line for all nodes of which the same is to be said, where the first of them stands.
fn said_once(verdicts: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    let mut place: BTreeMap<String, usize> = BTreeMap::new();
    for (node, verdict) in verdicts {
        match place.get(&verdict) {
            Some(at) => groups[*at].0.push(node),
            None => {
                place.insert(verdict.clone(), groups.len());
                groups.push((vec![node], verdict));
            }
        }
    }
    let line = |(nodes, verdict): (Vec<String>, String)| {
        let (shown, rest) = nodes.split_at(nodes.len().min(NODES_NAMED_MAX));
        match rest.len() {
            0 => format!("{}: {verdict}", shown.join(", ")),
            more => format!("{} and {more} more: {verdict}", shown.join(", ")),
        }
    };
    groups.into_iter().map(line).collect()
}

/// The job or reservation that an event is about, where the story is of something else: a GPU, a node.
fn subject(event: &Event, id: &str) -> Option<String> {
    let has_owner = |id: &str| JobId::parse(id).is_ok() || ReservationId::parse(id).is_ok();
    let other = event.objects().into_iter().find(|object| has_owner(object));
    other.filter(|_| !has_owner(id))
}

/// One of the record's events in the story of `id`, with the names that GPUs had then.
fn line(fsm: &Fsm, body: &AuditBody, event: &Event, id: &str) -> v1::StoryLine {
    let names = NamesAt::new(fsm, body.at);
    let told = names.in_text(&event.told(body.at, &names));
    v1::StoryLine {
        at_unix_ms: body.at.0,
        text: match subject(event, id) {
            Some(subject) => format!("{subject}: {told}"),
            None => told,
        },
        actor: body.actor.display_name(),
        audit_seq: body.seq,
    }
}

/// How a job stands, without its id: that is the line's beginning.
fn job_sentence(state: JobState, job: &v1::Job) -> String {
    let whose = format!("{} of {}", job.name, job.owner);
    let place = if job.node.is_empty() { String::new() } else { format!(" on {}", job.node) };
    let why = if job.reason.is_empty() { String::new() } else { format!(": {}", job.reason) };
    let state = match state {
        // The reason has the verb: `waits for 1 GPU: …`.
        JobState::Queued if job.reason.starts_with("waits ") => {
            return format!("{whose} {}", job.reason);
        }
        JobState::Queued if job.reason.starts_with("waiting ") => {
            return format!("{whose} is {}", job.reason);
        }
        JobState::Queued => "waits".to_owned(),
        JobState::Starting => format!("is being started{place}"),
        JobState::Running => format!("runs{place}"),
        JobState::Stopping => format!("is being stopped{place}"),
        JobState::Cancelled => "was cancelled".to_owned(),
        JobState::TimedOut => format!("was stopped{place}"),
        JobState::Completed | JobState::Failed => format!("{}{place}", state.word()),
    };
    format!("{whose} {state}{why}")
}

/// When the next checkpoint can be expected, by the last gap.
fn next_checkpoint(job: &v1::Job, now: Timestamp) -> Option<String> {
    let at = Timestamp(job.next_checkpoint_unix_ms);
    (at.0 > 0).then(|| match at.since(now) {
        Millis(0) => format!("next checkpoint: was expected {} ago", now.since(at)),
        left => format!("next checkpoint: in about {left}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_is_the_same_of_many_nodes_is_said_once() {
        let node = |number: u32| format!("titan{number:02}");
        let said = |nodes: std::ops::RangeInclusive<u32>| {
            let verdict = |n| if n == 2 { "is drained" } else { "has no V100" };
            said_once(nodes.map(|n| (node(n), verdict(n).to_owned())))
        };
        assert_eq!(said(1..=3), ["titan01, titan03: has no V100", "titan02: is drained"]);
        let [many, _] = &said(1..=14)[..] else { panic!() };
        assert!(many.starts_with("titan01, titan03, "), "{many}");
        assert!(many.ends_with("titan09 and 5 more: has no V100"), "{many}");
        assert!(said_once(std::iter::empty()).is_empty());
    }

    #[test]
    fn a_line_names_its_job_in_the_story_of_something_else() {
        let job = JobId::parse("job-a").unwrap();
        let event = Event::JobPlaced {
            job,
            allocation: fleet_core::id::AllocationId::parse("alloc-a-1").unwrap(),
            node: NodeName::parse("titan01").unwrap(),
            gpus: Vec::new(),
            epoch: fleet_core::Epoch::default(),
            resume_from: None,
            owner: fleet_core::name::UserName::parse("ada").unwrap(),
        };
        assert_eq!(subject(&event, "titan01").as_deref(), Some("job-a"));
        assert_eq!(subject(&event, "job-a"), None, "the whole story is of that job");
        assert_eq!(subject(&event, "res-a"), None);
        let node = NodeName::parse("titan01").unwrap();
        assert_eq!(subject(&Event::NodeDrained { node }, "titan01"), None);
    }
}
