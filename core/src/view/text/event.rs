//! What an event says: the sentence that `fleet why` prints.

use std::fmt;

use super::offer::fmt_offer;
use super::reservation::{
    Edited, fmt_done, fmt_lapsed, fmt_moved, fmt_risk, fmt_unshared, fmt_wait_over, fmt_waits,
    window_from,
};
use super::{gpu_list, gpu_name, list};
use crate::checkpoint::{Content, Facts, Presence};
use crate::ending::{GpuHolder, HolderStep};
use crate::event::Event;
use crate::fair_share::gpu_hours;
use crate::gpu_use::MeasuredUse;
use crate::id::SeriesId;
use crate::job::JobDefaults;
use crate::limits::ReservationLimits;
use crate::name::{GpuUuid, GroupName, NodeName, ProjectName, UserName};
use crate::node::Liveness;
use crate::project::Project;
use crate::stay::Stay;
use crate::time::{Millis, Timestamp, Window};
use crate::view::Names;

/// The GPU by its name, which names the node too; else the node.
fn subject(names: &dyn Names, node: &NodeName, gpu: Option<&GpuUuid>) -> String {
    gpu.map_or_else(|| node.to_string(), |gpu| placed(names, node, std::slice::from_ref(gpu)))
}

/// `titan01:0, titan01:1`; the node too where a GPU has no name to say it.
pub(super) fn placed(names: &dyn Names, node: &NodeName, gpus: &[GpuUuid]) -> String {
    let gpu_names = gpu_list(names, gpus);
    match gpus.iter().all(|uuid| names.gpu(uuid).is_some_and(|name| name.node == *node)) {
        true if !gpus.is_empty() => gpu_names,
        _ => format!("{gpu_names} on {node}"),
    }
}

fn fmt_images_removal(
    f: &mut fmt::Formatter<'_>,
    by: &str,
    image: Option<&str>,
    node: &NodeName,
) -> fmt::Result {
    match image {
        Some(image) => write!(f, "{by} removes image {image} from {node}"),
        None => write!(f, "{by} removes all unused images from {node}"),
    }
}

fn fmt_removal(f: &mut fmt::Formatter<'_>, by: &str, node: &NodeName) -> fmt::Result {
    write!(f, "{by} removes it; {node} removes fleet's files beside its checkpoints first")
}

/// A job, or only the files; and why files that fleet wrote are left.
fn fmt_removed(
    f: &mut fmt::Formatter<'_>,
    by: Option<&str>,
    files_left: Option<&str>,
) -> fmt::Result {
    match by {
        Some(by) => write!(f, "removed by {by}"),
        None => f.write_str("its node removed fleet's files beside its checkpoints"),
    }?;
    files_left.map_or(Ok(()), |why| write!(f, "; not all of fleet's files were removed: {why}"))
}

fn fmt_served(f: &mut fmt::Formatter<'_>, stay: &Stay) -> fmt::Result {
    write!(f, "{} served it on its own, for {}", stay.node, stay.until.since(stay.from))
}

fn fmt_requeued(f: &mut fmt::Formatter<'_>, why: &str, from: Option<&str>) -> fmt::Result {
    match from {
        Some(path) => write!(f, "queued again ({why}), will continue from {path}"),
        None => write!(f, "queued again ({why}), from its beginning"),
    }
}

fn fmt_timed_out(f: &mut fmt::Formatter<'_>, why: Option<&str>) -> fmt::Result {
    match why {
        Some(why) => write!(f, "timed out: {why}"),
        None => write!(f, "stopped at its time limit"),
    }
}

fn fmt_measured(f: &mut fmt::Formatter<'_>, seen: &MeasuredUse) -> fmt::Result {
    let (measured, busy) = seen.sums();
    let length = seen.until.since(seen.from);
    let (measured, busy) = (gpu_hours(measured), gpu_hours(busy));
    write!(f, "{} measured {measured} GPU-hours within {length}: {busy} used", seen.node)
}

fn fmt_released(f: &mut fmt::Formatter<'_>, gpus: &str, declared_by: Option<&str>) -> fmt::Result {
    match declared_by {
        None => write!(f, "{gpus} checked: no process left, free"),
        Some(by) => write!(f, "{gpus} declared free by {by}, not proven empty"),
    }
}

