//! Backups: taken while everything keeps running, checked, and an old one restored while jobs run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command::{self, COMMAND_MAX, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use serde_json::Value;

/// Exit code of `fleet` for what is in the way.
const CONFLICT: i32 = 5;

/// Runs until a file of its own name is there, and counts into another meanwhile.
fn counting(name: &str) -> String {
    format!(
        "i=0; while [ ! -e stop-{name} ]; do i=$((i+1)); echo $i >> count-{name}; sleep 0.1; done"
    )
}

#[test]
fn an_old_backup_is_restored_while_jobs_run() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:3")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps.step("a backup is taken live, closed to others, and is whole", || taken(&lab));
    steps
        .step("a backup is not written over, and one that is damaged is refused", || refused(&lab));
    steps.step("restored, it adopts what began after it and tells what it lost", || restored(&lab));
    steps.step("what was adopted ends in order, and its GPUs are free again", || ends(&lab));
    steps.step("the audit log is whole across the restore", || {
        let export = lab.path("audit.jsonl").to_string_lossy().into_owned();
        lab.output(&["audit", "export", "--file", &export])?;
        lab.run(&["audit", "verify", &export])?.ok().map(drop)
    });
    steps.step("a stopped controller is read out, and starts again from that", || read_out(&lab));
    lab.conclude(steps)
}

fn controller(lab: &Lab, words: &[&str]) -> Result<Ran> {
    let config = lab.dev_file()?.process("controller", "1")?.config.clone();
    let mut command = Command::new(programs::built("fleet-controller")?);
    command.args(words);
    if words[0] != "verify" {
        command.arg("--config").arg(config);
    }
    command::run(command, COMMAND_MAX)
}

/// The first controller's data folder.
fn data_dir(lab: &Lab) -> Result<PathBuf> {
    data_dir_of(lab, "1")
}

/// A controller's data folder, as its configuration names it.
pub(crate) fn data_dir_of(lab: &Lab, id: &str) -> Result<PathBuf> {
    let config = lab.dev_file()?.process("controller", id)?.config.clone();
    let text = fs::read_to_string(&config)?;
    let line = text.lines().find_map(|line| line.strip_prefix("data_dir = "));
    Ok(PathBuf::from(line.context("no data_dir")?.trim_matches('"')))
}

pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}

fn running(lab: &Lab, name: &str) -> Result<String> {
    let id = lab.submit(&["-G", "1", "-J", name], &["sh", "-c", &counting(name)])?;
    lab.job_in(&id, "running", SOON)?;
    Ok(id)
}

fn remember(lab: &Lab, name: &str, id: &str) -> Result<()> {
    Ok(fs::write(lab.path(&format!("id-{name}")), id)?)
}

fn recall(lab: &Lab, name: &str) -> Result<String> {
    Ok(fs::read_to_string(lab.path(&format!("id-{name}")))?)
}

fn reserve(lab: &Lab, owner: &str, from: &str) -> Result<String> {
    let words = ["reserve", "-G", "1", "--from", from, "-t", "1h", "--for", owner, "--yes"];
    let printed = lab.output(&words)?;
    let id = printed.split_whitespace().find(|word| word.starts_with("res-"));
    Ok(id.context("no id of a reservation")?.trim_end_matches([',', ':', '.']).to_owned())
}

fn taken(lab: &Lab) -> Result<()> {
    remember(lab, "before", &running(lab, "before")?)?;
    remember(lab, "kept", &reserve(lab, "alice", "now")?)?;
    let file = lab.path("old.backup");
    let saved = lab.run(&["--json", "controller", "snapshot", "save", text(&file)?])?.json()?;
    ensure!(saved["schema"] == "fleet.backup_saved/v1" && saved["incarnation"] == 1, "{saved}");
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "others may read it");
    let left = fs::read_dir(lab.path("."))?.filter_map(|e| e.ok()?.file_name().into_string().ok());
    ensure!(!left.into_iter().any(|name| name.ends_with(".partial")), "a half file is left");
    let verified = controller(lab, &["verify", "--json", text(&file)?])?.json()?;
    ensure!(verified["whole"] == true && verified["nodes"] == 2, "{verified}");
    ensure!(verified["audit_records"] == saved["audit_records"], "{verified}, {saved}");
    Ok(())
}

