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
    "docs/queue.md",
    "docs/release.md",
    "docs/reservation-end.md",
    "docs/roadmap.md",
    "docs/troubleshooting.md",
    "docs/upgrade.md",
    "docs/web.md",
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
    let dead = relative_links(text).filter(|(_, target)| {
        let resolved = resolve(path, target);
        !resolved.as_deref().is_some_and(&exists)
    });
    let violations = dead.map(|(line, target)| {
        Violation::new(path, line, format!("the link to `{target}` leads nowhere"))
    });
    violations.collect()
}

/// The list of the pages that a package brings: paths, those of folders for all in them.
pub(crate) const SHIPPED_PAGES: &str = "packaging/pages";

/// Every package has the licence, under a name of its own; `build-debs.sh` changes the link.
const LICENCE: &str = "LICENSE";

/// Checks that a page of the package links only to what the package brings too.
pub(crate) fn shipped_links(list: &str, pages: &[SourceFile]) -> Vec<Violation> {
    let entries: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let shipped = |path: &str| {
        let within = |entry: &&str| {
            path.strip_prefix(*entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        entries.iter().any(within)
    };
    let mut violations = Vec::new();
    for page in pages.iter().filter(|page| shipped(&page.path)) {
        for (line, target) in relative_links(&page.text) {
            let there = |path: &str| path == LICENCE || shipped(path);
            if !resolve(&page.path, target).as_deref().is_some_and(there) {
                let what = format!("the package lacks `{target}`: add it to {SHIPPED_PAGES}");
                violations.push(Violation::new(&page.path, line, what));
            }
        }
    }
    violations
}

/// Line and target of each link to another file of the tree, pictures of HTML with them.
fn relative_links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let lines = text.lines().enumerate().filter(move |(_, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        !in_code
    });
    let targets = lines.flat_map(|(number, line)| {
        let parts = ["](", "src=\"", "srcset=\""].map(|mark| line.split(mark).skip(1));
        let ends = [')', '#', ' ', '"'];
        let targets = parts.into_iter().flatten();
        targets.map(move |part| (number + 1, part.split(ends).next().unwrap_or_default()))
    });
    targets.filter(|(_, target)| {
        !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:")
    })
}

/// The page that says how many decoders get hostile bytes.
pub(crate) const SECURITY_PAGE: &str = "SECURITY.md";

/// Where the calls are that count, and where they are not.
const HOSTILE_CALLS: [&str; 3] = ["throw_at(&", "throw_text_at(&", "thrown(&"];
const HOSTILE_HOME: &str = "tests/hostile-bytes/";

/// Checks that SECURITY.md says how many kinds of input are thrown at decoders, and how many of each.
pub(crate) fn hostile_inputs(page: &str, files: &[SourceFile]) -> Vec<Violation> {
    let home = files.iter().find(|file| file.path == format!("{HOSTILE_HOME}src/lib.rs"));
    let cases = home.and_then(|file| file.text.split("CASES: u32 = ").nth(1)?.split(';').next());
    let others = files.iter().filter(|file| {
        !file.path.starts_with(HOSTILE_HOME) && !file.path.starts_with("tests/tidy/")
    });
    let calls = others
        .flat_map(|file| file.text.lines())
        .filter(|line| HOSTILE_CALLS.iter().any(|call| line.contains(call)));
    let said = format!(
        "hostile bytes: {} kinds of input, {} of each",
        calls.count(),
        cases.unwrap_or_default().replace('_', ",")
    );
    if page.contains(&said) {
        return Vec::new();
    }
    vec![Violation::new(SECURITY_PAGE, 1, format!("does not say \"{said}\""))]
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
    fn a_wrong_number_of_hostile_inputs_is_found() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = [
            file("tests/hostile-bytes/src/lib.rs", "pub const CASES: u32 = 1_000;\nthrow_at(&a);"),
            file("core/src/a.rs", "throw_at(&a, |x| x);\nuse throw_at;\nthrow_text_at(&b, f);\n"),
        ];
        let page = "has hostile bytes: 2 kinds of input, 1,000 of each in each run";
        assert_eq!(hostile_inputs(page, &files), []);
        assert_eq!(hostile_inputs(page, &files[..1]).len(), 1);
        assert_eq!(hostile_inputs("none", &files).len(), 1);
    }

    #[test]
    fn a_link_to_what_the_package_lacks_is_found() {
        let page = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let pages = [
            page("README.md", "[a](docs/a.md) [b](LICENSE)\n[c](docs)\n[d](SECURITY.md)\n"),
            page("docs/a.md", "[a](../README.md#x) [b](adr/0001-a.md)\n<img src=\"../b.svg\">\n"),
            page("CONTRIBUTING.md", "[a](not/shipped.md)"),
        ];
        let found = shipped_links("# The list.\nREADME.md\ndocs\n", &pages);
        let found: Vec<_> = found.iter().map(|one| (one.file.as_str(), one.line)).collect();
        assert_eq!(found, [("README.md", 3), ("docs/a.md", 2)]);
        assert_eq!(shipped_links("README.md\ndocs.md\nSECURITY.md", &pages).len(), 2);
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
