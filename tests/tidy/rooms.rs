//! The rooms of a crate: its modules at the top. They stand on each other in one direction, without a circle.
//!
//! Rooms in a circle cannot be understood, tested or moved one without the others. A circle is opened by moving what both
//! sides need into a room below, or by handing over the few values that are used in place of everything.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Violation,
    imports::{Imports, imports},
    tree::SourceFile,
};

/// The folders of our crates that have rooms.
const CRATES: &[&str] = &[
    "agent",
    "agent/image",
    "agent/kernel",
    "agent/node",
    "agent/shim",
    "agent/user",
    "cli",
    "controller",
    "core",
    "daemon",
    "proto",
];

/// From one room to another: where it is named, at first.
type Edges = BTreeMap<(String, String), (String, usize)>;

/// The rooms of one crate, and which of them names which.
#[derive(Debug, Default)]
struct Plan {
    rooms: BTreeSet<String>,
    edges: Edges,
}

/// A file's module, from the root of its crate; empty for the root itself. None for the files of other programs, which are
/// crates of their own.
fn module_of(path: &str, has_library: bool) -> Option<Vec<String>> {
    let mut names: Vec<String> = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    match (names[0].as_str(), names.len()) {
        ("lib", 1) => return Some(Vec::new()),
        ("main", 1) => return (!has_library).then(Vec::new),
        ("bin", _) => return None,
        _ => {}
    }
    if names.last().is_some_and(|last| last == "mod") {
        names.pop();
    }
    Some(names)
}

fn plan_of(folder: &str, files: &[SourceFile]) -> Plan {
    let source = format!("{folder}/src/");
    let within = files.iter().filter_map(|file| Some((file, file.path.strip_prefix(&source)?)));
    let has_library = files.iter().any(|file| file.path == format!("{source}lib.rs"));
    let read: Vec<(&SourceFile, Vec<String>, Imports)> = within
        .filter(|(_, path)| !path.ends_with("tests.rs") && !path.contains("tests/"))
        .filter_map(|(file, path)| {
            let module = module_of(path, has_library)?;
            let imports = imports(&module, &file.text);
            Some((file, module, imports))
        })
        .collect();
    let tests: Vec<_> = read.iter().flat_map(|(_, _, imports)| &imports.tests).collect();
    let is_test = |module: &[String]| tests.iter().any(|test| module.starts_with(test));
    let mut plan = Plan::default();
    let product = || read.iter().filter(|(_, module, _)| !is_test(module));
    for (_, module, _) in product() {
        plan.rooms.extend(module.first().cloned());
    }
    let root = product().find(|(_, module, _)| module.is_empty());
    // What the root takes from a room is that room's, under whatever name.
    let of_root: BTreeMap<&String, &String> = root
        .iter()
        .flat_map(|(_, _, imports)| &imports.taken)
        .filter_map(|(name, path)| Some((name, path.first()?)))
        .collect();
    for (file, module, imports) in product() {
        let Some(own) = module.first() else { continue };
        for (line, path) in &imports.named {
            let Some(first) = path.first() else { continue };
            let room =
                if plan.rooms.contains(first) { Some(first) } else { of_root.get(first).copied() };
            if let Some(room) = room.filter(|room| *room != own && plan.rooms.contains(*room)) {
                let place = (file.path.clone(), *line);
                plan.edges.entry((own.clone(), room.clone())).or_insert(place);
            }
        }
    }
    plan
}

