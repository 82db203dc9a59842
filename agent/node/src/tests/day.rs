//! A day without controllers, ten seconds at a time, against the real state machine before and after it: everything
//! starts and ends on time, nothing else stops, and in the end both sides tell the same story.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::allocation::{AttemptEnd, EndReport};
use fleet_core::command::{
    ClusterCommand, Command, CreateReservation, ENVELOPE_VERSION, JobCommand, NodeCommand,
    Placement, Report, ReservationCommand,
};
use fleet_core::gpu::{Architecture, Gpu, Presence};
use fleet_core::health::Condition;
use fleet_core::id::{ClusterId, JobId};
use fleet_core::job::{JobSpec, JobState, SubmitJob};
use fleet_core::node::{MachineIdentity, NodeFacts};
use fleet_core::reply::Reply;
use fleet_core::reservation::{GpuRequest, ReservationState};
use fleet_core::window::WindowReport;
use fleet_core::{Actor, AuthMethod, Envelope, Fsm, Who};

use super::*;

const HOUR: u64 = 60;
/// Between two looks.
const TICK: Millis = Millis::secs(10);
const GPUS: u32 = 4;
/// What `link` takes at most to come back to controllers that answer again, and between two heartbeats.
const CONNECT_AGAIN: Millis = Millis::secs(5);
const HEARTBEAT: Millis = Millis::secs(2);
/// Within this everything is reconciled once the controllers are back.
const RECONCILED_WITHIN: Millis = Millis::secs(30);
/// How long an attempt takes to end after the node tells it to stop, in this story.
const ENDS_WITHIN: Millis = Millis::secs(20);

struct Fleet {
    fsm: Fsm,
    index: u64,
    now: Timestamp,
}

fn actor(who: Who) -> Actor {
    Actor { who, method: AuthMethod::Internal, serial: None }
}

fn ada() -> UserName {
    UserName::parse("ada").unwrap()
}

fn n1() -> NodeName {
    NodeName::parse("n1").unwrap()
}

fn facts(boot: &str) -> NodeFacts {
    let one = |index| Gpu {
        uuid: gpu(index),
        node: n1(),
        index,
        minor: index,
        model: "v100".to_owned(),
        product: "v100".to_owned(),
        architecture: Architecture::Volta,
        memory_bytes: 16 << 30,
        pci_bus_id: String::new(),
        numa_node: None,
        presence: Presence::Present,
        dirty: None,
        driver_index: None,
        here_since: None,
        lost_since: None,
        replaced_by_next: false,
    };
    NodeFacts {
        boot_id: boot.to_owned(),
        agent_instance: "a".to_owned(),
        agent_version: "0".to_owned(),
        cpu_millis: 64_000,
        memory_bytes: 512 << 30,
        gpus: (0..GPUS).map(one).collect(),
        ..NodeFacts::bare(MachineIdentity { machine_id: "m".to_owned(), dmi_uuid: String::new() })
    }
}

