//! The log of every released version gives the state it gave then: a follower of another version
//! must not diverge, and a replay after an upgrade must give the same audit hashes.
//!
//! `testdata/log-v1.jsonl` holds envelopes as version 1 writes them, `testdata/snapshot-v1.json` the
//! state they lead to. Until 0.1 is released a change records them again, and the format gets another
//! name with them. From then on a change that breaks this test needs a new cluster version that switches
//! it on, not new files.

mod series;

use sha2::{Digest, Sha256};

use super::windows::grant;
use super::world::{World, bad, gpu, job, node, person, plain, res, sticky, training};
use crate::access::{CertificateHolder, Login, Vouching};
use crate::actor::{Actor, Who};
use crate::allocation::AttemptEnd;
use crate::audit::prune::{KEEP_MIN, Prune};
use crate::checkpoint::{CheckpointNote, Content, RestartFrom};
use crate::class::ClassChange;
use crate::command::{
    AccessCommand, AdmitController, AuditCommand, ClassCommand, ClusterCommand, Command,
    ControllerCommand, CreateControllerToken, CreateFeed, CreateJoinToken, CreateReservation,
    EndingCommand, Envelope, GpuCommand, JobCommand, JobDefaultsChange, KeptPlace, NodeCommand,
    Preempt, ProjectCommand, RebootCommand, RefusedRequests, Report, ReservationChange,
    ReservationCommand, TokenCommand,
};
use crate::ending::{EndPolicy, GpuHolder, HolderStep, WindowUse};
use crate::feed::FeedScope;
use crate::gpu::Presence;
use crate::health::Severity;
use crate::id::{FeedId, ImportId, TokenId};
use crate::image::ImageUsed;
use crate::job::JobSpec;
use crate::lease::Epoch;
use crate::name::{ClassName, GroupName, ProjectName};
use crate::node::{Liveness, MachineIdentity};
use crate::project::ProjectChange;
use crate::reservation::GpuRequest;
use crate::state::{FORMAT, Fsm};
use crate::time::{Millis, Window};
use crate::window::{Enforcement, EnforcementSwitch, WindowReport};

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
    assert_eq!(kinds.len(), 88, "the log holds every command: {kinds:?}");
    let now: serde_json::Value = serde_json::from_slice(&fsm.to_snapshot()).unwrap();
    let then: serde_json::Value = serde_json::from_str(SNAPSHOT).unwrap();
    assert_eq!(now, then);
}

/// The name of the format in which this log gives this state.
fn format_of(log: &str, fsm: &Fsm) -> String {
    let snapshot = String::from_utf8(fsm.to_snapshot()).unwrap();
    let (_, state) = snapshot.split_once("\"fsm\":").unwrap();
    hex::encode(Sha256::digest(format!("{log}{state}")))[..16].to_owned()
}

#[test]
fn the_format_has_the_name_of_what_is_recorded() {
    let fsm = Fsm::from_snapshot(SNAPSHOT.as_bytes()).unwrap();
    assert_eq!(FORMAT, format_of(LOG, &fsm), "record it again, see make_golden_files_when_asked");
}

