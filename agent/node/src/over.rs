//! Windows that are over in the promises: what becomes of those who are still on their GPUs. Pure.
//!
//! Asked by the reconcile task whenever it looks at the calendar, for the leases whose GPUs are being proven empty.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::ending::{Fate, fate};
use fleet_core::id::{LeaseId, ReservationId};
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::{Millis, Timestamp};

use crate::promises::{Promises, Stage, WindowInHand};

/// For how long after its end people still see a window.
const SHOWN_FOR: Millis = Millis::hours(1);

/// A window that is over, and whose GPUs are not proven empty yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    pub reservation: ReservationId,
    pub owner: UserName,
    /// All who could use it.
    pub users: BTreeSet<UserName>,
    /// Who is left is ended.
    pub ends: bool,
    /// Whose the next window is, by GPU: they may stay there.
    pub heirs: BTreeMap<GpuUuid, BTreeSet<UserName>>,
}

impl WindowInHand {
    /// Whether `fleet status` on the node lists it. The agent keeps windows longer than people want to see them.
    pub fn is_shown(&self, now: Option<Timestamp>) -> bool {
        // Cancelled before it opened: nothing of it was ever in force.
        let never = self.withdrawn && self.stage == Stage::Waiting;
        let over = self.stage == Stage::Closed || self.withdrawn;
        !never && (!over || now.is_none_or(|now| now.since(self.window.ends_at) < SHOWN_FOR))
    }

    /// Whether it is somebody's turn, open or about to be.
    fn is_due(&self, now: Timestamp) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Open)
            && !self.withdrawn
            && self.window.starts_at <= now
            && now < self.window.ends_at
    }
}

impl Promises {
    /// The windows that are over, of those whose leases are `proving`. Without rules nobody is ended.
    pub fn over(
        &self,
        now: Timestamp,
        proving: impl Fn(&LeaseId) -> bool,
    ) -> BTreeMap<LeaseId, Over> {
        let over = self.windows.iter().filter(|(_, held)| proving(&held.lease));
        over.map(|(id, held)| (held.lease.clone(), self.over_one(id, held, now))).collect()
    }

