//! What goes wrong, when: from the seed, one thing after the other, several at once, each for a while.

use fleet_controller::raft::RaftHandle;
use fleet_core::health::Severity;
use fleet_core::name::GpuUuid;

use crate::agent::Post;
use crate::disk::Trouble;
use crate::machine::Machine;
use crate::net::{HostId, Weather};
use crate::rng::Rng;
use crate::run::{Fleet, Kind};

const MS_US: u64 = 1_000;
/// Between one fault and the next, where much goes wrong and where little does.
const PAUSE_US: (u64, u64) = (100 * MS_US, 2_000 * MS_US);
const LONG_PAUSE_US: (u64, u64) = (500 * MS_US, 6_000 * MS_US);
/// In some runs only nodes have trouble, or some faults do not come at all, so that what needs others to
/// stay away comes about: a leader that leads for long, a node that is only cut off.
const LEFT_OUT_PERCENT: u64 = 40;
/// How often a fault strikes where something runs.
const WHERE_IT_HURTS_PERCENT: u64 = 60;
/// How long a GPU is not well, in seconds.
const AILING_S: (u64, u64) = (3, 15);
/// A machine whose clock was set by hand, or whose battery is empty.
const YEARS_MS: i64 = 10 * 365 * 24 * 3_600_000;
/// What nobody notices.
const SECONDS_MS: i64 = 25_000;

/// In long runs: how long a node is silent or frozen, in seconds, and between one fault and the next.
const LONG_SILENCE_S: (u64, u64) = (68, 110);
const RARE_PAUSE_US: (u64, u64) = (2_000 * MS_US, 14_000 * MS_US);
/// How many of those stand still: on the others jobs end by their silence before they are given up.
const FROZEN_PERCENT: u64 = 65;
/// Nodes that are silent for long at once.
const SILENT_MAX: usize = 2;

/// In a week: how long a node is silent, in seconds, for longer than stand-ins take to be made; and how long a GPU is
/// not well.
const WEEK_SILENCE_S: (u64, u64) = (640, 900);
const WEEK_AILING_S: (u64, u64) = (60, 400);
const WEEK_PAUSE_US: (u64, u64) = (10_000 * MS_US, 60_000 * MS_US);
const FATAL_PERCENT: u64 = 20;
const WEEK_FATAL_PERCENT: u64 = 70;

/// Each kind of fault, with how often it comes beside the others.
#[derive(Debug, Clone, Copy)]
enum Fault {
    KillController,
    CutPower,
    StopController,
    CutController,
    CutOneWay,
    CutAgent,
    BadWeather,
    ResetConnections,
    SlowDisk,
    FailingDisk,
    FullDisk,
    WrongClock,
    KillAgent,
    StopAgent,
    Reboot,
    OldDocument,
    HandOver,
    AilingGpu,
    OneMore,
    LostDisks,
    LongSilence,
}

const FAULTS: &[(Fault, u64)] = &[
    (Fault::KillController, 8),
    (Fault::CutPower, 10),
    (Fault::StopController, 10),
    (Fault::CutController, 8),
    (Fault::CutOneWay, 8),
    (Fault::CutAgent, 10),
    (Fault::BadWeather, 6),
    (Fault::ResetConnections, 4),
    (Fault::SlowDisk, 5),
    (Fault::FailingDisk, 3),
    (Fault::FullDisk, 3),
    (Fault::WrongClock, 5),
    (Fault::KillAgent, 8),
    (Fault::StopAgent, 6),
    (Fault::Reboot, 3),
    (Fault::OldDocument, 12),
    (Fault::HandOver, 3),
    (Fault::AilingGpu, 12),
    (Fault::OneMore, 5),
    (Fault::LostDisks, 6),
];

/// What happens in long runs.
const RARE_FAULTS: &[(Fault, u64)] = &[
    (Fault::LongSilence, 14),
    (Fault::AilingGpu, 4),
    (Fault::CutAgent, 2),
    (Fault::OldDocument, 2),
];

/// What happens in a week.
const WEEK_FAULTS: &[(Fault, u64)] = &[
    (Fault::LongSilence, 8),
    (Fault::AilingGpu, 10),
    (Fault::KillController, 6),
    (Fault::CutPower, 4),
    (Fault::StopController, 4),
    (Fault::CutController, 4),
    (Fault::ResetConnections, 4),
    (Fault::HandOver, 3),
    (Fault::KillAgent, 6),
    (Fault::StopAgent, 4),
    (Fault::CutAgent, 8),
    (Fault::Reboot, 4),
];

