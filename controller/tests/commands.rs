//! What `fleet-controller` answers to a person: plain lines, whatever the command, also where standard error is no
//! terminal. Only the daemon itself logs JSON there.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Each command in the order in which it is typed here, its exit code, and what it says: on standard output where it
/// succeeds, else as an error. `BACKUP` is a file in the test's folder.
const COMMANDS: &[(&[&str], i32, &str)] = &[
    (&["check-config"], 0, "no problem found"),
    (&["join", "no-token"], 1, "error: "),
    (&["init"], 0, "made a new cluster in "),
    (&["init"], 1, "is there already"),
    (&["backup", "BACKUP"], 0, "keep it as you keep root's keys"),
    (&["verify", "BACKUP"], 0, "BACKUP is whole\nCluster "),
    (&["restore", "--check", "BACKUP"], 0, "Audit records "),
    (&["restore", "BACKUP"], 1, "holds a controller"),
];

fn controller(words: &[&str], folder: &Path) -> Output {
    let file = folder.join("BACKUP").display().to_string();
    let typed = words.iter().map(|word| if *word == "BACKUP" { file.as_str() } else { word });
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet-controller"));
    command.args(typed).env_remove("FLEET_LOG");
    if words[0] != "verify" {
        command.arg("--config").arg(folder.join("controller.toml"));
    }
    command.output().unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let own = |part: &str| folder.path().join(part).display().to_string();
    let text = format!(
        "data_dir = {:?}\nsocket = {:?}\nlisten = \"127.0.0.1:7443\"\nadvertise = [\"127.0.0.1:7443\"]\n",
        own("data"),
        own("socket")
    );
    fs::write(folder.path().join("controller.toml"), text).unwrap();
    folder
}

#[test]
fn each_command_answers_in_plain_lines() {
    let folder = folder();
    for (words, code, text) in COMMANDS {
        let ran = controller(words, folder.path());
        let (said, answered) =
            (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
        assert_eq!(ran.status.code(), Some(*code), "{words:?}: {said}");
        for line in said.lines().chain(answered.lines()) {
            assert!(!line.contains(['{', '\u{1b}']), "{words:?}: {line}");
            assert!(!line.contains("fleet_controller::"), "{words:?}: {line}");
        }
        let heard = if *code == 0 { &answered } else { &said };
        assert!(heard.contains(text), "{words:?}: {heard}");
        match code {
            0 => assert!(said.is_empty(), "{words:?}: {said}"),
            _ => assert!(answered.is_empty() && said.starts_with("error: "), "{words:?}: {said}"),
        }
    }
}

#[test]
fn a_program_gets_json_from_verify() {
    let folder = folder();
    for words in [&["init"][..], &["backup", "BACKUP"]] {
        assert!(controller(words, folder.path()).status.success());
    }
    let ran = controller(&["verify", "--json", "BACKUP"], folder.path());
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((json["schema"].as_str(), &json["whole"]), (Some("fleet.backup/v1"), &true.into()));
}

#[test]
fn the_table_has_every_command() {
    let program = env!("CARGO_BIN_EXE_fleet-controller");
    let help = Command::new(program).arg("--help").output().unwrap();
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
fn the_daemon_logs_json_where_there_is_no_terminal() {
    let folder = folder();
    fs::write(folder.path().join("controller.toml"), "lissten = \"127.0.0.1:1\"\n").unwrap();
    let ran = controller(&["run"], folder.path());
    assert_eq!(ran.status.code(), Some(78));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.starts_with('{') && said.contains("\"level\":\"ERROR\""), "{said}");
}
