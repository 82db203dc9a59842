//! The certificate authority is exchanged while a job runs: controllers, nodes and users move by themselves, who was
//! away comes back, and in the end the old authority is nothing any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_proto::transport::Dialer;
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::door::{Door, Whose, block_on, channel, now, status};

const DENIED: i32 = 4;
const CONTROLLERS: [&str; 3] = ["1", "2", "3"];
/// Asked over a controller's own socket, where no certificate is in the way.
const STATUS: [&str; 5] = ["controller", "ca", "status", "-o", "json"];

/// Over the socket of a controller: whichever answers.
fn by_socket(lab: &Lab, words: &[&str]) -> Result<Ran> {
    wait::until(&format!("an answer to {words:?}"), LATER, POLL_COMMAND, || {
        for id in CONTROLLERS {
            let ran = command::run(lab.command_at(id, words)?, SOON)?;
            if ran.code() == 0 {
                return Ok(Some(ran));
            }
        }
        Ok(None)
    })
}

/// How it stands, once that is `wanted`.
fn ca_status(lab: &Lab, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    wait::until(what, LATER, POLL_COMMAND, || {
        last = by_socket(lab, &STATUS)?.json()?;
        Ok(wanted(&last).then(|| last.clone()))
    })
    .with_context(|| format!("last seen: {last}"))
}

fn pki(lab: &Lab, id: &str) -> Result<PathBuf> {
    let config: toml::Table =
        fs::read_to_string(&lab.dev_file()?.process("controller", id)?.config)?.parse()?;
    let data = config.get("data_dir").and_then(toml::Value::as_str).context("data_dir")?;
    Ok(Path::new(data).join("pki"))
}

fn log_of(lab: &Lab, agent: &str) -> Result<String> {
    Ok(fs::read_to_string(&lab.dev_file()?.process("agent", agent)?.log)?)
}

fn token(lab: &Lab, name: &str) -> Result<String> {
    let made = lab.json(&["node", "token", "create", "--names", name])?;
    Ok(made["token"].as_str().context("token")?.to_owned())
}

/// `fleet-agent join` for `name`, with the settings of titan02's agent.
fn join(lab: &Lab, door: &Door, name: &str, token: &str, config: Option<&Path>) -> Result<Ran> {
    let file = lab.dev_file()?;
    let agent = file.process("agent", "titan02")?;
    let address = door.address.to_string();
    let mut join = Command::new(programs::built("fleet-agent")?);
    join.args(["join", &address, "--token", token, "--name", name, "--replace", "--config"]);
    join.arg(config.unwrap_or(&agent.config)).envs(&agent.env);
    command::run(join, SOON)
}

/// A node that only joins: its settings are titan02's with another folder, and as another machine.
fn join_apart(lab: &Lab, door: &Door, name: &str, token: &str) -> Result<Ran> {
    let file = lab.dev_file()?;
    let text = fs::read_to_string(&file.process("agent", "titan02")?.config)?;
    let mut config: toml::Table = text.parse()?;
    let state = lab.path(&format!("{name}-state"));
    config.insert("state_dir".to_owned(), state.to_string_lossy().into_owned().into());
    config.insert("name".to_owned(), name.into());
    config.insert("machine_id".to_owned(), format!("machine-of-{name}").into());
    let path = lab.path(&format!("{name}.toml"));
    fs::write(&path, config.to_string())?;
    join(lab, door, name, token, Some(&path))
}

/// Root's own certificate of the authority that signs now, for commands by address.
fn log_in(lab: &Lab) -> Result<()> {
    lab.know_all_controllers("1")
}

/// What is there before, and must be as it was afterwards.
struct Before {
    door: Door,
    job: String,
    attempt: Value,
    /// People and nodes with certificates of the first authority.
    user: Dialer,
    node: Dialer,
    signing: String,
    early_token: String,
}