impl Fleet {
    fn new() -> Self {
        let mut fleet = Self { fsm: Fsm::new(), index: 0, now: NOON };
        let cluster = ClusterId::parse("fleet-day").unwrap();
        fleet.give(
            Who::Controller,
            Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 }),
        );
        let version = fleet_core::command::CLUSTER_VERSION_MAX;
        fleet.give(Who::Controller, Command::Cluster(ClusterCommand::SetVersion { version }));
        fleet.register("boot-1");
        fleet
    }

    fn give(&mut self, who: Who, command: Command) -> Reply {
        self.index += 1;
        let (v, proposed_at) = (ENVELOPE_VERSION, self.now);
        let envelope = Envelope { v, actor: actor(who), proposed_at, request: None, command };
        let reply = self.fsm.apply(self.index, &envelope).reply.unwrap();
        self.fsm.check_invariants().unwrap();
        reply
    }

    fn register(&mut self, boot: &str) {
        let command =
            Command::Node(NodeCommand::Register { node: n1(), facts: Box::new(facts(boot)) });
        self.give(Who::Node { name: n1() }, command);
    }

    fn says(&mut self, report: Report) {
        let command = Command::Node(NodeCommand::Report { node: n1(), reports: vec![report] });
        self.give(Who::Node { name: n1() }, command);
    }

    fn reserve(&mut self, name: &str, gpus: &[u32], from: u64, to: u64) {
        let uuids: Vec<_> = gpus.iter().copied().map(gpu).collect();
        let wish = CreateReservation::plain(
            res(name),
            ada(),
            GpuRequest { count: uuids.len() as u32, uuids, ..GpuRequest::default() },
            Window { starts_at: at(from), ends_at: at(to) },
        );
        let who = Who::User { name: ada(), admin: true, groups: Default::default() };
        self.give(who, Command::Reservation(ReservationCommand::Create(wish)));
    }

    /// Submits a job, places it, and says that it runs.
    fn run(&mut self, name: &str, on: u32, minutes: u64, within: Option<&str>) -> AllocationId {
        let id = JobId::parse(&format!("job-{name}")).unwrap();
        let spec = JobSpec {
            gpus: GpuRequest { count: 1, ..GpuRequest::default() },
            time_limit: Millis::minutes(minutes),
            reservation: within.map(res),
            cpu_millis: Some(100),
            memory_bytes: Some(1 << 30),
            ..order(&[]).spec
        };
        let (job, marker) = (id.clone(), "m".to_owned());
        let wish = SubmitJob { id, owner: ada(), spec, marker };
        self.give(
            Who::User { name: ada(), admin: true, groups: Default::default() },
            Command::Job(JobCommand::Submit(Box::new(wish))),
        );
        let (gpus, cpu_millis, memory_bytes) = (vec![gpu(on)], 100, 1 << 30);
        let line = Placement { job, node: n1(), gpus, cpu_millis, memory_bytes };
        let Reply::Placed { results } =
            self.give(Who::Controller, Command::Job(JobCommand::Place { placements: vec![line] }))
        else {
            panic!("placed")
        };
        let allocation = results[0].clone().unwrap();
        let epoch = self.fsm.allocation(&allocation).unwrap().epoch;
        let at = self.now;
        self.says(Report::Started { allocation: allocation.clone(), epoch, at, image: None });
        allocation
    }

    fn state(&self, name: &str) -> ReservationState {
        self.fsm.reservation(&res(name)).unwrap().state.clone()
    }

    fn job(&self, name: &str) -> JobState {
        self.fsm.job(&JobId::parse(&format!("job-{name}")).unwrap()).unwrap().state
    }
}

/// The node: its promises, its table, its clocks.
struct Node {
    promises: Promises,
    table: Table,
    clock: FleetClock,
    boot: String,
    /// Time since boot and the fleet's true time run alike.
    booted_at: Timestamp,
    /// What it has to say, in the order in which it happened.
    says: Vec<Report>,
    /// (seconds since noon, what), of all that happened.
    diary: Vec<(u64, String)>,
    stopped: Vec<(AllocationId, Timestamp)>,
    /// Of each window, what the controllers have acknowledged.
    said: BTreeMap<ReservationId, WindowReport>,
}

impl Node {
    fn taught_by(fleet: &Fleet) -> Self {
        let mut clock = FleetClock::resume(None, "boot-1");
        let booted_at = NOON - Millis::hours(100);
        let since = Duration::from_millis(fleet.now.since(booted_at).0);
        clock.told(since, since, fleet.now);
        let mut node = Self {
            promises: Promises::default(),
            table: Table::default(),
            clock,
            boot: "boot-1".to_owned(),
            booted_at,
            says: Vec::new(),
            diary: Vec::new(),
            stopped: Vec::new(),
            said: BTreeMap::new(),
        };
        node.hears(fleet);
        let desired = fleet.fsm.desired(&n1(), &[]);
        node.promises.follow(&desired.leases, fleet.now);
        for a in fleet.fsm.allocations().values() {
            let spec = fleet.fsm.job(&a.job).unwrap().spec.clone();
            let order =
                fleet_core::desired::StartOrder { gpus: a.gpus.clone(), spec, ..order(&[]) };
            let row = Row::starting(a.epoch, a.lease.clone(), order);
            node.table.rows.insert(a.id.clone(), Row { phase: AttemptPhase::Running, ..row });
        }
        node
    }

