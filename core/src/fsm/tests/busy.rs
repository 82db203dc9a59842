//! Busy fleets drawn from seeds: a job that must leave does so soon after a place is there, no younger job takes that
//! place, and no GPU waits for it longer than is said.
//!
//! The judge here knows what happened, and restates what is promised. It does not ask `claims.rs`.

use std::collections::BTreeMap;

use super::world::{World, bad, gpu, node, plain, training};
use crate::allocation::{Allocation, AttemptEnd, StopWhy};
use crate::health::{Severity, Subject};
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::name::GpuUuid;
use crate::scheduler;
use crate::time::{Millis, Timestamp};

/// Of four GPUs each.
const NODES: [&str; 4] = ["titan01", "titan02", "titan03", "titan04"];
/// Fleets of each kind.
const FLEETS: u64 = 8;
/// Young jobs that wait at any time: each of one GPU, so that a GPU without work is one that is held.
const WAITING: usize = 12;
/// All of them are gone by then, or never.
const END: Millis = Millis::days(6);
/// Stated: how long a place is held around one expected checkpoint at least and at most, and what is added to the
/// longest gap.
const HELD_MIN: Millis = Millis::minutes(15);
const HELD_MAX: Millis = Millis::hours(4);
const SLACK_MIN: Millis = Millis::minutes(2);

/// Chance from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// From `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 >> 33) % (high - low + 1)
    }

    pub(super) fn minutes(&mut self, (low, high): (u64, u64)) -> Millis {
        Millis::minutes(self.between(low, high))
    }
}

/// A job that must leave.
struct Leaver {
    name: String,
    id: AllocationId,
    gpus: u32,
    /// Of its gaps, in minutes.
    gap: (u64, u64),
    saves: Vec<Timestamp>,
    next: Timestamp,
    /// Since when there has been a place for it.
    place_since: Option<Timestamp>,
    left: bool,
}

impl Leaver {
    fn gaps(&self) -> Vec<Millis> {
        self.saves.windows(2).rev().take(3).map(|pair| pair[1].since(pair[0])).collect()
    }

    fn last(&self) -> Timestamp {
        *self.saves.last().expect("it has saved")
    }

    /// From when its next save is expected, and until when at the latest a place is held for it.
    fn expected(&self) -> (Timestamp, Timestamp) {
        let gaps = self.gaps();
        let (shortest, longest) = (*gaps.iter().min().unwrap(), *gaps.iter().max().unwrap());
        let earliest = self.last() + shortest;
        let latest = self.last() + longest + Millis(longest.0 / 10).max(SLACK_MIN);
        (earliest, latest.max(earliest + HELD_MIN).min(earliest + HELD_MAX))
    }
}

struct Busy {
    w: World,
    dice: Dice,
    leavers: Vec<Leaver>,
    /// When the others end by themselves.
    ends: BTreeMap<AllocationId, Timestamp>,
    young: usize,
    /// The leavers' GPUs ail.
    faulty: bool,
    /// How long GPUs stood idle, beside work that would have run there.
    idle: Millis,
}

impl Busy {
    /// Two nodes with jobs that must leave, of these sizes, and two without; every GPU is in use.
    fn new(seed: u64, sizes: &[u32], gap: (u64, u64)) -> Busy {
        let w = World::with(&NODES);
        let (dice, ends) = (Dice::new(seed), BTreeMap::new());
        let (leavers, young, faulty, idle) = (Vec::new(), 0, false, Millis::ZERO);
        let mut busy = Busy { w, dice, leavers, ends, young, faulty, idle };
        let mut next = NODES.map(|on| (on, 0));
        for (n, gpus) in sizes.iter().enumerate() {
            let (on, first) =
                next[..2].iter_mut().find(|(_, used)| used + gpus <= 4).expect("room for it");
            let places: Vec<u32> = (*first..*first + gpus).collect();
            *first += gpus;
            let spec = JobSpec {
                time_limit: Millis::days(30),
                max_deferral: Some(Millis::days(6)),
                gpus: plain(*gpus).gpus,
                ..training()
            };
            let name = format!("leaver-{n}");
            let id = busy.w.run(&name, spec, on, &places);
            busy.add(name, id, *gpus, gap);
        }
        for (on, first) in next {
            for place in first..4 {
                let spec = JobSpec { time_limit: Millis::hours(24), ..plain(1) };
                let id = busy.w.run(&format!("{on}-{place}"), spec, on, &[place]);
                busy.will_end(&id, (20, 900));
            }
        }
        busy
    }

    fn add(&mut self, name: String, id: AllocationId, gpus: u32, gap: (u64, u64)) {
        let next = self.w.now + self.dice.minutes(gap);
        let (saves, place_since, left) = (Vec::new(), None, false);
        self.leavers.push(Leaver { name, id, gpus, gap, saves, next, place_since, left });
    }

