//! Deferred eviction: degraded hardware waits for the job's next checkpoint, fatal faults do not, and a job that
//! saves nothing may finish.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::ControlFile;
use fleet_tests::cluster::is_final;
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};
use serde_json::Value;

/// The training program of the demo.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/train.py")
}

/// One training: where it saves, and how to submit it.
struct Training {
    folder: PathBuf,
    steps: u64,
    every: u64,
}

impl Training {
    fn new(lab: &Lab, name: &str, steps: u64, every: u64) -> Result<Self> {
        let folder = lab.path(name);
        fs::create_dir_all(folder.join("checkpoints"))?;
        Ok(Self { folder, steps, every })
    }

    fn submit(&self, lab: &Lab, flags: &[&str], program_flags: &[&str]) -> Result<String> {
        let folder = self.folder.to_string_lossy().into_owned();
        let program = program().to_string_lossy().into_owned();
        let (steps, every) = (self.steps.to_string(), self.every.to_string());
        let own = [
            "-G",
            "1",
            "-w",
            &folder,
            "--checkpoint-dir",
            "checkpoints",
            "--checkpoint-pattern",
            "step-*.ckpt",
        ];
        let flags: Vec<&str> = own.iter().chain(flags).copied().collect();
        let argv = [
            "python3",
            "-B",
            &program,
            "--steps",
            &steps,
            "--checkpoint-every",
            &every,
            "--step-seconds",
            "0.05",
            "--results",
            ".",
        ];
        let argv: Vec<&str> = argv.iter().chain(program_flags).copied().collect();
        lab.submit(&flags, &argv)
    }

    /// (attempt, step) of each step that was computed.
    fn steps_done(&self) -> Result<Vec<(u64, u64)>> {
        let text = fs::read_to_string(self.folder.join("steps.log")).unwrap_or_default();
        text.lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
                Ok((number(1).context("attempt")?, number(3).context("step")?))
            })
            .collect()
    }

    /// Where the attempt began to compute.
    fn began_at(&self, attempt: u64) -> Result<u64> {
        let done = self.steps_done()?;
        let first = done.iter().find(|(of, _)| *of == attempt);
        Ok(first.with_context(|| format!("attempt {attempt} did nothing: {done:?}"))?.1)
    }

    /// The weights must be those of a training that was never interrupted.
    fn equals_uninterrupted(&self, lab: &Lab) -> Result<()> {
        let folder = lab.path(&format!("reference-{}-{}", self.steps, self.every));
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("python3");
        command.arg("-B").arg(program()).current_dir(&folder);
        command.args([
            "--steps",
            &self.steps.to_string(),
            "--checkpoint-every",
            &self.every.to_string(),
        ]);
        command::run(command, LATER)?.ok()?;
        let (own, reference) =
            (fs::read(self.folder.join("weights.bin"))?, fs::read(folder.join("weights.bin"))?);
        ensure!(own == reference, "the weights differ");
        Ok(())
    }
}

fn checkpoint_seq(job: &Value) -> u64 {
    job["last_checkpoint"]["seq"].as_u64().unwrap_or(0)
}

/// The place of the job's GPU, as `fleet dev fault` wants it.
fn place(job: &Value) -> Result<[String; 2]> {
    let gpu = &job["gpus"][0];
    Ok([gpu["node"].as_str().context("the job has no GPU")?.to_owned(), gpu["index"].to_string()])
}

fn fault(lab: &Lab, place: &[String; 2], words: &[&str]) -> Result<()> {
    let own = ["dev", "fault", "--node", &place[0], "--gpu", &place[1]];
    let words: Vec<&str> = own.iter().chain(words).copied().collect();
    lab.output(&words).map(drop)
}

fn deferred(lab: &Lab, id: &str) -> Result<Value> {
    lab.job_until(id, "is to leave", SOON, |job| !job["deferral"].is_null() || is_final(job))
}

