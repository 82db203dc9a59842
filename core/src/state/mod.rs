//! The state of the fleet: the whole truth of the control plane, and what is derived from it to be found fast.
//!
//! Here are its fields and its getters. [`crate::fsm`] alone changes it; the calendar, the scheduler and the views read it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::allocation::Allocation;
use crate::audit::prune::Pruned;
use crate::authority::Authorities;
use crate::class::{Class, Classes};
use crate::command::KeptPlace;
use crate::controller::Roster;
use crate::ending::ReservationRules;
use crate::fair_share::FairShare;
use crate::gpu::{FormerName, Gpu};
use crate::hold::JobHold;
use crate::id::{AllocationId, ClusterId, JobId, LeaseId, ReservationId, TokenId};
use crate::job::{Job, JobDefaults, QueueKey};
use crate::lease::Lease;
use crate::limits::LimitsByGroup;
use crate::name::{ClassName, GpuUuid, NodeName, UserName};
use crate::node::{JoinToken, Node};
use crate::notice::Notices;
use crate::people::People;
use crate::preemption::Preemptions;
use crate::project::Projects;
use crate::reservation::{Place, Reservation};
use crate::stored::is_default;
use crate::time::{Timestamp, Window};
use crate::waitlist::Waitlist;

pub(crate) mod bits;
pub(crate) mod built;
mod by_time;
pub(crate) mod charged;
pub(crate) mod claims;
pub(crate) mod contents;
mod gpu_names;
pub(crate) mod index;
mod indexing;
mod invariants;
mod on_nodes;
pub(crate) mod requests;
mod reservation_book;
mod restored;
pub(crate) mod share;
mod snapshot;
pub(crate) mod standing;
pub(crate) mod storm;
pub(crate) mod topology;
pub(crate) mod wish;

use index::Index;
use on_nodes::OnNodes;
use standing::Standing;

pub use invariants::Violation;
pub use requests::REQUEST_WINDOW;
pub use restored::Restored;
pub use snapshot::{FORMAT, OtherFormat, SNAPSHOT_VERSION, SnapshotError, check_format};
pub use storm::Freeze;

/// Who holds a GPU now: a lease, and under a reservation's lease at most one child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub lease: LeaseId,
    pub child: Option<LeaseId>,
}

/// The state. Two replicas that applied the same log hold equal values of all that a snapshot holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fsm {
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) incarnation: u64,
    pub(crate) cluster_version: u32,
    /// The latest time seen; never steps back but by `ResetClock`.
    pub(crate) now: Timestamp,
    /// Index of the last entry applied.
    pub(crate) applied: u64,
    pub(crate) nodes: OnNodes<NodeName, Node>,
    pub(crate) gpus: OnNodes<GpuUuid, Gpu>,
    /// Nodes with cards that still count on another node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) cards_elsewhere: BTreeSet<NodeName>,
    /// What cards were called before, the oldest name first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) former_names: BTreeMap<GpuUuid, Vec<FormerName>>,
    pub(crate) holds: BTreeMap<GpuUuid, Hold>,
    pub(crate) leases: OnNodes<LeaseId, Lease>,
    pub(crate) reservations: reservation_book::ReservationBook,
    /// When those with a bad place were last tried on all nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) places_tried_at: Timestamp,
    /// Reservations that wait for a place, or for an earlier one.
    #[serde(default, skip_serializing_if = "Waitlist::is_untouched")]
    pub(crate) waitlist: Waitlist,
    /// Who may approve reservations above a limit, beside admins.
    #[serde(default, skip_serializing_if = "People::is_empty")]
    pub(crate) approvers: People,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// Queued jobs in the order they are served.
    #[serde(with = "queue_as_list")]
    pub(crate) queue: BTreeMap<QueueKey, JobId>,
    /// Whose places are kept, since an earlier plan, in the order in which they are served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) kept_places: Vec<KeptPlace>,
    /// When the queue is looked through again although nothing happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) look_at: Option<Timestamp>,
    /// Work that leaves for jobs of higher classes, by the job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) preemptions: Preemptions,
    pub(crate) jobs_submitted: u64,
    /// Finished jobs, oldest first.
    pub(crate) finished: VecDeque<JobId>,
    pub(crate) ended_reservations: VecDeque<ReservationId>,
    pub(crate) allocations: OnNodes<AllocationId, Allocation>,
    pub(crate) tokens: BTreeMap<TokenId, JoinToken>,
    #[serde(default)]
    pub(crate) roster: Roster,
    pub(crate) requests: requests::RequestTable,
    pub(crate) storm: storm::StormWatch,
    /// Certificates and accounts.
    #[serde(default)]
    pub(crate) access: Access,
    /// The certificate authority, where it was ever exchanged.
    #[serde(default, skip_serializing_if = "Authorities::is_untouched")]
    pub(crate) authorities: Authorities,
    /// How windows end, where an admin said so.
    #[serde(default, skip_serializing_if = "ReservationRules::is_default")]
    pub(crate) rules: ReservationRules,
    /// How much people may reserve, where an admin said so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) limits: LimitsByGroup,
    /// Projects that admins made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) projects: Projects,
    /// Classes that admins created or changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) classes: Classes,
    /// What people used, and how fast it fades.
    #[serde(default, skip_serializing_if = "FairShare::is_default")]
    pub(crate) fair_share: FairShare,
    /// Defaults for jobs, where an admin set any.
    #[serde(default, skip_serializing_if = "JobDefaults::is_default")]
    pub(crate) job_defaults: JobDefaults,
    /// Jobs that are tried again later, and when they are queued.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) paused: BTreeMap<JobId, Timestamp>,
    /// Jobs that wait and are not placed before somebody releases them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) held: BTreeMap<JobId, JobHold>,
    /// Ended jobs whose files beside their checkpoints go at that time.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) files_due: BTreeSet<(Timestamp, JobId)>,
    /// Jobs whose files a node is to remove now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) removing: BTreeMap<NodeName, BTreeSet<JobId>>,
    pub(crate) audit_seq: u64,
    pub(crate) audit_head: Option<String>,
    /// The records that left the controllers, if any did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audit_pruned: Option<Pruned>,
    /// What people want to hear by mail, and what they heard.
    #[serde(default, skip_serializing_if = "Notices::is_untouched")]
    pub(crate) notices: Notices,
    /// The restore this incarnation began with, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored: Option<Restored>,
    /// The last entry after which a plan may come out differently. Not part of the state: only who
    /// plans compares it with what it was.
    #[serde(skip)]
    pub(crate) plan_inputs: u64,
    /// What the calendar finds places by. Derived from the rest, so it is never stored.
    #[serde(skip)]
    pub(crate) index: Index,
    /// What each node has to give to a plan. Derived from the rest as well.
    #[serde(skip)]
    pub(crate) standings: BTreeMap<NodeName, Standing>,
    /// The jobs that name each reservation, ended ones too. Derived from the jobs.
    #[serde(skip)]
    pub(crate) jobs_bound: BTreeMap<ReservationId, BTreeSet<JobId>>,
    /// The jobs of each class, ended ones too, apart by whether they named a time limit. Derived from the jobs.
    #[serde(skip)]
    pub(crate) jobs_by_class: BTreeMap<(ClassName, indexing::Limit), BTreeSet<JobId>>,
}