    fn hears(&mut self, fleet: &Fleet) {
        self.promises.take(&fleet.fsm.desired(&n1(), &[]), |id| panic!("{id} is old"));
    }

    fn since_boot(&self, truth: Timestamp) -> Duration {
        Duration::from_millis(truth.since(self.booted_at).0)
    }

    /// The agent is killed and starts again: only its file is left.
    fn restart_agent(&mut self, truth: Timestamp) {
        let kept = (&self.promises, self.clock.anchor(self.since_boot(truth)));
        let kept = serde_json::to_string(&kept).unwrap();
        let (promises, time) = serde_json::from_str(&kept).unwrap();
        self.promises = promises;
        self.clock = FleetClock::resume(time, &self.boot);
        // Proofs start again from the beginning.
        self.table.releases.retain(|_, (_, release)| *release == Release::Released);
    }

    /// The machine goes down and comes back: no process survives, the file does.
    fn reboot(&mut self, truth: Timestamp, back: Timestamp, wall: Timestamp) {
        let anchor = self.clock.anchor(self.since_boot(truth));
        for (id, row) in &mut self.table.rows {
            if row.phase != AttemptPhase::Ended {
                row.phase = AttemptPhase::Ended;
                let message = "booted".to_owned();
                self.says.push(ended(id, row.epoch, AttemptEnd::Lost { message }, false));
            }
        }
        self.table.releases.clear();
        self.boot = "boot-2".to_owned();
        self.booted_at = back - Millis::minutes(1);
        self.clock = FleetClock::resume(anchor, &self.boot);
        self.clock.look_at_wall(self.since_boot(back), wall);
    }

    /// One look at the calendar, by this node's own clock; whatever its wall clock shows.
    fn look(&mut self, truth: Timestamp, wall: Timestamp) {
        let since = self.since_boot(truth);
        self.clock.look_at_wall(since, wall);
        let Some(now) = self.clock.now(since) else { return };
        let second = truth.since(NOON).0 / 1_000;
        for release in self.table.releases.values_mut() {
            release.1 = Release::Released;
        }
        for step in self.promises.keep(now, &self.table) {
            match step {
                Step::Opened(id) => self.diary.push((second, format!("open {id}"))),
                Step::Closed(id) => self.diary.push((second, format!("close {id}"))),
                Step::Overruns { id, .. } => panic!("{id} overruns"),
                Step::Ask(id) => panic!("{id} saves nothing"),
                Step::Prove { lease, epoch, .. } => {
                    self.table.releases.insert(lease.clone(), (epoch, Release::Proving));
                    self.says.push(Report::Released { lease, epoch });
                }
                Step::Stop { id, epoch, grace, why, said } => {
                    self.diary.push((second, format!("stop {id}")));
                    let allocation = id.clone();

                    self.says.push(Report::StoppedAlone { allocation, epoch, why, at: now });
                    self.table.note(&Action::Stop { id: id.clone(), grace, why: said });
                    self.stopped.push((id, truth + ENDS_WITHIN));
                }
            }
        }
        let due: Vec<AllocationId> =
            self.stopped.extract_if(.., |(_, at)| *at <= truth).map(|(id, _)| id).collect();
        for id in due {
            let row = self.table.rows.get_mut(&id).unwrap();
            row.phase = AttemptPhase::Ended;
            let (epoch, lease) = (row.epoch, row.lease.clone());
            self.says.push(ended(&id, epoch, AttemptEnd::Signaled { signal: 15 }, true));
            let lease = lease.unwrap();
            self.says.push(Report::Released { lease, epoch });
        }
    }

    /// All looks from one minute to another, the wall clock as `wall` has it at each minute.
    fn live(&mut self, from: u64, to: u64, wall: impl Fn(u64, Timestamp) -> Timestamp) {
        let mut truth = at(from);
        while truth < at(to) {
            let minute = truth.since(NOON).0 / 60_000;
            self.look(truth, wall(minute, truth));
            truth = truth + TICK;
        }
    }

