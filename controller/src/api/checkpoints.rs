//! The checkpoints of jobs, from the audit log: all of one job, or all of one user's jobs.

use std::collections::BTreeMap;

use fleet_core::Event;
use fleet_core::checkpoint::{Content, Facts, Presence};
use fleet_core::id::JobId;
use fleet_core::name::UserName;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::Status;

use super::{Context, views, writes};
use crate::audit::{Query, RecordOrder};

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

    /// The newest `most` of one job, newest first: the records of the audit log, with what changed since. Of the newest few
    /// the state knows it; of older ones the log's later records do.
    async fn checkpoints_of(&self, id: &JobId, most: usize) -> Result<Vec<v1::Checkpoint>, Status> {
        let known = self.raft.read(|fsm| {
            let job = fsm.job(id)?;
            Some(job.checkpoints().map(|c| views::checkpoint(job, c)).collect::<Vec<_>>())
        });
        let known = known.ok_or_else(|| to_status(&fleet_core::Rejection::not_found("job", id)))?;
        let mut items = Vec::new();
        let mut changes = BTreeMap::new();
        let mut query = Query {
            object: Some(id.to_string()),
            order: RecordOrder::NewestFirst,
            ..Query::default()
        };
        while items.len() < most {
            let page = self.audit().query(query.clone()).await;
            let page = page.map_err(|e| Status::internal(format!("read the audit log: {e}")))?;
            for record in &page.records {
                for event in record.body.events.iter().rev() {
                    note_change(&mut changes, id, event);
                    items.extend(recorded(id, event));
                }
            }
            match page.next {
                Some(next) => query.to_seq = Some(next),
                None => break,
            }
        }
        let same =
            |a: &v1::Checkpoint, b: &v1::Checkpoint| a.allocation == b.allocation && a.seq == b.seq;
        for item in &mut items {
            match known.iter().find(|known| same(known, item)) {
                Some(known) => *item = known.clone(),
                None => apply_changes(item, &changes),
            }
        }
        if let Some(last) = known.first().filter(|last| !items.iter().any(|item| same(item, last)))
        {
            items.insert(0, last.clone());
        }
        items.truncate(most);
        Ok(items)
    }
}

/// The newest of each kind of change, by number: records are read from the newest on.
type Changes = BTreeMap<u64, (Option<Content>, Option<Presence>)>;

fn note_change(changes: &mut Changes, id: &JobId, event: &Event) {
    if let Event::CheckpointChanged { job, number, content, presence, .. } = event
        && job == id
    {
        let (known_content, known_presence) = changes.entry(*number).or_default();
        *known_content = known_content.take().or_else(|| content.clone());
        *known_presence = known_presence.take().or(*presence);
    }
}

fn apply_changes(item: &mut v1::Checkpoint, changes: &Changes) {
    let (content, presence) = changes.get(&item.number).cloned().unwrap_or_default();
    if let Some(content) = content {
        let facts = Facts { content, ..Facts::default() };
        let shown = views::checkpoint_facts(&facts);
        (item.content, item.torn_because) = (shown.content, shown.torn_because);
    }
    if let Some(presence) = presence {
        item.presence = presence.word().to_owned();
    }
}

fn recorded(id: &JobId, event: &Event) -> Option<v1::Checkpoint> {
    let Event::CheckpointRecorded { job, allocation, seq, path, number, facts: recorded } = event
    else {
        return None;
    };
    if job != id {
        return None;
    }
    let shown = views::checkpoint_facts(&recorded.facts);
    Some(v1::Checkpoint {
        job: id.to_string(),
        allocation: allocation.to_string(),
        seq: *seq,
        path: path.clone(),
        number: *number,
        size_bytes: recorded.size_bytes,
        // When its node saw it complete, not when that was heard here.
        completed_at_unix_ms: recorded.completed_at.0,
        node: recorded.node.to_string(),
        attempt: recorded.attempt,
        presence: Presence::There.word().to_owned(),
        step: shown.step,
        rule: shown.rule,
        content: shown.content,
        torn_because: shown.torn_because,
        doubt: shown.doubt,
        files: shown.files,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::checkpoint::RecordedFacts;
    use fleet_core::id::AllocationId;
    use fleet_core::name::NodeName;
    use fleet_core::time::Timestamp;

    use super::*;

    #[test]
    fn a_checkpoint_was_complete_when_its_node_said_and_not_when_that_was_heard() {
        let job = JobId::parse("job-a").unwrap();
        let facts = RecordedFacts {
            facts: Facts::default(),
            attempt: 1,
            size_bytes: 1,
            completed_at: Timestamp(2_000),
            node: NodeName::parse("titan01").unwrap(),
        };
        let event = Event::CheckpointRecorded {
            job: job.clone(),
            allocation: AllocationId::parse("alloc-a-1").unwrap(),
            seq: 1,
            path: "/ck/1.pt".to_owned(),
            number: 1,
            facts: Box::new(facts),
        };
        assert_eq!(recorded(&job, &event).unwrap().completed_at_unix_ms, 2_000);
    }
}
