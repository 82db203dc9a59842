//! The table rebuilt from the disk: each state an agent can be killed in, and what is said of it afterwards.
#![allow(clippy::unwrap_used)]

use std::fs;

use fleet_core::allocation::EndReport;
use fleet_core::command::Report;
use fleet_core::desired::{DESIRED_VERSION, DesiredAllocation, Order as Wish, StartOrder};
use fleet_core::id::{ClusterId, ReservationId};
use fleet_core::name::NodeName;
use fleet_core::reboot::DesiredReboot;
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Progress;
use tokio::time::timeout;

use super::*;
use crate::ahead::{Contact, Shelf};
use crate::allocations::Starts;
use crate::attempts::{allocations_dir, volatile_dir};
use crate::config::Config;
use crate::gpu::{Config as GpuConfig, DriverState, Monitor};
use crate::reconcile::reboot::{Pauses, Step};
use crate::shutdown::Refusal;
use crate::shutdown::in_use::tests::{sleeper, used_by};
use crate::unit::Launcher;
use fleet_image::{ImageStore, Limits};
use fleet_node::Promises;
use fleet_node::testing::order;
use fleet_shim::order::{EXIT_FILE, EndReason, Epoch as ShimEpoch, ExitRecord};
use fleet_user::testing::{account, dir_of, slow_helper};
use fleet_user::{AsUser, AsUserConfig, Users, UsersConfig};

mod probing;
mod removal;
mod taken_up;

const BOOT: &str = "boot-now";
/// Longer than anything here takes, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Agent {
    outbox: Outbox,
    registry: Registry,
    desired: watch::Sender<Option<DesiredNode>>,
    shutdown: crate::shutdown::Handle,
    gpus: crate::gpu::Handle,
    _heard: watch::Sender<Duration>,
}

fn id(text: &str) -> AllocationId {
    AllocationId::parse(text).unwrap()
}

fn epoch() -> Epoch {
    Epoch { incarnation: 1, index: 3 }
}

fn write(state: &std::path::Path, name: &str, boot: &str) -> AllocationDir {
    let dir = AllocationDir::new(&state.join("allocations"), &id(name));
    let record = Record::new(id(name), epoch(), None, boot.to_owned(), Timestamp(1), order(&[]));
    dir.write_record(&record).unwrap();
    dir
}

fn exit(dir: &AllocationDir, name: &str, code: i32) {
    let record = ExitRecord {
        v: 1,
        allocation_id: name.to_owned(),
        epoch: ShimEpoch { incarnation: 1, index: 3 },
        attempt: 1,
        reason: EndReason::Exited,
        code: Some(code),
        signal: None,
        oom_killed: false,
        done: false,
        started_at_ms: Some(5),
        ended_at_ms: 9,
        cpu_usec: None,
        memory_peak_bytes: None,
        stuck: false,
        log_bytes_lost: 0,
        output_problem: None,
    };
    fs::write(dir.path().join(EXIT_FILE), serde_json::to_vec(&record).unwrap()).unwrap();
}

async fn agent(state: &std::path::Path) -> Agent {
    agent_with(state, AsUserConfig::default(), Users::new(UsersConfig::default())).await
}

async fn agent_with(state: &std::path::Path, as_user: AsUserConfig, users: Users) -> Agent {
    let probe = GpuConfig { program: "/bin/false".into(), ..GpuConfig::default() };
    let (reconciler, agent) = parts(state, Monitor::spawn(probe).0, as_user, users);
    tokio::spawn(reconciler.run());
    agent
}

