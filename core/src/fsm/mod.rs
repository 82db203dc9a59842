//! The replicated state machine: how the state changes, by `apply` alone.
//!
//! `apply` is synchronous and total. It is called by the controller's state machine adapter, once
//! per log entry, in log order, on every replica. It must never look at who is leader, read a clock
//! or depend on anything but the state and the entry.

use crate::actor::Actor;
use crate::audit::{self, AuditBody, AuditRecord};
use crate::command::{Command, Envelope, RequestKey};
use crate::event::Event;
use crate::id::LeaseId;
use crate::lease::Epoch;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::{Fsm, Hold};
use crate::time::Timestamp;

mod access;
mod adoption;
mod audit_log;
mod authority;
mod authorize;
mod checkpoints;
mod clearing;
mod cluster;
mod controllers;
mod deadlines;
mod desired;
mod ending;
mod ends;
mod eviction;
mod giving_way;
mod import;
mod job_defaults;
mod jobs;
mod judgment;
mod leases;
mod limits;
mod nodes;
mod numbers;
mod probing;
mod reboot;
mod removal;
mod reports;
mod reservations;
mod restart;
#[cfg(test)]
pub(crate) mod tests;
mod time_limit;
pub mod validate;
mod windows;

use authorize::authorize;

pub use import::IMPORT_LINES_MAX;

/// Finished jobs kept in memory; older ones live on in the audit log.
pub const FINISHED_JOBS_KEPT: usize = 10_000;
/// Ended reservations kept in memory.
pub const ENDED_RESERVATIONS_KEPT: usize = 10_000;

/// What applying one entry did.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub reply: Result<Reply, Rejection>,
    pub events: Vec<Event>,
    /// The audit record, when anything changed.
    pub audit: Option<AuditRecord>,
}

/// One command being applied: where its grants get their epoch, and the events it makes.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) actor: &'a Actor,
    pub(crate) epoch: Epoch,
    /// Leases granted so far in this turn.
    pub(crate) granted: u32,
    /// The state's time before this command.
    pub(crate) before: Timestamp,
    pub(crate) events: Vec<Event>,
}

impl Turn<'_> {
    pub(crate) fn say(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Id and epoch of the next lease that this turn grants or promises.
    pub(crate) fn next_lease(&mut self) -> (LeaseId, Epoch) {
        let id = LeaseId::granted(self.epoch, self.granted);
        self.granted += 1;
        (id, self.epoch)
    }
}

impl Fsm {
    /// Applies one log entry. Never fails: a refusal is the reply.
    pub fn apply(&mut self, log_index: u64, envelope: &Envelope) -> Outcome {
        self.applied = log_index;
        let before = self.now;
        if !matches!(envelope.command, Command::ResetClock { .. }) {
            self.now = self.now.max(envelope.proposed_at);
        }
        let principal = envelope.actor.principal();
        if let Some(key) = &envelope.request
            && let Some(reply) = self.requests.answered(&principal, key, self.now)
        {
            return Outcome { reply, events: Vec::new(), audit: None };
        }
        let mut turn = Turn {
            actor: &envelope.actor,
            epoch: Epoch { incarnation: self.incarnation, index: log_index },
            granted: 0,
            before,
            events: Vec::new(),
        };
        let allowed = authorize(self, &envelope.actor, &envelope.command);
        let reply = allowed.clone().and_then(|_| self.dispatch(&mut turn, &envelope.command));
        let events = turn.events;
        self.settle_index();
        if let Some(key) = &envelope.request {
            self.requests.remember(principal, key, self.now, reply.clone());
        }
        if envelope.command.may_change_the_plan() {
            self.plan_inputs = log_index;
        }
        let rule = allowed.ok();
        let audit = (!events.is_empty()).then(|| self.record(log_index, envelope, rule, &events));
        Outcome { reply, events, audit }
    }

    /// The first answer to a request of this actor that is sent again, if it is.
    pub fn answered(
        &self,
        actor: &Actor,
        request: &RequestKey,
    ) -> Option<Result<Reply, Rejection>> {
        self.requests.answered(&actor.principal(), request, self.now)
    }

