//! The waiting list: who gets on it, in which order it is served, and when a wait is over.

use proptest::prelude::*;

use super::windows::answer;
use super::world::{START, World, gpu, node, person, plain, res, user};
use crate::actor::Actor;
use crate::command::{
    AccessCommand, Command, CreateReservation, EndingCommand, LimitsCommand, Report,
    ReservationChange, ReservationCommand,
};
use crate::event::Event;
use crate::fsm::waitlist::gain_min;
use crate::limits::ReservationLimits;
use crate::name::{GpuUuid, GroupName};
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, ReservationState, WaitOverWhy};
use crate::time::{Millis, Timestamp, Window};
use crate::view::reservation::Listed;
use crate::waitlist::{WAIT_MAX, WAITING_EACH_MAX};

const HOUR: Millis = Millis::hours(1);

pub(super) fn any(count: u32) -> GpuRequest {
    GpuRequest { count, ..GpuRequest::default() }
}

pub(super) fn these(gpus: &[u32]) -> GpuRequest {
    let uuids: Vec<GpuUuid> = gpus.iter().map(|index| gpu("titan01", *index)).collect();
    GpuRequest { count: u32::try_from(gpus.len()).unwrap(), uuids, ..GpuRequest::default() }
}

/// One that could begin now, and lasts this long.
pub(super) fn wish(
    w: &World,
    who: &str,
    name: &str,
    gpus: GpuRequest,
    length: Millis,
) -> CreateReservation {
    let window = Window { starts_at: w.now, ends_at: w.now + length };
    CreateReservation::plain(res(name), user(who), gpus, window)
}

fn wait_as(
    w: &mut World,
    actor: Actor,
    wish: CreateReservation,
    wait: Millis,
) -> Result<Reply, Rejection> {
    let latest_start = wish.window.starts_at + wait;
    let command =
        ReservationCommand::Wait { wish: Box::new(wish), latest_start, ask: None, offer: None };
    w.give(actor, Command::Reservation(command))
}

fn wait(w: &mut World, who: &str, name: &str, gpus: u32, length: Millis, wait: Millis) -> Reply {
    let wish = wish(w, who, name, any(gpus), length);
    wait_as(w, person(who), wish, wait).unwrap()
}

pub(super) fn release(w: &mut World, name: &str) {
    let command = ReservationCommand::Release { id: res(name) };
    w.give(person("root"), Command::Reservation(command)).unwrap();
    w.release("titan01");
}

