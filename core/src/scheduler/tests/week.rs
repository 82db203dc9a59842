//! A week of a lab that has more work than GPUs: what shares change for people, against the order of submission.
//!
//! The same work is run twice. Where each job has an owner of its own, nobody ever had anything, and the queue is served
//! in the order of submission, with the same backfill.

use std::collections::BTreeMap;

use super::story::{BEGINNING, Story, spec};
use crate::allocation::AttemptEnd;
use crate::job::JobState;
use crate::reservation::GpuRequest;
use crate::time::{Millis, Timestamp};

/// A run takes ten seconds without optimisation; each seed is two.
const SEEDS: [u64; 1] = [1];
const NODES: u32 = 2;
const GPUS_EACH: u32 = 8;
const DAYS: u64 = 7;
/// People who send a job now and then.
const PEOPLE: u64 = 12;
/// Jobs that one person sends at once on the first day.
const BURST: u64 = 200;

struct Work {
    owner: String,
    sent: Timestamp,
    gpus: u32,
    limit: Millis,
    runs: Millis,
}

/// Numbers that are the same in each run: splitmix64.
struct Drawn(u64);

impl Drawn {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Runs of half an hour to eight hours with limits four times as long; most on one GPU, some on a whole node.
fn work(seed: u64) -> Vec<Work> {
    let mut drawn = Drawn(seed);
    let mut all = Vec::new();
    let mut one = |owner: String, sent: Timestamp| {
        let gpus = [1, 1, 1, 1, 2, 2, 4, 8][drawn.below(8) as usize];
        let runs = Millis::minutes(30 + drawn.below(4) * drawn.below(150));
        let limit = Millis(runs.0 * 4);
        all.push(Work { owner, sent, gpus, limit, runs });
    };
    for _ in 0..BURST {
        one("heavy".to_owned(), BEGINNING + Millis::hours(20));
    }
    let mut when = Drawn(seed ^ 1);
    for person in 0..PEOPLE {
        let mut at = BEGINNING;
        loop {
            at = at + Millis::minutes(60 + when.below(1_400));
            if at > BEGINNING + Millis::days(DAYS) {
                break;
            }
            one(format!("person{person:02}"), at);
        }
    }
    all.sort_by_key(|work| work.sent);
    all
}

struct Outcome {
    /// How long each job waited, by its real owner.
    waited: BTreeMap<String, Vec<Millis>>,
    /// Busy GPU-hours until the end of the week.
    busy: u64,
}

fn run(work: &[Work], each_its_own_owner: bool) -> Outcome {
    let mut story = Story::new();
    for at in 0..NODES {
        let gpus = format!("titan-x*{GPUS_EACH}");
        story.join(&format!("titan{at:02}"), &[&gpus, "cores=64", "gib=512"]);
    }
    let end = BEGINNING + Millis::days(DAYS);
    let mut waited: BTreeMap<String, Vec<Millis>> = BTreeMap::new();
    let (mut running, mut next, mut busy) = (BTreeMap::<(Timestamp, usize), ()>::new(), 0, 0);
    let mut seen = vec![false; work.len()];
    let id = |at: usize| format!("job-{at:04}");
    loop {
        let sent = work.get(next).map(|work| work.sent);
        let ends = running.keys().next().map(|(at, _)| *at);
        let Some(now) = sent.into_iter().chain(ends).min().filter(|at| *at <= end) else { break };
        story.go_to(now);
        while let Some((&(at, which), ())) = running.first_key_value() {
            if at > now {
                break;
            }
            running.remove(&(at, which));
            story.end(&id(which), AttemptEnd::Exited { code: 0 });
        }
        (0..NODES).for_each(|node| story.freed(&format!("titan{node:02}")));
        while let Some(of) = work.get(next).filter(|work| work.sent <= now) {
            let owner = if each_its_own_owner { format!("u{next}") } else { of.owner.clone() };
            let gpus = GpuRequest { count: of.gpus, ..GpuRequest::default() };
            story.submit(&id(next), &owner, spec(gpus, of.limit)).unwrap();
            next += 1;
        }
        for line in story.place().placements {
            let which: usize = line.job.as_str()[4..].parse().unwrap();
            let of = &work[which];
            assert!(!std::mem::replace(&mut seen[which], true), "{} started twice", line.job);
            waited.entry(of.owner.clone()).or_default().push(now.since(of.sent));
            running.insert((now + of.runs, which), ());
            busy += u64::from(of.gpus) * (now + of.runs).min(end).since(now).0;
        }
        story.start_all();
    }
    // What never started has waited to the end at least.
    for (at, of) in work.iter().enumerate().filter(|(at, of)| !seen[*at] && of.sent <= end) {
        let job = story.fsm.jobs().values().find(|job| job.id.as_str() == id(at)).unwrap();
        assert_eq!(job.state, JobState::Queued);
        waited.entry(of.owner.clone()).or_default().push(end.since(of.sent));
    }
    story.fsm.check_invariants().unwrap();
    Outcome { waited, busy: busy / 3_600_000 }
}

/// What 95 of 100 waits are shorter than, over all people but the heavy one.
fn usual_wait(outcome: &Outcome) -> Millis {
    let others = outcome.waited.iter().filter(|(owner, _)| *owner != "heavy");
    let mut waits: Vec<Millis> = others.flat_map(|(_, waits)| waits.iter().copied()).collect();
    waits.sort_unstable();
    waits[waits.len() * 95 / 100]
}

#[test]
fn in_a_busy_week_people_do_not_wait_for_one_persons_burst_and_no_gpu_idles_for_it() {
    for seed in SEEDS {
        let work = work(seed);
        let (by_shares, by_submission) = (run(&work, false), run(&work, true));
        let (shared, first_come) = (usual_wait(&by_shares), usual_wait(&by_submission));
        println!(
            "seed {seed}: {} jobs; 95 of 100 waits of the others are shorter than {shared} by shares, {first_come} by \
             submission; GPU-hours {} and {}",
            work.len(),
            by_shares.busy,
            by_submission.busy
        );
        assert!(shared.0 * 3 < first_come.0, "seed {seed}: {shared} against {first_come}");
        assert!(by_shares.busy * 100 >= by_submission.busy * 97, "seed {seed}");
    }
}
