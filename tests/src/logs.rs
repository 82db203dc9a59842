//! The rule that nothing goes wrong quietly: a WARN or ERROR in a component's log that no test expects fails the test.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Most unexpected lines that are shown.
const SHOWN_MAX: usize = 12;

/// What may be in a log, and why.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Part of the line, as it stands in the log.
    pub text: &'static str,
    pub why: &'static str,
}

/// What any cluster may say.
const ALWAYS: [Expected; 2] = [
    Expected {
        text: "A message will be ignored because Leader vote changed",
        why: "openraft says so when a new cluster elects its first leader",
    },
    Expected {
        text: "this process stood still",
        why: "a machine with more to do than it can lets processes wait for seconds",
    },
];

/// An error that names the lines nobody expects.
pub fn nothing_unexpected(
    logs: &[(String, std::path::PathBuf)],
    expected: &[Expected],
) -> Result<()> {
    let mut unexpected = Vec::new();
    for (name, path) in logs {
        for line in complaints(path)? {
            if !expected.iter().chain(&ALWAYS).any(|known| line.contains(known.text)) {
                unexpected.push(format!("{name}: {line}"));
            }
        }
    }
    if unexpected.is_empty() {
        return Ok(());
    }
    let count = unexpected.len();
    unexpected.truncate(SHOWN_MAX);
    bail!("{count} line(s) in the logs that no test expects:\n{}", unexpected.join("\n"))
}

/// Lines of a log that are warnings, errors, panics, or no log lines at all.
fn complaints(path: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let calm = |level: &str| ["INFO", "DEBUG", "TRACE"].contains(&level);
    let harmless = |line: &&str| match serde_json::from_str::<Value>(line) {
        Ok(record) => calm(record["level"].as_str().unwrap_or_default()),
        // As text: the time, then the level.
        Err(_) => line.split_whitespace().nth(1).is_some_and(|word| calm(&without_colours(word))),
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.filter(|line| !harmless(line)).map(str::to_owned).collect())
}

/// A word without the escape sequences around it.
fn without_colours(word: &str) -> String {
    let mut parts = word.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_is_expected_passes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let info = r#"{"level":"INFO","fields":{"message":"fine"}}"#;
        let warn = r#"{"level":"WARN","fields":{"message":"the disk is slow"}}"#;
        fs::write(&path, format!("{info}\n{warn}\n\nthread 'main' panicked at x.rs\n")).unwrap();
        let logs = [("agent".to_owned(), path)];
        let slow = Expected { text: "the disk is slow", why: "it is" };
        let panic = Expected { text: "panicked", why: "this is a test" };
        let error = nothing_unexpected(&logs, &[slow]).unwrap_err().to_string();
        assert!(error.contains("panicked") && !error.contains("slow"), "{error}");
        nothing_unexpected(&logs, &[slow, panic]).unwrap();
    }
}