fn refused(lab: &Lab) -> Result<()> {
    let file = lab.path("old.backup");
    let before = fs::read(&file)?;
    lab.run(&["controller", "snapshot", "save", text(&file)?])?
        .fails(CONFLICT, &["is there already"])?;
    ensure!(fs::read(&file)? == before, "it was changed");
    let nowhere = lab.path("no/such/folder/x.backup");
    lab.run(&["controller", "snapshot", "save", text(&nowhere)?])?.fails(3, &["no/such/folder"])?;
    // A controller is there: it is not restored over.
    let over = controller(lab, &["restore", text(&file)?])?;
    ensure!(over.code() != 0 && over.stderr.contains("holds a controller"), "{}", over.stderr);
    let damaged = lab.path("damaged.backup");
    for (at, what) in [(before.len() / 3, "changed"), (before.len() - 30, "changed near its end")] {
        let mut bytes = before.clone();
        bytes[at] ^= 0x20;
        fs::write(&damaged, bytes)?;
        let ran = controller(lab, &["restore", "--check", text(&damaged)?])?;
        ensure!(ran.code() != 0, "{what}: {}", ran.stdout);
    }
    fs::write(&damaged, &before[..before.len() - 1])?;
    let cut = controller(lab, &["verify", text(&damaged)?])?;
    ensure!(cut.code() != 0 && cut.stderr.contains("cut off"), "{}", cut.stderr);
    Ok(())
}

fn gpus_of(job: &Value) -> Vec<(Value, Value)> {
    let gpus = job["gpus"].as_array().cloned().unwrap_or_default();
    gpus.into_iter().map(|gpu| (job["node"].clone(), gpu)).collect()
}

fn count(lab: &Lab, name: &str) -> usize {
    fs::read_to_string(lab.path(&format!("count-{name}"))).unwrap_or_default().lines().count()
}

/// Kills the controller, puts its folder away, restores and starts it.
pub(crate) fn begin_anew(lab: &Lab, backup: &Path, away: &str, killed: bool) -> Result<()> {
    if killed {
        lab.kill("controller", "1")?;
        fs::rename(data_dir(lab)?, lab.folder().join(away))?;
    }
    controller(lab, &["restore", text(backup)?])?.ok()?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    for node in lab.nodes()? {
        lab.node_in(&node, "ready", SOON)?;
    }
    Ok(())
}

