//! The leader's clock: the only time that ever gets into the log.
//!
//! It runs on the monotonic clock from an anchor, so that a step of the wall clock moves nothing. A
//! difference of more than [`STEP_MAX`] from the wall clock is taken over only when most of the
//! fleet's agents that are heard agree with the wall clock; until then time continues from where the log was,
//! and the calendar waits: a machine that boots in 2036 must not end every reservation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet_core::command::{Command, ENVELOPE_VERSION, RequestKey};
use fleet_core::time::{Millis, Timestamp};
use fleet_core::{Actor, Envelope};

/// A larger difference between the wall clock and the log's time needs confirmation.
pub const STEP_MAX: Millis = Millis::secs(60);
/// How close an agent's clock must be to ours to count as agreeing.
pub const AGREE_WITHIN: Millis = Millis::secs(30);
/// How long the two must be apart before the log calls this machine's clock wrong. After all controllers were off
/// it is the log that is old, until the agents are back and say so.
const SAY_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct State {
    anchor: Instant,
    anchor_time: Timestamp,
    standing: Standing,
    /// While they do not agree.
    apart: Option<Apart>,
    /// It goes by the log's time. Before that it may be what the wall clock says.
    settled: bool,
}

impl State {
    fn agree(&mut self) {
        self.standing = Standing::Agreed;
        self.apart = None;
    }
}

/// How this clock stands to the machine's wall clock. Steps are in milliseconds, wall minus ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// They agree.
    Agreed,
    /// The wall clock is far off, and most agents have our time: it is the wall clock that is wrong.
    WallWrong { step_ms: i64 },
    /// They are far apart and no majority of agents says which is right. The calendar waits.
    Unconfirmed { step_ms: i64 },
}

/// The wall clock and ours are far from each other.
#[derive(Debug, Clone, Copy)]
struct Apart {
    since: Instant,
    /// What the log says of it.
    said: Option<Standing>,
}

impl Apart {
    /// Whether the log is to say now that the clock stands like this: after [`SAY_AFTER`], and once for each kind.
    fn due(&mut self, standing: Standing, at: Instant) -> bool {
        let kind = std::mem::discriminant(&standing);
        let said = self.said.is_some_and(|said| std::mem::discriminant(&said) == kind);
        if said || at.saturating_duration_since(self.since) < SAY_AFTER {
            return false;
        }
        self.said = Some(standing);
        true
    }
}

/// Shared by everything that proposes.
#[derive(Debug, Clone)]
pub struct LeaderClock(Arc<Mutex<State>>);

/// The wall clock, which is only ever compared.
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn apart(a: Timestamp, b: Timestamp) -> Millis {
    a.since(b).max(b.since(a))
}

fn signed(a: Timestamp, b: Timestamp) -> i64 {
    i64::try_from(a.since(b).0).unwrap_or(i64::MAX)
        - i64::try_from(b.since(a).0).unwrap_or(i64::MAX)
}

impl LeaderClock {
    /// A clock that continues from the log's last time. If the log has none, it takes the wall clock, and
    /// so it does in a fleet without nodes: there is nothing that a wrong time could end. After a start that is
    /// what was applied so far, which may be nothing: see [`Self::settle`].
    pub fn starting_at(last_seen: Timestamp, nodes: usize) -> Self {
        let clock = LeaderClock(Arc::new(Mutex::new(State {
            anchor: Instant::now(),
            anchor_time: Timestamp(0),
            standing: Standing::Agreed,
            apart: None,
            settled: false,
        })));
        clock.begin(last_seen, &[], nodes);
        clock
    }

    fn begin(&self, last_seen: Timestamp, agents: &[Timestamp], nodes: usize) {
        self.anchor(if last_seen == Timestamp(0) { wall() } else { last_seen });
        self.compare(wall(), agents, nodes);
    }

    /// This controller leads, and has applied all that was committed before: the log's last time is
    /// `seen`. A clock that never followed another leader continues from there, whatever it was started with.
    pub fn settle(&self, seen: Timestamp, agents: &[Timestamp], nodes: usize) {
        if std::mem::replace(&mut self.state().settled, true) {
            self.not_before(seen);
            self.compare(wall(), agents, nodes);
        } else {
            self.begin(seen, agents, nodes);
        }
    }

