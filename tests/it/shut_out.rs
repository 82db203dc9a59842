//! Nodes and users that are shut out: revoked, disabled, removed. What ends at once, what still runs, and the way back.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_proto::transport::keys::OwnKey;
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use tonic::Code;

use crate::door::{Door, Whose, block_on, channel, now, status};

/// The user that is let in and shut out: an account of every machine that is not root.
const USER: &str = "nobody";
const USER_ID: u32 = 65_534;

#[test]
fn who_is_shut_out_is_out_at_once() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:1")? else { return Ok(()) };
    lab.expect_in_logs("refused", "the test knocks with bad certificates");
    lab.expect_in_logs("no link to a controller", "the test shuts an agent out");
    lab.expect_in_logs("cannot renew the certificate", "the test shuts an agent out");
    let door = Door::of(&lab)?;
    let mut steps = Steps::default();
    steps.step("a user who is shut out", || a_user(&lab, &door));
    steps.step("logins are in the audit log", || on_record(&lab));
    steps.step("a node with a new certificate", || renewed(&lab, &door));
    steps.step("a node that is revoked, and joins again", || a_node(&lab, &door));
    steps.step("a node that leaves", || leaving(&lab));
    steps.step("the audit chain holds", || {
        let file = lab.path("audit.jsonl");
        let file = file.display().to_string();
        lab.output(&["audit", "export", "--file", &file])?;
        lab.output(&["audit", "verify", &file]).map(drop)
    });
    lab.conclude(steps)
}

/// Logins and certificates are in the audit log, and who was turned away.
fn on_record(lab: &Lab) -> Result<()> {
    wait::until("logins, certificates and refusals are on record", SOON, POLL_COMMAND, || {
        let export = lab.output(&["audit", "export"])?;
        let words = ["user_logged_in", "certificate_issued", "account_disabled"];
        Ok(words.iter().all(|word| export.contains(word)).then_some(()))
    })
}

fn as_user(lab: &Lab, words: &[&str]) -> Result<command::Ran> {
    let mut command = lab.command(words);
    command.uid(USER_ID).gid(USER_ID);
    command::run(command, SOON)
}

fn a_user(lab: &Lab, door: &Door) -> Result<()> {
    as_user(lab, &["reserve", "-G", "1", "--from", "+2h", "-t", "1h"])?.ok()?;
    let listed = as_user(lab, &["user", "list", "-o", "json"])?.json()?;
    ensure!(listed["items"].as_array().is_some_and(|u| u.len() == 1), "others are seen: {listed}");
    // A user who is not shown others hears of the permission, not that nobody has that name.
    let disable = ["user", "disable", "root", "--reason", "x", "--yes"];
    as_user(lab, &disable)?.fails(4, &["permission denied", "an admin"])?;
    as_user(lab, &["user", "show", "root"])?.fails(4, &["permission denied", "an admin"])?;
    lab.run(&["user", "show", "nobody-has-this-name"])?.fails(3, &["nobody-has-this-name"])?;
    // Two certificates on record; an open stream on one of them.
    let key = OwnKey::generate()?;
    let root = door.vouched(&key)?;
    let stream = channel(&door.with(&key, &root.certificate_der)?);
    let job = lab.submit(&[], &["sleep", "1000"])?;
    lab.job_in(&job, "running", SOON)?;
    let mut output = block_on(async {
        let open = v1::AttachOpen { job: job.clone(), follow: true, ..Default::default() };
        let first = v1::AttachInput { input: Some(v1::attach_input::Input::Open(open)) };
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        sender.send(first).await?;
        let inputs = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let answer = FleetClient::new(stream.clone()).attach(inputs).await?;
        Ok((answer.into_inner(), sender))
    })?;
    lab.output(&["user", "revoke", "root", "--yes", "--reason", "laptop lost"])?;
    let ended = block_on(async {
        while let Ok(Some(_)) = output.0.message().await {}
        Ok(status(stream).await)
    });
    ensure!(ended?.is_err(), "the revoked certificate is still good");
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, LATER)?;
    // The account is closed: nothing by any way in, what was planned goes to somebody else.
    let words = ["user", "disable", USER, "--reason", "has left", "--transfer-to", "root", "--yes"];
    lab.output(&words)?;
    let refused = as_user(lab, &["status"])?;
    refused.fails(4, &["disabled by root: has left"])?;
    as_user(lab, &["reserve", "-G", "1"])?.fails(4, &["disabled"])?;
    let own = door.peer(&door.authority, Whose::User(USER), now())?;
    let answer = block_on(async { Ok(status(channel(&own)).await) })?;
    ensure!(answer.is_err_and(|s| s.code() == Code::PermissionDenied), "by a certificate it works");
    let given = lab.json(&["reservation", "list"])?;
    ensure!(given["items"][0]["owner"] == "root", "{given}");
    lab.run(&["user", "disable", "root", "--reason", "me", "--yes"])?.fails(2, &["own account"])?;
    let shown = lab.json(&["user", "show", USER])?;
    ensure!(shown["state"] == "disabled" && shown["reason"] == "has left", "{shown}");
    lab.output(&["user", "enable", USER])?;
    as_user(lab, &["status"])?.ok()?;
    lab.clear_away()
}

