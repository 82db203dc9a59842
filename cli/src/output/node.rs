//! Nodes.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Condition, Time, condition_line, or_dash, text, time};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) cpu_millis: u64,
    pub(crate) cpu_millis_used: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_bytes_used: u64,
    pub(crate) gpus: u32,
    pub(crate) gpus_free: u32,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) kernel: Option<String>,
    pub(crate) os: Option<String>,
    pub(crate) driver: Option<String>,
    pub(crate) agent_version: Option<String>,
    pub(crate) boot_id: Option<String>,
    pub(crate) registered_at: Option<Time>,
    pub(crate) heard_at: Option<Time>,
    pub(crate) gpu_problem: Option<String>,
    pub(crate) jobs: Vec<String>,
    pub(crate) vouches: Option<String>,
    pub(crate) certificate_ends_at: Option<Time>,
    pub(crate) enforce: Option<String>,
    pub(crate) enforced: Option<String>,
    pub(crate) enforced_problem: Option<String>,
    pub(crate) enforced_fallback: Option<String>,
    pub(crate) foreign: Option<String>,
    pub(crate) reboot: Option<Reboot>,
}

/// A reboot that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reboot {
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
    pub(crate) since: Option<Time>,
    pub(crate) waits_for: Vec<String>,
    pub(crate) begun: bool,
    pub(crate) problem: Option<String>,
}

impl From<pb::NodeReboot> for Reboot {
    fn from(reboot: pb::NodeReboot) -> Self {
        Self {
            by: reboot.by,
            reason: text(&reboot.reason),
            since: time(reboot.since_unix_ms),
            waits_for: reboot.waits_for,
            begun: reboot.begun,
            problem: text(&reboot.problem),
        }
    }
}

impl Reboot {
    /// How far it is.
    pub(crate) fn how(&self) -> String {
        match (&self.problem, self.begun, &self.waits_for[..]) {
            (Some(problem), _, _) => format!("not rebooted: {problem}"),
            (None, true, _) => "goes down to reboot".to_owned(),
            (None, false, []) => "its agent is told to reboot".to_owned(),
            (None, false, waits_for) => format!("reboots after {}", waits_for.join(", ")),
        }
    }
}

impl From<pb::Node> for Node {
    fn from(node: pb::Node) -> Self {
        Self {
            reason: text(&node.reason),
            cpu_millis: node.cpu_millis,
            cpu_millis_used: node.cpu_millis_used,
            memory_bytes: node.memory_bytes,
            memory_bytes_used: node.memory_bytes_used,
            gpus: node.gpus,
            gpus_free: node.gpus_free,
            conditions: node.conditions.into_iter().map(Condition::from).collect(),
            kernel: text(&node.kernel),
            os: text(&node.os),
            driver: text(&node.driver),
            agent_version: text(&node.agent_version),
            boot_id: text(&node.boot_id),
            registered_at: time(node.registered_at_unix_ms),
            heard_at: time(node.heard_at_unix_ms),
            gpu_problem: text(&node.gpu_problem),
            jobs: node.jobs,
            vouches: text(&node.vouches),
            certificate_ends_at: time(node.certificate_ends_at_unix_ms),
            enforce: text(&node.enforce),
            enforced: text(&node.enforced),
            enforced_problem: text(&node.enforced_problem),
            enforced_fallback: text(&node.enforced_fallback),
            foreign: text(&node.foreign),
            reboot: node.reboot.map(Reboot::from),
            name: node.name,
            state: node.state,
        }
    }
}

impl Node {
    fn cpus(&self) -> String {
        format!("{}/{}", self.cpu_millis_used.div_ceil(1_000), self.cpu_millis / 1_000)
    }

    fn memory(&self) -> String {
        format!("{} of {}", Bytes(self.memory_bytes_used), Bytes(self.memory_bytes))
    }

    /// What it is to do about people without a reservation, and what it does where that is something else.
    pub(crate) fn enforcement(&self) -> Option<String> {
        let ordered = self.enforce.as_ref()?;
        Some(match (&self.enforced, &self.enforced_fallback) {
            (Some(_), Some(fallback)) => format!("{ordered} ({fallback})"),
            (Some(enforced), None) if enforced == ordered => ordered.clone(),
            (Some(enforced), None) => format!("{ordered} ({enforced} in force)"),
            (None, _) if ordered == "off" => ordered.clone(),
            (None, _) => format!("{ordered} (not confirmed)"),
        })
    }

