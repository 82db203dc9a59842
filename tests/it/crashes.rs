//! Parts that die at bad moments: jobs keep running, fleet learns how they end, and no GPU is given twice.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::cluster::is_final;
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Prints a hundred numbered lines over some seconds, then ends with 7.
const COUNTER: &str =
    "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.06; done; exit 7";

fn counted() -> String {
    (0..100).map(|n| format!("line {n}\n")).collect()
}

#[test]
fn killed_parts_cost_no_work() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("the shim is lost", "the test kills two");
    lab.expect_in_logs("stood still", "a stopped process notices its own sleep");
    let mut steps = Steps::default();
    steps.step("a killed agent does not cut off who is watching", || watched_through(&lab));
    steps
        .step("agent, then controller, killed under a running job", || agent_then_controller(&lab));
    steps.step("the agent is away when the job ends", || ends_without_agent(&lab));
    steps.step("the controller is killed right after it acknowledged", || acknowledged(&lab));
    steps.step("both are away when the job ends", || ends_without_both(&lab));
    steps.step("a killed shim is the node's fault, and nothing of its job survives", || shim(&lab));
    steps.step("a stopped agent comes back with old orders", || stopped_agent(&lab));
    steps.step("a silent node gets nothing new and keeps what it has", || silent_node(&lab));
    steps.step("what stop-all ends on a node continues elsewhere", || stop_all(&lab));
    steps.step("a stopped controller ends nothing", || orderly_restart(&lab));
    steps.step("agents that stop leave no empty cgroup", || no_empty_cgroup(&lab));
    steps.step("the audit log is whole after all that", || {
        let export = lab.path("audit.jsonl").to_string_lossy().into_owned();
        lab.output(&["audit", "export", "--file", &export])?;
        lab.run(&["audit", "verify", &export])?.ok().map(drop)
    });
    lab.conclude(steps)
}

fn no_empty_cgroup(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    for node in lab.nodes()? {
        lab.run(&["run", "--node", &node, "--", "true"])?.ends(0)?;
        lab.terminate("agent", &node)?;
    }
    let found = lab.belongings().found()?;
    let groups: Vec<&String> = found.iter().filter(|line| line.starts_with("cgroup ")).collect();
    ensure!(groups.is_empty(), "{groups:?}");
    for node in lab.nodes()? {
        lab.restart("agent", &node)?;
        lab.node_in(&node, "ready", SOON)?;
    }
    lab.run(&["run", "-G", "1", "--", "true"])?.ends(0).map(drop)
}

/// The package of the agent is removed under a job that would save when it is asked to end.
fn stop_all(lab: &Lab) -> Result<()> {
    let program = "trap 'echo saved; exit 0' TERM; \
                   [ \"$FLEET_ATTEMPT\" = 2 ] && exit 6; while :; do sleep 0.1; done";
    let id = lab.submit(&["-G", "1", "--restarts", "1"], &["sh", "-c", program])?;
    let job = lab.job_in(&id, "running", SOON)?;
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.terminate("agent", &node)?;
    lab.run_beside("agent", &node, &["stop-all", "--grace", "5"])?.ok()?;
    ensure!(lab.job(&id)?["state"] == "running", "nobody has said otherwise");
    lab.restart("agent", &node)?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["attempt"] == 2 && ended["exit_code"] == 6, "{ended}");
    let told = lab.why(&id)?;
    ensure!(told.contains("the agent stopped it on this node"), "{told}");
    lab.node_in(&node, "ready", SOON)
}

fn watched_through(lab: &Lab) -> Result<()> {
    let attached =
        command::start(lab.command(&["run", "-J", "watched", "--", "sh", "-c", COUNTER]))?;
    let job = lab.job_in("watched", "running", SOON)?;
    lab.kill_and_restart("agent", job["node"].as_str().context("node")?)?;
    let ran = attached.wait(LATER)?;
    ran.ends(7)?;
    ensure!(
        ran.stdout == counted(),
        "saw {} bytes of {}: {}",
        ran.stdout.len(),
        counted().len(),
        ran.stderr
    );
    Ok(())
}

