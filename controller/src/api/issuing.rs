//! By which time certificates are given out (docs/adr/0016-certificates-on-record.md).
//!
//! A certificate goes by the wall clocks of those who check it, so as a rule this machine's wall clock counts. Nothing
//! here trusts that clock where it contradicts the fleet's time and the other controllers' clocks.

use fleet_core::time::{Millis, Timestamp};
use fleet_proto::convert::rejection::not_taken;
use tonic::Status;

use super::Context;
use crate::clock::{STEP_MAX, Standing, wall};
use crate::self_check::LOOK_AGE_MAX;

/// When a certificate that is given out now begins, and from when its life is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Issuing {
    pub(super) from: Timestamp,
    pub(super) now: Timestamp,
}

impl Context {
    /// Refuses, so that the caller tries again, where the clocks of the other controllers contradict this one's and no
    /// majority of agents has said which is right.
    pub(super) fn issuing(&self) -> Result<Issuing, Status> {
        let me = self.raft.node();
        let others = self.raft.members().voters.into_keys().filter(|id| *id != me);
        let others: Vec<Option<Timestamp>> =
            others.map(|id| self.raft.look_of(id).map(|look| look.wall)).collect();
        let issuing = issuing(self.clock.standing(), wall(), self.clock.now(), &others);
        issuing.map_err(|step_ms| {
            not_taken(Status::unavailable(format!(
                "this controller's clock is {} s from the fleet's time, and neither a majority of agents nor a majority of controllers agrees with it: it gives out no certificate; try again in a moment",
                step_ms / 1_000
            )))
        })
    }
}

/// `others`: the wall clocks of the other voters, where they said so a moment ago.
fn issuing(
    standing: Standing,
    wall: Timestamp,
    fleet: Timestamp,
    others: &[Option<Timestamp>],
) -> Result<Issuing, i64> {
    match standing {
        Standing::Agreed => Ok(Issuing { from: wall, now: wall }),
        // Most agents have the fleet's time.
        Standing::WallWrong { .. } => Ok(Issuing { from: fleet, now: fleet }),
        Standing::Unconfirmed { step_ms } => {
            let agree = others.iter().flatten().filter(|theirs| is_near(**theirs, wall)).count();
            if (agree + 1) * 2 <= others.len() + 1 {
                return Err(step_ms);
            }
            // Good at once, whichever of both is right: a node with a certificate of the future could tell nobody the time.
            Ok(Issuing { from: wall.min(fleet), now: wall })
        }
    }
}

fn is_near(a: Timestamp, b: Timestamp) -> bool {
    let apart: Millis = a.since(b).max(b.since(a));
    apart <= STEP_MAX + LOOK_AGE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: Timestamp = Timestamp(1_800_000_000_000);
    const HOURS: Millis = Millis::hours(5);

    fn unconfirmed(others: &[Option<Timestamp>]) -> Result<Issuing, i64> {
        issuing(Standing::Unconfirmed { step_ms: 18_000_000 }, FLEET + HOURS, FLEET, others)
    }

    #[test]
    fn a_clock_that_is_alone_hours_ahead_gives_out_nothing() {
        let (same, right) = (Some(FLEET + HOURS), Some(FLEET));
        assert_eq!(unconfirmed(&[right, right]), Err(18_000_000));
        assert_eq!(unconfirmed(&[right, None]), Err(18_000_000));
        assert_eq!(unconfirmed(&[None, None]), Err(18_000_000), "it has heard of nobody yet");
        assert_eq!(unconfirmed(&[same, right, right, None]), Err(18_000_000));
        let near = Some(FLEET + HOURS + Millis::secs(70));
        let since_both = Ok(Issuing { from: FLEET, now: FLEET + HOURS });
        assert_eq!(unconfirmed(&[near, right]), since_both, "all controllers were off for hours");
        let far = Some(FLEET + HOURS + Millis::secs(71));
        assert_eq!(unconfirmed(&[far, right]), Err(18_000_000));
    }

    #[test]
    fn one_controller_alone_has_nobody_to_ask() {
        assert_eq!(unconfirmed(&[]), Ok(Issuing { from: FLEET, now: FLEET + HOURS }));
    }

    #[test]
    fn what_agents_confirmed_counts() {
        let wall = FLEET + HOURS;
        let by = |time| Ok(Issuing { from: time, now: time });
        assert_eq!(issuing(Standing::Agreed, wall, FLEET, &[None]), by(wall));
        let wrong = Standing::WallWrong { step_ms: 18_000_000 };
        assert_eq!(issuing(wrong, wall, FLEET, &[]), by(FLEET));
    }
}
