//! What a drain does to each job and reservation of a node, shown before an admin confirms it.

use fleet_proto::json::job::Job;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{ListJobsRequest, ListReservationsRequest};

use super::{Context, job, reservation};
use crate::client::Client;
use crate::errors::Failure;
use crate::output::job::expected;
use crate::times::Clock;

/// The preview's text. `deadline`: when the node must be empty, in milliseconds since 1970.
pub(super) async fn preview(
    context: &Context,
    client: &Client,
    node: &str,
    deadline: Option<u64>,
) -> Result<String, Failure> {
    let request = ListJobsRequest { node: node.to_owned(), with_spec: true, ..Default::default() };
    let jobs = job::fetch(client, request).await?;
    let mut reservations = reservation::fetch(client, ListReservationsRequest::default()).await?;
    reservations.retain(|reservation| reservation.node.as_deref() == Some(node));
    let mut text = format!("Draining {node} will affect:\n");
    for job in &jobs {
        let fate = fate(job, deadline, &context.clock);
        text.push_str(&format!("  {} {} of {}: {fate}\n", job.id, job.name, job.owner));
    }
    for reservation in &reservations {
        let Reservation { id, owner, .. } = reservation;
        text.push_str(&format!("  {id} of {owner}: {}\n", kept(reservation, &context.clock)));
    }
    if jobs.is_empty() && reservations.is_empty() {
        text.push_str("  nobody\n");
    }
    Ok(text)
}

/// What becomes of one job, and by when.
fn fate(job: &Job, deadline: Option<u64>, clock: &Clock) -> String {
    let saves = job.spec.as_ref().is_some_and(|spec| spec.checkpoint_dir.is_some());
    let at =
        deadline.map(|at| if at <= clock.now_ms() { "now".to_owned() } else { clock.minute(at) });
    match (saves, at) {
        (false, None) => "saves no checkpoints: may finish".to_owned(),
        (false, Some(at)) => format!("saves no checkpoints: is stopped {at} and loses its work"),
        (true, None) => format!("moves at its next checkpoint ({})", next(job, clock)),
        (true, Some(at)) => {
            format!("moves at its next checkpoint, else is stopped {at} ({})", next(job, clock))
        }
    }
}

/// A drain takes no reservation away, also none that begins later.
fn kept(reservation: &Reservation, clock: &Clock) -> String {
    let end = reservation.ends_at.map_or("?".to_owned(), |at| clock.minute(at.0));
    match reservation.starts_at.filter(|at| at.0 > clock.now_ms()) {
        Some(start) => {
            let start = clock.minute(start.0);
            format!("begins {start}; its GPUs stay reserved to its end, {end}")
        }
        None => format!("its GPUs stay reserved to its end, {end}"),
    }
}

fn next(job: &Job, clock: &Clock) -> String {
    let ago = job.last_checkpoint.as_ref().and_then(|seen| seen.completed_at);
    let last = match (&job.last_checkpoint, ago) {
        (None, _) => return "none seen yet".to_owned(),
        (Some(_), ago) => ago.map_or("?".to_owned(), |at| clock.ago(at.0)),
    };
    match job.next_checkpoint {
        Some(at) => format!("{}; the last was {last} ago", expected(at, clock)),
        None => format!("the last was {last} ago"),
    }
}

#[cfg(test)]
mod tests {
    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_drain_leaves_reservations_also_those_that_begin_later() {
        let clock = Clock::standing("2026-06-01T12:00:00Z", "UTC");
        let (now, hour) = (clock.now_ms(), 3_600_000);
        for (starts_at_unix_ms, said) in [
            (now - hour, "its GPUs stay reserved to its end, 2026-06-01 15:00 UTC"),
            (
                now + hour,
                "begins 2026-06-01 13:00 UTC; its GPUs stay reserved to its end, 2026-06-01 15:00 UTC",
            ),
        ] {
            let ends_at_unix_ms = now + 3 * hour;
            let given =
                pb::Reservation { starts_at_unix_ms, ends_at_unix_ms, ..Default::default() };
            assert_eq!(kept(&Reservation::from(given), &clock), said);
        }
    }

    #[test]
    fn a_drain_says_what_each_job_loses_and_when() {
        let clock = Clock::standing("2026-06-01T12:00:00Z", "UTC");
        let (now, minute) = (clock.now_ms(), 60_000);
        let saving = pb::Job {
            spec: Some(pb::JobSpec {
                checkpoint: Some(pb::CheckpointPlan {
                    dir: "/ck".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            last_checkpoint: Some(pb::Checkpoint {
                completed_at_unix_ms: now - 12 * minute,
                ..Default::default()
            }),
            next_checkpoint_unix_ms: now + 28 * minute,
            ..Default::default()
        };
        let late = pb::Job { next_checkpoint_unix_ms: now - 2 * minute, ..saving.clone() };
        let unseen =
            pb::Job { last_checkpoint: None, next_checkpoint_unix_ms: 0, ..saving.clone() };
        let plain = pb::Job { spec: Some(pb::JobSpec::default()), ..Default::default() };
        let at_two = Some(now + 120 * minute);
        for (job, deadline, said) in [
            (&saving, None, "moves at its next checkpoint (in about 28m; the last was 12m ago)"),
            (
                &late,
                at_two,
                "moves at its next checkpoint, else is stopped 2026-06-01 14:00 UTC (was expected 2m ago; the last was 12m ago)",
            ),
            (&unseen, None, "moves at its next checkpoint (none seen yet)"),
            (&plain, None, "saves no checkpoints: may finish"),
            (&plain, Some(now), "saves no checkpoints: is stopped now and loses its work"),
        ] {
            assert_eq!(fate(&Job::from(job.clone()), deadline, &clock), said);
        }
    }
}
