//! The fleet's time, as this node keeps counting it when no controller sends it any more.
//!
//! A controller that is sure of its own time sets it. Then the clock since boot carries it, which no step of
//! the wall clock moves. After a boot without controllers the wall clock is taken once, if it is plausible;
//! otherwise the time is unknown, and nothing opens or closes until a controller is heard. Pure: clocks come in.

use std::time::Duration;

use fleet_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// An answer that was longer under way says too little about now.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(5);
/// A wall clock this far behind what was known before the boot is only inexact.
const BEHIND_MAX: Millis = Millis::secs(60);
/// A wall clock further ahead of what was known before the boot is not believed: longer than any machine that
/// holds windows of the coming days is off.
const OFF_MAX: Millis = Millis::days(14);

/// One moment at which the fleet's time was known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Time since boot means nothing in another boot.
    pub boot_id: String,
    pub since_boot_ms: u64,
    pub fleet: Timestamp,
}

/// See the module's doc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetClock {
    boot_id: String,
    /// Of this boot.
    anchor: Option<Anchor>,
    /// What was known before this boot: no later time can be earlier than that.
    floor: Option<Timestamp>,
}

fn millis(length: Duration) -> Millis {
    Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
}

impl FleetClock {
    /// Continues from the stored time, of this boot or an earlier one.
    pub fn resume(stored: Option<Anchor>, boot_id: &str) -> Self {
        let boot_id = boot_id.to_owned();
        match stored {
            Some(anchor) if anchor.boot_id == boot_id => {
                Self { boot_id, floor: Some(anchor.fleet), anchor: Some(anchor) }
            }
            earlier => Self { boot_id, floor: earlier.map(|anchor| anchor.fleet), anchor: None },
        }
    }

    /// A controller that is sure of its time said it is `fleet`, some time between these two moments.
    pub fn told(&mut self, asked: Duration, answered: Duration, fleet: Timestamp) {
        if answered.saturating_sub(asked) <= ROUND_TRIP_MAX {
            self.set(answered, fleet);
        }
    }

    /// Where no controller was heard in this boot: the wall clock, if it can be right.
    pub fn look_at_wall(&mut self, since_boot: Duration, wall: Timestamp) {
        let Some(floor) = self.floor.filter(|_| self.anchor.is_none()) else { return };
        if wall + BEHIND_MAX >= floor && wall.since(floor) <= OFF_MAX {
            self.set(since_boot, wall.max(floor));
        }
    }

    fn set(&mut self, since_boot: Duration, fleet: Timestamp) {
        let since_boot_ms = millis(since_boot).0;
        self.anchor = Some(Anchor { boot_id: self.boot_id.clone(), since_boot_ms, fleet });
    }

    /// The fleet's time; `None` where nobody knows.
    pub fn now(&self, since_boot: Duration) -> Option<Timestamp> {
        let anchor = self.anchor.as_ref()?;
        Some(anchor.fleet + millis(since_boot).saturating_sub(Millis(anchor.since_boot_ms)))
    }

    /// What to store, as of now.
    pub fn anchor(&self, since_boot: Duration) -> Option<Anchor> {
        let fleet = self.now(since_boot).or(self.floor)?;
        let boot_id = match &self.anchor {
            Some(anchor) => anchor.boot_id.clone(),
            // Still only what was known before this boot.
            None => String::new(),
        };
        Some(Anchor { boot_id, since_boot_ms: millis(since_boot).0, fleet })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NOON: Timestamp = Timestamp(1_800_000_000_000);

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn told() -> FleetClock {
        let mut clock = FleetClock::resume(None, "boot-1");
        assert_eq!(clock.now(s(10)), None);
        clock.look_at_wall(s(10), NOON);
        assert_eq!(
            clock.now(s(10)),
            None,
            "a node that never heard a controller knows no fleet's time"
        );
        clock.told(s(99), s(100), NOON);
        clock
    }

    #[test]
    fn no_step_of_the_wall_clock_moves_it() {
        let mut clock = told();
        for wall in [Timestamp(0), NOON - Millis::days(3), NOON + Millis::days(3_650)] {
            clock.look_at_wall(s(200), wall);
            assert_eq!(clock.now(s(3_700)), Some(NOON + Millis::hours(1)));
        }
    }

    #[test]
    fn an_answer_that_was_long_under_way_is_no_news() {
        let mut clock = told();
        clock.told(s(200), s(4_000), NOON + Millis::secs(110));
        assert_eq!(clock.now(s(4_000)), Some(NOON + Millis::secs(3_900)));
        clock.told(s(4_000), s(4_001), NOON + Millis::secs(3_905));
        assert_eq!(clock.now(s(4_001)), Some(NOON + Millis::secs(3_905)), "a good one is taken");
    }

    #[test]
    fn it_survives_a_restart_of_the_agent_to_the_second() {
        let clock = told();
        let again = FleetClock::resume(clock.anchor(s(400)), "boot-1");
        assert_eq!(again.now(s(1_000)), clock.now(s(1_000)));
    }

    #[test]
    fn after_a_boot_only_a_plausible_wall_clock_is_believed_once() {
        let stored = told().anchor(s(100));
        let cases = [
            (NOON - Millis::days(365), None),
            (NOON - Millis::secs(61), None),
            (NOON - Millis::secs(59), Some(NOON)),
            (NOON + Millis::hours(7), Some(NOON + Millis::hours(7))),
            (NOON + Millis::days(15), None),
        ];
        for (wall, expected) in cases {
            let mut clock = FleetClock::resume(stored.clone(), "boot-2");
            assert_eq!(clock.now(s(5)), None);
            clock.look_at_wall(s(5), wall);
            assert_eq!(clock.now(s(5)), expected, "{wall:?}");
            // What is not known now is not known after another boot either.
            let third = FleetClock::resume(clock.anchor(s(6)), "boot-3");
            assert!(third.floor.unwrap() >= NOON);
        }
        let mut clock = FleetClock::resume(stored, "boot-2");
        clock.look_at_wall(s(5), NOON + Millis::hours(7));
        clock.look_at_wall(s(6), NOON + Millis::hours(9));
        assert_eq!(clock.now(s(7)), Some(NOON + Millis::hours(7) + Millis::secs(2)));
    }
}