fn agent_then_controller(lab: &Lab) -> Result<()> {
    let attached = command::start(
        lab.command(&["run", "-G", "1", "-J", "counter", "--", "sh", "-c", COUNTER]),
    )?;
    let job = lab.job_in("counter", "running", SOON)?;
    let id = job["id"].as_str().context("id")?.to_owned();
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.kill_and_restart("agent", &node)?;
    lab.node_in(&node, "ready", SOON)?;
    lab.kill_and_restart("controller", "1")?;
    let ran = attached.wait(LATER)?;
    ran.ends(7)?;
    ensure!(
        ran.stdout == counted(),
        "attached output has {} bytes of {}: {}",
        ran.stdout.len(),
        counted().len(),
        ran.stderr
    );
    let ended = lab.job_ended(&id, SOON)?;
    ensure!(
        ended["state"] == "failed" && ended["exit_code"] == 7 && ended["attempt"] == 1,
        "{ended}"
    );
    ensure!(lab.output(&["logs", &id])? == counted(), "logs are not whole");
    let told = lab.why(&id)?;
    for text in ["placed on", "runs", "exit code 7"] {
        ensure!(told.contains(text), "why does not say {text:?}: {told}");
    }
    lab.gpus_free(4, SOON)
}

fn ends_without_agent(lab: &Lab) -> Result<()> {
    let id = lab.submit(&["-G", "1"], &["sh", "-c", "sleep 1.5; touch ended-alone; exit 5"])?;
    let job = lab.job_in(&id, "running", SOON)?;
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.kill("agent", &node)?;
    wait::eventually("the job has ended", SOON, || Ok(lab.path("ended-alone").exists()))?;
    lab.restart("agent", &node)?;
    let ended = lab.job_ended(&id, SOON)?;
    ensure!(ended["exit_code"] == 5 && ended["attempt"] == 1, "{ended}");
    ensure!(lab.path(&format!("sh-{id}.log")).exists());
    lab.gpus_free(4, SOON)
}

fn ends_without_both(lab: &Lab) -> Result<()> {
    let id = lab.submit(
        &["-G", "1"],
        &["sh", "-c", "echo a; sleep 2; echo b; touch ended-lonely; exit 6"],
    )?;
    let job = lab.job_in(&id, "running", SOON)?;
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.kill("controller", "1")?;
    lab.kill("agent", &node)?;
    wait::eventually("the job has ended", SOON, || Ok(lab.path("ended-lonely").exists()))?;
    lab.restart("agent", &node)?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    let ended = lab.job_ended(&id, SOON)?;
    ensure!(ended["exit_code"] == 6 && ended["attempt"] == 1, "{ended}");
    ensure!(lab.output(&["logs", &id])? == "a\nb\n");
    lab.gpus_free(4, SOON)
}

fn acknowledged(lab: &Lab) -> Result<()> {
    let journal = lab.path("acknowledged");
    fs::create_dir_all(&journal)?;
    let mut ids = Vec::new();
    for _ in 0..4 {
        let script = format!("echo x >> {}/$FLEET_JOB_ID", journal.display());
        ids.push(lab.submit(&["-G", "1"], &["sh", "-c", &script])?);
        lab.kill_and_restart("controller", "1")?;
        lab.controller_answers()?;
    }
    for id in &ids {
        let ended = lab.job_ended(id, LATER)?;
        ensure!(ended["state"] == "completed" && ended["attempt"] == 1, "{ended}");
        let runs = fs::read_to_string(journal.join(id))?;
        ensure!(runs == "x\n", "{id} ran {} times", runs.lines().count());
    }
    lab.gpus_free(4, SOON)
}

/// The shim of an allocation, by its command line.
fn shim_of(allocation: &str) -> Result<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let program =
            Path::new(std::str::from_utf8(words.first().unwrap_or(&&b""[..])).unwrap_or_default());
        let names_it = words.iter().any(|word| word.ends_with(allocation.as_bytes()));
        if program.file_name().is_some_and(|name| name == "fleet-shim") && names_it {
            return Ok(Pid::from_raw(pid));
        }
    }
    anyhow::bail!("{allocation} has no shim")
}

