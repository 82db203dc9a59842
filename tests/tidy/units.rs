//! The systemd units: what must hold in them, and what `systemd-analyze verify` says where it is installed.

use std::{fs, os::unix::fs::symlink, process::Command};

use crate::{Violation, tree};

const RELOAD: &str = "ExecReload=/bin/kill -HUP $MAINPID";

/// (unit, line that must be there, why). Removing one of these would lose jobs or GPUs, and no other test would see.
const MUST_SAY: &[(&str, &str, &str)] = &[
    ("systemd/fleet-agent.service", "KillMode=process", "a hung driver call must not block a stop"),
    ("systemd/fleet-agent.service", "Type=notify", "ready means that jobs were found again"),
    ("systemd/fleet-controller.service", "Type=notify", "ready means that the store was read"),
    ("systemd/fleet-controller.service", "User=fleet", "the controller needs no root"),
    ("systemd/fleet-controller.service", RELOAD, "`systemctl reload` is how the log level changes"),
    ("systemd/fleet-agent.service", RELOAD, "`systemctl reload` is how the log level changes"),
    ("systemd/fleet-controller.service", "WatchdogSec=1min", "a controller that hangs is replaced"),
    ("systemd/fleet-agent.service", "WatchdogSec=2min", "an agent that hangs is replaced"),
    (
        "systemd/fleet-controller.service",
        "ExecStart=/usr/bin/fleet-controller run --config /etc/fleet/controller.toml",
        "this is how it is started",
    ),
    (
        "systemd/fleet-gate.service",
        "ExecStart=/usr/bin/fleet-agent gate load --config /etc/fleet/agent.toml",
        "a node that enforces must do so before anybody can log in",
    ),
    (
        "systemd/fleet-gate.service",
        "Before=fleet-agent.service systemd-user-sessions.service ssh.service sshd.service ssh.socket cron.service atd.service docker.service shutdown.target",
        "a program that starts before the gate keeps the GPU that it opened",
    ),
    (
        "systemd/fleet-agent.service",
        "After=remote-fs.target nss-user-lookup.target autofs.service",
        "jobs that restart after a boot find no home and no user, and fail for good",
    ),
    (
        "systemd/fleet-controller.service",
        "StartLimitIntervalSec=0",
        "a disk that was full for a minute must not take the controller away for ever",
    ),
    (
        "systemd/fleet-agent.service",
        "ExecStart=/usr/bin/fleet-agent run --config /etc/fleet/agent.toml",
        "this is how it is started",
    ),
];

/// (unit, start of a line that may not be there, why).
const MAY_NOT_SAY: &[(&str, &str, &str)] = &[
    (
        "systemd/fleet-agent.service",
        "Delegate=",
        "systemd 252 then fails to start it again (219/CGROUP)",
    ),
    ("systemd/fleet-agent.service", "Private", "a mount namespace hides our mounts from the jobs"),
    (
        "systemd/fleet-agent.service",
        "Protect",
        "a mount namespace or device filter shuts out mounts or GPUs",
    ),
    ("systemd/fleet-agent.service", "DeviceAllow=", "a device filter shuts out the GPUs"),
];

fn settings(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (_, setting, why) in MUST_SAY.iter().filter(|(unit, ..)| *unit == path) {
        if !text.lines().any(|line| line.trim() == *setting) {
            violations.push(Violation::new(path, 1, format!("must say `{setting}`: {why}")));
        }
    }
    for (number, line) in text.lines().enumerate() {
        for (_, start, why) in MAY_NOT_SAY.iter().filter(|(unit, ..)| *unit == path) {
            if line.trim().starts_with(start) {
                violations.push(Violation::new(
                    path,
                    number + 1,
                    format!("remove `{line}`: {why}"),
                ));
            }
        }
    }
    violations
}

#[test]
fn units_keep_what_jobs_depend_on() {
    let files = tree::files_ending(".service");
    assert!(files.len() >= 2, "the units are gone");
    let violations: Vec<_> =
        files.iter().flat_map(|file| settings(&file.path, &file.text)).collect();
    crate::assert_none(&violations);
}

#[test]
fn what_a_new_start_cannot_mend_is_not_started_again() {
    let (store, config) =
        (fleet_controller::raft::EXIT_STORE_REFUSED, fleet_daemon::process::EXIT_CONFIG);
    let codes = [("controller", format!("{store} {config}")), ("agent", config.to_string())];
    for (daemon, codes) in codes {
        let units = tree::files_ending(&format!("fleet-{daemon}.service"));
        assert_eq!(units.len(), 1, "the unit is gone");
        let line = format!("RestartPreventExitStatus={codes}");
        assert!(units[0].text.lines().any(|said| said == line), "{daemon}: must say {line}");
    }
}