fn fmt_order_taken(
    f: &mut fmt::Formatter<'_>,
    saves_nothing: bool,
    checkpoint_seq: u64,
) -> fmt::Result {
    match saves_nothing {
        true => write!(f, "the node knows that the job must leave"),
        false => write!(
            f,
            "the node stops the job after its next checkpoint, which is later than number {checkpoint_seq}"
        ),
    }
}

fn fmt_evicted(
    f: &mut fmt::Formatter<'_>,
    causes: &[String],
    after_checkpoint: Option<u64>,
    saves_nothing: bool,
) -> fmt::Result {
    let causes = list(causes);
    match (after_checkpoint, saves_nothing) {
        (Some(seq), _) => write!(f, "evicted after checkpoint {seq} ({causes})"),
        (None, true) => write!(f, "evicted without a checkpoint, as it declares none ({causes})"),
        (None, false) => {
            write!(f, "evicted without a new checkpoint: the wait is over ({causes})")
        }
    }
}

fn fmt_deferred(
    f: &mut fmt::Formatter<'_>,
    causes: &[String],
    saves_nothing: bool,
    is_limited: bool,
) -> fmt::Result {
    let causes = list(causes);
    match (saves_nothing, is_limited) {
        (false, _) => write!(f, "the job will move after its next checkpoint ({causes})"),
        (true, true) => write!(
            f,
            "the job must leave ({causes}); it declares no checkpoint, so it runs until the deadline"
        ),
        (true, false) => write!(
            f,
            "the job should leave ({causes}); it declares no checkpoint, so it may finish"
        ),
    }
}

fn fmt_recorded(f: &mut fmt::Formatter<'_>, number: u64, path: &str, facts: &Facts) -> fmt::Result {
    let what = if facts.content.is_torn() { "does not count" } else { "saved" };
    write!(f, "checkpoint {number} {what}: {path}")?;
    fmt_facts(f, facts)
}

/// Only what is out of the ordinary.
fn fmt_facts(f: &mut fmt::Formatter<'_>, facts: &Facts) -> fmt::Result {
    if let Some(rule) = &facts.rule {
        write!(f, " (rule {rule}")?;
        facts.step.map_or(Ok(()), |step| write!(f, ", step {step}"))?;
        write!(f, ", {}", facts.condition())?;
        write!(f, ")")?;
    }
    Ok(())
}

/// What became of a checkpoint.
fn changed_to(content: Option<&Content>, presence: Option<Presence>) -> String {
    match (content, presence) {
        (Some(Content::Torn { why }), _) => format!("torn: {why}"),
        (_, Some(Presence::Gone)) => "gone".to_owned(),
        (_, Some(Presence::Aside)) => "moved aside".to_owned(),
        (_, Some(Presence::There)) => "back under its name".to_owned(),
        (_, Some(Presence::Kept)) => "overwritten or deleted; fleet has kept it".to_owned(),
        (Some(content), None) => content.word().to_owned(),
        (None, None) => "as it was".to_owned(),
    }
}

fn fmt_step_back(
    f: &mut fmt::Formatter<'_>,
    from: Option<u64>,
    to: Option<u64>,
    why: &str,
) -> fmt::Result {
    write!(f, "failed soon after its resume ({why})")?;
    from.map_or(Ok(()), |number| write!(f, " from checkpoint {number}"))?;
    match to {
        Some(number) => write!(f, ": next try from checkpoint {number}"),
        None => write!(f, ": no earlier checkpoint is left"),
    }
}

fn fmt_resumed(
    f: &mut fmt::Formatter<'_>,
    path: &str,
    number: Option<u64>,
    (found, from_kept): (bool, bool),
) -> fmt::Result {
    match (path, number) {
        ("", _) => write!(f, "starts from the beginning")?,
        (path, Some(number)) => write!(f, "resumes from checkpoint {number}: {path}")?,
        (path, None) => write!(f, "resumes from {path}")?,
    }
    if found {
        write!(f, ", found in the directory: no agent had reported it")?;
    }
    if from_kept {
        write!(f, ", which fleet had kept and put back under its name")?;
    }
    Ok(())
}

/// What was not taken, and what was moved out of the way.
fn fmt_cleared(
    f: &mut fmt::Formatter<'_>,
    passed: &[String],
    aside: u64,
    aside_bytes: u64,
) -> fmt::Result {
    if !passed.is_empty() {
        write!(f, "; skipped {}", list(passed))?;
    }
    if aside > 0 {
        let checkpoints =
            if aside == 1 { "1 checkpoint".to_owned() } else { format!("{aside} checkpoints") };
        write!(f, "; moved {checkpoints} ({} MiB) aside", aside_bytes / (1024 * 1024))?;
    }
    Ok(())
}

