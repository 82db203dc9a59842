//! Why a job is in its state, in one sentence.

use super::gpu_list;
use crate::hold::JobHold;
use crate::id::JobId;
use crate::name::ClassName;
use crate::node::Liveness;
use crate::scheduler::WAITS_MAX;
use crate::time::Millis;
use crate::view::job::{Leaving, LeavingHow};
use crate::view::share::PlaceBy;
use crate::view::{JobReason, Names, Pause};

impl JobReason {
    /// The sentence, with the names of GPUs that people use.
    pub fn text(&self, names: &dyn Names) -> String {
        match self {
            JobReason::Ended(reason) => names.in_text(reason),
            JobReason::AsksOwner { owner, why } => format!("waits for {owner}: {why}"),
            JobReason::Held { job, hold, held_for } => held(job, hold, *held_for),
            JobReason::Paused(pause) => pause.text(),
            JobReason::Waits(wait) => wait.to_string(),
            JobReason::Stopping(why) => why.to_string(),
            JobReason::Leaving(leaving) => leaving.text(names),
            JobReason::Preparing(what) => names.in_text(what),
            JobReason::NodeSilent { node, liveness, before } => {
                let silent = match liveness {
                    Liveness::Ready | Liveness::Suspect => format!("{node} is silent"),
                    Liveness::Unreachable => {
                        format!("{node} is unreachable: it is not known whether the job still runs")
                    }
                };
                match before {
                    Some(before) => format!("{silent}; {}", before.text(names)),
                    None => silent,
                }
            }
            JobReason::GivesWay { reservation, owner, within, saves } => {
                let leaves = if *saves { "at its last checkpoint before that" } else { "then" };
                format!("{reservation} of {owner} begins on its GPUs in {within}; leaves {leaves}")
            }
            JobReason::NothingSaved { quiet, note } => {
                let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
                format!("no checkpoint seen for {quiet}{note}")
            }
        }
    }
}

fn held(job: &JobId, hold: &JobHold, held_for: Millis) -> String {
    let by = &hold.by;
    // A job that was held a moment ago says only that.
    let long = match held_for.0 / 60_000 {
        0 => String::new(),
        _ => format!(" for {held_for}"),
    };
    match hold.admin {
        false => format!("held by {by}{long}; release it: fleet job release {job}"),
        true => {
            format!("held by {by} (admin){long}; an admin releases it: fleet job release {job}")
        }
    }
}

/// Where a job that waits is in the queue, and what that follows from. `class`: its own, where jobs of others wait too.
pub fn place(place: u32, class: Option<&ClassName>, by: &PlaceBy) -> String {
    let why = match by {
        PlaceBy::Interrupted => "interrupted jobs come first".to_owned(),
        PlaceBy::Waited => format!("it has waited for more than {WAITS_MAX}"),
        PlaceBy::Kept => "its place is kept until it starts".to_owned(),
        PlaceBy::Share { owner, had, project } => {
            let holds = match had.holds {
                0 => String::new(),
                1_000 => " and holds 1 GPU".to_owned(),
                millis if millis % 1_000 == 0 => format!(" and holds {} GPUs", millis / 1_000),
                millis => format!(" and holds {}.{} GPUs", millis / 1_000, millis % 1_000 / 100),
            };
            let first = match project {
                Some(project) => format!("projects, and people in {project}, that had less come"),
                None => "who had less comes".to_owned(),
            };
            format!("{owner} had {}{holds}; {first} first (fleet share)", had.used)
        }
    };
    match class {
        Some(class) => format!("place {place} in the queue: behind classes above {class}; {why}"),
        None => format!("place {place} in the queue: {why}"),
    }
}

impl Pause {
    fn text(&self) -> String {
        match self {
            Pause::Begin { wait } => format!("begins in {wait} at the earliest (--begin)"),
            Pause::Image { why, again, next_try } => {
                format!("{why}; tries again in {again}, try {next_try}")
            }
            Pause::Fault { cause, node, again } => {
                format!("{cause} on {node}; tries again in {again}")
            }
            Pause::Failed { again } => format!("failed; tries again in {again}"),
        }
    }
}

impl Leaving {
    fn text(&self, names: &dyn Names) -> String {
        let causes = self.causes.join(", ");
        let what = match &self.how {
            LeavingHow::LosesWork => {
                format!("is stopped ({causes}); it declares no checkpoint, so its work is lost")
            }
            LeavingHow::MayFinish => {
                format!("should leave ({causes}); it declares no checkpoint, so it may finish")
            }
            LeavingHow::Moves { node, gpus } => {
                let place = match gpus.as_slice() {
                    [] => node.to_string(),
                    gpus => gpu_list(names, gpus),
                };
                format!("moves at its next checkpoint ({causes}); {place} is held for it")
            }
            LeavingHow::HeldBack(why) => format!("should leave ({causes}) but {why}"),
            LeavingHow::NextCheckpoint => format!("leaves at its next checkpoint ({causes})"),
        };
        let mut said = what;
        if let Some(within) = self.within {
            said.push_str(&format!("; leaves within {within} at the latest"));
        }
        if let Some(job) = &self.keeps_with_a_limit {
            said.push_str(&format!("; to keep its place: fleet job set {job} -t TIME"));
        }
        said
    }
}