#[test]
fn degraded_work_moves_at_its_next_checkpoint() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:8")? else { return Ok(()) };
    lab.gpus_break();
    let mut steps = Steps::default();
    steps.together(vec![
        ("an XID: deferred, saved, moved, resumed, the same result", Box::new(|| moved(&lab))),
        ("a program that declares no checkpoint may finish", Box::new(|| may_finish(&lab))),
        (
            "a GPU that falls off the bus: from the last checkpoint at once",
            Box::new(|| fatal(&lab)),
        ),
        (
            "a program that saves on SIGTERM and exits with 0 was evicted",
            Box::new(|| saves_on_term(&lab)),
        ),
        ("a checkpoint half written does not count", Box::new(|| half_written(&lab))),
        ("the wait has a limit", Box::new(|| limit(&lab))),
    ]);
    steps.step("nothing new is placed on what is broken", || {
        let list = lab.json(&["gpu", "list"])?;
        let items = list["items"].as_array().context("items")?;
        let bad: Vec<&Value> = items.iter().filter(|gpu| gpu["state"] != "free").collect();
        ensure!(bad.len() >= 3, "expected broken GPUs: {list}");
        ensure!(bad.iter().all(|gpu| gpu["health"] != "ok"), "{bad:?}");
        Ok(())
    });
    lab.conclude(steps)
}

/// One GPU, two jobs: the scavenger leaves it at its next checkpoint, and finishes afterwards with the same result.
#[test]
fn a_job_of_a_higher_class_takes_a_place_at_a_checkpoint() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("left, let the other one run, and finished", || preempted(&lab));
    steps.step("without a limit: left for somebody who had nothing, and finished", || {
        without_a_limit(&lab)
    });
    steps.step("a class that nobody may use, and one that is not there", || {
        let shown = lab.run_as_nobody(&["run", "-d", "--class", "urgent", "--", "true"])?;
        shown.fails(4, &["somebody who may use class urgent", "fleet class show urgent"])?;
        let shown = lab.run(&["run", "-d", "--class", "golden", "--", "true"])?;
        shown.fails(3, &["there is no class", "fleet class list"]).map(drop)
    });
    lab.conclude(steps)
}

fn preempted(lab: &Lab) -> Result<()> {
    let classes = lab.json(&["class", "list"])?;
    let names: Vec<&str> = classes["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter_map(|class| class["name"].as_str())
        .collect();
    ensure!(names == ["urgent", "normal", "scavenger"], "{names:?}");
    lab.output(&["class", "set", "scavenger", "--min-run", "0"])?;
    let training = Training::new(lab, "preempted", 200, 40)?;
    let id = training.submit(lab, &["-J", "low", "--class", "scavenger"], &[])?;
    lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) == 1)?;
    let other = lab.submit(&["-G", "1", "-J", "high"], &["sh", "-c", "echo here"])?;
    let leaves = deferred(lab, &id)?;
    let reason = leaves["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("preempted by") && reason.contains(&other), "{leaves}");
    let waits = lab.job(&other)?;
    let reason = waits["reason"].as_str().unwrap_or_default();
    ensure!(waits["state"] != "queued" || reason.contains(&format!("{id} leaves")), "{waits}");
    let ended = lab.job_ended(&other, LATER)?;
    ensure!(ended["state"] == "completed", "{ended}");
    let left = lab.job(&id)?;
    ensure!(!is_final(&left), "the scavenger had ended by itself: {left}");
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(ended["restarts_used"] == 0 && ended["class"] == "scavenger", "{ended}");
    let again = training.began_at(2)?;
    ensure!(again % 40 == 1 && again > 40, "it continued at step {again}");
    let done = training.steps_done()?;
    let last = done.iter().filter(|(attempt, _)| *attempt == 1).map(|(_, step)| *step).max();
    ensure!(last < Some(again + 30), "{last:?} steps, then again from {again}");
    training.equals_uninterrupted(lab)?;
    let told = lab.why(&id)?;
    for text in ["leaves", &format!("preempted by {other}"), "evicted after checkpoint"] {
        ensure!(told.contains(text), "why does not say {text:?}: {told}");
    }
    let told = lab.why(&other)?;
    ensure!(told.contains(&format!("{id} leaves")), "{told}");
    Ok(())
}