/// The task before it runs, and what its tests hold of it.
fn parts(
    state: &std::path::Path,
    gpus: crate::gpu::Handle,
    as_user: AsUserConfig,
    users: Users,
) -> (Reconciler, Agent) {
    let file = state.join("agent.toml");
    fs::write(
        &file,
        format!(
            "state_dir = \"{0}\"\nrun_dir = \"{0}/run\"\nmachine_id = \"shared\"\nruntime.path = \"/bin/false\"",
            state.display()
        ),
    )
    .unwrap();
    let config = Config::load(&file).unwrap();
    fs::create_dir_all(allocations_dir(&config)).unwrap();
    let as_user = AsUser::new(as_user);
    let images = ImageStore::open(
        &state.join("images"),
        &allocations_dir(&config),
        Limits::default(),
        fleet_image::Settings::default(),
        as_user.clone(),
    );
    let node = NodeName::parse("n1").unwrap();
    let helpers = ("/bin/false".into(), "/bin/false".into());
    let programs = Arc::new(Programs::new(node, config.clone(), helpers, Launcher::Plain));
    let owners = Owners { users, as_user };
    let driver = gpus;
    let gpus = Gpus::new(driver.clone(), crate::gate::Handle::new().0, &config);
    let (shutdown, epochs) = (shutdown::Handle::default(), Epochs::start(state).unwrap());
    let attempts = AttemptParts {
        boot_id: BOOT.to_owned(),
        owners: owners.clone(),
        gpus: gpus.clone(),
        images: images.unwrap(),
        programs: Arc::clone(&programs),
        epochs: epochs.clone(),
        health: crate::health::Handle::default(),
        shutdown: shutdown.clone(),
        timings: config.checkpoints,
        volatile_dir: volatile_dir(&config),
        starts: Starts::default(),
    };
    let (outbox, registry) = (Outbox::default(), Registry::new(&allocations_dir(&config)));
    let (desired, desired_seen) = watch::channel(None);
    let (heard, heard_seen) = watch::channel(Duration::ZERO);
    let parts = ReconcilerParts {
        attempts: Arc::new(attempts),
        programs,
        machine: OwnMachine { boot_id: BOOT.to_owned(), is_shared: config.machine_id.is_some() },
        retention: config.retention,
        owners,
        gpus,
        terminals: terminals::Handle::default(),
        shutdown: shutdown.clone(),
        epochs,
        floors: Floors::open(state).unwrap(),
        registry: registry.clone(),
        outbox: outbox.clone(),
        desired: desired_seen,
        heard: heard_seen,
        leases: watch::channel(None).0,
        pulse: Progress::default().begin("reconcile", PATIENCE),
    };
    let calendar = CalendarParts {
        promises: Promises::default(),
        shelf: Shelf::new(state, ClusterId::parse("fleet-test").unwrap()),
        line: Contact::new(None, BOOT),
        asks: tokio::sync::mpsc::channel(1).1,
    };
    let agent = Agent { outbox, registry, desired, shutdown, gpus: driver, _heard: heard };
    let mut reconciler = Reconciler::rebuild(parts, calendar).unwrap();
    let pause = Duration::from_millis(20);
    reconciler.reboots.pauses = Pauses { again: pause, down_max: pause };
    (reconciler, agent)
}

/// One that orders nothing.
fn document() -> DesiredNode {
    DesiredNode {
        v: DESIRED_VERSION,
        node: NodeName::parse("n1").unwrap(),
        allocations: Vec::new(),
        leases: Vec::new(),
        forget: Vec::new(),
        recount: None,
        clear: Vec::new(),
        windows: Vec::new(),
        enforce: None,
        rules: None,
        reboot: None,
        no_longer: Default::default(),
        idle: Default::default(),
        release_driver: false,
        probes: Vec::new(),
        removals: Vec::new(),
        numbers: Default::default(),
        forgotten: Default::default(),
    }
}

fn start(name: &str, order: StartOrder) -> DesiredAllocation {
    DesiredAllocation {
        id: id(name),
        epoch: epoch(),
        lease: None,
        order: Wish::Start(Box::new(order)),
        defer: None,
        ends_at: None,
        within: None,
        ask: None,
    }
}

impl Agent {
    /// A document that orders these, and has an ended one forgotten.
    fn wants(&self, allocations: Vec<DesiredAllocation>, forget: &str) {
        self.wants_with(allocations, forget, None);
    }

