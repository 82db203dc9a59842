//! Peers that should not be believed: no TLS, two agents under one name, messages that are too large, requests that come
//! twice. Those with the wrong papers have a table of their own, `strangers.rs`.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use tonic::Code;

use crate::door::{Door, Whose, block_on, channel, now};

/// More than a user's message may have.
const TOO_LARGE_BYTES: usize = 9 << 20;

#[test]
fn peers_that_should_not_be_believed() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("refused", "the test knocks with bad certificates");
    lab.expect_in_logs("under one name", "the test starts a second agent");
    lab.expect_in_logs("no link to a controller", "the second agent is turned away");
    lab.expect_in_logs("suspended", "the test starts a second agent");
    let door = Door::of(&lab)?;
    let mut steps = Steps::default();
    steps.step("no TLS at all", || plain_text(&door));
    steps.step("a message over the limit", || too_large(&door));
    steps.step("a request that comes twice", || twice(&lab, &door));
    steps.step("two agents under one name", || two_agents(&lab));
    steps.step("after all that the fleet works", || {
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0)?;
        lab.gpus_free(4, SOON)
    });
    lab.conclude(steps)
}

fn plain_text(door: &Door) -> Result<()> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(door.address.to_string())?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = Vec::new();
    // Closed or reset: both are a refusal.
    stream.read_to_end(&mut answer).ok();
    ensure!(answer.len() < 100 && !answer.starts_with(b"HTTP"), "{answer:?}");
    Ok(())
}

fn meta(id: &str) -> Option<v1::RequestMeta> {
    Some(v1::RequestMeta { request_id: id.to_owned(), made_at_unix_ms: now().0 })
}

fn too_large(door: &Door) -> Result<()> {
    let alice = channel(&door.peer(&door.authority, Whose::User("alice"), now())?);
    block_on(async {
        let mut api = FleetClient::new(alice);
        let note = "x".repeat(TOO_LARGE_BYTES);
        let request =
            v1::CreateReservationRequest { meta: meta("large"), note, ..Default::default() };
        let refused = api.create_reservation(request).await.err().context("it was taken")?;
        ensure!(
            [Code::OutOfRange, Code::ResourceExhausted].contains(&refused.code()),
            "{refused:?}"
        );
        // The connection is as good as before.
        api.get_status(v1::GetStatusRequest {}).await?;
        Ok(())
    })
}

fn reservation(id: &str, hours: u64) -> v1::CreateReservationRequest {
    v1::CreateReservationRequest {
        // The same body each time: the moment is part of it.
        meta: Some(v1::RequestMeta {
            request_id: id.to_owned(),
            made_at_unix_ms: now().0 / 600_000 * 600_000,
        }),
        gpus: Some(v1::GpuWish { count: 1, ..Default::default() }),
        length_ms: hours * 3_600_000,
        ..Default::default()
    }
}

fn twice(lab: &Lab, door: &Door) -> Result<()> {
    let alice = channel(&door.peer(&door.authority, Whose::User("alice"), now())?);
    let bob = channel(&door.peer(&door.authority, Whose::User("bob"), now())?);
    let ids = block_on(async {
        let (mut alice, mut bob) = (FleetClient::new(alice), FleetClient::new(bob));
        let request = reservation("again", 1);
        let first = alice.create_reservation(request.clone()).await?.into_inner();
        let second = alice.create_reservation(request.clone()).await?.into_inner();
        ensure!(first.id == second.id, "a retry made a second one: {} {}", first.id, second.id);
        let other = v1::CreateReservationRequest { length_ms: 7_200_000, ..request.clone() };
        let refused =
            alice.create_reservation(other).await.err().context("another body was taken")?;
        ensure!(refused.message().contains("used before"), "{refused:?}");
        let bobs = bob.create_reservation(request).await?.into_inner();
        ensure!(bobs.id != first.id && bobs.owner == "bob", "{bobs:?}");
        let nameless =
            alice.create_reservation(reservation("", 1)).await.err().context("no id was taken")?;
        ensure!(nameless.code() == Code::InvalidArgument, "{nameless:?}");
        Ok([first.id, bobs.id])
    })?;
    let list = lab.json(&["reservation", "list"])?;
    ensure!(list["items"].as_array().is_some_and(|items| items.len() == 2), "{list}");
    lab.output(&["release", "--yes", &ids[0], &ids[1]])?;
    lab.gpus_free(4, SOON)
}

fn two_agents(lab: &Lab) -> Result<()> {
    let file = lab.dev_file()?;
    let process = file.process("agent", "titan02")?;
    let twin = lab.path("twin");
    fs::create_dir(&twin)?;
    let copied = twin.join("state");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(&file.node("titan02")?.state_dir).arg(&copied);
    command::run(copy, SOON)?.ok()?;
    let config = fs::read_to_string(&process.config)?;
    let state = file.node("titan02")?.state_dir.display().to_string();
    let run = state.replace("/state", "/run");
    let config = config
        .replace(&state, &copied.display().to_string())
        .replace(&run, &twin.join("run").display().to_string());
    let path = twin.join("agent.toml");
    fs::write(&path, config)?;
    let mut command = Command::new(&process.argv[0]);
    command.args(["run", "--config"]).arg(&path).envs(&process.env);
    let mut second = command::start(command)?;
    let seen = lab.node_in("titan02", "suspended", SOON);
    let refused = lab.run(&["run", "-G", "1", "--node", "titan02", "--immediate", "--", "true"]);
    second.child.kill()?;
    let said = second.wait(SOON)?;
    seen.with_context(|| said.stderr.clone())?;
    refused?.fails(6, &[])?;
    ensure!(lab.output(&["node", "list"])?.contains("two"), "{}", lab.output(&["node", "list"])?);
    wait::until("it can be taken into use again", SOON, wait::POLL_COMMAND, || {
        lab.output(&["node", "uncordon", "titan02"])?;
        let node = lab.json(&["node", "show", "titan02"])?;
        Ok((node["state"] == "ready").then_some(()))
    })
}