/// Puts a new certificate into the folder of titan02, as an administrator does it, and tells its agent.
fn join_again(lab: &Lab, door: &Door) -> Result<()> {
    let made = lab.json(&["node", "token", "create", "--names", "titan02"])?;
    let token = made["token"].as_str().context("token")?;
    let file = lab.dev_file()?;
    let agent = file.process("agent", "titan02")?;
    let address = door.address.to_string();
    let mut join = Command::new(programs::built("fleet-agent")?);
    join.args(["join", &address, "--token", token, "--name", "titan02", "--replace", "--config"]);
    join.arg(&agent.config).envs(&agent.env);
    command::run(join, SOON)?.ok()?;
    lab.signal("agent", "titan02", nix::sys::signal::Signal::SIGHUP)
}

/// It is taken up on the run: the link moves over, and what runs over the old connection is not cut off.
fn renewed(lab: &Lab, door: &Door) -> Result<()> {
    let job = lab.submit(&["-G", "1", "--node", "titan02"], &["sleep", "1000"])?;
    lab.job_in(&job, "running", SOON)?;
    let (begun, go) = (lab.path("begun"), lab.path("go"));
    let wait_for_it = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.05; done; echo over",
        begun.display(),
        go.display()
    );
    let inside = lab.command(&["exec", &job, "--", "sh", "-c", &wait_for_it]);
    let inside = command::start(inside)?;
    wait::eventually("the command runs", SOON, || Ok(begun.exists()))?;
    join_again(lab, door)?;
    let log = lab.dev_file()?.process("agent", "titan02")?.log.clone();
    wait::until("the link has moved over", SOON, wait::POLL, || {
        ensure!(lab.output(&["node", "list"])?.matches("ready").count() == 2, "it was lost");
        let said = std::fs::read_to_string(&log)?;
        Ok(said.contains("linked with the new certificate").then_some(()))
    })?;
    let said = std::fs::read_to_string(&log)?;
    ensure!(!said.contains("no link to a controller"), "there was a gap");
    std::fs::write(&go, "")?;
    let ran = inside.wait(SOON)?;
    ensure!(ran.ok()?.contains("over"), "{ran:?}");
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, LATER)?;
    lab.gpus_free(2, SOON)
}

fn a_node(lab: &Lab, door: &Door) -> Result<()> {
    let job = lab.submit(&["-G", "1", "--node", "titan02"], &["sleep", "1000"])?;
    lab.job_in(&job, "running", SOON)?;
    lab.run(&["node", "revoke", "titan09", "--reason", "x", "--yes"])?.fails(3, &["titan09"])?;
    lab.output(&["node", "revoke", "titan02", "--reason", "broken into", "--yes"])?;
    lab.node_in("titan02", "suspect", SOON)?;
    ensure!(lab.job(&job)?["state"] == "running", "what runs there is not touched");
    // With a new token it comes back, and its agent takes up the new certificate by itself.
    join_again(lab, door)?;
    lab.node_in("titan02", "ready", SOON)?;
    ensure!(lab.job(&job)?["state"] == "running", "it was there the whole time");
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, LATER)?;
    lab.gpus_free(2, SOON)
}

fn leaving(lab: &Lab) -> Result<()> {
    let job = lab.submit(&["-G", "1", "--node", "titan02"], &["sleep", "1000"])?;
    lab.job_in(&job, "running", SOON)?;
    let remove = ["node", "remove", "titan02", "--reason", "sold", "--yes"];
    lab.run(&remove)?.fails(5, &["in use", "alloc-"])?;
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, LATER)?;
    lab.gpus_free(2, SOON)?;
    lab.output(&remove)?;
    let listed = lab.output(&["node", "list"])?;
    ensure!(!listed.contains("titan02") && listed.contains("titan01"), "{listed}");
    // Its agent still runs and knocks; it stays outside.
    wait::until("its agent is turned away", SOON, POLL_COMMAND, || {
        Ok(lab.output(&["audit", "export"])?.contains("certificate_revoked").then_some(()))
    })?;
    ensure!(!lab.output(&["node", "list"])?.contains("titan02"), "it came back by itself");
    // Its story is still there, and that of its GPU; other commands do not mean them.
    let story = lab.why("titan02")?;
    ensure!(story.contains("was removed from the fleet ") && story.contains("sold"), "{story}");
    ensure!(story.contains(" by root: sold"), "{story}");
    let story = lab.why("titan02:0")?;
    ensure!(story.contains("was titan02:0 and is not in the fleet any more"), "{story}");
    ensure!(story.contains("titan02 was removed from the fleet "), "{story}");
    ensure!(story.contains(&job), "what ran on it: {story}");
    lab.run(&["why", "titan09"])?.fails(3, &["titan09"])?;
    lab.run(&["node", "show", "titan02"])?.fails(3, &["titan02"])?;
    Ok(())
}
