//! Exchanges two names as fast as the kernel allows, for tests of code that resolves a path meanwhile.
//!
//! Every so often the exchanges rest, each time with the other of the two names in its place, until the code that
//! resolves has done whole rounds. So each test sees both outcomes for certain, whatever the scheduler does.
#![allow(clippy::unwrap_used, reason = "used by tests alone")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

const SWAPS: usize = 100_000;
/// Odd, so that each rest finds the other of the two in its place.
const BETWEEN_RESTS: usize = 9_999;
/// Whole rounds in a rest: the first may have to clear up after one that was cut through.
const ROUNDS_IN_REST: usize = 3;
const REST_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct PathSwap {
    thread: JoinHandle<()>,
    /// Rounds that were begun.
    rounds: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl PathSwap {
    /// `one` is in its place at first.
    pub fn begin(one: PathBuf, other: PathBuf) -> Self {
        let (rounds, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (begun, told) = (Arc::clone(&rounds), Arc::clone(&over));
        let thread = thread::spawn(move || {
            for swap in 1..=SWAPS {
                let flags = RenameFlags::RENAME_EXCHANGE;
                renameat2(AT_FDCWD, &one, AT_FDCWD, &other, flags).unwrap();
                if swap % BETWEEN_RESTS == 0 {
                    rest(&begun);
                }
            }
            told.store(true, Ordering::Release);
        });
        Self { thread, rounds, over }
    }

    /// Begins a round of the code that resolves. False once the exchanges are over.
    pub fn goes_on(&self) -> bool {
        self.rounds.fetch_add(1, Ordering::AcqRel);
        !self.over.load(Ordering::Acquire)
    }

    /// After the last round.
    pub fn join(self) {
        self.thread.join().unwrap();
    }
}

/// The round that is under way at the beginning of a rest is not a whole one.
fn rest(begun: &AtomicUsize) {
    let (first, since) = (begun.load(Ordering::Acquire), Instant::now());
    while begun.load(Ordering::Acquire) <= first + ROUNDS_IN_REST {
        assert!(since.elapsed() < REST_MAX, "nobody resolves the names that are exchanged");
        thread::yield_now();
    }
}
