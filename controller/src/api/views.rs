//! The state as users see it: from the core's types to the API's, joined with what only the leader's
//! memory knows (measurements, when a node was heard, the plan).

use std::collections::BTreeMap;

use fleet_core::access::CertificateHolder;
use fleet_core::allocation::Allocation;
use fleet_core::calendar::HeldPlace;
use fleet_core::checkpoint::{Checkpoint, Content, Facts};
use fleet_core::ending::ReservationRules;
use fleet_core::fsm::ApprovalEffect;
use fleet_core::gpu::Gpu;
use fleet_core::health::{Condition, ConditionStatus, Health, NOT_ANSWERING, Subject};
use fleet_core::id::ReservationId;
use fleet_core::job::{Job, JobDefaults, JobState};
use fleet_core::lease::LeaseHolder;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::node::{Liveness, Node};
use fleet_core::offer::OFFERS_MAX;
use fleet_core::reboot::RebootAnswer;
use fleet_core::reservation::{Place, Reservation, ReservationState};
use fleet_core::scheduler::Plan;
use fleet_core::view::reservation::Listed;
use fleet_core::view::{self, GpuReason, GpuState, JobReason, NamesAt};
use fleet_core::waitlist::Waiter;
use fleet_core::{Fsm, Rejection, Timestamp};
use fleet_proto::convert::wish::job_spec_to_wire;
use fleet_proto::v1;

