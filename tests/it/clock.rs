//! The controller's machine with a wrong clock: reservations neither end nor start by it, and it is said.
//!
//! Its wall clock is faked by libfaketime (Debian package `faketime`); the monotonic clock is not.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};

/// Where Debian puts it.
fn library() -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime"];
    let path = folders.map(|folder| format!("{folder}/libfaketimeMT.so.1"));
    path.into_iter().find(|path| Path::new(path).exists())
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
        let front = [
            "env".to_owned(),
            format!("LD_PRELOAD={library}"),
            format!("FAKETIME={shift}"),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        argv.splice(0..0, front);
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
