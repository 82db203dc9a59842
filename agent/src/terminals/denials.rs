//! Decides which users get a message that they were kept out of a GPU, and how often. Pure.
//!
//! A user who holds nothing here gets the message soon, and again if they keep trying. A user who holds a GPU here gets
//! it rarely: every program that uses CUDA tries all GPUs of the machine first, so a denial is no news.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A user gets at most one message in this time.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The same for a user who holds a GPU of this node.
const HOLDERS_AGAIN_AFTER: Duration = Duration::from_secs(86_400);
/// Most users that are remembered for that.
const REMEMBERED_MAX: usize = 4_096;

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Denials {
    told: BTreeMap<u32, Instant>,
}

impl Denials {
    /// Whether this user gets a message now; if so, notes it as sent. `holds`: they hold a GPU here.
    pub fn take(&mut self, uid: u32, holds: bool, now: Instant) -> bool {
        let pause = if holds { HOLDERS_AGAIN_AFTER } else { AGAIN_AFTER };
        if self.told.get(&uid).is_some_and(|at| now.duration_since(*at) < pause) {
            return false;
        }
        if self.told.len() >= REMEMBERED_MAX {
            self.told.retain(|_, at| now.duration_since(*at) < AGAIN_AFTER);
        }
        // In a flood of users the last ones get no message.
        if self.told.len() >= REMEMBERED_MAX && !self.told.contains_key(&uid) {
            return false;
        }
        self.told.insert(uid, now);
        true
    }

    /// Forgets a message that the user did not get, since they were not logged in.
    pub fn forget(&mut self, uid: u32) {
        self.told.remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_all_the_time() {
        let (mut denials, start) = (Denials::default(), Instant::now());
        assert!(denials.take(1000, false, start));
        assert!(!denials.take(1000, false, start + AGAIN_AFTER / 2));
        assert!(denials.take(1001, false, start), "somebody else");
        assert!(!denials.take(1000, true, start + AGAIN_AFTER), "they have one by now");
        assert!(denials.take(1000, false, start + AGAIN_AFTER));
        assert!(denials.take(1000, true, start + AGAIN_AFTER + HOLDERS_AGAIN_AFTER));
        denials.forget(1001);
        assert!(denials.take(1001, false, start), "they were not there");
        for uid in 2_000..2_000 + 2 * REMEMBERED_MAX as u32 {
            denials.take(uid, false, start + HOLDERS_AGAIN_AFTER * 3);
        }
        assert_eq!(denials.told.len(), REMEMBERED_MAX);
    }
}
