//! Removal of ended jobs, and of the files that fleet wrote beside their checkpoints.
//!
//! Those files (the marker, the lists, what is kept beside) make a later resume possible. They stay until the job is
//! removed, or for [`FILES_STAY`] after its end. The node that ran it last removes them, as the job's owner, so a job that
//! is being removed stays in the list until that node has answered. Checkpoints are never removed.

use super::{Fsm, Turn};
use crate::desired::JobDir;
use crate::event::Event;
use crate::id::JobId;
use crate::job::{Job, JobFiles};
use crate::name::NodeName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::{Millis, Timestamp};

/// How long after the end of a job the files stay.
pub(super) const FILES_STAY: Millis = Millis::days(30);
/// Most jobs that wait for one node.
const REMOVALS_OF_NODE_MAX: usize = 1_000;
/// Most jobs that one document names to a node, which keeps the document small.
const TOLD_MAX: usize = 64;

impl Fsm {
    /// Removes an ended job. One whose files a node has to remove first stays until then.
    pub(super) fn remove_job(
        &mut self,
        turn: &mut Turn<'_>,
        id: &JobId,
    ) -> Result<Reply, Rejection> {
        let job = self.jobs.get(id).ok_or_else(|| Rejection::not_found("job", id))?;
        let not = |why: String| Rejection::NotRemovable { id: id.to_string(), why };
        if !job.state.is_final() {
            return Err(not(format!(
                "it is {}; end it first: fleet cancel {id}",
                job.state.word()
            )));
        }
        let by = turn.actor.display_name();
        match self.node_with_files_of(job) {
            Some(node) if self.is_busy_removing(&node) => {
                Err(not(format!("{REMOVALS_OF_NODE_MAX} other jobs wait for {node}")))
            }
            Some(node) => {
                self.order_removal(id, node.clone(), Some(by.clone()));
                turn.say(Event::JobRemovalOrdered { job: id.clone(), by, node });
                Ok(Reply::Done)
            }
            None => {
                self.forget_job(id);
                turn.say(Event::JobRemoved { job: id.clone(), by, files_left: None });
                Ok(Reply::Done)
            }
        }
    }

    /// The node that is to remove what fleet wrote beside the job's checkpoints; none where nothing is there, or where that
    /// node has left the fleet.
    fn node_with_files_of(&self, job: &Job) -> Option<NodeName> {
        let saves = job.spec.checkpoint.is_some() && job.files != JobFiles::Removed;
        let place = job.place().filter(|_| saves)?;
        self.nodes.contains_key(&place.node).then(|| place.node.clone())
    }

    fn is_busy_removing(&self, node: &NodeName) -> bool {
        self.removing.get(node).is_some_and(|jobs| jobs.len() >= REMOVALS_OF_NODE_MAX)
    }

    /// `job_too`: who removes the job itself.
    fn order_removal(&mut self, id: &JobId, node: NodeName, job_too: Option<String>) {
        self.keep_files(id);
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.files = JobFiles::Removing { node: node.clone(), job_too };
        self.removing.entry(node).or_default().insert(id.clone());
    }

    /// Of a job that ended: when its files are to go.
    pub(super) fn note_files(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        if let (Some(ended_at), Some(_)) = (job.ended_at, self.node_with_files_of(job)) {
            self.files_due.insert((ended_at + FILES_STAY, id.clone()));
        }
    }

    /// No removal is due or ordered.
    pub(super) fn keep_files(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let Some(ended_at) = job.ended_at {
            self.files_due.remove(&(ended_at + FILES_STAY, id.clone()));
        }
        if let JobFiles::Removing { node, .. } = std::mem::take(&mut job.files)
            && let Some(jobs) = self.removing.get_mut(&node)
        {
            jobs.remove(id);
            if jobs.is_empty() {
                self.removing.remove(&node);
            }
        }
    }

    /// Removes it from the list, without a word to any node.
    fn forget_job(&mut self, id: &JobId) {
        self.keep_files(id);
        self.unbind_job(id);
        self.jobs.remove(id);
        self.finished.retain(|finished| finished != id);
    }

    /// Keeps the list of ended jobs short: the oldest goes, behind its files.
    pub(super) fn forget_oldest(&mut self) {
        let Some(oldest) = self.finished.pop_front() else { return };
        let node = self.jobs.get(&oldest).and_then(|job| self.node_with_files_of(job));
        match node.filter(|node| !self.is_busy_removing(node)) {
            Some(node) => self.order_removal(&oldest, node, Some("fleet".to_owned())),
            None => self.forget_job(&oldest),
        }
    }

    /// When the next files are to go.
    pub(super) fn next_files_due(&self) -> Option<Timestamp> {
        self.files_due.first().map(|(at, _)| *at)
    }

    pub(super) fn remove_due_files(&mut self) {
        while self.next_files_due().is_some_and(|at| at <= self.now) {
            let Some((_, id)) = self.files_due.pop_first() else { return };
            let node = self.jobs.get(&id).and_then(|job| self.node_with_files_of(job));
            // Where the node has left the fleet, or far too much to remove, these files stay for good.
            if let Some(node) = node.filter(|node| !self.is_busy_removing(node)) {
                self.order_removal(&id, node, None);
            }
        }
    }

    /// The node has removed them, or cannot.
    pub(super) fn files_removed(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        id: &JobId,
        problem: Option<&str>,
    ) {
        let Some(job) = self.jobs.get(id) else { return };
        let JobFiles::Removing { node: asked, job_too } = &job.files else { return };
        if asked != node {
            return;
        }
        let (by, job, files_left) = (job_too.clone(), id.clone(), problem.map(str::to_owned));
        match by {
            Some(by) => {
                self.forget_job(id);
                turn.say(Event::JobRemoved { job, by, files_left });
            }
            None => {
                self.keep_files(id);
                if let Some(kept) = self.jobs.get_mut(id) {
                    kept.files = JobFiles::Removed;
                }
                turn.say(Event::JobFilesRemoved { job, files_left });
            }
        }
    }

    /// A node leaves the fleet: nobody removes what it was to remove.
    pub(super) fn leave_files_of(&mut self, turn: &mut Turn<'_>, node: &NodeName) {
        let jobs = self.removing.get(node).cloned().unwrap_or_default();
        for id in jobs {
            self.files_removed(turn, node, &id, Some("its node left the fleet"));
        }
    }

    /// What the node is to remove.
    pub(crate) fn removals(&self, node: &NodeName) -> Vec<JobDir> {
        let jobs = self.removing.get(node).into_iter().flatten();
        jobs.filter_map(|id| self.jobs.get(id)).take(TOLD_MAX).map(JobDir::of).collect()
    }
}