impl Fault {
    /// Whether it leaves the controllers alone.
    fn strikes_nodes(self) -> bool {
        match self {
            Fault::CutAgent
            | Fault::KillAgent
            | Fault::StopAgent
            | Fault::Reboot
            | Fault::OldDocument
            | Fault::LongSilence
            | Fault::AilingGpu => true,
            Fault::KillController
            | Fault::CutPower
            | Fault::StopController
            | Fault::CutController
            | Fault::CutOneWay
            | Fault::BadWeather
            | Fault::ResetConnections
            | Fault::SlowDisk
            | Fault::FailingDisk
            | Fault::FullDisk
            | Fault::WrongClock
            | Fault::HandOver
            | Fault::OneMore
            | Fault::LostDisks => false,
        }
    }
}

/// What ends a fault.
#[derive(Debug)]
enum Cure {
    Link(HostId, HostId),
    Disk(usize),
    Clock(HostId),
    Gpu(usize, GpuUuid),
    Silence(Post),
}

/// See the module's doc.
#[derive(Debug)]
pub(crate) struct Faults {
    rng: Rng,
    /// Those that come in this run, with their weights.
    drawn: Vec<(Fault, u64)>,
    kind: Kind,
    pause_us: (u64, u64),
    next_us: u64,
    cures: Vec<(u64, Cure)>,
}

impl Faults {
    pub(crate) fn new(mut rng: Rng, kind: Kind) -> Faults {
        let all = match kind {
            Kind::Usual => None,
            Kind::Long => Some((RARE_FAULTS, RARE_PAUSE_US)),
            Kind::Week => Some((WEEK_FAULTS, WEEK_PAUSE_US)),
        };
        if let Some((drawn, pause_us)) = all {
            let (drawn, cures) = (drawn.to_vec(), Vec::new());
            return Faults { rng, drawn, kind, pause_us, next_us: 0, cures };
        }
        let mut drawn: Vec<_> = FAULTS.to_vec();
        match rng.between(0, 9) {
            0..=2 => drawn.retain(|(fault, _)| fault.strikes_nodes()),
            3..=5 => drawn.retain(|_| !rng.chance(LEFT_OUT_PERCENT)),
            _ => {}
        }
        if drawn.is_empty() {
            drawn = FAULTS.to_vec();
        }
        let pause_us = if rng.chance(30) { LONG_PAUSE_US } else { PAUSE_US };
        Faults { rng, drawn, kind, pause_us, next_us: 0, cures: Vec::new() }
    }

