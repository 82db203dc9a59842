//! What `fleet-agent` answers to a person: plain lines, whatever the command, also where standard error is no
//! terminal. Only the daemon itself logs JSON there.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const JOIN: &[&str] = &["join", "127.0.0.1:1", "--token", "x", "--name", "titan01"];
const GRANT: &[&str] = &["grant", "ada", "--gpu", "0", "--time", "1h", "--reason", "x"];

/// Each command as it is typed where no agent runs, and what it says: on standard output where it succeeds, else as
/// an error. `FILE` is a file that does not exist.
const COMMANDS: &[(&[&str], i32, &str)] = &[
    (JOIN, 1, "--token"),
    (&["check-config"], 0, "no problem found"),
    (&["log-level"], 1, "does it run"),
    (&["debug-bundle", "FILE"], 0, "look through it before you send it"),
    (GRANT, 1, "no agent runs here"),
    (&["revoke", "res-00000000000000000000000000"], 1, "no agent runs here"),
    (&["enforce", "warn", "--reason", "x"], 1, "no agent runs here"),
    (&["stop-all"], 0, "no job ran on this node"),
    (&["gate", "load"], 0, "there is no gate to load"),
];

/// Commands with an answer that depends on the machine.
const OTHERS: &[&[&str]] = &[&["gate", "show"], &["gate", "remove"]];

fn agent(words: &[&str], folder: &Path) -> Output {
    let config = folder.join("agent.toml");
    let file = folder.join("FILE").display().to_string();
    let words = words.iter().map(|word| if *word == "FILE" { file.as_str() } else { word });
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet-agent"));
    command.args(words).arg("--config").arg(&config).env_remove("FLEET_LOG").output().unwrap()
}

/// A folder with the configuration of an agent that never ran.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let own = |part: &str| folder.path().join(part).display().to_string();
    let parent = format!("fleet-test-{}", std::process::id());
    let text = format!(
        "name = \"titan01\"\nstate_dir = {:?}\nrun_dir = {:?}\ncgroup_parent = {parent:?}\n",
        own("state"),
        own("run")
    );
    fs::write(folder.path().join("agent.toml"), text).unwrap();
    fs::create_dir_all(own("state")).unwrap();
    folder
}

fn is_plain(words: &[&str], ran: &Output) {
    let (said, answered) =
        (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
    for line in said.lines().chain(answered.lines()) {
        assert!(!line.contains(['{', '\u{1b}']), "{words:?}: {line}");
        assert!(!line.contains("fleet_agent::"), "{words:?}: {line}");
    }
    match ran.status.code() {
        Some(0) => assert!(!answered.is_empty() && !said.contains("error:"), "{words:?}: {said}"),
        _ => assert!(answered.is_empty() && said.starts_with("error: "), "{words:?}: {said}"),
    }
}

#[test]
fn each_command_answers_in_plain_lines() {
    for (words, code, text) in COMMANDS {
        let folder = folder();
        let ran = agent(words, folder.path());
        is_plain(words, &ran);
        let (said, answered) =
            (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
        assert_eq!(ran.status.code(), Some(*code), "{words:?}: {said}");
        let heard = if *code == 0 { answered } else { said };
        assert!(heard.contains(text), "{words:?}: {heard}");
    }
    for words in OTHERS {
        is_plain(words, &agent(words, folder().path()));
    }
}

#[test]
fn the_table_has_every_command() {
    let help = Command::new(env!("CARGO_BIN_EXE_fleet-agent")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names.take_while(|line| !line.is_empty());
    // A description that needs a second line is indented further.
    let names = names.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let shown: BTreeSet<&str> =
        names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").collect();
    let tried = COMMANDS.iter().map(|(words, ..)| words[0]);
    let tried: BTreeSet<&str> = tried.chain(["run"]).collect();
    assert_eq!(tried, shown);
}

#[test]
fn a_warning_is_a_line_too() {
    let folder = folder();
    let ran = agent(&["debug-bundle", "FILE"], folder.path());
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.starts_with("warning: no agent answers"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_daemon_logs_json_where_there_is_no_terminal() {
    let folder = folder();
    fs::write(folder.path().join("agent.toml"), "nmae = \"titan01\"\n").unwrap();
    let ran = agent(&["run"], folder.path());
    assert_eq!(ran.status.code(), Some(78));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.starts_with('{') && said.contains("\"level\":\"ERROR\""), "{said}");
}
