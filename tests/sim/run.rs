//! One run: a fleet from a seed, trouble for a while, then calm, and the verdict.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use fleet_core::node::Liveness;

use crate::agent::{self, Post};
use crate::bugs::Bug;
use crate::controller::{self, Seat, address};
use crate::disk::SimDisk;
use crate::faults::Faults;
use crate::files::Files;
use crate::machine::{GPUS, Machine};
use crate::net::HostId;
use crate::os;
use crate::pki::Pki;
use crate::rng::Rng;
use crate::roster::Comings;
use crate::scene::Scene;
use crate::user::User;
use crate::week;
use crate::world::{SLICE_US, World};

const SECOND_US: u64 = 1_000_000;
/// Nothing goes wrong until the fleet is there.
const BOOT_US: u64 = 4 * SECOND_US;
/// How long things go wrong.
const TROUBLE_US: u64 = 36 * SECOND_US;
/// The same where nodes are silent for as long as makes their jobs be replaced.
const LONG_TROUBLE_US: u64 = 170 * SECOND_US;
/// How often programs save, from and to.
const SAVE_EVERY_US: (u64, u64) = (SECOND_US, 4 * SECOND_US);
const LONG_SAVE_EVERY_US: (u64, u64) = (4 * SECOND_US, 12 * SECOND_US);
/// One seed in this many is a long one.
const LONG_EVERY: u64 = 5;
/// A lab's week: an hour of it lasts a quarter of a minute.
const WEEK_US: u64 = 7 * 24 * 15 * SECOND_US;
/// One slice of a week's time. Nothing in a week is a matter of milliseconds.
const WEEK_SLICE_US: u64 = 200_000;
/// One week in this many has three controllers, which takes three times as long to simulate; the others one that crashes.
const WEEK_OF_THREE_EVERY: u64 = 10;
/// How often it is judged in a week what nodes should have opened by now.
const WEEK_LOOK_EVERY_US: u64 = SECOND_US;
/// How long users continue after that.
const CALM_US: u64 = 4 * SECOND_US;
/// The time in which all that was begun must be over and everybody must agree.
const REST_MAX_US: u64 = 120 * SECOND_US;
/// How long a supervisor waits before it starts a process again that ended by itself.
const RESTART_US: u64 = SECOND_US;
/// How often the run checks whether they agree.
const LOOK_EVERY_US: u64 = SECOND_US / 2;

/// What a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Seconds, in which everything goes wrong.
    Usual,
    /// Minutes, with nodes that are silent for long.
    Long,
    /// A lab's week of reservations: see `week.rs`.
    Week,
}

/// What a run is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) bug: Option<Bug>,
    pub(crate) controllers: usize,
    /// Machines for controllers that may join later.
    pub(crate) spare: usize,
    pub(crate) nodes: usize,
    pub(crate) users: &'static [&'static str],
    pub(crate) faults: bool,
    pub(crate) kind: Kind,
}

impl Plan {
    /// The usual fleet.
    pub(crate) fn usual(seed: u64, bug: Option<Bug>) -> Plan {
        let users = &["alice", "bob", "root"];
        if bug.is_none() && seed.is_multiple_of(LONG_EVERY) {
            return Plan::long(seed);
        }
        let kind = Kind::Usual;
        Plan { seed, bug, controllers: 3, spare: 2, nodes: 3, users, faults: true, kind }
    }

    /// Attempts are given up while their nodes are silent, and some of them come back.
    fn long(seed: u64) -> Plan {
        let users = &["alice", "root"];
        let (bug, kind) = (None, Kind::Long);
        Plan { seed, bug, controllers: 1, spare: 0, nodes: 3, users, faults: true, kind }
    }

    /// Forty people, an admin, and more wishes than GPUs.
    pub(crate) fn week(seed: u64, bug: Option<Bug>) -> Plan {
        let (users, kind) = (week::PEOPLE, Kind::Week);
        let nodes = week::NODES;
        let controllers = if seed.is_multiple_of(WEEK_OF_THREE_EVERY) { 3 } else { 1 };
        Plan { seed, bug, controllers, spare: 0, nodes, users, faults: true, kind }
    }