fn fmt_draining(
    f: &mut fmt::Formatter<'_>,
    node: &NodeName,
    by: &str,
    reason: &str,
) -> fmt::Result {
    write!(f, "{node} is to be emptied, by {by}: {reason}")
}

fn fmt_frozen(f: &mut fmt::Formatter<'_>, affected: u32, of: u32) -> fmt::Result {
    write!(f, "automatic evictions frozen: {affected} of {of} nodes went bad at once")
}

/// The processes on GPUs that are no longer, or never were, their users', and what is done about them.
fn fmt_holders(
    f: &mut fmt::Formatter<'_>,
    names: &dyn Names,
    node: &NodeName,
    is_after_reservation: bool,
    step: HolderStep,
    holders: &[GpuHolder],
) -> fmt::Result {
    let step = match step {
        HolderStep::Left => "is left alone",
        HolderStep::Asked => "is asked to end",
        HolderStep::Killed => "did not end when asked, and is killed",
    };
    let whose = match is_after_reservation {
        true => "after the end of the reservation",
        false => "without a lease",
    };
    let named =
        holders.iter().map(|holder| format!("{holder} on {}", gpu_name(names, &holder.gpu)));
    write!(f, "{node}, {whose}: {} {step}", list(&named.collect::<Vec<_>>()))
}

fn fmt_pruned(f: &mut fmt::Formatter<'_>, by: &str, event: &Event) -> fmt::Result {
    let Event::AuditPruned { through, hash, records, .. } = event else { return Ok(()) };
    write!(
        f,
        "{by} pruned {records} audit records, up to record {through}; that record had hash {hash}"
    )
}

fn fmt_defaults(
    f: &mut fmt::Formatter<'_>,
    defaults: &JobDefaults,
    before: &JobDefaults,
    by: &str,
) -> fmt::Result {
    write!(f, "defaults for jobs set by {by}: {defaults}; they were: {before}")
}

fn fmt_limits(
    f: &mut fmt::Formatter<'_>,
    group: &GroupName,
    limits: &Option<ReservationLimits>,
    by: &str,
) -> fmt::Result {
    write!(f, "limits on reservations of group {group} ")?;
    match limits {
        Some(limits) => write!(f, "set by {by}: {limits}"),
        None => write!(f, "removed by {by}"),
    }
}

fn fmt_project(
    f: &mut fmt::Formatter<'_>,
    name: &ProjectName,
    now: &Option<Project>,
    before: &Option<Project>,
    by: &str,
) -> fmt::Result {
    match (now, before) {
        (Some(now), None) => write!(f, "project {name} created by {by}: {now}"),
        (Some(now), Some(before)) => {
            write!(f, "project {name} changed by {by}: {now}; it was: {before}")
        }
        (None, _) => write!(f, "project {name} removed by {by}"),
    }
}

fn fmt_half_life(
    f: &mut fmt::Formatter<'_>,
    half_life: Millis,
    before: Millis,
    by: &str,
) -> fmt::Result {
    write!(f, "use counts half after {half_life}, set by {by}; it was {before}")
}

fn fmt_liveness(f: &mut fmt::Formatter<'_>, node: &NodeName, liveness: Liveness) -> fmt::Result {
    match liveness {
        Liveness::Ready => write!(f, "{node} is heard again"),
        Liveness::Suspect => write!(f, "{node} is silent; nothing new is placed on it"),
        Liveness::Unreachable => write!(f, "{node} is unreachable; its work is left alone"),
    }
}

/// With the fleet's default, where that counts.
fn fmt_queued(
    f: &mut fmt::Formatter<'_>,
    owner: &UserName,
    stop_after: Option<Millis>,
) -> fmt::Result {
    write!(f, "queued by {owner}")?;
    let default = |after| write!(f, ", --stop-after {after} (the fleet's default)");
    stop_after.map_or(Ok(()), default)
}

fn fmt_placed(
    f: &mut fmt::Formatter<'_>,
    names: &dyn Names,
    node: &NodeName,
    gpus: &[GpuUuid],
    resume_from: Option<&str>,
) -> fmt::Result {
    match gpus {
        [] => write!(f, "placed on {node}")?,
        gpus => write!(f, "placed on {}", placed(names, node, gpus))?,
    }
    resume_from.map_or(Ok(()), |path| write!(f, ", to continue from {path}"))
}