#[test]
fn the_authority_is_exchanged_under_a_running_job() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 2, "v100-pcie:1")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("refused", "the test knocks with old certificates");
    lab.expect_in_logs("no link to a controller", "the test locks an agent out");
    lab.expect_in_logs("key did not come", "the test stops a controller that is asked for it");
    lab.expect_in_logs("the link closed", "the test locks an agent out");
    lab.expect_in_logs("failed to send HeartbeatProgress", "openraft says so when a leader stops");
    let mut steps = Steps::default();
    let mut found = None;
    steps.step("a job runs, an export is signed, certificates are in use", || {
        found = Some(before(&lab)?);
        Ok(())
    });
    let Some(before) = found else { return lab.conclude(steps) };
    steps.step("only admins may, and nothing is there to give up", || refusals(&lab));
    steps.step("nothing is signed while a controller is away, and it can be given up", || {
        spreading(&lab)
    });
    if !steps.all_held() {
        return lab.conclude(steps);
    }
    steps.step("both are trusted: who is there moves without a gap", || moving(&lab, &before));
    steps.step("nodes join meanwhile, by tokens of both authorities", || joining(&lab, &before));
    if !steps.all_held() {
        return lab.conclude(steps);
    }
    steps.step("another leader continues", || another_leader(&lab));
    steps.step("the node that was away comes back and moves; then the old one is nothing", || {
        finished(&lab, &before)
    });
    if !steps.all_held() {
        return lab.conclude(steps);
    }
    steps.step("a node that was away for all of it is locked out, and joins again", || {
        locked_out(&lab, &before)
    });
    steps.step("the job never noticed", || {
        let job = lab.job(&before.job)?;
        ensure!(job["state"] == "running" && job["attempt"] == before.attempt, "{job}");
        lab.output(&["cancel", &before.job])?;
        lab.job_ended(&before.job, LATER).map(drop)
    });
    lab.conclude(steps)
}

fn before(lab: &Lab) -> Result<Before> {
    lab.controllers_agree(3, LATER)?;
    log_in(lab)?;
    let door = Door::of(lab)?;
    let job = lab.submit(&["--node", "titan01"], &["sleep", "10000"])?;
    let attempt = lab.job_in(&job, "running", SOON)?["attempt"].clone();
    let export = lab.path("before.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--file", &export])?;
    let old = lab.path("old-ca.crt");
    fs::copy(pki(lab, "1")?.join("ca.crt"), &old)?;
    let user = door.peer(&door.authority, Whose::User("alice"), now())?;
    block_on(async { Ok(status(channel(&user)).await?) })?;
    let node = door.peer(&door.authority, Whose::Node("titan01"), now())?;
    let shown = ca_status(lab, "one authority", |s| s["stage"] == "settled")?;
    let signing = shown["signing"].as_str().context("signing")?.to_owned();
    ensure!(signing == door.authority.pin().to_string(), "{shown}");
    let early_token = token(lab, "titan03")?;
    Ok(Before { door, job, attempt, user, node, signing, early_token })
}

fn refusals(lab: &Lab) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let leader = lab.leader()?;
    for words in [["ca", "rotate"], ["ca", "abort"]] {
        let words = ["controller", words[0], words[1], "--yes"];
        let mut asked = lab.command_at(&leader, &words)?;
        asked.uid(65_534).gid(65_534);
        command::run(asked, SOON)?.fails(DENIED, &["an admin"])?;
    }
    let nothing = "the certificate authority: no exchange is under way";
    lab.run(&["controller", "ca", "abort", "--yes"])?.fails(5, &[nothing])?;
    lab.run(&["controller", "ca", "skip", "--users", "--yes"])?.fails(5, &[nothing])?;
    Ok(())
}

/// One that is no leader.
fn follower(lab: &Lab) -> Result<&'static str> {
    let leader = lab.leader()?;
    CONTROLLERS.into_iter().find(|id| **id != leader).context("a follower")
}

/// `fleet status` says it in one line.
fn said_by_status(lab: &Lab, how: &str) -> Result<()> {
    let status = lab.json(&["status"])?;
    let warnings = status["warnings"].to_string();
    ensure!(warnings.contains("is being exchanged") && warnings.contains(how), "{status}");
    Ok(())
}