    fn wants_with(
        &self,
        allocations: Vec<DesiredAllocation>,
        forget: &str,
        reboot: Option<DesiredReboot>,
    ) {
        let forget = vec![id(forget)];
        self.desired.send_replace(Some(DesiredNode { allocations, forget, reboot, ..document() }));
    }

    async fn driver(&self, what: &str, wanted: fn(&DriverState) -> bool) {
        let mut snapshots = self.gpus.snapshots();
        let reached = snapshots.wait_for(|seen| wanted(&seen.driver_state));
        timeout(PATIENCE, reached).await.expect(what).unwrap();
    }

    /// The reports, once `count` of them are there.
    async fn reports(&self, count: usize) -> Vec<Report> {
        let wait = async {
            loop {
                let batch = self.outbox.next_batch(Timestamp(10));
                if let Some(batch) = batch.filter(|batch| batch.reports.len() >= count) {
                    return batch.reports;
                }
                self.outbox.changed().await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap()
    }
}

async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let wait = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect(what);
}

async fn forgotten(dir: &AllocationDir) {
    until("it is not forgotten", || dir.forgotten_at().is_some()).await;
}

fn end_of(reports: &[Report], name: &str) -> EndReport {
    let found = reports.iter().find_map(|report| match report {
        Report::Ended { allocation, report, .. } if *allocation == id(name) => Some(report.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no end of {name} in {reports:?}"))
}

#[tokio::test]
async fn ends_that_were_not_said_yet_are_said_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("allocations")).unwrap();
    let exited = write(dir.path(), "alloc-exited-1", BOOT);
    exit(&exited, "alloc-exited-1", 7);
    write(dir.path(), "alloc-booted-1", "boot-before");
    let failed = write(dir.path(), "alloc-failed-1", BOOT);
    let end = AttemptEnd::CannotStart { message: "no such user".to_owned() };
    failed.write_end(&without_exit(end.clone(), false, Timestamp(4))).unwrap();
    let told = write(dir.path(), "alloc-told-1", BOOT);
    exit(&told, "alloc-told-1", 0);
    told.forget().unwrap();
    let agent = agent(dir.path()).await;
    let reports = agent.reports(3).await;
    assert_eq!(reports.len(), 3, "what was forgotten is not said again: {reports:?}");
    let exited = end_of(&reports, "alloc-exited-1");
    assert_eq!(
        (exited.end, exited.started_at),
        (AttemptEnd::Exited { code: 7 }, Some(Timestamp(5)))
    );
    assert!(matches!(end_of(&reports, "alloc-booted-1").end, AttemptEnd::Lost { .. }));
    assert_eq!(end_of(&reports, "alloc-failed-1").end, end);
    let known = agent.registry.ids();
    assert_eq!(known, [id("alloc-booted-1"), id("alloc-exited-1"), id("alloc-failed-1")]);
}

#[tokio::test]
async fn what_the_controller_has_is_forgotten_and_its_record_stays_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("allocations")).unwrap();
    let exited = write(dir.path(), "alloc-a-1", BOOT);
    exit(&exited, "alloc-a-1", 0);
    let agent = agent(dir.path()).await;
    agent.reports(1).await;
    agent.wants(Vec::new(), "alloc-a-1");
    forgotten(&exited).await;
    assert!(agent.registry.ids().is_empty());
    assert!(agent.outbox.next_batch(Timestamp(10)).is_none());
    assert!(exited.record().unwrap().is_some());
}

#[tokio::test]
async fn an_order_of_before_the_kill_is_carried_out_once_and_fails_as_it_should() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("allocations")).unwrap();
    // Killed between the record and the start: the owner of this order exists nowhere.
    write(dir.path(), "alloc-a-1", BOOT);
    let agent = agent(dir.path()).await;
    let end = end_of(&agent.reports(1).await, "alloc-a-1").end;
    let AttemptEnd::NodeFault { message } = end else { panic!("another may know them: {end:?}") };
    assert!(message.contains("no-such-user-ada"), "{message}");
    let epochs = fs::read_to_string(dir.path().join("epochs.jsonl")).unwrap();
    assert_eq!(epochs.lines().count(), 1, "the epoch was durable before: {epochs}");
}

