//! Decides which warnings the users of windows get now. Pure: takes windows and the time, and keeps what was said.
//!
//! Each user who loses something by the end of a window gets one warning at each mark before that end, whether logged
//! in or not. If the end can still move, they get one per mark, however often the window is extended by itself. If it
//! cannot, they get one at each mark of that exact end. So a window that is extended for days causes no warnings all
//! that time, and causes them again when another user has reserved what follows.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::ending::EXTEND_STEP;
use fleet_core::id::ReservationId;
use fleet_core::name::GpuUuid;
use fleet_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::running::{After, Running};

/// How long before an end its users get a warning, in minutes.
const MARKS: [u64; 4] = [24 * 60, 60, 15, 5];
/// Of an end that can still move this is the last mark: five minutes before, nobody has to do anything.
const LAST_IF_IT_MAY_MOVE: u64 = 15;
/// What is late is not said where the next mark comes within this time.
const SOON: Millis = Millis::minutes(2);

/// What was said about one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    ends_at: Timestamp,
    /// By mark, in minutes: whether the end could not move any more when it was said.
    marks: BTreeMap<u64, bool>,
}

/// What was said about all windows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    windows: BTreeMap<ReservationId, Told>,
    /// The broken GPUs of each that were named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    broken: BTreeMap<ReservationId, BTreeSet<GpuUuid>>,
}

/// GPUs on which work is lost, and why.
pub type Broken = BTreeMap<GpuUuid, String>;

impl Said {
    /// The windows whose users get a warning now; noted as said. `alone`: no controller answers, so no end moves.
    pub fn due<'a>(
        &mut self,
        running: &'a [Running],
        alone: bool,
        now: Timestamp,
    ) -> Vec<&'a Running> {
        // A window that is not running is not forgotten before its end: it may run again.
        self.windows.retain(|id, told| {
            told.ends_at > now || running.iter().any(|one| one.reservation == *id)
        });
        let due = |one: &&Running| one.window.ends_at > now && self.take(one, alone, now);
        running.iter().filter(due).collect()
    }

    /// The broken GPUs of windows that run, each once; noted as said.
    pub fn broken<'a>(
        &mut self,
        running: &'a [Running],
        broken: &Broken,
    ) -> Vec<(&'a Running, &'a GpuUuid)> {
        self.broken.retain(|id, _| running.iter().any(|one| one.reservation == *id));
        let gpus = running.iter().flat_map(|one| one.gpus.iter().map(move |gpu| (one, gpu)));
        let hit = gpus.filter(|(_, gpu)| broken.contains_key(*gpu));
        hit.filter(|(one, gpu)| {
            let said = self.broken.entry(one.reservation.clone()).or_default();
            said.insert((*gpu).clone())
        })
        .collect()
    }

    fn take(&mut self, one: &Running, alone: bool, now: Timestamp) -> bool {
        let ends_at = one.window.ends_at;
        if one.losses.is_empty() {
            return false;
        }
        let firm = match one.after {
            After::MayGoOn => alone,
            After::Over | After::NoLonger(_) => true,
        };
        let told = self.windows.get(&one.reservation);
        let mut told = told.cloned().unwrap_or_else(|| Told { ends_at, ..Told::default() });
        if ends_at != told.ends_at {
            told.moved_to(one, now);
        }
        let mark = mark(one, now).filter(|mark| firm || *mark >= LAST_IF_IT_MAY_MOVE);
        let due = mark.is_some_and(|mark| match told.marks.get(&mark) {
            None => true,
            Some(was_firm) => firm && !was_firm,
        });
        if let Some(mark) = mark.filter(|_| due) {
            told.marks.insert(mark, firm);
        }
        self.windows.insert(one.reservation.clone(), told);
        due
    }
}

impl Told {
    fn moved_to(&mut self, one: &Running, now: Timestamp) {
        let ends_at = one.window.ends_at;
        let step = ends_at > self.ends_at && ends_at.since(self.ends_at) <= EXTEND_STEP;
        self.ends_at = ends_at;
        if step {
            // The window was extended by itself. If the new end is the last one, that is news.
            self.marks.values_mut().for_each(|firm| *firm = false);
        } else {
            // A user who moves an end knows it: only the marks that are still to come count.
            self.marks = passed(one, now).map(|mark| (mark, true)).collect();
        }
    }
}

/// The marks that have passed. One before the window began is none: who reserves an hour knows.
fn passed(one: &Running, now: Timestamp) -> impl Iterator<Item = u64> {
    let left = one.window.ends_at.since(now);
    let whole = one.window.ends_at.since(one.window.starts_at);
    let passed = move |mark: &u64| left <= Millis::minutes(*mark) && Millis::minutes(*mark) < whole;
    MARKS.into_iter().filter(passed)
}

