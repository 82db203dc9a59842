//! How often an address shows a code that is none. Codes cannot be guessed; this keeps the log of refusals readable.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Codes that may be wrong, of one address in [`PERIOD`].
const WRONG_MAX: u32 = 50;
const PERIOD: Duration = Duration::from_secs(60);
/// Addresses that are remembered; beyond it all are forgotten.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<BTreeMap<IpAddr, (Instant, u32)>>);

impl Attempts {
    /// Whether this address may show one more.
    pub(super) fn may(&self, address: IpAddr, now: Instant) -> bool {
        let wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = wrong.get(&address).filter(|(since, _)| now.duration_since(*since) < PERIOD);
        counted.is_none_or(|(_, count)| *count < WRONG_MAX)
    }

    /// It was wrong.
    pub(super) fn was_wrong(&self, address: IpAddr, now: Instant) {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() >= ADDRESSES_MAX && !wrong.contains_key(&address) {
            wrong.clear();
        }
        let counted = wrong.entry(address).or_insert((now, 0));
        if now.duration_since(counted.0) >= PERIOD {
            *counted = (now, 0);
        }
        counted.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_waits_a_minute_and_others_do_not() {
        let attempts = Attempts::default();
        let (guesser, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = Instant::now();
        for _ in 0..WRONG_MAX {
            assert!(attempts.may(guesser, now));
            attempts.was_wrong(guesser, now);
        }
        assert!(!attempts.may(guesser, now) && attempts.may(other, now));
        assert!(attempts.may(guesser, now + PERIOD));
        attempts.was_wrong(guesser, now + PERIOD);
        assert!(attempts.may(guesser, now + PERIOD), "the count begins again");
    }
}