#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("SKIPPED: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let units = [".service", ".slice"].iter().flat_map(|ending| tree::files_ending(ending));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a unit can be written");
        path
    };
    let mut paths: Vec<_> = units
        .map(|unit| {
            let name = unit.path.rsplit('/').next().unwrap_or(&unit.path);
            // Our programs need not be installed where the test runs.
            let lines = unit.text.lines().map(|line| match line.strip_prefix("ExecStart=") {
                Some(_) => "ExecStart=/bin/true",
                None => line,
            });
            write(name, &(lines.collect::<Vec<_>>().join("\n") + "\n"))
        })
        .collect();
    // As on a node whose sshd is started by its socket, and early: Ubuntu's way since 22.10.
    paths.push(write("ssh.socket", "[Socket]\nListenStream=127.0.0.1:22\nAccept=no\n"));
    paths.push(write("ssh.service", "[Service]\nExecStart=/bin/true\n"));
    for (target, unit) in [("sockets", "ssh.socket"), ("multi-user", "fleet-agent.service")] {
        let wants = folder.path().join(format!("{target}.target.wants"));
        fs::create_dir(&wants).expect("a folder can be made");
        symlink(folder.path().join(unit), wants.join(unit)).expect("a unit can be enabled");
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&paths)
        .arg("multi-user.target")
        .output()
        .expect("systemd-analyze runs");
    let said = String::from_utf8_lossy(&output.stderr);
    // It also speaks of other units of this machine; only what it says of ours counts.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("fleet")).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

/// Tenths of what `systemd-analyze security` may say of the controller's unit: 1.2 on Debian 12, with some room for
/// other versions' weights. docs/access.md has the figures.
const EXPOSURE_MAX: &str = "16";

#[test]
fn the_controller_stays_shut_in() {
    let units = tree::files_ending("fleet-controller.service");
    assert_eq!(units.len(), 1, "the unit is gone");
    let judged = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX])
        .arg(tree::root().join(&units[0].path))
        .output();
    let Ok(judged) = judged else {
        println!("SKIPPED: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&judged.stdout);
    if !said.contains("Overall exposure level") {
        println!("SKIPPED: this systemd-analyze judges no unit that is not installed");
        return;
    }
    assert!(judged.status.success(), "{said}");
}

/// Where a machine without the packages is told what to copy.
const BY_HAND: (&str, &str) = ("docs/install.md", "copy by hand:");
/// What lies in `systemd` and is not copied by the commands of the page, and what they copy though it is not there.
fn by_hand(units: &[String], page: &str) -> Vec<Violation> {
    let (path, before) = BY_HAND;
    let block = page.split_once(before).and_then(|(_, rest)| rest.split("```").nth(1));
    let Some(block) = block else {
        return vec![Violation::new(path, 1, format!("no commands follow `{before}`"))];
    };
    let copied: Vec<&str> = block
        .lines()
        .filter(|line| line.starts_with("install "))
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_prefix("systemd/"))
        .collect();
    let line = page.lines().position(|line| line.contains(before)).unwrap_or_default() + 1;
    let lacks = units.iter().filter(|unit| !copied.contains(&unit.as_str())).map(|unit| {
        format!("say where to put systemd/{unit} on a machine without packages, after `{before}`")
    });
    let gone = copied.iter().filter(|word| !units.iter().any(|unit| unit == *word));
    let gone = gone.map(|word| format!("systemd/{word} is not there any more"));
    lacks.chain(gone).map(|what| Violation::new(path, line, what)).collect()
}

#[test]
fn every_unit_is_installed_by_hand_too() {
    let page = fs::read_to_string(tree::root().join(BY_HAND.0)).expect("the page can be read");
    let units = tree::names_in("systemd");
    assert!(units.len() >= 7, "the units are gone: {units:?}");
    crate::assert_none(&by_hand(&units, &page));
}

#[test]
fn a_unit_that_nobody_copies_is_found() {
    let page =
        "or copy by hand:\n\n```\ninstall -m 644 systemd/a.service systemd/b.slice /etc/\n```\n";
    let units = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(by_hand(&units(&["a.service", "b.slice"]), page), []);
    let found = by_hand(&units(&["a.service", "b.slice", "c.conf"]), page);
    assert!(found.len() == 1 && found[0].what.contains("systemd/c.conf"), "{found:?}");
    let found = by_hand(&units(&["a.service"]), page);
    assert!(found.len() == 1 && found[0].what.contains("b.slice is not there"), "{found:?}");
    assert_eq!(by_hand(&[], "nothing").len(), 1);
}

#[test]
fn a_bad_unit_is_found() {
    let path = "systemd/fleet-agent.service";
    let start = "ExecStart=/usr/bin/fleet-agent run --config /etc/fleet/agent.toml";
    let after = "After=remote-fs.target nss-user-lookup.target autofs.service";
    let good = format!(
        "[Unit]\n{after}\n[Service]\nType=notify\nKillMode=process\nWatchdogSec=2min\n{RELOAD}\n{start}\n"
    );
    assert_eq!(settings(path, &good), []);
    assert_eq!(settings(path, &good.replace("KillMode=process\n", "")).len(), 1);
    assert_eq!(settings(path, &format!("{good}ProtectClock=yes\n"))[0].line, 9);
}
