//! The controller's machine with a wrong clock: reservations neither end nor start by it, and it is said.
//!
//! Its wall clock is faked by libfaketime (Debian package `faketime`); the monotonic clock is not.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::seat::Seat;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};

/// How often another leader is elected until it is the one that is wanted; each time it is one of two.
const ELECTIONS_MAX: usize = 20;

/// Where Debian puts it.
fn library() -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime"];
    let path = folders.map(|folder| format!("{folder}/libfaketimeMT.so.1"));
    path.into_iter().find(|path| Path::new(path).exists())
}

/// The variables that have a program see the clock that `how` says.
fn faked(library: &str, how: &str) -> [String; 5] {
    [
        "env".to_owned(),
        format!("LD_PRELOAD={library}"),
        how.to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        "DONT_FAKE_MONOTONIC=1".to_owned(),
    ]
}

#[test]
fn a_leader_whose_clock_goes_wrong_hands_over_and_stays_away() -> Result<()> {
    let Some(library) = library() else {
        fleet_tests::lab::tell("SKIPPED: libfaketime is not installed (Debian package faketime)");
        return Ok(());
    };
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("clock", "the test sets it wrong");
    lab.expect_in_logs("\"kind\":\"certificate\"", "by a wrong clock no certificate is good");
    lab.expect_in_logs("CertificateExpired", "by a wrong clock no certificate is good");
    lab.expect_in_logs("proposal failed", "a leader that is killed has followers no more");
    let shift = lab.path("shift");
    let set = |text: &str| fs::write(&shift, text).context("write the shift");
    let mut steps = Steps::default();
    let mut wrong = String::new();
    steps.step("a controller whose clock can be moved leads", || {
        let leader = lab.leader()?;
        lab.controllers_agree(3, SOON)?;
        let all = lab.controllers()?.into_iter().map(|controller| controller.id);
        wrong = all.into_iter().find(|id| *id != leader).context("no follower")?;
        set("+0")?;
        lab.terminate("controller", &wrong)?;
        let file = format!("FAKETIME_TIMESTAMP_FILE={}", shift.display());
        lab.restart_with("controller", &wrong, |argv| {
            let front =
                faked(&library, &file).into_iter().chain(["FAKETIME_NO_CACHE=1".to_owned()]);
            argv.splice(0..0, front);
        })?;
        // By elections: one to which leadership was handed over does not hand it on for a while.
        for _ in 0..ELECTIONS_MAX {
            lab.controllers_agree(3, SOON)?;
            let leader = lab.leader()?;
            if leader == wrong {
                return Ok(());
            }
            lab.kill("controller", &leader)?;
            lab.leader_other_than(&leader, SOON)?;
            lab.restart("controller", &leader)?;
        }
        anyhow::bail!("controller {wrong} was never elected")
    });
    steps.step("its clock goes back two days: another one leads, and users get in", || {
        set("-2d")?;
        lab.leader_other_than(&wrong, LATER)?;
        let log = fs::read_to_string(&lab.dev_file()?.process("controller", &wrong)?.log)?;
        ensure!(log.contains("hands leadership over"), "{log}");
        Seat::at(&lab, "titan01", 0)?.run(&["reservation", "list"])?.ok()?;
        lab.node_in("titan01", "ready", SOON)?;
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0).map(drop)
    });
    steps.step("its clock is right again: it follows", || {
        set("+0")?;
        lab.controllers_agree(3, LATER)
    });
    lab.conclude(steps)
}

#[test]
fn a_wrong_clock_ends_and_starts_nothing() -> Result<()> {
    let Some(library) = library() else {
        fleet_tests::lab::tell("SKIPPED: libfaketime is not installed (Debian package faketime)");
        return Ok(());
    };
    let Some(mut lab) = Lab::start(1, "v100-pcie:4")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("clock", "the test sets it wrong");
    lab.expect_in_logs("the certificate expired at unix time", "in ten years the agents' have");
    lab.expect_in_logs("CertificateExpired", "the controller calls itself, and takes none either");
    let mut steps = Steps::default();
    for (what, shift) in [("ten years ahead", "+3650d"), ("an hour back", "-1h")] {
        steps.step(&format!("the controller's clock is {what}"), || wrong(&lab, &library, shift));
    }
    lab.conclude(steps)
}

fn wrong(lab: &Lab, library: &str, shift: &str) -> Result<()> {
    let now = lab.output(&["reserve", "-G", "1", "-t", "2h"])?.trim().to_owned();
    let later = lab.output(&["reserve", "-G", "1", "--from", "+3h", "-t", "2h"])?.trim().to_owned();
    let job = lab.submit(
        &["-G", "1", "-t", "1h", "-J", "worker"],
        &["sh", "-c", "while ! [ -e clock-over ]; do sleep 0.1; done"],
    )?;
    lab.job_in(&job, "running", SOON)?;
    lab.terminate("controller", "1")?;
    lab.restart_with("controller", "1", |argv| {
        argv.splice(0..0, faked(library, &format!("FAKETIME={shift}")));
    })?;
    lab.controller_answers()?;
    let status = wait::until("it is said", SOON, wait::POLL_COMMAND, || {
        let status = lab.json(&["controller", "status"])?;
        let warnings = status["warnings"].as_array().context("warnings")?;
        let said =
            warnings.iter().any(|text| text.as_str().is_some_and(|text| text.contains("clock")));
        Ok(said.then_some(status))
    });
    let states = || -> Result<[String; 3]> {
        let state = |noun: &str, id: &str| -> Result<String> {
            Ok(lab.json(&[noun, "show", id])?["state"].as_str().unwrap_or_default().to_owned())
        };
        Ok([state("reservation", &now)?, state("reservation", &later)?, state("job", &job)?])
    };
    let held = wait::throughout("everything is as before", Duration::from_secs(3), || {
        Ok(states()? == ["active", "scheduled", "running"])
    });
    let seen = states()?;
    lab.terminate("controller", "1")?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    status?;
    held.with_context(|| format!("{seen:?}"))?;
    ensure!(
        states()? == ["active", "scheduled", "running"],
        "after the clock was right again: {:?}",
        states()?
    );
    fs::write(lab.path("clock-over"), "")?;
    lab.job_in(&job, "completed", SOON)?;
    fs::remove_file(lab.path("clock-over"))?;
    lab.output(&["release", &now, &later])?;
    lab.gpus_free(4, SOON)
}
