//! Nodes: what an agent reported of its machine, and what was decided about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::gpu::{Gpu, GpuLink};
use crate::health::{Condition, ConditionStatus, Severity, Subject};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::reason::Closed;
use crate::reboot::RebootWish;
use crate::risk::SILENT_MIN;
use crate::stored::is_default;
use crate::time::{Millis, Timestamp};
use crate::window::{Enforced, Enforcement, EnforcementOrder, EnforcementSwitch};
use crate::word::words;

/// Most nodes one fleet holds.
pub const NODES_MAX: usize = 10_000;

/// How far back the deadline of a drain may lie: `now` was said by another clock, and takes its time to come.
pub const DEADLINE_SLACK: Millis = Millis::minutes(2);

/// What tells one machine from another, beyond its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIdentity {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// DMI product UUID, empty where the firmware gives none.
    pub dmi_uuid: String,
}

/// What an agent says of its machine when it connects, and again when it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    pub machine: MachineIdentity,
    /// `/proc/sys/kernel/random/boot_id`: new at every boot.
    pub boot_id: String,
    /// Random, new at every start of the agent: tells two live agents of one name apart.
    pub agent_instance: String,
    pub agent_version: String,
    pub kernel: String,
    pub os: String,
    pub driver: Option<String>,
    /// Cores times 1,000 that jobs may share.
    pub cpu_millis: u64,
    /// Memory that jobs may share.
    pub memory_bytes: u64,
    /// All that its agent reports. In the state, where [`Node::gpus`] names those that count on the node, only the cards
    /// that still count on another one.
    pub gpus: Vec<Gpu>,
    pub links: Vec<GpuLink>,
    /// Why there is no GPU inventory, when there is none.
    pub gpu_problem: Option<String>,
    /// Absent from agents that do not know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced: Option<Enforced>,
    /// The agent released the driver on purpose: then it is no fault that nobody knows how the GPUs are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub driver_released: bool,
}

impl NodeFacts {
    /// Of a machine of which nothing else is known: no GPUs, no cores, no memory.
    pub fn bare(machine: MachineIdentity) -> Self {
        Self {
            machine,
            boot_id: String::new(),
            agent_instance: String::new(),
            agent_version: String::new(),
            kernel: String::new(),
            os: String::new(),
            driver: None,
            cpu_millis: 0,
            memory_bytes: 0,
            gpus: Vec::new(),
            links: Vec::new(),
            gpu_problem: None,
            enforced: None,
            driver_released: false,
        }
    }
}

/// Whether the leader hears the agent. Silence only stops new placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    Ready,
    Suspect,
    Unreachable,
}

words!(Liveness {
    Ready => "ready",
    Suspect => "suspect",
    Unreachable => "unreachable",
});

/// No new work on the node, by somebody's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
}

/// The node is to be emptied: a cordon plus a deferred eviction of each allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub since: Timestamp,
    /// When work that saved nothing is stopped all the same; without it, such work finishes.
    pub deadline: Option<Timestamp>,
}

/// A condition that an admin decided to clear: the agent has still to do it. The age tells it from one
/// that came later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearOrder {
    pub gpu: GpuUuid,
    pub kind: String,
    pub since: Timestamp,
}

/// One machine with an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: NodeName,
    pub facts: NodeFacts,
    /// UUIDs in index order.
    pub gpus: Vec<GpuUuid>,
    pub liveness: Liveness,
    pub liveness_since: Timestamp,
    /// When it was last heard, while it is not `Ready`.
    pub silent_since: Option<Timestamp>,
    pub cordon: Option<Cordon>,
    pub drain: Option<Drain>,
    /// Two live agents spoke under this name: nothing is placed until an operator uncordons it.
    pub suspended: Option<String>,
    pub conditions: Vec<Condition>,
    /// The conditions that its agent has the order to clear and still reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clearing: Vec<ClearOrder>,
    pub registered_at: Timestamp,
    /// Since the restore from a backup its agent has not said what it holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
    /// The emergency switch, once root has touched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<EnforcementSwitch>,
    /// How it is to hold people to their reservations; none before an admin said so the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce: Option<EnforcementOrder>,
    /// The node is to reboot once it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootWish>,
    /// What the node measured of its GPUs is counted until then: reports that begin before it are known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub use_counted: Timestamp,
}

impl Node {
    /// The worst severity that holds, or may hold for all that is known, of one of the node's GPUs;
    /// the node's own conditions included.
    pub fn severity_for(&self, gpu: &GpuUuid) -> Option<Severity> {
        self.conditions_for(gpu)
            .filter(|c| c.status != ConditionStatus::False)
            .map(|c| c.severity)
            .max()
    }

    /// From when on it may not come back in time for what begins soon; `None` while it is heard, and where nothing of it
    /// counts.
    pub(crate) fn may_stay_silent_at(&self) -> Option<Timestamp> {
        let counts = self.liveness == Liveness::Unreachable && !self.uncounted;
        let since = self.silent_since.filter(|_| counts && self.suspended.is_none());
        since.map(|since| since + SILENT_MIN)
    }

    /// What an admin ordered; a node nobody gave an order only observes.
    pub fn enforcement_ordered(&self) -> Enforcement {
        self.enforce.as_ref().map_or(Enforcement::Off, |order| order.mode)
    }

    /// The conditions of one GPU and of the node itself.
    pub fn conditions_for<'a>(
        &'a self,
        gpu: &'a GpuUuid,
    ) -> impl Iterator<Item = &'a Condition> + 'a {
        self.conditions.iter().filter(move |c| match &c.subject {
            Subject::Node => true,
            Subject::Gpu(uuid) => uuid == gpu,
        })
    }

    /// Why it takes no work; `None` where it does.
    pub fn closed(&self) -> Option<Closed> {
        if let Some(why) = &self.suspended {
            return Some(Closed::Suspended { why: why.clone() });
        }
        if self.uncounted {
            return Some(Closed::NotCounted);
        }
        if self.drain.is_some() {
            return Some(Closed::Draining);
        }
        if let Some(cordon) = &self.cordon {
            let (by, reason) = (cordon.by.clone(), cordon.reason.clone());
            return Some(Closed::Cordoned { by, reason });
        }
        match self.liveness {
            Liveness::Ready => None,
            Liveness::Suspect => Some(Closed::Suspect),
            Liveness::Unreachable => Some(Closed::Unreachable),
        }
    }
}

/// A join token as it is replicated: never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    pub id: crate::id::TokenId,
    /// SHA-256 of the secret, hexadecimal.
    pub secret_sha256: String,
    /// The node names it may be used for, each once.
    pub names: Vec<NodeName>,
    /// Which names were used, by which machine; joining again from the same machine is allowed.
    pub used: BTreeMap<NodeName, MachineIdentity>,
    pub created_by: UserName,
    pub expires_at: Timestamp,
}
