//! `fleet-init` by itself: how it finds a command, becomes it, and says that it cannot.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

/// What shells and execvp(3) do with these words.
fn become_command(path: Option<&str>, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet-init"));
    command.args(["exec", "0", "0", "--"]).args(words).env_clear();
    command.envs(path.map(|path| ("PATH", path)));
    command.output().unwrap()
}

fn program(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_command_is_found_as_execvp_finds_it() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["one", "two", "three"].map(|name| root.path().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let path = dirs.each_ref().map(|dir| dir.to_str().unwrap()).join(":");
    program(&dirs[1].join("tool"), "#!/bin/sh\necho \"two: $0 $#\"\nexit 7\n", 0o755);
    program(&dirs[2].join("tool"), "#!/bin/sh\necho three\n", 0o755);
    let found = said(&become_command(Some(&path), &["tool", "a b", ""]));
    assert_eq!(found, (Some(7), format!("two: {} 2\n", dirs[1].join("tool").display())));
    // One without the shell's mark is the shell's all the same.
    program(&dirs[0].join("tool"), "echo one: $0 $#\n", 0o755);
    let found = said(&become_command(Some(&path), &["tool", "a b", "c"]));
    assert_eq!(found, (Some(0), format!("one: {} 2\n", dirs[0].join("tool").display())));
    assert_eq!(said(&become_command(None, &["sh", "-c", "exit 3"])), (Some(3), String::new()));
}

#[test]
fn a_command_begins_in_the_directory_it_is_given() {
    let begin = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleet-init"));
        said(&command.args(["exec", "0", "0"]).args(words).env_clear().output().unwrap())
    };
    assert_eq!(begin(&["/usr", "--", "/bin/pwd"]), (Some(0), "/usr\n".to_owned()));
    let answer = |text: &str| (Some(126), format!("fleet: working directory {text}\n"));
    assert_eq!(begin(&["/no", "--", "/bin/pwd"]), answer("/no: No such file or directory"));
    assert_eq!(begin(&["/dev/null", "--", "/bin/pwd"]), answer("/dev/null: Not a directory"));
    for words in [["usr", "--", "/bin/pwd"], ["/usr", "/usr", "--"]] {
        assert_eq!(begin(&words).0, Some(2), "{words:?}");
    }
}

/// Root may run nothing that has no permission to be run at all, so this holds for everybody.
#[test]
fn a_command_that_cannot_be_run_is_named_with_its_reason() {
    let root = tempfile::tempdir().unwrap();
    program(&root.path().join("data"), "#!/bin/sh\n", 0o644);
    let path = format!("{}:/nonexistent", root.path().display());
    let refused = |words: &[&str]| said(&become_command(Some(&path), words));
    let answer = |code, text: &str| (Some(code), format!("fleet: {text}\n"));
    assert_eq!(refused(&["data"]), answer(126, "data: Permission denied"));
    assert_eq!(refused(&["missing"]), answer(127, "missing: No such file or directory"));
    assert_eq!(refused(&["/no/such"]), answer(127, "/no/such: No such file or directory"));
    assert_eq!(refused(&["/dev/null/x"]), answer(126, "/dev/null/x: Not a directory"));
    assert_eq!(refused(&[""]), answer(127, ": No such file or directory"));
    assert_eq!(refused(&[]), answer(126, "no command"));
    let long = format!("/{}", "x".repeat(5000));
    let (code, text) = refused(&[&long]);
    assert_eq!((code, text.len()), (Some(126), 512), "{text}");
}
