//! The leader's loop over long random histories: no job waits while there is a place for it, and once
//! everything is well again and nothing runs, the queue is empty.
//!
//! The loop here plans as the controller's does: only when the state says that a plan may come out
//! differently. A command that forgets to say so leaves a job in the queue, and these tests find it.

use super::world::{World, ended, job, node, person, plain, sticky, training};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{Command, JobCommand, NodeCommand, Report, ReservationCommand};
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::node::Liveness;
use crate::reply::Reply;
use crate::scheduler;
use crate::time::Millis;

/// Histories of each kind of fleet, and steps of each.
const SEEDS: u64 = 16;
const STEPS: usize = 150;
/// No job pauses longer before it is tried again.
const PAUSE_MAX: Millis = Millis::minutes(10);
/// Plans one after the other without an end: lines that are refused again and again.
const ROUNDS_MAX: usize = 200;
/// Lines of a plan in one command: fewer than there can be.
const LINES_MAX: usize = 3;
const PEOPLE: [&str; 3] = ["ada", "bob", "cleo"];

/// Marsaglia's xorshift: the same seed gives the same history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        let at = self.roll(items.len().max(1) as u64) as usize;
        items.get(at).cloned()
    }
}

/// A fleet with its leader.
struct Led {
    w: World,
    nodes: Vec<String>,
    dice: Dice,
    planned: Option<u64>,
    submitted: usize,
}

impl Led {
    fn new(nodes: usize, seed: u64) -> Self {
        let nodes: Vec<String> = (1..=nodes).map(|n| format!("titan0{n}")).collect();
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Self { w: World::with(&names), nodes, dice, planned: None, submitted: 0 }
    }

    /// What the controller's scheduling loop does when it is woken.
    fn lead(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let inputs = self.w.fsm.plan_inputs();
            if self.planned == Some(inputs) {
                return;
            }
            let mut placements = scheduler::placements(&self.w.fsm);
            self.planned = Some(inputs);
            if !placements.is_empty() {
                placements.truncate(LINES_MAX);
                self.w
                    .give(Actor::controller(), Command::Job(JobCommand::Place { placements }))
                    .unwrap();
                self.planned = None;
            }
        }
        panic!("the leader plans without an end: {:?}", scheduler::placements(&self.w.fsm));
    }

    fn attempts(&self) -> Vec<AllocationId> {
        self.w.fsm.allocations().keys().cloned().collect()
    }

    fn any_node(&mut self) -> String {
        let nodes = self.nodes.clone();
        self.dice.pick(&nodes).unwrap()
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let count = self.dice.roll(5) as u32;
        let who = self.dice.pick(&PEOPLE).unwrap();
        let base = if count > 0 && self.dice.roll(2) == 0 { training() } else { plain(count) };
        let mut spec = JobSpec {
            // Jobs without GPUs may have half of a node.
            cpu_millis: Some(500 * (1 + self.dice.roll(if count > 0 { 16 } else { 8 }))),
            memory_bytes: Some((1 + self.dice.roll(if count > 0 { 64 } else { 32 })) << 30),
            time_limit: Millis::minutes(1 + self.dice.roll(600)),
            ..base
        };
        spec.gpus.count = count;
        if self.dice.roll(6) == 0 {
            spec.gpus.node = Some(node(&self.any_node()));
        }
        self.w.submit(who, &format!("j{}", self.submitted), spec).unwrap();
    }

    fn end_one(&mut self, id: &AllocationId) {
        let end = match self.dice.roll(6) {
            0 => AttemptEnd::Exited { code: 1 },
            1 | 2 => AttemptEnd::NodeFault { message: "no runtime".to_owned() },
            _ => AttemptEnd::Exited { code: 0 },
        };
        self.w.end(id, end);
    }

    fn step(&mut self) {
        let (attempts, on) = (self.attempts(), self.any_node());
        let one = self.dice.pick(&attempts);
        let root = || person("root");
        match (self.dice.roll(20), one) {
            (0..=5, _) => self.submit(),
            (6..=7, Some(id)) => self.w.start(&id),
            (8..=11, Some(id)) => self.end_one(&id),
            (12..=13, _) => self.w.release(&on),
            (14, Some(id)) => {
                let id = self.w.fsm.allocation(&id).unwrap().job.clone();
                self.w.give(root(), Command::Job(JobCommand::Cancel { id })).unwrap();
            }
            (15, _) => self.w.conditions(&on, vec![sticky(&on, 0)]),
            (16, _) => self.w.conditions(&on, Vec::new()),
            (17, _) => {
                let liveness = [Liveness::Suspect, Liveness::Ready][self.dice.roll(2) as usize];
                let silent_for = Millis::secs(11);
                let command = Command::Node(NodeCommand::SetLiveness {
                    node: node(&on),
                    liveness,
                    silent_for,
                });
                self.w.give(Actor::controller(), command).unwrap();
            }
            (18, _) => {
                let (name, hours) = (format!("r{}", self.w.fsm.applied()), self.dice.roll(3));
                let who = self.dice.pick(&PEOPLE).unwrap();
                let from = Millis::hours(hours);
                // A refusal is an answer too.
                self.w.reserve(who, &name, 1, from, Millis::minutes(30)).ok();
            }
            _ => {
                let length = Millis::minutes(self.dice.roll(40));
                self.w.pass(length);
            }
        }
    }

    /// Nothing stands in the way of any job: no promise, no closed node, no fault, nothing running.
    fn is_idle(&self) -> bool {
        let fsm = &self.w.fsm;
        let well = |n: &crate::node::Node| n.closed().is_none() && n.conditions.is_empty();
        fsm.allocations().is_empty()
            && fsm.leases().is_empty()
            && fsm.nodes().values().all(well)
            && !fsm.reservations().any(|r| r.is_open())
    }

    fn nobody_waits_in_vain(&self) {
        if !self.is_idle() {
            return;
        }
        let waiting: Vec<_> = self.w.fsm.queue().map(|job| job.id.clone()).collect();
        let why = scheduler::plan(&self.w.fsm).waiting;
        assert!(waiting.is_empty(), "{waiting:?} on an idle fleet: {why:?}");
    }

    /// Makes everything well, ends what runs and releases what is held.
    fn calm(&mut self) {
        for on in self.nodes.clone() {
            self.w.conditions(&on, Vec::new());
            let (node, liveness) = (node(&on), Liveness::Ready);
            let command = Command::Node(NodeCommand::SetLiveness {
                node,
                liveness,
                silent_for: Millis::ZERO,
            });
            self.w.give(Actor::controller(), command).unwrap();
        }
        let open: Vec<_> =
            self.w.fsm.reservations().filter(|r| r.is_open()).map(|r| r.id.clone()).collect();
        for id in open {
            self.w
                .give(person("root"), Command::Reservation(ReservationCommand::Release { id }))
                .unwrap();
        }
        self.lead();
        // Each round ends one attempt, and each job has few.
        for _ in 0..self.submitted * 8 {
            if let Some(id) = self.attempts().into_iter().next() {
                self.w.end(&id, AttemptEnd::Exited { code: 0 });
            }
            for on in self.nodes.clone() {
                self.w.release(&on);
            }
            self.lead();
            let fsm = &self.w.fsm;
            if fsm.jobs().keys().any(|id| fsm.paused_until(id).is_some()) {
                self.w.pass(PAUSE_MAX);
                self.lead();
            } else if self.is_idle() {
                return;
            }
        }
    }
}

