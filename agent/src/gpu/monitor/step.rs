//! What the child is doing in the driver, and how long it may.
//!
//! Used by the monitor's loop. A call that does not return looks like one that never got to run: on a
//! machine with more to do than it can, a GPU must not be called broken for that. So the time in which the
//! child stood in line for a processor is added to its deadline, up to [`EXTENDED_MAX`] times as long. And where all of
//! the machine stood still, the deadline passed for everybody: the step begins again.

use std::time::Duration;

use tokio::time::Instant;

/// Longest a step may take, by its deadline, however long the child had to wait for a processor.
const EXTENDED_MAX: u32 = 6;
/// Who looks this long after a deadline stood still too: a virtual machine that was paused, processes that were stopped.
/// Busy machines wake their tasks sooner.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// How often one step begins again for that reason.
const FRESH_STARTS_MAX: u32 = 3;

/// A step that the child announced.
#[derive(Debug)]
pub(super) struct Step {
    begun: Instant,
    deadline: Instant,
    /// Longest it may take by itself.
    most: Duration,
    /// What the child had waited for processors when it began, or when what it is part of was asked for.
    waited_before: Duration,
    fresh_starts: u32,
    /// The GPU it is on.
    pub(super) index: Option<u32>,
    pub(super) what: String,
}

impl Step {
    /// A step that begins now and may take `most`, of a child that has waited `waited` so far.
    pub(super) fn new(most: Duration, waited: Duration, index: Option<u32>, what: String) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            deadline: begun + most,
            most,
            waited_before: waited,
            fresh_starts: 0,
            index,
            what,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn waited_before(&self) -> Duration {
        self.waited_before
    }

    /// Called once its deadline has passed. Gives back what the child waited for a processor, or all of its time if the
    /// caller stood still itself; false if nothing is left to give. `waited` is what the child has waited in all.
    pub(super) fn extend(&mut self, waited: Duration, now: Instant) -> bool {
        let late = now.saturating_duration_since(self.deadline);
        if late >= STOOD_STILL && self.fresh_starts < FRESH_STARTS_MAX {
            self.fresh_starts += 1;
            (self.begun, self.waited_before) = (now, waited);
            self.deadline = now + self.most;
            return true;
        }
        let lost = waited.saturating_sub(self.waited_before);
        let end = self.begun + (self.most + lost).min(self.most * EXTENDED_MAX);
        self.deadline = self.deadline.max(end);
        self.deadline > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(5);
    const BEFORE: Duration = Duration::from_secs(100);

    fn step() -> Step {
        Step::new(MOST, BEFORE, Some(0), "temperature".to_owned())
    }

    #[test]
    fn a_child_that_had_a_processor_is_out_of_time() {
        let mut step = step();
        assert!(!step.extend(BEFORE, step.begun + MOST));
    }

    #[test]
    fn time_without_a_processor_is_given_back_once() {
        let mut step = step();
        let (waited, more) = (BEFORE + Duration::from_secs(3), Duration::from_secs(3));
        assert!(step.extend(waited, step.begun + MOST));
        assert_eq!(step.deadline(), step.begun + MOST + more);
        assert!(!step.extend(waited, step.begun + MOST + more));
    }

    #[test]
    fn a_step_in_which_everything_stood_still_begins_again() {
        let mut step = step();
        let mut now = step.begun + MOST + Duration::from_millis(999);
        assert!(!step.extend(BEFORE, now), "late, but awake");
        for _ in 0..FRESH_STARTS_MAX {
            now = step.deadline() + Duration::from_secs(60);
            assert!(step.extend(BEFORE, now));
            assert_eq!(step.deadline(), now + MOST);
        }
        assert!(!step.extend(BEFORE, step.deadline()), "the child had all of its time again");
        assert!(!step.extend(BEFORE, step.deadline() + Duration::from_secs(60)), "not for ever");
    }

    #[test]
    fn it_ends_however_long_the_child_waits() {
        let mut step = step();
        assert!(step.extend(BEFORE + MOST * 100, step.begun + MOST));
        assert_eq!(step.deadline(), step.begun + MOST * EXTENDED_MAX);
        assert!(!step.extend(BEFORE + MOST * 200, step.begun + MOST * EXTENDED_MAX));
    }
}