    /// How long things go wrong.
    fn trouble_us(&self) -> u64 {
        match self.kind {
            Kind::Usual => TROUBLE_US,
            Kind::Long => LONG_TROUBLE_US,
            Kind::Week => WEEK_US,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) violation: Option<String>,
    pub(crate) trace: String,
    pub(crate) summary: String,
    /// How often each kind of event came.
    pub(crate) happened: BTreeMap<String, u64>,
}

/// The fleet of one run.
pub(crate) struct Fleet {
    pub(crate) world: World,
    pub(crate) scene: Arc<Scene>,
    pub(crate) seats: Vec<Arc<Seat>>,
    pub(crate) posts: Vec<Post>,
    pub(crate) comings: Comings,
    /// When a process that is not there is started again.
    restarts: BTreeMap<HostId, u64>,
}

/// All of them, as tasks of one process.
async fn join_all(users: Vec<impl Future<Output = ()> + Send + 'static>) {
    let mut tasks = tokio::task::JoinSet::new();
    users.into_iter().for_each(|user| drop(tasks.spawn(user)));
    while tasks.join_next().await.is_some() {}
}

impl Fleet {
    fn new(plan: Plan, pki: Pki, folder: &Path) -> Fleet {
        let mut rng = Rng::new(plan.seed);
        let save_every_us = match plan.kind {
            Kind::Long => LONG_SAVE_EVERY_US,
            Kind::Usual | Kind::Week => SAVE_EVERY_US,
        };
        let gpus = if plan.kind == Kind::Week { week::GPUS } else { GPUS };
        let files = Arc::new(Mutex::new(Files::default()));
        let machine = |at| {
            let machine = Machine::new((at, gpus), rng.fork(), Arc::clone(&files), save_every_us);
            Arc::new(Mutex::new(machine))
        };
        let machines: Vec<_> = (0..plan.nodes).map(machine).collect();
        let mut disks = rng.fork();
        let kind = (plan.bug, plan.kind);
        let scene =
            Arc::new(Scene::new(rng, kind, (machines, Arc::clone(&files)), pki, folder.to_owned()));
        let slice_us = if plan.kind == Kind::Week { WEEK_SLICE_US } else { SLICE_US };
        let mut world = World::new(Arc::clone(&scene), slice_us);
        let hosts = 0..plan.controllers + plan.spare;
        let first = BTreeMap::from([(1, address(0))]);
        let never_sync = plan.bug.and_then(Bug::never_sync);
        let mut seats = Vec::new();
        for host in hosts.clone() {
            let disk = SimDisk::new(disks.fork(), never_sync);
            let members = if host == 0 { first.clone() } else { BTreeMap::new() };
            let seat = Arc::new(Seat::new(host as u64 + 1, host, disk, members));
            let (scene, for_host) = (Arc::clone(&scene), Arc::clone(&seat));
            world.add(&seat.name(), move || {
                controller::run(Arc::clone(&scene), Arc::clone(&for_host))
            });
            seats.push(seat);
        }
        let mut posts = Vec::new();
        for at in 0..plan.nodes {
            let host = hosts.len() + at;
            let post =
                Post { at, host, controllers: hosts.clone().collect(), stale: Arc::default() };
            let (for_host, here) = (Arc::clone(&scene), post.clone());
            let name = format!("agent-{}", at + 1);
            world.add(&name, move || agent::run(Arc::clone(&for_host), here.clone()));
            posts.push(post);
        }
        let host = hosts.len() + plan.nodes;
        let (for_users, their_seats) = (Arc::clone(&scene), seats.clone());
        world.add("users", move || {
            let user = |name: &&str| {
                User::new(Arc::clone(&for_users), host, name, their_seats.clone()).run()
            };
            join_all(plan.users.iter().map(user).collect::<Vec<_>>())
        });
        let comings = Comings::new(&seats, plan.controllers - 1);
        Fleet { world, scene, seats, posts, comings, restarts: BTreeMap::new() }
    }

    fn violated(&self) -> bool {
        self.scene.oracle().violation.is_some()
    }

    /// Runs until `us`, or until something that must never happen has.
    fn until(&mut self, us: u64, mut each: impl FnMut(&mut Fleet)) {
        while self.scene.now_us() < us && !self.violated() {
            self.world.step();
            each(self);
        }
    }

