//! Jobs that wait: what the one who waits sees, how long a job may run, and who had a GPU.

use std::fs::{self, File};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use serde_json::Value;

const FIRST: &[&str] = &["sleep", "1000"];

#[test]
fn waiting_says_why_and_until_when() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("an attached run says why it waits, and where it runs then", || attached(&lab));
    steps.step("each job of the queue has an expected start", || places(&lab));
    steps.step("the limit of a job is changed", || limit(&lab));
    steps.step("an admin sets a default for jobs", || defaults(&lab));
    steps.step("a job ends with the reservation that it waits for", || reservation(&lab));
    steps.step("who had a GPU is one command", || history(&lab));
    steps.step("a job waits for the limit of its project", || project_limit(&lab));
    steps.step("the removal of images is on record", || images(&lab));
    lab.conclude(steps)
}

/// Without a terminal each new line is printed once.
fn attached(lab: &Lab) -> Result<()> {
    let first = lab.submit(&["-G", "1", "-t", "1h"], FIRST)?;
    lab.job_in(&first, "running", SOON)?;
    let said = lab.path("attached.txt");
    let mut command = lab.command(&["run", "-G", "1", "--", "sleep", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
    let mut waiting = command.spawn()?;
    // Nobody else asks meanwhile: the controller makes the plan for this job alone.
    wait::eventually("it says when it can start", SOON, || {
        Ok(fs::read_to_string(&said)?.contains(", expected to start "))
    })?;
    lab.run(&["cancel", &first])?.ok()?;
    ensure!(waiting.wait()?.success(), "it ran to its end");
    let stderr = fs::read_to_string(&said)?;
    let lines: Vec<&str> = stderr.lines().collect();
    let second = lines.first().and_then(|line| line.split(' ').next()).context("a line")?;
    let stands = format!("{second} queued, place 1, expected to start ");
    let reason = format!(": waits for 1 GPU: titan01:0 is held by {first}");
    let waits = |line: &&str| line.starts_with(&stands) && line.contains(&reason);
    ensure!(lines.iter().any(waits), "{}", stderr);
    let runs = format!("fleet: {second} runs on titan01:0; it ends by ");
    ensure!(lines.iter().any(|line| line.starts_with(&runs)), "{}", stderr);
    ensure!(lines.len() < 12, "a log is filled: {}", stderr);
    Ok(())
}

/// Also those behind the first: one after another, as each leaves its GPU to the next.
fn places(lab: &Lab) -> Result<()> {
    let first = lab.submit(&["-G", "1", "-t", "1h"], FIRST)?;
    lab.job_in(&first, "running", SOON)?;
    let mut queue = Vec::new();
    for _ in 0..3 {
        queue.push(lab.submit(&["-G", "1", "-t", "1h"], FIRST)?);
    }
    let mut before = String::new();
    for job in &queue {
        let shown = lab.json(&["job", "show", job])?;
        let start = shown["earliest_start"].as_str().context("an expected start")?.to_owned();
        ensure!(before < start, "{before} then {start}");
        ensure!(lab.output(&["job", "show", job])?.contains("\nExpected start:"), "{shown}");
        ensure!(lab.output(&["why", job])?.contains("\n  expected start: "), "{shown}");
        before = start;
    }
    for job in queue.iter().chain([&first]) {
        lab.run(&["cancel", job])?.ok()?;
    }
    lab.gpus_free(1, SOON)
}

/// What the first job does not use of its time is free for the second.
fn project_limit(lab: &Lab) -> Result<()> {
    lab.run(&["project", "set", "default", "--gpu-hours", "3"])?.ok()?;
    let too_long = lab.run(&["run", "-d", "-G", "1", "-t", "4h", "--", "true"])?;
    ensure!(too_long.code() != 0 && too_long.stderr.contains("at most 3h (-t)"), "{too_long:?}");
    let first = lab.submit(&["-G", "1", "-t", "2h"], FIRST)?;
    lab.job_in(&first, "running", SOON)?;
    let second = lab.submit(&["-G", "1", "-t", "90m"], FIRST)?;
    let reason = "project default allows 3 GPU-hours; the project has used or booked 2.";
    wait::eventually("it says which limit it waits for", SOON, || {
        Ok(lab.output(&["why", &second])?.contains(reason))
    })?;
    lab.run(&["cancel", &first])?.ok()?;
    lab.job_in(&second, "running", SOON)?;
    let shown = lab.json(&["project", "show", "default"])?;
    ensure!(shown["limits"]["gpu_hours"] == 3, "{shown}");
    let committed = shown["committed_gpu_ms"].as_u64().context("what counts")?;
    ensure!((5_400_000..5_500_000).contains(&committed), "{shown}");
    lab.run(&["cancel", &second])?.ok()?;
    lab.run(&["project", "set", "default", "--gpu-hours", "0"])?.ok()?;
    lab.gpus_free(1, SOON)
}

fn limit(lab: &Lab) -> Result<()> {
    let job = lab.submit(&["-G", "1", "-t", "1h"], FIRST)?;
    lab.job_in(&job, "running", SOON)?;
    let before = lab.json(&["job", "show", &job])?["time_limit_at"].clone();
    lab.run(&["job", "set", &job, "-t", "9m"])?.ok()?;
    let after = lab.json(&["job", "show", &job])?;
    ensure!(after["time_limit_at"].as_str() < before.as_str(), "{before} {after}");
    ensure!(lab.why(&job)?.contains("time limit set to 9m by root: it ends in "));
    lab.run_as_nobody(&["job", "set", &job, "-t", "2h"])?.fails(4, &[])?;
    lab.run(&["job", "set", &job, "-t", "1ms"])?
        .fails(2, &["--time", "already", "fleet cancel"])?;
    lab.run(&["job", "set", &job, "-t", "61d"])?.fails(2, &["--time", "at most 60d"])?;
    // It is stopped by the new limit; a busy machine may need longer than that to set it.
    let mut seconds = 2;
    wait::eventually("a short limit is set", SOON, || {
        seconds += 2;
        Ok(lab.run(&["job", "set", &job, "-t", &format!("{seconds}s")])?.code() == 0)
    })?;
    let ended = lab.job_ended(&job, SOON)?;
    ensure!(ended["state"] == "timed_out", "{ended}");
    lab.run(&["job", "set", &job, "-t", "1h"])?.fails(5, &["timed_out"])?;
    Ok(())
}

fn defaults(lab: &Lab) -> Result<()> {
    let default = |words: &[&str]| {
        let words: Vec<&str> = ["job", "defaults"].iter().chain(words).copied().collect();
        lab.run(&words)
    };
    ensure!(default(&[])?.ok()?.contains("never"), "it is off at first");
    let bounds = ["--stop-after", "59s is not between 1m and 60d", "never"];
    default(&["--stop-after", "59s"])?.fails(2, &bounds)?;
    lab.run_as_nobody(&["job", "defaults", "--stop-after", "10m"])?.fails(4, &[])?;
    default(&["--stop-after", "10m"])?.ok()?;
    let seen = lab.json(&["job", "defaults"])?;
    ensure!(seen["stop_after_seconds"] == 600, "{seen}");
    let spec = |flags: &[&str]| -> Result<(String, Value)> {
        let job = lab.submit(flags, &["true"])?;
        let spec = lab.json(&["job", "show", &job])?["spec"].clone();
        lab.job_ended(&job, SOON)?;
        Ok((job, spec))
    };
    let (job, has) = spec(&[])?;
    ensure!(has["stop_after_seconds"] == 600 && has["stop_after_default"] == true, "{has}");
    let shown = lab.output(&["job", "show", &job])?;
    ensure!(shown.contains("unreachable for 10m (the fleet's default)"), "{shown}");
    let told = lab.why(&job)?;
    ensure!(told.contains("queued by root, --stop-after 10m (the fleet's default)"), "{told}");
    for (own, seconds) in [("1h", Value::from(3_600)), ("never", Value::Null)] {
        let (_, has) = spec(&["--stop-after", own])?;
        ensure!(has["stop_after_seconds"] == seconds, "{has}");
        ensure!(has["stop_after_default"] == false, "{has}");
    }
    default(&["--stop-after", "never"])?.ok()?;
    let (_, has) = spec(&[])?;
    ensure!(has["stop_after_seconds"].is_null(), "{has}");
    Ok(())
}

fn reservation(lab: &Lab) -> Result<()> {
    let ran = lab.run(&["reserve", "-G", "1", "-t", "1h"])?;
    let id = ran.ok()?.trim().to_owned();
    let within = ["-G", "1", "--reservation", &id];
    let runs = lab.submit(&within, FIRST)?;
    lab.job_in(&runs, "running", SOON)?;
    let waits = lab.submit(&within, FIRST)?;
    lab.run(&["release", &id, "--yes"])?.ok()?;
    wait::eventually("the log says which and when", SOON, || {
        let log = lab.run(&["logs", &runs])?.stderr;
        let said = format!(": its reservation {id} ended]\n");
        Ok(log.contains("[fleet: stopping the job at ") && log.ends_with(&said))
    })?;
    for job in [&runs, &waits] {
        let ended = lab.job_ended(job, SOON)?;
        ensure!(ended["state"] == "timed_out", "{ended}");
        let told = lab.why(job)?;
        ensure!(told.contains("timed out: its reservation"), "{told}");
    }
    lab.gpus_free(1, SOON)
}

fn history(lab: &Lab) -> Result<()> {
    let stays = lab.json(&["gpu", "history", "titan01:0", "--from", "1h"])?;
    let items = stays["items"].as_array().context("items")?;
    let with = |kind: &str| {
        let is = |holder: &str| holder.starts_with(kind);
        items.iter().filter(|stay| stay["holder"].as_str().is_some_and(is)).count()
    };
    ensure!((with("job-"), with("res-")) == (5, 1), "{stays}");
    for stay in items {
        ensure!(stay["owner"] == "root" && stay["gpu"] == "titan01:0", "{stay}");
        ensure!(stay["from"].as_str() < stay["until"].as_str(), "{stay}");
    }
    let ends: Vec<&str> = items.iter().filter_map(|stay| stay["end"].as_str()).collect();
    for end in ["cancelled by root", "exit code 0", "its time limit", "its reservation ended"] {
        ensure!(ends.contains(&end), "no {end:?} in {ends:?}");
    }
    let table = lab.output(&["gpu", "history", "titan01:0", "--from", "1h"])?;
    ensure!(table.starts_with("FROM") && table.lines().count() == 7, "{table}");
    let nobody = lab.run(&["gpu", "history", "titan01:0", "--on", "2020-01-01"])?;
    nobody.ok()?;
    ensure!(nobody.stderr.contains("nobody had titan01:0 from Wed 2020-01-01 00:00"), "{nobody:?}");
    lab.run(&["gpu", "history", "titan01:0", "--on", "someday"])?.fails(2, &["--on", "someday"])?;
    lab.run(&["gpu", "history", "titan01:9"])?.fails(3, &["titan01:9"])?;
    let story = |words: &[&str]| -> Result<Vec<Value>> {
        let told = lab.json(&[&["why", "titan01:0"], words].concat())?;
        told["story"].as_array().cloned().context("story")
    };
    let (all, newest) = (story(&[])?, story(&["--from", "1h", "-n", "2"])?);
    ensure!(all.len() > 10 && all.ends_with(&newest) && newest.len() == 2, "{all:?} {newest:?}");
    ensure!(story(&["--until", "2020-01-01"])?.is_empty());
    lab.run(&["why", "titan01:0", "--from", "1h", "--until", "2h"])?.fails(2, &["--until"])?;
    Ok(())
}

fn images(lab: &Lab) -> Result<()> {
    // It has none: the word is on record all the same.
    lab.run(&["image", "rm", "busybox:1", "--node", "titan01", "--yes"])?.ends(3)?;
    let story = lab.why("titan01")?;
    ensure!(story.contains("root removes image busybox:1 from titan01"), "{story}");
    Ok(())
}
