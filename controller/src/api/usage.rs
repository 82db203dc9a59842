//! `fleet usage`: who held how many GPUs for how long, and how much of that was used, in a window of time.
//!
//! What is over and what was measured is in the audit database (`audit/stays.rs`), what lasts in the state. Both are of one
//! moment: stays of records that are newer than the state that was read are left out, since the state has them as lasting.
//! For all users: holders and sums are no secret.

use fleet_core::name::UserName;
use fleet_core::stay::Stay;
use fleet_core::usage::{Question, Sums, USAGE_ROWS_MAX, USAGE_WINDOW_MAX, Usage, UsageBy};
use fleet_core::{Rejection, Timestamp, Window};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::Context;
use crate::audit::{Added, STAYS_READ_MAX};

/// Reports that are made at once: each may read many stays. Further ones wait for their turn.
const REPORTS_MAX: usize = 2;

static TURNS: Semaphore = Semaphore::const_new(REPORTS_MAX);

impl Context {
    pub(super) async fn get_usage(
        &self,
        request: Request<v1::GetUsageRequest>,
    ) -> Result<Response<v1::Usage>, Status> {
        self.callers.user(&request).await?;
        self.newest().await?;
        Ok(Response::new(self.usage(request.get_ref()).await?))
    }

    async fn usage(&self, request: &v1::GetUsageRequest) -> Result<v1::Usage, Status> {
        let now = self.clock.now();
        let question = question(request, now).map_err(|rejection| to_status(&rejection))?;
        let _turn = TURNS.acquire().await.map_err(|_| Status::internal("no report is made"))?;
        let (open, through) = self.raft.read(|fsm| {
            let open: Vec<Stay> = fsm.open_stays(now).collect();
            (open, fsm.audit_head().0)
        });
        let Window { starts_at, ends_at } = question.window;
        let (by, window) = (question.by, question.window);
        let added = self.audit().add_stays(Usage::of(question), open, window, through).await;
        let (usage, measured_left_out) = match added
            .map_err(|error| Status::internal(format!("read the audit database: {error}")))?
        {
            Added::All { usage, measured_left_out } => (*usage, measured_left_out),
            Added::TooMany => return Err(to_status(&too_many())),
        };
        let (mut rows, total) = usage.rows();
        let left_out = rows.len().saturating_sub(USAGE_ROWS_MAX);
        rows.truncate(USAGE_ROWS_MAX);
        // Asked last: what was pruned meanwhile may be missing above.
        let pruned = self.raft.read(|fsm| fsm.audit_pruned().map(|pruned| pruned.until));
        let complete_from = pruned.filter(|pruned| *pruned > starts_at);
        Ok(v1::Usage {
            by: by.word().to_owned(),
            rows: rows.into_iter().map(|(name, sums)| row(name, sums)).collect(),
            total: Some(row(String::new(), total)),
            rows_left_out: left_out as u64,
            from_unix_ms: starts_at.0,
            until_unix_ms: ends_at.0,
            complete_from_unix_ms: complete_from.map_or(0, |at| at.0),
            measured_left_out,
        })
    }
}

/// What is asked for, as far as it can be answered at `now`: nobody knows who will hold what.
fn question(request: &v1::GetUsageRequest, now: Timestamp) -> Result<Question, Rejection> {
    let by = match request.by.as_str() {
        "" => UsageBy::User,
        word => UsageBy::from_word(word).ok_or_else(|| {
            let all: Vec<&str> = UsageBy::ALL.iter().map(|by| by.word()).collect();
            Rejection::field("by", format!("is {word:?}: write one of {}", all.join(", ")))
        })?,
    };
    let owner = match request.owner.as_str() {
        "" => None,
        owner => {
            Some(UserName::parse(owner).map_err(|e| Rejection::field("owner", e.to_string()))?)
        }
    };
    let starts_at = Timestamp(request.from_unix_ms);
    if starts_at >= now {
        return Err(Rejection::field("from", "must be in the past"));
    }
    let ends_at = match request.until_unix_ms {
        0 => now,
        until => Timestamp(until),
    };
    if ends_at <= starts_at {
        return Err(Rejection::field("until", "must be later than the beginning"));
    }
    let ends_at = ends_at.min(now);
    let length = ends_at.since(starts_at);
    if length > USAGE_WINDOW_MAX {
        let problem =
            format!("is {length} before the end: at most {USAGE_WINDOW_MAX} are added up");
        return Err(Rejection::field("from", problem));
    }
    Ok(Question { window: Window { starts_at, ends_at }, by, owner })
}

fn too_many() -> Rejection {
    let problem = format!(
        "is too early: the report would read more than {STAYS_READ_MAX} attempts and reservations; \
         ask for a later or a shorter time"
    );
    Rejection::field("from", problem)
}

fn row(name: String, sums: Sums) -> v1::UsageRow {
    v1::UsageRow {
        name,
        reserved_gpu_ms: sums.reserved,
        in_jobs_gpu_ms: sums.in_jobs,
        jobs_gpu_ms: sums.jobs,
        held_gpu_ms: sums.held(),
        lost_gpu_ms: sums.lost,
        used_gpu_ms: sums.seen.busy,
        idle_gpu_ms: sums.seen.idle(),
        unknown_gpu_ms: sums.unknown(),
        occupied_gpu_ms: sums.seen.occupied,
        jobs: sums.job_count,
        reservations: sums.reservation_count,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use fleet_core::Millis;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn asked(from: Timestamp, until: Timestamp, by: &str) -> Result<Question, String> {
        let request = v1::GetUsageRequest {
            from_unix_ms: from.0,
            until_unix_ms: until.0,
            by: by.to_owned(),
            owner: String::new(),
        };
        question(&request, NOW).map_err(|rejection| rejection.to_string())
    }

    #[test]
    fn a_window_ends_now_at_the_latest() {
        let from = NOW - Millis::days(3);
        for until in [Timestamp(0), NOW, NOW + Millis::days(20)] {
            let window = asked(from, until, "").unwrap().window;
            assert_eq!(window, Window { starts_at: from, ends_at: NOW });
        }
        assert_eq!(asked(from, Timestamp(0), "model").unwrap().by, UsageBy::Model);
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_the_reason() {
        let now = Timestamp(0);
        let day = Millis::days(1);
        let cases = [
            (NOW, now, "", "must be in the past"),
            (NOW + day, NOW + day + day, "", "must be in the past"),
            (NOW - day, NOW - day, "", "must be later than the beginning"),
            (NOW - day, NOW - day - day, "", "must be later than the beginning"),
            (NOW - USAGE_WINDOW_MAX - Millis(1), now, "", "at most 400d"),
            (NOW - day, now, "week", "write one of user, project, node, model, class"),
        ];
        for (from, until, by, problem) in cases {
            let said = asked(from, until, by).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
        assert!(asked(NOW - USAGE_WINDOW_MAX, now, "").is_ok());
    }
}
