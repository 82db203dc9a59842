//! What `fleet doctor` found: problems first, each with what to do.

use fleet_proto::json::Document;
use serde::{Deserialize, Serialize};

use super::text::harmless;
use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

/// How bad it is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Problem,
    Warning,
    /// It could not be checked.
    Unseen,
    Ok,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Problem => "problem",
            Level::Warning => "warning",
            Level::Unseen => "unseen",
            Level::Ok => "ok",
        }
    }
}

/// One thing that was checked, as agent and controller print it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// `node`, `controller` or `fleet`.
    pub(crate) part: String,
    pub(crate) check: String,
    pub(crate) level: Level,
    /// Which finding it is; it does not change.
    pub(crate) code: String,
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) action: Option<String>,
}

impl Document for Finding {
    const SCHEMA: &'static str = "fleet.finding/v1";
    const LIST_SCHEMA: &'static str = "fleet.doctor/v1";
    const FIELDS: &'static [&'static str] = &["part", "check", "level", "code", "what", "action"];
}

impl Row for Finding {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("LEVEL", |f: &Self, _| f.level.word().to_owned()).state(|f| f.level.into()),
            Column::new("PART", |f: &Self, _| f.part.clone()),
            Column::new("CHECK", |f: &Self, _| f.check.clone()),
            Column::new("CODE", |f: &Self, _| f.code.clone()).wide(),
            Column::new("WHAT", |f: &Self, _| f.what.clone()),
            Column::new("DO", |f: &Self, _| or_dash(f.action.clone())),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        let action = self.action.iter().map(|action| ("Do", action.clone()));
        let what = [("Level", self.level.word().to_owned()), ("What", self.what.clone())];
        what.into_iter().chain(action).collect()
    }
}

/// For people: what is not as it should be, each with what to do below it; then what is, in a line for each part.
pub(crate) fn text(findings: &[Finding]) -> String {
    let shown: Vec<&Finding> = findings.iter().filter(|one| one.level != Level::Ok).collect();
    let width = |of: fn(&Finding) -> usize| shown.iter().map(|one| of(one)).max().unwrap_or(0);
    let (level, part, check) = (
        width(|one| one.level.word().len()),
        width(|one| one.part.len()),
        width(|one| one.check.len()),
    );
    let mut text = String::new();
    for one in &shown {
        let (word, what) = (one.level.word(), harmless(&one.what));
        text.push_str(&format!(
            "{word:level$}  {:part$}  {:check$}  {what}\n",
            one.part, one.check
        ));
        if let Some(action) = &one.action {
            let before = level + part + check + 6;
            text.push_str(&format!("{:before$}do: {}\n", "", harmless(action)));
        }
    }
    let mut parts: Vec<&str> = Vec::new();
    for one in findings {
        if !parts.contains(&one.part.as_str()) {
            parts.push(&one.part);
        }
    }
    for part in parts {
        let mut good: Vec<&str> = Vec::new();
        let bad = |check: &str| shown.iter().any(|one| one.part == part && one.check == check);
        for one in findings.iter().filter(|one| one.part == part && !bad(&one.check)) {
            if !good.contains(&one.check.as_str()) {
                good.push(&one.check);
            }
        }
        if !good.is_empty() {
            text.push_str(&format!("ok: {part} {}\n", good.join(", ")));
        }
    }
    text
}
