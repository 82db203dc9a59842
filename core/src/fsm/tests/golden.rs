//! The log of every released version gives the state it gave then: a follower of another version
//! must not diverge, and a replay after an upgrade must give the same audit hashes.
//!
//! `testdata/log-v1.jsonl` holds envelopes as version 1 wrote them, `testdata/snapshot-v1.json` the
//! state they lead to. A change that breaks this test needs a new cluster version that switches it
//! on, not new files.

use std::collections::BTreeSet;

use super::windows::grant;
use super::world::{World, bad, job, node, person, plain, res, sticky, training};
use crate::access::{AccessCommand, CertificateHolder, Login, Vouching};
use crate::actor::{Actor, Who};
use crate::allocation::AttemptEnd;
use crate::command::{
    AdmitController, Command, CreateControllerToken, CreateJoinToken, CreateReservation, Envelope,
    RefusedRequests, Report,
};
use crate::ending::{EndPolicy, EndingCommand, GpuHolder, HolderStep, WindowUse};
use crate::health::Severity;
use crate::id::TokenId;
use crate::image::ImageUsed;
use crate::job::JobSpec;
use crate::lease::Epoch;
use crate::limits::{LimitsCommand, ReservationLimits};
use crate::name::{GroupName, ProjectName};
use crate::node::{Liveness, MachineIdentity};
use crate::reboot::RebootCommand;
use crate::reservation::GpuRequest;
use crate::state::Fsm;
use crate::time::{Millis, Window};
use crate::window::{
    AHEAD_SINCE, ENFORCE_SINCE, Enforcement, EnforcementSwitch, TRANSFER_SAID_SINCE, WindowReport,
};

const LOG: &str = include_str!("../../../testdata/log-v1.jsonl");
const SNAPSHOT: &str = include_str!("../../../testdata/snapshot-v1.json");

#[test]
fn the_log_of_version_1_gives_the_state_it_gave() {
    let mut fsm = Fsm::new();
    let mut kinds = std::collections::BTreeSet::new();
    for (line, text) in LOG.lines().enumerate() {
        let envelope: Envelope = serde_json::from_str(text).unwrap();
        kinds.insert(envelope.command.name());
        fsm.apply(line as u64 + 1, &envelope);
    }
    assert_eq!(kinds.len(), 49, "the log holds every command: {kinds:?}");
    let now: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).unwrap();
    let then: serde_json::Value = serde_json::from_str(SNAPSHOT).unwrap();
    assert_eq!(now, then);
}

#[test]
fn the_snapshot_of_version_1_can_be_taken() {
    let fsm = Fsm::from_snapshot(SNAPSHOT.as_bytes()).unwrap();
    assert_eq!(fsm.applied(), LOG.lines().count() as u64);
}

