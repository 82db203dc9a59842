//! Reservations whose GPUs compute nothing: who reads of it, where it is shown, and when they are released.
//!
//! The times are seconds here. The command takes none so short, so this asks the controller itself.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::ControlFile;
use fleet_proto::transport::unix;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_proto::v1::{RequestMeta, SetReservationRulesRequest};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::terminal::Terminal;
use fleet_tests::wait::{self, LATER, POLL_COMMAND};

use crate::door::{block_on, now};
use crate::enforcement::{LESSEE, NODE, STRANGER, reserve};

/// Longer than a release would take.
const NOT_RELEASED: Duration = Duration::from_secs(12);

#[test]
fn idle_reservations_are_seen_while_they_last() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "titan-x:2")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps
        .step("the rules are shown, and refused where nobody could read a warning", || rules(&lab));
    steps.step("its users read that it is idle, and everybody sees it", || noticed(&lab));
    steps.step("it is released where the site wants that, and its users read when", || {
        released(&lab)
    });
    steps.step("a node that is not heard releases nothing, and counts again", || not_heard(&lab));
    steps.step("without controllers its users are warned, and nothing is released", || alone(&lab));
    lab.gpus_free(2, LATER)?;
    lab.conclude(steps)
}

fn rules(lab: &Lab) -> Result<()> {
    let rules = lab.json(&["reservation", "rules"])?;
    ensure!(rules["idle_after_ms"] == 3_600_000 && rules["idle_below_percent"] == 1, "{rules}");
    ensure!(rules["idle_release_ms"].is_null(), "{rules}");
    let refused = |flag: &str, time: &str, why: &str| {
        lab.run(&["reservation", "rules", flag, time])?.fails(2, &[flag, why]).map(drop)
    };
    refused("--idle-after", "14m", "at least 15m")?;
    refused("--idle-release", "74m", "at least 1h 15m")?;
    let set =
        ["reservation", "rules", "--idle-after", "2h", "--idle-release", "4h", "--idle-below", "5"];
    let shown = lab.output(&set)?;
    ensure!(shown.contains("5 %") && shown.contains("4h"), "{shown}");
    lab.output(&["reservation", "rules", "--idle-below", "1", "--idle-release", "never"])?;
    Ok(())
}

fn noticed(lab: &Lab) -> Result<()> {
    seconds(lab, 3, 0)?;
    compute(lab, [70, 70])?;
    let mut terminal = Terminal::of(LESSEE.1)?;
    let mut shared = Terminal::of(STRANGER.1)?;
    let id = reserve(lab, LESSEE, 0, &["-t", "1h", "--with", STRANGER.0, "--at-end", "stop"])?;
    let other = reserve(lab, LESSEE, 1, &["-t", "1h"])?;
    wait::throughout("it computes, so it is not idle", NOT_RELEASED / 2, || {
        Ok(shown(lab, &id)?["idle_since"].is_null())
    })?;
    compute(lab, [0, 70])?;
    let said = format!("fleet: Your reservation {id} of {NODE}:0 is idle: its GPUs have computed");
    let then = format!("`fleet release {id}` releases it now.");
    terminal.shows(&[&said, "It stays reserved until ", &then], LATER)?;
    let said = format!("fleet: {}'s reservation {id} of {NODE}:0 is idle", LESSEE.0);
    shared.shows(&[&said, "can release it."], LATER)?;
    let reservation = shown(lab, &id)?;
    ensure!(reservation["idle_since"].is_string(), "{reservation}");
    ensure!(reservation["idle_release_at"].is_null(), "{reservation}");
    ensure!(lab.output(&["reservation", "list"])?.contains("idle 0m"));
    ensure!(lab.output(&["reservation", "show", &id])?.contains("since "));
    ensure!(lab.why(&id)?.contains("reservation of daemon is idle: its GPUs on titan01 computed"));
    ensure!(shown(lab, &other)?["idle_since"].is_null(), "the other one computes");
    compute(lab, [70, 70])?;
    wait::until("it is busy again", LATER, POLL_COMMAND, || {
        Ok(shown(lab, &id)?["idle_since"].is_null().then_some(()))
    })?;
    let story = lab.why(&id)?;
    ensure!(story.matches("is idle").count() == 1, "{story}");
    ensure!(story.matches("compute again").count() == 1, "{story}");
    for id in [id, other] {
        lab.output(&["release", "--yes", &id])?;
    }
    Ok(())
}

