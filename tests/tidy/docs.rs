//! Rules about what is not code: top-level folders, decision records, links between pages.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Violation,
    tree::{FOLDERS, SourceFile},
};

/// What each decision record tells, in this order.
const RECORD_PARTS: &[&str] = &["## Context", "## Decision", "## Consequences"];

const COLUMNS_MAX: usize = 110;

/// Pages that lead through a task.
pub(crate) const TASK_PAGES: &[&str] = &[
    "docs/access.md",
    "docs/backup.md",
    "docs/configuration.md",
    "docs/dependencies.md",
    "docs/enforcing.md",
    "docs/first-day.md",
    "docs/how-to.md",
    "docs/import.md",
    "docs/install.md",
    "docs/jobs.md",
    "docs/operations.md",
    "docs/reservation-end.md",
    "docs/roadmap.md",
    "docs/troubleshooting.md",
    "docs/upgrade.md",
];

pub(crate) fn top_level(folders: &BTreeSet<String>) -> Vec<Violation> {
    let foreign = folders.iter().filter(|name| !FOLDERS.contains(&name.as_str()));
    foreign
        .map(|name| {
            let what = "a new top-level folder: put it in an existing one, or write a decision record \
                        and add it to FOLDERS in tests/tidy/tree.rs";
            Violation::new(name, 1, what)
        })
        .collect()
}

pub(crate) fn decision_records(records: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut by_number: BTreeMap<&str, &str> = BTreeMap::new();
    for record in records {
        let name = record.path.rsplit('/').next().unwrap_or(&record.path);
        let number = name.split('-').next().unwrap_or(name);
        if number.len() != 4 || !number.chars().all(|c| c.is_ascii_digit()) {
            violations.push(Violation::new(&record.path, 1, "name it NNNN-title.md"));
            continue;
        }
        if let Some(other) = by_number.insert(number, &record.path) {
            let what = format!("number {number} is taken by {other}: take the next free one");
            violations.push(Violation::new(&record.path, 1, what));
        }
        for part in RECORD_PARTS {
            if !record.text.lines().any(|line| line.trim_end() == *part) {
                violations.push(Violation::new(&record.path, 1, format!("has no part `{part}`")));
            }
        }
    }
    violations
}

/// Checks the relative links of a page. `exists` is asked with paths relative to the root.
pub(crate) fn links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let resolved = resolve(path, target);
            if !resolved.as_deref().is_some_and(&exists) {
                let what = format!("the link to `{target}` leads nowhere");
                violations.push(Violation::new(path, number + 1, what));
            }
        }
    }
    violations
}

/// What a page that leads through a task has: whom it is for and how long it takes, below the title; short lines.
/// A row of a table cannot be broken, and may be longer.
pub(crate) fn task_page(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !text.lines().nth(2).is_some_and(|line| line.starts_with("*For ")) {
        let what = "say in the third line, in italics, who the page is for and how long it takes: `*For …*`";
        violations.push(Violation::new(path, 3, what));
    }
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !line.starts_with('|') {
            let what = format!("the line has {columns} columns: at most {COLUMNS_MAX}");
            violations.push(Violation::new(path, number + 1, what));
        }
    }
    violations
}

/// Joins a link to the folder of its page; None where it climbs out of the tree.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(if parts.is_empty() { ".".to_owned() } else { parts.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_top_level_folder_is_found() {
        assert_eq!(top_level(&BTreeSet::from(["core".to_owned(), "docs".to_owned()])), []);
        assert_eq!(top_level(&BTreeSet::from(["scripts".to_owned()])).len(), 1);
    }

    #[test]
    fn a_bad_record_is_found() {
        let record = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let whole = "# 1\n## Context\n## Decision\n## Consequences\n";
        assert_eq!(decision_records(&[record("docs/adr/0001-a.md", whole)]), []);
        let twice = [record("docs/adr/0001-a.md", whole), record("docs/adr/0001-b.md", whole)];
        assert_eq!(decision_records(&twice).len(), 1);
        assert_eq!(decision_records(&[record("docs/adr/first.md", whole)]).len(), 1);
        assert_eq!(decision_records(&[record("docs/adr/0001-a.md", "## Context\n")]).len(), 2);
    }

    #[test]
    fn a_page_without_a_reader_and_a_long_line_are_found() {
        let good = "# A\n\n*For you. Takes a minute.*\n\nText\n";
        assert_eq!(task_page("docs/a.md", good), []);
        assert_eq!(task_page("docs/a.md", "# A\n\nText\n").len(), 1);
        let long = format!("{good}{}\n| {} |\n", "x".repeat(111), "x".repeat(111));
        assert_eq!(task_page("docs/a.md", &long)[0].line, 6);
        assert_eq!(task_page("docs/a.md", &long).len(), 1);
    }

    #[test]
    fn a_dead_link_is_found() {
        let exists = |path: &str| ["docs/glossary.md", "README.md", "docs"].contains(&path);
        let good = "[a](glossary.md#node) [b](../README.md) [c](https://x.y) [d](#here) [e](.)";
        assert_eq!(links("docs/a.md", good, exists), []);
        assert_eq!(links("docs/a.md", "```\n[a](nothing.md)\n```\n", exists), []);
        assert_eq!(links("docs/a.md", "one\n[a](nothing.md)", exists)[0].line, 2);
        assert_eq!(links("docs/a.md", "[a](../../etc/passwd)", exists).len(), 1);
        assert_eq!(links("docs/a.md", "[a](README.md)", exists).len(), 1);
    }
}