/// What a new fleet does after hours happens after a minute at most here. `fleet run` names no `-t`.
fn without_a_limit(lab: &Lab) -> Result<()> {
    lab.output(&["class", "set", "normal", "--min-run", "0", "--save-limit", "1m"])?;
    let training = Training::new(lab, "unlimited", 200, 40)?;
    let id = training.submit(lab, &["-J", "unlimited"], &[])?;
    lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) == 1)?;
    let words = ["run", "-d", "-G", "1", "-w", "/tmp", "-t", "5m", "--", "true"];
    let other = lab.run_as_nobody(&words)?.ok()?.trim().to_owned();
    let leaves = deferred(lab, &id)?;
    let reason = leaves["reason"].as_str().unwrap_or_default();
    let waits = format!("it named no time limit, and {other} of nobody waits");
    ensure!(reason.contains(&waits), "{leaves}");
    ensure!(reason.contains(&format!("fleet job set {id} -t TIME")), "{leaves}");
    let ended = lab.job_ended(&other, LATER)?;
    ensure!(ended["state"] == "completed", "{ended}");
    ensure!(!is_final(&lab.job(&id)?), "it had ended by itself");
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let again = training.began_at(2)?;
    ensure!(again % 40 == 1 && again > 40, "it continued at step {again}");
    training.equals_uninterrupted(lab)
}

fn moved(lab: &Lab) -> Result<()> {
    let training = Training::new(lab, "moved", 160, 40)?;
    let id = training.submit(lab, &["-J", "moved"], &[])?;
    let before = lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) == 1)?;
    fault(lab, &place(&before)?, &["--xid", "62"])?;
    let waiting = deferred(lab, &id)?;
    ensure!(waiting["attempt"] == 1 && waiting["state"] == "running", "{waiting}");
    ensure!(waiting["reason"].as_str().unwrap_or_default().contains("checkpoint"), "{waiting}");
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(ended["gpus"] != before["gpus"], "it stayed where it was");
    ensure!(ended["restarts_used"] == 0, "an eviction is no restart of the user's: {ended}");
    let again = training.began_at(2)?;
    ensure!(again % 40 == 1 && again > 40, "it continued at step {again}");
    let done = training
        .steps_done()?
        .into_iter()
        .filter(|(attempt, _)| *attempt == 1)
        .map(|(_, step)| step)
        .max();
    ensure!(
        done < Some(again + 30),
        "{done:?} steps, then again from {again}: more was lost than had to be"
    );
    training.equals_uninterrupted(lab)?;
    let told = lab.why(&id)?;
    for text in [
        "will move after its next checkpoint",
        "checkpoint 2 saved",
        "evicted after checkpoint",
        "queued again",
        "completed, exit code 0",
    ] {
        ensure!(told.contains(text), "why does not say {text:?}: {told}");
    }
    outputs_of_both(lab, &id)?;
    checkpoints_of_mine(lab, &id)
}

/// The newest attempt's output is shown, and where the earlier one's is, which another node has.
fn outputs_of_both(lab: &Lab, id: &str) -> Result<()> {
    let ran = lab.run(&["logs", id])?;
    let newest = ran.ok()?.to_owned();
    let hint = format!("hint: attempt 1 came before this one: fleet logs --attempt 1 {id}");
    ensure!(ran.stderr.contains(&hint), "{}", ran.stderr);
    let of = |attempt: &str| lab.output(&["logs", "--attempt", attempt, id]);
    let (first, second) = (of("1")?, of("2")?);
    ensure!(second == newest && !first.is_empty() && first != newest, "{first:?} {newest:?}");
    lab.run(&["logs", "--attempt", "3", id])?.fails(2, &["attempt", "has had 2 attempts"])?;
    Ok(())
}

