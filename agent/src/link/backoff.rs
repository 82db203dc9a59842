//! Pauses between attempts to connect: doubled, bounded, and spread so that many agents do not come at once.

use std::time::Duration;

/// First and longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long to wait next.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: PAUSE.0 }
    }

    /// Between half and all of the current step; the step then doubles. `random`: any bits.
    pub(super) fn pause(&mut self, random: u16) -> Duration {
        let half = self.next / 2;
        let pause = half + half.mul_f64(f64::from(random) / f64::from(u16::MAX));
        self.next = (self.next * 2).min(PAUSE.1);
        pause
    }

    /// The connection was of use.
    pub(super) fn reset(&mut self) {
        self.next = PAUSE.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::new();
        let longest: Vec<u128> = (0..8).map(|_| backoff.pause(u16::MAX).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.pause(0).as_millis(), 2500);
        backoff.reset();
        assert!(backoff.pause(7) <= PAUSE.0);
    }
}
