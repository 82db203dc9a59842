//! What `fleet doctor` finds: the table in docs/doctor.md, held to the codes and levels in the sources.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Violation, tree};

const PAGE: &str = "docs/doctor.md";
/// Where findings are made.
const SOURCES: [&str; 4] = [
    "agent/src/doctor/",
    "cli/src/commands/doctor.rs",
    "controller/src/doctor/",
    "daemon/src/doctor/",
];
/// What stands before a code, and the levels it means.
const MAKERS: [(&str, &[&str]); 5] = [
    ("problem(", &["problem"]),
    ("warning(", &["warning"]),
    ("Level::Problem,", &["problem"]),
    ("Level::Warning,", &["warning"]),
    ("found(level,", &["problem", "warning"]),
];

/// Each code with its levels.
type Codes = BTreeMap<String, BTreeSet<&'static str>>;

/// The codes that a source gives out; its tests do not count.
fn given_out(source: &str) -> Codes {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Codes::new();
    for (maker, levels) in MAKERS {
        for behind in source.split(maker).skip(1) {
            let Some(text) = behind.trim_start().strip_prefix('"') else { continue };
            let code = text.split('"').next().unwrap_or_default();
            found.entry(code.to_owned()).or_default().extend(levels);
        }
    }
    found
}

/// The codes of the page's table, with the levels that their row names.
fn explained(page: &str) -> Codes {
    let mut found = Codes::new();
    for row in page.lines().filter(|line| line.matches('|').count() == 5) {
        let cells: Vec<&str> = row.split('|').collect();
        let levels = ["problem", "warning"].into_iter().filter(|level| cells[3].contains(level));
        let levels: BTreeSet<&str> = levels.collect();
        for code in cells[2].split('`').skip(1).step_by(2) {
            found.entry(code.to_owned()).or_default().extend(&levels);
        }
    }
    found
}

fn differences(given_out: &Codes, explained: &Codes) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut say = |what: String| violations.push(Violation::new(PAGE, 1, what));
    for (code, levels) in given_out {
        match explained.get(code) {
            None => say(format!("`{code}` ({levels:?}) is not explained")),
            Some(said) if !levels.is_subset(said) => {
                say(format!("`{code}` is {levels:?}, not {said:?}"));
            }
            Some(_) => {}
        }
    }
    for code in explained.keys().filter(|code| !given_out.contains_key(*code)) {
        say(format!("nothing finds `{code}`"));
    }
    violations
}

#[test]
fn the_page_has_every_code() {
    let mut found = Codes::new();
    for file in tree::files_ending(".rs") {
        let made_here = SOURCES.iter().any(|place| file.path.starts_with(place));
        if made_here && !file.path.ends_with("_tests.rs") {
            for (code, levels) in given_out(&file.text) {
                found.entry(code).or_default().extend(levels);
            }
        }
    }
    assert!(found.len() > 40, "found only {found:?}: the search is broken");
    let page = tree::files_ending(".md").into_iter().find(|file| file.path == PAGE);
    let page = explained(&page.expect("the page is there").text);
    crate::assert_none(&differences(&found, &page));
}

#[test]
fn a_code_that_is_missing_wrong_or_too_many_is_found() {
    let source = "check.problem(\n    \"disk_full\", what); check.found(Level::Warning, \"late\", what)\n\
                  #[cfg(test)] check.problem(\"not_this\")";
    let good = "| a | `disk_full` | problem | x |\n| | `late` | warning | x |\n";
    let holds = |page: &str| differences(&given_out(source), &explained(page)).is_empty();
    assert!(holds(good));
    assert!(!holds(&good.replace("`late`", "late")));
    assert!(!holds(&good.replace("warning", "problem")));
    assert!(!holds(&format!("{good}| | `more` | warning | x |\n")));
}
