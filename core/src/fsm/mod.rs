//! The replicated state machine: how the state changes, by `apply` alone.
//!
//! `apply` is synchronous and total. It is called by the controller's state machine adapter, once
//! per log entry, in log order, on every replica. It must never look at who is leader, read a clock
//! or depend on anything but the state and the entry.

use crate::actor::Actor;
use crate::audit::{self, AuditBody, AuditRecord};
use crate::command::{ClusterCommand, Command, Envelope, RequestKey};
use crate::event::Event;
use crate::id::LeaseId;
use crate::lease::Epoch;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::{Fsm, Hold};
use crate::time::Timestamp;

mod access;
mod adoption;
mod approval;
mod audit_log;
mod authority;
mod cards;
mod checkpoints;
mod classes;
mod clearing;
mod cluster;
mod commands;
mod controllers;
mod deadlines;
mod desired;
mod edit;
mod ending;
mod ends;
mod eviction;
mod fair_share;
mod feeds;
mod giving_way;
mod gpu_use;
mod holds;
mod idle;
mod import;
mod job_defaults;
mod jobs;
mod judgment;
mod leases;
mod limits;
mod moving;
mod nodes;
mod notices;
mod numbers;
mod offers;
pub(crate) mod preemption;
mod probing;
mod projects;
mod reboot;
mod removal;
mod reports;
mod reservations;
mod restart;
mod series;
mod series_edit;
mod session;
mod stand_in;
mod stays;
#[cfg(test)]
pub(crate) mod tests;
mod time_limit;
mod tokens;
mod trial;
pub mod validate;
mod waitlist;
mod windows;

use commands::authorize;

pub use approval::ApprovalEffect;
pub use import::IMPORT_LINES_MAX;
pub use trial::{JobTrial, TrialLeaving};

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
        if !matches!(envelope.command, Command::Cluster(ClusterCommand::ResetClock { .. })) {
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
        let reply =
            allowed.clone().and_then(|_| commands::of(&envelope.command).act(self, &mut turn));
        // What was promised comes before those who wait.
        if reply.is_ok() && self.settle_places(&mut turn) {
            self.plan_inputs = log_index;
        }
        if reply.is_ok() && self.serve_waitlist(&mut turn) {
            self.plan_inputs = log_index;
        }
        if reply.is_ok() {
            self.settle_cuts(&mut turn);
        }
        if reply.is_ok() && self.settle_preemptions(&mut turn) {
            self.plan_inputs = log_index;
        }
        let events = turn.events;
        self.settle_index();
        if let Some(key) = &envelope.request {
            self.requests.remember(principal, key, self.now, reply.clone());
        }
        if commands::of(&envelope.command).may_change_the_plan() {
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
            .and_then(|_| commands::of(&envelope.command).check(self, &envelope.actor))
            .err();
        refusal.map(Err)
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