    fn will_end(&mut self, id: &AllocationId, minutes: (u64, u64)) {
        let at = self.w.now + self.dice.minutes(minutes);
        self.ends.insert(id.clone(), at);
    }

    /// Lets everything happen up to the next thing that does, and plans.
    fn step(&mut self, until: Timestamp) {
        let saves = self.leavers.iter().filter(|l| !l.left).map(|l| l.next);
        let ends = self.ends.values().copied();
        let next = saves.chain(ends).chain(self.w.fsm.next_deadline()).chain([until]).min();
        let next = next.unwrap_or(until).max(self.w.now);
        self.idle = self.idle + Millis(next.since(self.w.now).0 * self.held());
        self.w.now = next;
        self.w.pass(Millis::ZERO);
        self.end_what_is_due();
        self.save_what_is_due();
        self.plan();
    }

    fn end_what_is_due(&mut self) {
        let now = self.w.now;
        let due: Vec<AllocationId> =
            self.ends.extract_if(.., |_, at| *at <= now).map(|(id, _)| id).collect();
        for id in due {
            let on = self.w.fsm.allocation(&id).unwrap().node.to_string();
            self.w.end(&id, AttemptEnd::Exited { code: 0 });
            self.w.release(&on);
        }
    }

    fn save_what_is_due(&mut self) {
        for at in 0..self.leavers.len() {
            let leaver = &mut self.leavers[at];
            if leaver.left || leaver.next > self.w.now {
                continue;
            }
            leaver.saves.push(self.w.now);
            let seq = leaver.saves.len() as u64;
            leaver.next = self.w.now + self.dice.minutes(leaver.gap);
            let id = leaver.id.clone();
            self.w.checkpoint(&id, seq, Millis::ZERO);
            let stop = self.w.fsm.allocation(&id).unwrap().stop.as_ref().map(|stop| &stop.why);
            match stop {
                None => {}
                Some(StopWhy::Evicted { after_checkpoint: true, .. }) => self.move_on(at),
                Some(why) => panic!("{id} is stopped in the middle of an interval: {why}"),
            }
        }
    }

    /// The job has left: its grace passes, and it resumes in the place that was held for it.
    fn move_on(&mut self, at: usize) {
        let (id, name) = (self.leavers[at].id.clone(), self.leavers[at].name.clone());
        self.plan();
        let on = self.w.fsm.allocation(&id).unwrap().node.to_string();
        self.w.end(&id, AttemptEnd::Exited { code: 143 });
        self.w.release(&on);
        self.plan();
        self.leavers[at].left = true;
        let state = self.w.state_of(&name);
        assert_eq!(state, "running", "{name} left, and its place was held for it");
    }

    /// Plans as the leader does, judged; what is placed begins at once. Young jobs come until enough wait.
    fn plan(&mut self) {
        while self.w.fsm.queue().count() < WAITING {
            let limit = *[40, 120, 1_440].get(self.dice.between(0, 2) as usize).unwrap();
            let spec = JobSpec { time_limit: Millis::minutes(limit), ..plain(1) };
            self.w.submit("bob", &format!("young-{}", self.young), spec).unwrap();
            self.young += 1;
        }
        self.note_places();
        let placements = scheduler::placements(&self.w.fsm);
        let young: Vec<(Millis, AllocationId)> = {
            let placed = self.w.schedule();
            assert_eq!(placed, placements.len());
            let all = placements.iter().map(|line| self.w.fsm.job(&line.job).unwrap());
            all.map(|job| (job.spec.time_limit, job.allocation().cloned().unwrap())).collect()
        };
        young.iter().for_each(|(_, id)| self.w.start(id));
        for (limit, id) in young {
            if limit < Millis::days(30) {
                self.judge(&id, limit);
                // Mostly long before its limit, as people's jobs do.
                let most = limit.0 / 60_000 - 2;
                self.will_end(&id, (10, most));
            }
        }
    }

    /// Healthy GPUs of each node that nobody uses, or nobody any longer at that time.
    fn free_by(&self, at: Timestamp) -> Vec<u32> {
        let fsm = &self.w.fsm;
        let ails = |on: &str, uuid: &GpuUuid| {
            let conditions = &fsm.node(&node(on)).unwrap().conditions;
            conditions.iter().any(|condition| condition.subject == Subject::Gpu(uuid.clone()))
        };
        let goes = |a: &Allocation| {
            let grace = fsm.job(&a.job).unwrap().spec.stop_grace;
            a.time_limit_at.is_some_and(|limit| limit + grace <= at)
        };
        let taken = |uuid: &GpuUuid| {
            let on_it = fsm.allocations().values().find(|a| a.gpus.contains(uuid));
            let leased = fsm.leases().values().any(|lease| lease.gpus.contains(uuid));
            on_it.map_or(leased, |a| !goes(a))
        };
        let free =
            |on: &str| (0..4).map(|n| gpu(on, n)).filter(|g| !ails(on, g) && !taken(g)).count();
        NODES.map(|on| free(on) as u32).to_vec()
    }

