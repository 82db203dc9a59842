//! Windows that run in the promises: whether their end can still move, and what comes after it. Pure.
//!
//! Asked by the reconcile task whenever it looks at the calendar, for those who tell the owners. It decides nothing: the
//! controllers do, and without them each window ends when its time is over.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::ending::{EXTEND_STEP, EndPolicy, Fate, NoLonger, fate};
use fleet_core::id::ReservationId;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Window;
use fleet_core::window::Enforcement;

use crate::promises::{Promises, Stage, WindowInHand};

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
    /// What its users lose at the end, if nobody extends it. Left out: a user with the next window on all of its GPUs.
    pub losses: BTreeMap<UserName, Loss>,
}

/// What comes after its end, as far as this node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It is extended while it is in use.
    MayGoOn,
    /// It ends, by its policy, for what follows, or with its node.
    Over,
    /// It ends although its policy says otherwise and nobody has what follows.
    NoLonger(NoLonger),
}

/// What one user loses at the end of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The GPUs that they may not use any more then.
    pub gpus: Vec<GpuUuid>,
    /// Who has the next window there, at once or so soon that going on is not worth a word; else who has it on any other of
    /// its GPUs, for which it ends. It may be themselves.
    pub next: Option<UserName>,
    /// What they leave there is ended.
    pub ended: bool,
}

impl Running {
    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

impl Promises {
    /// The windows that are open. `mode` is how people are held to their reservations here. `drained`: this node is to be
    /// emptied, so no window is extended. `no_longer`: the other windows that the controllers do not extend.
    pub fn running(
        &self,
        mode: Option<Enforcement>,
        drained: bool,
        no_longer: &BTreeMap<ReservationId, NoLonger>,
    ) -> Vec<Running> {
        let open = |(_, held): &(&ReservationId, &WindowInHand)| {
            held.stage == Stage::Open && !held.withdrawn && held.closed_at.is_none()
        };
        let running = |(id, held): (&ReservationId, &WindowInHand)| {
            let next = self.next(id, held);
            let enforced = mode == Some(Enforcement::On);
            let loss =
                |user: &UserName| Some((user.clone(), self.loss(user, held, &next, enforced)?));
            Running {
                reservation: id.clone(),
                owner: held.owner.clone(),
                with: held.with.clone(),
                gpus: held.gpus.clone(),
                window: held.window,
                after: match self.at_end(held) {
                    EndPolicy::ExtendIfFree if next.is_empty() && !drained => {
                        no_longer.get(id).map_or(After::MayGoOn, |why| After::NoLonger(*why))
                    }
                    EndPolicy::ExtendIfFree | EndPolicy::Stop | EndPolicy::Warn => After::Over,
                },
                losses: held.users().filter_map(loss).collect(),
            }
        };
        self.windows.iter().filter(open).map(running).collect()
    }

    /// The windows on any of its GPUs that begin at its end, or so soon after that going on is not worth a word. The first
    /// one first.
    fn next(&self, id: &ReservationId, held: &WindowInHand) -> Vec<&WindowInHand> {
        let end = held.window.ends_at;
        let follows = |other: &WindowInHand| {
            !other.withdrawn
                && matches!(other.stage, Stage::Waiting | Stage::Open)
                && other.window.starts_at <= end + EXTEND_STEP
                && end < other.window.ends_at
                && other.gpus.iter().any(|gpu| held.gpus.contains(gpu))
        };
        let others = self.windows.iter().filter(|(other, held)| *other != id && follows(held));
        let mut next: Vec<&WindowInHand> = others.map(|(_, held)| held).collect();
        next.sort_by_key(|other| other.window.starts_at);
        next
    }

    /// Controllers of before end each window when its time is over, and nobody's programs.
    fn at_end(&self, held: &WindowInHand) -> EndPolicy {
        self.rules.map_or(EndPolicy::Warn, |rules| held.at_end.unwrap_or(rules.at_end))
    }