fn checkpoints_of_mine(lab: &Lab, id: &str) -> Result<()> {
    let of_job = lab.json(&["checkpoint", "list", id])?;
    let of_job = of_job["items"].as_array().context("items")?;
    ensure!(of_job.len() >= 3, "{of_job:?}");
    let mine = lab.json(&["checkpoint", "list"])?;
    let mine = mine["items"].as_array().context("items")?;
    ensure!(of_job.iter().all(|one| mine.contains(one)), "{mine:?} lacks some of {of_job:?}");
    let times: Vec<&str> = mine.iter().filter_map(|one| one["completed_at"].as_str()).collect();
    ensure!(times.len() == mine.len() && times.is_sorted(), "{times:?}");
    let nobodys = lab.run_as_nobody(&["checkpoint", "list", "-o", "json"])?.json()?;
    ensure!(nobodys["items"] == serde_json::json!([]), "{nobodys}");
    let roots = lab.run_as_nobody(&["checkpoint", "list", "-u", "root", "-o", "json"])?.json()?;
    ensure!(roots["items"].as_array().is_some_and(|items| items.len() >= 3), "{roots}");
    Ok(())
}

fn may_finish(lab: &Lab) -> Result<()> {
    let id = lab.submit(&["-G", "1", "-J", "finisher"], &["sh", "-c", "sleep 6; echo done"])?;
    let job = lab.job_in(&id, "running", SOON)?;
    fault(lab, &place(&job)?, &["--retired-pages", "2"])?;
    let waiting = deferred(lab, &id)?;
    ensure!(waiting["reason"].as_str().unwrap_or_default().contains("may finish"), "{waiting}");
    let ended = lab.job_ended(&id, SOON)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 1, "{ended}");
    Ok(())
}

