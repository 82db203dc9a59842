//! The fleet without its controller: what was promised begins and ends on time, nothing else stops, root can help, and
//! all of it is on record when the controller is back.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::{Lab, tell};
use fleet_tests::seat::Seat;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use nix::sys::signal::Signal;
use serde_json::Value;

const NODE: &str = "titan01";
/// Within this everything is reconciled once the controller answers again. It takes some three.
const RECONCILED_WITHIN: Duration = Duration::from_secs(30);
/// Runs until fleet stops it.
const WORK: &str = "while :; do date +%s > beat-$FLEET_JOB_ID; sleep 0.2; done";

/// What is there when the controller dies.
struct Promised {
    /// Open, with a job in it; its end comes without a controller.
    now: String,
    child: String,
    /// Begins and ends without a controller.
    coming: String,
    /// Begins without a controller and is still active at the end.
    later: String,
    /// Past its time limit when `later` needs its GPU.
    short: String,
    /// In nobody's way.
    long: String,
}

#[test]
fn the_calendar_goes_on_without_a_controller() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:5")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("without a controller", "the test grants a GPU as root");
    lab.expect_in_logs("enforcement without controllers", "the test uses the switch");
    let mut steps = Steps::default();
    let mut promised = None;
    steps.step("windows are in the node's hands", || {
        promised = Some(promise(&lab)?);
        Ok(())
    });
    let Some(p) = promised else { return lab.conclude(steps) };
    lab.kill("controller", "1")?;
    let mut granted = String::new();
    steps.step("the node's own agent tells how things stand", || own_view(&lab, &p));
    steps.step("root grants what is free, and nothing else", || {
        granted = grant(&lab)?;
        Ok(())
    });
    steps.step("the agent is killed and continues from its disk", || {
        lab.kill_and_restart("agent", NODE)?;
        wait::until("it answers", SOON, POLL_COMMAND, || {
            let ran = seat(&lab)?.run(&["status"])?;
            Ok((ran.code() == 0).then_some(()))
        })
    });
    steps.step("windows open and close on time", || on_time(&lab, &p));
    steps.step("root's switch is kept", || {
        root(&lab, &["enforce", "warn", "--reason", "nobody can be asked"])?.ok().map(drop)
    });
    steps.step("everything is reconciled soon after the controller is back", || {
        lab.restart("controller", "1")?;
        lab.controller_answers()?;
        let back = Instant::now();
        reconciled(&lab, &p, &granted)?;
        tell(&format!(
            "reconciled {} ms after the controller answered",
            back.elapsed().as_millis()
        ));
        Ok(())
    });
    steps.step("the story is complete, and audited", || story(&lab, &p, &granted));
    steps.step("with a controller root has nothing to grant", || {
        // The link is up again: the controller was asked and has adopted the grant.
        let refused = root(&lab, &["grant", "nobody", "--gpu", "4", "-t", "1m", "--reason", "x"])?;
        ensure!(refused.code() != 0 && refused.stderr.contains("a controller answers"));
        root(&lab, &["enforce", "on", "--reason", "over"])?.ok().map(drop)
    });
    steps.step("and all of it can be released", || {
        lab.clear_away()?;
        lab.gpus_free(5, SOON)
    });
    lab.conclude(steps)
}

fn reserve(lab: &Lab, words: &[&str]) -> Result<String> {
    let words: Vec<&str> = ["reserve"].iter().chain(words).copied().collect();
    Ok(lab.output(&words)?.trim().to_owned())
}

fn reservation(lab: &Lab, id: &str) -> Result<Value> {
    lab.json(&["reservation", "show", id])
}

/// What is promised begins after so many seconds: on a slow machine the node hears of it too late for the shorter.
const AHEAD_S: [u64; 3] = [45, 120, 300];

fn promise(lab: &Lab) -> Result<Promised> {
    for seconds in AHEAD_S {
        if let Some(promised) = promise_in(lab, seconds)? {
            return Ok(promised);
        }
        tell(&format!("{seconds} s are too short on this machine"));
        lab.clear_away()?;
        lab.gpus_free(5, SOON)?;
    }
    bail!("this machine is too slow for the test")
}