impl Plan {
    /// All that can be reached from a room.
    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(room) = next.pop() {
            for ((_, to), _) in self.edges.iter().filter(|((from, _), _)| from == room) {
                if reached.insert(to.as_str()) {
                    next.push(to);
                }
            }
        }
        reached
    }

    /// The rooms that need each other, each group once.
    fn circles(&self) -> BTreeSet<BTreeSet<&str>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.rooms.iter().map(|room| (room.as_str(), self.reach(room))).collect();
        let circle = |room: &str| -> BTreeSet<&str> {
            reach[room].iter().copied().filter(|other| reach[other].contains(room)).collect()
        };
        reach.keys().map(|room| circle(room)).filter(|circle| !circle.is_empty()).collect()
    }

    fn violation(&self, folder: &str, circle: &BTreeSet<&str>) -> Violation {
        let within = |(from, to): &(String, String)| {
            circle.contains(from.as_str()) && circle.contains(to.as_str())
        };
        let edges: Vec<_> = self.edges.iter().filter(|(edge, _)| within(edge)).collect();
        let (file, line) = edges.first().map_or((folder, 1), |(_, (file, line))| (file, *line));
        let mut what = format!(
            "the rooms {} of {folder} need each other: move what both sides need into a room below, or hand over the \
             few values that are used",
            circle.iter().copied().collect::<Vec<_>>().join(", ")
        );
        for ((from, to), (file, line)) in edges {
            what.push_str(&format!("\n    {file}:{line}: {from} -> {to}"));
        }
        Violation::new(file, line, what)
    }
}

pub(crate) fn circles(files: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for folder in CRATES {
        let plan = plan_of(folder, files);
        violations.extend(plan.circles().iter().map(|circle| plan.violation(folder, circle)));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<SourceFile> {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: format!("agent/src/{path}"),
            text: (*text).to_owned(),
        };
        texts.iter().map(file).collect()
    }

    fn found(texts: &[(&str, &str)]) -> Vec<String> {
        let violations = circles(&files(texts));
        violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn a_circle_is_found_with_a_place_for_each_step() {
        let sound =
            [("lib.rs", "pub mod a; pub mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "")];
        assert_eq!(found(&sound), [""; 0]);
        let closed = [
            ("lib.rs", "pub mod a; pub mod b; pub mod c;"),
            ("a/mod.rs", "mod d;"),
            ("a/d.rs", "\nuse super::super::b::B;"),
            ("b.rs", "fn x() { crate::c::y() }"),
            ("c.rs", "use crate::a::A;\nuse crate::b;"),
        ];
        let said = found(&closed).pop().unwrap_or_default();
        assert!(
            said.starts_with("agent/src/a/d.rs:2: the rooms a, b, c of agent need each"),
            "{said}"
        );
        let steps: Vec<&str> = said.lines().skip(1).map(str::trim).collect();
        let expected = [
            "agent/src/a/d.rs:2: a -> b",
            "agent/src/b.rs:1: b -> c",
            "agent/src/c.rs:1: c -> a",
            "agent/src/c.rs:2: c -> b",
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_name_of_the_root_counts_as_its_room() {
        for root in ["pub use b::B;", "use crate::b::Other as B;", "pub use b::{c::B, D};"] {
            let closed =
                [("lib.rs", root), ("a.rs", "use crate::B;"), ("b.rs", "use crate::a::A;")];
            assert_eq!(found(&closed).len(), 1, "{root}");
        }
        let macros = [("lib.rs", ""), ("a.rs", "crate::words!(x)"), ("b.rs", "use crate::a::A;")];
        assert_eq!(found(&macros), [""; 0]);
    }

    #[test]
    fn tests_and_other_programs_are_in_no_circle() {
        let base = [("lib.rs", "mod a;\n#[cfg(test)]\nmod z;"), ("a.rs", "use crate::b::B;")];
        for (path, text) in [
            ("b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("b/tests.rs", "use crate::a::A;"),
            ("b/more_tests.rs", "use crate::a::A;"),
            ("bin/b.rs", "use crate::a::A;"),
            ("main.rs", "use crate::a::A;"),
            ("z.rs", "use crate::b::B;\nuse crate::a::A;"),
        ] {
            assert_eq!(
                found(&[&base[..], &[("b.rs", "")], &[(path, text)]].concat()),
                [""; 0],
                "{path}"
            );
        }
        let program =
            [("main.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use super::a;")];
        assert_eq!(found(&program).len(), 1, "a program without a library has rooms too");
    }
}