fn fatal(lab: &Lab) -> Result<()> {
    let training = Training::new(lab, "fatal", 120, 40)?;
    let id = training.submit(lab, &["-J", "fatal", "--stop-grace", "2s"], &[])?;
    let before = lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) == 1)?;
    fault(lab, &place(&before)?, &["--lost"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(ended["gpus"] != before["gpus"] && ended["restarts_used"] == 1, "{ended}");
    let again = training.began_at(2)?;
    ensure!(again == 41 || again == 81, "it continued at step {again}");
    training.equals_uninterrupted(lab)
}

fn saves_on_term(lab: &Lab) -> Result<()> {
    let training = Training::new(lab, "saver", 120, 50)?;
    let id = training.submit(lab, &["-J", "saver"], &["--save-on-term"])?;
    let before = lab.job_in(&id, "running", SOON)?;
    wait::eventually("it computes", SOON, || Ok(training.steps_done()?.len() > 5))?;
    fault(lab, &place(&before)?, &["--xid", "46"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(
        ended["state"] == "completed" && ended["attempt"] == 2,
        "exit 0 after SIGTERM counted as its end: {ended}"
    );
    // What it saved on SIGTERM is the newest checkpoint, so nothing is computed twice.
    let again = training.began_at(2)?;
    let last = training
        .steps_done()?
        .into_iter()
        .filter(|(attempt, _)| *attempt == 1)
        .map(|(_, step)| step)
        .max();
    ensure!(last == Some(again - 1), "attempt 1 ended after {last:?}, attempt 2 began at {again}");
    training.equals_uninterrupted(lab)
}

/// A file that matches the pattern from its first byte on, and takes seconds to be written.
const SLOW_WRITER: &str = "
exec 3> step-1.ckpt; i=0; while [ $i -lt 30 ]; do echo part $i >&3; i=$((i+1)); sleep 0.1; done
touch ../closing; exec 3>&-; trap 'exit 3' TERM; while :; do sleep 0.1; done";

fn half_written(lab: &Lab) -> Result<()> {
    let folder = lab.path("half");
    fs::create_dir_all(folder.join("checkpoints"))?;
    let shown = folder.join("checkpoints").to_string_lossy().into_owned();
    let flags = [
        "-G",
        "1",
        "-J",
        "half",
        "-w",
        &shown,
        "--checkpoint-dir",
        &shown,
        "--checkpoint-pattern",
        "step-*.ckpt",
    ];
    let id = lab.submit(&flags, &["sh", "-c", SLOW_WRITER])?;
    let job = lab.job_in(&id, "running", SOON)?;
    fault(lab, &place(&job)?, &["--xid", "62"])?;
    deferred(lab, &id)?;
    wait::until("it has written all", SOON, wait::POLL_COMMAND, || {
        let job = lab.job(&id)?;
        let closing = folder.join("closing").exists();
        ensure!(closing || job["last_checkpoint"].is_null(), "half a checkpoint was taken: {job}");
        ensure!(closing || job["attempt"] == 1, "evicted with half a checkpoint: {job}");
        Ok(closing.then_some(()))
    })?;
    let second =
        lab.job_until(&id, "moves after the whole one", LATER, |job| job["attempt"] == 2)?;
    let size = second["last_checkpoint"]["size_bytes"].as_u64();
    let whole = (0..30).map(|n| format!("part {n}\n").len() as u64).sum::<u64>();
    ensure!(size == Some(whole), "{size:?} bytes instead of {whole}");
    lab.output(&["cancel", &id])?;
    lab.job_in(&id, "cancelled", LATER).map(drop)
}

fn limit(lab: &Lab) -> Result<()> {
    let folder = lab.path("never");
    fs::create_dir_all(&folder)?;
    let shown = folder.to_string_lossy().into_owned();
    let flags = [
        "-G",
        "1",
        "-J",
        "never",
        "-w",
        &shown,
        "--checkpoint-dir",
        &shown,
        "--checkpoint-pattern",
        "*.ckpt",
        "--max-deferral",
        "3s",
    ];
    let script = "echo $FLEET_ATTEMPT >> attempts; [ $FLEET_ATTEMPT = 2 ] && exit 0; sleep 1000";
    let id = lab.submit(&flags, &["sh", "-c", script])?;
    let job = lab.job_in(&id, "running", SOON)?;
    fault(lab, &place(&job)?, &["--xid", "62"])?;
    let waiting = deferred(lab, &id)?;
    ensure!(!waiting["deferral"]["deadline"].is_null() || is_final(&waiting), "{waiting}");
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(fs::read_to_string(folder.join("attempts"))? == "1\n2\n");
    ensure!(lab.why(&id)?.contains("the wait is over"), "{}", lab.why(&id)?);
    Ok(())
}

#[test]
fn a_drained_node_empties_and_takes_work_again() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("this machine cannot be rebooted", "all nodes of a lab are one machine");
    let mut steps = Steps::default();
    steps.step("drain moves what saves, at its next checkpoint", || {
        let training = Training::new(&lab, "drained", 140, 40)?;
        let id = training.submit(&lab, &[], &[])?;
        let before = lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) >= 1)?;
        let node = before["node"].as_str().context("node")?.to_owned();
        let dry = lab.run(&["node", "drain", &node, "--dry-run", "--reason", "new fans"])?;
        ensure!(format!("{}{}", dry.ok()?, dry.stderr).contains(&id), "{dry:?}");
        lab.output(&["node", "drain", &node, "--yes", "--reason", "new fans"])?;
        let ended = lab.job_ended(&id, LATER)?;
        ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
        ensure!(ended["node"] != before["node"], "{ended}");
        training.equals_uninterrupted(&lab)?;
        lab.node_in(&node, "drained", SOON)?;
        ensure!(lab.output(&["node", "list"])?.contains("new fans"));
        lab.output(&["node", "uncordon", &node])?;
        lab.node_in(&node, "ready", SOON)
    });
    steps.step("a drain that is taken back moves nothing", || {
        let training = Training::new(&lab, "stays", 100, 60)?;
        let id = training.submit(&lab, &[], &[])?;
        let before = lab.job_in(&id, "running", SOON)?;
        let node = before["node"].as_str().context("node")?.to_owned();
        lab.output(&["node", "drain", &node, "--yes", "--reason", "perhaps"])?;
        deferred(&lab, &id)?;
        lab.output(&["node", "uncordon", &node])?;
        let ended = lab.job_ended(&id, LATER)?;
        ensure!(ended["state"] == "completed" && ended["attempt"] == 1, "{ended}");
        ensure!(lab.why(&id)?.contains("eviction was cancelled"), "{}", lab.why(&id)?);
        Ok(())
    });
    steps.step("a cordoned node takes nothing new and keeps what it has", || {
        let id = lab.submit(&["-G", "1", "--node", "titan01"], &["sh", "-c", "sleep 3"])?;
        lab.job_in(&id, "running", SOON)?;
        lab.output(&["node", "cordon", "titan01", "--reason", "noise"])?;
        let other = lab.submit(&["-G", "1", "--node", "titan01"], &["true"])?;
        lab.job_in(&id, "completed", SOON)?;
        wait::throughout("the other waits", Duration::from_secs(1), || {
            Ok(lab.job(&other)?["state"] == "queued")
        })?;
        lab.output(&["node", "uncordon", "titan01"])?;
        lab.job_in(&other, "completed", SOON).map(drop)
    });
    steps.step("a reboot waits until the node is empty, and one that cannot is said", || {
        lab.run(&["node", "reboot", "titan01"])?.fails(2, &["--when-empty"])?;
        let id = lab.submit(&["-G", "1", "--node", "titan01"], &["sh", "-c", "sleep 3"])?;
        lab.job_in(&id, "running", SOON)?;
        let ask = ["node", "reboot", "titan01", "--when-empty", "--yes", "--reason", "new kernel"];
        let said = lab.run(&ask)?;
        said.ok()?;
        ensure!(said.stderr.contains(&format!("reboots after {id}")), "{said:?}");
        lab.job_in(&id, "completed", SOON)?;
        // All nodes of a lab are one machine: no agent of it may take that down.
        wait::until("it cannot", SOON, wait::POLL_COMMAND, || {
            Ok(lab.why("titan01")?.contains("it cannot: its agent is one of several").then_some(()))
        })?;
        ensure!(lab.output(&["node", "list"])?.contains("new kernel"));
        lab.output(&["node", "reboot", "titan01", "--cancel"])?;
        lab.node_in("titan01", "ready", SOON)
    });
    steps.step("a drained node releases its driver, so that another one can be loaded", || {
        driver_exchanged(&lab)
    });
    steps.step("a drain with a deadline ends what saves nothing", || {
        let id =
            lab.submit(&["-G", "1", "--stop-grace", "1s", "--restarts", "0"], &["sleep", "1000"])?;
        let job = lab.job_in(&id, "running", SOON)?;
        let node = job["node"].as_str().context("node")?.to_owned();
        lab.output(&["node", "drain", &node, "--yes", "--reason", "now", "--deadline", "+3s"])?;
        let told =
            lab.job_until(&id, "left", LATER, |job| job["node"] != node.as_str() || is_final(job))?;
        lab.node_in(&node, "drained", SOON)?;
        lab.output(&["node", "uncordon", &node])?;
        if !is_final(&told) {
            lab.output(&["cancel", &id])?;
        }
        lab.job_ended(&id, LATER).map(drop)
    });
    lab.conclude(steps)
}