fn shim(lab: &Lab) -> Result<()> {
    let script = "[ $FLEET_ATTEMPT = 2 ] && exit 0; exec sleep 987654";
    let id = lab.submit(&["-G", "1", "--restarts", "1"], &["sh", "-c", script])?;
    let without = lab.submit(&["-G", "1"], &["sleep", "987655"])?;
    for id in [&id, &without] {
        let job = lab.job_in(id, "running", SOON)?;
        kill(shim_of(job["allocation"].as_str().context("allocation")?)?, Signal::SIGKILL)?;
    }
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let ended = lab.job_ended(&without, LATER)?;
    ensure!(ended["state"] == "failed" && ended["attempt"] == 1, "{ended}");
    ensure!(ended["reason"].as_str().unwrap_or_default().contains("shim"), "{ended}");
    let left = lab.belongings().processes()?;
    ensure!(!left.iter().any(|line| line.contains("98765")), "{left:?}");
    lab.gpus_free(4, SOON)
}

fn stopped_agent(lab: &Lab) -> Result<()> {
    let id =
        lab.submit(&["-G", "2", "--node", "titan01", "--stop-grace", "1s"], &["sleep", "1000"])?;
    lab.job_in(&id, "running", SOON)?;
    lab.signal("agent", "titan01", Signal::SIGSTOP)?;
    lab.output(&["cancel", &id])?;
    // Its GPUs are nobody else's until the node itself says that they are empty.
    let next = lab.submit(&["-G", "2", "--node", "titan01"], &["true"])?;
    let never_both = || -> Result<bool> {
        let (first, second) = (lab.job(&id)?, lab.job(&next)?);
        Ok(is_final(&first) || second["state"] == "queued")
    };
    let watched =
        wait::throughout("the GPUs are not given again", Duration::from_secs(3), never_both);
    lab.signal("agent", "titan01", Signal::SIGCONT)?;
    watched?;
    ensure!(lab.job_ended(&id, SOON)?["state"] == "cancelled");
    lab.job_in(&next, "completed", SOON)?;
    lab.gpus_free(4, SOON)
}

fn silent_node(lab: &Lab) -> Result<()> {
    let script = "while ! [ -e silence-is-over ]; do sleep 0.1; done; exit 0";
    let id = lab.submit(&["-G", "1", "--node", "titan02"], &["sh", "-c", script])?;
    lab.job_in(&id, "running", SOON)?;
    lab.kill("agent", "titan02")?;
    lab.node_in("titan02", "suspect", SOON)?;
    let other = lab.submit(&["-G", "1", "--node", "titan02"], &["true"])?;
    wait::throughout("nothing is placed, nothing ends", Duration::from_secs(1), || {
        Ok(lab.job(&other)?["state"] == "queued" && lab.job(&id)?["state"] == "running")
    })?;
    lab.restart("agent", "titan02")?;
    lab.node_in("titan02", "ready", SOON)?;
    fs::write(lab.path("silence-is-over"), "")?;
    lab.job_in(&id, "completed", SOON)?;
    lab.job_in(&other, "completed", SOON)?;
    lab.gpus_free(4, SOON)
}

fn orderly_restart(lab: &Lab) -> Result<()> {
    let attached = command::start(
        lab.command(&["run", "-G", "1", "-J", "orderly", "--", "sh", "-c", COUNTER]),
    )?;
    let job = lab.job_in("orderly", "running", SOON)?;
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.terminate("controller", "1")?;
    lab.terminate("agent", &node)?;
    lab.restart("controller", "1")?;
    lab.restart("agent", &node)?;
    let ran = attached.wait(LATER)?;
    ran.ends(7)?;
    ensure!(ran.stdout == counted(), "{} bytes of {}", ran.stdout.len(), counted().len());
    lab.gpus_free(4, SOON)
}