    /// The answer that applying the envelope now would give without changing anything: the first
    /// answer to a retry, or a refusal. `None` where the log has to decide. With this the edge keeps
    /// refused requests out of the log; on a state that is confirmed to be the newest it is exact.
    pub fn answer_without_log(&self, envelope: &Envelope) -> Option<Result<Reply, Rejection>> {
        let now = self.now.max(envelope.proposed_at);
        if let Some(key) = &envelope.request
            && let Some(reply) = self.requests.answered(&envelope.actor.principal(), key, now)
        {
            return Some(reply);
        }
        let refusal = authorize(self, &envelope.actor, &envelope.command)
            .and_then(|_| self.check_wish(&envelope.actor, &envelope.command))
            .err();
        refusal.map(Err)
    }

    /// The checks of the commands that users send often; the others are checked where applied.
    fn check_wish(&self, actor: &Actor, command: &Command) -> Result<(), Rejection> {
        match command {
            Command::CreateReservation(wish) => self.check_reservation(actor, wish).map(|_| ()),
            Command::ImportReservations { reservations, .. } => {
                self.try_import(actor, reservations).map(|_| ())
            }
            Command::UndoImport { id } => self.undoable(actor, id).map(|_| ()),
            Command::ExtendReservation { id, ends_at } => self.check_extension(actor, id, *ends_at),
            Command::ReleaseReservation { id } => self.open_reservation(id).map(|_| ()),
            Command::SubmitJob(wish) => self.check_job(actor, wish),
            Command::CancelJob { id } => match self.jobs.get(id) {
                None => Err(Rejection::not_found("job", id)),
                Some(job) if job.state.is_final() => {
                    let state = job.state.word().to_owned();
                    Err(Rejection::AlreadyEnded { id: id.to_string(), state })
                }
                Some(_) => Ok(()),
            },
            Command::InitCluster { .. }
            | Command::SetClusterVersion { .. }
            | Command::RestartJob { .. }
            | Command::SetJobTimeLimit { .. }
            | Command::RemoveJob { .. }
            | Command::AskCheckpoint { .. }
            | Command::CordonNode { .. }
            | Command::UncordonNode { .. }
            | Command::DrainNode { .. }
            | Command::DeclareGpuFree { .. }
            | Command::ClearGpu { .. }
            | Command::ForgetGpu { .. }
            | Command::WithdrawToken { .. }
            | Command::OrderImagesRemoval { .. }
            | Command::ThawEvictions
            | Command::ResetClock { .. }
            | Command::CreateJoinToken(_)
            | Command::RedeemJoinToken { .. }
            | Command::CreateControllerToken(_)
            | Command::AdmitController(_)
            | Command::RemoveController { .. }
            | Command::RegisterNode { .. }
            | Command::ReportNode { .. }
            | Command::PlaceJobs { .. }
            | Command::AdvanceTime
            | Command::SetLiveness { .. }
            | Command::SuspendNode { .. }
            | Command::CheckState { .. }
            | Command::Authority(_)
            | Command::EnforceNode { .. }
            | Command::Ending(_)
            | Command::Reboot(_)
            | Command::Limits(_)
            | Command::SetJobDefaults { .. }
            | Command::PruneAudit(_)
            | Command::RecordRefusals { .. } => Ok(()),
            Command::Access(command) => self.check_access(actor, command),
        }
    }