    /// None if the next windows let the user keep using each of the GPUs.
    fn loss(
        &self,
        user: &UserName,
        held: &WindowInHand,
        next: &[&WindowInHand],
        enforced: bool,
    ) -> Option<Loss> {
        let end = held.window.ends_at;
        let has = |other: &WindowInHand, gpu: &GpuUuid| {
            other.gpus.contains(gpu) && other.users().any(|one| one == user)
        };
        let goes_on = |gpu: &GpuUuid| {
            next.iter().any(|other| other.window.starts_at <= end && has(other, gpu))
        };
        let gpus: Vec<GpuUuid> = held.gpus.iter().filter(|gpu| !goes_on(gpu)).cloned().collect();
        let on_these = |other: &&&WindowInHand| other.gpus.iter().any(|gpu| gpus.contains(gpu));
        let first = next.iter().find(on_these).or(next.first());
        // The next window on one of the GPUs waits for all of its GPUs; but a user of that window stays on theirs.
        let fate = fate(self.at_end(held), false, !next.is_empty());
        let stopped = self.at_end(held) == EndPolicy::Stop;
        let stays = |gpu: &GpuUuid| !stopped && next.iter().any(|other| has(other, gpu));
        let ended =
            self.rules.is_some() && enforced && fate == Fate::Ended && !gpus.iter().all(stays);
        let next = first.map(|other| other.owner.clone());
        (!gpus.is_empty()).then_some(Loss { gpus, next, ended })
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

    fn held(owner: &str, gpus: &[u32], from: Timestamp, stage: Stage) -> WindowInHand {
        let gpu = |n: &u32| GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{n}"));
        WindowInHand {
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

    fn user(name: &str) -> UserName {
        UserName::parse(name).unwrap()
    }

    /// ada's hour before noon on GPUs 1 and 2, which bob may use too.
    fn run(
        at_end: Option<EndPolicy>,
        next: Option<WindowInHand>,
        mode: Enforcement,
        drained: bool,
        no_longer: &BTreeMap<ReservationId, NoLonger>,
    ) -> Running {
        let id = |name: &str| ReservationId::parse(&format!("res-{name}")).unwrap();
        let mut promises =
            Promises { rules: Some(ReservationRules::default()), ..Promises::default() };
        let first = held("ada", &[1, 2], NOON - Millis::hours(1), Stage::Open);
        promises
            .windows
            .insert(id("ada"), WindowInHand { at_end, with: [user("bob")].into(), ..first });
        promises.windows.extend(next.map(|next| (id("next"), next)));
        let mut running = promises.running(Some(mode), drained, no_longer);
        running.retain(|one| one.reservation == id("ada"));
        running.remove(0)
    }

    /// What comes after it, for ada: who has the next one, and whether what is left is ended.
    fn after(
        at_end: Option<EndPolicy>,
        next: Option<WindowInHand>,
        mode: Enforcement,
    ) -> Option<(Option<UserName>, bool)> {
        let one = run(at_end, next, mode, false, &BTreeMap::new());
        let loss = &one.losses[&user("ada")];
        assert_eq!(loss.gpus, one.gpus);
        (one.after == After::Over).then(|| (loss.next.clone(), loss.ended))
    }

    fn over(next: Option<&str>, ended: bool) -> Option<(Option<UserName>, bool)> {
        Some((next.map(user), ended))
    }

    /// The last digits of the GPUs that a user loses, who has them next, and whether what is left there is ended.
    fn loses(one: &Running, name: &str) -> Option<(Vec<char>, Option<String>, bool)> {
        let Loss { gpus, next, ended } = one.losses.get(&user(name))?;
        let digits = gpus.iter().filter_map(|gpu| gpu.as_str().chars().last()).collect();
        Some((digits, next.as_ref().map(|next| next.to_string()), *ended))
    }

    const MAY_GO_ON: Option<(Option<UserName>, bool)> = None;

    #[test]
    fn an_end_can_move_only_where_the_policy_says_so_and_nobody_follows() {
        use Enforcement::{On, Warn};
        assert_eq!(after(None, None, On), MAY_GO_ON);
        assert_eq!(after(Some(EndPolicy::Stop), None, On), over(None, true));
        assert_eq!(after(Some(EndPolicy::Stop), None, Warn), over(None, false));
        assert_eq!(after(Some(EndPolicy::Warn), None, On), over(None, false));
        let eve = |from, gpus: &[u32]| Some(held("eve", gpus, from, Stage::Waiting));
        assert_eq!(after(None, eve(NOON, &[2, 3]), On), over(Some("eve"), true));
        assert_eq!(after(None, eve(NOON, &[2, 3]), Warn), over(Some("eve"), false));
        assert_eq!(after(None, eve(NOON + EXTEND_STEP, &[2]), Warn), over(Some("eve"), false));
        assert_eq!(after(None, eve(NOON + Millis::hours(1), &[2]), On), MAY_GO_ON);
        assert_eq!(after(None, eve(NOON, &[3]), On), MAY_GO_ON, "other GPUs");
        let withdrawn = eve(NOON, &[2]).map(|held| WindowInHand { withdrawn: true, ..held });
        assert_eq!(after(None, withdrawn, On), MAY_GO_ON);
        let soon = Some(held("ada", &[1, 2], NOON + EXTEND_STEP, Stage::Waiting));
        assert_eq!(after(None, soon, On), over(Some("ada"), false), "she has them again soon");
    }

    #[test]
    fn on_a_drained_node_no_window_goes_on() {
        let after = |drained| run(None, None, Enforcement::On, drained, &BTreeMap::new()).after;
        assert_eq!((after(false), after(true)), (After::MayGoOn, After::Over));
    }

    #[test]
    fn one_of_which_the_controllers_say_so_goes_on_no_longer() {
        let id = ReservationId::parse("res-ada").unwrap();
        let told = BTreeMap::from([(id, NoLonger::Longest)]);
        let after = |at_end, next| run(at_end, next, Enforcement::On, false, &told).after;
        assert_eq!(after(None, None), After::NoLonger(NoLonger::Longest));
        assert_eq!(after(Some(EndPolicy::Warn), None), After::Over);
        let eves = held("eve", &[1], NOON, Stage::Waiting);
        assert_eq!(after(None, Some(eves)), After::Over, "who has the next one says more");
    }

    #[test]
    fn who_has_the_next_window_loses_only_what_it_has_not() {
        let next = |owner: &str, gpus: &[u32]| {
            let next = Some(held(owner, gpus, NOON, Stage::Waiting));
            run(None, next, Enforcement::On, false, &BTreeMap::new())
        };
        let anew = next("ada", &[1, 2, 3]);
        assert_eq!((anew.after, loses(&anew, "ada")), (After::Over, None));
        let both = (vec!['1', '2'], Some("ada".to_owned()), true);
        assert_eq!(loses(&anew, "bob"), Some(both), "it is not shared with bob");
        let one = next("ada", &[1]);
        assert_eq!(loses(&one, "ada"), Some((vec!['2'], Some("ada".to_owned()), true)));
        let bobs = next("bob", &[2]);
        assert_eq!(loses(&bobs, "bob"), Some((vec!['1'], Some("bob".to_owned()), true)));
        assert_eq!(loses(&bobs, "ada"), Some((vec!['1', '2'], Some("bob".to_owned()), true)));
    }
}