fn driver_exchanged(lab: &Lab) -> Result<()> {
    let gpus = || -> Result<Vec<Value>> {
        let list = lab.json(&["gpu", "list", "--node", "titan01"])?;
        Ok(list["items"].as_array().context("items")?.clone())
    };
    let is_let_go = || {
        let shown = lab.output(&["node", "show", "titan01"])?;
        Ok(shown.contains("the driver is released: it can be upgraded").then_some(()))
    };
    let id = lab.submit(&["-G", "1", "--node", "titan01"], &["sh", "-c", "sleep 3"])?;
    lab.job_in(&id, "running", SOON)?;
    lab.output(&["node", "drain", "titan01", "--yes", "--reason", "new driver"])?;
    ensure!(is_let_go()?.is_none(), "there is a job");
    lab.job_in(&id, "completed", SOON)?;
    wait::until("let go", SOON, wait::POLL_COMMAND, is_let_go)?;
    let unknown = |gpu: &Value| gpu["state"] == "unknown" && gpu["health"] == "unknown";
    ensure!(gpus()?.iter().all(unknown), "nobody knows how they are: {:?}", gpus()?);
    // Nor who used them last: that process may be gone.
    wait::until("the last measurements are forgotten", SOON, wait::POLL_COMMAND, || {
        Ok(gpus()?.iter().all(|gpu| gpu["use"].is_null()).then_some(()))
    })?;
    lab.run(&["gpu", "clear", "titan01:0"])?.fails(5, &["uncordon its node"])?;
    let control = ControlFile::new(lab.dev_file()?.node("titan01")?.gpu_control.clone());
    control.update(|control| control.driver_loaded = false)?;
    lab.kill_and_restart("agent", "titan01")?;
    wait::until("it looks once and lets go again", SOON, wait::POLL_COMMAND, || {
        let looked = lab.why("titan01")?.contains("its GPU driver is taken up again");
        Ok(is_let_go()?.filter(|()| looked))
    })?;
    control.update(|control| {
        control.driver_version = "570.1".to_owned();
        control.driver_loaded = true;
    })?;
    lab.output(&["node", "uncordon", "titan01"])?;
    wait::until("the new driver is known", SOON, wait::POLL_COMMAND, || {
        let node = lab.json(&["node", "show", "titan01"])?;
        let well = gpus()?.iter().all(|gpu| gpu["state"] == "free" && gpu["health"] == "ok");
        Ok((node["driver"] == "570.1" && node["gpu_problem"].is_null() && well).then_some(()))
    })?;
    let told = lab.why("titan01")?;
    ensure!(!told.contains("does not answer"), "an upgrade is no fault: {told}");
    lab.run(&["run", "-G", "2", "--node", "titan01", "--", "true"])?.ends(0).map(drop)
}