/// The last mark that has passed, unless the next one comes at once.
fn mark(one: &Running, now: Timestamp) -> Option<u64> {
    let left = one.window.ends_at.since(now);
    let mark = passed(one, now).min()?;
    let next = MARKS.into_iter().filter(|next| *next < mark).max();
    let soon = next.is_some_and(|next| left <= Millis::minutes(next) + SOON);
    (!soon).then_some(mark)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::ending::NoLonger;
    use fleet_core::name::UserName;
    use fleet_core::time::Window;

    use super::*;
    use crate::running::Loss;

    const START: Timestamp = Timestamp(1_800_000_000_000);

    fn running(hours: u64, after: After) -> Running {
        let loss = Loss { gpus: Vec::new(), next: None, ended: false };
        Running {
            reservation: ReservationId::parse("res-a").unwrap(),
            owner: UserName::parse("ada").unwrap(),
            with: Default::default(),
            gpus: Vec::new(),
            window: Window { starts_at: START, ends_at: START + Millis::hours(hours) },
            after,
            losses: [(UserName::parse("ada").unwrap(), loss)].into(),
        }
    }

    fn firm() -> After {
        After::Over
    }

    /// Minutes before the end at which something is said, looking each minute until it is over.
    fn said(said: &mut Said, one: &Running, alone: bool, from: u64) -> Vec<u64> {
        let at = |left: u64| one.window.ends_at - Millis::minutes(left);
        let look = |left: &u64| !said.due(std::slice::from_ref(one), alone, at(*left)).is_empty();
        (0..=from).rev().filter(look).collect()
    }

    #[test]
    fn a_broken_gpu_of_a_window_is_named_once() {
        let gpu = |n: u32| GpuUuid::parse(&format!("GPU-0{n}")).unwrap();
        let mut one = running(1, firm());
        one.gpus = vec![gpu(1), gpu(2)];
        let running = [one];
        let broken: Broken = [(gpu(2), "XID 79".to_owned()), (gpu(3), "XID 79".to_owned())].into();
        let mut said = Said::default();
        assert_eq!(said.broken(&running, &Broken::new()), []);
        assert_eq!(said.broken(&running, &broken), [(&running[0], &gpu(2))]);
        assert_eq!(said.broken(&running, &broken), []);
        let more: Broken = [(gpu(1), "lost".to_owned())].into();
        assert_eq!(said.broken(&running, &more), [(&running[0], &gpu(1))]);
        said.broken(&[], &broken);
        assert_eq!(said, Said::default(), "what is over is forgotten");
    }

    #[test]
    fn an_end_that_cannot_move_is_said_at_each_mark_once() {
        let mut all = Said::default();
        let one = running(48, firm());
        assert_eq!(said(&mut all, &one, false, 48 * 60), [24 * 60, 60, 15, 5]);
        assert_eq!(said(&mut all, &one, false, 48 * 60), [0; 0], "also from the disk");
        assert_eq!(said(&mut Said::default(), &running(1, firm()), false, 60), [15, 5]);
        let alone = running(8, After::MayGoOn);
        assert_eq!(said(&mut Said::default(), &alone, true, 480), [60, 15, 5]);
        let anew = Running { losses: Default::default(), ..running(8, firm()) };
        assert_eq!(said(&mut Said::default(), &anew, true, 480), [0; 0], "nobody loses anything");
    }

    #[test]
    fn who_comes_late_says_the_last_one_only() {
        assert_eq!(said(&mut Said::default(), &running(48, firm()), false, 40), [40, 15, 5]);
        assert_eq!(said(&mut Said::default(), &running(48, firm()), false, 16), [15, 5]);
        assert_eq!(said(&mut Said::default(), &running(48, firm()), false, 3), [3]);
    }

    #[test]
    fn one_that_goes_on_by_itself_is_said_once_until_somebody_else_comes() {
        let mut all = Said::default();
        let mut one = running(8, After::MayGoOn);
        assert_eq!(said(&mut all, &one, false, 480), [60, 15]);
        for _ in 0..96 {
            one.window.ends_at = one.window.ends_at + EXTEND_STEP;
            assert_eq!(said(&mut all, &one, false, 16), [0; 0]);
        }
        one.after = firm();
        let last = said(&mut all.clone(), &one, false, 12);
        assert_eq!(last, [12, 5], "it is the last end now");
        one.after = After::NoLonger(NoLonger::Longest);
        assert_eq!(said(&mut all, &one, false, 12), last, "and so it is for another reason");
        one.after = After::MayGoOn;
        one.window.ends_at = one.window.ends_at + Millis::hours(8);
        assert_eq!(said(&mut all, &one, false, 480), [60, 15], "its owner made it longer");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (mut all, one) = (Said::default(), running(1, firm()));
        said(&mut all, &one, false, 15);
        assert_eq!(all.windows.len(), 1);
        all.due(&[], false, one.window.ends_at - Millis(1));
        assert_eq!(all.windows.len(), 1);
        all.due(&[], false, one.window.ends_at);
        assert_eq!(all, Said::default());
    }
}
