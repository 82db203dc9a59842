//! What is wrong with a machine or will soon be: what `fleet-agent doctor` and `fleet-controller doctor` have in common.
//!
//! Two halves that never mix: [`look`] gathers facts, each within a time limit and whether or not the program runs;
//! [`machine`], and the `judge` of either program, are pure and say what the facts mean. Each finding says what to do.
//! Nothing here changes anything, and a fact that could not be checked is reported, never taken for good.

mod kernel_clock;
pub mod look;
pub mod machine;

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

/// Of what [`print()`] prints.
pub const SCHEMA: &str = "fleet.doctor/v1";

/// A fact, or why it is not available.
pub type Look<T> = Result<T, String>;

/// How bad it is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something does not work, or somebody gets what is not theirs.
    Problem,
    /// It will go wrong, or may.
    Warning,
    /// It could not be checked.
    Unseen,
    Ok,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `node` or `controller`.
    pub part: &'static str,
    /// What was checked: `driver`, `disk`, ...
    pub check: &'static str,
    pub level: Level,
    /// Which finding it is, for programs; it does not change.
    pub code: &'static str,
    pub what: String,
    /// What to do about it.
    pub action: Option<String>,
}

/// The findings of one check, as its judge makes them.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    pub part: &'static str,
    pub name: &'static str,
}

impl Check {
    fn finding(self, level: Level, code: &'static str, what: String) -> Finding {
        Finding { part: self.part, check: self.name, level, code, what, action: None }
    }

    fn found(
        self,
        level: Level,
        code: &'static str,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        Finding { action: Some(action.into()), ..self.finding(level, code, what.into()) }
    }

    /// Something is wrong, and this is what to do.
    pub fn problem(
        self,
        code: &'static str,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        self.found(Level::Problem, code, what, action)
    }

    /// Something may go wrong, and this is what to do.
    pub fn warning(
        self,
        code: &'static str,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        self.found(Level::Warning, code, what, action)
    }

    /// It could not be checked, for this reason.
    pub fn unseen(self, why: impl Into<String>) -> Finding {
        self.finding(Level::Unseen, "unseen", why.into())
    }

    /// It is as it should be.
    pub fn ok(self, what: impl Into<String>) -> Finding {
        self.finding(Level::Ok, "ok", what.into())
    }
}

/// Most names in one line.
const NAMED_MAX: usize = 5;

/// The first few, and how many more there are.
#[must_use]
pub fn named<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    let text = shown.join(", ");
    match names.len() - shown.len() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Prints the findings: for a person on a terminal as lines, else as one line of JSON, which `fleet doctor` reads.
pub fn print(items: &[Finding]) -> anyhow::Result<()> {
    if std::io::stdout().is_terminal() {
        std::io::stdout().write_all(lines(items).as_bytes())?;
        return Ok(());
    }
    let mut line = serde_json::to_vec(&serde_json::json!({ "schema": SCHEMA, "items": items }))?;
    line.push(b'\n');
    std::io::stdout().write_all(&line)?;
    Ok(())
}

/// A line for each finding, and one below it with what to do.
fn lines(items: &[Finding]) -> String {
    let one = |item: &Finding| {
        let level = match item.level {
            Level::Problem => "problem",
            Level::Warning => "warning",
            Level::Unseen => "not seen",
            Level::Ok => "ok",
        };
        let action = item.action.as_deref().map(|action| format!("  {action}\n"));
        format!("{level}: {}: {}\n{}", item.check, item.what, action.unwrap_or_default())
    };
    items.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_lines() {
        let check = Check { part: "node", name: "disk" };
        let items = [check.ok("12 GiB free"), check.problem("full", "it is full", "Remove files.")];
        assert_eq!(
            lines(&items),
            "ok: disk: 12 GiB free\nproblem: disk: it is full\n  Remove files.\n"
        );
    }
}
