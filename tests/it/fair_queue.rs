//! The queue is shared: many jobs of one person do not keep another's first job waiting.

use anyhow::{Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{LATER, SOON};
use serde_json::Value;

/// Jobs of one person, in a fleet with two GPUs.
const MANY: usize = 30;

#[test]
fn thirty_jobs_of_one_person_do_not_keep_anothers_first_job_waiting() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("the other's first job starts next", || first_job(&lab));
    lab.conclude(steps)
}

fn first_job(lab: &Lab) -> Result<()> {
    let mut many = Vec::new();
    for _ in 0..MANY {
        many.push(lab.submit(&["-G", "1", "-t", "10m"], &["sleep", "2"])?);
    }
    let last = many.last().map(String::as_str).unwrap_or_default();
    lab.job_until(&many[1], "runs", SOON, |job| job["state"] != "queued")?;
    let words = ["run", "-d", "-G", "1", "-w", "/tmp", "-t", "10m", "--", "true"];
    let first = lab.run_as_nobody(&words)?.ok()?.trim().to_owned();
    // By submission it would be behind all of them, as the last of the thirty is.
    let place = |job: &Value| job["place"].as_u64();
    let (mine, theirs) = (lab.job(&first)?, lab.job(last)?);
    ensure!(place(&mine).is_none_or(|place| place == 1), "{mine}");
    ensure!(place(&theirs).is_some_and(|place| place > 15), "{theirs}");
    let ended = lab.job_ended(&first, LATER)?;
    ensure!(ended["state"] == "completed", "{ended}");
    let jobs = lab.json(&["ps"])?;
    let items = jobs["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let waiting = items.iter().filter(|job| job["state"] == "queued").count();
    ensure!(waiting >= MANY - 12, "{waiting} of {MANY} wait when it has ended: {jobs}");
    // Those that wait are held first: a job that is stopped while it begins is a complaint in a log.
    let all = |verb: &[&str]| {
        let words: Vec<&str> =
            verb.iter().copied().chain(many.iter().map(String::as_str)).collect();
        lab.run(&words)
    };
    all(&["job", "hold"])?;
    let running = lab.json(&["ps"])?;
    let running = running["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let running = running.iter().filter(|job| job["hold"].is_null());
    for id in running.filter_map(|job| job["id"].as_str()) {
        lab.job_ended(id, LATER)?;
    }
    all(&["cancel", "--yes"])?;
    Ok(())
}
