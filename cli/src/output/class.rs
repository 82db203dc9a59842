//! Shows classes of jobs.

use fleet_proto::json::class::Class;

use super::{Column, Row};
use crate::times::{Clock, length};

fn users(class: &Class) -> String {
    if class.everybody {
        return "everybody".to_owned();
    }
    let groups = class.groups.iter().map(|group| format!("@{group}"));
    let all: Vec<String> = class.members.iter().cloned().chain(groups).collect();
    match all.is_empty() {
        true => "admins".to_owned(),
        false => all.join(", "),
    }
}

fn each(class: &Class) -> String {
    class.gpus_each.map_or_else(|| "-".to_owned(), |most| most.to_string())
}

/// After what time a job of it may have to leave.
fn leaves(class: &Class) -> String {
    match class.preemptible.as_str() {
        "never" => "never".to_owned(),
        "checkpoint" => format!("after {}, at a checkpoint", length(class.min_run_ms)),
        "always" => format!("after {}", length(class.min_run_ms)),
        other => other.to_owned(),
    }
}

impl Row for Class {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("CLASS", |c: &Self, _| c.name.clone()),
            Column::new("PRIORITY", |c: &Self, _| c.priority.to_string()).right(),
            Column::new("PREEMPTS", |c: &Self, _| if c.preempts { "yes" } else { "no" }.to_owned()),
            Column::new("LEAVES", |c: &Self, _| leaves(c)),
            Column::new("GPUS EACH", |c: &Self, _| each(c)).right().rank(3),
            Column::new("RUNS", |c: &Self, _| c.running.to_string()).right().rank(2),
            Column::new("WAITS", |c: &Self, _| c.waiting.to_string()).right().rank(2),
            Column::new("USERS", |c: &Self, _| users(c)).clip(),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Class", self.name.clone()),
            ("Priority", self.priority.to_string()),
            ("Users", users(self)),
            ("Preempts", if self.preempts { "yes, lower classes" } else { "no" }.to_owned()),
            ("Leaves", leaves(self)),
        ];
        if self.preemptible != "never" {
            let wait = format!("waited for up to {}, then stopped", length(self.save_limit_ms));
            lines.push(("To save", wait));
        }
        if let Some(most) = self.gpus_each {
            lines.push(("GPUs each", format!("at most {most} of one person at once")));
        }
        let jobs = format!("{} running, {} waiting", self.running, self.waiting);
        lines.push(("Jobs", jobs));
        lines
    }
}
