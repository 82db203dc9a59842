//! A node as its own agent knows it: what there is to see while no controller answers.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, or_dash, text, time};
use super::{Column, Row};
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeStatus {
    pub(crate) node: String,
    pub(crate) version: String,
    /// Whether a controller answers the agent.
    pub(crate) connected: bool,
    /// When one last did; null: not since the agent started.
    pub(crate) heard_at: Option<Time>,
    /// How old what the controllers said is.
    pub(crate) age_seconds: Option<u64>,
    pub(crate) fleet_now: Option<Time>,
    pub(crate) gpus: Vec<NodeGpu>,
    pub(crate) windows: Vec<NodeWindow>,
    pub(crate) jobs: Vec<NodeJob>,
    pub(crate) enforcement: String,
    pub(crate) enforcement_reason: Option<String>,
    /// What is in force for people without a reservation.
    pub(crate) enforced: Option<String>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeGpu {
    pub(crate) uuid: String,
    pub(crate) index: u32,
    /// What `nvidia-smi` calls it.
    pub(crate) driver_index: Option<u32>,
    pub(crate) model: Option<String>,
    pub(crate) state: String,
    pub(crate) held_by: Option<String>,
    pub(crate) reservation: Option<String>,
    pub(crate) job: Option<String>,
    pub(crate) held_until: Option<Time>,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeWindow {
    pub(crate) reservation: String,
    pub(crate) owner: String,
    pub(crate) gpus: Vec<String>,
    pub(crate) starts_at: Option<Time>,
    pub(crate) ends_at: Option<Time>,
    pub(crate) state: String,
    pub(crate) granted_by: Option<String>,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeJob {
    pub(crate) job: String,
    pub(crate) allocation: String,
    pub(crate) owner: String,
    pub(crate) gpus: Vec<String>,
    pub(crate) state: String,
    pub(crate) ends_at: Option<Time>,
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
            state: gpu.state,
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
            state: attempt.state,
        }
    }
}

impl NodeStatus {
    /// How old it is, as people say it.
    pub(crate) fn age(&self) -> String {
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

impl Row for NodeStatus {
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

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |s: &Self, _| s.node.clone()),
            Column::new("HEARD", |s: &Self, clock| {
                or_dash(s.heard_at.map(|at| clock.second(at.0)))
            }),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let minute = |at: Option<Time>| or_dash(at.map(|at| clock.day_and_minute(at.0)));
        let mut lines = vec![
            ("Node", format!("{}, by its own agent: {}", self.node, self.age())),
            ("Fleet's time", or_dash(self.fleet_now.map(|now| clock.second(now.0)))),
        ];
        let why = self.enforcement_reason.as_ref().map(|why| format!(": {why}"));
        lines.push(("Root's switch", format!("{}{}", self.enforcement, why.unwrap_or_default())));
        lines.push(("Enforced", or_dash(self.enforced.as_ref())));
        for gpu in &self.gpus {
            let held = gpu.held_by.as_ref().map_or(String::new(), |by| format!(" {by}"));
            let what = gpu.job.as_ref().or(gpu.reservation.as_ref());
            let what = what.map_or(String::new(), |what| format!(" ({what})"));
            let until = gpu.held_until.map(|_| format!(" until {}", minute(gpu.held_until)));
            let (until, name) = (until.unwrap_or_default(), format!("{}:{}", self.node, gpu.index));
            let otherwise = gpu.driver_index.filter(|i| *i != gpu.index && gpu.state != "lost");
            let there = otherwise.map_or(String::new(), |i| format!(" (`nvidia-smi`: {i})"));
            lines.push(("GPU", format!("{name}  {}{held}{what}{until}{there}", gpu.state)));
        }
        for window in &self.windows {
            let (from, until) = (minute(window.starts_at), minute(window.ends_at));
            let granted = match (&window.granted_by, &window.reason) {
                (Some(by), Some(why)) => format!(", granted by {by}: {why}"),
                _ => String::new(),
            };
            let (id, owner, gpus) = (&window.reservation, &window.owner, window.gpus.join(","));
            let state = &window.state;
            lines.push((
                "Reservation",
                format!("{id}  {owner} {gpus} from {from} until {until}, {state}{granted}"),
            ));
        }
        for job in &self.jobs {
            let gpus = if job.gpus.is_empty() { "no GPU".to_owned() } else { job.gpus.join(",") };
            lines.push(("Job", format!("{}  {} {gpus} {}", job.job, job.owner, job.state)));
        }
        lines.extend(self.warnings.iter().map(|warning| ("Warning", warning.clone())));
        lines
    }
}
