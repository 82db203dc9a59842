//! Shows projects, and who had how much of the fleet.

use fleet_core::fair_share::gpu_hours as hours;
use fleet_proto::json::project::{Limits, Project, Share, ShareLine};

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

/// What stands for a project as a whole among its people.
const ALL: &str = "(all)";

/// GPUs, with what of one work without GPUs counts for: `2`, `0.06`.
fn gpus(millis: u64) -> String {
    match millis % 1_000 {
        0 => (millis / 1_000).to_string(),
        rest => format!("{}.{:02}", millis / 1_000, rest / 10),
    }
}

fn jobs(count: u32) -> String {
    format!("{count} job{}", if count == 1 { "" } else { "s" })
}

fn percent(per_mille: u32) -> String {
    format!("{}.{}%", per_mille / 10, per_mille % 10)
}

fn list(names: &[String]) -> String {
    names.join(", ")
}

fn everybody(project: &Project) -> Option<String> {
    (project.members.is_empty() && project.groups.is_empty()).then(|| match project.name.as_str() {
        "default" => "everybody".to_owned(),
        _ => "nobody yet".to_owned(),
    })
}

fn weight(project: &Project) -> String {
    match project.weight_is_set {
        true => project.weight.to_string(),
        false => format!("{} (its people)", project.weight),
    }
}

/// What it may have, with what counts for that now.
fn limits(project: &Project) -> Vec<(&'static str, String)> {
    let Limits { gpus, gpus_each, gpu_hours, gpu_hours_each } = project.limits;
    let committed = project.share.committed_gpu_ms.map(hours).unwrap_or_default();
    let said = [
        gpus.map(|most| format!("{most} GPUs at once")),
        gpus_each.map(|most| format!("{most} GPUs at once for each person")),
        gpu_hours.map(|most| format!("{most} GPU-hours; {committed} are used, held or booked")),
        gpu_hours_each.map(|most| format!("{most} GPU-hours for each person")),
    ];
    said.into_iter().flatten().map(|text| ("Limit", text)).collect()
}

impl Row for Project {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("PROJECT", |p: &Self, _| p.name.clone()),
            Column::new("WEIGHT", |p: &Self, _| p.weight.to_string()).right(),
            Column::new("DUE", |p: &Self, _| percent(p.share.due_per_mille)).right(),
            Column::new("GPU-HOURS", |p: &Self, _| hours(p.share.used_gpu_ms)).right(),
            Column::new("HOLDS", |p: &Self, _| gpus(p.share.holds_gpu_millis)).right(),
            Column::new("WAITING", |p: &Self, _| p.share.waiting.to_string()).right().rank(2),
            Column::new("MEMBERS", |p: &Self, _| {
                everybody(p).unwrap_or_else(|| match p.groups.is_empty() {
                    true => list(&p.members),
                    false => {
                        let groups = p.groups.iter().map(|group| format!("@{group}"));
                        p.members.iter().cloned().chain(groups).collect::<Vec<_>>().join(", ")
                    }
                })
            })
            .clip(),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![("Project", self.name.clone())];
        match everybody(self) {
            Some(who) => lines.push(("Members", who)),
            None => {
                let all = [("Members", &self.members), ("Groups", &self.groups)];
                let some = all.into_iter().filter(|(_, names)| !names.is_empty());
                lines.extend(some.map(|(key, names)| (key, list(names))));
            }
        }
        lines.extend([
            ("Weight", weight(self)),
            ("Due", percent(self.share.due_per_mille)),
            ("Used", format!("{} GPU-hours", hours(self.share.used_gpu_ms))),
            ("Holds", format!("{} GPUs", gpus(self.share.holds_gpu_millis))),
            ("Waiting", jobs(self.share.waiting)),
        ]);
        lines.extend(limits(self));
        lines.extend(self.people.iter().map(|person| {
            let Share { used_gpu_ms, holds_gpu_millis, waiting, .. } = &person.share;
            let (used, holds) = (hours(*used_gpu_ms), gpus(*holds_gpu_millis));
            let user = &person.user;
            let mut text = format!("{user}: {used} GPU-hours, holds {holds}, {waiting} waiting");
            let committed = person.share.committed_gpu_ms;
            if let Some(committed) = committed.filter(|_| self.limits.gpu_hours_each.is_some()) {
                text += &format!("; {} used, held or booked", hours(committed));
            }
            ("Person", text)
        }));
        lines
    }
}

impl Row for ShareLine {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("PROJECT", |l: &Self, _| l.project.clone()),
            Column::new("USER", |l: &Self, _| l.user.clone().unwrap_or_else(|| ALL.to_owned())),
            Column::new("DUE", |l: &Self, _| percent(l.share.due_per_mille)).right(),
            Column::new("GPU-HOURS", |l: &Self, _| hours(l.share.used_gpu_ms)).right(),
            Column::new("HOLDS", |l: &Self, _| gpus(l.share.holds_gpu_millis)).right(),
            Column::new("AHEAD", |l: &Self, _| hours(l.share.ahead_gpu_ms)).right(),
            Column::new("WAITING", |l: &Self, _| l.share.waiting.to_string()).right(),
            Column::new("NEXT", |l: &Self, _| or_dash(l.share.first_place)).right(),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("Project", self.project.clone()),
            ("User", self.user.clone().unwrap_or_else(|| ALL.to_owned())),
            ("Used", format!("{} GPU-hours", hours(self.share.used_gpu_ms))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_with_one_digit_and_gpus_with_two_where_they_are_not_whole() {
        let written = [0, 179_999, 180_000, 3_600_000, 44_280_000].map(hours);
        assert_eq!(written, ["0.0", "0.0", "0.1", "1.0", "12.3"]);
        assert_eq!([0, 2_000, 62, 1_500].map(gpus), ["0", "2", "0.06", "1.50"]);
        assert_eq!([0, 125, 1_000].map(percent), ["0.0%", "12.5%", "100.0%"]);
    }
}
