//! `fleet usage`: who held how many GPUs for how long, and how much of that was used, the same at every controller and by a
//! count of the audit log.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::ControlFile;
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
        let minutes = ["gpu", "history", "titan01:0", "--on", "today", "--minutes", "-o", "json"];
        let minutes = lab.run_as_nobody(&minutes)?.json()?;
        let named = |row: &Value| row["processes"].as_array().is_none_or(|all| !all.is_empty());
        ensure!(!items(&minutes)?.iter().any(named), "what others run is not shown: {minutes}");
        let own = lab.json(&["usage", "--mine"])?;
        ensure!(items(&own)?.len() == 2 && items(&own)?[0]["name"] == "root", "{own}");
        Ok(())
    });
    lab.conclude(steps)
}

#[test]
fn what_was_used_is_what_the_gpu_played() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    let mut played = Played::default();
    steps.step("agents report what they measured every two seconds", || report_often(&lab));
    steps.step("a GPU is busy, then idle, then its agent is away, then busy", || {
        played = play(&lab)?;
        Ok(())
    });
    steps.step("used, idle and unknown are what it played", || {
        all_reported(&lab)?;
        let seen = total(&lab)?;
        let near = |key: &str, wanted: u64| {
            let shown = ms(&seen, key)?;
            ensure!(
                shown.abs_diff(wanted) <= SLACK_MS,
                "{key}: not {wanted} ms, {played:?}: {seen}"
            );
            Ok(shown)
        };
        let three = near("used_gpu_ms", played.busy_ms)?
            + near("idle_gpu_ms", played.idle_ms)?
            + near("unknown_gpu_ms", played.held_ms - played.busy_ms - played.idle_ms)?;
        ensure!(three == ms(&seen, "held_gpu_ms")?, "{seen}");
        // A program was on it while it was idle and while it was busy.
        ensure!(ms(&seen, "occupied_gpu_ms")? <= SLACK_MS, "no program was on it: {seen}");
        Ok(())
    });
    steps.step("the minutes of the GPU are what it played", || minutes(&lab, &played));
    steps.step("a count of the audit log gives the same", || recounted(&lab).map(drop));
    steps.step("the next leader counts nothing twice", || {
        let before = total(&lab)?;
        let leader = lab.leader()?;
        let mut others = lab.controllers()?.into_iter().map(|controller| controller.id);
        let to = others.find(|id| *id != leader).context("another controller")?;
        lab.output(&["controller", "transfer-leadership", &to])?;
        ensure!(lab.leader_other_than(&leader, SOON)? == to);
        // As if no answer had come: the node says all of it again.
        lab.terminate("agent", "titan01")?;
        lab.has_ended("agent", "titan01", SOON)?;
        ensure!(!played.stored.is_empty(), "nothing was stored");
        for (path, text) in &played.stored {
            fs::write(path, text)?;
        }
        lab.restart("agent", "titan01")?;
        all_reported(&lab)?;
        ensure!(total(&lab)? == before, "{before}");
        Ok(())
    });
    lab.conclude(steps)
}

/// How far what is shown may be from what was played: a sample and a half at each of four changes, and the agent's start.
const SLACK_MS: u64 = 5_000;
/// How long each part of the curve is played: nothing is waited for, the time itself is what is measured.
const PART: Duration = Duration::from_secs(8);
/// In place of an hour, so that a test need not wait for one.
const OFTEN: (&str, &str) =
    ("sample_interval_ms = 500", "sample_interval_ms = 500\nuse_interval_s = 2");

/// What the test made of the time for which a GPU was held.
#[derive(Debug, Default)]
struct Played {
    held_ms: u64,
    busy_ms: u64,
    idle_ms: u64,
    reservation: String,
    gpu: String,
    /// The last files of it, before they were reported.
    stored: Vec<(PathBuf, String)>,
}

fn report_often(lab: &Lab) -> Result<()> {
    let config = lab.dev_file()?.process("agent", "titan01")?.config.clone();
    let text = fs::read_to_string(&config)?;
    ensure!(text.contains(OFTEN.0), "{text}");
    fs::write(&config, text.replace(OFTEN.0, OFTEN.1))?;
    lab.kill_and_restart("agent", "titan01")?;
    lab.gpus_free(2, SOON)
}