fn fmt_clear_ordered(
    f: &mut fmt::Formatter<'_>,
    gpu: &str,
    by: &str,
    reason: &str,
    kinds: &[String],
) -> fmt::Result {
    write!(f, "{gpu}: {} cleared by {by}", list(kinds))?;
    if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
}

/// The story says that a node's report was late if it came at least this long after the event.
const SAID_LATE: Millis = Millis::secs(10);

impl Event {
    /// The sentence in a story, for something that happened then: with the times that it sets, as lengths from there.
    pub fn told(&self, then: Timestamp, names: &dyn Names) -> String {
        let length = |until: &Timestamp| until.since(then);
        let sentence = Sentence { event: self, names };
        match self {
            Event::NodeDraining { deadline: Some(deadline), .. } if *deadline <= then => {
                format!("{sentence}; what runs there is stopped at once")
            }
            Event::NodeDraining { deadline: Some(deadline), .. } => {
                format!("{sentence}; what still runs in {} is stopped", length(deadline))
            }
            Event::ReservationExtended { ends_at, .. } => {
                format!("the reservation ends in {} now", length(ends_at))
            }
            Event::ReservationWentOn { ends_at, .. } => {
                format!("{sentence}; it ends in {} now", length(ends_at))
            }
            Event::Idle(event) => event.told(then),
            Event::Offer(event) => event.told(then, names),
            Event::ReservationEdited { by, edit, waits_for, .. } => {
                Edited { by, edit, waits_for: waits_for.as_ref(), then: Some(then), names }
                    .to_string()
            }
            Event::ReservationEditDone { starts_at, ends_at, .. } => {
                let window = Window { starts_at: *starts_at, ends_at: *ends_at };
                format!("{sentence}, {}", window_from(then, window))
            }
            Event::ReservationWaits { latest_start, .. } => {
                format!("{sentence}; it begins within {}, or not at all", length(latest_start))
            }
            Event::ReservationCreated { starts_at, ends_at, .. } => {
                let (begins, lasts) = (starts_at.since(then), ends_at.since(*starts_at));
                match begins {
                    Millis::ZERO => format!("{sentence}, for {lasts}"),
                    begins => format!("{sentence}, in {begins} for {lasts}"),
                }
            }
            // The node said so later.
            Event::WindowOpenedByNode { at, .. } | Event::WindowClosedByNode { at, .. }
                if then.since(*at) >= SAID_LATE =>
            {
                format!("{sentence} (reported {} later)", then.since(*at))
            }
            Event::JobQueued { begin: Some(begin), .. } if *begin > then => {
                format!("{sentence}; it begins in {} at the earliest (--begin)", length(begin))
            }
            Event::JobTimeLimitSet { ends_at: Some(ends_at), .. } => {
                format!("{sentence}: it ends in {}", length(ends_at))
            }
            _ => sentence.to_string(),
        }
    }
}

/// Who shares a new reservation, and of which series it is.
fn fmt_company(
    f: &mut fmt::Formatter<'_>,
    with: &[UserName],
    series: Option<&SeriesId>,
) -> fmt::Result {
    if !with.is_empty() {
        write!(f, ", shared with {}", list(with))?;
    }
    series.map_or(Ok(()), |series| write!(f, ", a date of {series}"))
}

/// An event, and the source of the names that people use for its GPUs.
struct Sentence<'a> {
    event: &'a Event,
    names: &'a dyn Names,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt_with(f, self.names)
    }
}