    /// Why not everybody agrees yet and everything is over, if so.
    fn unrest(&self) -> Option<String> {
        let mut rafts = Vec::new();
        if let Some(seat) = self.comings.waits() {
            return Some(format!("{} was not admitted", seat.name()));
        }
        for seat in self.members() {
            match seat.raft() {
                Some(raft) => rafts.push(raft),
                None => return Some(format!("{} is down", seat.name())),
            }
        }
        let leaders = rafts.iter().filter(|raft| raft.leadership().borrow().is_leader).count();
        if leaders != 1 {
            return Some(format!("{leaders} controllers lead"));
        }
        if let Some(unfinished) = self.leader().and_then(|(_, raft)| self.changing(&raft)) {
            return Some(unfinished);
        }
        if let Some(busy) = rafts.first().and_then(Self::busy) {
            return Some(busy);
        }
        let mut states = rafts.iter().map(|raft| raft.read(fleet_core::Fsm::to_snapshot));
        let first = states.next()?;
        let differ = states.any(|state| state != first);
        differ.then(|| "controllers have different states".to_owned())
    }

    /// What is left to do until those vote who are on the roster, and are there.
    fn changing(&self, raft: &fleet_controller::raft::RaftHandle) -> Option<String> {
        let wanted: Vec<u64> = raft.read(|fsm| fsm.roster().members().keys().copied().collect());
        let members = raft.members();
        if members.joint || !members.voters.keys().eq(&wanted) || !members.learners.is_empty() {
            return Some(format!("{wanted:?} are to vote, and {members:?} are members"));
        }
        let mut there = self.members();
        let removed = there.find(|seat| !wanted.contains(&seat.id()));
        removed.map(|seat| format!("{} was removed and has not noticed", seat.name()))
    }

    /// What is not over yet, if anything.
    fn busy(raft: &fleet_controller::raft::RaftHandle) -> Option<String> {
        raft.read(|fsm| {
            if let Some(job) = fsm.jobs().values().find(|job| !job.state.is_final()) {
                return Some(format!("{} is {}", job.id, job.state.word()));
            }
            if let Some(lease) = fsm.leases().values().next() {
                return Some(format!("{} is not released", lease.id));
            }
            if let Some(node) = fsm.uncounted().next() {
                return Some(format!("{node} has not said what it holds"));
            }
            if let Some(r) = fsm.reservations().find(|r| r.is_unconfirmed()) {
                return Some(format!("{} has not taken what is new of {}", r.node, r.id));
            }
            let silent = |node: &&fleet_core::node::Node| node.liveness != Liveness::Ready;
            let node = fsm.nodes().values().find(silent);
            node.map(|node| format!("{} is {:?}", node.name, node.liveness))
        })
    }

    /// The machines agree with the state, and nothing that was acknowledged is lost.
    fn judge_calm(&self) -> Result<(), String> {
        let Some(raft) = self.members().find_map(|seat| seat.raft()) else {
            return Err("no controller is there".to_owned());
        };
        raft.read(|fsm| self.scene.oracle().check_acknowledged(fsm))?;
        for at in 0..self.scene.machines.len() {
            let machine = self.scene.machine(at);
            let live = machine.attempts.iter().find(|(_, attempt)| attempt.is_live());
            if let Some((id, _)) = live {
                return Err(format!("{id} still runs on {}", machine.name));
            }
        }
        Ok(())
    }

    fn rest(&mut self) {
        let begun = self.scene.now_us();
        let mut look_at = begun;
        let mut unrest = None;
        while self.scene.now_us() < begun + REST_MAX_US && !self.violated() {
            self.world.step();
            self.supervise();
            if self.scene.now_us() >= look_at {
                look_at += LOOK_EVERY_US;
                self.stop_strangers();
                unrest = self.unrest();
                if unrest.is_none() {
                    if let Err(what) = self.judge_calm() {
                        self.scene.violation(what);
                    }
                    return;
                }
            }
        }
        if let (Some(why), false) = (unrest, self.violated()) {
            let after = REST_MAX_US / SECOND_US;
            self.scene.violation(format!("after {after} s of calm {why}"));
        }
    }

