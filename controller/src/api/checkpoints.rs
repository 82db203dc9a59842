//! The checkpoints of jobs, from the audit log: all of one job, or all of one user's jobs.

use fleet_core::Event;
use fleet_core::id::JobId;
use fleet_core::name::UserName;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::Status;

use super::{Context, views, writes};
use crate::audit::{Order, Query};

/// Most checkpoints of one answer; the newest are kept.
const CHECKPOINTS_MAX: usize = 1_000;

impl Context {
    /// Oldest first. Without a job: those of all jobs of `owner`, or else of the caller.
    pub(super) async fn list_checkpoints(
        &self,
        caller: &UserName,
        asked: &v1::ListCheckpointsRequest,
    ) -> Result<Vec<v1::Checkpoint>, Status> {
        if !asked.job.is_empty() {
            let id = writes::job_id(&asked.job)?;
            let mut items = self.checkpoints_of(&id, CHECKPOINTS_MAX).await?;
            items.reverse();
            return Ok(items);
        }
        let owner = writes::owner(&asked.owner, caller).map_err(|r| to_status(&r))?;
        self.newest().await?;
        let mut jobs: Vec<(u64, JobId)> = self.raft.read(|fsm| {
            let saved = fsm.jobs().values().filter(|job| job.last_checkpoint.is_some());
            let own = saved.filter(|job| job.owner == owner);
            own.map(|job| (job.queue.submitted, job.id.clone())).collect()
        });
        jobs.sort();
        let mut items = Vec::new();
        for (_, id) in jobs.iter().rev() {
            let room = CHECKPOINTS_MAX - items.len();
            if room == 0 {
                break;
            }
            // One that was forgotten meanwhile has none.
            items.extend(self.checkpoints_of(id, room).await.unwrap_or_default());
        }
        items.sort_by_key(|item| item.completed_at_unix_ms);
        Ok(items)
    }

    /// The newest `most` of one job, newest first.
    async fn checkpoints_of(&self, id: &JobId, most: usize) -> Result<Vec<v1::Checkpoint>, Status> {
        let last = self.raft.read(|fsm| {
            fsm.job(id).map(|job| job.last_checkpoint.as_ref().map(|c| views::checkpoint(job, c)))
        });
        let not_found = || to_status(&fleet_core::Rejection::not_found("job", id));
        let last = last.ok_or_else(not_found)?;
        let mut items = Vec::new();
        let mut query =
            Query { object: Some(id.to_string()), order: Order::NewestFirst, ..Query::default() };
        while items.len() < most {
            let page = self.audit().query(query.clone()).await;
            let page = page.map_err(|e| Status::internal(format!("read the audit log: {e}")))?;
            for record in &page.records {
                let seen = record.body.events.iter().rev();
                items.extend(seen.filter_map(|event| recorded(id, record.body.at.0, event)));
            }
            match page.next {
                Some(next) => query.to_seq = Some(next),
                None => break,
            }
        }
        if let Some(last) = last {
            // Of the newest more is known than the log says.
            match items.first_mut() {
                Some(newest) if newest.allocation == last.allocation && newest.seq == last.seq => {
                    *newest = last;
                }
                Some(_) | None => items.insert(0, last),
            }
        }
        items.truncate(most);
        Ok(items)
    }
}

fn recorded(id: &JobId, at_unix_ms: u64, event: &Event) -> Option<v1::Checkpoint> {
    let Event::CheckpointRecorded { job, allocation, seq, path, number, facts } = event else {
        return None;
    };
    let facts = facts.as_deref().cloned().unwrap_or_default();
    (job == id).then(|| v1::Checkpoint {
        job: id.to_string(),
        allocation: allocation.to_string(),
        seq: *seq,
        path: path.clone(),
        completed_at_unix_ms: at_unix_ms,
        number: number.unwrap_or(0),
        ..views::checkpoint_facts(&facts)
    })
}