fn released(lab: &Lab) -> Result<()> {
    lab.gpus_free(2, LATER)?;
    seconds(lab, 3, 10)?;
    compute(lab, [0, 70])?;
    let mut terminal = Terminal::of(LESSEE.1)?;
    let id = reserve(lab, LESSEE, 0, &["-t", "1h"])?;
    let other = reserve(lab, LESSEE, 1, &["-t", "1h"])?;
    let begun = Instant::now();
    let said = format!("Your reservation {id} of {NODE}:0 is idle");
    terminal.shows(&[&said, "If it stays idle, it is released at "], LATER)?;
    in_state(lab, &id, "ended")?;
    ensure!(begun.elapsed() >= Duration::from_secs(9), "after {:?}", begun.elapsed());
    let reservation = shown(lab, &id)?;
    ensure!(reservation["reason"] == "idle for 10s", "{reservation}");
    let story = lab.why(&id)?;
    ensure!(story.contains("released: its GPUs on titan01 computed nothing for 10s"), "{story}");
    ensure!(shown(lab, &other)?["state"] == "active", "one that computes stays");
    lab.output(&["release", "--yes", &other])?;
    Ok(())
}

/// For longer than it may be idle.
fn stays_active(lab: &Lab, id: &str) -> Result<()> {
    wait::throughout(
        "it is not released",
        NOT_RELEASED,
        || Ok(shown(lab, id)?["state"] == "active"),
    )
}

fn not_heard(lab: &Lab) -> Result<()> {
    lab.gpus_free(2, LATER)?;
    let id = reserve(lab, LESSEE, 0, &["-t", "1h"])?;
    idle(lab, &id)?;
    lab.kill("agent", NODE)?;
    stays_active(lab, &id)?;
    // Somebody works while nobody is watching, and stays there.
    compute(lab, [70, 70])?;
    lab.restart("agent", NODE)?;
    lab.node_in(NODE, "ready", LATER)?;
    stays_active(lab, &id)?;
    let reservation = shown(lab, &id)?;
    ensure!(
        reservation["state"] == "active" && reservation["idle_since"].is_null(),
        "{reservation}"
    );
    compute(lab, [0, 0])?;
    in_state(lab, &id, "ended")
}

fn alone(lab: &Lab) -> Result<()> {
    lab.gpus_free(2, LATER)?;
    compute(lab, [70, 70])?;
    let mut terminal = Terminal::of(LESSEE.1)?;
    let id = reserve(lab, LESSEE, 0, &["-t", "1h"])?;
    lab.kill("controller", "1")?;
    thread::sleep(ALONE);
    compute(lab, [0, 0])?;
    let said = format!("Your reservation {id} of {NODE}:0 is idle");
    terminal
        .shows(&[&said, "No controller answers. Until one does it stays reserved, to"], LATER)?;
    thread::sleep(NOT_RELEASED);
    compute(lab, [70, 70])?;
    thread::sleep(Duration::from_secs(3));
    lab.restart("controller", "1")?;
    lab.node_in(NODE, "ready", LATER)?;
    // It computes again since before they came back.
    stays_active(lab, &id)?;
    lab.output(&["release", "--yes", &id])?;
    in_state(lab, &id, "ended")
}

/// The agent takes itself for alone a little later than this.
const ALONE: Duration = Duration::from_secs(15);

/// Sets after how many seconds a reservation is idle, and released; none: never.
fn seconds(lab: &Lab, after: u64, release: u64) -> Result<()> {
    let config = fs::read_to_string(&lab.dev_file()?.process("controller", "1")?.config)?;
    let config: toml::Table = config.parse()?;
    let socket = config.get("socket").and_then(toml::Value::as_str).context("socket")?;
    let made_at_unix_ms = now().0;
    let request_id = format!("00000000-0000-4000-8000-{made_at_unix_ms:012x}");
    let request = SetReservationRulesRequest {
        meta: Some(RequestMeta { request_id, made_at_unix_ms }),
        idle_after_ms: Some(after * 1_000),
        idle_release_ms: Some(release * 1_000),
        ..SetReservationRulesRequest::default()
    };
    block_on(async {
        let mut api = FleetClient::new(unix::channel(Path::new(socket)));
        api.set_reservation_rules(request).await?;
        Ok(())
    })
}

/// What the GPUs are said to do, in percent.
fn compute(lab: &Lab, percent: [u32; 2]) -> Result<()> {
    let control = ControlFile::new(lab.dev_file()?.node(NODE)?.gpu_control.clone());
    Ok(control.update(|control| {
        for (gpu, percent) in control.gpus.iter_mut().zip(percent) {
            gpu.faults.utilization_percent = Some(percent);
        }
    })?)
}

fn shown(lab: &Lab, id: &str) -> Result<serde_json::Value> {
    lab.json(&["reservation", "show", id])
}

fn idle(lab: &Lab, id: &str) -> Result<()> {
    wait::until("it is idle", LATER, POLL_COMMAND, || {
        Ok(shown(lab, id)?["idle_since"].is_string().then_some(()))
    })
}

fn in_state(lab: &Lab, id: &str, state: &str) -> Result<()> {
    wait::until(&format!("{id} is {state}"), LATER, POLL_COMMAND, || {
        Ok((shown(lab, id)?["state"] == state).then_some(()))
    })
    .with_context(|| lab.why(id).unwrap_or_default())
}
