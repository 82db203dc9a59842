//! Nodes that fall silent, with jobs that say `--stop-after`: one that nobody hears while its job works and saves on, and
//! one that stands still and wakes when its job runs elsewhere.
//!
//! They stand still for little more than a minute, not two: `--stop-after` is at least a minute, and what the node does on
//! waking depends only on whether this silence and the grace after it are over. They are, as the next attempt runs by then.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fleet_tests::lab::{Lab, tell};
use fleet_tests::steps::Steps;
use fleet_tests::story::{Deed, checkpoint};
use fleet_tests::wait::{self, SOON};
use nix::unistd::Pid;

use super::frozen::Frozen;
use super::training::{Twins, Wish, reference};

const STOP_AFTER: [&str; 2] = ["--stop-after", "1m"];
/// The silence, its drift, the grace and the margin after it, in seconds: no replacement comes sooner.
const REPLACED_AFTER: Duration = Duration::from_secs(60 + 2 + 5);
/// What may still come upon it on a busy machine, in which a node must also be found and the attempt start.
const REPLACED_MAX: Duration = Duration::from_secs(120);

#[test]
fn a_silent_nodes_dead_attempt_spoils_nothing() -> Result<()> {
    let Some(mut lab) = Lab::start(4, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("no link to a controller", "an agent that stood still finds its link cut");
    lab.expect_in_logs("a checkpoint was not counted", "it was moved aside when its node woke");
    let mut steps = Steps::default();
    steps.step("an uninterrupted training", || reference(&lab));
    steps.step("replaced after a silence, and again after it", || silent(&lab));
    lab.conclude(steps)
}

fn silent(lab: &Lab) -> Result<()> {
    // Two GPUs a node: each pair has one of its own.
    let holds = [(1, 50), (1, 130), (2, 90)];
    let cut_off = Wish { holds: &holds, flags: &STOP_AFTER, ..Wish::default() };
    let cut_off = Twins::submit(lab, "cut-off", cut_off)?;
    cut_off.wait_at(1, 50)?;
    let stands = Wish {
        holds: &[(1, 50), (2, 90)],
        flags: &STOP_AFTER,
        // Were it asked to stop on waking, it would save, beside what the next attempt saves.
        program_flags: &["--save-on-term"],
    };
    let stands = Twins::submit(lab, "stands-still", stands)?;
    stands.wait_at(1, 50)?;
    for twins in [&cut_off, &stands] {
        twins.are_counted(1, 40)?;
    }
    let nodes = [cut_off.node()?, stands.node()?];
    ensure!(nodes[0] != nodes[1], "all on {}", nodes[0]);

    let began = Instant::now();
    let agent = Frozen::agent(lab, &nodes[0])?;
    let node = Frozen::node(lab, &nodes[1])?;
    works_on_unheard(&cut_off)?;
    replaced(&[&cut_off, &stands], began)?;
    newer_ones_are_aside(&cut_off)?;
    drop(agent);
    wakes_and_dies(&stands, &node)?;
    drop(node);
    for name in &nodes {
        lab.node_in(name, "ready", SOON)?;
    }
    lab.gpus_free(4, SOON)?;
    newer_ones_are_aside(&cut_off)?;
    move_on_from_their_own(lab, &cut_off, &stands)
}

/// What it saves now is on the disk, and nobody hears of it.
fn works_on_unheard(twins: &Twins<'_>) -> Result<()> {
    twins.pass(1, 50)?;
    twins.wait_at(1, 130)?;
    for one in twins.both() {
        ensure!(one.checkpoint(80).exists() && one.checkpoint(120).exists(), "it did not save");
    }
    twins.are_counted(1, 40)
}

/// The next attempts run on other nodes, and have saved.
fn replaced(all: &[&Twins<'_>], began: Instant) -> Result<()> {
    wait::eventually("the next attempts run", REPLACED_MAX, || {
        let mut runs = true;
        for one in all.iter().flat_map(|twins| twins.both()) {
            runs &= one.deeds()?.iter().any(|line| line.attempt == 2);
        }
        Ok(runs)
    })?;
    let silent = began.elapsed();
    tell(&format!("replaced after {:.1} s of silence", silent.as_secs_f64()));
    ensure!(silent >= REPLACED_AFTER, "replaced while the earlier attempt could still run");
    for twins in all {
        twins.wait_at(2, 90)?;
        twins.are_counted(2, 80)?;
    }
    Ok(())
}

/// A program that takes the newest one by itself would not find those that nobody reported.
fn newer_ones_are_aside(twins: &Twins<'_>) -> Result<()> {
    let aside = twins.own.kept().join("aside");
    for step in [80, 120] {
        ensure!(aside.join(checkpoint(step)).exists(), "{step} is not in {}", aside.display());
    }
    Ok(())
}

/// Its shim kills it before it does anything, and what the next attempt has saved stays as it is.
fn wakes_and_dies(twins: &Twins<'_>, node: &Frozen) -> Result<()> {
    let saved = || twins.both().map(|one| fs::read(one.checkpoint(80)).unwrap_or_default());
    let before = saved();
    ensure!(before.iter().all(|bytes| !bytes.is_empty()), "the next attempt has saved nothing");
    // Before they wake: the shim may have killed them a moment later.
    let jobs: Vec<Pid> = node.pids().iter().copied().filter(|pid| is_training(*pid)).collect();
    ensure!(jobs.len() >= 2, "the trainings were not among what stands still: {jobs:?}");
    let woken = Instant::now();
    node.go_on();
    wait::until("the dead attempt has ended", SOON, Duration::from_millis(1), || {
        Ok(jobs.iter().all(|pid| !is_training(*pid)).then_some(()))
    })?;
    let window = woken.elapsed();
    tell(&format!("woken, the dead attempt lived for {} ms", window.as_millis()));
    ensure!(saved() == before, "a checkpoint of the next attempt changed");
    for one in twins.both() {
        let late = one.checkpoint(51);
        ensure!(!late.exists(), "the dead attempt was let save {}", late.display());
        let mut deeds = one.deeds()?.into_iter().filter(|line| line.attempt == 1);
        let last = deeds.next_back().map(|line| line.deed);
        ensure!(last == Some(Deed::WaitsAfter(50)), "the dead attempt kept running");
    }
    Ok(())
}

fn is_training(pid: Pid) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains("story.py")
}

/// The earlier attempt's newer checkpoints are known by now: the next one takes the second attempt's own all the same.
fn move_on_from_their_own(lab: &Lab, cut_off: &Twins<'_>, stands: &Twins<'_>) -> Result<()> {
    let nodes = [cut_off.node()?, stands.node()?];
    for node in &nodes {
        let drain = ["node", "drain", node, "--reason", "disk", "--deadline", "now", "--yes"];
        lab.output(&drain)?;
    }
    cut_off.conclude(&[40, 80])?;
    // It was stopped after step 90, did the step that it had begun, and saved on SIGTERM.
    stands.conclude(&[40, 91])?;
    nodes.iter().try_for_each(|node| lab.output(&["node", "uncordon", node]).map(drop))
}
