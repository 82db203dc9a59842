//! House rules that a compiler does not know, as tests over the source tree.
//!
//! Each rule is a pure function from text to [`Violation`]s, so that its own unit tests can show on a few lines
//! of fixture that it fails when it should. The tests at the end of this file then hold the real tree to it.
//! A rule that matters is here; a rule that is not here does not bind anybody.
//!
//! Called by `make check`, `make test`. Never edits a file.

mod code;
mod configs;
mod docs;
mod findings;
mod imports;
mod layers;
mod metrics;
mod owners;
mod rooms;
mod sources;
mod tree;
mod units;
mod words;

use std::fmt;

/// One broken rule, at one place, with the way out.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    what: String,
}

impl Violation {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Fails the calling test with all violations, one a line.
#[track_caller]
fn assert_none(violations: &[Violation]) {
    let lines: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert!(lines.is_empty(), "{} untidy place(s):\n{}\n", lines.len(), lines.join("\n"));
}

/// Applies a rule for single files to every Rust file of the tree.
fn each_rust_file(rule: impl Fn(&str, &str) -> Vec<Violation>) -> Vec<Violation> {
    let files = tree::files_ending(".rs");
    assert!(files.len() > 10, "found only {} Rust files: the walk is broken", files.len());
    files.iter().flat_map(|file| rule(&file.path, &file.text)).collect()
}

#[test]
fn files_are_short() {
    assert_none(&each_rust_file(sources::file_length));
}

#[test]
fn files_say_what_they_are() {
    assert_none(&each_rust_file(sources::module_doc));
}

#[test]
fn files_are_named_for_their_content() {
    assert_none(&each_rust_file(|path, _| sources::file_name(path)));
}

#[test]
fn functions_fit_a_screen() {
    assert_none(&each_rust_file(sources::function_length));
}

#[test]
fn nothing_is_left_half_done() {
    assert_none(&each_rust_file(sources::unfinished));
}

#[test]
fn pure_crates_are_pure() {
    assert_none(&each_rust_file(owners::purity));
}

#[test]
fn the_state_is_changed_by_the_state_machine_alone() {
    assert_none(&each_rust_file(owners::readers));
}

#[test]
fn libraries_stay_in_their_modules() {
    assert_none(&each_rust_file(owners::ownership));
}

#[test]
fn unsafe_code_is_named_and_listed() {
    let files = tree::files_ending(".rs");
    assert_none(&owners::unsafe_code(&files, owners::UNSAFE_FILES));
}

#[test]
fn crates_depend_in_one_direction() {
    assert_none(&layers::direction(&layers::crates()));
}

#[test]
fn rooms_stand_on_each_other_without_a_circle() {
    let files = tree::files_ending(".rs");
    assert_none(&rooms::circles(&files));
}

#[test]
fn the_core_depends_on_little() {
    assert_none(&layers::built_from(&layers::crates()));
}

#[test]
fn every_dependency_is_on_its_page() {
    let pages = tree::files_ending(".md");
    let page = pages.iter().find(|page| page.path == layers::DEPENDENCIES_PAGE);
    let page = page.expect("the page of dependencies is there");
    assert_none(&layers::dependencies_page(&layers::crates(), &page.text));
}

#[test]
fn every_crate_takes_the_common_lints() {
    let manifests = tree::files_ending("Cargo.toml");
    assert!(manifests.len() > 5, "found only {} manifests: the walk is broken", manifests.len());
    let crates = manifests.iter().filter(|file| file.path != "Cargo.toml");
    assert_none(&crates.flat_map(|file| layers::lints(&file.path, &file.text)).collect::<Vec<_>>());
}

#[test]
fn top_level_folders_are_the_agreed_ones() {
    assert_none(&docs::top_level(&tree::top_level_folders()));
}

#[test]
fn decision_records_are_numbered_and_complete() {
    let records = tree::files_ending(".md").into_iter();
    let records: Vec<_> = records.filter(|file| file.path.starts_with("docs/adr/")).collect();
    assert!(!records.is_empty(), "docs/adr is empty: the walk is broken");
    assert_none(&docs::decision_records(&records));
}

#[test]
fn pages_of_tasks_name_their_reader_and_have_short_lines() {
    let pages = tree::files_ending(".md");
    let pages: Vec<_> =
        pages.iter().filter(|page| docs::TASK_PAGES.contains(&page.path.as_str())).collect();
    assert_eq!(pages.len(), docs::TASK_PAGES.len(), "a page is gone");
    let rule = |page: &&tree::SourceFile| docs::task_page(&page.path, &page.text);
    assert_none(&pages.iter().flat_map(rule).collect::<Vec<_>>());
}

#[test]
fn links_lead_somewhere() {
    let root = tree::root();
    let pages = tree::files_ending(".md");
    let exists = |path: &str| root.join(path).exists();
    assert_none(
        &pages
            .iter()
            .flat_map(|file| docs::links(&file.path, &file.text, exists))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn pages_of_the_package_link_to_what_it_brings() {
    let list = tree::files_ending(docs::SHIPPED_PAGES);
    assert_eq!(list.len(), 1, "{} is gone", docs::SHIPPED_PAGES);
    let entries = list[0].text.lines().filter(|line| !line.starts_with('#'));
    let missing: Vec<&str> = entries.filter(|entry| !tree::root().join(entry).exists()).collect();
    assert!(missing.is_empty(), "{} names what is not there: {missing:?}", docs::SHIPPED_PAGES);
    assert_none(&docs::shipped_links(&list[0].text, &tree::files_ending(".md")));
}

#[test]
fn the_security_page_counts_the_hostile_inputs() {
    let pages = tree::files_ending(docs::SECURITY_PAGE);
    let page = pages.first().expect("the page is there");
    assert_none(&docs::hostile_inputs(&page.text, &tree::files_ending(".rs")));
}

#[test]
fn pages_help_and_messages_use_everyday_words() {
    let pages = tree::files_ending(".md");
    let printed = tree::files_ending(".txt");
    let printed = printed.iter().filter(|file| file.path.starts_with("cli/golden/"));
    let mut found: Vec<Violation> = pages.iter().chain(printed).flat_map(words::in_page).collect();
    found.extend(each_rust_file(words::in_messages));
    for ending in words::OTHER_FILES {
        let others = tree::files_ending(ending);
        assert!(!others.is_empty(), "no file ends in {ending}: the walk is broken");
        found.extend(others.iter().flat_map(words::in_other));
    }
    assert_none(&found);
}