    fn over_one(&self, id: &ReservationId, held: &WindowInHand, now: Timestamp) -> Over {
        let due = self.windows.iter().filter(|(other, next)| *other != id && next.is_due(now));
        let mut heirs: BTreeMap<GpuUuid, BTreeSet<UserName>> = BTreeMap::new();
        for (_, next) in due {
            for gpu in next.gpus.iter().filter(|gpu| held.gpus.contains(gpu)) {
                heirs.entry(gpu.clone()).or_default().extend(next.users().cloned());
            }
        }
        // A window of the same owner counts too: it opens when all of these GPUs are empty, no matter who uses them.
        let wanted = !heirs.is_empty();
        let ends = self.rules.is_some_and(|rules| {
            let at_end = held.at_end.unwrap_or(rules.at_end);
            // If a window was closed before its time, its owner released it.
            fate(at_end, held.withdrawn, wanted) == Fate::Ended
        });
        let (owner, users) = (held.owner.clone(), held.users().cloned().collect());
        Over { reservation: id.clone(), owner, users, ends, heirs }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::ending::{EndPolicy, ReservationRules};
    use fleet_core::lease::Epoch;
    use fleet_core::time::Window;

    use super::*;

    const NOON: Timestamp = Timestamp(1_800_000_000_000);

    fn held(owner: &str, gpus: &[u32], from: i64, stage: Stage) -> WindowInHand {
        let hour = Millis::hours(1);
        let gpu = |n: &u32| GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{n}"));
        let starts_at = if from < 0 { NOON - hour } else { NOON + Millis::hours(from as u64) };
        WindowInHand {
            revision: Epoch::default(),
            lease: LeaseId::parse(&format!("lease-{owner}{}", gpus.len())).unwrap(),
            epoch: Epoch::default(),
            owner: UserName::parse(owner).unwrap(),
            gpus: gpus.iter().map(|n| gpu(n).unwrap()).collect(),
            window: Window { starts_at, ends_at: starts_at + hour },
            withdrawn: false,
            granted: None,
            stage,
            opened_at: None,
            closed_at: None,
            at_end: None,
            with: Default::default(),
        }
    }

    fn promises(over: WindowInHand, next: Option<WindowInHand>) -> Promises {
        let id = |name: &str| ReservationId::parse(&format!("res-{name}")).unwrap();
        let rules = Some(ReservationRules::default());
        let mut promises = Promises { rules, ..Promises::default() };
        promises.windows.insert(id("over"), over);
        promises.windows.extend(next.map(|next| (id("next"), next)));
        promises
    }

    /// And who may stay, as the last digit of the GPU and their names.
    fn ends(promises: &Promises) -> (bool, Vec<String>) {
        let lease = LeaseId::parse("lease-ada2").unwrap();
        let over = promises.over(NOON, |known| *known == lease).remove(&lease).unwrap();
        let heirs = over.heirs.iter().map(|(gpu, users)| {
            let users: Vec<&str> = users.iter().map(UserName::as_str).collect();
            format!("{} {}", &gpu.as_str()[gpu.as_str().len() - 1..], users.join(","))
        });
        (over.ends, heirs.collect())
    }

    fn nobody(ends: bool) -> (bool, Vec<String>) {
        (ends, Vec::new())
    }

    fn for_heirs(heirs: &[&str]) -> (bool, Vec<String>) {
        (true, heirs.iter().map(|heir| (*heir).to_owned()).collect())
    }

    #[test]
    fn cancelled_windows_and_those_long_over_are_not_listed() {
        let shown = |held: &WindowInHand, hours| held.is_shown(Some(NOON + Millis::hours(hours)));
        let waiting = held("ada", &[1], 5, Stage::Waiting);
        assert!(shown(&waiting, 0));
        assert!(!shown(&WindowInHand { withdrawn: true, ..waiting }, 0), "it never opened");
        let closed = held("ada", &[1], -1, Stage::Closed);
        assert!(shown(&closed, 0) && !shown(&closed, 1), "it ended at noon");
        let released = WindowInHand { withdrawn: true, ..held("ada", &[1], -1, Stage::Open) };
        assert!(shown(&released, 0) && !shown(&released, 2));
        assert!(closed.is_shown(None), "the time is not known");
    }

    #[test]
    fn who_is_left_is_ended_by_policy_and_for_whoever_comes_next() {
        let over = || held("ada", &[1, 2], -1, Stage::Closed);
        assert_eq!(ends(&promises(over(), None)), nobody(false), "nobody else wants them");
        let stop = WindowInHand { at_end: Some(EndPolicy::Stop), ..over() };
        assert_eq!(ends(&promises(stop.clone(), None)), nobody(true));
        let given_back = WindowInHand { withdrawn: true, ..over() };
        assert_eq!(ends(&promises(given_back, None)), nobody(true));
        let warn = WindowInHand { at_end: Some(EndPolicy::Warn), withdrawn: true, ..over() };
        assert_eq!(ends(&promises(warn.clone(), None)), nobody(false));
        let bobs = held("bob", &[2, 3], 0, Stage::Waiting);
        assert_eq!(ends(&promises(warn, Some(bobs.clone()))), for_heirs(&["2 bob"]));
        let later = held("bob", &[2, 3], 1, Stage::Waiting);
        assert_eq!(ends(&promises(over(), Some(later))), nobody(false));
        let elsewhere = held("bob", &[3], 0, Stage::Waiting);
        assert_eq!(ends(&promises(over(), Some(elsewhere))), nobody(false));
        let mut without = promises(stop, Some(bobs));
        without.rules = None;
        assert!(!ends(&without).0, "controllers of before end nobody");
    }

    #[test]
    fn who_has_the_next_window_stays_on_its_gpus_and_everybody_else_is_in_its_way() {
        let shared = [UserName::parse("bob").unwrap()].into();
        let over = WindowInHand { with: shared, ..held("ada", &[1, 2], -1, Stage::Closed) };
        let own = held("ada", &[1, 2, 3], 0, Stage::Waiting);
        let with_eve =
            WindowInHand { with: [UserName::parse("eve").unwrap()].into(), ..own.clone() };
        let some = held("ada", &[1], 0, Stage::Waiting);
        // bob is left, and would keep ada's own next one from beginning.
        assert_eq!(ends(&promises(over.clone(), Some(own))), for_heirs(&["1 ada", "2 ada"]));
        let both = for_heirs(&["1 ada,eve", "2 ada,eve"]);
        assert_eq!(ends(&promises(over.clone(), Some(with_eve))), both);
        assert_eq!(ends(&promises(over, Some(some))), for_heirs(&["1 ada"]), "not on the other");
    }
}