#[tokio::test]
async fn nothing_begins_on_a_machine_that_is_about_to_go_down() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("allocations")).unwrap();
    let told = write(dir.path(), "alloc-told-1", BOOT);
    exit(&told, "alloc-told-1", 0);
    let agent = agent(dir.path()).await;
    agent.reports(1).await;
    let (mut waited, round) = (agent.shutdown.waited(), agent.shutdown.say(true));
    let answer = waited.wait_for(|waited| waited.round == round);
    let answer = timeout(PATIENCE, answer).await.unwrap().unwrap().clone();
    assert_eq!((answer.asked, answer.open.len()), (0, 0), "nothing runs that could save");
    agent.wants(vec![start("alloc-a-1", order(&[]))], "alloc-told-1");
    forgotten(&told).await;
    assert!(agent.registry.ids().is_empty(), "held");
    agent.shutdown.say(false);
    let end = end_of(&agent.reports(1).await, "alloc-a-1").end;
    assert!(matches!(end, AttemptEnd::NodeFault { .. }), "begun, by somebody unknown: {end:?}");
}

#[tokio::test]
async fn archives_that_do_not_come_hold_up_no_other_start() {
    let (dir, games) = (tempfile::tempdir().unwrap(), account("games"));
    let (home, users) = (dir_of(&games), UsersConfig { min_uid: 1, ..UsersConfig::default() });
    let (helper, stall_max) = (slow_helper(), PATIENCE * 100);
    let as_user = AsUserConfig { helper, stall_max, ..AsUserConfig::default() };
    fs::create_dir_all(dir.path().join("run/allocations")).unwrap();
    let agent = agent_with(dir.path(), as_user, Users::new(users)).await;
    let of_games = |image: &str| {
        let mut order = order(&[]);
        order.owner = UserName::parse("games").unwrap();
        image.clone_into(&mut order.spec.image);
        order
    };
    // More than may be prepared at once, of two archives: each has a turn to be read.
    let slow = ["slow-a.tar", "slow-b.tar"].map(|name| home.path().join(name));
    for path in &slow {
        fs::write(path, "it does not come").unwrap();
    }
    let archive = |n: usize| of_games(&slow[n % slow.len()].display().to_string());
    let mut wanted: Vec<_> = (0..20).map(|n| start(&format!("alloc-a{n}-1"), archive(n))).collect();
    agent.desired.send_replace(Some(DesiredNode { allocations: wanted.clone(), ..document() }));
    let spools = || fs::read_dir(dir.path().join("images/tmp")).unwrap().count();
    until("they are not read", || spools() == slow.len()).await;
    wanted.push(start("alloc-host-1", of_games("host")));
    agent.desired.send_replace(Some(DesiredNode { allocations: wanted, ..document() }));
    let reports = agent.reports(1).await;
    // It gets as far as to the runtime, which is none here.
    let end = end_of(&reports, "alloc-host-1").end;
    let no_runtime = |message: &str| message.contains("/bin/false");
    assert!(matches!(&end, AttemptEnd::NodeFault { message } if no_runtime(message)), "{end:?}");
    let ended = |report: &&Report| matches!(report, Report::Ended { .. });
    assert_eq!((reports.iter().filter(ended).count(), spools()), (1, slow.len()), "{reports:?}");
}