    /// The time to propose with where `seen` is the log's last time: that, until it is known to be the
    /// last, since nothing in the log can be taken back.
    pub fn proposing(&self, seen: Timestamp) -> Timestamp {
        if self.state().settled { self.now() } else { seen }
    }

    /// The command with the time to propose it with, see [`Self::proposing`].
    pub fn envelope(
        &self,
        seen: Timestamp,
        actor: Actor,
        request: Option<RequestKey>,
        command: Command,
    ) -> Envelope {
        let proposed_at = self.proposing(seen);
        Envelope { v: ENVELOPE_VERSION, actor, proposed_at, request, command }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this clock shows.
    pub fn now(&self) -> Timestamp {
        let state = self.state();
        let elapsed = u64::try_from(state.anchor.elapsed().as_millis()).unwrap_or(u64::MAX);
        state.anchor_time + Millis(elapsed)
    }

    /// Moves this clock to at least `seen`: another leader's log may be ahead.
    fn not_before(&self, seen: Timestamp) {
        let now = self.now();
        if seen > now {
            self.anchor(seen);
        }
    }

    /// While another controller leads, its time is the fleet's. This clock continues from the leader's newest
    /// entry if that is ahead, or so far behind that this machine's clock must be wrong.
    pub fn follow(&self, seen: Timestamp) {
        let now = self.now();
        self.state().settled = true;
        if seen > now || apart(seen, now) > STEP_MAX {
            self.anchor(seen);
        }
    }

    fn anchor(&self, to: Timestamp) {
        let mut state = self.state();
        state.anchor = Instant::now();
        state.anchor_time = to;
        state.agree();
    }

    /// An operator, or most agents, vouch for this time.
    pub fn set(&self, to: Timestamp) {
        self.anchor(to);
    }

    /// Compares with the wall clock and with what agents say theirs is; `nodes` are all that the
    /// fleet has. Small differences are taken
    /// over (forward only: the log's time never steps back), large ones when most agents agree.
    pub fn compare(&self, wall: Timestamp, agents: &[Timestamp], nodes: usize) {
        let now = self.now();
        if apart(wall, now) <= STEP_MAX {
            if wall > now {
                self.anchor(wall);
            } else {
                self.state().agree();
            }
            return;
        }
        let within = |time: Timestamp| {
            agents.iter().filter(|theirs| apart(**theirs, time) <= AGREE_WITHIN).count()
        };
        let step_ms = signed(wall, now);
        let standing = if within(wall) * 2 > agents.len() || nodes == 0 {
            if wall > now {
                tracing::info!(step_ms, "took the wall clock over: most agents agree with it");
                self.anchor(wall);
                return;
            }
            // The log's time is ahead of everybody's; only an operator sets it back.
            Standing::Unconfirmed { step_ms }
        } else if within(now) * 2 > agents.len() {
            Standing::WallWrong { step_ms }
        } else {
            Standing::Unconfirmed { step_ms }
        };
        let mut state = self.state();
        state.standing = standing;
        let at = Instant::now();
        let apart = state.apart.get_or_insert(Apart { since: at, said: None });
        if apart.due(standing, at) {
            tracing::error!(
                ?standing,
                agents = agents.len(),
                "this machine's clock is far from the fleet's time"
            );
        }
    }

    /// How this clock stands to the wall clock.
    pub fn standing(&self) -> Standing {
        self.state().standing
    }

    /// Whether nobody knows the time: nothing that depends on the calendar may happen.
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.standing(), Standing::Unconfirmed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = Millis::days(1);

    #[test]
    fn a_small_step_forward_is_taken_and_one_back_is_not() {
        let start = wall();
        let clock = LeaderClock::starting_at(start, 3);
        clock.compare(start + Millis::secs(30), &[], 3);
        assert!(clock.now() >= start + Millis::secs(30));
        clock.compare(start, &[], 3);
        assert!(clock.now() >= start + Millis::secs(30));
        assert_eq!(clock.standing(), Standing::Agreed);
    }

    #[test]
    fn a_follower_with_a_wrong_clock_goes_by_the_leaders() {
        let start = wall();
        let clock = LeaderClock::starting_at(start + Millis(3_650 * DAY.0), 3);
        clock.follow(start);
        assert!(clock.now() < start + DAY);
        clock.follow(start - Millis::secs(20));
        assert!(clock.now() >= start, "an entry made a moment ago says nothing");
        // It leads now: its own wall clock, ten years ahead, moves nothing.
        clock.settle(start, &[], 3);
        clock.compare(start + Millis(3_650 * DAY.0), &[], 3);
        assert!(clock.is_unconfirmed() && clock.now() < start + DAY);
    }

    #[test]
    fn ten_years_ahead_pauses_the_calendar_until_most_agents_agree() {
        let start = wall();
        let clock = LeaderClock::starting_at(start, 3);
        let far = start + Millis(3_650 * DAY.0);
        clock.compare(far, &[start, far], 3);
        assert!(clock.is_unconfirmed());
        assert!(clock.now() < start + DAY);
        clock.compare(far, &[far, far, start], 3);
        assert_eq!(clock.standing(), Standing::Agreed);
        assert!(clock.now() >= far);
    }

    #[test]
    fn a_fleet_without_nodes_takes_the_wall_clock() {
        let clock = LeaderClock::starting_at(wall() - DAY, 0);
        assert_eq!(clock.standing(), Standing::Agreed);
        assert!(LeaderClock::starting_at(wall() - DAY, 1).is_unconfirmed());
    }

    #[test]
    fn what_was_not_applied_at_the_start_counts_once_it_is() {
        // Nothing of the log was applied, and the machine's clock is a year ahead of it.
        let clock = LeaderClock::starting_at(Timestamp(0), 0);
        let log = wall() - Millis(365 * DAY.0);
        assert_eq!(clock.proposing(Timestamp(0)), Timestamp(0), "not what the wall clock says");
        clock.settle(log, &[], 3);
        assert!(clock.is_unconfirmed());
        assert!(clock.proposing(log) < log + DAY);
    }

    #[test]
    fn where_most_agents_have_our_time_it_is_the_wall_clock_that_is_wrong() {
        let start = wall();
        for wrong in [start - Millis::hours(1), start + Millis(3_650 * DAY.0)] {
            let clock = LeaderClock::starting_at(start, 3);
            clock.compare(wrong, &[start, start, start], 3);
            assert!(matches!(clock.standing(), Standing::WallWrong { .. }), "{wrong:?}");
            assert!(clock.now() >= start && clock.now() < start + DAY);
        }
    }

    #[test]
    fn a_clock_is_called_wrong_only_once_it_stays_so() {
        let since = Instant::now();
        let mut apart = Apart { since, said: None };
        let unsure = Standing::Unconfirmed { step_ms: 88_000 };
        assert!(!apart.due(unsure, since), "agents may come back and explain it");
        assert!(!apart.due(unsure, since + SAY_AFTER / 2));
        assert!(apart.due(unsure, since + SAY_AFTER));
        let later = Standing::Unconfirmed { step_ms: 88_001 };
        assert!(!apart.due(later, since + SAY_AFTER * 2), "once");
        assert!(apart.due(Standing::WallWrong { step_ms: 88_000 }, since + SAY_AFTER * 2));
    }

    #[test]
    fn how_long_they_are_apart_begins_anew_once_they_agree() {
        let start = wall();
        let clock = LeaderClock::starting_at(start, 3);
        clock.compare(start + DAY, &[], 3);
        let since = |clock: &LeaderClock| clock.state().apart.map(|apart| apart.since);
        let first = since(&clock);
        clock.compare(start + DAY, &[], 3);
        assert!(first.is_some() && since(&clock) == first, "it continues");
        clock.compare(start, &[], 3);
        assert_eq!(since(&clock), None);
    }

    #[test]
    fn a_log_ahead_of_everybody_waits_for_an_operator() {
        let start = wall();
        let clock = LeaderClock::starting_at(start + DAY, 3);
        clock.compare(start, &[start, start, start], 3);
        assert!(clock.is_unconfirmed());
        clock.set(start);
        assert_eq!(clock.standing(), Standing::Agreed);
    }
}
