//! What the child is doing in the driver, and how long it may.
//!
//! Used by the monitor's loop. A call that does not return looks like one that never got to run: on a
//! machine with more to do than it can, a GPU must not be called broken for that. So the time in which the
//! child stood in line for a processor is added to its deadline, up to [`EXTENDED_MAX`] times as long.

use std::time::Duration;

use tokio::time::Instant;

/// Longest a step may take, by its deadline, however long the child had to wait for a processor.
const EXTENDED_MAX: u32 = 6;

/// A step that the child announced.
#[derive(Debug)]
pub(super) struct Step {
    begun: Instant,
    deadline: Instant,
    /// Longest it may take by itself.
    most: Duration,
    /// What the child had waited for processors when it began, or when what it is part of was asked for.
    waited_before: Duration,
    /// The GPU it is on.
    pub(super) index: Option<u32>,
    pub(super) what: String,
}

impl Step {
    /// A step that begins now and may take `most`, of a child that has waited `waited` so far.
    pub(super) fn new(most: Duration, waited: Duration, index: Option<u32>, what: String) -> Self {
        let begun = Instant::now();
        Self { begun, deadline: begun + most, most, waited_before: waited, index, what }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn waited_before(&self) -> Duration {
        self.waited_before
    }

    /// Gives back what the child waited for a processor; false if nothing is left to give. `waited` is what
    /// it has waited in all.
    pub(super) fn extend(&mut self, waited: Duration, now: Instant) -> bool {
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
    fn it_ends_however_long_the_child_waits() {
        let mut step = step();
        assert!(step.extend(BEFORE + MOST * 100, step.begun + MOST));
        assert_eq!(step.deadline(), step.begun + MOST * EXTENDED_MAX);
        assert!(!step.extend(BEFORE + MOST * 200, step.begun + MOST * EXTENDED_MAX));
    }
}