#[tokio::test]
async fn a_reboot_is_tried_once_in_its_own_boot_when_nothing_is_here() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("allocations")).unwrap();
    // What a document has forgotten tells that it was carried out.
    let marks = ["alloc-a-1", "alloc-b-1"].map(|name| {
        let mark = write(dir.path(), name, BOOT);
        exit(&mark, name, 0);
        mark
    });
    let agent = agent(dir.path()).await;
    agent.reports(2).await;
    let order = |boot_id: &str, since, forget| {
        let reboot = DesiredReboot { since: Timestamp(since), boot_id: boot_id.to_owned() };
        agent.wants_with(Vec::new(), forget, Some(reboot));
    };
    for (mark, name) in marks.iter().zip(["alloc-a-1", "alloc-b-1"]) {
        order("boot-before", 1, name);
        forgotten(mark).await;
    }
    assert_eq!(agent.outbox.waiting(), 0, "it was for another boot");
    order(BOOT, 2, "alloc-x-1");
    let said = agent.reports(1).await;
    let [Report::Reboot { since: Timestamp(2), problem: Some(why) }] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(why.contains("one of several"), "{why}");
}

/// Of ada's reservation.
fn lease() -> DesiredLease {
    DesiredLease {
        id: LeaseId::parse("lease-1").unwrap(),
        epoch: epoch(),
        gpus: vec![GpuUuid::parse("GPU-00").unwrap()],
        owner: UserName::parse("ada").unwrap(),
        holder: LeaseHolder::Reservation(ReservationId::parse("res-1").unwrap()),
        ending: false,
        with: Default::default(),
    }
}

fn wish(since: u64) -> Option<DesiredReboot> {
    Some(DesiredReboot { since: Timestamp(since), boot_id: BOOT.to_owned() })
}