    /// The reason of its state, and what is wrong with its GPUs.
    fn reason_shown(&self) -> String {
        let reboot = self.reboot.as_ref().map(Reboot::how);
        let parts = [&self.reason, &reboot, &self.gpu_problem, &self.enforced_problem];
        parts.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ")
    }
}

impl Row for Node {
    const SCHEMA: &'static str = "fleet.node/v1";
    const LIST_SCHEMA: &'static str = "fleet.nodes/v1";
    const FIELDS: &'static [&'static str] = &[
        "name",
        "state",
        "reason",
        "cpu_millis",
        "cpu_millis_used",
        "memory_bytes",
        "memory_bytes_used",
        "gpus",
        "gpus_free",
        "conditions",
        "kernel",
        "os",
        "driver",
        "agent_version",
        "boot_id",
        "registered_at",
        "heard_at",
        "gpu_problem",
        "jobs",
        "vouches",
        "certificate_ends_at",
        "enforce",
        "enforced",
        "enforced_problem",
        "enforced_fallback",
        "foreign",
        "reboot",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |n: &Self, _| n.name.clone()),
            Column::new("STATE", |n: &Self, _| n.state.clone()).state(),
            Column::new("GPUS FREE", |n: &Self, _| format!("{}/{}", n.gpus_free, n.gpus)).right(),
            Column::new("CPUS USED", |n: &Self, _| n.cpus()).right(),
            Column::new("MEMORY USED", |n: &Self, _| n.memory()).right(),
            Column::new("JOBS", |n: &Self, _| n.jobs.len().to_string()).right(),
            Column::new("ENFORCE", |n: &Self, _| or_dash(n.enforcement())),
            Column::new("HEARD", |n: &Self, clock| {
                or_dash(n.heard_at.map(|at| format!("{} ago", clock.ago(at.0))))
            })
            .right(),
            Column::new("DRIVER", |n: &Self, _| or_dash(n.driver.as_ref())).wide(),
            Column::new("KERNEL", |n: &Self, _| or_dash(n.kernel.as_ref())).wide(),
            Column::new("OS", |n: &Self, _| or_dash(n.os.as_ref())).wide(),
            Column::new("AGENT", |n: &Self, _| or_dash(n.agent_version.as_ref())).wide(),
            Column::new("REASON", |n: &Self, _| n.reason_shown()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Node", self.name.clone()),
            ("State", self.state.clone()),
            ("GPUs", format!("{} free of {}", self.gpus_free, self.gpus)),
            ("CPUs", format!("{} cores used", self.cpus())),
            ("Memory", format!("{} used", self.memory())),
        ];
        let jobs = (!self.jobs.is_empty()).then(|| self.jobs.join(" "));
        let heard =
            self.heard_at.map(|at| format!("{} ({} ago)", clock.second(at.0), clock.ago(at.0)));
        let reboot = self.reboot.as_ref().map(|reboot| {
            let since = or_dash(reboot.since.map(|at| format!("{} ago", clock.ago(at.0))));
            format!("asked by {} {since}: {}", reboot.by, reboot.how())
        });
        let optional = [
            ("Reason", self.reason.clone()),
            ("Reboot", reboot),
            ("GPU problem", self.gpu_problem.clone()),
            ("Jobs", jobs),
            ("Heard", heard),
            ("Joined", self.registered_at.map(|at| clock.minute(at.0))),
            ("Driver", self.driver.clone()),
            ("Kernel", self.kernel.clone()),
            ("System", self.os.clone()),
            ("Agent", self.agent_version.clone()),
            ("Boot", self.boot_id.clone()),
            ("Enforcement", self.enforcement()),
            ("Not enforced", self.enforced_problem.clone()),
            ("Use without a lease", self.foreign.clone()),
            ("Vouches for", self.vouches.clone()),
            (
                "Certificate",
                self.certificate_ends_at.map(|at| format!("until {}", clock.minute(at.0))),
            ),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend(self.conditions.iter().map(|c| ("Condition", condition_line(c))));
        lines
    }
}
