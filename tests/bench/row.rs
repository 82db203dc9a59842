//! The rows of the result: `target/bench.json` for programs, a table for people.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::samples::short;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// One line of the result. What is skipped in JSON is for people.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) fleet: f64,
    /// Only figures of this run.
    pub(crate) peers: BTreeMap<String, f64>,
    pub(crate) floor: Option<f64>,
    #[serde(skip)]
    pub(crate) spread: String,
    #[serde(skip)]
    pub(crate) targets: Vec<Target>,
}

/// A limit from the plan, in the row's unit.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) words: String,
    pub(crate) limit: f64,
}

impl Row {
    pub(crate) fn new(name: &str, unit: &'static str, better: Better, fleet: f64) -> Self {
        Self {
            name: name.to_owned(),
            unit,
            better,
            fleet,
            peers: BTreeMap::new(),
            floor: None,
            spread: String::new(),
            targets: Vec::new(),
        }
    }

    pub(crate) fn peer(mut self, name: &str, figure: Option<f64>) -> Self {
        self.peers.extend(figure.map(|figure| (name.to_owned(), figure)));
        self
    }

    pub(crate) fn floor(mut self, figure: Option<f64>) -> Self {
        self.floor = figure;
        self
    }

    pub(crate) fn spread(mut self, words: String) -> Self {
        self.spread = words;
        self
    }

    /// A limit that is only known when what it compares with was measured.
    pub(crate) fn target(mut self, words: &str, limit: Option<f64>) -> Self {
        self.targets.extend(limit.map(|limit| Target { words: words.to_owned(), limit }));
        self
    }

    fn met(&self, target: &Target) -> bool {
        match self.better {
            Better::Lower => self.fleet <= target.limit,
            Better::Higher => self.fleet >= target.limit,
        }
    }
}

/// Writes the rows as a JSON list, whole or not at all.
pub(crate) fn write(rows: &[Row], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    let next = path.with_extension("json.new");
    fs::write(&next, text + "\n").with_context(|| format!("write {}", next.display()))?;
    fs::rename(&next, path).with_context(|| format!("write {}", path.display()))
}

/// The rows for people, and how many targets are missed.
pub(crate) fn table(rows: &[Row]) -> (String, usize) {
    let mut text = String::new();
    let mut missed = 0;
    for row in rows {
        let better = match row.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        };
        line(&mut text, &format!("{}  [{}, {better}]", row.name, row.unit));
        figure(&mut text, "fleet", row.fleet, &row.spread);
        if let Some(floor) = row.floor {
            figure(&mut text, "floor", floor, "");
        }
        for (name, peer) in &row.peers {
            figure(&mut text, name, *peer, "");
        }
        for target in &row.targets {
            let met = row.met(target);
            missed += usize::from(!met);
            let verdict = if met { "met" } else { "NOT MET" };
            figure(&mut text, "target", target.limit, &format!("{}: {verdict}", target.words));
        }
    }
    (text, missed)
}

fn figure(text: &mut String, who: &str, value: f64, more: &str) {
    line(text, format!("    {who:<42}{:>10}   {more}", short(value)).trim_end());
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    writeln!(text, "{line}").ok();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_row_has_the_agreed_keys_and_only_measured_peers() {
        let row = Row::new("a", "ms", Better::Lower, 2.0)
            .peer("here", Some(3.0))
            .peer("not installed", None)
            .floor(Some(1.0));
        let json = serde_json::to_value(row).unwrap();
        let wanted = serde_json::json!({
            "name": "a", "unit": "ms", "better": "lower", "fleet": 2.0, "peers": {"here": 3.0}, "floor": 1.0
        });
        assert_eq!(json, wanted);
    }

    #[test]
    fn targets_are_judged_by_what_is_better() {
        let slow = Row::new("a", "ms", Better::Lower, 2.0).target("t", Some(1.0));
        let fast = Row::new("a", "1/s", Better::Higher, 2.0).target("t", Some(1.0));
        assert_eq!(table(&[slow]).1, 1);
        assert_eq!(table(std::slice::from_ref(&fast)).1, 0);
        assert!(table(&[fast]).0.contains("t: met"));
        assert_eq!(table(&[Row::new("a", "ms", Better::Lower, 2.0).target("t", None)]).1, 0);
    }
}
