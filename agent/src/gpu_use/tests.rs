#![allow(clippy::unwrap_used)]
use super::*;
use crate::gpu::{GpuProcess, Observed, ProcessKind};
use fleet_core::command::Report;
use fleet_core::ending::ReservationRules;
use fleet_core::gpu_use::hour_of;
use fleet_core::id::{AllocationId, LeaseId, ReservationId};
use fleet_core::idle::{DesiredIdle, IdleRules, IdleSeen};
use fleet_core::lease::Epoch;
use fleet_core::name::UserName;
use fleet_core::node::NodeFacts;
use fleet_node::idle_due::WindowIdle;

const HOUR: Timestamp = Timestamp(500_000 * 3_600_000);

/// A node whose fleet has the time that a test says.
struct Node {
    uses: GpuUses,
    outbox: Outbox,
    registry: Registry,
    leases: Vec<DesiredLease>,
    orders: Orders,
    idle: IdleNow,
    sample: u64,
    programs: BTreeMap<u32, Program>,
    dir: tempfile::TempDir,
}

fn lease(holder: LeaseHolder) -> DesiredLease {
    DesiredLease {
        id: LeaseId::parse("lease-1").unwrap(),
        epoch: Epoch { incarnation: 1, index: 1 },
        gpus: vec![GpuState::of_tests(0).info.uuid],
        owner: UserName::parse("ada").unwrap(),
        holder,
        ending: false,
        with: Default::default(),
    }
}

fn reservation() -> ReservationId {
    ReservationId::parse("res-r").unwrap()
}

fn attempt() -> AllocationId {
    AllocationId::parse("alloc-a-1").unwrap()
}

fn line(fleet: Timestamp) -> Contact {
    let line = Contact::new(None, "boot");
    line.answered(clock::since_boot(), Some(fleet));
    line
}

fn open(dir: &Path, fleet: Timestamp) -> GpuUses {
    let every = Duration::from_secs(3_600);
    GpuUses::open(dir, &NodeName::parse("titan01").unwrap(), every, line(fleet))
}

impl Node {
    fn at(fleet: Timestamp) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Node {
            uses: open(dir.path(), fleet),
            outbox: Outbox::default(),
            registry: Registry::new(dir.path()),
            leases: vec![lease(LeaseHolder::Reservation(reservation()))],
            orders: Orders::default(),
            idle: IdleNow::default(),
            sample: 0,
            programs: BTreeMap::new(),
            dir,
        }
    }

    /// The agent starts again, at a later time, and a little real time passes. The last sample stands for a little until then.
    async fn restart(&mut self, fleet: Timestamp) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.uses.stop();
        self.uses = open(self.dir.path(), fleet);
        self.outbox = Outbox::default();
    }

    async fn look(&mut self, utilization: Observed<u32>) {
        let mut snapshot = GpuSnapshot::empty(DriverState::Running);
        let mut gpu = GpuState::of_tests(0);
        self.sample += 1;
        gpu.sampled_at = Some(Timestamp(self.sample));
        gpu.telemetry.utilization_percent = utilization;
        if !self.programs.is_empty() {
            let process = |pid: &u32| GpuProcess {
                pid: *pid,
                kind: ProcessKind::Compute,
                memory_bytes: None,
                started_ticks: None,
            };
            let processes = self.programs.keys().map(process).collect();
            gpu.telemetry.processes = Observed::Value(processes);
        }
        snapshot.gpus.push(gpu);
        let (registry, outbox) = (&self.registry, &self.outbox);
        let (leases, orders, idle) = (Some(&self.leases[..]), &self.orders, &self.idle);
        let programs = &self.programs;
        let parts = Parts { snapshot: &snapshot, leases, registry, outbox, orders, idle, programs };
        self.uses.look(parts).await;
    }

    /// Measures for a little. Time is what is measured, so it has to pass here.
    async fn measure(&mut self) {
        self.look(Observed::Value(70)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.look(Observed::Value(70)).await;
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join(FOLDER)).unwrap().count()
    }

    fn said(&self) -> Vec<NodeUse> {
        let Some(batch) = self.outbox.next_batch(HOUR) else { return Vec::new() };
        let seen = batch.reports.iter().filter_map(|report| match report {
            Report::GpuUse(seen) => Some((**seen).clone()),
            _ => None,
        });
        let seen = seen.collect();
        self.outbox.answered(&batch, false);
        seen
    }
}