fn restored(lab: &Lab) -> Result<()> {
    let before = recall(lab, "before")?;
    let after = running(lab, "after")?;
    remember(lab, "after", &after)?;
    let short = lab.submit(&["-G", "1"], &["sh", "-c", "exit 7"])?;
    ensure!(lab.job_ended(&short, SOON)?["exit_code"] == 7);
    let (held, lost) = (reserve(lab, "bob", "now")?, reserve(lab, "carol", "+8d")?);
    remember(lab, "held", &held)?;
    wait::until("the node has it on its disk", SOON, POLL_COMMAND, || {
        let shown = lab.json(&["reservation", "show", &held])?;
        Ok((shown["unconfirmed"].is_null() && shown["state"] == "active").then_some(()))
    })?;
    let jobs = [lab.job(&before)?, lab.job(&after)?];
    let kept = recall(lab, "kept")?;

    begin_anew(lab, &lab.path("old.backup"), "first-data", true)?;
    let status = lab.json(&["controller", "status"])?;
    ensure!(status["incarnation"].as_u64() > Some(1), "{status}");

    // The same attempts, on the same GPUs, and they ran all the time.
    for (job, name) in jobs.iter().zip(["before", "after"]) {
        let id = job["id"].as_str().context("id")?;
        let now = lab.job_in(id, "running", SOON)?;
        ensure!(now["attempt"] == 1 && gpus_of(&now) == gpus_of(job), "{now} was {job}");
        let counted = count(lab, name);
        wait::eventually("it still counts", SOON, || Ok(count(lab, name) > counted))?;
        let whole = fs::read_to_string(lab.path(&format!("count-{name}")))?;
        let in_order = whole.lines().zip(1..).all(|(line, n)| line == n.to_string());
        ensure!(in_order, "it started again: {whole}");
    }
    ensure!(lab.why(&after)?.contains("found on"), "{}", lab.why(&after)?);
    // One that had ended has ended as it did.
    let ended = lab.job_ended(&short, SOON)?;
    ensure!(ended["state"] == "failed" && ended["exit_code"] == 7, "{ended}");
    // The reservation from before is there, and the one from after that its node had on its disk. One that no
    // node had been told of is gone.
    for (id, owner) in [(&kept, "alice"), (&held, "bob")] {
        wait::until(&format!("{owner} has it"), SOON, POLL_COMMAND, || {
            let ran = lab.run(&["reservation", "show", id, "-o", "json"])?;
            let shown = if ran.code() == 0 { ran.json()? } else { Value::Null };
            Ok((shown["state"] == "active" && shown["owner"] == owner).then_some(()))
        })?;
    }
    ensure!(lab.why(&held)?.contains("taken over from there"), "{}", lab.why(&held)?);
    lab.run(&["reservation", "show", &lost])?.fails(3, &[&lost])?;
    ensure!(lab.output(&["status"])?.contains("restored from a backup"));

    // New work gets what is left, and nothing else.
    let third = running(lab, "third")?;
    remember(lab, "third", &third)?;
    let mut taken: Vec<_> = jobs.iter().flat_map(gpus_of).collect();
    for id in [&kept, &held] {
        taken.extend(gpus_of(&lab.json(&["reservation", "show", id])?));
    }
    let given = gpus_of(&lab.job(&third)?);
    ensure!(given.len() == 1 && !taken.contains(&given[0]), "{given:?} of {taken:?}");
    Ok(())
}

fn ends(lab: &Lab) -> Result<()> {
    for name in ["before", "after", "third"] {
        fs::write(lab.path(&format!("stop-{name}")), "")?;
    }
    for name in ["before", "after", "third"] {
        let ended = lab.job_ended(&recall(lab, name)?, LATER)?;
        ensure!(ended["state"] == "completed" && ended["attempt"] == 1, "{ended}");
    }
    for name in ["kept", "held"] {
        lab.output(&["release", "--yes", &recall(lab, name)?])?;
    }
    lab.gpus_free(6, SOON)
}

fn read_out(lab: &Lab) -> Result<()> {
    let job = running(lab, "last")?;
    let before = lab.json(&["controller", "status"])?;
    let file = lab.path("stopped.backup");
    // While it runs its store is its own.
    let busy = controller(lab, &["backup", text(&file)?])?;
    ensure!(busy.code() != 0 && busy.stderr.contains("used by another process"), "{}", busy.stderr);
    ensure!(!file.exists());
    lab.kill("controller", "1")?;
    controller(lab, &["backup", text(&file)?])?.ok()?;
    fs::rename(data_dir(lab)?, lab.folder().join("second-data"))?;
    begin_anew(lab, &file, "", false)?;
    let after = lab.json(&["controller", "status"])?;
    ensure!(after["incarnation"].as_u64() > before["incarnation"].as_u64(), "{after}, {before}");
    let now = lab.job_in(&job, "running", SOON)?;
    ensure!(now["attempt"] == 1, "{now}");
    fs::write(lab.path("stop-last"), "")?;
    ensure!(lab.job_ended(&job, LATER)?["state"] == "completed");
    lab.gpus_free(6, SOON)
}
