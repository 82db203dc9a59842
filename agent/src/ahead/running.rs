//! Windows that run in the book: whether their end can still move, and what comes after it. Pure.
//!
//! Asked by the reconcile task whenever it looks at the calendar, for those who tell the owners. It decides nothing: the
//! controllers do, and without them each window ends when its time is over.

use std::collections::BTreeSet;

use fleet_core::ending::{EXTEND_STEP, EndPolicy, Fate, fate};
use fleet_core::id::ReservationId;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Window;
use fleet_core::window::Enforcement;

use super::book::{Book, Held, Stage};

/// A window that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub reservation: ReservationId,
    pub owner: UserName,
    /// Who else may use its GPUs.
    pub with: BTreeSet<UserName>,
    pub gpus: Vec<GpuUuid>,
    pub window: Window,
    pub after: After,
}

/// What comes after its end, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// While it is in use it goes on.
    MayGoOn,
    /// Its owner has the next window on all of its GPUs.
    Own,
    /// It ends.
    Over {
        /// Who else has the next window on any of its GPUs, at once or so soon that going on is not worth a word.
        next: Option<UserName>,
        /// What is left on its GPUs then is ended.
        ended: bool,
    },
}

impl Running {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

impl Book {
    /// The windows that are open. `mode` is how people are held to their reservations here.
    pub fn running(&self, mode: Option<Enforcement>) -> Vec<Running> {
        let open = |(_, held): &(&ReservationId, &Held)| {
            held.stage == Stage::Open && !held.withdrawn && held.closed_at.is_none()
        };
        let running = |(id, held): (&ReservationId, &Held)| Running {
            reservation: id.clone(),
            owner: held.owner.clone(),
            with: held.with.clone(),
            gpus: held.gpus.clone(),
            window: held.window,
            after: self.after(id, held, mode == Some(Enforcement::On)),
        };
        self.windows.iter().filter(open).map(running).collect()
    }

    fn after(&self, id: &ReservationId, held: &Held, enforced: bool) -> After {
        let end = held.window.ends_at;
        let follows = |other: &Held| {
            !other.withdrawn
                && matches!(other.stage, Stage::Waiting | Stage::Open)
                && other.window.starts_at <= end + EXTEND_STEP
                && end < other.window.ends_at
                && other.gpus.iter().any(|gpu| held.gpus.contains(gpu))
        };
        let others = self.windows.iter().filter(|(other, held)| *other != id && follows(held));
        let next: Vec<&Held> = others.map(|(_, held)| held).collect();
        let covers = |other: &&Held| held.gpus.iter().all(|gpu| other.gpus.contains(gpu));
        if next.iter().any(|other| {
            other.owner == held.owner && other.window.starts_at <= end && covers(other)
        }) {
            return After::Own;
        }
        let first = next.iter().min_by_key(|other| other.window.starts_at);
        let (at_end, rules) = match self.rules {
            Some(rules) => (held.at_end.unwrap_or(rules.at_end), true),
            // Controllers of before end each window when its time is over, and nobody's programs.
            None => (EndPolicy::Warn, false),
        };
        if at_end == EndPolicy::ExtendIfFree && first.is_none() {
            return After::MayGoOn;
        }
        let someone = first.map(|other| other.owner.clone()).filter(|owner| *owner != held.owner);
        let wanted = someone.is_some();
        let ended = rules && enforced && fate(at_end, false, wanted) == Fate::Ended;
        After::Over { next: someone, ended }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::ending::ReservationRules;
    use fleet_core::id::LeaseId;
    use fleet_core::lease::Epoch;
    use fleet_core::time::{Millis, Timestamp};

    use super::*;

    const NOON: Timestamp = Timestamp(1_800_000_000_000);

    fn held(owner: &str, gpus: &[u32], from: Timestamp, stage: Stage) -> Held {
        let gpu = |n: &u32| GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{n}"));
        Held {
            revision: Epoch::default(),
            lease: LeaseId::parse("lease-a").unwrap(),
            epoch: Epoch::default(),
            owner: UserName::parse(owner).unwrap(),
            gpus: gpus.iter().map(|n| gpu(n).unwrap()).collect(),
            window: Window { starts_at: from, ends_at: from + Millis::hours(1) },
            withdrawn: false,
            granted: None,
            stage,
            opened_at: None,
            closed_at: None,
            at_end: None,
            with: Default::default(),
        }
    }

    /// What comes after ada's hour before noon on GPUs 1 and 2.
    fn after(at_end: Option<EndPolicy>, next: Option<Held>, mode: Enforcement) -> After {
        let id = |name: &str| ReservationId::parse(&format!("res-{name}")).unwrap();
        let mut book = Book { rules: Some(ReservationRules::default()), ..Book::default() };
        let first = held("ada", &[1, 2], NOON - Millis::hours(1), Stage::Open);
        book.windows.insert(id("ada"), Held { at_end, ..first });
        book.windows.extend(next.map(|next| (id("next"), next)));
        let mut running = book.running(Some(mode));
        running.retain(|one| one.reservation == id("ada"));
        running.remove(0).after
    }

    fn over(next: Option<&str>, ended: bool) -> After {
        After::Over { next: next.map(|name| UserName::parse(name).unwrap()), ended }
    }

    #[test]
    fn an_end_can_move_only_where_the_policy_says_so_and_nobody_follows() {
        use Enforcement::{On, Warn};
        assert_eq!(after(None, None, On), After::MayGoOn);
        assert_eq!(after(Some(EndPolicy::Stop), None, On), over(None, true));
        assert_eq!(after(Some(EndPolicy::Stop), None, Warn), over(None, false));
        assert_eq!(after(Some(EndPolicy::Warn), None, On), over(None, false));
        let bob = |from, gpus: &[u32]| Some(held("bob", gpus, from, Stage::Waiting));
        assert_eq!(after(None, bob(NOON, &[2, 3]), On), over(Some("bob"), true));
        assert_eq!(after(None, bob(NOON, &[2, 3]), Warn), over(Some("bob"), false));
        assert_eq!(after(None, bob(NOON + EXTEND_STEP, &[2]), Warn), over(Some("bob"), false));
        assert_eq!(after(None, bob(NOON + Millis::hours(1), &[2]), On), After::MayGoOn);
        assert_eq!(after(None, bob(NOON, &[3]), On), After::MayGoOn, "other GPUs");
        let withdrawn = bob(NOON, &[2]).map(|held| Held { withdrawn: true, ..held });
        assert_eq!(after(None, withdrawn, On), After::MayGoOn);
        let own = |gpus: &[u32]| Some(held("ada", gpus, NOON, Stage::Waiting));
        assert_eq!(after(None, own(&[1, 2, 3]), On), After::Own);
        assert_eq!(after(None, own(&[1]), On), over(None, false), "not all of them");
    }
}