#[tokio::test]
async fn an_hour_is_reported_when_it_is_over_and_kept_until_it_is_confirmed() {
    let mut node = Node::at(HOUR);
    node.measure().await;
    assert!(node.said().is_empty(), "the hour is not over");
    node.restart(HOUR + Millis::minutes(69)).await;
    node.look(Observed::Value(0)).await;
    assert!(node.outbox.next_batch(HOUR).is_some());
    // Nobody answers, and the agent starts again.
    node.restart(HOUR + Millis::minutes(80)).await;
    node.look(Observed::Value(0)).await;
    let said = node.said();
    let (from, until) = (said[0].from, said[0].until);
    assert_eq!((said.len(), hour_of(from), until), (1, HOUR, HOUR + Millis::hours(1)));
    let row = &said[0].rows[0];
    assert!(row.busy_ms == row.measured_ms && row.measured_ms >= Millis(20), "{row:?}");
    assert_eq!((&row.holder, row.within.clone()), (&LeaseHolder::Reservation(reservation()), None));
    // Confirmed: its file goes, and it is not said again.
    node.look(Observed::Value(0)).await;
    node.restart(HOUR + Millis::minutes(90)).await;
    node.look(Observed::Value(0)).await;
    assert!(node.said().is_empty());
    let files = node.files();
    assert_eq!(files, 1, "the hour that is not over");
}

#[tokio::test]
async fn an_attempt_in_a_reservation_is_the_holder_and_names_the_reservation() {
    let mut node = Node::at(HOUR);
    node.leases.push(lease(LeaseHolder::Allocation(attempt())));
    node.measure().await;
    node.leases.remove(0);
    node.measure().await;
    node.uses.stop();
    let slots = read_all(&node.dir.path().join(FOLDER));
    let rows = slots[0].seen.rows.iter();
    let holders: Vec<_> = rows.map(|row| (row.holder.clone(), row.within.clone())).collect();
    let holder = LeaseHolder::Allocation(attempt());
    assert_eq!(holders, [(holder.clone(), Some(reservation())), (holder, None)]);
}

#[tokio::test]
async fn without_a_holder_or_a_utilisation_nothing_is_measured() {
    let mut node = Node::at(HOUR);
    let leases = std::mem::take(&mut node.leases);
    node.measure().await;
    node.leases = leases;
    for _ in 0..3 {
        node.look(Observed::NotSupported).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    node.uses.stop();
    assert_eq!(node.files(), 0);
}

#[tokio::test]
async fn what_is_older_than_a_month_is_dropped_and_few_reports_are_under_way_at_once() {
    let mut node = Node::at(HOUR);
    for hour in 0..10 {
        node.restart(HOUR + Millis::hours(hour)).await;
        node.measure().await;
    }
    node.restart(HOUR + USE_KEPT_MAX + Millis::hours(3)).await;
    node.look(Observed::Value(0)).await;
    let said = node.said();
    assert_eq!(said.len(), UNDER_WAY_MAX);
    // The reports of hours 0 to 2 are too old.
    assert_eq!(hour_of(said[0].from), HOUR + Millis::hours(3));
    node.look(Observed::Value(0)).await;
    assert_eq!(hour_of(node.said()[0].from), HOUR + Millis::hours(7));
}

#[tokio::test]
async fn what_the_disk_did_not_take_is_stored_later() {
    let mut node = Node::at(HOUR);
    let folder = node.dir.path().join(FOLDER);
    let store = |node: &Node| node.uses.state().stored_at = Instant::now() - STORE_EVERY;
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "no folder").unwrap();
    node.measure().await;
    store(&node);
    node.look(Observed::Value(70)).await;
    assert!(node.uses.state().warned);
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    // Nothing new is measured: it is the same that is stored now.
    node.leases.clear();
    store(&node);
    node.look(Observed::Value(70)).await;
    assert_eq!(node.files(), 1);
    assert!(!node.uses.state().warned);
}

#[tokio::test]
async fn the_minutes_of_two_agents_are_one_and_name_what_ran() {
    let mut node = Node::at(HOUR);
    let python = Program { uid: 1_000, name: "python3".to_owned() };
    node.programs.insert(7, python.clone());
    node.measure().await;
    node.restart(HOUR + Millis::secs(30)).await;
    node.measure().await;
    node.restart(HOUR + Millis::secs(90)).await;
    node.leases.clear();
    node.measure().await;
    let gpu = GpuState::of_tests(0).info.uuid;
    let found = node.uses.minutes(gpu, HOUR, HOUR + Millis::hours(1)).await.unwrap();
    let [held, foreign] = &found.rows[..] else { panic!("{found:?}") };
    assert_eq!(held.holder, Some(LeaseHolder::Reservation(reservation())));
    assert!(held.measured_ms >= Millis(40) && held.busy_ms == held.measured_ms, "{held:?}");
    assert_eq!((&held.programs, held.utilization_percent()), (&vec![python.clone()], Some(70)));
    // What is being counted is there as well.
    assert_eq!((foreign.minute, &foreign.holder), (held.minute + 1, &None));
    assert_eq!(foreign.programs, [python]);
}

#[tokio::test]
async fn minutes_that_cannot_be_stored_stop_nothing_else() {
    let mut node = Node::at(HOUR);
    let folder = node.dir.path().join(MINUTES_FOLDER);
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "no folder").unwrap();
    node.measure().await;
    node.uses.stop();
    assert!(node.uses.state().minutes_warned);
    assert_eq!(node.files(), 1, "the hour is stored");
}

#[test]
fn an_agent_without_the_folder_starts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FOLDER), "no folder").unwrap();
    open(dir.path(), HOUR).stop();
}

