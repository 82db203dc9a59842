//! Varying gaps between saves, drawn from seeds: a job that must leave gets its place and is not stopped between saves.

use super::busy::Dice;
use super::world::{World, bad, job, plain, training};
use crate::allocation::{AttemptEnd, StopWhy};
use crate::health::Severity;
use crate::id::AllocationId;
use crate::job::JobSpec;
use crate::time::{Millis, Timestamp};

/// Minutes: about hourly, and every four hours.
const GAPS: [(u64, u64); 2] = [(40, 60), (210, 270)];
/// Jobs of each kind.
const JOBS: u64 = 100;
/// Saves before the order to leave: three gaps are known.
const SAVES: u64 = 4;

/// A job that saves again and again, on a fleet without a free GPU.
struct Saver {
    w: World,
    dice: Dice,
    gap: (u64, u64),
    id: AllocationId,
    seq: u64,
    next_save: Timestamp,
}

impl Saver {
    /// The order to leave has just come, somewhere between two saves.
    fn told_to_leave(seed: u64, gap: (u64, u64), limit: Millis) -> Saver {
        let mut w = World::with(&["titan01", "titan02"]);
        let mut dice = Dice::new(seed);
        let long = |spec| JobSpec { time_limit: Millis::days(9), ..spec };
        let spec = JobSpec { max_deferral: Some(limit), ..long(training()) };
        let id = w.run("a", spec, "titan01", &[0]);
        for n in 0..4 {
            w.run(&format!("other-{n}"), long(plain(1)), "titan02", &[n]);
        }
        for n in 0..8 {
            w.submit("bob", &format!("young-{n}"), long(plain(1))).unwrap();
        }
        for n in 1..4 {
            w.place(&format!("young-{n}"), "titan01", &[n]).unwrap();
        }
        let next_save = w.now + dice.minutes(gap);
        let mut saver = Saver { w, dice, gap, id, seq: 0, next_save };
        while saver.seq < SAVES {
            saver.save();
        }
        let between = saver.next_save.since(saver.w.now).0 / 60_000;
        let passed = saver.dice.minutes((0, between - 1));
        saver.w.pass(passed);
        saver.w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
        let id = saver.id.clone();
        saver.w.take_deferral(&id, SAVES);
        saver
    }

    fn save(&mut self) {
        self.w.now = self.next_save;
        self.w.pass(Millis::ZERO);
        self.seq += 1;
        let id = self.id.clone();
        self.w.checkpoint(&id, self.seq, Millis::secs(1));
        self.next_save = self.w.now + self.dice.minutes(self.gap);
    }

    /// Time passes, and the leader plans whenever it alone changes something.
    fn wait(&mut self, until: Timestamp) {
        while let Some(next) = self.w.fsm.next_deadline().filter(|next| *next < until) {
            self.w.now = self.w.now.max(next);
            self.w.pass(Millis::ZERO);
            self.w.schedule();
        }
        self.w.now = until;
        self.w.pass(Millis::ZERO);
        self.w.schedule();
    }

    fn stop(&self) -> Option<&StopWhy> {
        self.w.fsm.allocation(&self.id)?.stop.as_ref().map(|stop| &stop.why)
    }
}

#[test]
fn nearly_all_leave_at_the_first_save_after_their_place_is_free() {
    for gap in GAPS {
        let mut met = 0;
        for seed in 0..JOBS {
            let mut saver = Saver::told_to_leave(seed, gap, Millis::days(6));
            let free_at = saver.w.now + saver.dice.minutes((0, 3 * gap.0));
            while saver.next_save <= free_at {
                saver.wait(saver.next_save);
                saver.save();
                assert_eq!(saver.w.state_of("a"), "running", "there is no place yet");
            }
            saver.wait(free_at);
            let other = saver.w.fsm.job(&job("other-1")).unwrap().allocation().cloned().unwrap();
            saver.w.end(&other, AttemptEnd::Exited { code: 0 });
            saver.w.release("titan02");
            saver.w.schedule();
            saver.wait(saver.next_save);
            saver.save();
            met += u64::from(saver.w.state_of("a") == "stopping");
        }
        assert!(met * 100 >= 95 * JOBS, "gaps of {gap:?} minutes: {met} of {JOBS}");
    }
}

#[test]
fn nobody_who_saved_after_the_order_is_stopped_between_two_saves() {
    for gap in GAPS {
        let mut stopped_between = Vec::new();
        for seed in 0..JOBS {
            let limit = Millis::minutes(Dice::new(seed ^ 0xFF).between(gap.0, 5 * gap.1));
            let mut saver = Saver::told_to_leave(seed, gap, limit);
            while saver.stop().is_none() {
                saver.wait(saver.next_save);
                if saver.stop().is_none() {
                    saver.save();
                }
            }
            let Some(StopWhy::Evicted { after_checkpoint, .. }) = saver.stop() else {
                panic!("{:?}", saver.stop());
            };
            if saver.seq > SAVES && !after_checkpoint {
                stopped_between.push(seed);
            }
        }
        assert_eq!(stopped_between, [0_u64; 0], "gaps of {gap:?} minutes");
    }
}
