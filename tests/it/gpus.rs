//! GPUs and drivers that break in ways that are no XID: gone, silent, used by strangers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::{Control, ControlFile, Process, ProcessKind};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};
use serde_json::Value;

fn gpu(lab: &Lab, node: &str, index: u64) -> Result<Value> {
    let list = lab.json(&["gpu", "list", "--node", node])?;
    let items = list["items"].as_array().context("items")?;
    items
        .iter()
        .find(|gpu| gpu["index"] == index)
        .cloned()
        .with_context(|| format!("{node}:{index} in {list}"))
}

fn gpu_until(
    lab: &Lab,
    node: &str,
    index: u64,
    what: &str,
    reached: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let mut last = Value::Null;
    wait::until(&format!("{node}:{index} is {what}"), SOON, wait::POLL_COMMAND, || {
        last = gpu(lab, node, index)?;
        Ok(reached(&last).then(|| last.clone()))
    })
    .with_context(|| last.to_string())
}

fn change(lab: &Lab, node: &str, change: impl FnOnce(&mut Control)) -> Result<()> {
    let path = lab.dev_file()?.node(node)?.gpu_control.clone();
    Ok(ControlFile::new(path).update(change)?)
}

#[test]
fn gpus_that_break() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.gpus_break();
    lab.expect_in_logs("fleet_agent::gpu", "a driver that hangs is complained about");
    let mut steps = Steps::default();
    steps.step("an agent that was killed is started again", || {
        lab.output(&["dev", "agent", "--node", "titan01", "--kill"])?;
        let twice = lab.run(&["dev", "agent", "--node", "titan01", "--kill"])?;
        twice.fails(5, &["does not run", "--start"])?;
        lab.output(&["dev", "agent", "--node", "titan01", "--start"])?;
        lab.node_in("titan01", "ready", SOON)
    });
    steps.step("what stays of a fault goes by an admin's word", || cleared(&lab));
    steps.step("what is still so cannot be cleared", || cleared_when_back(&lab));
    steps.step("a GPU that vanishes under a job ends it, and only it", || vanishes(&lab));
    steps.step("a name means one card, whatever the driver counts", || numbers(&lab));
    steps.step("a driver that hangs costs its GPU, not its node", || hangs(&lab));
    steps.step("a stranger on a GPU makes it dirty until they leave", || dirty(&lab));
    steps
        .step("memory that no process explains makes it dirty until it is free", || occupied(&lab));
    steps.step("an error of a GPU names the job that met it", || told_with_the_job(&lab));
    steps.step("jobs keep running where nothing is wrong", || {
        lab.run(&["run", "-G", "1", "--immediate", "--", "true"])?.ends(0).map(drop)
    });
    lab.conclude(steps)
}

fn fault(lab: &Lab, index: u64, flags: &[&str]) -> Result<()> {
    fault_of(lab, "titan01", index, flags)
}

fn fault_of(lab: &Lab, node: &str, index: u64, flags: &[&str]) -> Result<()> {
    let index = index.to_string();
    let words: Vec<&str> = ["dev", "fault", "--node", node, "--gpu", &index]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    lab.output(&words).map(drop)
}

fn is_well(gpu: &Value) -> bool {
    gpu["state"] == "free" && gpu["health"] == "ok"
}