impl Event {
    fn fmt_with(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        use Event as E;
        match self {
            E::ClusterInitialised { cluster, incarnation } => {
                write!(f, "cluster {cluster} begun, incarnation {incarnation}")
            }
            E::ClusterVersionSet { version } => write!(f, "cluster version is now {version}"),
            E::ClockReset { .. } => write!(f, "the fleet's clock was set back"),
            E::NodeRegistered { node, gpus, .. } => write!(f, "{node} joined with {gpus} GPUs"),
            E::NodeRebooted { node, .. } => write!(f, "{node} rebooted"),
            E::NodeFactsChanged { node, what } => write!(f, "{node}: {what}"),
            E::NodeCordoned { node, by, reason } => write!(f, "{node} cordoned by {by}: {reason}"),
            E::NodeUncordoned { node, by } => write!(f, "{node} takes work again (by {by})"),
            E::NodeDraining { node, by, reason, .. } => fmt_draining(f, node, by, reason),
            E::NodeDrained { node } => write!(f, "{node} is empty"),
            E::NodeSuspended { node, reason } => write!(f, "{node} suspended: {reason}"),
            E::LivenessChanged { node, liveness } => fmt_liveness(f, node, *liveness),
            E::ConditionRaised { node, gpu, severity, message, .. }
            | E::ConditionChanged { node, gpu, severity, message, .. } => {
                let (what, severity) = (subject(names, node, gpu.as_ref()), severity.word());
                write!(f, "{what}: {severity} ({message})")
            }
            E::ConditionCleared { node, gpu, kind } => {
                write!(f, "{}: {kind} is over", subject(names, node, gpu.as_ref()))
            }
            E::EvictionsFrozen { affected, of } => fmt_frozen(f, *affected, *of),
            E::EvictionsThawed { by } => {
                write!(f, "automatic evictions are allowed again, by {by}")
            }
            E::GpuClearOrdered { node, gpu, by, reason, kinds } => {
                fmt_clear_ordered(f, &subject(names, node, Some(gpu)), by, reason, kinds)
            }
            E::GpuDeclaredFree { gpu, by, reason } => {
                write!(f, "{} declared free by {by}: {reason}", gpu_name(names, gpu))
            }
            E::ImagesRemovalOrdered { node, image, by } => {
                fmt_images_removal(f, by, image.as_deref(), node)
            }
            E::GpuRenamed { node, from, index, .. } => {
                write!(f, "the card that was {from} is {node}:{index} from now on")
            }
            E::GpuForgotten { node, index, by, reason, .. } => {
                write!(f, "{node}:{index} was forgotten by {by}: {reason}")
            }
            E::GpuReplacementAwaited { gpu, by, reason, .. } => {
                let gpu = gpu_name(names, gpu);
                write!(f, "the next card in the slot of {gpu} takes its place, by {by}: {reason}")
            }
            E::ReservationCreated { owner, node, gpus, with, series, adopts, .. } => {
                write!(f, "reserved for {owner}")?;
                fmt_company(f, with, series.as_ref())?;
                write!(f, ": {}", placed(names, node, gpus))?;
                if *adopts { write!(f, ", with what runs there already") } else { Ok(()) }
            }
            E::ReservationUnshared { user, .. } => fmt_unshared(f, user),
            E::ReservationWaits { owner, gpus, place, .. } => fmt_waits(f, owner, gpus, *place),
            E::ReservationWaitOver { why, .. } => fmt_wait_over(f, why),
            E::ReservationExtended { .. } => write!(f, "reservation extended"),
            E::ReservationEdited { by, edit, waits_for, .. } => {
                Edited { by, edit, waits_for: waits_for.as_ref(), then: None, names }.write(f)
            }
            E::ReservationEditDone { node, gpus, .. } => fmt_done(f, &placed(names, node, gpus)),
            E::ReservationEditLapsed { node, .. } => fmt_lapsed(f, node),
            E::ReservationMoved { node, gpus, why, waits_for, .. } => {
                fmt_moved(f, &placed(names, node, gpus), why, waits_for.as_ref())
            }
            E::ReservationStarted { owner, gpus, .. } => {
                write!(f, "reservation of {owner} started: {}", gpu_list(names, gpus))
            }
            E::ReservationDelayed { why, .. } => write!(f, "reservation cannot start yet: {why}"),
            E::ReservationEnding { why, .. } => write!(f, "reservation is ending: {why}"),
            E::ReservationEnded { .. } => write!(f, "reservation ended"),
            E::ReservationLost { owner, node, gpus, .. } => write!(
                f,
                "reservation of {owner} for {} is lost: it was made after the backup",
                placed(names, node, gpus)
            ),
            E::AttemptAdopted { allocation, node, job_was_known, .. } => {
                write!(f, "{allocation} found on {node} after the restore, and continues")?;
                if *job_was_known { Ok(()) } else { write!(f, "; the backup did not know its job") }
            }
            E::NodeCounted { node } => {
                write!(f, "{node} has said what it runs, after the restore")
            }
            E::ReservationCancelled { by, .. } => write!(f, "reservation cancelled by {by}"),
            E::WindowHandedOut { node, .. } => {
                write!(f, "{node} received the reservation and keeps it even without controllers")
            }
            E::WindowTaken { node, .. } => write!(f, "{node} saved the reservation on its disk"),
            E::WindowWithdrawn { node, by, .. } => {
                write!(f, "to be cancelled, by {by}; until {node} confirms it, it counts as given")
            }
            E::WindowOpenedByNode { node, .. } => {
                write!(f, "{node} opened it on its own: no controller answered")
            }
            E::WindowClosedByNode { node, .. } => {
                write!(f, "{node} closed it on its own: no controller answered")
            }
            E::WindowAdopted { owner, node, gpus, granted: Some(grant), .. } => write!(
                f,
                "granted to {owner} on {node} by {} while no controller answered: {} ({})",
                grant.by,
                gpu_list(names, gpus),
                grant.reason
            ),
            E::WindowAdopted { owner, node, gpus, granted: None, .. } => {
                let gpus = gpu_list(names, gpus);
                write!(f, "{node} holds it for {owner}: {gpus}; taken over from there")
            }
            E::EnforcementSwitched { node, switch } => write!(
                f,
                "{node}: enforcement without controllers set to {} by {}: {}",
                switch.mode.word(),
                switch.by,
                switch.reason
            ),
            E::NodeEnforcementSet { node, mode, before, by } => write!(
                f,
                "{node}: enforcement set to {} by {by}, it was {}",
                mode.word(),
                before.word()
            ),
            E::NodeRebootAsked { node, by, reason } => {
                write!(f, "{node} will reboot once it is empty, ordered by {by}")?;
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
            E::NodeRebootCancelled { node, by } => {
                write!(f, "planned reboot of {node} cancelled by {by}")
            }
            E::NodeRebootBegun { node } => write!(f, "{node} is empty and reboots now"),
            E::NodeRebootFailed { node, why } => write!(f, "{node} cannot reboot: {why}"),
            E::NodeRebootDone { node } => write!(f, "{node} rebooted as planned"),
            E::AuditPruned { by, .. } => fmt_pruned(f, by, self),
            E::JobDefaultsSet { defaults, before, by } => fmt_defaults(f, defaults, before, by),
            E::ReservationRulesSet { rules, before, by } => {
                write!(f, "rules for reservations set by {by}: {rules}; they were: {before}")
            }
            E::ReservationLimitsSet { group, limits, by } => fmt_limits(f, group, limits, by),
            E::ProjectSet { project, now, before, by } => fmt_project(f, project, now, before, by),
            E::HalfLifeSet { half_life, before, by } => fmt_half_life(f, *half_life, *before, by),
            E::ReservationAtEndSet { at_end, by, .. } => {
                write!(f, "at its end {}, by {by}", at_end.word())
            }
            E::HoldersSeen { node, reservation, step, holders } => {
                fmt_holders(f, names, node, reservation.is_some(), *step, holders)
            }
            E::ReservationUsed { node, .. } => write!(f, "its GPUs on {node} are in use"),
            E::ReservationWentOn { .. } => {
                write!(f, "reservation extended: it is in use, and nobody else reserved its GPUs")
            }
            E::ReservationNotUsed { owner, node, after, .. } => {
                write!(f, "released: {owner} did not use it on {node} within {after}")
            }
            E::JobQueued { owner, stop_after, .. } => fmt_queued(f, owner, *stop_after),
            E::JobPlaced { node, gpus, resume_from, owner, .. } => {
                fmt_placed(f, names, node, gpus, resume_from.as_deref())?;
                write!(f, ", for {owner}")
            }
            E::JobStarted { allocation, image, at_most, .. } => {
                write!(f, "{allocation} runs")?;
                if let Some(image) = image {
                    write!(f, " from image {}", image.digest)?;
                    image.note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"))?;
                }
                match at_most {
                    None => Ok(()),
                    Some(Millis::ZERO) => {
                        write!(f, ", too late: its GPUs are promised to somebody by now")
                    }
                    Some(most) => {
                        write!(f, ", for {most} at most: its GPUs are promised after that")
                    }
                }
            }
            E::CheckpointRecorded { path, number, facts, .. } => {
                fmt_recorded(f, *number, path, &facts.facts)
            }
            E::CheckpointChanged { number, path, content, presence, .. } => {
                write!(f, "checkpoint {number} ({path}) is ")?;
                f.write_str(&changed_to(content.as_ref(), *presence))
            }
            E::CheckpointNoted { note, .. } => write!(f, "{note}"),
            E::CheckpointAsked { by, .. } => write!(f, "{by} asked for a checkpoint"),
            E::JobResumed {
                path, number, passed, aside, aside_bytes, found, from_kept, ..
            } => {
                fmt_resumed(f, path, *number, (*found, *from_kept))?;
                fmt_cleared(f, passed, *aside, *aside_bytes)
            }
            E::JobSteppedBack { from, to, why, .. } => fmt_step_back(f, *from, *to, why),
            E::JobAsksOwner { why, .. } => write!(f, "waits for its owner: {why}"),
            E::JobRestarted { by, from, .. } => write!(f, "restarted by {by}, {from}"),
            E::JobRemovalOrdered { by, node, .. } => fmt_removal(f, by, node),
            E::JobRemoved { by, files_left, .. } => fmt_removed(f, Some(by), files_left.as_deref()),
            E::JobFilesRemoved { files_left, .. } => fmt_removed(f, None, files_left.as_deref()),
            E::EvictionDeferred { causes, deadline, saves_nothing, .. } => {
                fmt_deferred(f, causes, *saves_nothing, deadline.is_some())
            }
            E::DeferralTaken { saves_nothing, checkpoint_seq, .. } => {
                fmt_order_taken(f, *saves_nothing, *checkpoint_seq)
            }
            E::DeferralCancelled { waited, .. } => {
                write!(f, "the eviction was cancelled after {waited}: its cause is gone")
            }
            E::DeferralHeldBack { why, .. } => write!(f, "runs on where it is: {why}"),
            E::EvictionStarted { causes, after_checkpoint, saves_nothing, .. } => {
                fmt_evicted(f, causes, *after_checkpoint, *saves_nothing)
            }
            E::JobStopping { why, .. } => write!(f, "told to stop: {why}"),
            E::AttemptEnded { allocation, end, .. } => write!(f, "{allocation} ended: {end}"),
            E::JobRequeued { why, resume_from, .. } => fmt_requeued(f, why, resume_from.as_deref()),
            E::NodeExcluded { node, why, .. } => write!(f, "not on {node} again: {why}"),
            E::ExclusionLifted { node, why, .. } => write!(f, "may go to {node} again: {why}"),
            E::JobCompleted { exit_code, .. } => write!(f, "completed, exit code {exit_code}"),
            E::JobFailed { why, .. } => write!(f, "failed: {why}"),
            E::JobCancelled { by, .. } => write!(f, "cancelled by {by}"),
            E::JobTimedOut { why, .. } => fmt_timed_out(f, why.as_deref()),
            E::JobTimeLimitSet { limit, by, .. } => write!(f, "time limit set to {limit} by {by}"),
            E::GpusReleased { node, gpus, declared_by, .. } => {
                fmt_released(f, &placed(names, node, gpus), declared_by.as_deref())
            }
            E::ServedByNode(stay) => fmt_served(f, stay),
            E::GpuUseMeasured(seen) => fmt_measured(f, seen),
            E::JoinTokenCreated { names, .. } => write!(f, "join token made for {}", list(names)),
            E::JoinTokenRedeemed { node, .. } => write!(f, "join token used by {node}"),
            E::TokenWithdrawn { by, .. } => write!(f, "token withdrawn by {by}"),
            E::ControllerTokenCreated { .. } => write!(f, "token made for one more controller"),
            E::ControllerAdmitted { controller, address, .. } => {
                write!(f, "controller {controller} at {address} admitted")
            }
            E::ControllerRemoved { controller, by } => {
                write!(f, "controller {controller} removed by {by}")
            }
            E::RequestsRefused { principal, action, code, count } => {
                write!(f, "{count} × {action} by {principal} refused: {code}")
            }
            E::Access(event) => write!(f, "{event}"),
            E::Authority(event) => write!(f, "{event}"),
            E::Preemption(event) => write!(f, "{event}"),
            E::Hold(event) => write!(f, "{event}"),
            E::Idle(event) => write!(f, "{event}"),
            E::Risk(event) => fmt_risk(f, event, names),
            E::Approval(event) => write!(f, "{event}"),
            E::Offer(event) => fmt_offer(f, event, names),
            E::Notice(event) => write!(f, "{event}"),
        }
    }
}
