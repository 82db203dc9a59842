//! Why a queued job waits: the sentence beside it, and the line of each node in `fleet why`.

use std::fmt;

use super::few;
use crate::name::NodeName;
use crate::reason::{
    ClassLimit, Emptying, Few, KeptFor, NodePart, Obstacle, OverLimit, ProjectLimit, Shut,
    ShutReservation, TakenBy, TakenGpus, Unfit, UnfitGpu, Wait, WaitReason,
};
use crate::scheduler::OFFER_MIN;
use crate::state::wish::{bytes, cores as plain_cores};
use crate::time::Millis;

/// How a node stands to a job: what keeps it from there, or else that it starts, or waits although there is room.
pub fn verdict(node: &NodeName, obstacle: Option<&Obstacle>, starts: bool) -> String {
    match obstacle {
        Some(obstacle) => obstacle.to_string(),
        None if starts => format!("starts on {node}"),
        None => "room for it".to_owned(),
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            WaitReason::NotPlanned => write!(f, "waiting for the scheduler"),
            WaitReason::NextPlan => write!(f, "its turn comes with the next plan"),
            WaitReason::MayRunOn(node) => {
                write!(f, "restored from a backup: it may run on {node}, which has not reported")
            }
            WaitReason::Reservation(shut) if shut.is_forever() => {
                write!(f, "can never start: {shut}; cancel it")
            }
            WaitReason::Reservation(shut) => shut.fmt(f),
            WaitReason::Gpus { wanted, obstacle } => write!(f, "waits for {wanted}: {obstacle}"),
            WaitReason::Node(obstacle) => obstacle.fmt(f),
            WaitReason::Closed(nodes) => few(f, nodes, "; "),
            WaitReason::Preempts { jobs, node } if jobs.named.is_empty() => {
                write!(f, "its place on {node} is free, and is being prepared for it")
            }
            WaitReason::Preempts { jobs, node } => {
                few(f, jobs, ", ")?;
                let leave = if jobs.named.len() + jobs.more > 1 { "leave" } else { "leaves" };
                write!(f, " {leave} {node} for it")
            }
            WaitReason::ClassLimit(ClassLimit { class, most, wanted, .. }) if wanted > most => {
                write!(
                    f,
                    "can never start: it wants {wanted} GPUs, and class {class} allows {most} a person"
                )
            }
            WaitReason::ClassLimit(ClassLimit { class, most, holds, .. }) => {
                let gpus = if *most == 1 { "GPU" } else { "GPUs" };
                write!(
                    f,
                    "class {class} allows {most} {gpus} a person; its owner has {holds} there"
                )
            }
            WaitReason::ProjectLimit(limit) => limit.fmt(f),
            WaitReason::NeverFits(why) => write!(f, "can never start: {why}"),
            WaitReason::Excluded => {
                write!(f, "can never start: ")?;
                excluded(f, &self.excluded)?;
                write!(f, "; `fleet node uncordon` lets it try again there")
            }
        }?;
        if matches!(self.reason, WaitReason::Excluded) || self.excluded.named.is_empty() {
            return Ok(());
        }
        write!(f, "; ")?;
        excluded(f, &self.excluded)
    }
}

impl fmt::Display for ProjectLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let project = &self.project;
        if self.is_forever() {
            write!(f, "can never start: ")?;
        }
        let (allows, who) = match &self.each {
            Some(user) => ("allows each person", user.as_str()),
            None => ("allows", "the project"),
        };
        match &self.over {
            OverLimit::Gpus { most, wanted, .. } if wanted > most => {
                write!(f, "it wants {wanted} GPUs, and project {project} {allows} {most} at once")
            }
            OverLimit::Gpus { most, has, longest, .. } => {
                let gpus = if *most == 1 { "GPU" } else { "GPUs" };
                write!(f, "project {project} {allows} {most} {gpus} at once, and {who} ")?;
                match longest {
                    None => write!(f, "has {has}"),
                    Some(longest) => {
                        write!(f, "will have {has} before the job would end")?;
                        match *longest >= OFFER_MIN {
                            true => write!(
                                f,
                                "; with -t {longest} or less the job need not wait for that"
                            ),
                            false => Ok(()),
                        }
                    }
                }
            }
            OverLimit::GpuHours { most, wanted, .. } if self.is_forever() => {
                write!(f, "it may use {wanted}, and project {project} {allows} {most}")
            }
            OverLimit::GpuHours { most, has, wanted } => {
                write!(
                    f,
                    "project {project} {allows} {most} GPU-hours; {who} has used or booked {has}, and this job may use {wanted}"
                )
            }
        }
    }
}

fn excluded(f: &mut fmt::Formatter<'_>, nodes: &Few<(NodeName, String)>) -> fmt::Result {
    let named = nodes.named.iter().map(|(node, why)| format!("not on {node}: {why}"));
    few(f, &Few { named: named.collect(), more: nodes.more }, "; ")
}

impl fmt::Display for ShutReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.id;
        match &self.why {
            Shut::Gone => write!(f, "there is no reservation {id} any more"),
            Shut::BelongsTo(owner) => write!(f, "reservation {id} belongs to {owner}"),
            Shut::Ended => write!(f, "its reservation {id} has ended"),
            Shut::Cancelled => write!(f, "its reservation {id} was cancelled"),
            Shut::Ending => write!(f, "its reservation {id} is ending"),
            Shut::NotBegun => write!(f, "its reservation {id} has not begun"),
            Shut::Delayed(why) => write!(f, "its reservation {id} waits: {why}"),
            Shut::NotUsable(node) => write!(f, "its reservation {id} is on {node}"),
        }
    }
}

