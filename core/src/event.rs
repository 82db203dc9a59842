//! Events: what applying a command changed, in the past tense.
//!
//! Each replica makes the same events; the audit record of the command carries them, and
//! `fleet why` tells its story from their texts. Only the leader acts on them.

use serde::{Deserialize, Serialize};

use crate::access::AccessEvent;
use crate::allocation::AttemptEnd;
use crate::approval::ApprovalEvent;
use crate::authority::AuthorityEvent;
use crate::checkpoint::{CheckpointNote, Content, Presence, RecordedFacts};
use crate::ending::{EndPolicy, GpuHolder, HolderStep, ReservationRules};
use crate::gpu_use::MeasuredUse;
use crate::health::Severity;
use crate::hold::HoldEvent;
use crate::id::{AllocationId, ClusterId, JobId, LeaseId, ReservationId, SeriesId, TokenId};
use crate::idle::IdleEvent;
use crate::image::ImageUsed;
use crate::job::JobDefaults;
use crate::lease::Epoch;
use crate::limits::ReservationLimits;
use crate::name::{GpuUuid, GroupName, NodeName, ProjectName, UserName};
use crate::node::Liveness;
use crate::notice::NoticeEvent;
use crate::offer::OfferEvent;
use crate::preemption::PreemptionEvent;
use crate::project::Project;
use crate::reservation::{Edit, GpuRequest, WaitOverWhy};
use crate::risk::RiskEvent;
use crate::stay::Stay;
use crate::time::{Millis, Timestamp};
use crate::window::{Enforcement, EnforcementSwitch, NodeGrant};

