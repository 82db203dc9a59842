//! Which users of idle windows get a warning now, once each. Pure: takes windows and the time, and keeps what was said.
//!
//! One warning when a window is called idle, and one before fleet releases it. Somebody who works in between and stops
//! again gets both again. A pause of the measurement repeats nothing.

use std::collections::BTreeMap;

use fleet_core::id::ReservationId;
use fleet_core::idle::IdleRules;
use fleet_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::running::{After, Running};

/// The first warning names the time of a release. It waits this long for the controllers, who say that time.
const ANSWER_MAX: Millis = Millis::minutes(1);
/// A release that moves by no more than this is the same one.
const SAME: Millis = Millis::minutes(2);

/// What the node measured of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowIdle {
    /// `release_at`: when the controllers release it, if it is idle until then.
    Idle {
        since: Timestamp,
        release_at: Option<Timestamp>,
    },
    Busy,
    /// Not for long enough, or not known.
    Neither,
}

/// What the node measured of all windows, and the rules by which it did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdleWindows {
    pub rules: IdleRules,
    pub windows: BTreeMap<ReservationId, WindowIdle>,
}

/// What the users of an idle window are to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleWarning<'a> {
    pub one: &'a Running,
    pub since: Timestamp,
    /// When it is released, if it is idle until then.
    pub release_at: Option<Timestamp>,
}

/// What was said about one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    ends_at: Timestamp,
    /// The release that was said to be near.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    release_at: Option<Timestamp>,
}

/// What was said about all windows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleSaid(BTreeMap<ReservationId, Told>);

impl IdleSaid {
    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The windows whose users get a warning now; noted as said. `alone`: no controller answers, so none is released.
    pub fn due<'a>(
        &mut self,
        running: &'a [Running],
        idle: &IdleWindows,
        alone: bool,
        now: Timestamp,
    ) -> Vec<IdleWarning<'a>> {
        // A window that is not running is not forgotten before its end: it may run again.
        self.0.retain(|id, told| {
            told.ends_at > now || running.iter().any(|one| one.reservation == *id)
        });
        let warning = |one: &'a Running| self.take(one, idle, alone, now);
        running.iter().filter(|one| one.window.ends_at > now).filter_map(warning).collect()
    }

    fn take<'a>(
        &mut self,
        one: &'a Running,
        idle: &IdleWindows,
        alone: bool,
        now: Timestamp,
    ) -> Option<IdleWarning<'a>> {
        let (id, ends_at) = (&one.reservation, one.window.ends_at);
        let (since, release_at) = match idle.windows.get(id) {
            Some(WindowIdle::Idle { since, release_at }) => (*since, *release_at),
            Some(WindowIdle::Busy) => {
                self.0.remove(id);
                return None;
            }
            Some(WindowIdle::Neither) | None => return None,
        };
        let rules = idle.rules;
        let answered = release_at.is_some() || alone || !rules.releases();
        // One that may be extended may also be released after this end.
        let may_go_on = one.after == After::MayGoOn;
        let release_at = release_at.filter(|at| !alone && (*at < ends_at || may_go_on));
        let near = release_at.filter(|at| *at <= now + rules.notice());
        let Some(told) = self.0.get_mut(id) else {
            if !answered
                && now < since + rules.after + ANSWER_MAX
                && since + rules.release < ends_at
            {
                return None;
            }
            self.0.insert(id.clone(), Told { ends_at, release_at: near });
            return Some(IdleWarning { one, since, release_at });
        };
        told.ends_at = ends_at;
        let near = near.filter(|at| told.release_at.is_none_or(|said| differs(said, *at)))?;
        told.release_at = Some(near);
        Some(IdleWarning { one, since, release_at })
    }
}