/// Two machines that do not share a disk: the second may not claim a checkpoint that it cannot read.
#[test]
fn separate_disks_are_noticed() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:1")? else { return Ok(()) };
    lab.gpus_break();
    let mut steps = Steps::default();
    steps.step("titan02 gets a disk of its own over the checkpoints", || {
        let shared = lab.path("results");
        fs::create_dir_all(shared.join("checkpoints"))?;
        lab.kill("agent", "titan02")?;
        let folder = shared.to_string_lossy().into_owned();
        lab.restart_with("agent", "titan02", |argv| {
            let script = format!("mount -t tmpfs -o mode=777 none {folder} && mkdir -m 777 {folder}/checkpoints && exec \"$@\"");
            let front = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"];
            argv.splice(0..0, front.map(str::to_owned));
        })?;
        lab.node_in("titan02", "ready", SOON)
    });
    steps.step("it starts from nothing there and says so, or is not moved there", || {
        let training = Training { folder: lab.path("results"), steps: 120, every: 40 };
        let id = training.submit(&lab, &["--node", "titan01", "-J", "pinned"], &[])?;
        lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) >= 1)?;
        lab.output(&["cancel", &id])?;
        lab.job_in(&id, "cancelled", SOON)?;
        fs::remove_dir_all(lab.path("results/checkpoints"))?;
        fs::create_dir(lab.path("results/checkpoints"))?;
        fs::remove_file(lab.path("results/steps.log")).ok();
        // The same, free to move.
        let blocker = lab.submit(&["-G", "1", "--node", "titan02"], &["sleep", "1000"])?;
        lab.job_in(&blocker, "running", SOON)?;
        let id = training.submit(&lab, &["-J", "free"], &[])?;
        let before = lab.job_until(&id, "saves", SOON, |job| checkpoint_seq(job) >= 1)?;
        ensure!(before["node"] == "titan01", "{before}");
        lab.output(&["cancel", &blocker])?;
        lab.job_in(&blocker, "cancelled", SOON)?;
        fault(&lab, &place(&before)?, &["--lost"])?;
        let claimed = |job: &Value| {
            job["attempt"].as_u64() > Some(1)
                && job["node"] == "titan02"
                && job["state"] == "running"
        };
        let later = lab.job_until(&id, "is dealt with", LATER, |job| {
            claimed(job)
                || is_final(job)
                || job["reason"].as_str().unwrap_or_default().contains("titan02")
        })?;
        let told = lab.why(&id)?;
        ensure!(
            told.contains("not on titan02 again"),
            "the second node said nothing: {later}\n{told}"
        );
        // An attempt on titan02 must not have claimed to resume from a checkpoint it does not have.
        let output = lab.output(&["logs", &id]).unwrap_or_default();
        ensure!(!output.contains("cannot use the checkpoint"), "{output}");
        ensure!(later["state"] == "queued" || is_final(&later), "{later}");
        lab.output(&["cancel", &id])?;
        lab.job_in(&id, "cancelled", SOON).map(drop)
    });
    lab.conclude(steps)
}
