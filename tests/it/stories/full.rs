//! In a fleet where every GPU is taken and 16 jobs of others wait: what must leave a place moves at its checkpoint, and not
//! behind them.

use std::time::Duration;

use anyhow::{Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};

use super::crowd::{Crowd, WAITING, free_gpus};
use super::training::{Twins, Wish, reference};

/// How long GPUs that are held must stay free. A plan takes milliseconds.
const HELD: Duration = Duration::from_secs(1);

#[test]
fn a_full_fleet_moves_work_at_its_checkpoint() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:3")? else { return Ok(()) };
    lab.gpus_break();
    let mut steps = Steps::default();
    steps.step("an uninterrupted training", || reference(&lab));
    steps.step("a drain: it leaves at its checkpoint, and is before all who wait", || {
        let told = drain(&lab);
        for node in lab.nodes()? {
            lab.output(&["node", "uncordon", &node])?;
        }
        told?;
        lab.gpus_free(6, SOON)
    });
    steps.step("an eviction: a place is held until its checkpoint", || eviction(&lab));
    lab.conclude(steps)
}

fn drain(lab: &Lab) -> Result<()> {
    let holds = [(1, 50), (1, 90), (2, 100)];
    let twins = Twins::submit(lab, "drained", Wish { holds: &holds, ..Wish::default() })?;
    twins.wait_at(1, 50)?;
    twins.are_counted(1, 40)?;
    let node = twins.node()?;
    let crowd = Crowd::fill(lab)?;
    lab.output(&["node", "drain", &node, "--yes", "--reason", "new fans"])?;
    twins.are_told("the node stops the job after its next checkpoint")?;
    // The checkpoint of step 80 is the next one: it leaves there, with nothing free.
    twins.pass(1, 50)?;
    for one in twins.both() {
        lab.job_until(&one.id, "has left", SOON, |job| job["state"] == "queued")?;
    }
    ensure!(crowd.queued()? == WAITING, "one of those who wait got its place");
    crowd.end_some(2, &node)?;
    twins.wait_at(2, 100)?;
    ensure!(crowd.queued()? == WAITING, "one of those who wait was before it");
    twins.pass(2, 100)?;
    twins.conclude(&[80])?;
    crowd.go_home(4)?;
    lab.node_in(&node, "drained", SOON)
}

fn eviction(lab: &Lab) -> Result<()> {
    let holds = [(1, 50), (1, 90), (1, 130), (2, 140)];
    let twins = Twins::submit(lab, "evicted", Wish { holds: &holds, ..Wish::default() })?;
    twins.wait_at(1, 50)?;
    twins.are_counted(1, 40)?;
    let crowd = Crowd::fill(lab)?;
    twins.fault(&["--xid", "62"])?;
    twins.are_told("the node stops the job after its next checkpoint")?;
    // At the checkpoint of step 80 nothing is free: it works on.
    twins.pass(1, 50)?;
    twins.wait_at(1, 90)?;
    twins.are_counted(1, 80)?;
    twins.are_told("runs on where it is: nothing else fits it now")?;
    crowd.end_some(2, "")?;
    wait::until("two GPUs are free", SOON, wait::POLL_COMMAND, || {
        Ok((free_gpus(lab)? == 2).then_some(()))
    })?;
    wait::throughout("they are held for those that must leave", HELD, || {
        Ok(free_gpus(lab)? == 2 && crowd.queued()? == WAITING)
    })?;
    // So it leaves at that of step 120.
    twins.pass(1, 90)?;
    twins.wait_at(2, 140)?;
    ensure!(crowd.queued()? == WAITING, "one of those who wait was before it");
    twins.pass(2, 140)?;
    twins.conclude(&[120])?;
    crowd.go_home(4)?;
    lab.gpus_free(4, LATER)
}