fn differs(one: Timestamp, other: Timestamp) -> bool {
    one.since(other).max(other.since(one)) > SAME
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::name::UserName;
    use fleet_core::time::Window;

    use super::*;

    const START: Timestamp = Timestamp(1_800_000_000_000);
    const HOURS_12: Millis = Millis::hours(12);

    fn at(minutes: u64) -> Timestamp {
        START + Millis::minutes(minutes)
    }

    fn running() -> [Running; 1] {
        [Running {
            reservation: ReservationId::parse("res-a").unwrap(),
            owner: UserName::parse("ada").unwrap(),
            with: Default::default(),
            gpus: Vec::new(),
            window: Window { starts_at: START, ends_at: START + HOURS_12 },
            after: After::Over,
            losses: Default::default(),
        }]
    }

    fn windows(release: Option<u64>, now: WindowIdle) -> IdleWindows {
        let release = release.map_or(Millis::ZERO, Millis::minutes);
        let id = ReservationId::parse("res-a").unwrap();
        let rules = IdleRules { release, ..IdleRules::default() };
        IdleWindows { rules, windows: [(id, now)].into() }
    }

    fn idle(release_at: Option<u64>) -> WindowIdle {
        WindowIdle::Idle { since: START, release_at: release_at.map(at) }
    }

    /// The minutes at which something is said, and the release that is named.
    fn said(
        said: &mut IdleSaid,
        idle: &IdleWindows,
        alone: bool,
        minutes: std::ops::Range<u64>,
    ) -> Vec<(u64, Option<u64>)> {
        let one = running();
        let mut all = Vec::new();
        for minute in minutes {
            for warning in said.due(&one, idle, alone, at(minute)) {
                let release = warning.release_at.map(|at| at.since(START).0 / 60_000);
                assert_eq!((warning.since, warning.one), (START, &one[0]));
                all.push((minute, release));
            }
        }
        all
    }

    #[test]
    fn an_idle_window_is_said_once_and_before_its_release() {
        let (mut all, never) = (IdleSaid::default(), windows(None, idle(None)));
        assert_eq!(said(&mut all, &never, false, 60..700), [(60, None)]);
        let mut all = IdleSaid::default();
        let released = windows(Some(240), idle(Some(240)));
        assert_eq!(said(&mut all, &released, false, 60..240), [(60, Some(240)), (225, Some(240))]);
        let json = serde_json::to_string(&all).unwrap();
        let mut again: IdleSaid = serde_json::from_str(&json).unwrap();
        assert_eq!(said(&mut again, &released, false, 60..240), [], "nor by the next agent");
        let later = windows(Some(240), idle(Some(300)));
        assert_eq!(said(&mut all, &later, false, 240..300), [(285, Some(300))], "it moved");
    }

    #[test]
    fn what_comes_late_is_one_warning() {
        let released = windows(Some(240), idle(Some(240)));
        assert_eq!(said(&mut IdleSaid::default(), &released, false, 230..240), [(230, Some(240))]);
    }

    #[test]
    fn the_first_warning_waits_a_moment_for_the_time_of_the_release() {
        let unanswered = windows(Some(240), idle(None));
        let mut all = IdleSaid::default();
        assert_eq!(said(&mut all, &unanswered, false, 60..61), []);
        assert_eq!(said(&mut all.clone(), &unanswered, false, 61..90), [(61, None)]);
        assert_eq!(said(&mut all.clone(), &unanswered, true, 60..90), [(60, None)], "alone");
        let answered = windows(Some(240), idle(Some(240)));
        assert_eq!(said(&mut all, &answered, false, 60..90), [(60, Some(240))]);
        // It is over before.
        let long = windows(Some(20 * 60), idle(None));
        assert_eq!(said(&mut IdleSaid::default(), &long, false, 60..90), [(60, None)]);
    }

    #[test]
    fn nothing_is_released_without_controllers_or_after_the_end() {
        let released = windows(Some(240), idle(Some(240)));
        assert_eq!(said(&mut IdleSaid::default(), &released, true, 60..700), [(60, None)]);
        let late = windows(Some(240), idle(Some(730)));
        assert_eq!(said(&mut IdleSaid::default(), &late, false, 60..719), [(60, None)]);
    }

    #[test]
    fn only_work_makes_it_news_again() {
        let never = windows(None, idle(None));
        let mut all = IdleSaid::default();
        assert_eq!(said(&mut all, &never, false, 60..90).len(), 1);
        said(&mut all, &windows(None, WindowIdle::Neither), false, 90..95);
        assert_eq!(said(&mut all, &never, false, 95..120), []);
        said(&mut all, &windows(None, WindowIdle::Busy), false, 120..121);
        assert!(all.is_empty());
        assert_eq!(said(&mut all, &never, false, 200..220), [(200, None)]);
        all.due(&[], &never, false, START + HOURS_12);
        assert!(all.is_empty(), "what is over is forgotten");
    }
}