fn told_with_the_job(lab: &Lab) -> Result<()> {
    let here = ["-G", "1", "--node", "titan02"];
    let victim = lab.submit(&here, &["sh", "-c", "sleep 3; exit 7"])?;
    let other = lab.submit(&here, &["sleep", "3"])?;
    let job = lab.job_in(&victim, "running", SOON)?;
    let index = job["gpus"][0]["index"].as_u64().context("index")?;
    fault_of(lab, "titan02", index, &["--xid", "31"])?;
    lab.job_ended(&victim, LATER)?;
    lab.job_ended(&other, LATER)?;
    let after = lab.submit(&["-G", "2", "--node", "titan02"], &["true"])?;
    lab.job_ended(&after, LATER)?;
    let told = lab.why(&victim)?;
    let at = |text: &str| told.find(text).with_context(|| format!("no {text:?} in {told}"));
    let met = at(&format!("titan02:{index}: notice (XID 31"))?;
    ensure!(at("placed on titan02")? < met && met < at("-1 ended: ")?, "{told}");
    // Wait longer than the time in which an error may be reported after the job that met it has ended.
    std::thread::sleep(Duration::from_secs(3));
    fault_of(lab, "titan02", index, &["--xid", "13"])?;
    gpu_until(lab, "titan02", index, "told of both", |gpu| {
        gpu["conditions"].as_array().is_some_and(|all| all.len() == 2)
    })?;
    let told = lab.why(&after)?;
    ensure!(!told.contains("XID"), "one was before it, one after it: {told}");
    let told = lab.why(&other)?;
    ensure!(!told.contains("XID"), "it had the other GPU: {told}");
    Ok(())
}

fn cleared(lab: &Lab) -> Result<()> {
    fault(lab, 1, &["--xid", "62"])?;
    gpu_until(lab, "titan01", 1, "degraded", |gpu| gpu["health"] == "degraded")?;
    fault(lab, 1, &["--clear"])?;
    wait::throughout("it stays", Duration::from_secs(2), || {
        Ok(gpu(lab, "titan01", 1)?["health"] == "degraded")
    })?;
    let two = ["run", "-G", "2", "--node", "titan01", "--immediate", "--", "true"];
    lab.run(&two)?.fails(6, &[])?;
    lab.run_as_nobody(&["gpu", "clear", "titan01:1"])?.fails(4, &[])?;
    let ran = lab.run(&["gpu", "clear", "titan01:1", "--reason", "power-cycled"])?;
    ran.ok()?;
    ensure!(ran.stderr.contains("titan01:1: cleared"), "{}", ran.stderr);
    let seen = gpu(lab, "titan01", 1)?;
    ensure!(is_well(&seen) && seen["conditions"] == serde_json::json!([]), "{seen}");
    lab.run(&two)?.ends(0)?;
    let told = lab.why("titan01:1")?;
    ensure!(told.contains("xid_62 cleared by root: power-cycled"), "{told}");
    let ran = lab.run(&["gpu", "clear", "titan01:1"])?;
    ran.ok()?;
    ensure!(ran.stderr.contains("nothing to clear"), "{}", ran.stderr);
    // The mark is gone for good: a restart of the agent does not bring it back.
    lab.kill_and_restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)?;
    lab.run(&["run", "-G", "2", "--node", "titan01", "--", "true"])?.ends(0).map(drop)
}

fn cleared_when_back(lab: &Lab) -> Result<()> {
    fault(lab, 0, &["--lost"])?;
    gpu_until(lab, "titan01", 0, "lost", |gpu| gpu["state"] == "lost")?;
    lab.run(&["gpu", "clear", "titan01:0"])?.fails(5, &["titan01:0", "gone"])?;
    fault(lab, 0, &["--clear"])?;
    let seen = gpu_until(lab, "titan01", 0, "there again", |gpu| gpu["state"] != "lost")?;
    ensure!(seen["health"] == "fatal", "nobody has checked it yet: {seen}");
    // A reservation of this one alone does not begin on it without a word.
    let words = ["reserve", "--gpu", "titan01:0", "-t", "1h"];
    lab.run(&words)?.fails(6, &["titan01:0 is unhealthy: the GPU is gone"])?;
    lab.output(&["gpu", "clear", "titan01:0"])?;
    gpu_until(lab, "titan01", 0, "well", is_well).map(drop)
}

