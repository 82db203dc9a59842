//! Windows that are over in the book: what becomes of those who are still on their GPUs. Pure.
//!
//! Asked by the reconcile task whenever it looks at the calendar, for the leases whose GPUs are being proven empty.

use std::collections::BTreeMap;

use fleet_core::ending::{Fate, fate};
use fleet_core::id::{LeaseId, ReservationId};
use fleet_core::time::Timestamp;

use super::book::{Book, Held, Stage};
use crate::holders::Over;

impl Held {
    /// Whether it is somebody's turn, open or about to be.
    fn is_due(&self, now: Timestamp) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Open)
            && !self.withdrawn
            && self.window.starts_at <= now
            && now < self.window.ends_at
    }
}

impl Book {
    /// The windows that are over, of those whose leases are `proving`. Without rules nobody is ended.
    pub fn over(
        &self,
        now: Timestamp,
        proving: impl Fn(&LeaseId) -> bool,
    ) -> BTreeMap<LeaseId, Over> {
        let over = self.windows.iter().filter(|(_, held)| proving(&held.lease));
        over.map(|(id, held)| (held.lease.clone(), self.over_one(id, held, now))).collect()
    }

    fn over_one(&self, id: &ReservationId, held: &Held, now: Timestamp) -> Over {
        let others = self.windows.iter().filter(|(other, _)| *other != id);
        let due: Vec<&Held> = others.map(|(_, other)| other).filter(|o| o.is_due(now)).collect();
        let wants = |other: &&&Held| {
            other.owner != held.owner && other.gpus.iter().any(|gpu| held.gpus.contains(gpu))
        };
        let inherits = |other: &&&Held| {
            other.owner == held.owner && held.gpus.iter().all(|gpu| other.gpus.contains(gpu))
        };
        let wanted = due.iter().any(|other| wants(&other));
        let heir = due.iter().find(inherits).map(|other| other.owner.clone());
        let ends = self.rules.is_some_and(|rules| {
            let at_end = held.at_end.unwrap_or(rules.at_end);
            // A window that was closed before its time was given back.
            fate(at_end, held.withdrawn, wanted) == Fate::Ended
        });
        Over { reservation: id.clone(), ends, heir }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::ending::{EndPolicy, ReservationRules};
    use fleet_core::lease::Epoch;
    use fleet_core::name::{GpuUuid, UserName};
    use fleet_core::time::{Millis, Window};

    use super::*;

    const NOON: Timestamp = Timestamp(1_800_000_000_000);

    fn held(owner: &str, gpus: &[u32], from: i64, stage: Stage) -> Held {
        let hour = Millis::hours(1);
        let gpu = |n: &u32| GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{n}"));
        let starts_at = if from < 0 { NOON - hour } else { NOON + Millis::hours(from as u64) };
        Held {
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

    fn book(over: Held, next: Option<Held>) -> Book {
        let id = |name: &str| ReservationId::parse(&format!("res-{name}")).unwrap();
        let rules = Some(ReservationRules::default());
        let mut book = Book { rules, ..Book::default() };
        book.windows.insert(id("over"), over);
        book.windows.extend(next.map(|next| (id("next"), next)));
        book
    }

    fn ends(book: &Book) -> (bool, Option<String>) {
        let lease = LeaseId::parse("lease-ada2").unwrap();
        let over = book.over(NOON, |known| *known == lease).remove(&lease).unwrap();
        (over.ends, over.heir.map(|heir| heir.to_string()))
    }

    #[test]
    fn who_is_left_is_ended_by_policy_and_for_whoever_comes_next() {
        let over = || held("ada", &[1, 2], -1, Stage::Closed);
        assert_eq!(ends(&book(over(), None)), (false, None), "nobody else wants them");
        let stop = Held { at_end: Some(EndPolicy::Stop), ..over() };
        assert_eq!(ends(&book(stop.clone(), None)), (true, None));
        let given_back = Held { withdrawn: true, ..over() };
        assert_eq!(ends(&book(given_back, None)), (true, None));
        let warn = Held { at_end: Some(EndPolicy::Warn), withdrawn: true, ..over() };
        assert_eq!(ends(&book(warn.clone(), None)), (false, None));
        let bobs = held("bob", &[2, 3], 0, Stage::Waiting);
        assert_eq!(ends(&book(warn, Some(bobs.clone()))), (true, None));
        let later = held("bob", &[2, 3], 1, Stage::Waiting);
        assert_eq!(ends(&book(over(), Some(later))), (false, None));
        let elsewhere = held("bob", &[3], 0, Stage::Waiting);
        assert_eq!(ends(&book(over(), Some(elsewhere))), (false, None));
        let own = held("ada", &[1, 2, 3], 0, Stage::Waiting);
        assert_eq!(ends(&book(over(), Some(own))), (false, Some("ada".to_owned())));
        let mut without = book(stop, Some(bobs));
        without.rules = None;
        assert_eq!(ends(&without), (false, None), "controllers of before end nobody");
    }
}
