//! Defines the JSON of a node: its state, what it has, what is used of it and how it holds people to reservations.

use fleet_core::view::NodeState;
use serde::Serialize;

use super::Document;
use super::values::{Condition, Stated, Time, text, time};
use crate::v1 as pb;

/// A node of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `ready`, `suspect`, `unreachable`, `cordoned`, `draining`, `drained`, `suspended`.
    pub state: Stated<NodeState>,
    /// Why it is in its state; null: that needs no reason.
    pub reason: Option<String>,
    /// The processor time it has, in thousandths of a core.
    pub cpu_millis: u64,
    /// How much of that jobs have, in thousandths of a core.
    pub cpu_millis_used: u64,
    /// The memory it has, in bytes.
    pub memory_bytes: u64,
    /// How much of that jobs have, in bytes.
    pub memory_bytes_used: u64,
    /// How many GPUs it has.
    pub gpus: u32,
    /// How many of them are free.
    pub gpus_free: u32,
    /// What is known of its health, fact by fact.
    pub conditions: Vec<Condition>,
    /// The version of its kernel; null: not known.
    pub kernel: Option<String>,
    /// Its operating system; null: not known.
    pub os: Option<String>,
    /// The version of its GPU driver; null: not known.
    pub driver: Option<String>,
    /// The version of its agent; null: not known.
    pub agent_version: Option<String>,
    /// It changes whenever the machine boots; null: not known.
    pub boot_id: Option<String>,
    /// When it joined; null: not known.
    pub registered_at: Option<Time>,
    /// When the answering controller last heard its agent; null: it has not.
    pub heard_at: Option<Time>,
    /// Why its GPUs cannot be checked; null: they can.
    pub gpu_problem: Option<String>,
    /// The jobs on it.
    pub jobs: Vec<String>,
    /// The users that it can vouch for, so that they get a certificate: `off`, `users`, `admins`; null: not known.
    pub vouches: Option<String>,
    /// When the certificate that it got last ends; null: none is on record.
    pub certificate_ends_at: Option<Time>,
    /// How it is to hold people to their reservations: `off`, `warn`, `on`; null: not known.
    pub enforce: Option<String>,
    /// What it says it does about that; null: it said nothing.
    pub enforced: Option<String>,
    /// Why that is not what it is to do; null: it is.
    pub enforced_problem: Option<String>,
    /// What it does instead, where its kernel does not take what it is to do; null: it does.
    pub enforced_fallback: Option<String>,
    /// What it does about those who use a GPU without a lease: `warn`, `stop`; null: it said nothing.
    pub foreign: Option<String>,
    /// A reboot that somebody wants; null: nobody does.
    pub reboot: Option<Reboot>,
}

/// A reboot that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reboot {
    /// Who asked for it.
    pub by: String,
    /// Why; null: no reason was given.
    pub reason: Option<String>,
    /// When it was asked for; null: not known.
    pub since: Option<Time>,
    /// What it waits for, as far as the controllers know.
    pub waits_for: Vec<String>,
    /// The agent said that the machine goes down.
    pub begun: bool,
    /// Why the agent does not reboot the machine; null: there is no problem.
    pub problem: Option<String>,
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
    pub fn how(&self) -> String {
        match (&self.problem, self.begun, &self.waits_for[..]) {
            (Some(problem), _, _) => format!("not rebooted: {problem}"),
            (None, true, _) => "goes down to reboot".to_owned(),
            (None, false, []) => "its agent has the order to reboot".to_owned(),
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
            state: node.state.into(),
        }
    }
}

impl Node {
    /// What it is to do about people without a reservation, and what it does where that is something else.
    pub fn enforcement(&self) -> Option<String> {
        let ordered = self.enforce.as_ref()?;
        Some(match (&self.enforced, &self.enforced_fallback) {
            (Some(_), Some(fallback)) => format!("{ordered} ({fallback})"),
            (Some(enforced), None) if enforced == ordered => ordered.clone(),
            (Some(enforced), None) => format!("{ordered} ({enforced} in force)"),
            (None, _) if ordered == "off" => ordered.clone(),
            (None, _) => format!("{ordered} (not confirmed)"),
        })
    }
}

impl Document for Node {
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
}
