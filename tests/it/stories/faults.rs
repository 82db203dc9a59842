//! Faults that destroy work, while the newest checkpoint is torn or gone, and one that is seen late.

use std::fs::{self, File};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::ControlFile;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::story::checkpoint;
use fleet_tests::wait::{self, SOON};
use serde_json::Value;

use super::training::{Training, Twins, Wish, reference};

/// How long the fault of a GPU is there before its program dies of it, and nobody has seen it.
const UNSEEN: Duration = Duration::from_secs(3);
/// Between two looks at the GPUs, instead of the half second of `fleet dev`: no look comes by chance.
const SAMPLES: (&str, &str) = ("sample_interval_ms = 500", "sample_interval_ms = 600000");

#[test]
fn a_fault_costs_what_was_done_after_the_newest_checkpoint_that_is_whole() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:8")? else { return Ok(()) };
    lab.gpus_break();
    let mut steps = Steps::default();
    steps.step("an uninterrupted training", || reference(&lab));
    steps.step("agents look at their GPUs every ten minutes", || look_rarely(&lab));
    steps.step("a crash on a GPU whose fault is seen 3 s later", || crash(&lab));
    steps.together(vec![
        ("a fatal fault while the newest is truncated", Box::new(|| truncated(&lab))),
        ("a fatal fault, and the newest is deleted", Box::new(|| deleted(&lab))),
    ]);
    lab.conclude(steps)
}

fn look_rarely(lab: &Lab) -> Result<()> {
    for node in lab.nodes()? {
        let config = lab.dev_file()?.process("agent", &node)?.config.clone();
        let text = fs::read_to_string(&config)?;
        ensure!(text.contains(SAMPLES.0), "{text}");
        fs::write(&config, text.replace(SAMPLES.0, SAMPLES.1))?;
        lab.kill_and_restart("agent", &node)?;
    }
    lab.gpus_free(16, SOON)
}

/// For three seconds the driver counts a memory error, and tells nobody who does not ask, when the program dies of it.
fn crash(lab: &Lab) -> Result<()> {
    let twins = Twins::submit(lab, "crashed", Wish { holds: &[(1, 50)], ..Wish::default() })?;
    twins.wait_at(1, 50)?;
    twins.are_counted(1, 40)?;
    for one in twins.both() {
        let (node, index) = one.gpu(lab)?;
        let control = ControlFile::new(lab.dev_file()?.node(&node)?.gpu_control.clone());
        control.update(|control| {
            let faults = &mut control.gpus[index].faults;
            faults.silent = true;
            faults.ecc.volatile_uncorrected = 1;
        })?;
    }
    wait::throughout("nobody has seen the fault", UNSEEN, || {
        let list = lab.json(&["gpu", "list"])?;
        let gpus = list["items"].as_array().context("items")?;
        Ok(gpus.iter().all(|gpu| gpu["health"] == "ok"))
    })?;
    twins.own.crash(1, 50)?;
    let again = |job: &Value| job["attempt"] == 2;
    lab.job_until(&twins.own.id, "begins again", SOON, again)?;
    // By now its fault is known as well: whichever of the two ends it is right.
    twins.control.crash(1, 50)?;
    twins.conclude(&[40])?;
    let told = lab.why(&twins.own.id)?;
    ensure!(told.contains("exit code 1 of the program"), "its own code is not kept: {told}");
    ensure!(twins.own.job(lab)?["restarts_used"] == 1, "{told}");
    Ok(())
}

/// Two that have saved twice and are to lose their GPU.
fn saved_twice<'a>(lab: &'a Lab, name: &'a str) -> Result<Twins<'a>> {
    let twins = Twins::submit(lab, name, Wish { holds: &[(1, 90)], ..Wish::default() })?;
    twins.wait_at(1, 90)?;
    twins.are_counted(1, 80)?;
    Ok(twins)
}

fn truncated(lab: &Lab) -> Result<()> {
    let twins = saved_twice(lab, "truncated")?;
    for one in twins.both() {
        let newest = File::options().write(true).open(one.checkpoint(80))?;
        newest.set_len(newest.metadata()?.len() / 2)?;
    }
    twins.fault(&["--xid", "79"])?;
    twins.conclude(&[40])?;
    let kept = twins.own.kept().join("torn").join(checkpoint(80));
    ensure!(kept.exists(), "the torn one was not moved to {}", kept.display());
    ensure!(second(lab, &twins.own)?["content"] == "torn", "{}", lab.why(&twins.own.id)?);
    Ok(())
}

fn deleted(lab: &Lab) -> Result<()> {
    let twins = saved_twice(lab, "deleted")?;
    for one in twins.both() {
        fs::remove_file(one.checkpoint(80))?;
    }
    twins.fault(&["--xid", "79"])?;
    twins.conclude(&[40])?;
    ensure!(second(lab, &twins.own)?["place"] == "gone", "{}", lab.why(&twins.own.id)?);
    Ok(())
}

/// What is known of its second checkpoint, which it did not take.
fn second(lab: &Lab, training: &Training) -> Result<Value> {
    let list = lab.json(&["checkpoint", "list", &training.id])?;
    let all = list["items"].as_array().context("items")?;
    let second = all.iter().find(|one| one["number"] == 2).cloned();
    second.with_context(|| format!("no checkpoint 2: {list}"))
}
