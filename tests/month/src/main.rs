//! The lab's month: whether the queue is as fair as it says, over four weeks of a lab that has more work than GPUs.
//!
//! Real commands go into the real state machine and scheduler; agents, people and faults are simulated from a seed.
//! [`work`] is the month, [`run`] and [`agents`] carry it out, [`due`] and [`measures`] judge it. `make month` runs it
//! (`SEEDS=50 SEED=1`); what it found is in `docs/lab-month.md`. `BUGS=1` looks for the planted bugs instead
//! ([`bugs`], [`scenes`]).
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for developers, like a test"
)]

mod agents;
mod bugs;
mod draw;
mod due;
mod lab;
mod measures;
mod multifactor;
mod pictures;
mod record;
mod run;
mod scenes;
mod span;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::table::{Seed, verdicts};

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() -> ExitCode {
    if std::env::var_os("BUGS").is_some() {
        return find_bugs();
    }
    let (first, count) = (number("SEED", 1), number("SEEDS", 2));
    let next = AtomicU64::new(first);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let seed = Seed::run(seed);
                    println!("{seed}");
                    done.lock().expect("no thread panics with it").push(seed);
                }
            });
        }
    });
    let mut seeds = done.into_inner().expect("no thread panics with it");
    seeds.sort_by_key(|seed| seed.number);
    println!("\n{}", table::means(&seeds));
    let verdicts = verdicts(&seeds);
    verdicts.iter().for_each(|verdict| println!("{verdict}"));
    if let Some(folder) = std::env::var_os("PICTURES") {
        pictures::write(std::path::Path::new(&folder), &seeds)
            .expect("a folder that can be written");
    }
    let broken: Vec<&String> = seeds.iter().flat_map(|seed| &seed.violations).collect();
    broken.iter().for_each(|violation| println!("VIOLATION: {violation}"));
    match broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Each bug must be seen by its scene, and nothing may be seen there without it.
fn find_bugs() -> ExitCode {
    let only = std::env::var("BUG").ok();
    let mut missed = 0;
    for (name, bug) in bugs::ALL {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let (sound, planted) = (scenes::scene_of(bug, None), scenes::scene_of(bug, Some(bug)));
        let (what, with, without) = (planted.what, planted.value, sound.value);
        match sound.holds && sound.violations == 0 && !planted.holds {
            true => println!("{name} found: {what} {with:.3}; without the bug {without:.3}"),
            false => {
                println!("{name} NOT found: {what} {with:.3}; without the bug {without:.3}");
                missed += 1;
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
