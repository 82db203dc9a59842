//! The simulation: whole fleets from seeds, with everything that can go wrong, judged after every step.
//!
//! One process, one thread, simulated time. What is the product's own, and what is not:
//!
//! * real: the core; openraft with the product's log store, snapshots, audit database and network; the gRPC
//!   services and the leader's loops of the controller; making and restoring backups; link, outbox, fences, plan and calendar of the agent;
//!   every message on the wire, by tonic and HTTP/2.
//! * simulated: clocks and randomness ([`os`]), disks ([`disk`]), the network ([`net`]), machines with GPUs
//!   and processes ([`machine`]), what moves shims and proves GPUs empty ([`agent`]), users ([`user`]).
//! * left out: TLS, certificates, the command line, tunnels to jobs, root's grants on a node without
//!   controllers. Tests with real processes have those.
//!
//! Start reading at [`run`]; [`faults`] is what goes wrong, [`oracle`] what must hold, [`bugs`] what must be
//! found. `make sim SEEDS=2000 SEED=1` runs more of it, `make sim-bugs` looks for each known bug. [`week`] is a lab's
//! week of reservations: `make sim-week`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod agent;
mod bugs;
mod controller;
mod disk;
mod faults;
mod files;
mod held;
mod machine;
mod net;
mod oracle;
mod os;
mod pki;
mod preempted;
mod promised;
mod restore;
mod rng;
mod roster;
mod run;
mod runner;
mod scene;
mod trace;
mod user;
mod week;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use crate::pki::Pki;
use crate::run::{Kind, Plan};
use crate::runner::{ASK, Ask, Found, Runner, TELL, folders};

/// Seeds of one run of the tests.
const SEEDS: u64 = 50;
/// Weeks of one run of the tests.
const WEEKS: u64 = 2;
/// Seeds in a row that may miss a known bug: fresh ones, and those that begin with the one written down.
const FRESH_MAX: u64 = 500;
const RECORDED_MAX: u64 = 100;
/// What happens in some of that many runs. Where it does not the world has become too dull to prove
/// anything: requests are refused for a wrong reason, or work never has to leave.
const HAPPENS: &[&str] = &[
    "AttemptAdopted",
    "CheckpointChanged",
    "CheckpointRecorded",
    "ConditionCleared",
    "ConditionRaised",
    "ControllerAdmitted",
    "ControllerRemoved",
    "DeferralCancelled",
    "DeferralHeldBack",
    "DeferralTaken",
    "EvictionDeferred",
    "EvictionStarted",
    "HeardLate",
    "JobAsksOwner",
    "JobCancelled",
    "JobCompleted",
    "JobRequeued",
    "JobResumed",
    "JobTimedOut",
    "LeftABadPlace",
    "LeftInACrowd",
    "LivenessChanged",
    "NodeCounted",
    "NodeDrained",
    "NodeDraining",
    "NodeRebooted",
    "NodeUncordoned",
    "Preempted",
    "ReservationDelayed",
    "ReservationEdited",
    "ReservationEditDone",
    "ReservationEnded",
    "ReservationExtended",
    "ReservationWaitOver",
    "ReservationWaits",
    "Replaced",
    "Restored",
    "ResumedFromWhatWasFound",
    "SavedOnWaking",
];
/// Lines of a trace that are shown when something was found.
const SHOWN_LINES: usize = 60;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn tell(text: &str) {
    // Nobody reads it: no reason to fail.
    drop(writeln!(std::io::stdout(), "{text}"));
}

/// Run by the others, as a process of its own; by itself it runs one thin fleet.
#[test]
fn one_run() {
    let own = tempfile::tempdir().unwrap();
    let tell_to = std::env::var_os(TELL).map_or(own.path().join("run.json"), Into::into);
    let ask: Ask = match std::env::var(ASK) {
        Ok(json) => serde_json::from_str(&json).unwrap(),
        Err(_) => Ask { seed: 1, bug: None, thin: true, week: false },
    };
    let (pki, folder) = folders(&tell_to);
    let bug = ask.bug.as_deref().map(|name| bugs::named(name).unwrap());
    let plan = match (ask.thin, ask.week) {
        (_, true) => Plan::week(ask.seed, bug),
        (true, false) => Plan {
            controllers: 1,
            spare: 0,
            nodes: 1,
            users: &["alice"],
            faults: false,
            kind: Kind::Usual,
            ..Plan::usual(ask.seed, bug)
        },
        (false, false) => Plan::usual(ask.seed, bug),
    };
    // A thread of its own: nothing has drawn from its randomness yet.
    let (pki, at) = (Pki::open(&pki), folder.path().to_owned());
    let verdict = std::thread::spawn(move || run::run(plan, pki, &at)).join().unwrap();
    let run::Verdict { violation, summary, trace, happened } = verdict;
    let found = Found { violation, summary, trace, happened };
    std::fs::write(&tell_to, serde_json::to_vec(&found).unwrap()).unwrap();
    if std::env::var_os(TELL).is_none() {
        assert_eq!(found.violation, None, "{}", end_of(&found.trace));
    }
}

