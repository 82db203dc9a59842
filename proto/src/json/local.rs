//! Defines the JSON of a node as its own agent knows it, also while no controller answers.

use fleet_core::job::JobState;
use fleet_core::view::GpuState;
use serde::Serialize;

use super::Document;
use super::values::{Stated, Time, text, time};
use crate::v1 as pb;

/// A node as its own agent knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// The version of the agent.
    pub version: String,
    /// Whether a controller answers the agent.
    pub connected: bool,
    /// When one last did; null: not since the agent started.
    pub heard_at: Option<Time>,
    /// How old what the controllers said is.
    pub age_seconds: Option<u64>,
    /// The fleet's time as the node counts it; null: not known.
    pub fleet_now: Option<Time>,
    /// The GPUs of the node.
    pub gpus: Vec<NodeGpu>,
    /// The windows that the node has been given.
    pub windows: Vec<NodeWindow>,
    /// The jobs on the node.
    pub jobs: Vec<NodeJob>,
    /// Root's switch: `on`, `warn`, `off`. It lowers what the controllers ordered.
    pub enforcement: String,
    /// Why root's switch stands as it does; null: no reason was given.
    pub enforcement_reason: Option<String>,
    /// What is in force for people without a reservation.
    pub enforced: Option<String>,
    /// What root or a user should know, one sentence each.
    pub warnings: Vec<String>,
}

/// A GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeGpu {
    /// The UUID that NVIDIA's driver gives it.
    pub uuid: String,
    /// Its number on the node, from 0; it does not change.
    pub index: u32,
    /// What `nvidia-smi` calls it.
    pub driver_index: Option<u32>,
    /// Its model as fleet calls it, `v100`; null: not known.
    pub model: Option<String>,
    /// `free`, `reserved`, `running`, `dirty`, `lost`, `unknown`.
    pub state: Stated<GpuState>,
    /// The user who holds it; null: nobody.
    pub held_by: Option<String>,
    /// The reservation it is held for; null: there is none.
    pub reservation: Option<String>,
    /// The job it is held for; null: there is none.
    pub job: Option<String>,
    /// Until when it is held; null: it is not, or without an end.
    pub held_until: Option<Time>,
    /// Why it is in its state; null: that needs no reason.
    pub reason: Option<String>,
}

/// A window on GPUs of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeWindow {
    /// The reservation, or what root granted instead.
    pub reservation: String,
    /// The user whose window it is.
    pub owner: String,
    /// Its GPUs, `titan01:0`.
    pub gpus: Vec<String>,
    /// When it starts; null: not known.
    pub starts_at: Option<Time>,
    /// When it ends; null: not known.
    pub ends_at: Option<Time>,
    /// `waiting`, `open`, `closing`, `closed`, `withdrawn`.
    pub state: String,
    /// Who granted it on this node; null: it is a reservation.
    pub granted_by: Option<String>,
    /// Why it was granted; null: it is a reservation.
    pub reason: Option<String>,
}

/// A job on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeJob {
    /// Its id.
    pub job: String,
    /// The allocation of the attempt that is on this node.
    pub allocation: String,
    /// The user whose job it is.
    pub owner: String,
    /// Its GPUs, `titan01:0`; empty: it has none.
    pub gpus: Vec<String>,
    /// `starting`, `running`, `stopping`.
    pub state: Stated<JobState>,
    /// When its time is over; null: not known.
    pub ends_at: Option<Time>,
}

impl From<pb::NodeStatus> for NodeStatus {
    fn from(status: pb::NodeStatus) -> Self {
        let heard = (status.heard_at_unix_ms > 0).then_some(status.heard_at_unix_ms);
        Self {
            connected: status.connected,
            heard_at: time(status.heard_at_unix_ms),
            age_seconds: heard.map(|heard| status.now_unix_ms.saturating_sub(heard) / 1_000),
            fleet_now: time(status.fleet_now_unix_ms),
            gpus: status.gpus.into_iter().map(NodeGpu::from).collect(),
            windows: status.windows.into_iter().map(NodeWindow::from).collect(),
            jobs: status.attempts.into_iter().map(NodeJob::from).collect(),
            enforcement: status.enforcement,
            enforcement_reason: text(&status.enforcement_reason),
            enforced: text(&status.enforced),
            warnings: status.warnings,
            node: status.node,
            version: status.version,
        }
    }
}

impl From<pb::LocalGpu> for NodeGpu {
    fn from(gpu: pb::LocalGpu) -> Self {
        Self {
            model: text(&gpu.model),
            held_by: text(&gpu.held_by),
            reservation: text(&gpu.reservation),
            job: text(&gpu.job),
            held_until: time(gpu.held_until_unix_ms),
            reason: text(&gpu.reason),
            uuid: gpu.uuid,
            index: gpu.index,
            driver_index: gpu.driver_index,
            state: gpu.state.into(),
        }
    }
}

impl From<pb::LocalWindow> for NodeWindow {
    fn from(window: pb::LocalWindow) -> Self {
        Self {
            starts_at: time(window.starts_at_unix_ms),
            ends_at: time(window.ends_at_unix_ms),
            granted_by: text(&window.granted_by),
            reason: text(&window.reason),
            reservation: window.reservation,
            owner: window.owner,
            gpus: window.gpus,
            state: window.state,
        }
    }
}

impl From<pb::LocalAttempt> for NodeJob {
    fn from(attempt: pb::LocalAttempt) -> Self {
        Self {
            ends_at: time(attempt.ends_at_unix_ms),
            job: attempt.job,
            allocation: attempt.allocation,
            owner: attempt.owner,
            gpus: attempt.gpus,
            state: attempt.state.into(),
        }
    }
}

impl NodeStatus {
    /// How old it is, as people say it.
    pub fn age(&self) -> String {
        match self.age_seconds {
            _ if self.connected => "a controller answers it".to_owned(),
            Some(age) => {
                let age = fleet_core::time::Millis::secs(age);
                format!("a controller last answered it {age} ago")
            }
            None => "no controller has answered it since it started".to_owned(),
        }
    }
}

impl Document for NodeStatus {
    const SCHEMA: &'static str = "fleet.node_status/v1";
    const LIST_SCHEMA: &'static str = "fleet.node_statuses/v1";
    const FIELDS: &'static [&'static str] = &[
        "node",
        "version",
        "connected",
        "heard_at",
        "age_seconds",
        "fleet_now",
        "gpus",
        "windows",
        "jobs",
        "enforcement",
        "enforcement_reason",
        "enforced",
        "warnings",
    ];
}
