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
const REFERENCE: &str = "docs/configuration.md";

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

/// A row of the reference: the keys with their tables, and the cell that says kind and default.
struct Row<'a> {
    keys: Vec<&'a str>,
    kind: &'a str,
}

/// The rows of the reference's part about a file.
fn rows<'a>(file: &str, page: &'a str) -> Vec<Row<'a>> {
    let heading = format!("### {file}");
    let part = page.lines().skip_while(|line| line.trim_end() != heading).skip(1);
    let part = part.take_while(|line| !line.starts_with('#'));
    let rows = part.filter_map(|line| line.strip_prefix("| `")).map(|row| {
        let mut cells = row.split(" | ");
        let keys = cells.next().unwrap_or_default().split(", ");
        let keys = keys.map(|key| key.trim_end_matches(" |").trim_matches('`')).collect();
        Row { keys, kind: cells.next().unwrap_or_default() }
    });
    rows.collect()
}

/// The keys of a program that have no row in the reference's part about its file, and the rows that are no such key.
fn unexplained(file: &str, keys: &[String], page: &str) -> Vec<Violation> {
    let rows = rows(file, page);
    let explained: Vec<&str> = rows.iter().flat_map(|row| row.keys.iter().copied()).collect();
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let missing = keys.iter().filter(|key| !explained.iter().any(|name| last(name) == **key));
    let missing = missing.map(|key| format!("{file}: `{key}` is not explained"));
    let foreign = explained.iter().filter(|name| !keys.contains(&last(name)));
    let foreign = foreign.map(|name| format!("{file}: the program reads no `{name}`"));
    missing.chain(foreign).map(|what| Violation::new(REFERENCE, 1, what)).collect()
}

/// Defaults that a shipped file says and the reference does not. The shipped file is held to the program.
fn other_defaults(file: &str, shipped: &str, page: &str) -> Vec<Violation> {
    let rows = rows(file, page);
    let mut table = String::new();
    let mut violations = Vec::new();
    for line in shipped.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.trim_end_matches(']'));
        }
        let said = line
            .strip_prefix('#')
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
        let Some((key, value)) = said.and_then(|said| said.split_once(" = ")) else { continue };
        let name = format!("{table}{key}");
        let row = rows.iter().find(|row| row.keys.contains(&name.as_str()));
        if !row.is_some_and(|row| says(row.kind, value)) {
            let what = format!("{file}: the default of `{name}` is {value}");
            violations.push(Violation::new(REFERENCE, 1, what));
        }
    }
    violations
}

/// Whether the cell says this value of TOML, as people write it.
fn says(cell: &str, value: &str) -> bool {
    let words: Vec<&str> =
        cell.split_whitespace().map(|word| word.trim_matches(['`', ',', ';', ':'])).collect();
    if value == "\"\"" || value == "[]" {
        return words.contains(&"empty");
    }
    if let Ok(number) = value.parse::<u64>() {
        const MIB: u64 = 1024 * 1024;
        let said = |word: &&str| word.replace(',', "").parse() == Ok(number);
        let as_mib = number % MIB == 0 && cell.contains(&format!("{} MiB", number / MIB));
        return words.iter().any(said) || as_mib;
    }
    match value.strip_prefix('[') {
        Some(_) => value.split('"').skip(1).step_by(2).all(|one| cell.contains(one)),
        None => words.contains(&value.trim_matches('"')),
    }
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
        let defaults = shipped(file).into_iter().find(|one| one.path.starts_with("packaging/etc/"));
        let defaults = defaults.expect("the file with the defaults is there").text;
        crate::assert_none(&other_defaults(file, &defaults, &page));
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
    let page = "### a.toml\n| `name` | x |\n| `part.size` | x |\n| `gone` | x |\n";
    assert_eq!(unexplained("a.toml", &keys, page).len(), 1);
}

#[test]
fn another_default_is_found() {
    let page = "### a.toml\n| `name` | path, `/a` | x |\n| `part.size` | 1 to 9,000; 5,000 | x |\n\
                | `part.bytes` | bytes; 16 MiB | x |\n| `part.all` | list, empty | x |\n";
    let good = "#name = \"/a\"\n[part]\n#size = 5000\n#bytes = 16777216\n#all = []\n# a word = 1\n";
    assert_eq!(other_defaults("a.toml", good, page), []);
    let bad = good.replace("/a", "/b").replace("5000", "50").replace("[]", "[\"x\"]");
    assert_eq!(other_defaults("a.toml", &bad, page).len(), 3);
    assert_eq!(other_defaults("a.toml", "#size = 5000", page).len(), 1, "a key of a table");
}