#[test]
fn what_a_build_of_another_format_stored_is_refused_by_its_name() {
    for (format, found) in [("\"format\":\"0123\"", "0123"), ("\"before\":\"x\"", "none")] {
        let other = SNAPSHOT.replacen(&format!("\"format\":\"{FORMAT}\""), format, 1);
        let error = Fsm::from_snapshot(other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(&format!("is of format {found}")), "{error}");
        assert!(error.contains(&format!("reads format {FORMAT}")), "{error}");
    }
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

/// A reservation that moves, with all that there is to change.
fn edited(w: &mut World) {
    w.reserve("bob", "r2", 1, Millis::hours(6), Millis::hours(1)).unwrap();
    let change = ReservationChange {
        starts_at: Some(w.now + Millis::hours(8)),
        ends_at: Some(w.now + Millis::hours(9)),
        gpus: Some(GpuRequest { count: 2, ..GpuRequest::default() }),
        with: Some([super::world::user("ada")].into()),
        note: Some("moved".to_owned()),
    };
    let edit = ReservationCommand::Edit { id: res("r2"), change, seen: Some(1) };
    w.give(person("root"), Command::Reservation(edit)).unwrap();
}

/// A reservation that waits for its node to move.
fn waits_to_move(w: &mut World) {
    w.reserve_as(person("root"), "waits", 1, Millis::days(3), Millis::hours(1)).unwrap();
    w.agents_answer = false;
    let starts_at = Some(w.now + Millis::days(4));
    let change = ReservationChange { starts_at, ..ReservationChange::default() };
    let edit = ReservationCommand::Edit { id: res("waits"), change, seen: None };
    w.give(person("root"), Command::Reservation(edit)).unwrap();
}

/// Every command at least once, in a history that makes sense.
fn history() -> World {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let root = || person("root");
    w.give(Actor::controller(), Command::Cluster(ClusterCommand::SetVersion { version: 1 }))
        .unwrap();
    w.reserve("ada", "r1", 2, Millis::ZERO, Millis::hours(4)).unwrap();
    let ends_at = w.now + Millis::hours(5);
    w.give(
        person("ada"),
        Command::Reservation(ReservationCommand::Extend { id: res("r1"), ends_at }),
    )
    .unwrap();
    edited(&mut w);
    w.submit("ada", "a", JobSpec { reservation: Some(res("r1")), ..training() }).unwrap();
    w.submit("bob", "b", training()).unwrap();
    w.submit("bob", "c", plain(2)).unwrap();
    w.schedule();
    for name in ["a", "b", "c"] {
        let id = w.fsm.job(&job(name)).unwrap().allocation().cloned().unwrap();
        w.start(&id);
    }
    let b = w.fsm.job(&job("b")).unwrap().allocation().cloned().unwrap();
    let on = w.fsm.allocation(&b).unwrap().node.to_string();
    let index = w.fsm.gpu(&w.fsm.allocation(&b).unwrap().gpus[0]).unwrap().index;
    w.checkpoint(&b, 1, Millis::ZERO);
    w.conditions(&on, vec![bad(&on, index, Severity::Degraded)]);
    w.take_deferral(&b, 1);
    w.checkpoint(&b, 2, Millis::secs(1));
    w.end(&b, AttemptEnd::Exited { code: 0 });
    w.release(&on);
    w.schedule();
    w.give(person("bob"), Command::Job(JobCommand::Cancel { id: job("c") })).unwrap();
    cordoned(&mut w);
    joined(&mut w);
    controllers(&mut w);
    let silent_for = Millis::secs(12);
    let silent = Command::Node(NodeCommand::SetLiveness {
        node: node("titan02"),
        liveness: Liveness::Suspect,
        silent_for,
    });
    w.give(Actor::controller(), silent).unwrap();
    let reason = "two agents".to_owned();
    w.give(
        Actor::controller(),
        Command::Node(NodeCommand::Suspend { node: node("titan02"), reason }),
    )
    .unwrap();
    let refused = RefusedRequests {
        principal: "user:eve".to_owned(),
        action: "cancel_job".to_owned(),
        code: "denied".to_owned(),
        count: 3,
    };
    w.give(
        Actor::controller(),
        Command::Audit(AuditCommand::RecordRefusals { refusals: vec![refused] }),
    )
    .unwrap();
    w.give(root(), Command::Cluster(ClusterCommand::ThawEvictions)).unwrap();
    let gpu = super::world::gpu("titan03", 3);
    w.give(
        root(),
        Command::Gpu(GpuCommand::DeclareFree { gpu: gpu.clone(), reason: "swapped".to_owned() }),
    )
    .unwrap();
    w.conditions("titan03", vec![sticky("titan03", 3)]);
    w.give(root(), Command::Gpu(GpuCommand::Clear { gpu, reason: "looked at".to_owned() }))
        .unwrap();
    w.pass(Millis::hours(7));
    access(&mut w);
    w.give(person("bob"), Command::Reservation(ReservationCommand::Release { id: res("r2") })).ok();
    let to = w.now - Millis::minutes(1);
    w.give(root(), Command::Cluster(ClusterCommand::ResetClock { to })).unwrap();
    let (core, digest) = ("0123456789abcdef".to_owned(), Some("00".repeat(32)));
    w.give(
        Actor::controller(),
        Command::Cluster(ClusterCommand::CheckState { index: 7, core, digest }),
    )
    .unwrap();
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
    resumed(&mut w);
    administered(&mut w);
    reported_twice(&mut w);
    w
}

/// A card that another node has is reported, and does not count there.
fn reported_twice(w: &mut World) {
    let boot = w.fsm.node(&node("titan01")).unwrap().facts.boot_id.clone();
    let mut facts = super::world::facts("titan01", 4, &boot);
    let is_heard = |name| w.fsm.node(name).is_some_and(|n| n.liveness == Liveness::Ready);
    let mut others = w.fsm.gpus().values().filter(|gpu| gpu.node != node("titan01"));
    let card = others.find(|gpu| gpu.presence == Presence::Present && is_heard(&gpu.node));
    facts.gpus[3].uuid = card.unwrap().uuid.clone();
    w.report("titan01", Report::Facts { facts }).unwrap();
    assert_eq!(w.fsm.node(&node("titan01")).unwrap().facts.gpus.len(), 1);
    waits_to_move(w);
    super::notices::recorded(w);
}

/// A node is closed, emptied and opened again.
fn cordoned(w: &mut World) {
    let root = || person("root");
    let reason = "fans".to_owned();
    w.give(
        root(),
        Command::Node(NodeCommand::Cordon { node: node("titan03"), reason: reason.clone() }),
    )
    .unwrap();
    w.give(
        root(),
        Command::Node(NodeCommand::Drain { node: node("titan03"), reason, deadline: None }),
    )
    .unwrap();
    w.give(root(), Command::Node(NodeCommand::Uncordon { node: node("titan03") })).unwrap();
}

/// A machine joins with a token.
fn joined(w: &mut World) {
    let machine = MachineIdentity { machine_id: "m".to_owned(), dmi_uuid: String::new() };
    let token = TokenId::parse("token-1").unwrap();
    let wish = CreateJoinToken {
        id: token.clone(),
        secret_sha256: "0".repeat(64),
        names: vec![node("titan04")],
        ttl: Millis::hours(1),
    };
    w.give(person("root"), Command::Token(TokenCommand::ForNodes(wish))).unwrap();
    let mut joining = super::world::agent("titan04");
    joining.method = crate::actor::AuthMethod::JoinToken;
    let redeem = Command::Node(NodeCommand::Join { id: token, node: node("titan04"), machine });
    w.give(joining, redeem).unwrap();
}

/// One is admitted, and another that is removed again.
fn controllers(w: &mut World) {
    let first = super::controllers::first("10.0.0.1:7443");
    w.give(Actor::controller(), Command::Controller(ControllerCommand::Admit(first))).unwrap();
    let token = TokenId::parse("token-2").unwrap();
    let (id, secret_sha256, ttl) = (token.clone(), "0".repeat(64), Millis::hours(1));
    let wish = CreateControllerToken { id, secret_sha256, ttl };
    w.give(person("root"), Command::Token(TokenCommand::ForController(wish))).unwrap();
    let second = AdmitController {
        id: 2,
        address: "10.0.0.2:7443".to_owned(),
        token: Some(token),
        key_sha256: "1".repeat(64),
    };
    w.give(super::controllers::joining(), Command::Controller(ControllerCommand::Admit(second)))
        .unwrap();
    w.give(person("root"), Command::Controller(ControllerCommand::Remove { id: 2 })).unwrap();
}

/// A start gives way to what was promised while it was being prepared.
fn slow_starts(w: &mut World) {
    let spec = || JobSpec { time_limit: Millis::minutes(30), ..plain(1) };
    let slow = |w: &mut World, name: &str, on: &str| {
        w.boot(on, "boot-1").unwrap();
        w.submit("ada", name, spec()).unwrap();
        let attempt = w.place(name, on, &[0]).unwrap();
        let starts_at = w.now + Millis::minutes(31);
        let gpus = GpuRequest { node: Some(node(on)), count: 4, ..Default::default() };
        let wish = CreateReservation::plain(
            res(&format!("{name}-r")),
            super::world::user("finn"),
            gpus,
            Window { starts_at, ends_at: starts_at + Millis::minutes(10) },
        );
        w.give(person("finn"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
        w.now = w.now + Millis::minutes(10);
        w.start(&attempt);
        let limit = w.fsm.allocation(&attempt).unwrap().time_limit_at.unwrap();
        w.end(&attempt, AttemptEnd::Exited { code: 0 });
        w.release(on);
        limit.since(w.now)
    };
    assert_eq!(slow(w, "slow", "titan08"), Millis::secs(20 * 60 + 30));
}

/// The node of a reservation learns when the reservation is given to somebody else.
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
    w.reserve("dora", "given-2", 1, Millis::hours(5), Millis::hours(1)).unwrap();
    give(w);
}

/// With which certificate a node asked is remembered until it shows what it got.
fn renewals(w: &mut World) {
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
    let register = Command::Node(NodeCommand::Register { node: node("titan01"), facts });
    w.give(with("titan01", "1b"), register).unwrap();
}

/// A clone of a node is not let in, neither by its token nor by a name that it has.
fn clones(w: &mut World) {
    let titan05 = || node("titan05");
    let id = TokenId::parse("token-3").unwrap();
    let (names, secret_sha256) = (vec![titan05()], "0".repeat(64));
    let wish = CreateJoinToken { id: id.clone(), secret_sha256, names, ttl: Millis::hours(1) };
    w.give(person("root"), Command::Token(TokenCommand::ForNodes(wish))).unwrap();
    let machine = super::world::facts("titan01", 4, "boot-1").machine;
    let joining =
        Actor { method: crate::actor::AuthMethod::JoinToken, ..super::world::agent("titan05") };
    let redeem = Command::Node(NodeCommand::Join { id, node: titan05(), machine: machine.clone() });
    w.give(joining, redeem).unwrap_err();
    let facts =
        Box::new(crate::node::NodeFacts { machine, ..super::world::facts("titan05", 4, "b") });
    let register = Command::Node(NodeCommand::Register { node: titan05(), facts });
    w.give(super::world::agent("titan05"), register).unwrap_err();
}

/// Jobs run in images that dockerd has.
fn images_of_dockerd(w: &mut World) {
    let spec = JobSpec { image: "docker-daemon:tools:2".to_owned(), ..plain(0) };
    w.submit("bob", "of-dockerd", spec).unwrap();
}

/// Reservations have limits by group, and count for projects.
fn limits(w: &mut World) {
    super::limits::golden(w);
    projects(w);
    classes(w);
    super::approval::golden(w);
    super::offers::golden(w);
    let (name, groups) =
        (super::world::user("ada"), [GroupName::parse("students").unwrap()].into());
    let ada = Actor { who: Who::User { name, admin: false, groups }, ..person("ada") };
    w.give(ada, Command::Reservation(ReservationCommand::Release { id: res("r10") })).unwrap();
}

/// Classes, and a job that leaves for one of a higher class.
fn classes(w: &mut World) {
    let name = |name: &str| ClassName::parse(name).unwrap();
    let mut first = ClassChange { priority: Some(150), ..ClassChange::default() };
    first.people.add_members = [super::world::user("bob")].into();
    let change = ClassChange { min_run: Some(Millis::ZERO), ..ClassChange::default() };
    for command in [
        ClassCommand::Create { name: name("deadline"), first: Box::new(first.clone()) },
        ClassCommand::Create { name: name("spare"), first: Box::new(first) },
        ClassCommand::Remove { name: name("spare") },
        ClassCommand::Set { name: name("scavenger"), change: Box::new(change) },
    ] {
        w.give(person("root"), Command::Class(command)).unwrap();
    }
    w.boot("titan09", "boot-1").unwrap();
    let low = w.run("low", plain(4), "titan09", &[0, 1, 2, 3]);
    let lower = JobCommand::SetClass { id: job("low"), class: name("scavenger") };
    w.give(person("ada"), Command::Job(lower)).unwrap();
    let mut high = plain(1);
    high.gpus.node = Some(node("titan09"));
    w.submit("ada", "high", high).unwrap();
    let order = Preempt {
        job: job("high"),
        node: node("titan09"),
        gpus: vec![gpu("titan09", 0)],
        starts_at: w.now + Millis::minutes(3),
        victims: [(low, w.now)].into(),
    };
    w.give(Actor::controller(), Command::Job(JobCommand::Preempt(order))).unwrap();
    holds(w);
}

/// Jobs that are held: by an admin, and from their submission.
fn holds(w: &mut World) {
    w.submit("ada", "waits", plain(4)).unwrap();
    w.submit("ada", "held", JobSpec { hold: true, ..plain(4) }).unwrap();
    for (who, name) in [("root", "waits"), ("ada", "held"), ("root", "held")] {
        w.give(person(who), Command::Job(JobCommand::Hold { id: job(name) })).unwrap();
    }
    w.give(person("root"), Command::Job(JobCommand::ReleaseHold { id: job("waits") })).unwrap();
}

/// Projects, and use that fades.
fn projects(w: &mut World) {
    let name = |name: &str| ProjectName::parse(name).unwrap();
    let mut first = ProjectChange::default();
    first.people.add_members = [super::world::user("ada"), super::world::user("bob")].into();
    first.people.add_groups = [GroupName::parse("students").unwrap()].into();
    let mut change = ProjectChange { weight: Some(3), ..ProjectChange::default() };
    change.people.remove_members = [super::world::user("bob")].into();
    for command in [
        ProjectCommand::Create { name: name("vision"), first },
        ProjectCommand::Set { name: name("vision"), change },
        ProjectCommand::Create { name: name("speech"), first: ProjectChange::default() },
        ProjectCommand::Remove { name: name("speech") },
        ProjectCommand::SetHalfLife { half_life: Millis::days(14) },
    ] {
        w.give(person("root"), Command::Project(command)).unwrap();
    }
    let spec = JobSpec { project: name("vision"), ..plain(4) };
    w.submit("ada", "in-project", spec).unwrap();
    let kept = vec![KeptPlace { job: job("in-project"), starts_at: w.now + Millis::hours(3) }];
    let keep = JobCommand::KeepPlaces { kept, look_at: None };
    w.give(Actor::controller(), Command::Job(keep)).unwrap();
}

/// A reservation takes over what runs on its GPUs.
fn adoption(w: &mut World) {
    w.pass(Millis::hours(2));
    let wish = CreateReservation {
        adopts: true,
        ..CreateReservation::plain(
            res("r10"),
            super::world::user("ada"),
            GpuRequest {
                count: 1,
                uuids: vec![super::world::gpu("titan01", 3)],
                ..GpuRequest::default()
            },
            Window { starts_at: w.now, ends_at: w.now + Millis::hours(1) },
        )
    };
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
}

/// A node's report says which users share a window.
fn shared_said(w: &mut World) {
    let with = [super::world::user("bob")].into();
    let report = WindowReport { with, ..grant("r9", Millis::hours(300), Millis::hours(1)) };
    w.report("titan01", Report::Window(Box::new(report))).unwrap();
}

/// Nodes reboot when they are empty, and what had not begun outlasts a reboot. One says what it measured.
fn reboots(w: &mut World) {
    let ask = |name: &str| RebootCommand::Ask { node: node(name), reason: "kernel".to_owned() };
    for name in ["titan01", "titan02"] {
        w.give(person("root"), Command::Reboot(ask(name))).unwrap();
    }
    let problem = Some("no systemd".to_owned());
    w.report("titan02", Report::Reboot { since: w.now, problem }).unwrap();
    let cancel = RebootCommand::Cancel { node: node("titan01") };
    w.give(person("root"), Command::Reboot(cancel)).unwrap();
    super::gpu_use::measured_in_a_reservation(w);
}

/// Images come from registries.
fn images(w: &mut World) {
    let spec = JobSpec { image: "python:3.12".to_owned(), ..plain(0) };
    w.submit("ada", "pulled", spec).unwrap();
    let allocation = w.place("pulled", "titan01", &[]).unwrap();
    let (epoch, at) = (w.fsm.allocation(&allocation).unwrap().epoch, w.now);
    let note = Some("as pulled 3 minutes ago: registry docker.io does not answer".to_owned());
    let image = Some(ImageUsed { digest: format!("sha256:{}", "0a".repeat(32)), note });
    w.report("titan01", Report::Started { allocation, epoch, at, image }).unwrap();
}

/// A reservation is shared, until an account is closed.
fn sharing(w: &mut World) {
    let user = super::world::user;
    let starts_at = w.now + Millis::hours(200);
    let wish = CreateReservation {
        with: [user("bob"), user("eve")].into(),
        ..CreateReservation::plain(
            res("r8"),
            user("ada"),
            GpuRequest { count: 1, ..Default::default() },
            Window { starts_at, ends_at: starts_at + Millis::hours(1) },
        )
    };
    w.give(person("root"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    let (reason, transfer_to) = ("for the record".to_owned(), None);
    let close = AccessCommand::DisableUser { user: user("eve"), reason, transfer_to };
    w.give(person("root"), Command::Access(close)).unwrap();
}

/// Windows end by rules.
fn ending(w: &mut World) {
    let (no_show, grace, idle) = super::idle::golden_rules();
    let set = EndingCommand::SetRules { at_end: Some(EndPolicy::Warn), no_show, grace, idle };
    w.give(person("root"), Command::Ending(set)).unwrap();
    let wish = CreateReservation {
        at_end: Some(EndPolicy::Stop),
        ..CreateReservation::plain(
            res("r5"),
            super::world::user("ada"),
            GpuRequest { count: 1, node: Some(node("titan01")), ..Default::default() },
            Window { starts_at: w.now, ends_at: w.now + Millis::hours(1) },
        )
    };
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    let own = EndingCommand::SetAtEnd { id: res("r5"), at_end: EndPolicy::ExtendIfFree };
    w.give(person("ada"), Command::Ending(own)).unwrap();
    for (seen, came) in [
        (WindowUse::Nobody { since_ms: Millis::secs(1) }, false),
        (WindowUse::Unclear, false),
        (WindowUse::Others, true),
        (WindowUse::Used, true),
    ] {
        w.report("titan01", Report::Use { reservation: res("r5"), seen, came }).unwrap();
    }
    super::idle::golden(w);
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

/// Nodes hold people to their reservations.
fn enforcement(w: &mut World) {
    for mode in [Enforcement::Warn, Enforcement::On] {
        let command = Command::Node(NodeCommand::Enforce { node: node("titan01"), mode });
        w.give(person("root"), command).unwrap();
    }
}

/// The authority is exchanged, and once more, which stays unfinished.
fn rotation(w: &mut World) {
    for (actor, command) in super::authority::a_whole_rotation_and_half_a_one() {
        w.give(actor, Command::Authority(command)).unwrap();
    }
}

/// What a job saved is asked for, doubted and resumed from, and the job is removed at last.
fn resumed(w: &mut World) {
    w.boot("titan10", "boot-1").unwrap();
    w.submit("ada", "again", training()).unwrap();
    let first = w.place("again", "titan10", &[0]).unwrap();
    w.start(&first);
    w.checkpoint(&first, 1, Millis::ZERO);
    w.give(person("ada"), Command::Job(JobCommand::AskCheckpoint { id: job("again") })).unwrap();
    w.checkpoint(&first, 2, Millis::ZERO);
    let note = CheckpointNote::SharedDir { job: "job-other".to_owned() };
    w.report("titan10", Report::CheckpointNoted { allocation: first.clone(), note }).unwrap();
    let changed = Report::CheckpointChanged {
        allocation: first.clone(),
        seq: 2,
        attempt: None,
        content: Some(Content::Torn { why: "cut".to_owned() }),
        presence: None,
    };
    w.report("titan10", changed).unwrap();
    let set =
        Command::Job(JobCommand::SetTimeLimit { id: job("again"), time_limit: Millis::hours(9) });
    w.give(person("root"), set).unwrap();
    w.end(&first, AttemptEnd::Exited { code: 3 });
    w.release("titan10");
    let from = RestartFrom::Newest;
    let restart = Command::Job(JobCommand::Restart { id: job("again"), from, time_limit: None });
    w.give(person("ada"), restart).unwrap();
    let second = w.place("again", "titan10", &[0]).unwrap();
    w.start(&second);
    w.end(&second, AttemptEnd::Exited { code: 0 });
    w.release("titan10");
    w.give(person("ada"), Command::Job(JobCommand::Remove { id: job("again") })).unwrap();
    w.report("titan10", Report::FilesRemoved { job: job("again"), problem: None }).unwrap();
}

/// What admins do seldom.
fn administered(w: &mut World) {
    let root = || person("root");
    let defaults = Command::Job(JobCommand::SetDefaults(JobDefaultsChange {
        stop_after: Some(Millis::hours(1)),
        without_gpus_percent: Some(25),
        places_kept: Some(4),
    }));
    w.give(root(), defaults).unwrap();
    let (images, image) = (node("titan10"), Some("tools:2".to_owned()));
    w.give(root(), Command::Node(NodeCommand::RemoveImages { node: images, image })).unwrap();
    let token = TokenId::parse("token-4").unwrap();
    let (names, secret_sha256) = (vec![node("titan11")], "0".repeat(64));
    let ttl = Millis::hours(1);
    let wish = CreateJoinToken { id: token.clone(), secret_sha256, names, ttl };
    w.give(root(), Command::Token(TokenCommand::ForNodes(wish))).unwrap();
    w.give(root(), Command::Token(TokenCommand::Withdraw { token })).unwrap();
    let mut facts = super::world::facts("titan10", 4, "boot-1");
    facts.gpus[3].presence = Presence::Lost;
    w.report("titan10", Report::Facts { facts }).unwrap();
    let (gpu, reason) = (super::world::gpu("titan10", 3), "broken".to_owned());
    w.give(root(), Command::Gpu(GpuCommand::Forget { gpu, reason, replace: false })).unwrap();
    let id = ImportId::parse("imp-1").unwrap();
    let starts_at = w.now + Millis::hours(9);
    let window = Window { starts_at, ends_at: starts_at + Millis::hours(1) };
    w.give(person("ada"), import("r11", window, Some(id.clone()))).unwrap();
    w.give(person("ada"), Command::Reservation(ReservationCommand::UndoImport { id })).unwrap();
    series::made_changed_and_released(w);
    let until = w.now;
    w.pass(KEEP_MIN);
    let prune = Prune { through: 3, hash: "0a".repeat(32), until };
    w.give(root(), Command::Audit(AuditCommand::Prune(prune))).unwrap();
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
    let feed = |id: &str, of: &str, scope| {
        let id = FeedId::parse(&format!("feed-{id}")).unwrap();
        let sha256 = format!("{:0>64}", hex::encode(id.suffix()));
        AccessCommand::CreateFeed(CreateFeed { id, sha256, user: user(of), scope })
    };
    let all = [
        (agent(), certificate("0a", titan, None, not_after)),
        (agent(), certificate("0b", ada(), Some(node("titan01")), not_after)),
        (person("ada"), certificate("0c", ada(), None, not_after)),
        (Actor::controller(), AccessCommand::RecordLogins { logins: vec![login] }),
        (
            person("root"),
            AccessCommand::SetVouching { node: node("titan01"), vouching: Vouching::Admins },
        ),
        (person("ada"), AccessCommand::OfferLogin { user: user("ada"), sha256: "c0".repeat(32) }),
        (
            Actor::controller(),
            AccessCommand::BeginSession { sha256: "c0".repeat(32), session: "5e".repeat(32) },
        ),
        (
            person("ada"),
            AccessCommand::EndSessions { user: user("ada"), session: Some("5e".repeat(32)) },
        ),
        (person("bob"), AccessCommand::OfferLogin { user: user("bob"), sha256: "c1".repeat(32) }),
        (
            Actor::controller(),
            AccessCommand::BeginSession { sha256: "c1".repeat(32), session: "5f".repeat(32) },
        ),
        (person("eve"), AccessCommand::OfferLogin { user: user("eve"), sha256: "c2".repeat(32) }),
        (person("eve"), feed("a", "eve", FeedScope::Mine)),
        (person("eve"), feed("b", "eve", FeedScope::Node { name: node("titan01") })),
        (
            person("ada"),
            feed("c", "ada", FeedScope::Project { name: ProjectName::default_project() }),
        ),
        (person("eve"), AccessCommand::RemoveFeed { feed: FeedId::parse("feed-b").unwrap() }),
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

fn import(name: &str, window: Window, import: Option<ImportId>) -> Command {
    let line = CreateReservation {
        note: "from the spreadsheet".to_owned(),
        ..CreateReservation::plain(
            res(name),
            super::world::user("ada"),
            GpuRequest { count: 1, ..Default::default() },
            window,
        )
    };
    Command::Reservation(ReservationCommand::Import { reservations: vec![line], import })
}

/// Imports, windows in their nodes' hands, and what a node says that was alone.
fn ahead(w: &mut World) {
    w.reserve("ada", "r3", 1, Millis::hours(1), Millis::hours(1)).unwrap();
    w.agents_answer = false;
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r3") }))
        .unwrap();
    let starts_at = super::world::START + Millis::hours(40);
    let window = Window { starts_at, ends_at: starts_at + Millis::hours(1) };
    w.give(person("ada"), import("r4", window, None)).unwrap();
    let grant = super::windows::grant("g", Millis::hours(6), Millis::hours(2));
    w.report("titan01", Report::Window(Box::new(grant))).unwrap();
    let (by, reason) = ("root".to_owned(), "nobody can be asked".to_owned());
    let switch = EnforcementSwitch { mode: Enforcement::Warn, by, reason, at: w.now };
    w.report("titan01", Report::Enforcement(switch)).unwrap();
    let id = w.fsm.job(&job("c")).unwrap().allocation().cloned().unwrap();
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
    std::fs::write(folder.join("log-v1.jsonl"), &log).unwrap();
    let name = format_of(&log, &w.fsm);
    let snapshot = String::from_utf8(w.fsm.to_snapshot()).unwrap();
    std::fs::write(folder.join("snapshot-v1.json"), snapshot.replacen(FORMAT, &name, 1)).unwrap();
    std::fs::write(folder.join("format"), name + "\n").unwrap();
}