#[test]
fn a_snapshot_from_the_future_or_a_damaged_one_is_refused() {
    let newer = SNAPSHOT.replacen("\"v\":1", "\"v\":2", 1);
    let error = Fsm::from_snapshot(newer.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
    assert!(Fsm::from_snapshot(&SNAPSHOT.as_bytes()[..SNAPSHOT.len() / 2]).is_err());
    assert!(Fsm::from_snapshot(b"").is_err());
}

/// Every command at least once, in a history that makes sense.
fn history() -> World {
    let mut w = World::at_version(&["titan01", "titan02", "titan03"], 1);
    let root = || person("root");
    w.give(Actor::controller(), Command::SetClusterVersion { version: 1 }).unwrap();
    w.reserve("ada", "r1", 2, Millis::ZERO, Millis::hours(4)).unwrap();
    w.reserve("bob", "r2", 1, Millis::hours(6), Millis::hours(1)).unwrap();
    let ends_at = w.now + Millis::hours(5);
    w.give(person("ada"), Command::ExtendReservation { id: res("r1"), ends_at }).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r1")), ..training() }).unwrap();
    w.submit("bob", "b", training()).unwrap();
    w.submit("bob", "c", plain(2)).unwrap();
    w.schedule();
    for name in ["a", "b", "c"] {
        let id = w.fsm.job(&job(name)).unwrap().allocation.clone().unwrap();
        w.start(&id);
    }
    let b = w.fsm.job(&job("b")).unwrap().allocation.clone().unwrap();
    let on = w.fsm.allocation(&b).unwrap().node.to_string();
    let index = w.fsm.gpu(&w.fsm.allocation(&b).unwrap().gpus[0]).unwrap().index;
    w.checkpoint(&b, 1, Millis::ZERO);
    w.conditions(&on, vec![bad(&on, index, Severity::Degraded)]);
    w.take_deferral(&b, 1);
    w.checkpoint(&b, 2, Millis::secs(1));
    w.end(&b, AttemptEnd::Exited { code: 0 });
    w.release(&on);
    w.schedule();
    w.give(person("bob"), Command::CancelJob { id: job("c") }).unwrap();
    let reason = "fans".to_owned();
    w.give(root(), Command::CordonNode { node: node("titan03"), reason: reason.clone() }).unwrap();
    w.give(root(), Command::DrainNode { node: node("titan03"), reason, deadline: None }).unwrap();
    w.give(root(), Command::UncordonNode { node: node("titan03") }).unwrap();
    let machine = MachineIdentity { machine_id: "m".to_owned(), dmi_uuid: String::new() };
    let token = TokenId::parse("token-1").unwrap();
    let wish = CreateJoinToken {
        id: token.clone(),
        secret_sha256: "0".repeat(64),
        names: vec![node("titan04")],
        ttl: Millis::hours(1),
    };
    w.give(root(), Command::CreateJoinToken(wish)).unwrap();
    let mut joining = super::world::agent("titan04");
    joining.method = crate::actor::AuthMethod::JoinToken;
    let redeem = Command::RedeemJoinToken { id: token, node: node("titan04"), machine };
    w.give(joining, redeem).unwrap();
    controllers(&mut w);
    let silent_for = Millis::secs(12);
    let silent =
        Command::SetLiveness { node: node("titan02"), liveness: Liveness::Suspect, silent_for };
    w.give(Actor::controller(), silent).unwrap();
    let reason = "two agents".to_owned();
    w.give(Actor::controller(), Command::SuspendNode { node: node("titan02"), reason }).unwrap();
    let refused = RefusedRequests {
        principal: "user:eve".to_owned(),
        action: "cancel_job".to_owned(),
        code: "denied".to_owned(),
        count: 3,
    };
    w.give(Actor::controller(), Command::RecordRefusals { refusals: vec![refused] }).unwrap();
    w.give(root(), Command::ThawEvictions).unwrap();
    let gpu = super::world::gpu("titan03", 3);
    w.give(root(), Command::DeclareGpuFree { gpu: gpu.clone(), reason: "swapped".to_owned() })
        .unwrap();
    w.conditions("titan03", vec![sticky("titan03", 3)]);
    w.give(root(), Command::ClearGpu { gpu, reason: "looked at".to_owned() }).unwrap();
    w.pass(Millis::hours(7));
    access(&mut w);
    w.give(person("bob"), Command::ReleaseReservation { id: res("r2") }).ok();
    let to = w.now - Millis::minutes(1);
    w.give(root(), Command::ResetClock { to }).unwrap();
    let (core, digest) = ("0123456789abcdef".to_owned(), Some("00".repeat(32)));
    w.give(Actor::controller(), Command::CheckState { index: 7, core, digest }).unwrap();
    ahead(&mut w);
    rotation(&mut w);
    enforcement(&mut w);
    ending(&mut w);
    images(&mut w);
    sharing(&mut w);
    shared_said(&mut w);
    reboots(&mut w);
    adoption(&mut w);
    limits(&mut w);
    images_of_dockerd(&mut w);
    clones(&mut w);
    renewals(&mut w);
    handed_over(&mut w);
    slow_starts(&mut w);
    w
}

/// One is admitted, and another that is removed again.
fn controllers(w: &mut World) {
    let first = super::controllers::first("10.0.0.1:7443");
    w.give(Actor::controller(), Command::AdmitController(first)).unwrap();
    let token = TokenId::parse("token-2").unwrap();
    let (id, secret_sha256, ttl) = (token.clone(), "0".repeat(64), Millis::hours(1));
    let wish = CreateControllerToken { id, secret_sha256, ttl };
    w.give(person("root"), Command::CreateControllerToken(wish)).unwrap();
    let second = AdmitController {
        id: 2,
        address: "10.0.0.2:7443".to_owned(),
        token: Some(token),
        key_sha256: "1".repeat(64),
    };
    w.give(super::controllers::joining(), Command::AdmitController(second)).unwrap();
    w.give(person("root"), Command::RemoveController { id: 2 }).unwrap();
}

/// From cluster version 17 on: a start gives way to what was promised while it was being prepared.
fn slow_starts(w: &mut World) {
    let spec = || JobSpec { time_limit: Millis::minutes(30), ..plain(1) };
    let slow = |w: &mut World, name: &str, on: &str| {
        w.boot(on, "boot-1").unwrap();
        w.submit("ada", name, spec()).unwrap();
        let attempt = w.place(name, on, &[0]).unwrap();
        let starts_at = w.now + Millis::minutes(31);
        let gpus = GpuRequest { node: Some(node(on)), count: 4, ..Default::default() };
        let wish = CreateReservation {
            id: res(&format!("{name}-r")),
            owner: super::world::user("finn"),
            project: ProjectName::default_project(),
            gpus,
            window: Window { starts_at, ends_at: starts_at + Millis::minutes(10) },
            note: String::new(),
            at_end: None,
            with: BTreeSet::new(),
            adopts: false,
        };
        w.give(person("finn"), Command::CreateReservation(wish)).unwrap();
        w.now = w.now + Millis::minutes(10);
        w.start(&attempt);
        let limit = w.fsm.allocation(&attempt).unwrap().time_limit_at.unwrap();
        w.end(&attempt, AttemptEnd::Exited { code: 0 });
        w.release(on);
        limit.since(w.now)
    };
    assert_eq!(slow(w, "slow-1", "titan08"), Millis::minutes(30));
    let version = crate::allocation::PROMISED_AT_START_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    assert_eq!(slow(w, "slow-2", "titan09"), Millis::secs(20 * 60 + 30));
}

/// From cluster version 16 on: the node of a reservation learns when the reservation is given to somebody else.
fn handed_over(w: &mut World) {
    let give = |w: &mut World| {
        let (user, to) = (super::world::user("dora"), super::world::user("emil"));
        let reason = "has left".to_owned();
        let disable = AccessCommand::DisableUser { user, reason, transfer_to: Some(to) };
        w.give(person("root"), Command::Access(disable)).unwrap();
    };
    w.boot("titan07", "boot-1").unwrap();
    w.reserve("dora", "given-1", 1, Millis::hours(3), Millis::hours(1)).unwrap();
    give(w);
    let enable = AccessCommand::EnableUser { user: super::world::user("dora") };
    w.give(person("root"), Command::Access(enable)).unwrap();
    w.give(Actor::controller(), Command::SetClusterVersion { version: TRANSFER_SAID_SINCE })
        .unwrap();
    w.reserve("dora", "given-2", 1, Millis::hours(5), Millis::hours(1)).unwrap();
    give(w);
}

/// From cluster version 15 on: with which certificate a node asked is remembered until it shows what it got.
fn renewals(w: &mut World) {
    let version = crate::access::ASKED_WITH_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let with = |name: &str, serial: &str| {
        let serial = Some(serial.to_owned());
        Actor { serial, ..super::world::agent(name) }
    };
    for (name, first, second) in [("titan01", "1a", "1b"), ("titan02", "2a", "2b")] {
        for (asked_with, serial) in [("00", first), (first, second)] {
            let record = AccessCommand::RecordCertificate {
                serial: serial.to_owned(),
                holder: CertificateHolder::Node { name: node(name) },
                not_after: w.now + Millis::hours(24),
                via: None,
                // By what `rotation` left.
                authority: w.fsm.authorities().trusted()[0].pin.clone(),
            };
            w.give(with(name, asked_with), Command::Access(record)).unwrap();
        }
    }
    let facts = Box::new(w.fsm.node(&node("titan01")).unwrap().facts.clone());
    let register = Command::RegisterNode { node: node("titan01"), facts };
    w.give(with("titan01", "1b"), register).unwrap();
}

/// From cluster version 13 on: a clone of a node is not let in, neither by its token nor by a name that it has.
fn clones(w: &mut World) {
    let titan05 = || node("titan05");
    let id = TokenId::parse("token-3").unwrap();
    let (names, secret_sha256) = (vec![titan05()], "0".repeat(64));
    let wish = CreateJoinToken { id: id.clone(), secret_sha256, names, ttl: Millis::hours(1) };
    w.give(person("root"), Command::CreateJoinToken(wish)).unwrap();
    let machine = super::world::facts("titan01", 4, "boot-1").machine;
    let joining =
        Actor { method: crate::actor::AuthMethod::JoinToken, ..super::world::agent("titan05") };
    let redeem = Command::RedeemJoinToken { id, node: titan05(), machine: machine.clone() };
    w.give(joining, redeem).unwrap_err();
    let facts =
        Box::new(crate::node::NodeFacts { machine, ..super::world::facts("titan05", 4, "b") });
    let register = Command::RegisterNode { node: titan05(), facts };
    w.give(super::world::agent("titan05"), register).unwrap_err();
}

/// From cluster version 13 on: jobs run in images that dockerd has.
fn images_of_dockerd(w: &mut World) {
    let version = crate::image::DAEMON_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let spec = JobSpec { image: "docker-daemon:tools:2".to_owned(), ..plain(0) };
    w.submit("bob", "of-dockerd", spec).unwrap();
}

/// From cluster version 11 on: reservations have limits by group.
fn limits(w: &mut World) {
    let version = crate::limits::LIMITS_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let group = |name: &str| GroupName::parse(name).unwrap();
    let (gpus, length, ahead) = (Some(2), Some(Millis::days(3)), Some(Millis::days(14)));
    for (name, limits) in [
        ("students", ReservationLimits { gpus, length, ahead }),
        ("*", ReservationLimits::default()),
    ] {
        let set = LimitsCommand::Set { group: group(name), limits };
        w.give(person("root"), Command::Limits(set)).unwrap();
    }
    let remove = LimitsCommand::Remove { group: group("*") };
    w.give(person("root"), Command::Limits(remove)).unwrap();
    let (name, groups) = (super::world::user("ada"), [group("students")].into());
    let ada = Actor { who: Who::User { name, admin: false, groups }, ..person("ada") };
    w.give(ada, Command::ReleaseReservation { id: res("r10") }).unwrap();
}

/// From cluster version 10 on: a reservation takes over what runs on its GPUs.
fn adoption(w: &mut World) {
    let version = crate::reservation::ADOPTION_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    w.pass(Millis::hours(2));
    let wish = CreateReservation {
        id: res("r10"),
        owner: super::world::user("ada"),
        project: ProjectName::default_project(),
        gpus: GpuRequest {
            count: 1,
            uuids: vec![super::world::gpu("titan01", 3)],
            ..GpuRequest::default()
        },
        window: Window { starts_at: w.now, ends_at: w.now + Millis::hours(1) },
        note: String::new(),
        at_end: None,
        with: BTreeSet::new(),
        adopts: true,
    };
    w.give(person("ada"), Command::CreateReservation(wish)).unwrap();
}

/// From cluster version 9 on: a node's report says which users share a window.
fn shared_said(w: &mut World) {
    let version = crate::window::SHARED_SAID_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let with = [super::world::user("bob")].into();
    let report = WindowReport { with, ..grant("r9", Millis::hours(300), Millis::hours(1)) };
    w.report("titan01", Report::Window(Box::new(report))).unwrap();
}

/// From cluster version 9 on: nodes reboot when they are empty, and what had not begun outlasts a reboot.
fn reboots(w: &mut World) {
    let ask = |name: &str| RebootCommand::Ask { node: node(name), reason: "kernel".to_owned() };
    for name in ["titan01", "titan02"] {
        w.give(person("root"), Command::Reboot(ask(name))).unwrap();
    }
    let problem = Some("no systemd".to_owned());
    w.report("titan02", Report::Reboot { since: w.now, problem }).unwrap();
    let cancel = RebootCommand::Cancel { node: node("titan01") };
    w.give(person("root"), Command::Reboot(cancel)).unwrap();
}

/// From cluster version 7 on: images come from registries.
fn images(w: &mut World) {
    let version = crate::image::REGISTRY_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let spec = JobSpec { image: "python:3.12".to_owned(), ..plain(0) };
    w.submit("ada", "pulled", spec).unwrap();
    let allocation = w.place("pulled", "titan01", &[]).unwrap();
    let (epoch, at) = (w.fsm.allocation(&allocation).unwrap().epoch, w.now);
    let note = Some("as pulled 3 minutes ago: registry docker.io does not answer".to_owned());
    let image = Some(ImageUsed { digest: format!("sha256:{}", "0a".repeat(32)), note });
    w.report("titan01", Report::Started { allocation, epoch, at, image }).unwrap();
}

/// From cluster version 8 on: a reservation is shared, until an account is closed.
fn sharing(w: &mut World) {
    let version = crate::reservation::SHARED_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let user = super::world::user;
    let starts_at = w.now + Millis::hours(200);
    let wish = CreateReservation {
        id: res("r8"),
        owner: user("ada"),
        project: ProjectName::default_project(),
        gpus: GpuRequest { count: 1, ..Default::default() },
        window: Window { starts_at, ends_at: starts_at + Millis::hours(1) },
        note: String::new(),
        at_end: None,
        with: [user("bob"), user("eve")].into(),
        adopts: false,
    };
    w.give(person("root"), Command::CreateReservation(wish)).unwrap();
    let (reason, transfer_to) = ("for the record".to_owned(), None);
    let close = AccessCommand::DisableUser { user: user("eve"), reason, transfer_to };
    w.give(person("root"), Command::Access(close)).unwrap();
}

/// From cluster version 6 on: windows end by rules.
fn ending(w: &mut World) {
    let version = crate::ending::ENDING_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    let (no_show, grace) = (Some(Millis::hours(1)), Some(Millis::minutes(5)));
    let set = EndingCommand::SetRules { at_end: Some(EndPolicy::Warn), no_show, grace };
    w.give(person("root"), Command::Ending(set)).unwrap();
    let at_end = EndPolicy::ExtendIfFree;
    let wish = CreateReservation {
        id: res("r5"),
        owner: super::world::user("ada"),
        project: ProjectName::default_project(),
        gpus: GpuRequest { count: 1, node: Some(node("titan01")), ..Default::default() },
        window: Window { starts_at: w.now, ends_at: w.now + Millis::hours(1) },
        note: String::new(),
        at_end: Some(EndPolicy::Stop),
        with: BTreeSet::new(),
        adopts: false,
    };
    w.give(person("ada"), Command::CreateReservation(wish)).unwrap();
    let own = EndingCommand::SetAtEnd { id: res("r5"), at_end };
    w.give(person("ada"), Command::Ending(own)).unwrap();
    for (seen, came) in [
        (WindowUse::Nobody { since_ms: Millis::secs(1) }, false),
        (WindowUse::Unclear, false),
        (WindowUse::Others, true),
        (WindowUse::Used, true),
    ] {
        w.report("titan01", Report::Use { reservation: res("r5"), seen, came }).unwrap();
    }
    w.pass(Millis::minutes(59));
    let holder = GpuHolder {
        gpu: super::world::gpu("titan01", 0),
        pid: 4711,
        uid: 1000,
        user: "ada".to_owned(),
        command: "python train.py".to_owned(),
    };
    let (step, holders) = (HolderStep::Asked, vec![holder]);
    w.report("titan01", Report::Holders { reservation: Some(res("r5")), step, holders }).unwrap();
}

/// From cluster version 5 on: nodes hold people to their reservations.
fn enforcement(w: &mut World) {
    let version = ENFORCE_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    for mode in [Enforcement::Warn, Enforcement::On] {
        let command = Command::EnforceNode { node: node("titan01"), mode };
        w.give(person("root"), command).unwrap();
    }
}

/// From cluster version 4 on: the authority is exchanged, and once more, which stays unfinished.
fn rotation(w: &mut World) {
    let version = crate::authority::ROTATION_SINCE;
    w.give(Actor::controller(), Command::SetClusterVersion { version }).unwrap();
    for (actor, command) in super::authority::a_whole_rotation_and_half_a_one() {
        w.give(actor, Command::Authority(command)).unwrap();
    }
}

/// The commands about who may come in.
fn access(w: &mut World) {
    let user = super::world::user;
    let certificate = |serial: &str, holder, via, not_after| AccessCommand::RecordCertificate {
        serial: serial.to_owned(),
        holder,
        not_after,
        via,
        authority: "pin-1".to_owned(),
    };
    let not_after = w.now + Millis::hours(12);
    let ada = || CertificateHolder::User { name: user("ada") };
    let titan = CertificateHolder::Node { name: node("titan01") };
    let login = Login {
        user: user("ada"),
        method: "local_socket".to_owned(),
        from: "socket".to_owned(),
        requests: 4,
    };
    let reason = || "for the record".to_owned();
    let agent = || super::world::agent("titan01");
    let all = [
        (agent(), certificate("0a", titan, None, not_after)),
        (agent(), certificate("0b", ada(), Some(node("titan01")), not_after)),
        (person("ada"), certificate("0c", ada(), None, not_after)),
        (Actor::controller(), AccessCommand::RecordLogins { logins: vec![login] }),
        (
            person("root"),
            AccessCommand::SetVouching { node: node("titan01"), vouching: Vouching::Admins },
        ),
        (person("ada"), AccessCommand::RevokeUser { user: user("ada"), reason: reason() }),
        (person("root"), AccessCommand::RevokeNode { node: node("titan01"), reason: reason() }),
        (
            person("root"),
            AccessCommand::DisableUser {
                user: user("bob"),
                reason: reason(),
                transfer_to: Some(user("ada")),
            },
        ),
        (person("root"), AccessCommand::EnableUser { user: user("bob") }),
        (person("root"), AccessCommand::RemoveNode { node: node("titan03"), reason: reason() }),
    ];
    for (actor, command) in all {
        w.give(actor, Command::Access(command)).unwrap();
    }
}

fn import(name: &str) -> Command {
    let starts_at = super::world::START + Millis::hours(40);
    let line = CreateReservation {
        id: res(name),
        owner: super::world::user("ada"),
        project: ProjectName::default_project(),
        gpus: GpuRequest { count: 1, ..Default::default() },
        window: Window { starts_at, ends_at: starts_at + Millis::hours(1) },
        note: "from the spreadsheet".to_owned(),
        at_end: None,
        with: BTreeSet::new(),
        adopts: false,
    };
    Command::ImportReservations { reservations: vec![line], import: None }
}

/// From cluster version 3 on: imports, windows in their nodes' hands, and what a node says that was alone.
fn ahead(w: &mut World) {
    w.give(Actor::controller(), Command::SetClusterVersion { version: AHEAD_SINCE }).unwrap();
    w.reserve("ada", "r3", 1, Millis::hours(1), Millis::hours(1)).unwrap();
    w.agents_answer = false;
    w.give(person("ada"), Command::ReleaseReservation { id: res("r3") }).unwrap();
    w.give(person("ada"), import("r4")).unwrap();
    let grant = super::windows::grant("g", Millis::hours(6), Millis::hours(2));
    w.report("titan01", Report::Window(Box::new(grant))).unwrap();
    let (by, reason) = ("root".to_owned(), "nobody can be asked".to_owned());
    let switch = EnforcementSwitch { mode: Enforcement::Warn, by, reason, at: w.now };
    w.report("titan01", Report::Enforcement(switch)).unwrap();
    let id = w.fsm.job(&job("c")).unwrap().allocation.clone().unwrap();
    let a = w.fsm.allocation(&id).unwrap().clone();
    let why = crate::allocation::StopWhy::TimeLimit;
    let stopped = Report::StoppedAlone { allocation: id, epoch: Epoch::default(), why, at: w.now };
    w.report(a.node.as_str(), stopped).unwrap();
}

/// Writes the files of a new version. Never run to make a failing test pass.
#[test]
#[expect(clippy::disallowed_methods, reason = "makes the files of a new version, when asked to")]
fn make_golden_files_when_asked() {
    let w = history();
    let Some(folder) = std::env::var_os("FLEET_MAKE_GOLDEN") else { return };
    let folder = std::path::PathBuf::from(folder);
    let log: String = w.log.iter().map(|(_, e)| serde_json::to_string(e).unwrap() + "\n").collect();
    std::fs::write(folder.join("log-v1.jsonl"), log).unwrap();
    std::fs::write(folder.join("snapshot-v1.json"), w.fsm.to_snapshot()).unwrap();
}
