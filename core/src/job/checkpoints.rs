//! What a job has saved, and which of it the next attempt may resume from.

use super::Job;
use crate::checkpoint::{CHECKPOINTS_KEPT, Candidate, Checkpoint, CheckpointId, MayUse};
use crate::time::Millis;

impl Job {
    /// What is known of its checkpoints, the newest first; at most [`CHECKPOINTS_KEPT`].
    pub fn checkpoints(&self) -> impl Iterator<Item = &Checkpoint> {
        self.last_checkpoint.iter().chain(&self.older_checkpoints)
    }

    /// The checkpoints that the next attempt may resume from without a word of the owner, the best first.
    pub fn candidates(&self) -> Vec<Candidate> {
        let below = self.steps_back.below.unwrap_or(u64::MAX);
        let of = |may: MayUse| {
            self.checkpoints().filter(move |c| c.may_use() == may && c.number < below)
        };
        of(MayUse::Alone).chain(of(MayUse::IfNoOther)).map(Candidate::of).collect()
    }

    /// The newest that was complete when it was heard of, also one that is gone by now.
    pub fn newest_saved(&self) -> Option<&Checkpoint> {
        self.checkpoints().find(|c| !c.is_torn())
    }

    /// Whether it ever saved something to resume from. If not, an interrupted job starts from the beginning.
    pub fn has_saved(&self) -> bool {
        self.has_saved || self.newest_saved().is_some()
    }

    /// The last gaps between two complete checkpoints of one attempt, the newest first; at most three.
    pub fn gaps(&self) -> Vec<Millis> {
        let all: Vec<&Checkpoint> = self.checkpoints().filter(|c| !c.is_torn()).collect();
        let pairs = all.windows(2).filter(|pair| pair[0].allocation == pair[1].allocation);
        pairs.map(|pair| pair[0].completed_at.since(pair[1].completed_at)).take(3).collect()
    }

    /// Whether it would stay if it were listed now, and not be the one that is too many.
    pub(crate) fn has_place_for(&self, id: CheckpointId) -> bool {
        let is_dropped_first = |c: &Checkpoint| c.id() < id || c.may_use() == MayUse::Never;
        self.checkpoints().count() < CHECKPOINTS_KEPT
            || self.checkpoints().skip(1).any(is_dropped_first)
    }

    /// Puts it among the others, by attempt and number, and drops what is too many: first what nobody can resume from, so
    /// that a full disk does not push out what was saved before.
    pub(crate) fn list_checkpoint(&mut self, checkpoint: Checkpoint) {
        let mut all = std::mem::take(&mut self.older_checkpoints);
        all.splice(0..0, self.last_checkpoint.take());
        let at = all.partition_point(|known| known.id() > checkpoint.id());
        all.insert(at, checkpoint);
        if all.len() > CHECKPOINTS_KEPT {
            let useless = all.iter().rposition(|c| c.may_use() == MayUse::Never);
            // The newest stays in any case: people ask what became of it.
            all.remove(useless.filter(|at| *at > 0).unwrap_or(all.len() - 1));
        }
        let mut all = all.into_iter();
        self.last_checkpoint = all.next();
        self.older_checkpoints = all.collect();
    }
}