fn vanishes(lab: &Lab) -> Result<()> {
    let victim =
        lab.submit(&["-G", "1", "--node", "titan01", "--stop-grace", "1s"], &["sleep", "1000"])?;
    let other = lab.submit(&["-G", "1", "--node", "titan01"], &["sh", "-c", "sleep 4; exit 0"])?;
    lab.job_in(&other, "running", SOON)?;
    let job = lab.job_in(&victim, "running", SOON)?;
    let index = job["gpus"][0]["index"].as_u64().context("index")?;
    change(lab, "titan01", |control| {
        if let Some(gpu) = control.gpus.get_mut(index as usize) {
            gpu.faults.missing = true;
        }
    })?;
    let ended = lab.job_ended(&victim, LATER)?;
    ensure!(ended["state"] == "failed" && ended["attempt"] == 1, "{ended}");
    lab.job_in(&other, "completed", SOON)?;
    let seen = gpu_until(lab, "titan01", index, "not usable", |gpu| {
        gpu["state"] != "free" && gpu["state"] != "running"
    })?;
    ensure!(seen["health"] != "ok", "{seen}");
    lab.node_in("titan01", "ready", SOON)?;
    lab.output(&["dev", "fault", "--node", "titan01", "--gpu", &index.to_string(), "--clear"])?;
    gpu_until(lab, "titan01", index, "seen again", |gpu| gpu["state"] != "lost").map(drop)
}

/// The driver numbers the cards again at each boot: if a card is gone, the next one gets its number.
fn numbers(lab: &Lab) -> Result<()> {
    for index in [0, 1] {
        gpu_until(lab, "titan01", index, "released", |gpu| gpu["state"] != "releasing")?;
        lab.output(&["gpu", "clear", &format!("titan01:{index}")])?;
    }
    let (first, second) = (gpu(lab, "titan01", 0)?, gpu(lab, "titan01", 1)?);
    let in_the_machine = |there: bool| {
        change(lab, "titan01", |control| {
            if let Some(gpu) = control.gpus.get_mut(0) {
                gpu.faults.missing = !there;
            }
        })
    };
    in_the_machine(false)?;
    lab.kill_and_restart("agent", "titan01")?;
    gpu_until(lab, "titan01", 0, "lost", |gpu| gpu["state"] == "lost")?;
    let moved = gpu_until(lab, "titan01", 1, "counted again", |gpu| gpu["driver_index"] == 0)?;
    ensure!(moved["uuid"] == second["uuid"] && moved["state"] == "free", "{moved}");
    let ran = lab.run(&["gpu", "list", "--node", "titan01"])?;
    ran.ok()?;
    let said = "titan01:1: `nvidia-smi` on titan01 calls it 0";
    ensure!(ran.stderr.contains(said), "{}", ran.stderr);
    let words = ["reserve", "--gpu", "titan01:1", "-t", "1h"];
    let reserved = lab.json(&words)?;
    ensure!(reserved["gpus"][0]["uuid"] == second["uuid"], "{reserved}");
    let id = reserved["id"].as_str().context("id")?.to_owned();
    lab.output(&["release", &id])?;
    // A card that is there is not forgotten.
    let words = ["gpu", "forget", "titan01:1", "--reason", "x", "--yes"];
    lab.run(&words)?.fails(5, &["titan01:1 cannot be forgotten", "it is in its machine"])?;
    let words = ["gpu", "forget", "titan01:0", "--reason", "scrapped", "--yes"];
    let ran = lab.run(&words)?;
    ran.ok()?;
    ensure!(ran.stderr.contains("titan01:0: forgotten"), "{}", ran.stderr);
    let uuid = first["uuid"].as_str().context("uuid")?;
    let told = lab.why(uuid)?;
    ensure!(told.contains("titan01:0 was forgotten by root: scrapped"), "{told}");
    // Its agent does not count the card as lost any more, also after a restart of the agent.
    for _ in 0..2 {
        wait::until("the card is gone", SOON, wait::POLL_COMMAND, || {
            let listed = lab.json(&["gpu", "list", "--node", "titan01"])?.to_string();
            let conditions = lab.json(&["node", "show", "titan01"])?["conditions"].to_string();
            Ok((!listed.contains(uuid) && !conditions.contains(uuid)).then_some(()))
        })?;
        lab.kill_and_restart("agent", "titan01")?;
        lab.node_in("titan01", "ready", SOON)?;
    }
    in_the_machine(true)?;
    lab.kill_and_restart("agent", "titan01")?;
    let back = wait::until("the card is there again", SOON, wait::POLL_COMMAND, || {
        Ok(gpu(lab, "titan01", 0).ok())
    })?;
    ensure!(back["uuid"] == first["uuid"], "{back}");
    lab.output(&["gpu", "clear", "titan01:0"])?;
    gpu_until(lab, "titan01", 0, "well", is_well)?;
    Ok(())
}