use super::{in_use, unheard};
use crate::sessions::Sessions;

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn millis(value: Option<Timestamp>) -> u64 {
    value.map_or(0, |at| at.0)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn condition(c: &Condition) -> v1::Condition {
    let gpu_uuid = match &c.subject {
        Subject::Node => String::new(),
        Subject::Gpu(uuid) => uuid.to_string(),
    };
    v1::Condition {
        kind: c.kind.to_string(),
        status: c.status.word().to_owned(),
        severity: c.severity.word().to_owned(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        since_unix_ms: c.since.0,
        sticky: c.sticky,
        clearable: c.is_told(),
        gpu_uuid,
    }
}

/// Conditions worth showing: what holds, and what is not known.
fn shown(c: &&Condition) -> bool {
    c.status != ConditionStatus::False
}

pub(super) fn node(fsm: &Fsm, sessions: &Sessions, node: &Node) -> v1::Node {
    let on_node: Vec<&Allocation> =
        fsm.allocations().values().filter(|a| a.node == node.name).collect();
    let reason = match (&node.suspended, &node.cordon) {
        (Some(why), _) => why.clone(),
        (None, Some(cordon)) => format!("{} (by {})", cordon.reason, cordon.by),
        (None, None) => unheard::of(sessions, node).unwrap_or_default(),
    };
    let free =
        node.gpus.iter().filter_map(|uuid| fsm.gpu(uuid)).filter(|g| is_free(fsm, g)).count();
    v1::Node {
        name: node.name.to_string(),
        state: view::node::node(fsm, node).word().to_owned(),
        reason,
        cpu_millis: node.facts.cpu_millis,
        cpu_millis_used: on_node.iter().map(|a| a.cpu_millis).sum(),
        memory_bytes: node.facts.memory_bytes,
        memory_bytes_used: on_node.iter().map(|a| a.memory_bytes).sum(),
        gpus: count(node.gpus.len()),
        gpus_free: count(free),
        conditions: node.conditions.iter().filter(shown).map(condition).collect(),
        kernel: node.facts.kernel.clone(),
        os: node.facts.os.clone(),
        driver: node.facts.driver.clone().unwrap_or_default(),
        agent_version: node.facts.agent_version.clone(),
        boot_id: node.facts.boot_id.clone(),
        registered_at_unix_ms: node.registered_at.0,
        heard_at_unix_ms: millis(sessions.heard_at(&node.name)),
        gpu_problem: node.facts.gpu_problem.clone().unwrap_or_default(),
        jobs: on_node.iter().map(|a| a.job.to_string()).collect(),
        vouches: fsm.access().vouching_of(&node.name).word().to_owned(),
        certificate_ends_at_unix_ms: millis(fsm.access().newest_ends(&node.name)),
        enforce: node.enforcement_ordered().word().to_owned(),
        enforced: enforced(Some(node)),
        foreign: node
            .facts
            .enforced
            .as_ref()
            .and_then(|enforced| enforced.foreign)
            .map(|policy| policy.word().to_owned())
            .unwrap_or_default(),
        enforced_problem: node
            .facts
            .enforced
            .as_ref()
            .and_then(|enforced| enforced.problem.clone())
            .unwrap_or_default(),
        reboot: reboot(fsm, sessions, node),
        enforced_fallback: node
            .facts
            .enforced
            .as_ref()
            .and_then(|enforced| enforced.fallback)
            .map(|fallback| fallback.word().to_owned())
            .unwrap_or_default(),
    }
}

fn reboot(fsm: &Fsm, sessions: &Sessions, node: &Node) -> Option<v1::NodeReboot> {
    let wish = node.reboot.as_ref()?;
    let mut waits_for = fsm.reboot_waits_for(node);
    // The order is given without them: it is the agent that does not go past them.
    let measured = node.gpus.iter().filter_map(|uuid| sessions.measured(&node.name, uuid.as_str()));
    waits_for.extend(without_lease(measured.flat_map(|(gpu, _)| gpu.processes)));
    Some(v1::NodeReboot {
        by: wish.by.clone(),
        reason: wish.reason.clone(),
        since_unix_ms: wish.since.0,
        waits_for,
        begun: wish.answer == Some(RebootAnswer::Begun),
        problem: fsm.reboot_problem(node).unwrap_or_default().to_owned(),
    })
}

/// Those of them that no lease explains, each once. One without a name is listed and does not exist.
fn without_lease(processes: impl Iterator<Item = v1::MeasuredProcess>) -> Vec<String> {
    let foreign = processes.filter(|p| p.foreign_since_unix_ms > 0 && !p.name.is_empty());
    let by_pid: BTreeMap<u32, v1::MeasuredProcess> = foreign.map(|p| (p.pid, p)).collect();
    by_pid.into_values().map(|p| format!("{} (pid {}) of {}", p.name, p.pid, p.user)).collect()
}

/// What the node says it does; nothing where it said nothing.
fn enforced(node: Option<&Node>) -> String {
    let enforced = node.and_then(|node| node.facts.enforced.as_ref());
    enforced.map_or(String::new(), |enforced| enforced.mode.word().to_owned())
}

pub(super) fn user(fsm: &Fsm, name: &UserName) -> v1::User {
    let account = fsm.access().accounts.get(name);
    let disabled = account.and_then(|a| a.disabled.as_ref());
    let holder = CertificateHolder::User { name: name.clone() };
    let jobs = || fsm.jobs().values().filter(|j| j.owner == *name && !j.state.is_final());
    let queued = jobs().filter(|j| j.state == JobState::Queued).count();
    let open = fsm.open_reservations().filter(|r| r.owner == *name);
    v1::User {
        name: name.to_string(),
        state: view::user::user(account).word().to_owned(),
        disabled_by: disabled.map(|d| d.by.clone()).unwrap_or_default(),
        reason: disabled.map(|d| d.reason.clone()).unwrap_or_default(),
        disabled_at_unix_ms: millis(disabled.map(|d| d.at)),
        first_seen_unix_ms: millis(account.map(|a| a.first_seen)),
        last_seen_unix_ms: millis(account.map(|a| a.last_seen)),
        certificates: count(fsm.access().valid_of(&holder, fsm.now())),
        jobs_running: count(jobs().count() - queued),
        jobs_queued: count(queued),
        reservations: count(open.count()),
    }
}

/// Whether the GPU could be given to somebody now.
pub(super) fn is_free(fsm: &Fsm, gpu: &Gpu) -> bool {
    view::gpu::gpu(fsm, gpu).0 == GpuState::Free
}

fn gpu_health(node: Option<&Node>, gpu: &Gpu, unheard: bool) -> Health {
    // What was known of a node that is not heard is old.
    let heard = node.filter(|node| node.liveness == Liveness::Ready && !unheard);
    let Some(node) = heard else { return Health::Unknown };
    let conditions: Vec<&Condition> = node.conditions_for(&gpu.uuid).collect();
    Health::of(conditions.iter().copied(), gpu.presence)
}

pub(super) fn gpu(fsm: &Fsm, sessions: &Sessions, gpu: &Gpu) -> v1::Gpu {
    let node = fsm.node(&gpu.node);
    let (state, reason) = view::gpu::gpu(fsm, gpu);
    let reason = reason.map(|reason| unanswered(node, gpu, &reason).unwrap_or(reason.to_string()));
    let left = (state == GpuState::Releasing).then(|| in_use::left_on(sessions, gpu)).flatten();
    let reason = match (reason, left) {
        (Some(reason), Some(left)) => format!("{reason}, but {left}"),
        (reason, None) => reason.unwrap_or_default(),
        (None, Some(left)) => left,
    };
    let unheard = node.and_then(|node| unheard::of(sessions, node));
    let reason = match &unheard {
        Some(unheard) if reason.is_empty() => format!("{} {unheard}", gpu.node),
        Some(_) | None => reason,
    };
    let hold = fsm.hold(&gpu.uuid);
    let top = hold.and_then(|hold| fsm.lease(&hold.lease));
    let child = hold.and_then(|hold| hold.child.as_ref()).and_then(|id| fsm.lease(id));
    let mut reservation = String::new();
    let mut job = String::new();
    let mut until = None;
    for lease in [top, child].into_iter().flatten() {
        match &lease.holder {
            LeaseHolder::Reservation(id) => {
                reservation = id.to_string();
                until = fsm.reservation(id).map(|r| r.window.ends_at);
            }
            LeaseHolder::Allocation(id) => {
                let allocation = fsm.allocation(id);
                job = text(allocation.map(|a| &a.job));
                until = until.or_else(|| view::job::ends_by(fsm, allocation?));
            }
        }
    }
    let conditions = node.into_iter().flat_map(|node| node.conditions.iter());
    let own = |c: &&Condition| matches!(&c.subject, Subject::Gpu(uuid) if *uuid == gpu.uuid);
    v1::Gpu {
        uuid: gpu.uuid.to_string(),
        node: gpu.node.to_string(),
        index: gpu.index,
        model: gpu.model.clone(),
        product: gpu.product.clone(),
        memory_bytes: gpu.memory_bytes,
        state: state.word().to_owned(),
        held_by: text(top.map(|lease| &lease.owner)),
        reservation,
        job,
        held_until_unix_ms: millis(until),
        health: gpu_health(node, gpu, unheard.is_some()).word().to_owned(),
        conditions: conditions.filter(own).filter(shown).map(condition).collect(),
        reason,
        r#use: gpu_use(sessions, gpu),
        enforced: enforced(node),
        driver_index: gpu.driver_index,
    }
}

/// What the agent says of a GPU that the driver does not answer for: what hung, and when it is tried again.
fn unanswered(node: Option<&Node>, gpu: &Gpu, reason: &GpuReason) -> Option<String> {
    let node = node.filter(|_| *reason == GpuReason::DriverSilent)?;
    let mut own = node.conditions_for(&gpu.uuid);
    own.find(|condition| condition.kind == NOT_ANSWERING).map(|condition| condition.reason.clone())
}

fn gpu_use(sessions: &Sessions, gpu: &Gpu) -> Option<v1::GpuUse> {
    let (measured, at) = sessions.measured(&gpu.node, gpu.uuid.as_str())?;
    let process = |p: v1::MeasuredProcess| v1::GpuProcess {
        pid: p.pid,
        user: p.user,
        name: p.name,
        memory_used_bytes: p.memory_used_bytes,
        foreign_since_unix_ms: p.foreign_since_unix_ms,
        exempt: p.exempt,
    };
    Some(v1::GpuUse {
        utilization_percent: measured.utilization_percent,
        memory_used_bytes: measured.memory_used_bytes,
        temperature_celsius: measured.temperature_celsius,
        processes: measured.processes.into_iter().map(process).collect(),
        measured_at_unix_ms: at.0,
    })
}

/// The GPUs by the names that they had then. One that never had a name has no node.
pub(super) fn gpu_refs(fsm: &Fsm, uuids: &[GpuUuid], then: Timestamp) -> Vec<v1::GpuRef> {
    let reference = |uuid: &GpuUuid| {
        let name = fsm.gpu_name_at(uuid, then);
        v1::GpuRef {
            uuid: uuid.to_string(),
            node: text(name.as_ref().map(|name| &name.node)),
            index: name.map_or(0, |name| name.index),
            model: fsm.gpu(uuid).map(|gpu| gpu.model.clone()).unwrap_or_default(),
        }
    };
    uuids.iter().map(reference).collect()
}

pub(super) fn reservation(fsm: &Fsm, sessions: &Sessions, r: &Reservation) -> v1::Reservation {
    let waits = fsm.waitlist().get(&r.id).filter(|_| r.is_open());
    let idle = view::reservation::idle(r);
    v1::Reservation {
        id: r.id.to_string(),
        owner: r.owner.to_string(),
        project: r.project.to_string(),
        node: r.node.to_string(),
        gpus: gpu_refs(
            fsm,
            &r.gpus,
            if r.is_open() { fsm.now() } else { r.window.ends_at.min(fsm.now()) },
        ),
        starts_at_unix_ms: r.window.starts_at.0,
        ends_at_unix_ms: r.window.ends_at.0,
        state: view::reservation::reservation(r).word().to_owned(),
        note: r.note.clone(),
        reason: reservation_reason(fsm, sessions, r),
        created_at_unix_ms: r.created_at.0,
        unconfirmed: text(view::reservation::unconfirmed(fsm, r).as_ref()),
        at_end: fsm.at_end(r).word().to_owned(),
        with: r.with.iter().map(ToString::to_string).collect(),
        import: r.import.as_ref().map(ToString::to_string).unwrap_or_default(),
        revision: r.revision,
        next: r.next.as_ref().map(|next| reservation_place(fsm, next)),
        series: r.series.as_ref().map(|series| series.id.to_string()).unwrap_or_default(),
        series_rule: r.series.as_ref().map(|series| series.rule.clone()).unwrap_or_default(),
        leaves_first: leaves_first(fsm, r),
        waiting_place: fsm.waitlist().place(&r.id).map_or(0, count),
        earliest_start_unix_ms: waits.map_or(0, |waiter| waiter.earliest_start().0),
        latest_start_unix_ms: waits.map_or(0, |waiter| waiter.latest_start.0),
        waits_for: String::new(),
        approval: waits.and_then(approval),
        offer: waits.and_then(|waiter| offer(fsm, waiter, r.offered_until())),
        idle_since_unix_ms: idle.map_or(0, |idle| idle.since.0),
        idle_release_unix_ms: idle.and_then(|idle| idle.release_at).map_or(0, |at| at.0),
    }
}

/// One of that id, also where it is on the waiting list and has no GPUs.
pub(super) fn reservation_of(
    fsm: &Fsm,
    sessions: &Sessions,
    id: &ReservationId,
) -> Option<v1::Reservation> {
    let listed = || {
        let listed = Listed::of(fsm, id)?;
        Some(v1::Reservation { reason: listed.why(fsm), ..without_place(fsm, listed) })
    };
    fsm.reservation(id).map(|r| reservation(fsm, sessions, r)).or_else(listed)
}

/// One that waits for its place, or that got none. What it waits for is left out: that takes a search of the whole fleet.
pub(super) fn without_place(fsm: &Fsm, listed: Listed<'_>) -> v1::Reservation {
    let waiter = listed.waiter();
    let wish = &waiter.wish;
    let waits = matches!(listed, Listed::Waits(_));
    let place = fsm.waitlist().place(&wish.id).filter(|_| waits);
    v1::Reservation {
        id: wish.id.to_string(),
        owner: wish.owner.to_string(),
        project: wish.project.to_string(),
        node: text(wish.gpus.node.as_ref()),
        state: listed.shown().word().to_owned(),
        reason: match listed {
            Listed::Waits(_) => String::new(),
            Listed::Over(over) => over.why.to_string(),
        },
        note: wish.note.clone(),
        created_at_unix_ms: waiter.since.0,
        at_end: wish.at_end.unwrap_or(fsm.reservation_rules().at_end).word().to_owned(),
        with: wish.with.iter().map(ToString::to_string).collect(),
        waiting_place: place.map_or(0, count),
        earliest_start_unix_ms: waiter.earliest_start().0,
        latest_start_unix_ms: waiter.latest_start.0,
        waits_for: listed.wanted(),
        approval: approval(waiter),
        offer: offer(fsm, waiter, None).filter(|_| waits),
        ..v1::Reservation::default()
    }
}

fn offer(fsm: &Fsm, waiter: &Waiter, until: Option<Timestamp>) -> Option<v1::ReservationOffer> {
    let terms = waiter.offer.as_ref()?;
    let next = terms.next_at(fsm.now(), waiter.latest_start).filter(|_| until.is_none());
    Some(v1::ReservationOffer {
        until_unix_ms: until.map_or(0, |at| at.0),
        next_unix_ms: next.map_or(0, |at| at.0),
        declined: terms.declined(),
        most: OFFERS_MAX,
    })
}

fn approval(waiter: &Waiter) -> Option<v1::ReservationApproval> {
    let approval = waiter.approval.as_ref()?;
    Some(v1::ReservationApproval {
        reason: approval.reason.clone(),
        above: approval.above.clone(),
        given_by: approval.given_by.clone().unwrap_or_default(),
    })
}

pub(super) fn approval_effect(fsm: &Fsm, effect: ApprovalEffect) -> v1::ApprovalEffect {
    let ApprovalEffect { place, gpus_like_it, left_free, owner_has } = effect;
    let (place, waits_for) = match place {
        Ok(place) => (Some(reservation_place(fsm, &place)), String::new()),
        Err(Rejection::NotNow { why }) => (None, why),
        Err(refused) => (None, refused.to_string()),
    };
    v1::ApprovalEffect { place, waits_for, gpus_like_it, left_free, owner_has }
}

fn reservation_place(fsm: &Fsm, place: &Place) -> v1::ReservationPlace {
    v1::ReservationPlace {
        node: place.node.to_string(),
        gpus: gpu_refs(fsm, &place.gpus, fsm.now()),
        starts_at_unix_ms: place.window.starts_at.0,
        ends_at_unix_ms: place.window.ends_at.0,
    }
}

fn leaves_first(fsm: &Fsm, r: &Reservation) -> Vec<v1::JobThatLeaves> {
    let leaves = |(job, by): (&Job, Timestamp)| v1::JobThatLeaves {
        job: job.id.to_string(),
        owner: job.owner.to_string(),
        by_unix_ms: by.0,
    };
    fsm.leaves_first(r).into_iter().map(leaves).collect()
}

/// Why it waits or how it ended, and what is wrong with its GPUs.
fn reservation_reason(fsm: &Fsm, sessions: &Sessions, r: &Reservation) -> String {
    let own = with_left(text(r.reason.as_ref()), in_use::before(fsm, sessions, r));
    let stand_in = view::reservation::stand_in(fsm, r).map(|other| other.to_string());
    let at_risk = || view::reservation::at_risk(r).map(ToString::to_string);
    let broken = || view::reservation::broken(fsm, r).map(|broken| broken.to_string());
    match stand_in.or_else(at_risk).or_else(broken) {
        Some(bad) if own.is_empty() => bad,
        Some(bad) => format!("{own}; {bad}"),
        None => own,
    }
}

pub(super) fn job_defaults(defaults: &JobDefaults) -> v1::JobDefaults {
    v1::JobDefaults {
        stop_after_ms: defaults.stop_after.map(|after| after.0),
        without_gpus_percent: u32::from(defaults.without_gpus_percent),
        places_kept: defaults.places_kept,
    }
}

pub(super) fn reservation_rules(rules: &ReservationRules) -> v1::ReservationRules {
    v1::ReservationRules {
        at_end: rules.at_end.word().to_owned(),
        no_show_ms: rules.no_show.0,
        grace_ms: rules.grace.0,
        idle_after_ms: rules.idle.after.0,
        idle_below_percent: rules.idle.below_percent,
        idle_release_ms: rules.idle.release.0,
    }
}

pub(super) fn checkpoint(job: &Job, c: &Checkpoint) -> v1::Checkpoint {
    v1::Checkpoint {
        job: job.id.to_string(),
        allocation: c.allocation.to_string(),
        seq: c.seq,
        path: c.path.clone(),
        size_bytes: c.size_bytes,
        completed_at_unix_ms: c.completed_at.0,
        node: c.node.to_string(),
        number: c.number,
        attempt: c.attempt,
        presence: c.presence.word().to_owned(),
        ..checkpoint_facts(&c.facts)
    }
}

/// What an agent found out about a checkpoint, on the wire.
pub(super) fn checkpoint_facts(facts: &Facts) -> v1::Checkpoint {
    let torn_because = match &facts.content {
        Content::Torn { why } => why.clone(),
        Content::Whole | Content::Unchecked => String::new(),
    };
    v1::Checkpoint {
        step: facts.step,
        rule: text(facts.rule.as_ref()),
        content: facts.content.word().to_owned(),
        torn_because,
        doubt: facts.doubt.word().to_owned(),
        files: facts.list.as_ref().map_or(0, |list| list.files),
        ..v1::Checkpoint::default()
    }
}

/// One sentence: why it waits, what it waits for, how it ended.
fn job_reason(
    fsm: &Fsm,
    sessions: &Sessions,
    plan: &Plan,
    job: &Job,
    preparing: Option<String>,
) -> String {
    let Some(reason) = view::job::job(fsm, plan, job, preparing) else { return String::new() };
    let left = match &reason {
        JobReason::Waits(wait) => in_use::behind(fsm, sessions, wait),
        _ => None,
    };
    with_left(reason.text(&NamesAt::now(fsm)), left)
}

/// The reason, and the processes that are in the way.
fn with_left(reason: String, left: Option<String>) -> String {
    match left {
        Some(left) if !reason.is_empty() => format!("{reason} ({left})"),
        Some(_) | None => reason,
    }
}

fn held_place(fsm: &Fsm, held: &HeldPlace) -> v1::HeldPlace {
    v1::HeldPlace {
        node: held.node.to_string(),
        gpus: gpu_refs(fsm, &held.gpus, fsm.now()),
        from_unix_ms: held.window.starts_at.0,
        until_unix_ms: held.window.ends_at.0,
    }
}

/// What its owner should know of its checkpoints.
fn checkpoint_notes(job: &Job) -> Vec<String> {
    let torn = job.last_checkpoint.as_ref().filter(|newest| newest.is_torn());
    let torn = torn.map(|newest| {
        format!(
            "checkpoint {} ({}) does not count: {}",
            newest.number,
            newest.path,
            newest.condition()
        )
    });
    torn.into_iter().chain(job.checkpoint_notes.iter().map(ToString::to_string)).collect()
}

pub(super) fn job(
    fsm: &Fsm,
    sessions: &Sessions,
    plan: &Plan,
    job: &Job,
    with_spec: bool,
) -> v1::Job {
    let allocation = job.allocation().and_then(|id| fsm.allocation(id));
    let waiting = plan.waiting.get(&job.id).filter(|_| job.state == JobState::Queued);
    let place = job.place().filter(|_| job.state != JobState::Queued);
    let deferral = allocation.and_then(|a| a.deferral.as_ref().map(|d| (a, d)));
    let said = allocation.and_then(|a| sessions.status(&a.node, &a.id));
    // Before it runs it says nothing: that is its agent, on what it is doing for it.
    let (preparing, status) = match job.state {
        JobState::Starting => (said, None),
        _ => (None, said),
    };
    v1::Job {
        id: job.id.to_string(),
        name: job.spec.name.clone(),
        owner: job.owner.to_string(),
        project: job.spec.project.to_string(),
        class: job.spec.class.to_string(),
        guaranteed_until_unix_ms: millis(fsm.guaranteed_until(job)),
        state: job.state.word().to_owned(),
        node: text(place.map(|p| &p.node)),
        gpus: place
            .map(|p| gpu_refs(fsm, &p.gpus, job.ended_at.unwrap_or(fsm.now())))
            .unwrap_or_default(),
        attempt: job.attempt.number,
        last_checkpoint: job.newest_saved().map(|c| checkpoint(job, c)),
        reason: job_reason(fsm, sessions, plan, job, preparing),
        exit_code: job.outcome.as_ref().and_then(|o| o.exit_code),
        submitted_at_unix_ms: job.submitted_at.0,
        started_at_unix_ms: millis(job.started_at),
        ended_at_unix_ms: millis(job.ended_at),
        time_limit_at_unix_ms: millis(allocation.and_then(|a| view::job::ends_by(fsm, a))),
        place: waiting.map_or(0, |w| w.place),
        earliest_start_unix_ms: millis(
            waiting.and_then(|w| w.earliest).or_else(|| fsm.paused_until(&job.id)),
        ),
        allocation: text(job.allocation()),
        restarts_used: job.restarts_used,
        deferral: deferral.map(|(a, d)| v1::Deferral {
            causes: a.causes.values().map(|c| c.text.clone()).collect(),
            since_unix_ms: d.since.0,
            deadline_unix_ms: millis(d.deadline),
            held_back: d.held_back.clone().unwrap_or_default(),
            place: plan.held.get(&job.id).map(|held| held_place(fsm, held)),
        }),
        spec: with_spec.then(|| job_spec_to_wire(&job.spec)),
        cpu_millis: place.map_or(0, |p| p.cpu_millis),
        memory_bytes: place.map_or(0, |p| p.memory_bytes),
        status: text(status.as_ref()),
        image_digest: text(job.image.as_ref().map(|image| &image.digest)),
        image_note: text(job.image.as_ref().and_then(|image| image.note.as_ref())),
        checkpoint_notes: checkpoint_notes(job),
        hold: fsm.hold_of(&job.id).map(|hold| v1::JobHold {
            by: hold.by.clone(),
            by_admin: hold.admin,
            since_unix_ms: hold.since.0,
        }),
        question: text(job.question.as_ref().map(|question| &question.why)),
        next_checkpoint_unix_ms: millis(view::job::next_checkpoint(job, allocation)),
        checkpoint_gap_ms: job.gaps().first().map_or(0, |gap| gap.0),
        r#use: allocation.and_then(|a| sessions.job_use(&a.node, &a.id)),
    }
}

pub(super) fn running(fsm: &Fsm) -> usize {
    let runs = |state: JobState| {
        matches!(state, JobState::Starting | JobState::Running | JobState::Stopping)
    };
    fsm.jobs().values().filter(|j| runs(j.state)).count()
}

pub(super) fn active(fsm: &Fsm) -> usize {
    fsm.open_reservations().filter(|r| r.state == ReservationState::Active).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_waits_for_each_process_without_a_lease_once() {
        let process = |pid, name: &str, foreign_since_unix_ms| v1::MeasuredProcess {
            pid,
            user: "ada".to_owned(),
            name: name.to_owned(),
            foreign_since_unix_ms,
            ..v1::MeasuredProcess::default()
        };
        let on_two = || process(7, "python3", 1);
        let all = [on_two(), process(8, "job", 0), process(9, "", 1), on_two()];
        assert_eq!(without_lease(all.into_iter()), ["python3 (pid 7) of ada"]);
    }
}
