//! Finds the faults recorded of a job's GPUs while the job had them. Called by `explain`: a fault may be the cause of a
//! failure, as when a program wrote where it must not, and no event of the job itself says so.
//!
//! Pure: records of the audit log in, those of its events out that belong to the story. It knows only what the log
//! says: an error that comes again while the GPU's notice of it stands, for a day, is no event.

use fleet_core::audit::AuditBody;
use fleet_core::id::{AllocationId, JobId};
use fleet_core::name::GpuUuid;
use fleet_core::{Event, Millis, Timestamp};

/// Most GPUs of attempts that one story checks, the newest first.
pub(super) const STAYS_MAX: usize = 32;
/// Most records of one GPU that are read for one attempt, the newest first.
pub(super) const RECORDS_MAX: usize = 100;
/// Most lines that they give a story, the newest first.
pub(super) const LINES_MAX: usize = 50;
/// The driver may tell of an error a moment after the program that met it has ended.
const LATE: Millis = Millis::secs(2);

/// One GPU during one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stay {
    pub(super) gpu: GpuUuid,
    /// The record that placed the attempt there.
    pub(super) placed_at: u64,
    /// Records from this time on do not count; `None` while the attempt runs.
    pub(super) until: Option<Timestamp>,
}

/// The first of the job's attempts that these records speak of, oldest first. One record may speak of other jobs, too.
pub(super) fn first_attempt<'a>(
    records: impl IntoIterator<Item = &'a AuditBody>,
    job: &JobId,
) -> Option<AllocationId> {
    let mut objects = records.into_iter().flat_map(|body| &body.events).map(Event::objects);
    objects.find_map(|objects| {
        let attempt = objects.iter().find_map(|id| AllocationId::parse(id).ok());
        attempt.filter(|_| objects.contains(&job.to_string()))
    })
}

/// Where the job was, from its own records, oldest first; of many, the newest.
pub(super) fn stays<'a>(
    records: impl IntoIterator<Item = &'a AuditBody>,
    job: &JobId,
) -> Vec<Stay> {
    let mut stays: Vec<Stay> = Vec::new();
    for AuditBody { seq, at, events, .. } in records {
        for event in events {
            match event {
                Event::AttemptEnded { job: ended, .. } if ended == job => {
                    let open = stays.iter_mut().filter(|stay| stay.until.is_none());
                    open.for_each(|stay| stay.until = Some(*at + LATE));
                }
                _ => {
                    let Some((placed, gpus)) = placement(event) else { continue };
                    let stay =
                        |gpu: &GpuUuid| Stay { gpu: gpu.clone(), placed_at: *seq, until: None };
                    stays.extend(gpus.iter().filter(|_| placed == job).map(stay));
                }
            }
        }
    }
    stays.split_off(stays.len().saturating_sub(STAYS_MAX))
}

/// The faults recorded of the GPU until the stay was over or another job had the GPU. `records` are the GPU's, oldest
/// first. The oldest record may be younger than the stay.
pub(super) fn meanwhile<'a>(
    records: impl IntoIterator<Item = &'a AuditBody>,
    stay: &Stay,
) -> Vec<(&'a AuditBody, &'a Event)> {
    let mut found = Vec::new();
    let mut placed = false;
    for body in records {
        for event in &body.events {
            match event {
                Event::ConditionRaised { gpu: Some(gpu), .. }
                | Event::ConditionChanged { gpu: Some(gpu), .. }
                    if *gpu == stay.gpu && (placed || body.seq > stay.placed_at) =>
                {
                    found.push((body, event));
                }
                _ => match placement(event) {
                    Some((_, gpus)) if !gpus.contains(&stay.gpu) => {}
                    Some(_) if body.seq > stay.placed_at => return found,
                    Some(_) => placed = true,
                    None => {}
                },
            }
        }
    }
    found
}