/// Nothing if the first of it began, or the time of the short job was over, before all was ready.
fn promise_in(lab: &Lab, seconds: u64) -> Result<Option<Promised>> {
    let after = |more: u64| format!("+{}s", seconds + more);
    let run = |flags: &[&str]| {
        let flags: Vec<&str> = ["--stop-grace", "2s"].iter().chain(flags).copied().collect();
        lab.submit(&flags, &["sh", "-c", WORK])
    };
    let now = reserve(lab, &["--gpu", "titan01:0", "-t", "1h"])?;
    let child = run(&["-J", "child", "-G", "1", "--reservation", &now])?;
    let long = run(&["-J", "long", "--gpu", "titan01:3", "-t", "12h"])?;
    let short = run(&["-J", "short", "--gpu", "titan01:2", "-t", &format!("{seconds}s")])?;
    for job in [&child, &short, &long] {
        lab.job_in(job, "running", SOON)?;
    }
    let coming = reserve(lab, &["--gpu", "titan01:1", "--from", &after(0), "-t", "10s"])?;
    // The short job is past its time by then.
    let later = reserve(lab, &["--gpu", "titan01:2", "--from", &after(5), "-t", "1h"])?;
    lab.run(&["extend", "--yes", &now, "--until", &after(10)])?.ends(0)?;
    for id in [&now, &coming, &later] {
        wait::until("the node has it on its disk", SOON, POLL_COMMAND, || {
            Ok(reservation(lab, id)?["unconfirmed"].is_null().then_some(()))
        })?;
    }
    let early = reservation(lab, &coming)?["state"] == "scheduled"
        && lab.job(&short)?["state"] == "running";
    Ok(early.then_some(Promised { now, child, coming, later, short, long }))
}

/// Root, logged in on the node.
fn seat(lab: &Lab) -> Result<Seat<'_>> {
    Seat::at(lab, NODE, 0)
}

/// `fleet status` where no controller answers.
fn status(lab: &Lab) -> Result<Value> {
    let status = seat(lab)?.json(&["status"])?;
    ensure!(status["schema"] == "fleet.node_status/v1", "{status}");
    Ok(status)
}

fn window<'a>(status: &'a Value, id: &str) -> Result<&'a Value> {
    let windows = status["windows"].as_array().context("windows")?;
    let found = windows.iter().find(|window| window["reservation"] == *id);
    found.with_context(|| format!("no {id} in {status}"))
}

fn own_view(lab: &Lab, p: &Promised) -> Result<()> {
    let ran = seat(lab)?.run(&["status"])?;
    ran.ends(0)?;
    for text in ["own agent knows", "ago"] {
        ensure!(ran.stderr.contains(text), "no {text:?} in {}", ran.stderr);
    }
    let seen = wait::until("the agent is alone", SOON, POLL_COMMAND, || {
        let status = status(lab)?;
        Ok((status["connected"] == false).then_some(status))
    })?;
    ensure!(seen["age_seconds"].is_u64() && seen["fleet_now"].is_string(), "{seen}");
    ensure!(window(&seen, &p.now)?["state"] == "open", "{seen}");
    for id in [&p.coming, &p.later] {
        ensure!(window(&seen, id)?["owner"] == "root", "{seen}");
    }
    ensure!(seen["jobs"].as_array().is_some_and(|jobs| jobs.len() >= 2), "{seen}");
    // Everything else still fails, and says so.
    seat(lab)?.run(&["ps"])?.fails(8, &["cannot reach a controller"]).map(drop)
}

/// `fleet-agent` with these words, for the one node.
fn root(lab: &Lab, words: &[&str]) -> Result<Ran> {
    let dev = lab.dev_file()?;
    let argv = &dev.process("agent", NODE)?.argv;
    let at = argv.iter().position(|word| word == "--config").context("--config")?;
    let mut command = Command::new(&argv[0]);
    command.args(words).args(&argv[at..at + 2]);
    command::run(command, SOON)
}

fn grant(lab: &Lab) -> Result<String> {
    let refused = |gpu: &str, text: &str| -> Result<()> {
        let ran = root(lab, &["grant", "nobody", "--gpu", gpu, "-t", "2h", "--reason", "x"])?;
        ensure!(ran.code() != 0 && ran.stderr.contains(text), "{gpu}: {}", ran.stderr);
        Ok(())
    };
    refused("titan01:1", "promised")?;
    refused("0", "use")?;
    refused("9", "no GPU")?;
    let no_reason = root(lab, &["grant", "nobody", "--gpu", "4", "-t", "2h", "--reason", " "])?;
    ensure!(
        no_reason.code() != 0 && no_reason.stderr.contains("reason: needed"),
        "{}",
        no_reason.stderr
    );
    let seen = status(lab)?;
    let gpus = seen["gpus"].as_array().context("gpus")?;
    let promised = |gpu: &&Value| gpu["index"] == 1 || gpu["index"] == 2;
    let free = gpus.iter().find(|gpu| gpu["state"] == "free" && !promised(gpu)).context("none")?;
    let index = free["index"].to_string();
    let words = ["grant", "nobody", "--gpu", &index, "-t", "2h", "--reason", "the paper is due"];
    let id = root(lab, &words)?.ok()?.trim().to_owned();
    let seen = status(lab)?;
    let window = window(&seen, &id)?;
    ensure!(window["granted_by"] == "root" && window["state"] == "open", "{window}");
    let gpu =
        seen["gpus"].as_array().and_then(|gpus| gpus.iter().find(|g| g["index"] == free["index"]));
    ensure!(gpu.is_some_and(|gpu| gpu["held_by"] == "nobody"), "{seen}");
    Ok(id)
}