fn free_in(part: NodePart) -> &'static str {
    match part {
        NodePart::All => "free",
        NodePart::WithoutGpus => "free for jobs without GPUs",
    }
}

fn meant_for(part: NodePart) -> &'static str {
    match part {
        NodePart::All => "",
        NodePart::WithoutGpus => " for jobs without GPUs",
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::OwnReservation { reservation, longest } => write!(
                f,
                "starts now with -t {}, in your reservation {reservation}",
                limit(*longest)
            ),
            Obstacle::TooLong { longest, then } => {
                write!(f, "starts now with -t {}: after that, {then}", limit(*longest))
            }
            Obstacle::Kept(kept_for) => kept_for.fmt(f),
            Obstacle::Cpu { node, wanted, free, of, offer } => {
                let (wants, has) = (cores(*wanted), plain_cores(*free));
                write!(f, "waits for {wants} on {node}, {has} are {}", free_in(*of))?;
                match free / 1_000 {
                    whole if *offer && whole > 0 => write!(f, "; starts now with -c {whole}"),
                    _ => Ok(()),
                }
            }
            Obstacle::Memory { node, wanted, free, of } => {
                let (wanted, free) = (bytes(*wanted), bytes(*free));
                write!(f, "waits for {wanted} of memory on {node}, {free} are {}", free_in(*of))
            }
            Obstacle::Taken(gpus) => few(f, gpus, ", "),
            Obstacle::Unfit(gpus) => few(f, gpus, "; "),
            Obstacle::Closed { node, why } => write!(f, "{node} is {why}"),
            Obstacle::Excluded { node, why } => write!(f, "not on {node}: {why}"),
            Obstacle::TooFewCores { node, has, wanted, of } => {
                write!(
                    f,
                    "{node} has {}{}, it wants {}",
                    cores(*has),
                    meant_for(*of),
                    cores(*wanted)
                )
            }
            Obstacle::TooLittleMemory { node, has, wanted, of } => {
                let (has, wanted) = (bytes(*has), bytes(*wanted));
                write!(f, "{node} has {has} of memory{}, it wants {wanted}", meant_for(*of))
            }
            Obstacle::TooFewGpus { node, has: 0, .. } => write!(f, "{node} has no such GPU"),
            Obstacle::TooFewGpus { node, has: 1, wanted } => {
                write!(f, "{node} has 1 such GPU, it wants {wanted}")
            }
            Obstacle::TooFewGpus { node, has, wanted } => {
                write!(f, "{node} has {has} such GPUs, it wants {wanted}")
            }
            Obstacle::Reservation(shut) => shut.fmt(f),
            Obstacle::BoundElsewhere => write!(f, "it is bound to another node"),
        }
    }
}

impl fmt::Display for KeptFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptFor::Reservation { gpu, owner, id } => {
                write!(f, "{gpu} is promised to {owner} ({id})")
            }
            KeptFor::Job { job, node } => {
                let job =
                    job.as_ref().map_or_else(|| "an earlier job".to_owned(), ToString::to_string);
                write!(f, "{node} is held for {job}, which is ahead in the queue")
            }
        }
    }
}

impl fmt::Display for TakenGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.gpus.split_first() else { return Ok(()) };
        write!(f, "{first}")?;
        for gpu in rest {
            write!(f, ",{}", gpu.index)?;
        }
        write!(f, " {} {}", if rest.is_empty() { "is" } else { "are" }, self.by)
    }
}

impl fmt::Display for TakenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TakenBy::Job { job, owner } => write!(f, "held by {job} ({owner})"),
            TakenBy::Reservation { id, owner } => write!(f, "reserved by {owner} ({id})"),
            TakenBy::Emptying { after, owner } => {
                write!(f, "being emptied after {after} ({owner})")
            }
            TakenBy::NotEmpty { after, owner } => {
                write!(f, "not empty yet: {} ({owner}) has ended and left something", after.job())
            }
            TakenBy::BeingEmptied => write!(f, "being emptied"),
            TakenBy::EarlierJob => write!(f, "meant for a job before it"),
        }
    }
}

impl fmt::Display for Emptying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Emptying::Reservation(id) => id.fmt(f),
            Emptying::Job(id) => id.fmt(f),
            Emptying::Attempt(id) => id.job().fmt(f),
        }
    }
}

impl fmt::Display for UnfitGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = &self.gpu;
        match &self.why {
            Unfit::Lost => write!(f, "{gpu} is lost"),
            Unfit::Silent => write!(f, "{gpu} does not answer"),
            Unfit::Degraded(message) => write!(f, "{gpu} is unhealthy: {message}"),
            Unfit::InUse(why) => write!(f, "{gpu} is in use without a lease: {why}"),
        }
    }
}

/// A time limit as it is typed, rounded down: `19h`, `95m`.
fn limit(longest: Millis) -> String {
    let minutes = longest.0 / 60_000;
    match (minutes / 60, minutes % 60) {
        (hours, part) if hours >= 10 || part == 0 => format!("{hours}h"),
        _ => format!("{minutes}m"),
    }
}

/// Thousandths of cores as people write them: `4`, `5.333`, `0.5`.
fn cores(millis: u64) -> String {
    format!("{} core{}", plain_cores(millis), if millis == 1_000 { "" } else { "s" })
}
