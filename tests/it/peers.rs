//! Peers that should not be believed: wrong certificates, two agents under one name, messages that are too
//! large, requests that come twice, nodes that may not join.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_controller::pki::{Authority, SigningRequest};
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_proto::transport::keys::OwnKey;
use fleet_proto::transport::{Credentials, Dialer, SharedCredentials};
use fleet_proto::v1;
use fleet_proto::v1::agents_client::AgentsClient;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// More than a user's message may have.
const TOO_LARGE_BYTES: usize = 9 << 20;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The controller's address and its authority, read from its own files.
struct Fleet {
    address: String,
    authority: Authority,
}

impl Fleet {
    fn of(lab: &Lab) -> Result<Self> {
        let config: toml::Table =
            fs::read_to_string(&lab.dev_file()?.process("controller", "1")?.config)?.parse()?;
        let text = |key: &str| config.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let data = text("data_dir").context("data_dir")?;
        Ok(Self {
            address: text("listen").context("listen")?,
            authority: Authority::load(&Path::new(&data).join("pki"))?,
        })
    }

    /// A channel with a certificate by `authority` for a node or a user, made at `at`.
    fn channel(
        &self,
        authority: &Authority,
        who: Who<'_>,
        at: Timestamp,
    ) -> Result<(Dialer, Channel)> {
        let key = OwnKey::generate()?;
        let request = SigningRequest::parse(&key.signing_request()?)?;
        let issued = match who {
            Who::Node(name) => authority.issue_node(&request, &NodeName::parse(name)?, at)?,
            Who::User(name) => authority.issue_user(
                &request,
                &UserName::parse(name)?,
                Duration::from_secs(3600),
                at,
            )?,
        };
        let chain = fleet_proto::transport::keys::certificate_pem(&issued.certificate_der);
        let ca = self.authority.certificate_pem();
        let chain = format!("{chain}{}", authority.certificate_pem());
        let credentials = Credentials::from_pem(
            chain.as_bytes(),
            key.to_pem().expose().as_bytes(),
            ca.as_bytes(),
        )?;
        let dialer = Dialer::new(vec![self.address.parse()?], SharedCredentials::new(credentials)?);
        // Made where tasks can run; it connects at the first call.
        let channel = runtime().block_on(async { dialer.channel() });
        Ok((dialer, channel))
    }
}

#[derive(Clone, Copy)]
enum Who<'a> {
    Node(&'a str),
    User(&'a str),
}

/// One for all: a channel lives on the one it was made on.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().expect("a runtime can be made"))
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()
        .block_on(async { tokio::time::timeout(SOON, future).await.context("no answer in time")? })
}

#[test]
fn peers_that_should_not_be_believed() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("refused", "the test knocks with bad certificates");
    lab.expect_in_logs("under one name", "the test starts a second agent");
    lab.expect_in_logs("no link to a controller", "the second agent is turned away");
    lab.expect_in_logs("suspended", "the test starts a second agent");
    let fleet = Fleet::of(&lab)?;
    let mut steps = Steps::default();
    steps.step("a certificate of another fleet", || other_fleet(&lab, &fleet));
    steps.step("an expired certificate", || expired(&fleet));
    steps.step("a right certificate in the wrong place", || wrong_role(&fleet));
    steps.step("the audit log says who was turned away", || turned_away(&lab));
    steps.step("no TLS at all", || plain_text(&fleet));
    steps.step("a message over the limit", || too_large(&fleet));
    steps.step("a request that comes twice", || twice(&lab, &fleet));
    steps.step("a node may not join with a wrong token, pin or name", || joins(&lab));
    steps.step("two agents under one name", || two_agents(&lab));
    steps.step("after all that the fleet works", || {
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0)?;
        lab.gpus_free(4, SOON)
    });
    lab.conclude(steps)
}

async fn status(channel: Channel) -> Result<v1::Status, Status> {
    FleetClient::new(channel)
        .get_status(v1::GetStatusRequest {})
        .await
        .map(tonic::Response::into_inner)
}