fn on_time(lab: &Lab, p: &Promised) -> Result<()> {
    let reached = |id: &str, states: &'static [&'static str]| {
        wait::until(&format!("{id} is {states:?}"), LATER * 4, POLL_COMMAND, || {
            let seen = status(lab)?;
            let state = window(&seen, id)?["state"].as_str().unwrap_or_default().to_owned();
            Ok(states.contains(&state.as_str()).then_some(seen))
        })
    };
    // A look takes longer than a window may be open on a slow machine: what is past is as good.
    let seen = reached(&p.coming, &["open", "closing", "closed"])?;
    ensure!(
        seen["fleet_now"].as_str() >= window(&seen, &p.coming)?["starts_at"].as_str(),
        "{seen}"
    );
    let seen = reached(&p.coming, &["closed"])?;
    ensure!(seen["fleet_now"].as_str() >= window(&seen, &p.coming)?["ends_at"].as_str(), "{seen}");
    let seen = reached(&p.now, &["closed"])?;
    ensure!(window(&seen, &p.later)?["state"] == "open", "{seen}");
    ensure!(seen["connected"] == false, "{seen}");
    let runs = |id: &str| -> bool {
        seen["jobs"].as_array().is_some_and(|jobs| jobs.iter().any(|job| job["job"] == *id))
    };
    ensure!(runs(&p.long) && !runs(&p.child) && !runs(&p.short), "{seen}");
    Ok(())
}

fn reconciled(lab: &Lab, p: &Promised, granted: &str) -> Result<()> {
    let mut last = Value::Null;
    let done = wait::until("both sides agree", RECONCILED_WITHIN, POLL_COMMAND, || {
        let mut states = serde_json::Map::new();
        for id in [&p.now, &p.coming, &p.later] {
            states.insert(id.clone(), reservation(lab, id)?["state"].clone());
        }
        let ran = lab.run(&["reservation", "show", granted, "-o", "json"])?;
        let grant = if ran.code() == 0 { ran.json()?["state"].clone() } else { Value::Null };
        states.insert(granted.to_owned(), grant);
        for id in [&p.child, &p.short, &p.long] {
            states.insert(id.clone(), lab.job(id)?["state"].clone());
        }
        let expected = serde_json::json!({
            &p.now: "ended", &p.coming: "ended", &p.later: "active", granted: "active",
            &p.child: "timed_out", &p.short: "timed_out", &p.long: "running",
        });
        last = Value::Object(states);
        Ok((last == expected).then_some(()))
    });
    done.with_context(|| last.to_string())?;
    let long = lab.job(&p.long)?;
    ensure!(long["attempt"] == 1, "no job stops: {long}");
    Ok(())
}

fn story(lab: &Lab, p: &Promised, granted: &str) -> Result<()> {
    let told = lab.why(&p.coming)?;
    for text in [
        "titan01 received the reservation",
        "on its disk",
        "opened it on its own",
        "closed it on its own",
    ] {
        ensure!(told.contains(text), "no {text:?} in {told}");
    }
    let told = lab.why(granted)?;
    for text in ["granted to nobody on titan01 by root", "the paper is due"] {
        ensure!(told.contains(text), "no {text:?} in {told}");
    }
    let told = lab.why(NODE)?;
    ensure!(told.contains("set to warn by root: nobody can be asked"), "{told}");
    let told = lab.why(&p.child)?;
    ensure!(told.contains("told to stop: its reservation ended"), "{told}");
    let export = lab.path("alone.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--file", &export])?;
    lab.run(&["audit", "verify", &export])?.ok().map(drop)
}

#[test]
fn a_change_of_a_window_waits_for_the_nodes_word() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("stood still", "a stopped process notices its own sleep");
    lab.expect_in_logs("may be old", "the agent was stopped with orders in its buffers");
    let mut steps = Steps::default();
    steps.step("cancelled, it counts as given until the node confirms", || unconfirmed(&lab));
    steps.step("moved, both places are taken until the node confirms", || moved(&lab));
    lab.conclude(steps)
}

