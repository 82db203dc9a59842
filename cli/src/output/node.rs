//! Shows nodes.

use fleet_proto::json::node::{Node, Reboot};

use super::tone::Tone;
use super::values::{condition_line, or_dash};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

fn cpus(node: &Node) -> String {
    format!("{}/{}", node.cpu_millis_used.div_ceil(1_000), node.cpu_millis / 1_000)
}

fn memory(node: &Node) -> String {
    format!("{} of {}", Bytes(node.memory_bytes_used), Bytes(node.memory_bytes))
}

/// The reason of its state, and what is wrong with its GPUs.
fn reason_shown(node: &Node) -> String {
    let reboot = node.reboot.as_ref().map(Reboot::how);
    let parts = [&node.reason, &reboot, &node.gpu_problem, &node.enforced_problem];
    parts.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ")
}

impl Row for Node {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |n: &Self, _| n.name.clone()),
            Column::new("STATE", |n: &Self, _| n.state.to_string()).state(|n| Tone::of(&n.state)),
            Column::new("GPUS FREE", |n: &Self, _| format!("{}/{}", n.gpus_free, n.gpus)).right(),
            Column::new("CPUS USED", |n: &Self, _| cpus(n)).right().rank(5),
            Column::new("MEMORY USED", |n: &Self, _| memory(n)).right().rank(6),
            Column::new("JOBS", |n: &Self, _| n.jobs.len().to_string()).right().rank(3),
            Column::new("ENFORCE", |n: &Self, _| or_dash(n.enforcement())).rank(4),
            Column::new("HEARD", |n: &Self, clock| {
                or_dash(n.heard_at.map(|at| format!("{} ago", clock.ago(at.0))))
            })
            .right()
            .rank(2),
            Column::new("DRIVER", |n: &Self, _| or_dash(n.driver.as_ref())).wide(),
            Column::new("KERNEL", |n: &Self, _| or_dash(n.kernel.as_ref())).wide(),
            Column::new("OS", |n: &Self, _| or_dash(n.os.as_ref())).wide(),
            Column::new("AGENT", |n: &Self, _| or_dash(n.agent_version.as_ref())).wide(),
            Column::new("REASON", |n: &Self, _| reason_shown(n)).clip().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Node", self.name.clone()),
            ("State", self.state.to_string()),
            ("GPUs", format!("{} free of {}", self.gpus_free, self.gpus)),
            ("CPUs", format!("{} cores used", cpus(self))),
            ("Memory", format!("{} used", memory(self))),
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
