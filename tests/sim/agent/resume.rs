//! From which checkpoint a simulated attempt resumes: the choice of production's helper, on the simulated file server.
//!
//! Rules as in production's `checkpoint/resume.rs`: the first that the order names and that is there, by its writer, and
//! not cut; and a look into the directory for what nobody could report, where no earlier attempt can be alive. What is
//! never right is said to the judge.

use fleet_core::allocation::AttemptEnd;
use fleet_core::checkpoint::{Candidate, Content, Passed, Presence, ResumeOrder, Resumed};
use fleet_core::desired::StartOrder;
use fleet_core::id::{AllocationId, JobId};
use fleet_core::lease::Epoch;

use super::Agent;
use crate::bugs::Bug;
use crate::files::{File, is_torn, path};

impl Agent {
    /// The step that the attempt resumes from; 0 if it begins from nothing.
    pub(super) fn resume(
        &self,
        id: &AllocationId,
        epoch: Epoch,
        order: &StartOrder,
    ) -> Result<u64, AttemptEnd> {
        let Some(resume) = order.resume.as_ref().filter(|resume| !resume.scratch) else {
            return Ok(0);
        };
        self.judge_order(id, &order.job, resume);
        let (taken, passed) = self.choose(&order.job, &resume.candidates);
        let found = self.found_by_a_look(&order.job, resume, taken.as_ref().map(|(_, file)| file));
        let mut resumed = Resumed { passed, ..Resumed::default() };
        let step = match (found, taken) {
            (Some(file), _) => {
                resumed.found = true;
                file.step
            }
            (None, Some((candidate, file))) => {
                resumed.taken = Some(candidate.id);
                file.step
            }
            (None, None) if resume.candidates.is_empty() => return Ok(0),
            (None, None) => {
                let tried = resumed.passed.iter().map(|passed| passed.why.clone()).collect();
                return Err(AttemptEnd::NothingToResume { tried });
            }
        };
        resumed.path = path(&order.job, step);
        self.count(&resumed);
        self.outbox.resumed(id, epoch, resumed);
        Ok(step)
    }

    /// What an order must never say.
    fn judge_order(&self, id: &AllocationId, job: &JobId, resume: &ResumeOrder) {
        if let Some(torn) = resume.candidates.iter().find(|one| is_torn(one.id.seq)) {
            self.scene.violation(format!("{id} may resume from {}, which is torn", torn.path));
        }
        let nodes = 0..self.scene.machines.len();
        for at in nodes.filter(|at| resume.others_dead && *at != self.post.at) {
            let machine = self.scene.machine(at);
            if let Some(other) = machine.any_of(job).cloned() {
                let what = format!("{id} hears that {other} is dead, which is on {}", machine.name);
                drop(machine);
                return self.scene.violation(what);
            }
        }
    }

    fn choose(
        &self,
        job: &JobId,
        candidates: &[Candidate],
    ) -> (Option<(Candidate, File)>, Vec<Passed>) {
        let (files, now) = (self.scene.files(), self.scene.now_us());
        let blind = self.scene.bug == Some(Bug::TornCounts);
        let mut passed = Vec::new();
        for candidate in candidates {
            let writer = AllocationId::of_attempt(job, candidate.id.attempt);
            let own = |file: &&File| file.writer == writer && file.seq == candidate.id.seq;
            let there = files.at(job, &candidate.path, now);
            let (content, presence, why) = match (there, there.filter(own)) {
                (_, Some(file)) if blind || !is_torn(file.seq) => {
                    return (Some((candidate.clone(), file.clone())), passed);
                }
                (_, Some(_)) => (torn("it was cut"), None, "torn"),
                (Some(_), None) => (torn("it was written again"), None, "written again"),
                (None, None) => (None, Some(Presence::Gone), "gone"),
            };
            passed.push(Passed { id: candidate.id, why: why.to_owned(), content, presence });
        }
        (None, passed)
    }

    fn found_by_a_look(
        &self,
        job: &JobId,
        resume: &ResumeOrder,
        taken: Option<&File>,
    ) -> Option<File> {
        let looks =
            resume.others_dead && !resume.shared_dir && !resume.by_owner && resume.below.is_none();
        let (files, now) = (self.scene.files(), self.scene.now_us());
        let newest = files.newest_whole(job, now).filter(|_| looks)?;
        taken.is_none_or(|taken| newest.written_us > taken.written_us).then(|| newest.clone())
    }

    /// So that a simulation in which nothing of it comes about is noticed.
    fn count(&self, resumed: &Resumed) {
        let mut oracle = self.scene.oracle();
        if !resumed.passed.is_empty() {
            oracle.count("ResumedPastSome");
        }
        if resumed.found {
            oracle.count("ResumedFromWhatWasFound");
        }
    }
}

fn torn(why: &str) -> Option<Content> {
    Some(Content::Torn { why: why.to_owned() })
}