/// JSON keys are text, so the queue is stored as a list of pairs.
mod queue_as_list {
    use super::{BTreeMap, Deserialize, JobId, QueueKey};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        queue: &BTreeMap<QueueKey, JobId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(queue.iter())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<QueueKey, JobId>, D::Error> {
        Ok(Vec::<(QueueKey, JobId)>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl Fsm {
    /// An empty state; the first command of a cluster is `InitCluster`.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn cluster(&self) -> Option<&ClusterId> {
        self.cluster.as_ref()
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn cluster_version(&self) -> u32 {
        self.cluster_version
    }

    /// The latest time seen.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Index of the last entry applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.nodes
    }

    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub fn gpus(&self) -> &BTreeMap<GpuUuid, Gpu> {
        &self.gpus
    }

    pub fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.gpus.get(uuid)
    }

    /// Who holds the GPU now.
    pub fn hold(&self, uuid: &GpuUuid) -> Option<&Hold> {
        self.holds.get(uuid)
    }

    pub fn leases(&self) -> &BTreeMap<LeaseId, Lease> {
        &self.leases
    }

    pub(crate) fn leases_on(&self, node: &NodeName) -> impl Iterator<Item = &Lease> {
        self.leases.on(node)
    }

    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// All that are kept, by id.
    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.all()
    }

