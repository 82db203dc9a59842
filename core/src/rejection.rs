//! Rejections: why a command was refused. A refusal is a value; the log continues.
//!
//! Each has a stable text code for programs and a sentence for people that says what is allowed or
//! what to do next. The edge maps the codes to gRPC statuses in one table.

use serde::{Deserialize, Serialize};

use crate::name::{GpuUuid, NodeName, UserName};
use crate::time::{Timestamp, Window};

/// Who holds a GPU, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub gpu: GpuUuid,
    pub node: NodeName,
    pub index: u32,
    pub owner: UserName,
    /// The reservation or job that holds it.
    pub holder: String,
    pub until: Option<Timestamp>,
}

/// A window that would fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    pub starts_at: Timestamp,
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
}

/// A user that nobody has heard of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownUser {
    pub name: UserName,
    /// One that is known and is written nearly so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alike: Option<UserName>,
}

impl std::fmt::Display for UnknownUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown user {:?}", self.name.as_str())?;
        self.alike.as_ref().map_or(Ok(()), |alike| write!(f, "; the fleet knows {alike}"))
    }
}

/// Why one line of an import cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineProblem {
    /// Counted from 0, in the order of the request.
    pub line: u32,
    pub why: Rejection,
    /// The earlier line that takes what this one wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<u32>,
}

/// Why a series cannot have one of its dates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DateProblem {
    pub window: Window,
    pub why: Rejection,
}

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    #[error("{field}: {problem}")]
    InvalidField { field: String, problem: String },
    #[error("there is no {kind} {id:?}")]
    NotFound { kind: String, id: String },
    /// `needs`: who may, so that "only … may do this" is a sentence.
    #[error("permission denied: only {needs} may do this")]
    Denied { needs: String },
    #[error("{id} is already {state}")]
    AlreadyEnded { id: String, state: String },
    /// Somebody else changed it after the author of this change had read it.
    #[error("{id} has changed since you read it{}: read it again, then change it", changed(by.as_deref()))]
    ChangedSince { id: String, by: Option<String>, at: Option<Timestamp> },
    /// This part of an object stays as it is.
    #[error("{id}: {why}")]
    NotChangeable { id: String, why: String },
    /// The offer that somebody answers ended before.
    #[error("the offer of {id} is over; the reservation keeps its place on the waiting list")]
    OfferOver { id: String, ended_at: Timestamp },
    /// Only a running job can do that.
    #[error("{id} is not running: it is {state}")]
    NotRunning { id: String, state: String },
    #[error("{id} has no checkpoints: {why}")]
    NoCheckpoints { id: String, why: String },
    /// Only an ended job, or one that asks its owner, is restarted.
    #[error("{id} cannot be restarted: {why}")]
    NotRestartable { id: String, why: String },
    #[error("{id} cannot be removed: {why}")]
    NotRemovable { id: String, why: String },
    #[error("the id {id} is taken")]
    IdTaken { id: String },
    /// The wish cannot be met in that window; `next` is the first that could.
    #[error("not free at that time: {wanted}")]
    GpusHeld { wanted: String, holdings: Vec<Holding>, next: Option<Slot> },
    /// No state of the fleet as it is built could meet the wish.
    #[error("{why}")]
    NeverFits { why: String },
    #[error("cannot start now: {why}")]
    NotNow { why: String },
    /// An admin wants to clear what is still so.
    #[error("{what} cannot be cleared: {why}")]
    StillObserved { what: String, why: String },
    /// An admin wants to forget a card that is there, or that something still names.
    #[error("{what} cannot be forgotten: {}", why.join("; "))]
    NotForgotten { what: String, why: Vec<String> },
    /// The audit log is not pruned that far.
    #[error("no audit record was pruned: {why}")]
    AuditNotPruned { why: String },
    #[error("request id {id:?} was used before with another body")]
    RequestReused { id: String },
    #[error(
        "the request was made at {made_at_ms} ms and it is {now_ms} ms now: too far apart; check this machine's clock"
    )]
    RequestTooOld { made_at_ms: u64, now_ms: u64 },
    #[error("too many requests came after this one: its outcome is no longer known")]
    RequestForgotten { made_at_ms: u64 },
    #[error("{what}: at most {limit}")]
    LimitReached { what: String, limit: u64 },
    /// A limit of the owner's groups or project refuses it. Somebody may approve it all the same.
    #[error("{}", problem(why))]
    AboveLimit { why: Box<Rejection> },
    #[error("{what} is not as the plan assumed: {why}")]
    PlanStale { what: String, why: String },
    #[error("node {node} is another machine than the one that joined under this name: {why}")]
    NodeIdentity { node: NodeName, why: String },
    /// A clone, or a machine that is in the fleet under another name.
    #[error(
        "node {holder} has this machine's id (/etc/machine-id) already. If this machine was copied from {holder} or like it, \
         give it one of its own (`rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup`), reboot and join \
         again. If {holder} is gone, or is this machine under its former name, an admin first types \
         `fleet node remove {holder} --reason TEXT`"
    )]
    MachineIdTaken { node: NodeName, holder: NodeName },
    #[error("join token {id}: {why}")]
    TokenRefused { id: String, why: String },
    /// The code that a browser showed.
    #[error("this code does not log in: {why}")]
    CodeRefused { why: String },
    #[error("this cluster runs version {have}; the command needs version {needs}")]
    ClusterVersion { needs: u32, have: u32 },
    /// The controllers could not decide anything afterwards.
    #[error("this would leave the controllers without a quorum: {why}")]
    BreaksQuorum { why: String },
    /// The exchange of the certificate authority is not where this could be done.
    #[error("the certificate authority: {why}")]
    Authority { why: String },
    #[error("this store belongs to cluster {have}")]
    WrongCluster { have: String },
    #[error("{what} is in use: {}", by.join(", "))]
    InUse { what: String, by: Vec<String> },
    /// Neither the fleet nor the controllers' machine knows them.
    #[error("{}", list(users))]
    UnknownUsers { users: Vec<UnknownUser> },
    #[error("nothing was imported: {} of its lines cannot be taken", problems.len() + *more as usize)]
    LinesRefused {
        problems: Vec<LineProblem>,
        /// Refused lines that are not listed: an answer has room for a few hundred.
        #[serde(default, skip_serializing_if = "is_zero")]
        more: u32,
    },
    #[error("nothing was reserved: {}", unavailable(problems.len() + *more as usize, *of))]
    DatesRefused {
        problems: Vec<DateProblem>,
        /// Dates of the whole series.
        of: u32,
        /// Refused dates that are not listed, as an answer has no room for them.
        more: u32,
    },
}