    /// Notes which nodes are up, and has what they promised judged now and then.
    fn watch_week(&mut self, look_at: &mut u64) {
        let now = self.scene.now_us();
        let is_down =
            |post: &&Post| !self.world.runs(post.host) || self.scene.machine(post.at).is_frozen();
        let down: Vec<usize> = self.posts.iter().filter(is_down).map(|post| post.at).collect();
        let mut oracle = self.scene.oracle();
        let Some(week) = &mut oracle.week else { return };
        week.down(&down, now);
        if now < *look_at {
            return;
        }
        *look_at = now + WEEK_LOOK_EVERY_US;
        for machine in &self.scene.machines {
            let machine = machine.lock().expect("nobody panics with it");
            week.ailing(machine.ailing.keys(), now);
        }
        let judged = week.judge_due(now);
        drop(oracle);
        if let Err(what) = judged {
            self.scene.violation(what);
        }
    }

    /// Processes that ended by themselves are noticed, those that are down are started again in time.
    pub(crate) fn supervise(&mut self) {
        for seat in self.seats.clone() {
            let Some(ended) = seat.take_ended() else { continue };
            match ended {
                controller::Ended::Disk(why) => {
                    self.scene.say(&seat.name(), &format!("ends: {why}"));
                }
                controller::Ended::Removed => {
                    self.scene.say(&seat.name(), "ends: it was removed");
                    self.comings.gone(seat.host);
                }
                controller::Ended::Other(why) => {
                    self.scene.violation(format!("{} ended: {why}", seat.name()));
                }
            }
            self.down(&seat, RESTART_US);
        }
        self.admit();
        let now = self.scene.now_us();
        let due: Vec<HostId> =
            self.restarts.iter().filter(|(_, at)| **at <= now).map(|(host, _)| *host).collect();
        for host in due {
            self.restarts.remove(&host);
            if !self.comings.is_gone(host) {
                self.world.start(host);
            }
        }
    }

    /// Kills a controller's process; it restarts after `for_us`.
    pub(crate) fn down(&mut self, seat: &Seat, for_us: u64) {
        seat.disk.unmount();
        seat.forget_handle();
        self.kill(seat.host, for_us);
        if self.comings.is_gone(seat.host) {
            self.restarts.remove(&seat.host);
        }
    }

    /// Kills a process; it restarts after `for_us`.
    pub(crate) fn kill(&mut self, host: HostId, for_us: u64) {
        self.world.kill(host);
        self.restarts.insert(host, self.scene.now_us() + for_us);
    }
}

/// Runs `plan` from beginning to end. Once per process: see `runner.rs`.
pub(crate) fn run(plan: Plan, pki: Pki, folder: &Path) -> Verdict {
    os::seed(plan.seed);
    os::set_clocks(0, 0);
    let mut fleet = Fleet::new(plan, pki, folder);
    let hosts = fleet.seats.len() + fleet.posts.len() + 1;
    let spare = plan.controllers..plan.controllers + plan.spare;
    for host in (0..hosts).filter(|host| !spare.contains(host)) {
        fleet.world.start(host);
    }
    fleet.until(BOOT_US, |fleet| fleet.supervise());
    let mut faults = Faults::new(Rng::new(plan.seed ^ 0xFA17), plan.kind);
    if plan.faults {
        let mut look_at = 0;
        fleet.until(BOOT_US + plan.trouble_us(), |fleet| {
            faults.step(fleet);
            if plan.kind == Kind::Week {
                fleet.watch_week(&mut look_at);
            }
        });
        faults.end(&mut fleet);
    } else {
        fleet.until(BOOT_US + TROUBLE_US / 3, |fleet| fleet.supervise());
    }
    let calm = fleet.scene.now_us() + CALM_US;
    fleet.until(calm, |fleet| fleet.supervise());
    fleet.scene.users_rest.store(true, Ordering::Relaxed);
    fleet.rest();
    fleet.scene.say("end", "of the run");
    let oracle = fleet.scene.oracle();
    let trace = fleet.scene.trace();
    Verdict {
        violation: oracle.violation.clone(),
        summary: format!(
            "{} s simulated, {} entries, {} requests of which {} unanswered, {} acknowledged, {} lines",
            fleet.scene.now_us() / SECOND_US,
            oracle.newest_index(),
            oracle.requests,
            oracle.unanswered,
            oracle.acknowledgements(),
            trace.lines(),
        ),
        trace: trace.text().to_owned(),
        happened: oracle.happened.clone(),
    }
}