fn spreading(lab: &Lab) -> Result<()> {
    lab.terminate("agent", "titan02")?;
    let away = follower(lab)?;
    lab.kill("controller", away)?;
    let rotate = ["controller", "ca", "rotate", "--yes"];
    lab.output(&rotate)?;
    let away_id: u64 = away.parse()?;
    let named = |s: &Value| s["controllers"][0]["id"] == away_id;
    let shown = ca_status(lab, "it waits for the controller that is away", named)?;
    ensure!(shown["stage"] == "spreading", "{shown}");
    said_by_status(lab, "spreading, waits for all controllers")?;
    let again = lab.run(&rotate)?.ok()?.to_owned();
    ensure!(again.contains(shown["also_trusted"].as_str().context("pin")?), "another one: {again}");
    lab.output(&["controller", "ca", "abort", "--yes"])?;
    let shown = ca_status(lab, "it is given up", |s| s["stage"] == "settled")?;
    // Again, and this time it comes back.
    lab.output(&rotate)?;
    let other = ca_status(lab, "begun again", |s| s["stage"] == "spreading")?;
    ensure!(other["signing"] == shown["signing"], "{other}");
    lab.restart("controller", away)
}

fn moving(lab: &Lab, before: &Before) -> Result<()> {
    let shown = ca_status(lab, "titan01 and all controllers have moved", |s| {
        s["stage"] == "moving"
            && s["nodes"] == serde_json::json!(["titan02"])
            && s["controllers"] == serde_json::json!([])
    })?;
    ensure!(shown["also_trusted"] == before.signing.as_str(), "{shown}");
    ensure!(shown["moved_nodes"] == 1 && shown["signing"] != before.signing.as_str(), "{shown}");
    ensure!(shown["user_certificates"].as_u64() > Some(0), "root's is of the old one: {shown}");
    said_by_status(lab, "moving, waits for nodes (1)")?;
    let said = log_of(lab, "titan01")?;
    ensure!(said.contains("linked with the new certificate"), "it has not moved over");
    ensure!(!said.contains("no link to a controller"), "there was a gap: {said}");
    // A certificate that the old authority signed still works.
    block_on(async { Ok(status(channel(&before.user)).await?) })?;
    lab.output(&["status"])?;
    let verify = |ca: &str, file: &Path| {
        let (ca, file) = (lab.path(ca), file.to_string_lossy().into_owned());
        lab.run(&["audit", "verify", "--ca", &ca.to_string_lossy(), &file])
    };
    verify("old-ca.crt", &lab.path("before.jsonl"))?.ok()?;
    Ok(())
}

fn joining(lab: &Lab, before: &Before) -> Result<()> {
    let late = token(lab, "titan04")?;
    let pin_of = |token: &str| token.rsplit_once('.').map(|(_, pin)| pin.to_owned());
    ensure!(pin_of(&before.early_token) == Some(before.signing.clone()), "the early token's pin");
    ensure!(pin_of(&late) != Some(before.signing.clone()), "the late token's pin");
    join_apart(lab, &before.door, "titan03", &before.early_token)?.ok()?;
    join_apart(lab, &before.door, "titan04", &late)?.ok()?;
    let shown = ca_status(lab, "both count as moved", |s| s["moved_nodes"] == 3)?;
    ensure!(shown["nodes"] == serde_json::json!(["titan02"]), "{shown}");
    Ok(())
}

fn another_leader(lab: &Lab) -> Result<()> {
    let leader = lab.leader()?;
    lab.kill("controller", &leader)?;
    lab.leader_other_than(&leader, LATER)?;
    lab.restart("controller", &leader)?;
    lab.controllers_agree(3, LATER)?;
    let shown = ca_status(lab, "all have moved", |s| s["controllers"] == serde_json::json!([]))?;
    ensure!(shown["stage"] == "moving" && shown["moved_nodes"] == 3, "{shown}");
    Ok(())
}