    /// Those of them that have not ended.
    pub fn open_reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.open()
    }

    /// Those of one node that have not ended.
    pub fn open_reservations_on(&self, node: &NodeName) -> impl Iterator<Item = &Reservation> {
        self.reservations.open_on(node)
    }

    /// The same, without those that cannot be in the way of the window; in no order.
    pub(crate) fn open_reservations_near(
        &self,
        node: &NodeName,
        window: &Window,
    ) -> impl Iterator<Item = &Reservation> {
        self.reservations.open_near(node, window)
    }

    /// Reservations that wait to get a place on the node, with that place: it counts as taken already.
    pub fn reservations_coming_to(
        &self,
        node: &NodeName,
    ) -> impl Iterator<Item = (&Reservation, &Place)> {
        self.reservations.coming_to(node)
    }

    /// All that wait to get another place, with that place.
    pub fn reservations_coming(&self) -> impl Iterator<Item = (&Reservation, &Place)> {
        self.reservations.coming()
    }

    pub fn reservation(&self, id: &ReservationId) -> Option<&Reservation> {
        self.reservations.get(id)
    }

    /// Reservations that wait for a place, or for an earlier one.
    pub fn waitlist(&self) -> &Waitlist {
        &self.waitlist
    }

    /// Whose reservation it is or was, also while it is on the waiting list.
    pub fn owner_of_reservation(&self, id: &ReservationId) -> Option<&UserName> {
        let waits = || self.waitlist.get(id).map(|waiter| &waiter.wish.owner);
        let waited = || self.waitlist.was_over(id).map(|over| &over.waiter.wish.owner);
        self.reservation(id).map(|r| &r.owner).or_else(waits).or_else(waited)
    }

    pub fn jobs(&self) -> &BTreeMap<JobId, Job> {
        &self.jobs
    }

    pub fn job(&self, id: &JobId) -> Option<&Job> {
        self.jobs.get(id)
    }

    /// Whether it can be placed: not one that is held, that waits for its owner, or for the time of its next try.
    pub(crate) fn is_in_queue(&self, job: &Job) -> bool {
        self.queue.get(&job.queue) == Some(&job.id)
    }

    /// When a job that failed is tried again.
    pub fn paused_until(&self, job: &JobId) -> Option<Timestamp> {
        self.paused.get(job).copied()
    }

    /// Queued jobs, first served first.
    pub fn queue(&self) -> impl Iterator<Item = &Job> {
        self.queue.values().filter_map(|id| self.jobs.get(id))
    }

    /// The jobs whose places were kept by the last plan, while they wait.
    pub fn kept_places(&self) -> impl Iterator<Item = &KeptPlace> {
        let waits =
            |kept: &&KeptPlace| self.jobs.get(&kept.job).is_some_and(|job| self.is_in_queue(job));
        self.kept_places.iter().filter(waits)
    }

    /// Work that leaves for jobs of higher classes, by the job that gets the place.
    pub fn preemptions(&self) -> &Preemptions {
        &self.preemptions
    }

    /// When the queue is looked through again although nothing happens.
    pub fn look_at(&self) -> Option<Timestamp> {
        self.look_at
    }

    /// Attempts that have not ended.
    pub fn allocations(&self) -> &BTreeMap<AllocationId, Allocation> {
        &self.allocations
    }

    /// Those of one node.
    pub fn allocations_on(&self, node: &NodeName) -> impl Iterator<Item = &Allocation> {
        self.allocations.on(node)
    }

    pub fn allocation(&self, id: &AllocationId) -> Option<&Allocation> {
        self.allocations.get(id)
    }

    pub fn tokens(&self) -> &BTreeMap<TokenId, JoinToken> {
        &self.tokens
    }

    /// Why automatic evictions are frozen, if they are.
    pub fn evictions_frozen(&self) -> Option<&storm::Freeze> {
        self.storm.frozen()
    }

    /// Differs from what it was if a plan may come out differently by now.
    pub fn plan_inputs(&self) -> u64 {
        self.plan_inputs
    }

    /// The GPUs of a node in index order.
    pub fn gpus_of<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a Gpu> {
        self.node(node).into_iter().flat_map(|n| n.gpus.iter()).filter_map(|uuid| self.gpu(uuid))
    }

    /// Who may come in, for the edge.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The rules for all reservations.
    pub fn reservation_rules(&self) -> &ReservationRules {
        &self.rules
    }

    /// The defaults for jobs that are submitted now.
    pub fn job_defaults(&self) -> &JobDefaults {
        &self.job_defaults
    }

    /// Those that admins made, and `default` where something is set of it.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }

    /// One class, as it is in this fleet.
    pub fn class(&self, name: &ClassName) -> Option<Cow<'_, Class>> {
        let set = self.classes.get(name).map(Cow::Borrowed);
        set.or_else(|| Class::built_in(name).map(Cow::Owned))
    }

    /// How many GPUs each person may hold in that class. None of the classes that come with fleet has such a limit.
    pub(crate) fn gpus_each_in(&self, class: &ClassName) -> Option<u32> {
        self.classes.get(class)?.gpus_each
    }

    /// The names of all classes, the highest priority first.
    pub fn class_names(&self) -> Vec<ClassName> {
        let built_in = Class::BUILT_IN.iter().filter_map(|name| ClassName::parse(name).ok());
        let mut all: BTreeSet<ClassName> = built_in.collect();
        all.extend(self.classes.keys().cloned());
        let mut all: Vec<ClassName> = all.into_iter().collect();
        all.sort_by_key(|name| std::cmp::Reverse(self.class(name).map(|class| class.priority)));
        all
    }

    /// Number and hash of the newest audit record.
    pub fn audit_head(&self) -> (u64, Option<&str>) {
        (self.audit_seq, self.audit_head.as_deref())
    }

    /// The records that left the controllers, if any did.
    pub fn audit_pruned(&self) -> Option<&Pruned> {
        self.audit_pruned.as_ref()
    }
}