    /// GPUs that stand idle although young jobs of one GPU wait.
    fn held(&self) -> u64 {
        u64::from(self.free_by(self.w.now).iter().sum::<u32>())
    }

    /// The leavers that have a place now: by their rank, each on one node.
    fn with_a_place(&self) -> Vec<usize> {
        let mut free = self.free_by(self.w.now);
        let mut with = Vec::new();
        if !self.faulty {
            return with;
        }
        for (at, leaver) in self.leavers.iter().enumerate().filter(|(_, l)| !l.left) {
            let fits = free.iter_mut().filter(|free| **free >= leaver.gpus);
            // Where they want different things only the first has a place for sure.
            let Some(place) = fits.min() else { return with };
            *place -= leaver.gpus;
            with.push(at);
        }
        with
    }

    fn note_places(&mut self) {
        let now = self.w.now;
        for at in self.with_a_place() {
            self.leavers[at].place_since.get_or_insert(now);
        }
    }

    /// A young job was placed: the first of those who had a place keeps it, or has it again before it is expected to save.
    ///
    /// Only the first: a job that comes before another may exchange places with it.
    fn judge(&self, id: &AllocationId, limit: Millis) {
        let ends_at = self.w.now + limit + plain(1).stop_grace;
        let Some(leaver) = self.leavers.iter().find(|leaver| !leaver.left) else { return };
        if leaver.place_since.is_none() {
            return;
        }
        let (earliest, latest) = leaver.expected();
        if earliest < ends_at && self.w.now <= latest {
            let free = self.free_by(earliest.max(self.w.now));
            let is_there = free.iter().any(|free| *free >= leaver.gpus);
            assert!(is_there, "{id} took the place of {}", leaver.name);
        }
    }

    fn all_left(&self) -> bool {
        self.leavers.iter().all(|leaver| leaver.left)
    }

    /// Its GPUs ail from now on.
    fn fault(&mut self) {
        self.faulty = true;
        let mut of_nodes: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for leaver in &self.leavers {
            let a = self.w.fsm.allocation(&leaver.id).unwrap();
            let on = a.node.to_string();
            let places = (0..4).filter(|n| a.gpus.contains(&gpu(&on, *n)));
            let conditions = places.map(|n| bad(&on, n, Severity::Degraded)).collect::<Vec<_>>();
            of_nodes.entry(on).or_default().extend(conditions);
        }
        for (on, conditions) in of_nodes {
            self.w.conditions(&on, conditions);
        }
        for at in 0..self.leavers.len() {
            let (id, seq) = (self.leavers[at].id.clone(), self.leavers[at].saves.len() as u64);
            self.w.take_deferral(&id, seq);
        }
    }
}

/// The fleet until all have left. Each leaves within two gaps after its place is free.
fn drains(seed: u64, sizes: &[u32], gap: (u64, u64)) -> Busy {
    let mut busy = Busy::new(seed, sizes, gap);
    let begin = busy.w.now;
    while busy.leavers.iter().any(|leaver| leaver.saves.len() < 4) {
        busy.step(begin + END);
    }
    busy.fault();
    busy.idle = Millis::ZERO;
    busy.plan();
    while !busy.all_left() {
        busy.step(begin + END);
        let longest = Millis::minutes(2 * gap.1);
        for leaver in busy.leavers.iter().filter(|leaver| !leaver.left) {
            let since = leaver.place_since.map(|since| busy.w.now.since(since));
            assert!(since.is_none_or(|since| since <= longest), "{} is still there", leaver.name);
        }
        assert!(busy.w.now < begin + END, "seed {seed}: not all have left");
    }
    busy
}

#[test]
fn one_two_and_eight_leave_within_two_gaps_after_their_places_are_free() {
    for (sizes, gap) in
        [(&[1][..], (40, 60)), (&[1, 1], (40, 60)), (&[1; 8], (40, 60)), (&[1, 1], (210, 270))]
    {
        for seed in 0..FLEETS {
            let busy = drains(seed, sizes, gap);
            // Each place at most from one save, when it got free, to the end of the next one's window.
            let most = Millis::minutes(gap.1) + Millis::minutes(gap.1 / 10).max(HELD_MIN);
            let idle = busy.idle.0 / sizes.len() as u64;
            assert!(idle <= most.0, "seed {seed}: {} for each of {sizes:?}", Millis(idle));
        }
    }
}

#[test]
fn jobs_of_several_gpus_collect_them_and_leave() {
    for sizes in [&[2][..], &[4], &[2, 2], &[4, 1, 2, 1]] {
        for seed in 0..FLEETS {
            drains(seed, sizes, (40, 60));
        }
    }
}
