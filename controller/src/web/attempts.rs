//! How often an address shows a code or asks for a feed that is none, and how many are checked at a time. They cannot be
//! guessed; this bounds what a stranger can make a controller do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_proto::transport::{Slot, Slots, Source};

/// Codes that may be wrong, of one address in [`PERIOD`].
const WRONG_MAX: u32 = 50;
const PERIOD: Duration = Duration::from_secs(60);
/// Addresses that are remembered; beyond it all are forgotten.
const ADDRESSES_MAX: usize = 10_000;
/// Codes that are checked at a time, of one address and of all.
const CHECKED_OF_ONE_MAX: usize = 4;
const CHECKED_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Attempts {
    wrong: Mutex<BTreeMap<Source, (Instant, u32)>>,
    checked: Arc<Slots<Source>>,
}

impl Default for Attempts {
    fn default() -> Self {
        let checked = Slots::new(CHECKED_OF_ONE_MAX, CHECKED_MAX);
        Self { wrong: Mutex::default(), checked }
    }
}

impl Attempts {
    /// A place for one that this address may show now.
    pub(super) fn begin(&self, address: IpAddr, now: Instant) -> Option<Slot<Source>> {
        let place = self.checked.take(address.into())?;
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = wrong.get(&address.into());
        let counted = counted.filter(|(since, _)| now.duration_since(*since) < PERIOD);
        counted.is_none_or(|(_, count)| *count < WRONG_MAX).then_some(place)
    }

    /// It was wrong.
    pub(super) fn was_wrong(&self, address: IpAddr, now: Instant) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let source = Source::from(address);
        if wrong.len() >= ADDRESSES_MAX && !wrong.contains_key(&source) {
            wrong.clear();
        }
        let counted = wrong.entry(source).or_insert((now, 0));
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
        let may = |address, at| attempts.begin(address, at).is_some();
        for _ in 0..WRONG_MAX {
            assert!(may(guesser, now));
            attempts.was_wrong(guesser, now);
        }
        assert!(!may(guesser, now) && may(other, now));
        assert!(may(guesser, now + PERIOD));
        attempts.was_wrong(guesser, now + PERIOD);
        assert!(may(guesser, now + PERIOD), "the count begins again");
    }

    #[test]
    fn few_are_checked_at_a_time() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let guesser = IpAddr::from([10, 0, 0, 1]);
        let under_way: Vec<_> =
            (0..CHECKED_OF_ONE_MAX).map(|_| attempts.begin(guesser, now)).collect();
        assert!(under_way.iter().all(Option::is_some));
        assert!(attempts.begin(guesser, now).is_none());
        drop(under_way);
        assert!(attempts.begin(guesser, now).is_some());
    }
}