fn moved(lab: &Lab) -> Result<()> {
    let id = reserve(lab, &["-G", "2", "--from", "+7h", "-t", "1h"])?;
    wait::until("the node has it on its disk", SOON, POLL_COMMAND, || {
        Ok(reservation(lab, &id)?["unconfirmed"].is_null().then_some(()))
    })?;
    let old = reservation(lab, &id)?;
    let set = ["reservation", "set", &id, "--from", "+10h", "--note", "later"];
    let tried = lab.run(&[&set[..], &["--dry-run"]].concat())?;
    tried.ends(0)?;
    ensure!(tried.stderr.contains("would change"), "{}", tried.stderr);
    ensure!(reservation(lab, &id)? == old, "a dry run changes nothing");
    lab.signal("agent", NODE, Signal::SIGSTOP)?;
    let checked = (|| {
        let ran = lab.run(&set)?;
        ran.ends(0)?;
        ensure!(ran.stderr.contains("waits for titan01"), "{}", ran.stderr);
        let now = reservation(lab, &id)?;
        ensure!(now["starts_at"] == old["starts_at"] && now["note"] == "later", "{now}");
        ensure!(now["next"]["node"] == NODE && now["revision"] == 2, "{now}");
        let listed = lab.run(&["reservation", "list", "-o", "wide"])?;
        ensure!(listed.stdout.contains("waits for titan01"), "{}", listed.stdout);
        for from in ["+7h", "+10h"] {
            lab.run(&["reserve", "-G", "1", "--from", from, "-t", "5m"])?.fails(6, &[&id])?;
        }
        Ok(())
    })();
    lab.signal("agent", NODE, Signal::SIGCONT)?;
    checked?;
    wait::until("the node confirms", LATER, POLL_COMMAND, || {
        let now = reservation(lab, &id)?;
        Ok((now["next"].is_null() && now["unconfirmed"].is_null()).then_some(()))
    })?;
    let now = reservation(lab, &id)?;
    ensure!(now["starts_at"] != old["starts_at"] && now["gpus"] == old["gpus"], "{now}");
    let told = lab.why(&id)?;
    for text in
        ["changed the reservation: time in", "waits for titan01", "the reservation moved to"]
    {
        ensure!(told.contains(text), "no {text:?} in {told}");
    }
    let at_its_old_time = reserve(lab, &["-G", "2", "--from", "+7h", "-t", "1h"])?;
    lab.run(&["reserve", "-G", "1", "--from", "+10h", "-t", "5m"])?.fails(6, &[&id])?;
    lab.run(&["release", "--yes", &id, &at_its_old_time])?.ends(0).map(drop)
}

fn unconfirmed(lab: &Lab) -> Result<()> {
    let id = reserve(lab, &["-G", "2", "--from", "+1h", "-t", "1h"])?;
    let longer = reserve(lab, &["-G", "2", "--from", "+4h", "-t", "1h"])?;
    for id in [&id, &longer] {
        wait::until("the node has it on its disk", SOON, POLL_COMMAND, || {
            Ok(reservation(lab, id)?["unconfirmed"].is_null().then_some(()))
        })?;
    }
    lab.signal("agent", NODE, Signal::SIGSTOP)?;
    let checked = (|| {
        let ran = lab.run(&["release", "--yes", &id])?;
        ran.ends(0)?;
        ensure!(ran.stderr.contains("count as given"), "{}", ran.stderr);
        ensure!(reservation(lab, &id)?["state"] == "cancelling");
        lab.run(&["reserve", "-G", "1", "--from", "+90m", "-t", "5m"])?.fails(6, &[&id])?;
        let ran = lab.run(&["extend", &longer, "-t", "30m"])?;
        ran.ends(0)?;
        ensure!(ran.stderr.contains("the old one holds"), "{}", ran.stderr);
        Ok(())
    })();
    lab.signal("agent", NODE, Signal::SIGCONT)?;
    checked?;
    wait::until("the node confirms", LATER, POLL_COMMAND, || {
        let (gone, long) = (reservation(lab, &id)?, reservation(lab, &longer)?);
        Ok((gone["state"] == "cancelled" && long["unconfirmed"].is_null()).then_some(()))
    })?;
    let again = reserve(lab, &["-G", "1", "--from", "+90m", "-t", "5m"])?;
    let ran = lab.run(&["release", "--yes", &longer, &again])?;
    ran.ends(0)?;
    ensure!(!ran.stderr.contains("given"), "at once, where the node is heard: {}", ran.stderr);
    wait::throughout("nothing comes back", Duration::from_secs(1), || {
        Ok(reservation(lab, &longer)?["state"] == "cancelled")
    })
}
