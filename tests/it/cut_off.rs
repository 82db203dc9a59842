//! A node that the controllers cannot reach: `fleet dev fault --network` cuts it off, its agent and its job keep
//! running, and with `--clear` it is back as it was.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};

/// The node that is cut off; the other one is not.
const NODE: &str = "titan02";
/// Exit codes of `fleet`.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNREACHABLE: i32 = 8;

#[test]
fn a_node_is_cut_off_and_its_job_keeps_running() -> Result<()> {
    let Some(mut lab) = Lab::start_with_relays(2, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("no link to a controller", "the test cuts it");
    let mut steps = Steps::default();
    steps.step("what cannot be cut off is named", || refused(&lab));
    steps.step("the job runs while nobody reaches its node", || cut_and_back(&lab));
    steps.step("a cut ends by itself when `fleet dev` stops", || cut(&lab).map(drop));
    lab.conclude(steps)
}

fn refused(lab: &Lab) -> Result<()> {
    let fault = |words: &[&str]| lab.run(&[&["dev", "fault"], words].concat());
    fault(&["--node", "titan03", "--network"])?
        .fails(NOT_FOUND, &["no node \"titan03\"", "titan01, titan02"])?;
    fault(&["--node", NODE, "--network", "--gpu", "0"])?.fails(USAGE, &["--gpu"])?;
    let nowhere = lab.path("nowhere").to_string_lossy().into_owned();
    fault(&["--node", NODE, "--network", "--state", &nowhere])?
        .fails(NOT_FOUND, &["folder of a `fleet dev` cluster"])?;
    Ok(())
}

/// Cuts the node off, and waits until the controller noticed.
fn cut(lab: &Lab) -> Result<String> {
    let said = lab.run(&["dev", "fault", "--node", NODE, "--network"])?;
    ensure!(said.ok()?.is_empty() && said.stderr.contains("its jobs keep running"), "{said:?}");
    lab.node_in(NODE, "suspect", LATER)?;
    lab.output(&["gpu", "list"])
}

fn cut_and_back(lab: &Lab) -> Result<()> {
    let beats = lab.path("beats.txt");
    let script = "while echo >> \"$0\"; do sleep 0.1; done";
    let argv = ["sh", "-c", script, &beats.to_string_lossy()];
    let job = lab.submit(&["-G", "1", "--node", NODE], &argv)?;
    lab.job_in(&job, "running", SOON)?;
    let before = (lab.job(&job)?["attempt"].clone(), lab.pid("agent", NODE)?);

    cut(lab)?;
    lab.node_in(NODE, "unreachable", LATER)?;
    let gpus = lab.json(&["gpu", "list"])?;
    for gpu in gpus["items"].as_array().context("items")? {
        let known = gpu["node"] != NODE;
        ensure!((gpu["health"] != "unknown") == known, "{gpu}");
    }
    let written = || -> Result<u64> { Ok(fs::metadata(&beats)?.len()) };
    let then = written()?;
    wait::eventually("the job still runs", SOON, || Ok(written()? > then + 5))?;
    lab.run(&["run", "-G", "1", "--node", "titan01", "--", "true"])?.ends(0)?;
    let nobody = lab.run(&["exec", &job, "--", "true"])?;
    nobody.fails(UNREACHABLE, &["cannot reach titan02", "its jobs keep running"])?;
    ensure!(!nobody.stderr.contains("the controller at"), "{}", nobody.stderr);
    let hint = "when the node can be reached again";
    lab.run(&["logs", &job])?.fails(UNREACHABLE, &["cannot show the output", NODE, hint])?;
    let status = lab.output(&["status"])?;
    ensure!(status.contains("1 closed: unreachable"), "{status}");

    let said = lab.run(&["dev", "fault", "--node", NODE, "--clear"])?;
    ensure!(said.ok()?.is_empty() && said.stderr.contains("connected to the controllers again"));
    lab.node_in(NODE, "ready", LATER)?;
    let after = lab.job_in(&job, "running", SOON)?;
    ensure!((after["attempt"].clone(), lab.pid("agent", NODE)?) == before, "{after}");
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, SOON)?;
    lab.gpus_free(4, SOON)
}