#[tokio::test]
async fn a_reboot_waits_for_who_is_on_a_gpu_without_a_lease_and_looks_again() {
    let dir = tempfile::tempdir().unwrap();
    let ada = sleeper();
    let (gpus, _shown) = crate::gpu::Handle::showing(used_by(&[ada.id()]));
    let (reconciler, agent) =
        parts(dir.path(), gpus, AsUserConfig::default(), Users::new(UsersConfig::default()));
    tokio::spawn(reconciler.run());
    agent.wants_with(Vec::new(), "alloc-x-1", wish(2));
    let said = agent.reports(1).await;
    let [Report::Reboot { since: Timestamp(2), problem: Some(why) }] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(why.contains("in use by sleep of"), "{why}");
    drop(ada);
    let tried = async {
        while !format!("{:?}", agent.reports(1).await).contains("one of several") {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, tried).await.expect("the same wish is tried once they are gone");
}

#[tokio::test]
async fn a_lease_that_comes_while_the_gpus_are_looked_at_keeps_its_node_up() {
    let dir = tempfile::tempdir().unwrap();
    let (gpus, _shown) = crate::gpu::Handle::showing(used_by(&[]));
    let (mut task, agent) =
        parts(dir.path(), gpus, AsUserConfig::default(), Users::new(UsersConfig::default()));
    let look = async |task: &mut Reconciler| {
        task.reboot_if_ordered(&DesiredNode { reboot: wish(2), ..document() });
        let (since, step) = task.reboots.next().await.unwrap();
        assert!(matches!(step, Step::Looked(None)), "{step:?}");
        task.reboot_stepped(since, step);
    };
    look(&mut task).await;
    // Known to the controllers, which order it no more, or to this node alone.
    for reboot in [None, wish(2)] {
        task.reboot_if_ordered(&DesiredNode { reboot, leases: vec![lease()], ..document() });
        assert!(timeout(PATIENCE, task.reboots.next()).await.unwrap().is_none(), "nothing is done");
        // And from the beginning once it has gone.
        look(&mut task).await;
    }
    assert_eq!(agent.outbox.waiting(), 0);
}

#[tokio::test]
async fn a_machine_that_never_went_down_says_so_and_one_held_up_for_checkpoints_has_time() {
    let dir = tempfile::tempdir().unwrap();
    let (gpus, _shown) = crate::gpu::Handle::showing(used_by(&[]));
    let (mut task, agent) =
        parts(dir.path(), gpus, AsUserConfig::default(), Users::new(UsersConfig::default()));
    task.reboot_if_ordered(&DesiredNode { reboot: wish(2), ..document() });
    assert!(matches!(task.reboots.next().await, Some((_, Step::Looked(None)))));
    task.reboot_stepped(Timestamp(2), Step::Asked(Ok(())));
    let said = agent.reports(1).await;
    assert!(matches!(said[..], [Report::Reboot { problem: None, .. }]), "{said:?}");
    agent.shutdown.say(true);
    for leaving in [true, false] {
        if !leaving {
            agent.shutdown.say(false);
        }
        let (since, step) = task.reboots.next().await.unwrap();
        assert!(matches!(step, Step::StillUp), "{step:?}");
        task.reboot_stepped(since, step);
        let said = agent.reports(1).await;
        let [Report::Reboot { since: Timestamp(2), problem }] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!(problem.is_none(), leaving, "{problem:?}");
    }
    // A second request is another wish, and begins from the beginning.
    task.reboot_if_ordered(&DesiredNode { reboot: wish(2), ..document() });
    assert!(task.reboots.next().await.is_none());
    task.reboot_if_ordered(&DesiredNode { reboot: wish(3), ..document() });
    assert!(matches!(task.reboots.next().await, Some((Timestamp(3), Step::Looked(None)))));
}

#[tokio::test]
async fn a_lock_is_waited_for_and_named_and_what_cannot_be_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let (gpus, _shown) = crate::gpu::Handle::showing(used_by(&[]));
    let (mut task, agent) =
        parts(dir.path(), gpus, AsUserConfig::default(), Users::new(UsersConfig::default()));
    task.reboot_if_ordered(&DesiredNode { reboot: wish(2), ..document() });
    assert!(matches!(task.reboots.next().await, Some((_, Step::Looked(None)))));
    let lock = || "shutdowns are held up by APT (pid 812, uid 0): busy".to_owned();
    task.reboot_stepped(Timestamp(2), Step::Asked(Err(Refusal::Waits(lock()))));
    let said = format!("{:?}", agent.reports(1).await);
    assert!(said.contains(&lock()), "{said}");
    let (since, step) = task.reboots.next().await.unwrap();
    assert!(matches!(step, Step::Rested), "{step:?}");
    task.reboot_stepped(since, step);
    task.reboot_if_ordered(&DesiredNode { reboot: wish(2), ..document() });
    assert!(matches!(task.reboots.next().await, Some((Timestamp(2), Step::Looked(None)))));
    task.reboot_stepped(Timestamp(2), Step::Asked(Err(Refusal::Cannot("no systemd".to_owned()))));
    assert!(task.reboots.next().await.is_none(), "not tried again for this wish");
    let said = format!("{:?}", agent.reports(1).await);
    assert!(said.contains("no systemd"), "{said}");
}

#[tokio::test]
async fn the_driver_of_a_drained_node_is_held_while_anybody_has_a_lease_there() {
    let dir = tempfile::tempdir().unwrap();
    let drained = || DesiredNode { release_driver: true, ..document() };
    let released = |state: &DriverState| *state == DriverState::Released;
    // The probe of these tests does not work, so a driver that is held shows as failed.
    let held = |state: &DriverState| matches!(state, DriverState::Failed { .. });
    let before = agent(dir.path()).await;
    before.driver("nobody said anything", held).await;
    before.desired.send_replace(Some(drained()));
    before.driver("nothing is left", released).await;
    before.desired.send_replace(Some(DesiredNode { leases: vec![lease()], ..drained() }));
    before.driver("a reservation begins", held).await;
    before.desired.send_replace(Some(drained()));
    before.driver("it is over", released).await;
    before.desired.send_replace(Some(document()));
    before.driver("the node is open", held).await;
    let other = tempfile::tempdir().unwrap();
    let after = agent(other.path()).await;
    after.driver("one that has just started looks first", held).await;
    after.desired.send_replace(Some(drained()));
    after.driver("and lets go as well", released).await;
}