mod objects;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    ClusterInitialised {
        cluster: ClusterId,
        incarnation: u64,
    },
    ClusterVersionSet {
        version: u32,
    },
    ClockReset {
        from: Timestamp,
        to: Timestamp,
    },

    NodeRegistered {
        node: NodeName,
        gpus: u32,
        boot_id: String,
    },
    NodeRebooted {
        node: NodeName,
        boot_id: String,
    },
    NodeFactsChanged {
        node: NodeName,
        what: String,
    },
    NodeCordoned {
        node: NodeName,
        by: String,
        reason: String,
    },
    NodeUncordoned {
        node: NodeName,
        by: String,
    },
    NodeDraining {
        node: NodeName,
        by: String,
        reason: String,
        deadline: Option<Timestamp>,
    },
    NodeDrained {
        node: NodeName,
    },
    NodeSuspended {
        node: NodeName,
        reason: String,
    },
    LivenessChanged {
        node: NodeName,
        liveness: Liveness,
    },
    ConditionRaised {
        node: NodeName,
        gpu: Option<GpuUuid>,
        kind: String,
        severity: Severity,
        message: String,
    },
    ConditionChanged {
        node: NodeName,
        gpu: Option<GpuUuid>,
        kind: String,
        severity: Severity,
        message: String,
    },
    ConditionCleared {
        node: NodeName,
        gpu: Option<GpuUuid>,
        kind: String,
    },
    EvictionsFrozen {
        affected: u32,
        of: u32,
    },
    EvictionsThawed {
        by: String,
    },
    GpuClearOrdered {
        node: NodeName,
        gpu: GpuUuid,
        by: String,
        reason: String,
        kinds: Vec<String>,
    },
    GpuDeclaredFree {
        gpu: GpuUuid,
        by: String,
        reason: String,
    },
    /// The card is called `index` of its node from now on.
    GpuRenamed {
        gpu: GpuUuid,
        node: NodeName,
        from: String,
        index: u32,
    },
    /// Images of the node are removed by this word: one, or all that nothing needs.
    ImagesRemovalOrdered {
        node: NodeName,
        image: Option<String>,
        by: String,
    },
    GpuForgotten {
        gpu: GpuUuid,
        node: NodeName,
        index: u32,
        by: String,
        reason: String,
    },
    /// The next card in its slot takes its place.
    GpuReplacementAwaited {
        gpu: GpuUuid,
        node: NodeName,
        by: String,
        reason: String,
    },

    ReservationCreated {
        reservation: ReservationId,
        owner: UserName,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        starts_at: Timestamp,
        ends_at: Timestamp,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        with: Vec<UserName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        series: Option<SeriesId>,
        /// It takes over what runs on the GPUs without a lease.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        adopts: bool,
    },
    /// It is on the waiting list: no place begins by its latest start.
    ReservationWaits {
        reservation: ReservationId,
        owner: UserName,
        gpus: GpuRequest,
        earliest_start: Timestamp,
        latest_start: Timestamp,
        /// Its place in the list, from 1.
        place: u32,
    },
    /// It left the list without a place.
    ReservationWaitOver {
        reservation: ReservationId,
        why: WaitOverWhy,
    },
    /// Its account was closed.
    ReservationUnshared {
        reservation: ReservationId,
        user: UserName,
    },
    ReservationExtended {
        reservation: ReservationId,
        ends_at: Timestamp,
    },
    /// Boxed: it holds what was and what is.
    ReservationEdited {
        reservation: ReservationId,
        by: String,
        edit: Box<Edit>,
        /// The node that must release the old place before the new one counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<NodeName>,
    },
    /// What waited for its node is done: the reservation has its new place.
    ReservationEditDone {
        reservation: ReservationId,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        starts_at: Timestamp,
        ends_at: Timestamp,
    },
    /// The new window passed before the node had released the old one: the reservation stays as it was.
    ReservationEditLapsed {
        reservation: ReservationId,
        node: NodeName,
    },
    ReservationMoved {
        reservation: ReservationId,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        why: String,
        /// The node that must release the old place before the new one counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<NodeName>,
    },
    ReservationStarted {
        reservation: ReservationId,
        lease: LeaseId,
        epoch: Epoch,
        owner: UserName,
        gpus: Vec<GpuUuid>,
    },
    ReservationDelayed {
        reservation: ReservationId,
        why: String,
    },
    ReservationEnding {
        reservation: ReservationId,
        why: String,
    },
    ReservationEnded {
        reservation: ReservationId,
    },
    /// A node remembers it, the backup the fleet was restored from does not.
    ReservationLost {
        reservation: ReservationId,
        owner: UserName,
        node: NodeName,
        gpus: Vec<GpuUuid>,
    },
    /// An attempt that was found after a restore continues under the grant it has.
    AttemptAdopted {
        job: JobId,
        allocation: AllocationId,
        owner: UserName,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        epoch: Epoch,
        job_was_known: bool,
    },
    /// The node has said what it holds, after a restore.
    NodeCounted {
        node: NodeName,
    },
    ReservationCancelled {
        reservation: ReservationId,
        by: String,
    },

    /// Given to its agent ahead of its start.
    WindowHandedOut {
        reservation: ReservationId,
        node: NodeName,
        revision: Epoch,
    },
    /// Its agent has the newest order on its disk.
    WindowTaken {
        reservation: ReservationId,
        node: NodeName,
    },
    /// The reservation is cancelled once its agent has released it.
    WindowWithdrawn {
        reservation: ReservationId,
        node: NodeName,
        by: String,
    },
    WindowOpenedByNode {
        reservation: ReservationId,
        node: NodeName,
        at: Timestamp,
        owner: UserName,
        gpus: Vec<GpuUuid>,
    },
    WindowClosedByNode {
        reservation: ReservationId,
        node: NodeName,
        at: Timestamp,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<GpuUuid>,
    },
    /// Found in an agent's hands: granted by root there, or from before the controllers were restored.
    WindowAdopted {
        reservation: ReservationId,
        node: NodeName,
        owner: UserName,
        gpus: Vec<GpuUuid>,
        starts_at: Timestamp,
        ends_at: Timestamp,
        granted: Option<NodeGrant>,
    },
    EnforcementSwitched {
        node: NodeName,
        switch: EnforcementSwitch,
    },
    NodeEnforcementSet {
        node: NodeName,
        mode: Enforcement,
        before: Enforcement,
        by: String,
    },
    NodeRebootAsked {
        node: NodeName,
        by: String,
        reason: String,
    },
    NodeRebootCancelled {
        node: NodeName,
        by: String,
    },
    NodeRebootBegun {
        node: NodeName,
    },
    NodeRebootFailed {
        node: NodeName,
        why: String,
    },
    NodeRebootDone {
        node: NodeName,
    },
    JobDefaultsSet {
        defaults: JobDefaults,
        before: JobDefaults,
        by: String,
    },
    ReservationRulesSet {
        rules: ReservationRules,
        before: ReservationRules,
        by: String,
    },
    /// Of a group; none any more where there are no limits.
    ReservationLimitsSet {
        group: GroupName,
        limits: Option<ReservationLimits>,
        by: String,
    },
    /// Created where there was none before; removed where there is none now.
    ProjectSet {
        project: ProjectName,
        now: Option<Project>,
        before: Option<Project>,
        by: String,
    },
    /// After this time use counts half.
    HalfLifeSet {
        half_life: Millis,
        before: Millis,
        by: String,
    },
    ReservationAtEndSet {
        reservation: ReservationId,
        at_end: EndPolicy,
        by: String,
    },
    /// Somebody is there for the first time.
    ReservationUsed {
        reservation: ReservationId,
        node: NodeName,
    },
    /// It is in use, and nobody else wants its GPUs.
    ReservationWentOn {
        reservation: ReservationId,
        ends_at: Timestamp,
    },
    /// On GPUs that are not theirs, or not any more.
    HoldersSeen {
        node: NodeName,
        /// Whose time is over; none where nobody leased the GPUs.
        reservation: Option<ReservationId>,
        step: HolderStep,
        holders: Vec<GpuHolder>,
    },
    /// Released: nobody came.
    ReservationNotUsed {
        reservation: ReservationId,
        node: NodeName,
        owner: UserName,
        after: Millis,
    },

    JobQueued {
        job: JobId,
        owner: UserName,
        /// The fleet's default, where that counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_after: Option<Millis>,
        /// It is not placed before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        begin: Option<Timestamp>,
    },
    JobPlaced {
        job: JobId,
        allocation: AllocationId,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        epoch: Epoch,
        resume_from: Option<String>,
        owner: UserName,
    },
    JobStarted {
        job: JobId,
        allocation: AllocationId,
        /// What the name of its image in a registry meant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<ImageUsed>,
        /// How long it may run, where a promise of its GPUs leaves less than its time limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<Millis>,
    },
    CheckpointRecorded {
        job: JobId,
        allocation: AllocationId,
        seq: u64,
        path: String,
        /// Its number over the job's whole life.
        number: u64,
        facts: Box<RecordedFacts>,
    },
    CheckpointChanged {
        job: JobId,
        allocation: AllocationId,
        number: u64,
        path: String,
        content: Option<Content>,
        presence: Option<Presence>,
    },
    CheckpointNoted {
        job: JobId,
        allocation: AllocationId,
        note: CheckpointNote,
    },
    CheckpointAsked {
        job: JobId,
        allocation: AllocationId,
        by: String,
    },
    JobResumed {
        job: JobId,
        allocation: AllocationId,
        path: String,
        number: Option<u64>,
        /// What the node did not take, and why.
        passed: Vec<String>,
        aside: u64,
        aside_bytes: u64,
        /// Only a look into the directory found it.
        found: bool,
        /// fleet had kept it, and it got its name back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        from_kept: bool,
    },
    /// It failed soon after a resume: the next attempt takes an earlier checkpoint.
    JobSteppedBack {
        job: JobId,
        from: Option<u64>,
        to: Option<u64>,
        why: String,
    },
    /// It cannot resume by itself, and waits for its owner's word.
    JobAsksOwner {
        job: JobId,
        why: String,
    },
    JobRestarted {
        job: JobId,
        by: String,
        /// In words: from which checkpoint, or from its beginning.
        from: String,
    },
    /// It stays in the list until its node has removed what fleet wrote beside its checkpoints.
    JobRemovalOrdered {
        job: JobId,
        by: String,
        node: NodeName,
    },
    /// It is not in the list any more.
    JobRemoved {
        job: JobId,
        by: String,
        /// Why files that fleet wrote beside its checkpoints are left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files_left: Option<String>,
    },
    /// What fleet wrote beside its checkpoints went some time after its end.
    JobFilesRemoved {
        job: JobId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files_left: Option<String>,
    },
    EvictionDeferred {
        job: JobId,
        allocation: AllocationId,
        causes: Vec<String>,
        deadline: Option<Timestamp>,
        /// The job declares no checkpoint: there is none to wait for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        saves_nothing: bool,
    },
    DeferralTaken {
        job: JobId,
        allocation: AllocationId,
        checkpoint_seq: u64,
        /// The job declares no checkpoint: there is none to wait for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        saves_nothing: bool,
    },
    DeferralCancelled {
        job: JobId,
        allocation: AllocationId,
        waited: Millis,
    },
    DeferralHeldBack {
        job: JobId,
        allocation: AllocationId,
        why: String,
    },
    EvictionStarted {
        job: JobId,
        allocation: AllocationId,
        causes: Vec<String>,
        after_checkpoint: Option<u64>,
        /// The job declares no checkpoint: there is none to wait for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        saves_nothing: bool,
    },
    JobStopping {
        job: JobId,
        allocation: AllocationId,
        why: String,
    },
    AttemptEnded {
        job: JobId,
        allocation: AllocationId,
        end: AttemptEnd,
    },
    JobRequeued {
        job: JobId,
        why: String,
        resume_from: Option<String>,
    },
    NodeExcluded {
        job: JobId,
        node: NodeName,
        why: String,
    },
    /// It may go there again.
    ExclusionLifted {
        job: JobId,
        node: NodeName,
        why: String,
    },
    JobCompleted {
        job: JobId,
        exit_code: i32,
    },
    JobFailed {
        job: JobId,
        why: String,
        exit_code: Option<i32>,
    },
    JobCancelled {
        job: JobId,
        by: String,
    },
    JobTimedOut {
        job: JobId,
        /// Where it was not its time limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    JobTimeLimitSet {
        job: JobId,
        limit: Millis,
        /// When it is over now, of one that runs.
        ends_at: Option<Timestamp>,
        by: String,
    },

    /// Proven empty, or declared so.
    GpusReleased {
        lease: LeaseId,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        /// By whose word, where nothing was proven.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        declared_by: Option<String>,
        /// The attempt or the reservation that had them.
        holder: String,
        stay: Box<Stay>,
    },
    /// It opened and ended a reservation alone, before that could have a lease.
    ServedByNode(Box<Stay>),
    /// A node measured how busy its GPUs were that somebody held, in a part of an hour.
    GpuUseMeasured(Box<MeasuredUse>),
    JoinTokenCreated {
        token: TokenId,
        names: Vec<NodeName>,
        expires_at: Timestamp,
    },
    TokenWithdrawn {
        token: TokenId,
        by: String,
    },
    JoinTokenRedeemed {
        token: TokenId,
        node: NodeName,
    },
    ControllerTokenCreated {
        token: TokenId,
        expires_at: Timestamp,
    },
    ControllerAdmitted {
        controller: u64,
        address: String,
        token: Option<TokenId>,
    },
    ControllerRemoved {
        controller: u64,
        by: String,
    },
    /// The oldest audit records left the controllers. The record of this event is the anchor of those that stayed.
    AuditPruned {
        /// Number and hash of the last record that left.
        through: u64,
        hash: String,
        /// Time of the newest record that left.
        until: Timestamp,
        records: u64,
        by: String,
    },
    RequestsRefused {
        principal: String,
        action: String,
        code: String,
        count: u64,
    },
    /// Certificates and accounts.
    Access(AccessEvent),
    /// The exchange of the certificate authority.
    Authority(AuthorityEvent),
    /// Boxed: it holds classes as they were and as they are.
    Preemption(Box<PreemptionEvent>),
    Hold(HoldEvent),
    Idle(IdleEvent),
    /// Boxed: it may name GPUs.
    Risk(Box<RiskEvent>),
    Approval(Box<ApprovalEvent>),
    /// Boxed: it may name GPUs.
    Offer(Box<OfferEvent>),
    Notice(NoticeEvent),
}