fn finished(lab: &Lab, before: &Before) -> Result<()> {
    by_socket(lab, &["controller", "ca", "skip", "--users", "--yes"])?;
    let shown = ca_status(lab, "only the node is waited for", |s| s["user_certificates"] == 0)?;
    ensure!(shown["stage"] == "moving" && shown["nodes"][0] == "titan02", "{shown}");
    let open = channel(&before.user);
    block_on(async { Ok(status(open.clone()).await?) })?;
    lab.restart("agent", "titan02")?;
    let shown = ca_status(lab, "the old one is given up", |s| s["stage"] == "settled")?;
    ensure!(shown["signing"] != before.signing.as_str(), "{shown}");
    wait::until("an open connection of the old one ends", SOON, POLL_COMMAND, || {
        Ok(block_on(async { Ok(status(open.clone()).await.is_err()) })?.then_some(()))
    })?;
    for old in [&before.user, &before.node] {
        let refused = block_on(async { Ok(status(channel(old)).await) })?;
        ensure!(refused.is_err(), "an old certificate is good for something");
    }
    // Even a caller that trusts the new authority and has the old one's key can make no certificates any more.
    for id in CONTROLLERS {
        wait::until("the old key is destroyed everywhere", SOON, POLL_COMMAND, || {
            Ok((!pki(lab, id)?.join("ca.key").exists()).then_some(()))
        })?;
    }
    let new = Door::of(lab)?;
    ensure!(new.authority.pin().to_string() == shown["signing"].as_str().context("pin")?);
    let forged = before.door.papers_for(&new, "root")?;
    ensure!(block_on(async { Ok(status(channel(&forged)).await) })?.is_err(), "it still signs");
    log_in(lab)?;
    lab.node_in("titan01", "ready", SOON)?;
    lab.node_in("titan02", "ready", SOON)?;
    let said = log_of(lab, "titan01")?;
    ensure!(said.matches("linked with the new certificate").count() >= 2, "it trusts the old one");
    let late = join_apart(lab, &new, "titan03", &before.early_token)?;
    let why = late.stderr.contains("exchanged its authority");
    ensure!(late.code() != 0 && why, "a token of the old one: {}", late.stderr);
    exports(lab)
}

/// Each export is checked with the authority that was, when it was made.
fn exports(lab: &Lab) -> Result<()> {
    let after = lab.path("after.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--file", &after])?;
    let text = fs::read_to_string(&after)?;
    for word in ["rotation_started", "rotation_aborted", "authority_signs", "rotation_finished"] {
        ensure!(text.contains(word), "{word} is not on record");
    }
    let leader = lab.leader()?;
    let (new, old) = (pki(lab, &leader)?.join("ca.crt"), lab.path("old-ca.crt"));
    let (new, old) = (new.to_string_lossy().into_owned(), old.to_string_lossy().into_owned());
    lab.output(&["audit", "verify", "--ca", &new, &after])?;
    let before = lab.path("before.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "verify", "--ca", &old, &before])?;
    lab.run(&["audit", "verify", "--ca", &old, &after])?.fails(1, &["signature"])?;
    Ok(())
}

fn locked_out(lab: &Lab, before: &Before) -> Result<()> {
    lab.terminate("agent", "titan02")?;
    lab.output(&["controller", "ca", "rotate", "--yes"])?;
    // Two that joined and were never started are in the way as well.
    let away = ["titan02", "titan03", "titan04"];
    ca_status(lab, "they are waited for", |s| s["nodes"] == serde_json::json!(away))?;
    lab.run(&["controller", "ca", "skip", "titan09", "--yes"])?.fails(3, &["titan09"])?;
    let skip = ["controller", "ca", "skip", away[0], away[1], away[2], "--users", "--yes"];
    by_socket(lab, &skip)?;
    ca_status(lab, "it continued without", |s| s["stage"] == "settled")?;
    log_in(lab)?;
    lab.restart("agent", "titan02")?;
    wait::until("its agent says why it is out", LATER, POLL_COMMAND, || {
        let said = log_of(lab, "titan02")?;
        Ok(said.contains("not issued by an authority that is trusted here").then_some(()))
    })?;
    let door = Door::of(lab)?;
    let again = token(lab, "titan02")?;
    join(lab, &door, "titan02", &again, None)?.ok()?;
    lab.signal("agent", "titan02", Signal::SIGHUP)?;
    lab.node_in("titan02", "ready", LATER)?;
    lab.node_in("titan01", "ready", SOON)?;
    ensure!(door.authority.pin().to_string() != before.signing);
    Ok(())
}