fn other_fleet(lab: &Lab, fleet: &Fleet) -> Result<()> {
    let foreign = Authority::create(&lab.path("foreign-pki"), now())?;
    for who in [Who::User("root"), Who::Node("titan01")] {
        let (dialer, channel) = fleet.channel(&foreign, who, now())?;
        let answer = block_on(async { Ok(status(channel).await) })?;
        ensure!(answer.is_err(), "it was let in: {answer:?}");
        let why = dialer.last_error().context("no reason")?.to_string();
        // Our own client sees at once that this is not its fleet; the server's side of it has unit tests.
        ensure!(
            why.contains("refused this certificate") || why.contains("belongs to cluster"),
            "{why}"
        );
    }
    Ok(())
}

fn expired(fleet: &Fleet) -> Result<()> {
    let long_ago = Timestamp(now().0 - 40 * 24 * 3_600_000);
    let yesterday = Timestamp(now().0 - 2 * 24 * 3_600_000);
    for (who, at) in [
        (Who::User("root"), long_ago),
        (Who::Node("titan01"), long_ago),
        (Who::User("root"), yesterday),
    ] {
        let (_, channel) = fleet.channel(&fleet.authority, who, at)?;
        let answer = block_on(async { Ok(status(channel).await) })?;
        ensure!(answer.is_err(), "it was let in: {answer:?}");
    }
    // A node's that lately expired may renew itself, and nothing else.
    let (_, channel) = fleet.channel(&fleet.authority, Who::Node("titan01"), yesterday)?;
    let refused = block_on(async {
        let (_sender, receiver) = tokio::sync::mpsc::channel(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(AgentsClient::new(channel).sync(stream).await.err())
    })?;
    ensure!(refused.is_some(), "an expired node got a link");
    Ok(())
}

fn wrong_role(fleet: &Fleet) -> Result<()> {
    let (_, node) = fleet.channel(&fleet.authority, Who::Node("titan01"), now())?;
    let answer = block_on(async { Ok(status(node).await) })?;
    ensure!(
        answer.as_ref().is_err_and(|s| s.code() == Code::PermissionDenied),
        "a node as a user: {answer:?}"
    );
    let (_, user) = fleet.channel(&fleet.authority, Who::User("root"), now())?;
    let answer = block_on(async {
        let (_sender, receiver) = tokio::sync::mpsc::channel(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        Ok(AgentsClient::new(user).sync(stream).await.map(drop))
    })?;
    ensure!(
        answer.as_ref().is_err_and(|s| s.code() == Code::PermissionDenied),
        "a user as a node: {answer:?}"
    );
    let (_, user) = fleet.channel(&fleet.authority, Who::User("alice"), now())?;
    let answer = block_on(async { status(user).await.map_err(Into::into) })?;
    ensure!(answer.caller == "alice" && !answer.caller_is_admin, "{answer:?}");
    Ok(())
}

/// What was refused above is on record, whoever refused it: handshake, gate or service.
fn turned_away(lab: &Lab) -> Result<()> {
    let expected = [
        ("user:root", "speak_as_agent", "denied"),
        ("node:titan01", "speak_as_user", "denied"),
        ("node:titan01", "sync", "certificate_expired"),
        ("anonymous", "connect", "certificate_expired"),
    ];
    wait::until("the refusals are on record", SOON, wait::POLL_COMMAND, || {
        let lines = lab.output(&["audit", "export", "--format", "jsonl"])?;
        let mut found = std::collections::BTreeSet::new();
        for line in lines.lines() {
            let record: serde_json::Value = serde_json::from_str(line)?;
            let Some(events) = record["events"].as_array() else { continue };
            for refused in events.iter().filter_map(|event| event.get("requests_refused")) {
                let word = |key: &str| refused[key].as_str().unwrap_or_default().to_owned();
                found.insert((word("principal"), word("action"), word("code")));
            }
        }
        let own = |(a, b, c): &(&str, &str, &str)| (a.to_string(), b.to_string(), c.to_string());
        Ok(expected.iter().all(|line| found.contains(&own(line))).then_some(()))
    })
}

fn plain_text(fleet: &Fleet) -> Result<()> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(&fleet.address)?;
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

fn too_large(fleet: &Fleet) -> Result<()> {
    let (_, channel) = fleet.channel(&fleet.authority, Who::User("alice"), now())?;
    block_on(async {
        let mut api = FleetClient::new(channel);
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

fn twice(lab: &Lab, fleet: &Fleet) -> Result<()> {
    let (_, alice) = fleet.channel(&fleet.authority, Who::User("alice"), now())?;
    let (_, bob) = fleet.channel(&fleet.authority, Who::User("bob"), now())?;
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
    lab.output(&["release", &ids[0], &ids[1]])?;
    lab.gpus_free(4, SOON)
}

/// Runs `fleet-agent join` for a node that has a configuration of its own.
fn join(lab: &Lab, name: &str, address: &str, token: &str) -> Result<Ran> {
    let folder = lab.path(&format!("joining-{name}"));
    fs::create_dir_all(&folder)?;
    let config = folder.join("agent.toml");
    let own = |part: &str| folder.join(part).display().to_string();
    fs::write(
        &config,
        format!(
            "name = \"{name}\"\nstate_dir = \"{}\"\nrun_dir = \"{}\"\nmachine_id = \"{name}\"\n",
            own("state"),
            own("run")
        ),
    )?;
    let mut command = Command::new(programs::built("fleet-agent")?);
    command.args(["join", address, "--token", token, "--name", name, "--config"]).arg(&config);
    command::run(command, SOON)
}

fn joins(lab: &Lab) -> Result<()> {
    let created = lab.json(&["node", "token", "create", "--names", "titan07,titan08"])?;
    let token = created["token"].as_str().context("token")?.to_owned();
    let address = Fleet::of(lab)?.address;
    let refused = |name: &str, token: &str, said: &str| -> Result<()> {
        let ran = join(lab, name, &address, token)?;
        ensure!(ran.code() == 1, "{name} joined: {ran:?}");
        ensure!(ran.stderr.to_lowercase().contains(said), "{said:?}: {}", ran.stderr);
        ensure!(!ran.stderr.contains(token), "the token is in the output");
        Ok(())
    };
    let parts: Vec<&str> = token.split('.').collect();
    let [version, id, secret, pin] = parts.as_slice() else {
        bail!("the token has {} parts", parts.len())
    };
    let flip = |text: &str| {
        let first = text.chars().next().unwrap_or('a');
        format!("{}{}", if first == 'b' { 'c' } else { 'b' }, &text[first.len_utf8()..])
    };
    refused("titan09", &token, "name")?;
    refused("titan07", &[version, id, flip(secret).as_str(), pin].join("."), "token")?;
    refused("titan07", &[version, id, secret, flip(pin).as_str()].join("."), "")?;
    refused("titan07", "nonsense", "token")?;
    let ran = join(lab, "titan07", "127.0.0.1:1", &token)?;
    ensure!(ran.code() == 1 && ran.stderr.contains("127.0.0.1:1"), "{ran:?}");
    let ran = join(lab, "titan07", &address, &token)?;
    ensure!(ran.code() == 0, "the right one was refused: {ran:?}");
    // Another machine cannot take the name that has been used.
    fs::remove_dir_all(lab.path("joining-titan07/state"))?;
    let config = lab.path("joining-titan07/agent.toml");
    let text =
        fs::read_to_string(&config)?.replace("machine_id = \"titan07\"", "machine_id = \"other\"");
    fs::write(&config, text)?;
    let mut command = Command::new(programs::built("fleet-agent")?);
    command
        .args(["join", &address, "--token", &token, "--name", "titan07", "--config"])
        .arg(&config);
    let ran = command::run(command, SOON)?;
    ensure!(ran.code() == 1, "another machine took titan07: {ran:?}");
    Ok(())
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