fn hangs(lab: &Lab) -> Result<()> {
    lab.output(&["dev", "fault", "--node", "titan02", "--gpu", "1", "--hang"])?;
    let seen = gpu_until(lab, "titan02", 1, "unknown", |gpu| gpu["health"] == "unknown")?;
    ensure!(seen["state"] != "free", "a GPU nobody can ask about is offered: {seen}");
    wait::throughout("the node is there", Duration::from_secs(3), || {
        Ok(lab.json(&["node", "show", "titan02"])?["state"] == "ready")
    })?;
    let ran = lab.run(&["run", "--node", "titan02", "--", "echo", "alive"])?;
    ensure!(ran.ok()? == "alive\n");
    lab.run(&["run", "-G", "2", "--node", "titan02", "--immediate", "--", "true"])?
        .fails(6, &[])?;
    lab.output(&["dev", "fault", "--node", "titan02", "--gpu", "1", "--clear"])?;
    // By itself the agent asks such a GPU again after ten minutes; an admin who mended it need not wait.
    lab.kill_and_restart("agent", "titan02")?;
    gpu_until(lab, "titan02", 1, "free again", |gpu| {
        gpu["state"] == "free" && gpu["health"] == "ok"
    })
    .map(drop)
}

fn dirty(lab: &Lab) -> Result<()> {
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn()?;
    let pid = stranger.id();
    let set = |processes: Vec<Process>| {
        change(lab, "titan02", |control| {
            if let Some(gpu) = control.gpus.get_mut(0) {
                gpu.faults.processes = processes;
            }
        })
    };
    let checked = set(vec![Process { pid, memory_bytes: 1 << 30, kind: ProcessKind::Compute }])
        .and_then(|()| gpu_until(lab, "titan02", 0, "dirty", |gpu| gpu["state"] == "dirty"))
        .and_then(|seen| {
            ensure!(
                seen["reason"].as_str().unwrap_or_default().contains(&pid.to_string()),
                "who? {seen}"
            );
            ensure!(lab.why("titan02:0")?.contains(&pid.to_string()), "{}", lab.why("titan02:0")?);
            lab.run(&["run", "-G", "2", "--node", "titan02", "--immediate", "--", "true"])?
                .fails(6, &[])?;
            Ok(())
        });
    stranger.kill()?;
    stranger.wait()?;
    checked?;
    set(Vec::new())?;
    gpu_until(lab, "titan02", 0, "free again", |gpu| gpu["state"] == "free").map(drop)
}

/// As a process leaves it that died badly, or one that cannot be seen from here.
fn occupied(lab: &Lab) -> Result<()> {
    let set = |bytes| {
        change(lab, "titan02", |control| {
            if let Some(gpu) = control.gpus.get_mut(1) {
                gpu.faults.memory_used_bytes = bytes;
            }
        })
    };
    set(Some(6 << 30))?;
    let seen = gpu_until(lab, "titan02", 1, "dirty", |gpu| gpu["state"] == "dirty")?;
    let reason = seen["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("6144 MiB in use, but no process found"), "{seen}");
    let why = lab.why("titan02:1")?;
    ensure!(why.contains("6144 MiB in use, but no process found"), "{why}");
    lab.run(&["run", "-G", "2", "--node", "titan02", "--immediate", "--", "true"])?
        .fails(6, &[])?;
    set(None)?;
    gpu_until(lab, "titan02", 1, "free again", |gpu| gpu["state"] == "free").map(drop)
}
