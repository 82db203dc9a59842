//! Shows the GPUs of each node in one line: how many are free, and who has the others until when.

use fleet_core::view::GpuState;
use fleet_proto::json::node_gpus::{InUse, NodeGpus};

use super::tone::Tone;
use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

impl Row for NodeGpus {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |n: &Self, _| n.node.clone()),
            Column::new("FREE", |n: &Self, _| format!("{}/{}", n.gpus_free, n.gpus))
                .right()
                .state(|n| if n.gpus_free > 0 { Tone::Good } else { Tone::Plain }),
            Column::new("MODEL", |n: &Self, _| {
                or_dash(Some(n.models.join(",")).filter(|models| !models.is_empty()))
            })
            .clip_to(8)
            .rank(1),
            Column::new("UTIL %", |n: &Self, _| utilization(n)).clip_to(8).rank(2),
            Column::new("IN USE", |n: &Self, clock| in_use(n, clock).join("; ")).clip(),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Node", self.node.clone()),
            ("Free", format!("{} of {}", self.gpus_free, self.gpus)),
        ];
        lines.extend(in_use(self, clock).into_iter().map(|one| ("In use", one)));
        lines
    }
}

/// `97 - 3 0`, in the order of the GPUs; nothing where none was measured.
fn utilization(node: &NodeGpus) -> String {
    match node.utilization_percent.iter().all(Option::is_none) {
        true => "-".to_owned(),
        false => node
            .utilization_percent
            .iter()
            .map(|percent| or_dash(*percent))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// `0,1 ada until 18:00` and `3 closed: unreachable`. Whether somebody runs a job on a GPU of theirs does not matter here.
fn in_use(node: &NodeGpus, clock: &Clock) -> Vec<String> {
    let mut groups: Vec<(Vec<u32>, String)> = Vec::new();
    for one in &node.in_use {
        let who = who(&node.node, one, clock);
        match groups.iter_mut().find(|(_, known)| *known == who) {
            Some((numbers, _)) => numbers.extend(&one.gpus),
            None => groups.push((one.gpus.clone(), who)),
        }
    }
    let shown = |(mut numbers, who): (Vec<u32>, String)| {
        numbers.sort_unstable();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!("{} {who}", numbers.join(","))
    };
    groups.into_iter().map(shown).collect()
}

/// A reason in a line that begins with the node's name, without that name.
pub(super) fn beside<'a>(node: &str, reason: &'a str) -> &'a str {
    reason.strip_prefix(node).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason)
}

fn who(node: &str, one: &InUse, clock: &Clock) -> String {
    let until = one.held_until.map(|at| format!(" until {}", clock.brief(at.0)));
    match (&one.held_by, one.state.known()) {
        (Some(user), Some(GpuState::Reserved | GpuState::Running)) => {
            format!("{user}{}", until.unwrap_or_default())
        }
        (Some(user), _) => format!("{} ({user})", one.state),
        // Of the whole node, so it is said once. What is wrong with one GPU would push its neighbours' users out.
        (None, Some(GpuState::Closed | GpuState::Unknown)) => match one.reason.as_deref() {
            Some(reason) => format!("{}: {}", one.state, beside(node, reason)),
            None => one.state.to_string(),
        },
        (None, _) => one.state.to_string(),
    }
}