#[test]
fn a_file_that_cannot_be_read_is_left_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("5.json"), "{").unwrap();
    let seen = NodeUse { from: HOUR, until: HOUR + Millis(1), rows: Vec::new() };
    let write = vec![Slot { seen, through: HOUR }];
    let changes = Changes { write, remove: vec![Timestamp(7)], ..Changes::default() };
    changes.apply(dir.path(), &Files::open(dir.path()));
    assert_eq!(read_all(dir.path()).len(), 1);
    assert!(dir.path().join("5.json").exists());
}

impl Node {
    /// What is new about whether the reservation is idle.
    fn idle_said(&self) -> Vec<IdleSeen> {
        let Some(batch) = self.outbox.next_batch(HOUR) else { return Vec::new() };
        let seen = batch.reports.iter().filter_map(|report| match report {
            Report::Idle { reservation: id, seen } if *id == reservation() => Some(*seen),
            _ => None,
        });
        let seen = seen.collect();
        self.outbox.answered(&batch, false);
        seen
    }

    /// Where a reservation is idle after some milliseconds without work.
    fn quick_to_call_idle(mut self) -> Self {
        let idle = IdleRules { after: Millis(15), ..IdleRules::default() };
        self.orders.rules = Some(ReservationRules { idle, ..ReservationRules::default() });
        self
    }

    async fn rests(&mut self) {
        self.look(Observed::Value(0)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.look(Observed::Value(0)).await;
    }

    fn window(&self) -> WindowIdle {
        self.idle.get().windows[&reservation()]
    }
}

fn node_facts() -> NodeFacts {
    NodeFacts::bare(fleet_core::node::MachineIdentity::default())
}

fn is_idle(said: &[IdleSeen]) -> bool {
    matches!(said, [IdleSeen::Idle { for_ms }] if *for_ms >= Millis(15))
}

#[tokio::test]
async fn controllers_and_terminals_hear_of_an_idle_window() {
    let mut node = Node::at(HOUR).quick_to_call_idle();
    let release_at = HOUR + Millis::hours(4);
    node.orders.idle.insert(reservation(), DesiredIdle { release_at, confirm: false });
    node.rests().await;
    assert!(is_idle(&node.idle_said()));
    let WindowIdle::Idle { since, release_at: at } = node.window() else { panic!() };
    assert!(since >= HOUR && at == Some(release_at));
    node.rests().await;
    assert_eq!(node.idle_said(), []);
    node.orders.idle.insert(reservation(), DesiredIdle { release_at, confirm: true });
    node.rests().await;
    assert!(is_idle(&node.idle_said()), "the controllers asked");
    node.look(Observed::Value(3)).await;
    assert_eq!((node.idle_said(), node.window()), (vec![IdleSeen::Busy], WindowIdle::Busy));
    // What is over is not said to another controller.
    node.rests().await;
    assert!(is_idle(&node.idle_said()));
    node.leases.clear();
    node.rests().await;
    node.outbox.begin(&node_facts());
    assert_eq!(node.idle_said(), []);
    assert!(node.idle.get().windows.is_empty());
}

#[tokio::test]
async fn an_idle_window_is_said_with_its_whole_length_on_a_new_connection() {
    let mut node = Node::at(HOUR).quick_to_call_idle();
    node.rests().await;
    let first = node.idle_said();
    tokio::time::sleep(Duration::from_millis(30)).await;
    node.outbox.begin(&node_facts());
    let ([IdleSeen::Idle { for_ms: one }], [IdleSeen::Idle { for_ms: other }]) =
        (&first[..], &node.idle_said()[..])
    else {
        panic!("{first:?}")
    };
    assert!(*other >= *one + Millis(30), "{one} {other}");
}

#[tokio::test]
async fn a_window_is_not_idle_while_a_job_is_prepared_or_nothing_is_measured() {
    let mut node = Node::at(HOUR).quick_to_call_idle();
    node.leases.push(lease(LeaseHolder::Allocation(attempt())));
    node.rests().await;
    assert_eq!(node.idle_said(), [], "its attempt is not here yet");
    let (phase, seen) = tokio::sync::watch::channel(fleet_node::AttemptPhase::Starting);
    let gpus = node.leases[0].gpus.clone();
    let shown = crate::attempts::Shown { phase: seen, gpus, ..crate::attempts::Shown::ended() };
    node.registry.insert(attempt(), shown);
    node.rests().await;
    assert_eq!(node.idle_said(), [], "it starts");
    phase.send_replace(fleet_node::AttemptPhase::Running);
    node.rests().await;
    assert!(is_idle(&node.idle_said()), "it runs, and computes nothing");
    let mut node = Node::at(HOUR).quick_to_call_idle();
    node.look(Observed::NotSupported).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    node.look(Observed::NotSupported).await;
    assert_eq!((node.idle_said(), node.window()), (vec![], WindowIdle::Neither));
    let mut node = Node::at(HOUR);
    node.rests().await;
    assert!(node.idle.get().windows.is_empty(), "controllers of before have no rules");
}