    /// Everything it has to say, to controllers that are back.
    fn tell(&mut self, fleet: &mut Fleet) {
        for report in std::mem::take(&mut self.says) {
            fleet.says(report);
        }
        for (id, held) in &self.promises.windows {
            let report = held.report(id);
            if self.said.get(id) != Some(&report) {
                self.said.insert(id.clone(), report.clone());
                fleet.says(Report::Window(Box::new(report)));
            }
        }
    }

    /// The controllers are back: heartbeat by heartbeat both sides say what they have to say. How long that takes
    /// until `agreed`.
    fn meets(&mut self, fleet: &mut Fleet, agreed: impl Fn(&Fleet) -> bool) -> Millis {
        let back = fleet.now;
        fleet.now = back + CONNECT_AGAIN;
        loop {
            self.tell(fleet);
            fleet.give(Who::Controller, Command::Cluster(ClusterCommand::AdvanceTime));
            self.hears(fleet);
            let leases = fleet.fsm.desired(&n1(), &[]).leases;
            self.promises.follow(&leases, fleet.now);
            // What it hears the end of now it has proven long ago.
            for lease in leases.into_iter().filter(|lease| lease.ending) {
                if self.table.releases.contains_key(&lease.id) {
                    self.says.push(Report::Released { lease: lease.id, epoch: lease.epoch });
                }
            }
            let took = fleet.now.since(back);
            if agreed(fleet) || took > RECONCILED_WITHIN {
                return took;
            }
            fleet.now = fleet.now + HEARTBEAT;
        }
    }
}

fn ended(id: &AllocationId, epoch: Epoch, end: AttemptEnd, stopped: bool) -> Report {
    let report = EndReport {
        end,
        done: false,
        fault: None,
        memory_kill: false,
        no_image: false,
        output_problem: None,
        stopped,
        started_at: None,
        ended_at: NOON,
        cpu_usec: None,
        memory_peak_bytes: None,
    };
    Report::Ended { allocation: id.clone(), epoch, report }
}

/// The last hour with controllers: a reservation that is open with a job in it, three that will come, one job in the
/// way of the next, one that is past its time soon and in nobody's way, one that has days.
fn before() -> (Fleet, Node) {
    let mut fleet = Fleet::new();
    fleet.reserve("now", &[0], 0, 3 * HOUR);
    let child = fleet.run("child", 0, 24 * HOUR, Some("now"));
    fleet.run("inway", 1, 2 * HOUR, None);
    fleet.run("late", 2, HOUR, None);
    fleet.run("long", 3, 72 * HOUR, None);
    fleet.reserve("noon", &[0, 1], 5 * HOUR, 9 * HOUR);
    fleet.reserve("next", &[0], 9 * HOUR, 13 * HOUR);
    fleet.reserve("night", &[1], 20 * HOUR, 30 * HOUR);
    let node = Node::taught_by(&fleet);
    assert_eq!(node.promises.windows.len(), 4);
    assert_eq!(node.promises.attempts[&child].within, Some(res("now")));
    assert_eq!(held(&node.promises, "now").stage, Stage::Open);
    (fleet, node)
}

/// A wall clock that somebody plays with.
fn wrong_wall(minute: u64, truth: Timestamp) -> Timestamp {
    match minute / 97 % 4 {
        0 => truth,
        1 => truth + Millis::days(3_650),
        2 => truth - Millis::hours(30),
        _ => Timestamp(0),
    }
}

fn diary_of_the_day() -> Vec<(u64, String)> {
    let hour = 3_600;
    [
        (3 * hour, "stop alloc-child-1"),
        (3 * hour, "close res-now"),
        // Its time was over three hours ago; now somebody needs the GPU, after its thirty seconds of grace.
        (5 * hour - 30, "stop alloc-inway-1"),
        (5 * hour, "open res-noon"),
        (9 * hour, "close res-noon"),
        (9 * hour, "open res-next"),
        (13 * hour, "close res-next"),
        (20 * hour, "open res-night"),
    ]
    .map(|(second, what)| (second, what.to_owned()))
    .to_vec()
}