fn end_of(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// Leaves the whole trace where it can be read, if somebody asked for it.
fn keep(seed: u64, found: &Found) {
    if let Some(folder) = std::env::var_os("SIM_TRACES") {
        let folder = Path::new(&folder);
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(format!("seed-{seed}.txt")), &found.trace).unwrap();
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let runner = Runner::new();
    for thin in [true, false] {
        let ask = Ask { seed: number("SEED").unwrap_or(7), bug: None, thin, week: false };
        let mut traces = Vec::new();
        runner.run([ask.clone(), ask], |_, found| {
            keep(traces.len() as u64, &found);
            traces.push(found.trace);
            true
        });
        let differs = traces[0].lines().zip(traces[1].lines()).find(|(a, b)| a != b);
        assert_eq!(differs, None, "the first line that differs");
        assert_eq!(traces[0], traces[1]);
        let least = if thin { 20 } else { 100 };
        assert!(traces[0].lines().count() > least, "something happened:\n{}", traces[0]);
    }
}

#[test]
fn nothing_that_must_not_happens() {
    let runner = Runner::new();
    let first = number("SEED").unwrap_or(1);
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let mut bad = Vec::new();
    let mut last = String::new();
    let mut happened: BTreeMap<String, u64> = BTreeMap::new();
    let asks = (first..first + seeds).map(|seed| Ask { seed, bug: None, thin: false, week: false });
    runner.run(asks, |ask, found| {
        keep(ask.seed, &found);
        if let Some(violation) = &found.violation {
            tell(&format!("seed {}: {violation}\n{}", ask.seed, end_of(&found.trace)));
            bad.push((ask.seed, violation.clone()));
        } else if number("SEEDS").is_some() {
            tell(&format!("seed {}: {}", ask.seed, found.summary));
        }
        last = found.summary;
        for (kind, times) in found.happened {
            *happened.entry(kind).or_default() += times;
        }
        true
    });
    assert_eq!(bad, [], "seeds that found something; run one again by `make sim SEEDS=1 SEED=…`");
    let absent: Vec<_> = HAPPENS.iter().filter(|kind| !happened.contains_key(**kind)).collect();
    assert!(seeds < SEEDS || absent.is_empty(), "in no run there was {absent:?}: {happened:?}");
    tell(&format!("{seeds} seeds, nothing found; the last one: {last}\n{happened:?}"));
}

#[test]
fn a_lab_week_keeps_its_promises() {
    let runner = Runner::new();
    let first = number("SEED").unwrap_or(1);
    let seeds = number("SEEDS").unwrap_or(WEEKS);
    let mut bad = Vec::new();
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    let mut least: BTreeMap<&str, u64> = BTreeMap::new();
    let asks = (first..first + seeds).map(|seed| Ask { seed, bug: None, thin: false, week: true });
    runner.run(asks, |ask, found| {
        keep(ask.seed, &found);
        let of = |what: &str| found.happened.get(what).copied().unwrap_or(0);
        let counts: Vec<_> = week::counted().map(|what| (what, of(what))).collect();
        if let Some(violation) = &found.violation {
            tell(&format!("week {}: {violation}\n{}", ask.seed, end_of(&found.trace)));
            bad.push((ask.seed, violation.clone()));
        } else {
            tell(&format!("week {}: {}, {counts:?}", ask.seed, found.summary));
            let few = week::LEAST.iter().filter(|(what, most)| of(what) < *most);
            bad.extend(few.map(|(what, most)| {
                (ask.seed, format!("{what} came {} times, at least {most} are wanted", of(what)))
            }));
        }
        for (what, times) in counts {
            let known = least.entry(what).or_insert(times);
            *known = times.min(*known);
        }
        for (kind, times) in found.happened {
            *all.entry(kind).or_default() += times;
        }
        true
    });
    assert_eq!(bad, [], "weeks; run one again by `make sim-week SEEDS=1 SEED=…`");
    let absent: Vec<_> = week::SOMETIMES.iter().filter(|kind| !all.contains_key(**kind)).collect();
    assert!(seeds < WEEKS || absent.is_empty(), "in no week there was {absent:?}: {all:?}");
    tell(&format!("{seeds} weeks, nothing found; the least of each: {least:?}\n{all:?}"));
}

/// Each by the seed that is written down for it, or one soon after it, since any change of the program
/// moves what a seed draws; with `BUGS=fresh` by whatever seed comes first.
#[test]
fn each_known_bug_is_found() {
    let runner = Runner::new();
    let fresh = std::env::var("BUGS").is_ok_and(|text| text == "fresh");
    let first = number("SEED").unwrap_or(1);
    let only = std::env::var("BUG").ok();
    let mut missed = Vec::new();
    for known in bugs::ALL.iter().filter(|known| only.as_deref().is_none_or(|o| o == known.name)) {
        let (first, most) = if fresh { (first, FRESH_MAX) } else { (known.seed, RECORDED_MAX) };
        let seeds = first..first + most;
        let bug = Some(known.name.to_owned());
        let asks = seeds.map(|seed| Ask { seed, bug: bug.clone(), thin: false, week: known.week });
        let mut found_by = None;
        runner.run(asks, |ask, found| {
            keep(ask.seed, &found);
            let Some(violation) = found.violation else { return true };
            assert!(!found.trace.is_empty(), "seed {} ended without a word", ask.seed);
            found_by = Some((ask.seed, violation));
            false
        });
        match found_by {
            Some((seed, what)) => tell(&format!("{} found by seed {seed}: {what}", known.name)),
            None => missed.push(known.name),
        }
    }
    assert_eq!(missed, [""; 0], "known bugs that were not found");
}
