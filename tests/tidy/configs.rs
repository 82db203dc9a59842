//! The configuration files we ship and the page that explains them, held to what the programs read.
//!
//! In `packaging/etc` a default stands behind a `#` alone, prose behind `# `. So the same file can be checked as it
//! is, and with every default said aloud: that must change nothing.

use std::path::Path;

use crate::{Violation, tree};

/// Where a program's keys are declared, and the names of the files that hold them.
const PROGRAMS: &[(&str, &str)] = &[
    ("controller/src/config.rs", "controller.toml"),
    ("agent/src/config.rs", "agent.toml"),
    ("cli/src/config.rs", "fleet.toml"),
];
const REFERENCE: &str = "docs/operations.md";

/// Says every default aloud.
fn uncommented(text: &str) -> String {
    let said = text.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest,
        _ => line,
    });
    said.collect::<Vec<_>>().join("\n")
}

/// The fields of the structs that describe a file: those named `Raw…`.
fn keys(source: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut inside = false;
    for line in source.lines() {
        if line.starts_with("struct Raw") {
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if inside && !line.trim_start().starts_with(['#', '/']) {
            let field = line.trim().split_once(": ");
            keys.extend(
                field.filter(|(_, kind)| !kind.starts_with("Raw")).map(|(key, _)| key.to_owned()),
            );
        }
    }
    keys
}

/// The keys of a program that have no row of their own in the reference's part about its file.
fn unexplained(file: &str, keys: &[String], page: &str) -> Vec<Violation> {
    let heading = format!("### {file}");
    let part: Vec<&str> = page
        .lines()
        .skip_while(|line| line.trim_end() != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("##"))
        .collect();
    let row = |key: &String| {
        part.iter().any(|line| {
            let cell = line.trim_start_matches("| ").split(" |").next().unwrap_or_default();
            cell.split(", ").any(|name| name.trim_matches('`').rsplit('.').next() == Some(key))
        })
    };
    let missing = keys.iter().filter(|key| !row(key));
    missing
        .map(|key| Violation::new(REFERENCE, 1, format!("{file}: `{key}` is not explained")))
        .collect()
}

fn shipped(name: &str) -> Vec<tree::SourceFile> {
    let files: Vec<_> = tree::files_ending(".toml")
        .into_iter()
        .filter(|file| {
            file.path.starts_with("packaging/") && file.path.ends_with(&format!("/{name}"))
        })
        .collect();
    assert!(
        files.len() >= 2,
        "found only {} {name} below packaging: the walk is broken",
        files.len()
    );
    files
}

/// Loads a text by a program's own reader, as from a file of this name; returns what it made of it.
fn load<C: std::fmt::Debug, E: std::error::Error>(
    text: &str,
    reader: impl Fn(&Path) -> Result<C, E>,
) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).expect("a file can be written");
    reader(&path).map(|config| format!("{config:#?}")).map_err(|error| error.to_string())
}

fn check<C: std::fmt::Debug, E: std::error::Error>(
    name: &str,
    reader: impl Fn(&Path) -> Result<C, E>,
) {
    for file in shipped(name) {
        let read = load(&file.text, &reader).unwrap_or_else(|e| panic!("{}: {e}", file.path));
        if file.path.starts_with("packaging/etc/") {
            let empty = load("", &reader).expect("an empty file is a whole configuration");
            assert_eq!(read, empty, "{} changes something", file.path);
            let said = load(&uncommented(&file.text), &reader);
            assert_eq!(said.as_ref(), Ok(&empty), "{}: a default is not the default", file.path);
        }
    }
}

#[test]
fn shipped_controller_files_are_good() {
    check("controller.toml", fleet_controller::config::Config::load);
}

#[test]
fn shipped_agent_files_are_good() {
    check("agent.toml", fleet_agent::config::Config::load);
}

#[test]
fn every_key_is_explained() {
    let page = tree::files_ending(".md").into_iter().find(|file| file.path == REFERENCE);
    let page = page.expect("the reference is there").text;
    let sources = tree::files_ending(".rs");
    for (source, file) in PROGRAMS {
        let source = sources.iter().find(|one| one.path == *source).expect("the source is there");
        let keys = keys(&source.text);
        assert!(
            keys.len() >= 5,
            "found only the keys {keys:?} in {}: the search is broken",
            source.path
        );
        crate::assert_none(&unexplained(file, &keys, &page));
    }
}

#[test]
fn defaults_are_said_aloud_and_prose_is_not() {
    assert_eq!(uncommented("# a word = 1\n#word = 1\n[part]"), "# a word = 1\nword = 1\n[part]");
}

#[test]
fn a_key_without_a_row_is_found() {
    let source = "struct RawConfig {\n    /// Why.\n    name: Option<String>,\n    part: RawPart,\n}\n\
                  struct RawPart {\n    size: u64,\n}\nstruct Config {\n    other: u64,\n}\n";
    let keys = keys(source);
    assert_eq!(keys, ["name", "size"]);
    let page = "### a.toml\n| `name`, `part.size` | x |\n## End\n";
    assert_eq!(unexplained("a.toml", &keys, page), []);
    assert_eq!(unexplained("a.toml", &keys, "### a.toml\n| `name` | size |\n").len(), 1);
    assert_eq!(unexplained("a.toml", &keys, "### b.toml\n| `name`, `size` |\n").len(), 2);
}