#[test]
fn a_day_without_controllers() {
    for time_first in [false, true] {
        let (mut fleet, mut node) = before();
        for hour in 0..24 {
            node.live(hour * HOUR, (hour + 1) * HOUR, wrong_wall);
            node.restart_agent(at((hour + 1) * HOUR));
        }
        assert_eq!(node.diary, diary_of_the_day());
        for name in ["late", "long"] {
            let row = &node.table.rows[&alloc(name)];
            assert!(row.is_live() && row.stop_grace.is_none(), "{name} was in nobody's way");
        }
        // The controllers are back, and their clocks are right.
        fleet.now = at(24 * HOUR);
        if time_first {
            fleet.give(Who::Controller, Command::Cluster(ClusterCommand::AdvanceTime));
        }
        let ended = ReservationState::Ended;
        let expected = [ended.clone(), ended.clone(), ended, ReservationState::Active];
        let states = |fleet: &Fleet| ["now", "noon", "next", "night"].map(|name| fleet.state(name));
        let took = node.meets(&mut fleet, |fleet| {
            let confirmed = fleet.fsm.reservations().all(|r| !r.is_unconfirmed());
            confirmed
                && states(fleet) == expected
                && ["child", "inway"].iter().all(|name| fleet.job(name) == JobState::TimedOut)
        });
        assert_eq!(states(&fleet), expected, "time first: {time_first}");
        assert!(took <= RECONCILED_WITHIN, "{took}, time first: {time_first}");
        assert_eq!(fleet.job("child"), JobState::TimedOut);
        assert_eq!(fleet.job("inway"), JobState::TimedOut);
        assert_eq!(fleet.job("long"), JobState::Running, "it lost nothing");
        assert_eq!(fleet.job("late"), JobState::Stopping, "its limit is the controller's to say");
        // And the node accepts what the fleet sends now. It stops no attempt again and closes no window.
        node.hears(&fleet);
        let before = node.promises.clone();
        let desired = fleet.fsm.desired(&n1(), &[]);
        node.promises.follow(&desired.leases, fleet.now);
        assert_eq!(node.promises, before);
        assert_eq!(held(&node.promises, "night").stage, Stage::Open);
        assert!(fleet.fsm.reservations().all(|r| !r.is_unconfirmed() || !r.is_open()));
    }
}

#[test]
fn a_boot_in_the_middle_of_the_day() {
    // (the wall clock after the boot, whether the night's window opens)
    for (wall, opens) in [(at(12 * HOUR), true), (Timestamp(0), false)] {
        let (mut fleet, mut node) = before();
        node.live(0, 11 * HOUR, |_, truth| truth);
        node.reboot(at(11 * HOUR), at(12 * HOUR), wall);
        let shown = |minute, truth| if opens { truth } else { Timestamp(minute) };
        node.live(12 * HOUR, 24 * HOUR, shown);
        let late: Vec<&str> = node
            .diary
            .iter()
            .filter(|(second, _)| *second > 11 * 3_600)
            .map(|(_, what)| what.as_str())
            .collect();
        let expected: &[&str] = if opens { &["close res-next", "open res-night"] } else { &[] };
        assert_eq!(late, expected, "a wrong clock opens and closes nothing");
        // The controllers come back, hear of the boot, and carry on.
        fleet.now = at(24 * HOUR);
        fleet.register("boot-2");
        node.tell(&mut fleet);
        fleet.give(Who::Controller, Command::Cluster(ClusterCommand::AdvanceTime));
        assert_eq!(fleet.state("night"), ReservationState::Active);
        assert_eq!(fleet.job("long"), JobState::Failed, "it was lost with the machine");
    }
}

#[test]
fn a_cut_off_node_stops_nothing_for_its_health() {
    let (mut fleet, mut node) = before();
    let condition: Condition = serde_json::from_value(serde_json::json!({
        "subject": {"gpu": gpu(3)}, "kind": "xid", "status": "true", "severity": "fatal",
        "reason": "off the bus", "message": "look", "since": NOON,
    }))
    .unwrap();
    node.live(0, 2 * HOUR, |_, truth| truth);
    assert!(node.diary.is_empty(), "health is no step of the promises: {:?}", node.diary);
    // The controller decides when it is back, and hears of it first then.
    fleet.now = at(2 * HOUR);
    fleet.says(Report::Conditions { conditions: vec![condition] });
    assert_eq!(fleet.job("long"), JobState::Stopping);
}
