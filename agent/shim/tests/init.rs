//! `fleet-init` by itself: how it finds a command, becomes it, and says that it cannot.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

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

/// A small program in ELF of this machine kind, with this interpreter or none.
fn elf(class: u8, machine: u16, interpreter: Option<&str>) -> Vec<u8> {
    let wide = class == 2;
    let mut bytes = vec![0; 512];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &[0x7f, b'E', b'L', b'F', class, 1, 1]);
    put(16, &2_u16.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(20, &1_u32.to_le_bytes());
    let (headers, sizes, each) = if wide { (64_u64, 52, 56_u16) } else { (52, 40, 32) };
    put(if wide { 32 } else { 28 }, &headers.to_le_bytes()[..if wide { 8 } else { 4 }]);
    put(sizes, &u16::try_from(headers).unwrap().to_le_bytes());
    put(sizes + 2, &each.to_le_bytes());
    let Some(name) = interpreter else { return bytes };
    put(sizes + 4, &1_u16.to_le_bytes());
    let at = usize::try_from(headers).unwrap();
    put(at, &3_u32.to_le_bytes());
    let length = name.len() as u64 + 1;
    if wide {
        put(at + 8, &256_u64.to_le_bytes());
        put(at + 32, &length.to_le_bytes());
    } else {
        put(at + 4, &256_u32.to_le_bytes());
        put(at + 16, &u32::try_from(length).unwrap().to_le_bytes());
    }
    put(256, name.as_bytes());
    bytes
}

/// Nothing but text is ever given to a shell, and what stands in the way has a name.
#[test]
fn an_interpreter_that_cannot_run_is_named() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(at(name), bytes).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    let other = elf(2, 183, None);
    write("arm", &other);
    fs::create_dir(at("folder")).unwrap();
    program(&root.path().join("data"), "x", 0o644);
    std::os::unix::fs::symlink("round", at("round")).unwrap();
    let says = |name: &str, bytes: &[u8], interpreter: &str, why: &str| {
        write(name, bytes);
        let expected = format!("fleet: {}: bad interpreter {interpreter}: {why}\n", at(name));
        // By its path, and found along PATH.
        for word in [&*at(name), name] {
            let found = said(&become_command(Some(root.path().to_str().unwrap()), &[word]));
            assert_eq!(found, (Some(126), expected.clone()), "{word}");
        }
    };
    let missing = "No such file or directory";
    let windows = format!(
        "{missing} (the lines of the script end as in Windows; remove the carriage returns)"
    );
    says("crlf", b"#!/bin/sh\r\necho ran\r\n", "/bin/sh\\r", &windows);
    says("missing", b"#!/no/such/sh\necho ran\n", "/no/such/sh", missing);
    says("spaces", b"#! \t /no/sh -e\necho ran\n", "/no/sh", missing);
    says("escape", b"#!/no/\x1b[2J\n", "/no/\\x1b[2J", missing);
    says("no-end", b"#!/no/sh", "/no/sh", missing);
    let script = |interpreter: &str| format!("#!{interpreter}\necho ran\n").into_bytes();
    says("of-folder", &script(&at("folder")), &at("folder"), "Permission denied");
    says("of-data", &script(&at("data")), &at("data"), "Permission denied");
    says("of-arm", &script(&at("arm")), &at("arm"), "exec format error");
    let nests = "too many interpreters, or links, in a row";
    says("self", &script(&at("self")), &at("self"), nests);
    says("of-round", &script(&at("round")), &at("round"), nests);
    for (class, machine) in [(2, 62), (1, 3)] {
        let program = elf(class, machine, Some("/lib/ld-none.so"));
        // A kernel may be built without the 32-bit form; then it is a foreign program.
        write("probe", &elf(class, machine, Some("/lib/ld-none.so")));
        let probe = said(&become_command(None, &[&at("probe")])).1;
        if class == 2 || !probe.contains("exec format") {
            says("elf", &program, "/lib/ld-none.so", missing);
        }
    }
    for (name, bytes, why) in [
        ("arm", &*other, "a program for another kind of machine"),
        ("arm32", &elf(1, 40, None), "a program for another kind of machine"),
        ("short", b"\x7fELF", "a program for another kind of machine"),
        ("binary", b"ec\0ho ran\n", "neither a program nor a script"),
    ] {
        write(name, bytes);
        let found = said(&become_command(None, &[&at(name)]));
        let expected = format!("fleet: {}: exec format error ({why})\n", at(name));
        assert_eq!(found, (Some(126), expected));
    }
    // What shells read themselves.
    for (name, text, printed) in [
        ("empty", "", ""),
        ("text", "echo ran\n", "ran\n"),
        ("bare", "#!\necho ran\n", "ran\n"),
        ("text-with-data", "echo ran\nexit\n\0\0\0", "ran\n"),
    ] {
        write(name, text.as_bytes());
        let found = said(&become_command(None, &[&at(name)]));
        assert_eq!(found, (Some(0), printed.to_owned()), "{name}");
    }
    // A directory is none, and has no interpreter either.
    let folder = said(&become_command(None, &[&at("folder")]));
    assert_eq!(folder, (Some(126), format!("fleet: {}: Permission denied\n", at("folder"))));
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
