//! Finds and reads the files of the source tree. The only module of the tidy test that touches the disk,
//! besides `cargo metadata`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The folders that hold our files. Others (`target`, whatever a machine puts beside them) are not ours.
pub(crate) const FOLDERS: &[&str] = &[
    ".ci",
    ".config",
    "agent",
    "cli",
    "controller",
    "core",
    "daemon",
    "docs",
    "packaging",
    "proto",
    "systemd",
    "tests",
];

/// A text file; `path` is relative to the root, with forward slashes.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests crate is one level below the root").to_owned()
}

/// All files of the tree with this ending, sorted by path.
pub(crate) fn files_ending(ending: &str) -> Vec<SourceFile> {
    let root = root();
    let mut paths = Vec::new();
    for entry in fs::read_dir(&root).expect("the root can be listed") {
        let path = entry.expect("the root can be listed").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && FOLDERS.contains(&name.as_str()) {
            collect(&path, ending, &mut paths);
        } else if path.is_file() && name.ends_with(ending) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| read(&root, path)).collect()
}

/// Names of what lies in a folder of the tree, sorted.
pub(crate) fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn collect(folder: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let entry = entry.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let kind = entry.file_type().unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
        let path = entry.path();
        if kind.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, ending, into);
        } else if kind.is_file() && path.to_string_lossy().ends_with(ending) {
            into.push(path);
        }
    }
}

fn read(root: &Path, path: &Path) -> SourceFile {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let relative = path.strip_prefix(root).expect("the walk starts at the root");
    SourceFile { path: relative.to_string_lossy().into_owned(), text }
}

/// The folders at the top of the tree: those git knows, or in an unpacked archive those that are there.
pub(crate) fn top_level_folders() -> BTreeSet<String> {
    let root = root();
    let listed = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output();
    if let Ok(output) = listed
        && output.status.success()
        && !output.stdout.is_empty()
    {
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        let folders = names.split('\0').filter_map(|name| name.split_once('/'));
        return folders.map(|(top, _)| top.to_owned()).collect();
    }
    let entries = fs::read_dir(&root).expect("the root can be listed").flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "target" && name != ".git").collect()
}