fn endure(nodes: usize) {
    for seed in 1..=SEEDS {
        let mut led = Led::new(nodes, seed);
        for _ in 0..STEPS {
            led.step();
            led.lead();
            led.nobody_waits_in_vain();
        }
        led.calm();
        let (left, held) = (led.w.fsm.allocations(), led.w.fsm.leases());
        assert!(led.is_idle(), "seed {seed}: not calm: {left:?} {held:?}");
        led.nobody_waits_in_vain();
        let open = led.w.fsm.jobs().values().filter(|job| !job.state.is_final()).count();
        assert_eq!((open, led.submitted > 20), (0, true), "seed {seed}");
    }
}

#[test]
fn one_node_leaves_no_job_behind() {
    endure(1);
}

#[test]
fn three_nodes_leave_no_job_behind() {
    endure(3);
}

/// The bench's own case: many small jobs of one kind, in whatever order they end and are reported.
#[test]
fn a_thousand_small_jobs_on_one_node_all_end() {
    for seed in 1..=3 {
        let mut led = Led::new(1, seed);
        let mut left = 1_000;
        while left > 0 || !led.is_idle() {
            let submits = led.dice.roll(6).min(left);
            left -= submits;
            for _ in 0..submits {
                led.submitted += 1;
                let spec = JobSpec { cpu_millis: Some(2_000), ..plain(0) };
                led.w.submit("ada", &format!("j{}", led.submitted), spec).unwrap();
            }
            // Several reports in one batch, a start that fails among them, as the agent sends them.
            let mut reports = Vec::new();
            for id in led.attempts() {
                if led.dice.roll(2) == 0 {
                    continue;
                }
                let epoch = led.w.fsm.allocation(&id).unwrap().epoch;
                let end = match led.dice.roll(50) {
                    0 => AttemptEnd::NodeFault { message: "busy".to_owned() },
                    _ => AttemptEnd::Exited { code: 0 },
                };
                reports.push(Report::Ended { allocation: id, epoch, report: ended(end, false) });
            }
            let command = Command::Node(NodeCommand::Report { node: node("titan01"), reports });
            assert_eq!(led.w.give(super::world::agent("titan01"), command), Ok(Reply::Done));
            led.lead();
            led.nobody_waits_in_vain();
        }
        let done = |n: usize| led.w.state_of(&format!("j{n}")) == "completed";
        assert!((1..=1_000).all(done), "seed {seed}");
    }
}

/// A start that failed rules a node out only while the job has another to go to.
#[test]
fn a_failed_start_does_not_rule_out_the_only_node_that_fits() {
    let mut w = World::with(&["titan01"]);
    // Only titan01 has four GPUs.
    let facts = Box::new(super::world::facts("titan02", 2, "boot-1"));
    let join = Command::Node(NodeCommand::Register { node: node("titan02"), facts });
    w.give(super::world::agent("titan02"), join).unwrap();
    w.submit("ada", "a", plain(4)).unwrap();
    w.schedule();
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&id, AttemptEnd::NodeFault { message: "no runtime".to_owned() });
    w.release("titan01");
    assert_eq!(w.schedule(), 1, "{:?}", scheduler::plan(&w.fsm).waiting);
    // Where another is open and fits, that is tried.
    w.submit("ada", "b", plain(1)).unwrap();
    let id = w.place("b", "titan02", &[0]).unwrap();
    w.end(&id, AttemptEnd::NodeFault { message: "no runtime".to_owned() });
    assert!(w.fsm.job(&job("b")).unwrap().excluded_nodes.contains_key(&node("titan02")));
}