/// bob has all four GPUs of the only node, each in a reservation of its own: `b0` to `b3`.
pub(super) fn full(length: Millis) -> World {
    let mut w = World::with(&["titan01"]);
    let no_show = Some(Millis::ZERO);
    let rules =
        EndingCommand::SetRules { at_end: None, no_show, grace: None, idle: Default::default() };
    w.give(person("root"), Command::Ending(rules)).unwrap();
    for index in 0..4 {
        let name = format!("b{index}");
        let wish = wish(&w, "bob", &name, these(&[index]), length);
        w.give(person("bob"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    }
    w
}

pub(super) fn starts(w: &World, name: &str) -> Option<Timestamp> {
    w.fsm.reservation(&res(name)).map(|r| r.wanted().window.starts_at)
}

fn waits(name: &str) -> Reply {
    Reply::ReservationWaits { id: res(name) }
}

fn created(name: &str) -> Reply {
    Reply::ReservationCreated { id: res(name) }
}

#[test]
fn what_is_released_goes_to_the_list_before_the_queue() {
    let mut w = full(Millis::hours(24));
    for number in 0..16 {
        w.submit("eve", &format!("q{number}"), plain(1)).unwrap();
    }
    assert_eq!(wait(&mut w, "ada", "a", 1, HOUR, HOUR), waits("a"));
    assert_eq!(
        w.said(),
        ["ada waits for 1 GPU, place 1 on the waiting list; it begins within 1h, or not at all"]
    );
    assert_eq!(w.schedule(), 0);
    w.now = w.now + Millis::minutes(10);
    release(&mut w, "b2");
    let r = w.fsm.reservation(&res("a")).unwrap();
    assert_eq!(
        (&r.state, r.gpus.as_slice()),
        (&ReservationState::Active, [gpu("titan01", 2)].as_slice())
    );
    let all = Window { starts_at: w.now, ends_at: w.now + HOUR };
    assert_eq!(r.window, all, "it has its whole length from its start on");
    assert!(w.fsm.waitlist().is_empty());
    assert_eq!(w.schedule(), 0, "nothing is left for the queue");
}

#[test]
fn what_one_leaves_by_a_move_goes_to_the_first_in_the_list() {
    let mut w = full(Millis::days(20));
    let day = |day: u64| {
        let starts_at = START + Millis::days(day);
        Window { starts_at, ends_at: starts_at + Millis::days(1) }
    };
    for (name, gpus, nth) in [("all", 4, 20), ("half", 2, 21)] {
        let bobs = CreateReservation::plain(res(name), user("bob"), any(gpus), day(nth));
        w.give(person("bob"), Command::Reservation(ReservationCommand::Create(bobs))).unwrap();
    }
    let on_that_day = |w: &mut World, who: &str| {
        let wish = CreateReservation::plain(res(who), user(who), any(4), day(21));
        wait_as(w, person(who), wish, Millis::ZERO).unwrap()
    };
    assert_eq!(on_that_day(&mut w, "ada"), waits("ada"));
    assert_eq!(wait(&mut w, "cid", "cid", 2, Millis::days(1), Millis::days(30)), created("cid"));
    assert_eq!(starts(&w, "cid"), Some(day(21).starts_at));
    assert_eq!(on_that_day(&mut w, "eve"), waits("eve"));
    release(&mut w, "half");
    release(&mut w, "b0");
    assert_eq!(starts(&w, "ada"), None, "cid is there still");
    release(&mut w, "b1");
    assert_eq!(starts(&w, "cid"), Some(w.now));
    assert_eq!((starts(&w, "ada"), starts(&w, "eve")), (Some(day(21).starts_at), None));
}

#[test]
fn a_place_in_time_is_booked_at_once_and_moves_when_something_comes_free() {
    let mut w = full(Millis::hours(3));
    assert_eq!(wait(&mut w, "ada", "a", 1, HOUR, Millis::hours(5)), created("a"));
    assert_eq!(starts(&w, "a"), Some(START + Millis::hours(3)));
    assert_eq!(w.fsm.waitlist().place(&res("a")), Some(1));
    // bob cannot take the time that was promised.
    let later = Window { starts_at: START + Millis::hours(3), ends_at: START + Millis::hours(9) };
    for index in 1..4 {
        let bobs = CreateReservation::plain(res(&format!("c{index}")), user("bob"), any(1), later);
        w.give(person("bob"), Command::Reservation(ReservationCommand::Create(bobs))).unwrap();
    }
    let bobs = CreateReservation::plain(res("c4"), user("bob"), any(1), later);
    w.give(person("bob"), Command::Reservation(ReservationCommand::Create(bobs))).unwrap_err();

    w.now = w.now + Millis::minutes(20);
    w.heard.clear();
    release(&mut w, "b3");
    let r = w.fsm.reservation(&res("a")).unwrap();
    assert_eq!((&r.state, r.window.starts_at), (&ReservationState::Active, w.now));
    assert_eq!(r.window.ends_at, w.now + HOUR);
    let edited = w.heard.iter().find(|e| matches!(e, Event::ReservationEdited { .. })).unwrap();
    assert!(w.sentence(edited).starts_with("fleet changed the reservation: time "));
    w.pass(Millis::minutes(1));
    assert!(w.fsm.waitlist().is_empty(), "it cannot begin any earlier");
}

#[test]
fn the_list_is_served_in_its_order_and_a_later_one_takes_what_an_earlier_one_cannot_use() {
    let mut w = full(Millis::hours(24));
    assert_eq!(wait(&mut w, "ada", "two", 2, HOUR, Millis::hours(4)), waits("two"));
    assert_eq!(wait(&mut w, "eve", "one", 1, Millis::hours(2), Millis::hours(4)), waits("one"));
    assert_eq!(wait(&mut w, "eve", "one-more", 1, HOUR, Millis::hours(4)), waits("one-more"));
    release(&mut w, "b0");
    assert_eq!(starts(&w, "one"), Some(w.now), "the first wants two");
    assert_eq!(starts(&w, "two"), None);
    assert_eq!(starts(&w, "one-more"), Some(w.now + Millis::hours(2)), "after the other one");
    release(&mut w, "b1");
    // Together with the GPU of "one" it can begin in two hours: that is promised to it.
    assert_eq!(starts(&w, "two"), Some(w.now + Millis::hours(2)));
    assert_eq!(starts(&w, "one-more"), Some(w.now), "it is over before the first begins");
    release(&mut w, "b2");
    assert_eq!(starts(&w, "two"), Some(w.now + HOUR));
    release(&mut w, "b3");
    assert_eq!(starts(&w, "two"), Some(w.now));
}

#[test]
fn nobody_waits_for_longer_than_they_said() {
    let mut w = full(Millis::hours(24));
    assert_eq!(wait(&mut w, "ada", "a", 1, HOUR, Millis::minutes(30)), waits("a"));
    w.pass(Millis::minutes(30));
    assert!(w.fsm.waitlist().waits(&res("a")).is_some());
    assert_eq!(w.fsm.next_deadline(), Some(w.now + Millis(1)));
    w.pass(Millis(1));
    assert_eq!(w.said(), ["removed from the waiting list: no place was free by its latest start"]);
    let over = w.fsm.waitlist().was_over(&res("a")).unwrap();
    assert_eq!(over.why, WaitOverWhy::TooLate);
    assert_eq!(Listed::of(&w.fsm, &res("a")).unwrap().shown().word(), "ended");
    release(&mut w, "b0");
    assert_eq!(starts(&w, "a"), None);
    let again = wish(&w, "ada", "a", any(1), HOUR);
    let refused = wait_as(&mut w, person("ada"), again, HOUR).unwrap_err();
    assert!(matches!(refused, Rejection::IdTaken { .. }), "{refused:?}");
}

#[test]
fn one_that_waits_is_released_and_not_changed() {
    let mut w = full(Millis::hours(24));
    wait(&mut w, "ada", "a", 1, HOUR, HOUR);
    let listed = Listed::of(&w.fsm, &res("a")).unwrap();
    assert_eq!(
        (listed.shown().word(), listed.why(&w.fsm).as_str()),
        ("waiting", "waits for 1 GPU")
    );
    let extend = ReservationCommand::Extend { id: res("a"), ends_at: w.now + Millis::hours(3) };
    let refused = w.give(person("ada"), Command::Reservation(extend)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "res-a: it is on the waiting list and has no GPUs yet: release it and reserve again"
    );
    let release = || Command::Reservation(ReservationCommand::Release { id: res("a") });
    assert!(matches!(w.give(person("eve"), release()), Err(Rejection::Denied { .. })));
    w.give(person("ada"), release()).unwrap();
    assert_eq!(w.said(), ["reservation cancelled by ada"]);
    assert_eq!(Listed::of(&w.fsm, &res("a")).unwrap().shown().word(), "cancelled");
    w.give(person("ada"), release()).unwrap();
    assert!(w.last.is_empty(), "once is enough");
}

#[test]
fn what_can_never_be_served_does_not_wait() {
    let mut w = full(Millis::hours(24));
    let try_it = |w: &mut World, wish: CreateReservation, wait| {
        wait_as(w, person("ada"), wish, wait).unwrap_err()
    };
    let never = wish(&w, "ada", "a", any(5), HOUR);
    assert!(matches!(try_it(&mut w, never, HOUR), Rejection::NeverFits { .. }));
    let nowhere = GpuRequest { node: Some(node("titan09")), ..any(1) };
    let nowhere = wish(&w, "ada", "a", nowhere, HOUR);
    assert!(matches!(try_it(&mut w, nowhere, HOUR), Rejection::NotFound { .. }));
    let long = wish(&w, "ada", "a", any(1), HOUR);
    let refused = try_it(&mut w, long, WAIT_MAX + Millis(1)).to_string();
    assert!(refused.contains("at most 60d after the start"), "{refused}");
    let adopting = CreateReservation { adopts: true, ..wish(&w, "ada", "a", these(&[0]), HOUR) };
    assert!(try_it(&mut w, adopting, HOUR).to_string().contains("cannot wait"));
    for number in 0..WAITING_EACH_MAX {
        wait(&mut w, "ada", &format!("a{number}"), 1, HOUR, HOUR);
    }
    let one_more = wish(&w, "ada", "more", any(1), HOUR);
    let refused = try_it(&mut w, one_more, HOUR);
    assert!(matches!(refused, Rejection::LimitReached { limit: 16, .. }), "{refused:?}");
    assert_eq!(wait(&mut w, "eve", "e", 1, HOUR, HOUR), waits("e"));
}

#[test]
fn a_limit_is_waited_for_and_holds_when_something_comes_free() {
    let mut w = full(Millis::hours(24));
    let lab = GroupName::parse("lab").unwrap();
    let limits = ReservationLimits { gpus: Some(1), ..ReservationLimits::default() };
    let command = LimitsCommand::Set { group: lab.clone(), limits };
    w.give(person("root"), Command::Limits(command)).unwrap();
    let ada = || {
        let who = crate::actor::Who::User {
            name: user("ada"),
            admin: false,
            groups: [GroupName::parse("lab").unwrap()].into(),
        };
        Actor { who, ..person("ada") }
    };
    let too_many = wish(&w, "ada", "a", any(2), HOUR);
    let refused = wait_as(&mut w, ada(), too_many, HOUR).unwrap_err();
    let Rejection::AboveLimit { why } = refused else { panic!("{refused:?}") };
    assert!(matches!(*why, Rejection::InvalidField { .. }), "{why:?}");
    for name in ["a", "b"] {
        let one = wish(&w, "ada", name, any(1), Millis::hours(2));
        assert_eq!(wait_as(&mut w, ada(), one, HOUR).unwrap(), waits(name));
    }
    release(&mut w, "b0");
    release(&mut w, "b1");
    assert_eq!((starts(&w, "a"), starts(&w, "b")), (Some(w.now), None));
    let listed = Listed::of(&w.fsm, &res("b")).unwrap();
    assert!(listed.why(&w.fsm).contains("limit of lab"), "{}", listed.why(&w.fsm));
    w.now = w.now + Millis::minutes(5);
    release(&mut w, "a");
    assert_eq!(starts(&w, "b"), Some(w.now));
    release(&mut w, "b2");
    for (name, hours) in [("c", 2), ("d", 3)] {
        let later = wish(&w, "ada", name, any(1), HOUR);
        assert_eq!(wait_as(&mut w, ada(), later, Millis::hours(9)).unwrap(), created(name));
        let behind = Some(w.now + Millis::hours(hours));
        assert_eq!(starts(&w, name), behind, "GPUs are free, but she has one at a time");
    }
}

#[test]
fn one_that_its_owner_moved_stays_where_it_is() {
    let mut w = full(Millis::hours(3));
    wait(&mut w, "ada", "a", 1, HOUR, Millis::hours(5));
    let at = START + Millis::hours(4);
    let change = ReservationChange { starts_at: Some(at), ..ReservationChange::default() };
    let command = ReservationCommand::Edit { id: res("a"), change, seen: None };
    w.give(person("ada"), Command::Reservation(command)).unwrap();
    assert!(w.fsm.waitlist().is_empty());
    release(&mut w, "b0");
    assert_eq!(starts(&w, "a"), Some(at));
}

#[test]
fn the_start_that_it_has_can_be_kept() {
    for how in ["start", "end", "extended"] {
        let mut w = full(Millis::hours(3));
        wait(&mut w, "ada", "a", 1, HOUR, Millis::hours(5));
        let (at, ends_at) = (START + Millis::hours(3), START + Millis::hours(5));
        let change = match how {
            "start" => ReservationChange { starts_at: Some(at), ..ReservationChange::default() },
            _ => ReservationChange { ends_at: Some(ends_at), ..ReservationChange::default() },
        };
        let edit = ReservationCommand::Edit { id: res("a"), change, seen: None };
        let extend = ReservationCommand::Extend { id: res("a"), ends_at };
        let command = if how == "extended" { extend } else { edit };
        w.give(person("ada"), Command::Reservation(command)).unwrap();
        release(&mut w, "b0");
        assert_eq!(starts(&w, "a"), Some(at), "{how}");
    }
}

#[test]
fn a_place_that_was_given_after_the_backup_is_the_place() {
    for passes in [Millis::ZERO, Millis::minutes(70)] {
        let mut w = full(Millis::hours(24));
        let note = "camera ready".to_owned();
        let noted = CreateReservation { note, ..wish(&w, "ada", "a", any(1), Millis::hours(2)) };
        wait_as(&mut w, person("ada"), noted, HOUR).unwrap();
        let backup = (w.fsm.clone(), w.index);
        release(&mut w, "b3");
        let told = w.fsm.desired(&node("titan01"), &[]).windows;
        let told = told.into_iter().find(|told| told.reservation == res("a")).unwrap();
        (w.fsm, w.index) = backup;
        w.pass(passes);
        assert_eq!(w.fsm.waitlist().waits(&res("a")).is_some(), passes == Millis::ZERO);
        w.report("titan01", Report::Window(Box::new(answer(&told)))).unwrap();
        assert!(w.fsm.waitlist().is_empty() && w.fsm.waitlist().was_over(&res("a")).is_none());
        let r = w.fsm.reservation(&res("a")).unwrap();
        assert_eq!((r.note.as_str(), &r.wish, &r.owner), ("camera ready", &any(1), &user("ada")));
    }
}

#[test]
fn a_removed_project_gets_nothing() {
    let mut w = full(Millis::hours(24));
    wait(&mut w, "ada", "a", 1, HOUR, HOUR);
    // As if it had been asked for in a project that is gone.
    let order = w.fsm.waitlist.find(&res("a")).unwrap().0;
    let mut waiter = w.fsm.waitlist.remove(order).unwrap();
    waiter.wish.project = crate::name::ProjectName::parse("gone").unwrap();
    w.fsm.waitlist.add(order, waiter, w.now);
    release(&mut w, "b0");
    assert_eq!(starts(&w, "a"), None);
    let over = w.fsm.waitlist().was_over(&res("a")).unwrap();
    assert!(matches!(&over.why, WaitOverWhy::Refused { why } if why.contains("gone")), "{over:?}");
}

#[test]
fn a_place_on_a_silent_node_is_not_moved() {
    let mut w = full(Millis::hours(3));
    w.boot("titan02", "boot-1").unwrap();
    let command = |liveness| {
        let silent_for = Millis::minutes(5);
        Command::Node(crate::command::NodeCommand::SetLiveness {
            node: node("titan01"),
            liveness,
            silent_for,
        })
    };
    for name in ["t0", "t1", "t2", "t3"] {
        let on = GpuRequest { node: Some(node("titan02")), ..any(1) };
        let wish = wish(&w, "bob", name, on, Millis::hours(9));
        w.give(person("bob"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    }
    wait(&mut w, "ada", "a", 1, HOUR, Millis::hours(5));
    assert_eq!(starts(&w, "a"), Some(START + Millis::hours(3)));
    w.agents_answer = false;
    w.give(Actor::controller(), command(Liveness::Unreachable)).unwrap();
    release(&mut w, "t0");
    w.release("titan02");
    assert_eq!(starts(&w, "a"), Some(START + Millis::hours(3)), "its node may open it alone");
}

#[test]
fn the_list_of_a_closed_account_is_empty() {
    let mut w = full(Millis::hours(24));
    wait(&mut w, "ada", "a", 1, HOUR, HOUR);
    let shared = wish(&w, "eve", "e", any(1), HOUR);
    let shared = CreateReservation { with: [user("ada")].into(), ..shared };
    wait_as(&mut w, person("root"), shared, HOUR).unwrap();
    let close = AccessCommand::DisableUser {
        user: user("ada"),
        reason: "left".to_owned(),
        transfer_to: None,
    };
    w.give(person("root"), Command::Access(close)).unwrap();
    assert!(w.fsm.waitlist().get(&res("a")).is_none());
    assert!(w.fsm.waitlist().get(&res("e")).unwrap().wish.with.is_empty());
}

#[test]
fn a_closed_account_can_leave_its_wait_to_somebody_else() {
    let mut w = full(Millis::hours(24));
    wait(&mut w, "ada", "a", 1, HOUR, HOUR);
    let close = AccessCommand::DisableUser {
        user: user("ada"),
        reason: "left".to_owned(),
        transfer_to: Some(user("eve")),
    };
    w.give(person("root"), Command::Access(close)).unwrap();
    release(&mut w, "b0");
    assert_eq!(w.fsm.reservation(&res("a")).unwrap().owner, user("eve"));
}

/// What a naive calendar says: who has which GPU of the node from when until when.
#[derive(Debug, Clone, Default)]
struct Naive {
    booked: Vec<(String, Vec<u32>, Window)>,
    /// In their order.
    list: Vec<NaiveWait>,
}

#[derive(Debug, Clone)]
struct NaiveWait {
    name: String,
    gpus: Vec<u32>,
    length: Millis,
    earliest: Timestamp,
    latest: Timestamp,
    /// The start of the place that it has.
    placed: Option<Timestamp>,
}

impl Naive {
    fn is_free(&self, gpus: &[u32], window: Window, but: &str) -> bool {
        !self.booked.iter().any(|(name, theirs, theirs_at)| {
            name != but && theirs_at.overlaps(&window) && theirs.iter().any(|g| gpus.contains(g))
        })
    }

    fn earliest(
        &self,
        gpus: &[u32],
        length: Millis,
        (from, last): (Timestamp, Timestamp),
        but: &str,
    ) -> Option<Timestamp> {
        let ends = self.booked.iter().map(|(_, _, window)| window.ends_at);
        let mut tries: Vec<Timestamp> = ends.chain([from]).collect();
        tries.retain(|at| (from..=last).contains(at));
        tries.sort();
        let free = |at: &Timestamp| {
            self.is_free(gpus, Window { starts_at: *at, ends_at: *at + length }, but)
        };
        tries.into_iter().find(free)
    }

    /// One pass over the list; what moves away is free at the next one.
    fn pass(&mut self, now: Timestamp) -> bool {
        self.booked.retain(|(_, _, window)| window.ends_at > now);
        let (mut changed, mut left) = (false, Vec::new());
        for at in 0..self.list.len() {
            let NaiveWait { name, gpus, length, earliest, latest, placed } = self.list[at].clone();
            let from = earliest.max(now);
            match placed {
                None => {
                    let Some(start) = self.earliest(&gpus, length, (from, latest), "") else {
                        continue;
                    };
                    let window = Window { starts_at: start, ends_at: start + length };
                    self.booked.push((name, gpus, window));
                    self.list[at].placed = Some(start);
                    changed = true;
                }
                Some(start) if start > from + gain_min(length) => {
                    let last = start - gain_min(length);
                    let Some(start) = self.earliest(&gpus, length, (from, last), &name) else {
                        continue;
                    };
                    let window = Window { starts_at: start, ends_at: start + length };
                    let old = self.booked.iter().position(|(of, ..)| *of == name).unwrap();
                    left.push(old);
                    self.booked.push((name, gpus, window));
                    self.list[at].placed = Some(start);
                    changed = true;
                }
                Some(_) => {}
            }
        }
        left.sort_unstable();
        left.into_iter().rev().for_each(|old| drop(self.booked.remove(old)));
        self.list.retain(|one| one.placed.is_some() || one.latest >= now);
        changed
    }

    fn settle(&mut self, now: Timestamp) {
        while self.pass(now) {}
    }
}

#[derive(Debug, Clone)]
enum Deed {
    Waits { gpus: Vec<u32>, tens: u64, from_tens: u64, wait_tens: u64 },
    Releases(usize),
    Passes,
}

fn gpus() -> impl Strategy<Value = Vec<u32>> {
    let sets = [vec![0], vec![1], vec![2], vec![3], vec![0, 1], vec![2, 3], vec![0, 1, 2, 3]];
    proptest::sample::select(sets.to_vec())
}

fn deed() -> impl Strategy<Value = Deed> {
    let waits = (gpus(), 1..12_u64, 0..4_u64, 0..20_u64);
    prop_oneof![
        3 => waits.prop_map(|(gpus, tens, from_tens, wait_tens)| Deed::Waits {
            gpus, tens, from_tens, wait_tens
        }),
        2 => (0..40_usize).prop_map(Deed::Releases),
        3 => Just(Deed::Passes),
    ]
}

const TEN: Millis = Millis::minutes(10);

fn tens(n: u64) -> Millis {
    Millis(TEN.0 * n)
}

/// Where everybody is: on the list without a place, or booked from when on.
fn standing(w: &World, names: &[String]) -> Vec<Option<Timestamp>> {
    names.iter().map(|name| starts(w, name)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A calendar that tries every instant on every GPU serves the same people at the same times.
    #[test]
    fn the_list_is_served_as_a_naive_calendar_serves_it(
        deeds in proptest::collection::vec(deed(), 1..24),
        lengths in proptest::collection::vec(1..18_u64, 4),
    ) {
        let mut w = World::with(&["titan01"]);
        let stop = Some(crate::ending::EndPolicy::Stop);
        let rules = EndingCommand::SetRules { at_end: stop, no_show: Some(Millis::ZERO), grace: None, idle: Default::default() };
        w.give(person("root"), Command::Ending(rules)).unwrap();
        let (mut naive, mut names) = (Naive::default(), Vec::new());
        for (index, length) in (0..4).zip(&lengths) {
            let name = format!("b{index}");
            let wish = wish(&w, "bob", &name, these(&[index]), tens(*length));
            naive.booked.push((name.clone(), vec![index], wish.window));
            w.give(person("bob"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
            names.push(name);
        }
        for (number, deed) in deeds.iter().enumerate() {
            match deed {
                Deed::Waits { gpus, tens: length, from_tens, wait_tens } => {
                    let name = format!("w{number}");
                    let starts_at = w.now + tens(*from_tens);
                    let window = Window { starts_at, ends_at: starts_at + tens(*length) };
                    let who = format!("u{}", number % 3);
                    let wish = CreateReservation::plain(res(&name), user(&who), these(gpus), window);
                    wait_as(&mut w, person(&who), wish, tens(*wait_tens)).unwrap();
                    naive.list.push(NaiveWait {
                        name: name.clone(),
                        gpus: gpus.clone(),
                        length: tens(*length),
                        earliest: starts_at,
                        latest: starts_at + tens(*wait_tens),
                        placed: None,
                    });
                    names.push(name);
                }
                Deed::Releases(which) => {
                    let name = names[which % names.len()].clone();
                    let open = w.fsm.reservation(&res(&name)).is_none_or(|r| r.is_open());
                    if open {
                        release(&mut w, &name);
                        naive.booked.retain(|(of, ..)| *of != name);
                        naive.list.retain(|one| one.name != name);
                    }
                }
                Deed::Passes => {
                    w.pass(TEN);
                    w.release("titan01");
                }
            }
            naive.settle(w.now);
            let theirs: Vec<Option<Timestamp>> = names.iter().map(|name| {
                naive.booked.iter().find(|(of, ..)| of == name).map(|(_, _, window)| window.starts_at)
            }).collect();
            let open: Vec<Option<Timestamp>> = standing(&w, &names).into_iter().zip(&names).map(|(at, name)| {
                at.filter(|_| w.fsm.reservation(&res(name)).is_some_and(|r| {
                    matches!(r.state, ReservationState::Scheduled | ReservationState::Active)
                }))
            }).collect();
            prop_assert_eq!(&open, &theirs, "after {}: {:?}", number, deed);
        }
    }
}