fn placement(event: &Event) -> Option<(&JobId, &[GpuUuid])> {
    match event {
        Event::JobPlaced { job, gpus, .. } | Event::AttemptAdopted { job, gpus, .. } => {
            Some((job, gpus))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_core::Actor;
    use fleet_core::allocation::AttemptEnd;
    use fleet_core::health::Severity;
    use fleet_core::lease::Epoch;
    use fleet_core::name::{NodeName, UserName};

    use super::*;

    fn job(name: &str) -> JobId {
        JobId::parse(&format!("job-{name}")).unwrap()
    }

    fn gpu(number: u8) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{number}")).unwrap()
    }

    fn allocation() -> AllocationId {
        AllocationId::parse("alloc-aaaa-1").unwrap()
    }

    fn node() -> NodeName {
        NodeName::parse("titan01").unwrap()
    }

    /// The record of that number, as many seconds after the beginning.
    fn record(seq: u64, events: Vec<Event>) -> AuditBody {
        AuditBody {
            v: 1,
            seq,
            log_index: seq,
            at: Timestamp(seq * 1_000),
            actor: Actor::controller(),
            action: String::new(),
            request: None,
            allowed_by: None,
            refused: None,
            objects: Vec::new(),
            events,
            prev: String::new(),
        }
    }

    fn placed(name: &str, gpus: &[u8]) -> Event {
        let (job, gpus) = (job(name), gpus.iter().copied().map(gpu).collect());
        let (allocation, node, epoch) = (allocation(), node(), Epoch::default());
        Event::JobPlaced {
            job,
            allocation,
            node,
            gpus,
            epoch,
            resume_from: None,
            owner: UserName::parse("ada").unwrap(),
        }
    }

    fn ended(name: &str) -> Event {
        let (job, allocation) = (job(name), allocation());
        Event::AttemptEnded { job, allocation, end: AttemptEnd::Exited { code: 1 } }
    }

    fn raised(number: u8, message: &str) -> Event {
        let (kind, message) = ("xid".to_owned(), message.to_owned());
        let (node, gpu, severity) = (node(), Some(gpu(number)), Severity::Notice);
        Event::ConditionRaised { node, gpu, kind, severity, message }
    }

    fn stay(number: u8, placed_at: u64, until: Option<u64>) -> Stay {
        Stay { gpu: gpu(number), placed_at, until: until.map(|s| Timestamp(s * 1_000)) }
    }

    fn adopted(name: &str, gpus: &[u8]) -> Event {
        let (job, gpus) = (job(name), gpus.iter().copied().map(gpu).collect());
        let (allocation, node, epoch) = (allocation(), node(), Epoch::default());
        let owner = UserName::parse("ada").unwrap();
        Event::AttemptAdopted { job, allocation, owner, node, gpus, epoch, job_was_known: true }
    }

    fn changed(number: u8, message: &str) -> Event {
        let Event::ConditionRaised { node, gpu, kind, severity, message } = raised(number, message)
        else {
            unreachable!("it makes such ones")
        };
        Event::ConditionChanged { node, gpu, kind, severity, message }
    }

    fn told(records: &[AuditBody], stay: &Stay) -> Vec<String> {
        let message = |event: &Event| match event {
            Event::ConditionRaised { message, .. } | Event::ConditionChanged { message, .. } => {
                message.clone()
            }
            other => panic!("{other:?}"),
        };
        meanwhile(records, stay).into_iter().map(|(_, event)| message(event)).collect()
    }

    #[test]
    fn a_job_stays_on_its_gpus_from_each_placement_to_a_moment_after_its_end() {
        let records = [
            record(1, vec![placed("bbbb", &[3]), placed("aaaa", &[1, 2])]),
            record(4, vec![ended("bbbb")]),
            record(5, vec![ended("aaaa")]),
            record(9, vec![placed("aaaa", &[2])]),
            record(12, vec![ended("aaaa")]),
            record(20, vec![adopted("aaaa", &[3])]),
        ];
        let first = [stay(1, 1, Some(7)), stay(2, 1, Some(7))];
        let found = stays(&records, &job("aaaa"));
        assert_eq!(found[..2], first);
        assert_eq!(found[2..], [stay(2, 9, Some(14)), stay(3, 20, None)]);
        let many: Vec<_> = (1..=100).map(|n| record(n, vec![placed("aaaa", &[1])])).collect();
        let found = stays(&many, &job("aaaa"));
        assert_eq!((found.len(), found[0].placed_at), (STAYS_MAX, 101 - STAYS_MAX as u64));
    }

    #[test]
    fn the_first_attempt_of_the_job_is_found() {
        let requeued =
            Event::JobRequeued { job: job("aaaa"), why: String::new(), resume_from: None };
        let other = Event::AttemptEnded {
            job: job("bbbb"),
            allocation: AllocationId::parse("alloc-bbbb-1").unwrap(),
            end: AttemptEnd::Exited { code: 0 },
        };
        let records = [record(1, vec![requeued]), record(2, vec![other, ended("aaaa")])];
        assert_eq!(first_attempt(&records, &job("aaaa")), Some(allocation()));
        assert_eq!(first_attempt(&records[..1], &job("aaaa")), None);
    }

    #[test]
    fn what_was_told_of_the_gpu_meanwhile_counts() {
        let records = [
            record(1, vec![raised(1, "before"), placed("aaaa", &[1]), placed("bbbb", &[2])]),
            record(2, vec![raised(1, "during"), raised(2, "of another GPU")]),
            record(3, vec![placed("cccc", &[3]), changed(1, "worse")]),
            record(5, vec![ended("aaaa"), raised(1, "with the end")]),
        ];
        let meanwhile = ["during", "worse", "with the end"];
        assert_eq!(told(&records, &stay(1, 1, None)), meanwhile);
        assert_eq!(
            told(&records[1..], &stay(1, 1, None)),
            meanwhile,
            "its placement is in the past"
        );
    }

    #[test]
    fn what_is_told_once_another_attempt_has_the_gpu_is_its_own() {
        let next = |event| {
            [
                record(1, vec![placed("aaaa", &[1])]),
                record(2, vec![ended("aaaa"), placed("bbbb", &[2])]),
                record(3, vec![raised(1, "late")]),
                record(4, vec![event, raised(1, "of the next one")]),
            ]
        };
        assert_eq!(told(&next(placed("bbbb", &[1])), &stay(1, 1, None)), ["late"]);
        assert_eq!(told(&next(placed("aaaa", &[1])), &stay(1, 1, None)), ["late"]);
        assert_eq!(told(&next(adopted("aaaa", &[1])), &stay(1, 1, None)), ["late"]);
        let from_the_next = &next(adopted("aaaa", &[1]))[3..];
        assert_eq!(told(from_the_next, &stay(1, 4, None)), ["of the next one"]);
    }
}