    /// Called after each slice.
    pub(crate) fn step(&mut self, fleet: &mut Fleet) {
        fleet.supervise();
        let now = fleet.scene.now_us();
        let due: Vec<(u64, Cure)> = self.cures.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, cure) in due {
            cure.apply(fleet);
        }
        if now >= self.next_us {
            self.next_us = now + self.rng.between(self.pause_us.0, self.pause_us.1);
            let fault = self.draw();
            self.happen(fault, fleet);
        }
    }

    /// All is well from now on.
    pub(crate) fn end(&mut self, fleet: &mut Fleet) {
        fleet.scene.say("faults", "end");
        for (_, cure) in self.cures.drain(..) {
            cure.apply(fleet);
        }
        fleet.scene.net.heal();
        fleet.world.heal();
    }

    fn draw(&mut self) -> Fault {
        let all: u64 = self.drawn.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.between(0, all - 1);
        for (fault, weight) in &self.drawn {
            if at < *weight {
                return *fault;
            }
            at -= weight;
        }
        unreachable!("less than all of them")
    }

    fn seconds(&mut self, low: u64, high: u64) -> u64 {
        self.rng.between(low * 10, high * 10) * 100 * MS_US
    }

    /// A controller, more often the one that leads.
    fn controller(&mut self, fleet: &Fleet) -> HostId {
        let hosts: Vec<HostId> = fleet.members().map(|seat| seat.host).collect();
        match fleet.leader() {
            Some((leader, _)) if self.rng.chance(50) => leader,
            _ => *self.rng.one_of(&hosts),
        }
    }

    /// How long an agent is silent: for a moment, or for as long as makes the leader suspect it.
    fn silence_seconds(&mut self) -> (u64, u64) {
        if self.rng.chance(50) { (1, 8) } else { (12, 28) }
    }

    /// A node, more often one that has work.
    fn post(&mut self, fleet: &Fleet) -> Post {
        let any = self.rng.one_of(&fleet.posts).clone();
        let works = |post: &&Post| fleet.scene.machine(post.at).live().next().is_some();
        let busy: Vec<&Post> = fleet.posts.iter().filter(works).collect();
        if busy.is_empty() || !self.rng.chance(WHERE_IT_HURTS_PERCENT) {
            return any;
        }
        (*self.rng.one_of(&busy)).clone()
    }

    /// A GPU of a node, more often one in use.
    fn gpu(&mut self, machine: &Machine) -> GpuUuid {
        let any = self.rng.one_of(&machine.gpus).clone();
        let busy: Vec<&GpuUuid> = machine.live().flat_map(|a| &a.order.gpus).collect();
        if busy.is_empty() || !self.rng.chance(WHERE_IT_HURTS_PERCENT) {
            return any;
        }
        (*self.rng.one_of(&busy)).clone()
    }

    fn until(&mut self, fleet: &Fleet, low: u64, high: u64, cure: Cure) {
        let at = fleet.scene.now_us() + self.seconds(low, high);
        self.cures.push((at, cure));
    }

    fn happen(&mut self, fault: Fault, fleet: &mut Fleet) {
        let at = self.controller(fleet);
        let seat = fleet.seats[at].clone();
        let controller = seat.host;
        let post = self.post(fleet);
        fleet.scene.say("faults", &format!("{fault:?} ({} or {})", seat.name(), post.at + 1));
        match fault {
            Fault::KillController => {
                let down = self.seconds(0, 4);
                fleet.down(&seat, down);
            }
            Fault::CutPower => {
                fleet.scene.net.go_dark(controller);
                let down = self.seconds(0, 4);
                fleet.down(&seat, down);
                seat.disk.cut_power();
            }
            Fault::StopController => {
                let us = self.rng.between(300, 9_000) * MS_US;
                fleet.world.stop_for(controller, us);
            }
            Fault::CutController | Fault::CutOneWay => self.cut(fault, controller, fleet),
            Fault::CutAgent => {
                let all = self.rng.chance(70);
                let (low, high) = self.silence_seconds();
                for host in post.controllers {
                    if all || self.rng.chance(50) {
                        fleet.scene.net.cut(host, post.host);
                        fleet.scene.net.cut(post.host, host);
                        self.until(fleet, low, high, Cure::Link(host, post.host));
                    }
                }
            }
            Fault::BadWeather => self.weather(fleet),
            Fault::ResetConnections => {
                for other in 0..fleet.seats.len() + fleet.posts.len() {
                    fleet.scene.net.reset(controller, other);
                }
            }
            Fault::SlowDisk => {
                let slow_ms = self.rng.between(50, 1_500);
                seat.disk.set_trouble(Trouble { slow_ms, ..Trouble::default() });
                self.until(fleet, 2, 10, Cure::Disk(at));
            }
            Fault::FailingDisk => {
                seat.disk.set_trouble(Trouble { fails: true, ..Trouble::default() });
                self.until(fleet, 1, 4, Cure::Disk(at));
            }
            Fault::FullDisk => {
                seat.disk.set_trouble(Trouble { full: true, ..Trouble::default() });
                self.until(fleet, 1, 4, Cure::Disk(at));
            }
            Fault::WrongClock => self.clock(controller, post.host, fleet),
            Fault::KillAgent => {
                let down = self.seconds(0, 8);
                fleet.kill(post.host, down);
            }
            Fault::StopAgent => {
                let (low, high) = self.silence_seconds();
                let us = self.seconds(low, high);
                fleet.world.stop_for(post.host, us);
            }
            Fault::Reboot => {
                let down = self.seconds(2, 8);
                fleet.scene.net.go_dark(post.host);
                fleet.kill(post.host, down);
                let now = fleet.scene.now_us();
                fleet.scene.machine(post.at).reboot(now);
            }
            Fault::OldDocument => *post.stale.lock().expect("nobody panics with it") += 1,
            Fault::AilingGpu => self.ail(&post, fleet),
            Fault::LongSilence => self.silence(fleet),
            Fault::OneMore => fleet.one_more(),
            Fault::LostDisks => fleet.restore(&mut self.rng),
            Fault::HandOver => {
                // The API asks only another member to lead.
                let to = self.rng.one_of(&fleet.seats).id();
                let member = |raft: &RaftHandle| {
                    to != raft.node() && raft.members().voters.contains_key(&to)
                };
                if let Some(raft) = seat.raft().filter(member) {
                    fleet.world.inside(controller, async move {
                        // Only a request: a controller that does not lead refuses it.
                        drop(raft.transfer_leadership(to).await);
                    });
                }
            }
        }
    }

    /// A GPU of the node is not well for a while.
    fn ail(&mut self, post: &Post, fleet: &Fleet) {
        let (percent, (low, high)) = match self.kind {
            Kind::Week => (WEEK_FATAL_PERCENT, WEEK_AILING_S),
            Kind::Usual | Kind::Long => (FATAL_PERCENT, AILING_S),
        };
        let (fatal, now) = (self.rng.chance(percent), fleet.scene.now_us());
        let severity = if fatal { Severity::Fatal } else { Severity::Degraded };
        let mut machine = fleet.scene.machine(post.at);
        let gpu = self.gpu(&machine);
        machine.ailing.insert(gpu.clone(), (severity, now));
        drop(machine);
        self.until(fleet, low, high, Cure::Gpu(post.at, gpu));
    }

    /// From all others, or from some; both ways, or one.
    fn cut(&mut self, fault: Fault, host: HostId, fleet: &mut Fleet) {
        let hears = self.rng.chance(50);
        let agents_too = self.rng.chance(30);
        let all =
            if agents_too { fleet.seats.len() + fleet.posts.len() } else { fleet.seats.len() };
        let whole = self.rng.chance(60);
        let at = fleet.scene.now_us() + self.seconds(1, 8);
        for other in (0..all).filter(|other| *other != host) {
            if !whole && self.rng.chance(50) {
                continue;
            }
            let one_way = matches!(fault, Fault::CutOneWay);
            if !one_way || hears {
                fleet.scene.net.cut(host, other);
            }
            if !one_way || !hears {
                fleet.scene.net.cut(other, host);
            }
            self.cures.push((at, Cure::Link(host, other)));
        }
    }

    /// Nobody hears the node for long: everything on it stands still, or only the network does not reach it.
    fn silence(&mut self, fleet: &mut Fleet) {
        let silent = self.cures.iter().filter_map(|(_, cure)| match cure {
            Cure::Silence(post) => Some(post.at),
            Cure::Link(..) | Cure::Disk(_) | Cure::Clock(_) | Cure::Gpu(..) => None,
        });
        let silent: Vec<usize> = silent.collect();
        let others = fleet.posts.iter().filter(|post| !silent.contains(&post.at));
        // A node with many jobs, since most end before they are given up.
        let works = |post: &&Post| match self.kind {
            Kind::Week => self.rng.next() as usize,
            Kind::Usual | Kind::Long => fleet.scene.machine(post.at).live().count(),
        };
        let Some(post) = others.max_by_key(works).filter(|_| silent.len() < SILENT_MAX) else {
            return;
        };
        let post = post.clone();
        let (low, high) = if self.kind == Kind::Week { WEEK_SILENCE_S } else { LONG_SILENCE_S };
        let us = self.seconds(low, high);
        let until = fleet.scene.now_us() + us;
        if self.rng.chance(FROZEN_PERCENT) {
            fleet.scene.machine(post.at).freeze(until);
            fleet.world.stop_for(post.host, us);
        }
        for host in &post.controllers {
            fleet.scene.net.cut(*host, post.host);
            fleet.scene.net.cut(post.host, *host);
        }
        self.cures.push((until, Cure::Silence(post)));
    }

    fn weather(&mut self, fleet: &mut Fleet) {
        let all = fleet.seats.len() + fleet.posts.len();
        let slow = self.rng.between(20, 400) * MS_US;
        let loss_percent = self.rng.between(0, 30);
        for a in 0..fleet.seats.len() {
            for b in (0..all).filter(|b| *b != a) {
                if self.rng.chance(50) {
                    let weather = Weather { delay_us: (MS_US, slow), loss_percent };
                    fleet.scene.net.set_weather(a, b, weather);
                    fleet.scene.net.set_weather(b, a, weather);
                    self.until(fleet, 2, 10, Cure::Link(a, b));
                }
            }
        }
    }

    /// One clock in the fleet is far off at a time, so that a majority is right; more may be a little off.
    fn clock(&mut self, controller: HostId, agent: HostId, fleet: &mut Fleet) {
        let host = if self.rng.chance(70) { controller } else { agent };
        let far =
            self.rng.chance(50) && !self.cures.iter().any(|(_, c)| matches!(c, Cure::Clock(_)));
        let most = if far { YEARS_MS } else { SECONDS_MS };
        let by = self.rng.between(0, most as u64) as i64;
        let by = if self.rng.chance(50) { by } else { -by };
        fleet.world.set_wall_off(host, by);
        self.until(fleet, 3, 20, Cure::Clock(host));
    }
}

impl Cure {
    fn apply(self, fleet: &mut Fleet) {
        match self {
            Cure::Link(a, b) => fleet.scene.net.heal_link(a, b),
            Cure::Disk(at) => fleet.seats[at].disk.set_trouble(Trouble::default()),
            Cure::Clock(host) => fleet.world.set_wall_off(host, 0),
            Cure::Silence(post) => {
                let now = fleet.scene.now_us();
                fleet.scene.machine(post.at).thaw(now);
                for host in post.controllers {
                    fleet.scene.net.heal_link(host, post.host);
                }
            }
            Cure::Gpu(at, gpu) => {
                fleet.scene.machine(at).ailing.remove(&gpu);
            }
        }
    }
}