/// The GPU of a reservation is busy, idle, not watched and busy again.
fn play(lab: &Lab) -> Result<Played> {
    let control = ControlFile::new(lab.dev_file()?.node("titan01")?.gpu_control.clone());
    let set = |percent: u32| {
        control.update(|control| {
            for gpu in &mut control.gpus {
                gpu.faults.utilization_percent = Some(percent);
            }
        })
    };
    set(80)?;
    let held = Instant::now();
    let reservation = lab.output(&["reserve", "--gpu", "titan01:0", "-t", "1h"])?;
    thread::sleep(PART);
    set(0)?;
    let busy = held.elapsed();
    thread::sleep(PART);
    lab.terminate("agent", "titan01")?;
    lab.has_ended("agent", "titan01", SOON)?;
    let idle = held.elapsed() - busy;
    set(30)?;
    thread::sleep(PART);
    lab.restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)?;
    let again = Instant::now();
    thread::sleep(PART);
    let busy = busy + again.elapsed();
    lab.output(&["release", reservation.trim(), "--yes"])?;
    lab.gpus_free(2, SOON)?;
    let held = held.elapsed();
    lab.terminate("agent", "titan01")?;
    lab.has_ended("agent", "titan01", SOON)?;
    let stored = files(lab)?;
    lab.restart("agent", "titan01")?;
    let ms = |length: Duration| u64::try_from(length.as_millis()).context("too long");
    let (reservation, gpu) = (reservation.trim().to_owned(), "titan01:0".to_owned());
    let (held_ms, busy_ms, idle_ms) = (ms(held)?, ms(busy)?, ms(idle)?);
    Ok(Played { held_ms, busy_ms, idle_ms, reservation, gpu, stored })
}

/// What the agent keeps until a controller confirms it. A file that is replaced meanwhile is left out.
fn files(lab: &Lab) -> Result<Vec<(PathBuf, String)>> {
    let config = fs::read_to_string(&lab.dev_file()?.process("agent", "titan01")?.config)?;
    let line = config.lines().find_map(|line| line.strip_prefix("state_dir = "));
    let folder = PathBuf::from(line.context("state_dir")?.trim_matches('"')).join("gpu-use");
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
    Ok(paths
        .into_iter()
        .filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?)))
        .collect())
}

/// Nobody holds a GPU: once the controllers have confirmed all, no file is left.
fn all_reported(lab: &Lab) -> Result<()> {
    lab.node_in("titan01", "ready", SOON)?;
    wait::until("all is reported", SOON, POLL_COMMAND, || Ok(files(lab)?.is_empty().then_some(())))
}

/// What each minute was like adds up to the same, and a node that is away is named.
fn minutes(lab: &Lab, played: &Played) -> Result<()> {
    let gpu = played.gpu.as_str();
    let of_day = |day| ["gpu", "history", gpu, "--on", day, "--minutes"];
    let today = of_day("today");
    // It may have been played around midnight.
    let seen = [lab.json(&of_day("yesterday"))?, lab.json(&today)?];
    let mut rows: Vec<&Value> = Vec::new();
    for day in &seen {
        rows.extend(items(day)?);
    }
    let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
    let near = |key: &str, wanted: u64| {
        let shown = sum(key);
        ensure!(shown.abs_diff(wanted) <= SLACK_MS, "{key} {shown}, not {wanted} ms: {seen:?}");
        Ok(())
    };
    near("measured_ms", played.busy_ms + played.idle_ms)?;
    near("busy_ms", played.busy_ms)?;
    let holder = played.reservation.as_str();
    ensure!(rows.iter().all(|row| row["holder"] == holder && row["owner"] == "root"), "{seen:?}");
    ensure!(rows.iter().all(|row| row["measured_ms"].as_u64() <= Some(60_000)), "{seen:?}");
    let drawn = lab.output(&today[..5])?;
    ensure!(drawn.contains(":10       :20") && drawn.contains("nobody had it"), "{drawn}");
    ensure!(drawn.lines().all(|line| line.chars().count() <= 100), "{drawn}");
    lab.terminate("agent", "titan01")?;
    lab.has_ended("agent", "titan01", SOON)?;
    lab.run(&today)?.fails(5, &["titan01", "cannot be asked"])?;
    let stays = lab.run(&today[..5])?;
    ensure!(stays.ok()?.contains(holder), "who had it is known: {stays:?}");
    lab.restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)?;
    Ok(())
}

fn total(lab: &Lab) -> Result<Value> {
    let usage = lab.json(&["usage"])?;
    let total = items(&usage)?.last().context("no total")?.clone();
    // The window ends now: that alone differs from one report to the next.
    let keys = ["held_gpu_ms", "used_gpu_ms", "idle_gpu_ms", "unknown_gpu_ms", "occupied_gpu_ms"];
    Ok(keys.into_iter().map(|key| (key.to_owned(), total[key].clone())).collect())
}

fn ms(total: &Value, key: &str) -> Result<u64> {
    total[key].as_u64().with_context(|| format!("{key}: {total}"))
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

/// What `fleet usage` says, and what the script counted: it compares the two, to the millisecond.
fn recounted(lab: &Lab) -> Result<(Value, Value)> {
    // The export may lack what happens between the two: then both are taken again.
    let counted = wait::until("the audit log stands still", SOON, POLL_COMMAND, || {
        let before = lab.output(&["audit", "export", "--format", "jsonl"])?;
        let usage = lab.json(&["usage"])?;
        let after = lab.output(&["audit", "export", "--format", "jsonl"])?;
        let moves = [
            "job_placed",
            "reservation_started",
            "gpus_released",
            "window_opened_by_node",
            "gpu_use_measured",
        ];
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
    Ok((usage, command::run(count, SOON)?.json()?))
}

fn counted(lab: &Lab) -> Result<Value> {
    let (usage, count) = recounted(lab)?;
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