/// How many of the things that name something a refusal names.
const NAMED_MAX: usize = 5;

impl Rejection {
    /// Stable code for programs and the audit.
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::InvalidField { .. } => "invalid_field",
            Rejection::NotFound { .. } => "not_found",
            Rejection::Denied { .. } => "denied",
            Rejection::AlreadyEnded { .. } => "already_ended",
            Rejection::IdTaken { .. } => "id_taken",
            Rejection::ChangedSince { .. } => "changed_since",
            Rejection::NotChangeable { .. } => "not_changeable",
            Rejection::OfferOver { .. } => "offer_over",
            Rejection::NotRunning { .. } => "not_running",
            Rejection::NoCheckpoints { .. } => "no_checkpoints",
            Rejection::NotRestartable { .. } => "not_restartable",
            Rejection::NotRemovable { .. } => "not_removable",
            Rejection::GpusHeld { .. } => "gpus_held",
            Rejection::NeverFits { .. } => "never_fits",
            Rejection::NotNow { .. } => "not_now",
            Rejection::StillObserved { .. } => "still_observed",
            Rejection::NotForgotten { .. } => "not_forgotten",
            Rejection::AuditNotPruned { .. } => "audit_not_pruned",
            Rejection::RequestReused { .. } => "request_reused",
            Rejection::RequestTooOld { .. } => "request_too_old",
            Rejection::RequestForgotten { .. } => "request_forgotten",
            Rejection::LimitReached { .. } => "limit_reached",
            Rejection::AboveLimit { .. } => "above_limit",
            Rejection::PlanStale { .. } => "plan_stale",
            Rejection::NodeIdentity { .. } => "node_identity",
            Rejection::MachineIdTaken { .. } => "machine_id_taken",
            Rejection::TokenRefused { .. } => "token_refused",
            Rejection::CodeRefused { .. } => "code_refused",
            Rejection::ClusterVersion { .. } => "cluster_version",
            Rejection::BreaksQuorum { .. } => "breaks_quorum",
            Rejection::Authority { .. } => "authority",
            Rejection::WrongCluster { .. } => "wrong_cluster",
            Rejection::InUse { .. } => "in_use",
            Rejection::UnknownUsers { .. } => "unknown_users",
            Rejection::LinesRefused { .. } => "lines_refused",
            Rejection::DatesRefused { .. } => "dates_refused",
        }
    }

    /// A field that does not hold what it should.
    pub fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Rejection::InvalidField { field: field.into(), problem: problem.into() }
    }

    /// Refuses what open things name; names the first few of them.
    ///
    /// # Errors
    /// `InUse`, if there are any.
    pub(crate) fn if_in_use(
        what: String,
        by: impl Iterator<Item = String>,
    ) -> Result<(), Rejection> {
        let mut by: Vec<String> = by.take(NAMED_MAX + 1).collect();
        if by.len() > NAMED_MAX {
            by.truncate(NAMED_MAX);
            by.push("more".to_owned());
        }
        match by.is_empty() {
            true => Ok(()),
            false => Err(Rejection::InUse { what, by }),
        }
    }

    pub(crate) fn above_limit(self) -> Self {
        Rejection::AboveLimit { why: Box::new(self) }
    }

    pub fn not_found(kind: &str, id: impl ToString) -> Self {
        Rejection::NotFound { kind: kind.to_owned(), id: id.to_string() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(more: &u32) -> bool {
    *more == 0
}

/// What is wrong, without the field that it is wrong in.
fn problem(why: &Rejection) -> String {
    match why {
        Rejection::InvalidField { problem, .. } => problem.clone(),
        other => other.to_string(),
    }
}

fn changed(by: Option<&str>) -> String {
    by.map_or(String::new(), |by| format!(" (by {by})"))
}

fn unavailable(count: usize, of: u32) -> String {
    let are = if count == 1 { "is" } else { "are" };
    format!("{count} of {of} dates {are} not available")
}

fn list(users: &[UnknownUser]) -> String {
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
