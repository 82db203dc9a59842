//! `fleet usage`: who held how many GPUs for how long, the same at every controller and by a count of the audit log.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, POLL_COMMAND, SOON};
use serde_json::Value;

#[test]
fn what_was_held_is_what_the_audit_log_says() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 2, "v100-pcie:2")? else { return Ok(()) };
    lab.gpus_break();
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps.step("jobs in and outside of a reservation, some of which fail", || hold(&lab));
    steps.step("a count of the audit log gives the same", || counted(&lab).map(drop));
    steps.step("rows, owners and bad requests", || rows(&lab));
    steps.step("the next leader says the same", || {
        let month = month_until_now(&lab)?;
        let words = ["usage", "--from", &month.0, "--until", &month.1];
        let before = lab.json(&words)?;
        let leader = lab.leader()?;
        let mut others = lab.controllers()?.into_iter().map(|controller| controller.id);
        let to = others.find(|id| *id != leader).context("another controller")?;
        lab.output(&["controller", "transfer-leadership", &to])?;
        ensure!(lab.leader_other_than(&leader, SOON)? == to);
        let after = lab.json(&words)?;
        ensure!(before == after, "{before}\n{after}");
        counted(&lab).map(drop)
    });
    lab.conclude(steps)
}

#[test]
fn everybody_may_ask_for_all_users() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("another user sees who held what, and their own", || {
        lab.output(&["reserve", "-G", "1", "-t", "1h"])?;
        let all = lab.run_as_nobody(&["usage", "-o", "csv"])?;
        ensure!(all.ok()?.contains("user,root,false"), "{all:?}");
        let mine = lab.run_as_nobody(&["usage", "--mine", "-o", "json"])?.json()?;
        ensure!(items(&mine)?.len() == 1, "nobody held nothing: {mine}");
        let own = lab.json(&["usage", "--mine"])?;
        ensure!(items(&own)?.len() == 2 && items(&own)?[0]["name"] == "root", "{own}");
        Ok(())
    });
    lab.conclude(steps)
}

fn hold(lab: &Lab) -> Result<()> {
    let reservation = lab.output(&["reserve", "-G", "2", "-t", "1h", "--node", "titan01"])?;
    let reservation = reservation.trim();
    let inside = lab.submit(&["-G", "1", "--reservation", reservation], &["sleep", "3"])?;
    let outside = lab.submit(&["-G", "1", "-t", "5m", "--node", "titan02"], &["sleep", "4"])?;
    let failed = lab.submit(&["-G", "1", "-t", "5m", "--node", "titan02"], &["false"])?;
    for (job, state) in [(&inside, "completed"), (&outside, "completed"), (&failed, "failed")] {
        lab.job_in(job, state, SOON)?;
    }
    // A fault destroys what this one did.
    let hit = lab.submit(
        &["-G", "1", "-t", "5m", "--node", "titan02", "--restarts", "0"],
        &["sleep", "300"],
    )?;
    let running = lab.job_in(&hit, "running", SOON)?;
    let gpu = running["gpus"][0]["index"].as_u64().context("index")?.to_string();
    lab.output(&["dev", "fault", "--node", "titan02", "--gpu", &gpu, "--lost"])?;
    lab.job_ended(&hit, SOON)?;
    lab.output(&["release", reservation, "--yes"])?;
    // Another one lasts.
    lab.output(&["reserve", "-G", "1", "-t", "1h", "--node", "titan01"])?;
    Ok(())
}

fn items(usage: &Value) -> Result<&Vec<Value>> {
    usage["items"].as_array().context("items")
}

/// What `fleet usage` says. The script compares it with a count of the audit log, to the millisecond.
fn counted(lab: &Lab) -> Result<Value> {
    // The export may lack what happens between the two: then both are taken again.
    let counted = wait::until("the audit log stands still", SOON, POLL_COMMAND, || {
        let before = lab.output(&["audit", "export", "--format", "jsonl"])?;
        let usage = lab.json(&["usage"])?;
        let after = lab.output(&["audit", "export", "--format", "jsonl"])?;
        let moves = ["job_placed", "reservation_started", "gpus_released", "window_opened_by_node"];
        let is_move = |line: &&str| moves.iter().any(|name| line.contains(name));
        let events = |text: &str| text.lines().filter(is_move).count();
        Ok((events(&before) == events(&after)).then_some((after, usage)))
    })?;
    let (export, usage) = counted;
    let files = [lab.path("audit.jsonl"), lab.path("usage.json")];
    fs::write(&files[0], export)?;
    fs::write(&files[1], usage.to_string())?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/programs/count_usage.py");
    let mut count = Command::new("python3");
    count.arg(script).args(&files);
    let count = command::run(count, SOON)?.json()?;
    let total = items(&usage)?.last().context("no total")?.clone();
    ensure!(total["total"] == true && total["held_gpu_ms"] == count["held_gpu_ms"], "{usage}");
    let some = |key: &str| total[key].as_u64().is_some_and(|sum| sum > 0);
    let all = ["reserved_gpu_ms", "in_jobs_gpu_ms", "jobs_gpu_ms", "lost_gpu_ms"];
    ensure!(all.into_iter().all(some), "{usage}");
    ensure!(total["jobs"] == 4 && total["reservations"] == 2, "{usage}");
    Ok(usage)
}

/// As they are typed. Until a time that has passed: what was held by then stays.
fn month_until_now(lab: &Lab) -> Result<(String, String)> {
    let usage = lab.json(&["usage"])?;
    let row = items(&usage)?.first().context("no row")?.clone();
    let at = |key: &str| row[key].as_str().map(str::to_owned).context("time");
    Ok((at("from")?, at("until")?))
}

fn rows(lab: &Lab) -> Result<()> {
    for (by, names) in [
        ("user", ["root"].as_slice()),
        ("project", &["default"]),
        ("node", &["titan01", "titan02"]),
        ("model", &["v100"]),
    ] {
        let usage = lab.json(&["usage", "--by", by])?;
        let mut shown: Vec<&str> =
            items(&usage)?.iter().filter_map(|row| row["name"].as_str()).collect();
        shown.sort_unstable();
        ensure!(shown == names, "{usage}");
    }
    let classes = lab.json(&["usage", "--by", "class"])?;
    ensure!(items(&classes)?.len() == 3, "{classes}");
    let table = lab.output(&["usage"])?;
    ensure!(table.lines().last().is_some_and(|line| line.starts_with("total")), "{table}");
    let theirs = lab.json(&["usage", "--user", "nobody"])?;
    ensure!(items(&theirs)?.len() == 1, "nobody held nothing: {theirs}");
    for (words, code, problem) in [
        (["--month", "2026-13"].as_slice(), 2, "is not a month"),
        (&["--month", "2999-01"], 2, "has not begun"),
        (&["--month", "2026-11", "--from", "7d"], 2, "cannot be used with"),
        (&["--by", "week"], 2, "user, project, node, model, class"),
        (&["--from", "1h", "--until", "2h"], 2, "later than --from"),
        (&["--from", "2020-01-01"], 2, "400d"),
    ] {
        lab.run(&[&["usage"], words].concat())?.fails(code, &[problem])?;
    }
    Ok(())
}