    fn dispatch(&mut self, turn: &mut Turn<'_>, command: &Command) -> Result<Reply, Rejection> {
        match command {
            Command::InitCluster { cluster, incarnation } => {
                self.init_cluster(turn, cluster, *incarnation)
            }
            Command::SetClusterVersion { version } => self.set_cluster_version(turn, *version),
            Command::CreateReservation(wish) => self.create_reservation(turn, wish),
            Command::ImportReservations { reservations, import } => {
                self.import_reservations(turn, reservations, import.as_ref())
            }
            Command::UndoImport { id } => self.undo_import(turn, id),
            Command::ExtendReservation { id, ends_at } => {
                self.extend_reservation(turn, id, *ends_at)
            }
            Command::ReleaseReservation { id } => self.release_reservation(turn, id),
            Command::SubmitJob(wish) => self.submit_job(turn, wish),
            Command::CancelJob { id } => self.cancel_job(turn, id),
            Command::RestartJob { id, from, time_limit } => {
                self.restart_job(turn, id, *from, *time_limit)
            }
            Command::SetJobTimeLimit { id, time_limit } => {
                self.set_time_limit(turn, id, *time_limit)
            }
            Command::RemoveJob { id } => self.remove_job(turn, id),
            Command::AskCheckpoint { id } => self.ask_checkpoint(turn, id),
            Command::CordonNode { node, reason } => self.cordon_node(turn, node, reason),
            Command::UncordonNode { node } => self.uncordon_node(turn, node),
            Command::DrainNode { node, reason, deadline } => {
                self.drain_node(turn, node, reason, *deadline)
            }
            Command::DeclareGpuFree { gpu, reason } => self.declare_gpu_free(turn, gpu, reason),
            Command::ClearGpu { gpu, reason } => self.clear_gpu(turn, gpu, reason),
            Command::OrderImagesRemoval { node, image } => {
                self.order_images_removal(turn, node, image.as_deref())
            }
            Command::WithdrawToken { token } => self.withdraw_token(turn, token),
            Command::ForgetGpu { gpu, reason, replace } => {
                self.forget_gpu(turn, gpu, reason, *replace)
            }
            Command::ThawEvictions => self.thaw_evictions(turn),
            Command::ResetClock { to } => self.reset_clock(turn, *to),
            Command::CreateJoinToken(wish) => self.create_join_token(turn, wish),
            Command::RedeemJoinToken { id, node, machine } => {
                self.redeem_join_token(turn, id, node, machine)
            }
            Command::CreateControllerToken(wish) => self.create_controller_token(turn, wish),
            Command::AdmitController(wish) => self.admit_controller(turn, wish),
            Command::RemoveController { id } => self.remove_controller(turn, *id),
            Command::RegisterNode { node, facts } => self.register_node(turn, node, facts),
            Command::ReportNode { node, reports } => self.report_node(turn, node, reports),
            Command::PlaceJobs { placements } => Ok(self.place_jobs(turn, placements)),
            Command::AdvanceTime => self.advance_time(turn),
            Command::SetLiveness { node, liveness, silent_for } => {
                self.set_liveness(turn, node, *liveness, *silent_for)
            }
            Command::SuspendNode { node, reason } => self.suspend_node(turn, node, reason),
            Command::RecordRefusals { refusals } => self.record_refusals(turn, refusals),
            // Compared by the shell, which knows what this replica had; the state does not change.
            Command::CheckState { .. } => Ok(Reply::Done),
            Command::Access(command) => self.apply_access(turn, command),
            Command::Authority(command) => self.apply_authority(turn, command),
            Command::EnforceNode { node, mode } => self.enforce_node(turn, node, *mode),
            Command::Ending(command) => self.apply_ending(turn, command),
            Command::Reboot(command) => self.apply_reboot(turn, command),
            Command::Limits(command) => self.apply_limits(turn, command),
            Command::SetJobDefaults { stop_after, without_gpus_percent } => {
                self.set_job_defaults(turn, *stop_after, *without_gpus_percent)
            }
            Command::PruneAudit(prune) => self.prune_audit(turn, prune),
        }
    }

    fn record(
        &mut self,
        log_index: u64,
        envelope: &Envelope,
        rule: Option<&'static str>,
        events: &[Event],
    ) -> AuditRecord {
        let mut objects: Vec<String> = events.iter().flat_map(Event::objects).collect();
        objects.sort();
        objects.dedup();
        self.audit_seq += 1;
        let record = audit::seal(AuditBody {
            v: audit::AUDIT_VERSION,
            seq: self.audit_seq,
            log_index,
            at: self.now,
            actor: envelope.actor.clone(),
            action: envelope.command.name().to_owned(),
            request: envelope.request.as_ref().map(|key| key.id.clone()),
            allowed_by: rule.map(str::to_owned),
            refused: None,
            objects,
            events: events.to_vec(),
            prev: self.audit_head.take().unwrap_or_else(|| audit::GENESIS.to_owned()),
        });
        self.audit_head = Some(record.hash.clone());
        record
    }
}
