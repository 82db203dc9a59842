//! Completions in real shells, and manual pages by the real formatter. `make deps` installs what is asked for here: without
//! it a test fails, as one that was skipped would look as if it had passed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fleet_proto::v1 as pb;

use super::fake::{Fake, Script, job};
use super::terminal::Terminal;
use super::{code, stderr, stdout};

/// The width of the terminals that people still have.
const COLUMNS: usize = 80;

/// A lab with one of everything.
fn lab() -> Fake {
    let node =
        pb::Node { name: "titan01".to_owned(), state: "ready".to_owned(), ..pb::Node::default() };
    let gpu = pb::Gpu {
        uuid: "GPU-0".to_owned(),
        node: "titan01".to_owned(),
        model: "v100".to_owned(),
        state: "free".to_owned(),
        ..pb::Gpu::default()
    };
    let reservation = pb::Reservation {
        id: "res-a".to_owned(),
        owner: "ada".to_owned(),
        state: "active".to_owned(),
        node: "titan01".to_owned(),
        ..pb::Reservation::default()
    };
    Fake::start(Script {
        jobs: vec![job("running", 1)],
        nodes: Some(vec![node]),
        gpus: vec![gpu],
        reservations: vec![reservation],
        users: vec![pb::User { name: "ada".to_owned(), ..pb::User::default() }],
        ..Script::default()
    })
}

/// What is typed before TAB, and the only word that fits.
const TYPED: [(&str, &str); 5] = [
    ("fleet logs ", "job-a"),
    ("fleet release ", "res-a"),
    ("fleet node drain ", "titan01"),
    ("fleet why titan01:", "titan01:0"),
    ("fleet user disable ", "ada"),
];

/// A program of the machine with the environment of `fleet`, which it finds.
fn program(fake: &Fake, name: &str, words: &[&str]) -> Command {
    let fleet = fake.command(&[]);
    let folder = Path::new(fleet.get_program()).parent().unwrap();
    let mut command = Command::new(name);
    command.args(words).env_clear().stdin(Stdio::null());
    for (key, value) in fleet.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    command.env("HOME", fleet.get_current_dir().unwrap()).env("LC_ALL", "C.UTF-8");
    command.current_dir(fleet.get_current_dir().unwrap());
    command
}

/// Its output; it must end well and complain of nothing.
fn said(mut command: Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.unwrap_or_else(|e| panic!("{name}: {e}; `make deps` installs it"));
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{name}: {}", stdout(&output));
    stdout(&output)
}

/// The script for a shell, in a folder under the name that its packages have.
fn script(fake: &Fake, shell: &str, name: &str) -> PathBuf {
    let output = fake.run(&["completion", shell]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let folder = fake.config().parent().unwrap().join("completions");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, output.stdout).unwrap();
    path
}

#[test]
fn each_shell_can_read_its_script() {
    let fake = lab();
    for (shell, name) in [("bash", "fleet"), ("zsh", "_fleet"), ("fish", "fleet.fish")] {
        let path = script(&fake, shell, name).display().to_string();
        said(program(&fake, shell, &["-n", &path]));
    }
}

#[test]
fn bash_offers_what_the_fleet_has() {
    let fake = lab();
    let path = script(&fake, "bash", "fleet");
    for (typed, wanted) in TYPED {
        // As the shell itself calls it; the last word is what is completed.
        let line = format!(
            "source {}; COMP_WORDS=({typed}{}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             COMP_LINE='{typed}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; \
             _clap_complete_fleet fleet \"${{COMP_WORDS[COMP_CWORD]}}\" x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            path.display(),
            if typed.ends_with(' ') { "''" } else { "" },
        );
        let offered = said(program(&fake, "bash", &["--norc", "-c", &line]));
        assert_eq!(
            words(&offered),
            [wanted],
            "{typed:?}: no option keeps the shell from completing it"
        );
    }
}

#[test]
fn fish_offers_what_the_fleet_has() {
    let fake = lab();
    let path = script(&fake, "fish", "fleet.fish");
    let offered = |typed: &str| {
        let line = format!("source {}; complete -C '{typed}'", path.display());
        said(program(&fake, "fish", &["--no-config", "-c", &line]))
    };
    // Options where one is begun, and where nothing else fits.
    for typed in ["fleet logs -", "fleet status "] {
        assert!(words(&offered(typed)).contains(&"--json"), "{typed:?}");
    }
    for (typed, wanted) in TYPED {
        let offered = offered(typed);
        assert_eq!(
            words(&offered),
            [wanted],
            "{typed:?}: no option keeps the shell from completing it"
        );
    }
}

/// The first word of each line.
fn words(offered: &str) -> Vec<&str> {
    offered.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

/// Where its packages put the script, and with the first TAB of the shell: that one loads it.
#[test]
fn zsh_completes_what_the_fleet_has_at_the_first_tab() {
    let fake = lab();
    let folder = script(&fake, "zsh", "_fleet").parent().unwrap().display().to_string();
    for (typed, wanted) in TYPED {
        let mut shell = Terminal::of(program(&fake, "zsh", &["-f", "-i"]), None);
        let ready = format!(
            "PS1='> '; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; echo re''ady\n"
        );
        shell.type_in(ready.as_bytes());
        shell.wait_for("ready\r\n");
        let before = typed.rsplit(' ').next().unwrap();
        shell.type_in(format!("{typed}\t").as_bytes());
        // Only what the shell adds to the line is new.
        shell.wait_for(&format!("{typed}{}", wanted.strip_prefix(before).unwrap()));
    }
}

#[test]
fn manual_pages_fit_the_terminal_and_the_formatter_does_not_complain() {
    let fake = lab();
    let folder = fake.config().parent().unwrap().join("man");
    let output = fake.run(&["manual", &folder.display().to_string()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let pages: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pages.len() > 60, "{}", pages.len());
    for page in pages {
        let name = page.display().to_string();
        let mut man = program(&fake, "man", &["--warnings=w", "-E", "UTF-8", "-l", &name]);
        man.env("MANWIDTH", COLUMNS.to_string()).env("PAGER", "cat").env("MANPAGER", "cat");
        let shown = said(man);
        for line in shown.lines() {
            assert!(line.chars().count() <= COLUMNS, "{name}: {line:?}");
        }
        assert!(shown.contains("\nNAME\n"), "{name}: {shown}");
    }
}
