//! Offers of the waiting list: made in order, answered in time or not, and what holds meanwhile.

use super::limits::{member, set};
use super::waitlist::{any, full, release, starts, these, wish};
use super::windows::answer;
use super::world::{START, World, job, node, person, plain, res, training, user};
use crate::actor::Actor;
use crate::command::{
    AccessCommand, AskForApproval, Command, CreateReservation, EndingCommand, NodeCommand,
    ReservationChange, ReservationCommand,
};
use crate::ending::EndPolicy;
use crate::event::Event;
use crate::job::JobSpec;
use crate::limits::ReservationLimits;
use crate::name::ClassName;
use crate::node::Liveness;
use crate::offer::{OFFER_OPEN, OFFER_PAUSE, OFFERS_MAX, OfferEvent};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{ReservationState, WaitOverWhy};
use crate::time::{Millis, Timestamp, Window};
use crate::view::reservation::Listed;

const HOUR: Millis = Millis::hours(1);
const DAY: Millis = Millis::hours(24);

/// It waits for an offer, but not in these windows.
fn ask_for_offers(
    w: &mut World,
    actor: Actor,
    wish: CreateReservation,
    wait: Millis,
    quiet: &[Window],
) -> Result<Reply, Rejection> {
    let latest_start = wish.window.starts_at + wait;
    let offer = Some(quiet.to_vec());
    let wait = ReservationCommand::Wait { wish: Box::new(wish), latest_start, ask: None, offer };
    w.give(actor, Command::Reservation(wait))
}

/// One that lasts an hour and is offered at any time of the next two days.
fn wait(w: &mut World, who: &str, name: &str, gpus: u32) -> Reply {
    let wish = wish(w, who, name, any(gpus), HOUR);
    ask_for_offers(w, person(who), wish, Millis::days(2), &[]).unwrap()
}

/// The same with no time to begin behind somebody else's hour on the same GPU.
fn wait_shortly(w: &mut World, who: &str, name: &str) {
    let wish = wish(w, who, name, any(1), HOUR);
    ask_for_offers(w, person(who), wish, Millis::minutes(70), &[]).unwrap();
}

fn accept(w: &mut World, who: &str, name: &str) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Reservation(ReservationCommand::Accept { id: res(name) }))
}

fn decline(w: &mut World, who: &str, name: &str) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Reservation(ReservationCommand::Decline { id: res(name) }))
}

fn release_as_owner(w: &mut World, who: &str, name: &str) -> Result<Reply, Rejection> {
    w.give(person(who), Command::Reservation(ReservationCommand::Release { id: res(name) }))
}

/// Until when it is offered.
fn open(w: &World, name: &str) -> Option<Timestamp> {
    w.fsm.reservation(&res(name)).and_then(|r| r.offered_until())
}

fn declined(w: &World, name: &str) -> u32 {
    w.fsm.waitlist().get(&res(name)).unwrap().offer.as_ref().unwrap().declined()
}

fn state(w: &World, name: &str) -> ReservationState {
    w.fsm.reservation(&res(name)).unwrap().state.clone()
}

fn is_offered(w: &World, name: &str) -> bool {
    w.last.iter().any(|event| {
        matches!(event, Event::Offer(event) if matches!(&**event,
            OfferEvent::Made { reservation, .. } if *reservation == res(name)))
    })
}

/// Offers for the log of all commands: accepted, declined, and one that nobody answered. All GPUs are free.
pub(super) fn golden(w: &mut World) {
    let quiet = [Window { starts_at: w.now + HOUR, ends_at: w.now + Millis::hours(2) }];
    for name in ["offer-taken", "offer-left", "offer-open"] {
        let wish = wish(w, "ada", name, any(1), HOUR);
        ask_for_offers(w, person("ada"), wish, DAY, &quiet).unwrap();
    }
    accept(w, "ada", "offer-taken").unwrap();
    decline(w, "ada", "offer-left").unwrap();
}

#[test]
fn a_free_place_is_offered_held_and_begins_once_it_is_accepted() {
    let mut w = full(Millis::days(9));
    assert_eq!(wait(&mut w, "ada", "a", 1), Reply::ReservationWaits { id: res("a") });
    w.now = w.now + Millis::minutes(10);
    release(&mut w, "b2");
    let until = w.now + OFFER_OPEN;
    assert_eq!((open(&w, "a"), starts(&w, "a")), (Some(until), Some(until)));
    let said = w.heard.iter().find(|event| matches!(event, Event::Offer(_))).unwrap();
    assert_eq!(
        w.sentence(said),
        "offered to ada: titan01:2, in 30m for 1h; the offer is open for 30m"
    );
    assert_eq!(w.fsm.waitlist().place(&res("a")), Some(1), "it keeps its place in the list");
    let r = w.fsm.reservation(&res("a")).unwrap();
    assert!(r.handed_out.is_none(), "no agent knows of it");
    // Nobody else gets its time; what ends before may run there.
    let other = wish(&w, "bob", "b", these(&[2]), DAY);
    let create = Command::Reservation(ReservationCommand::Create(other));
    assert!(matches!(w.give(person("bob"), create), Err(Rejection::GpusHeld { .. })));
    let before = wish(&w, "bob", "b", these(&[2]), OFFER_OPEN);
    let create = Command::Reservation(ReservationCommand::Create(before));
    w.give(person("bob"), create).unwrap();
    release(&mut w, "b");

    w.pass(Millis::minutes(20));
    assert_eq!(state(&w, "a"), ReservationState::Offered { until }, "it is not moved");
    assert!(matches!(accept(&mut w, "eve", "a"), Err(Rejection::Denied { .. })));
    assert_eq!(accept(&mut w, "ada", "a").unwrap(), Reply::ReservationCreated { id: res("a") });
    assert_eq!(w.said()[0], "offer accepted by ada");
    assert_eq!((state(&w, "a"), starts(&w, "a")), (ReservationState::Active, Some(w.now)));
    assert!(w.fsm.waitlist().is_empty());
    assert_eq!(accept(&mut w, "ada", "a").unwrap(), Reply::Unchanged, "once is enough");
    let refused = decline(&mut w, "ada", "a").unwrap_err().to_string();
    assert!(refused.contains("fleet release res-a"), "{refused}");
}

#[test]
fn an_accepted_place_that_is_later_is_kept_and_moves_like_any_other() {
    let mut w = full(Millis::hours(3));
    wait(&mut w, "ada", "a", 1);
    assert_eq!(open(&w, "a"), Some(START + OFFER_OPEN), "a later place is offered too");
    accept(&mut w, "root", "a").unwrap();
    assert_eq!(state(&w, "a"), ReservationState::Scheduled);
    assert_eq!(starts(&w, "a"), Some(START + Millis::hours(3)));
    assert_eq!(w.fsm.waitlist().place(&res("a")), Some(1));
    w.pass(HOUR);
    assert_eq!(starts(&w, "a"), Some(START + Millis::hours(3)), "no time ends it any more");
    release(&mut w, "b1");
    assert_eq!((state(&w, "a"), starts(&w, "a")), (ReservationState::Active, Some(w.now)));
}

#[test]
fn one_that_is_not_answered_counts_as_declined_and_the_next_is_served_at_once() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    wait_shortly(&mut w, "eve", "e");
    w.now = w.now + Millis(12_345);
    release(&mut w, "b0");
    let until = w.now + OFFER_OPEN;
    assert_eq!((open(&w, "a"), open(&w, "e")), (Some(until), None), "the first comes first");
    w.pass(Millis::minutes(29));
    assert!(accept(&mut w, "eve", "e").is_err());
    w.pass(Millis::minutes(1).saturating_sub(Millis(1)));
    assert_eq!(open(&w, "a"), Some(until));
    assert_eq!(w.fsm.next_deadline(), Some(until));
    w.pass(Millis(1));
    assert_eq!(open(&w, "a"), None);
    assert_eq!(
        w.said()[0],
        "nobody answered the offer: that counts as declined (1 of 3 were not accepted)"
    );
    assert_eq!(open(&w, "e"), Some(until + OFFER_OPEN), "in the same command");
    assert_eq!(w.fsm.waitlist().place(&res("a")), Some(1), "it keeps its place");
    let refused = accept(&mut w, "ada", "a").unwrap_err();
    assert_eq!(refused, Rejection::OfferOver { id: res("a").to_string(), ended_at: until });
    assert_eq!(decline(&mut w, "ada", "a").unwrap(), Reply::Unchanged);
    assert_eq!(declined(&w, "a"), 1, "once is enough");
}

#[test]
fn an_answer_that_comes_before_the_clock_ticks_is_late_all_the_same() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    release(&mut w, "b0");
    let until = w.now + OFFER_OPEN;
    w.now = until;
    let refused = accept(&mut w, "ada", "a").unwrap_err();
    assert!(matches!(refused, Rejection::OfferOver { ended_at, .. } if ended_at == until));
    // It counts from the time at which it ended, whenever somebody looks.
    w.now = until + HOUR;
    assert_eq!(decline(&mut w, "ada", "a").unwrap(), Reply::Unchanged);
    let terms = w.fsm.waitlist().get(&res("a")).unwrap().offer.clone().unwrap();
    assert_eq!((terms.declined(), terms.ended_at()), (1, Some(until)));
}

#[test]
fn the_next_offer_comes_after_a_pause_and_after_three_it_is_over() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    release(&mut w, "b0");
    for number in 1..=OFFERS_MAX {
        assert!(open(&w, "a").is_some(), "{number}");
        decline(&mut w, "ada", "a").unwrap();
        let said = format!("offer declined by ada ({number} of 3 were not accepted)");
        assert_eq!(w.said()[0], said);
        if number == OFFERS_MAX {
            break;
        }
        assert_eq!((open(&w, "a"), declined(&w, "a")), (None, number));
        let why = Listed::of(&w.fsm, &res("a")).unwrap().why(&w.fsm);
        assert_eq!(why, "its next offer comes in 4h at the earliest");
        w.pass(OFFER_PAUSE.saturating_sub(Millis::minutes(1)));
        assert_eq!(open(&w, "a"), None);
        release(&mut w, &format!("b{number}"));
        assert_eq!(open(&w, "a"), None, "also where more is free");
        w.pass(Millis::minutes(1));
    }
    assert_eq!(w.said()[1], "removed from the waiting list: none of its 3 offers was accepted");
    let over = w.fsm.waitlist().was_over(&res("a")).unwrap();
    assert_eq!(over.why, WaitOverWhy::NotAccepted { offers: OFFERS_MAX });
    assert_eq!(Listed::of(&w.fsm, &res("a")).unwrap().shown().word(), "ended");
    assert!(w.fsm.reservation(&res("a")).is_none());
    assert!(matches!(accept(&mut w, "ada", "a"), Err(Rejection::AlreadyEnded { .. })));
}

#[test]
fn no_offer_is_open_in_quiet_hours_and_another_one_is_served_meanwhile() {
    let mut w = full(Millis::days(9));
    let quiet = Window { starts_at: w.now, ends_at: w.now + Millis::hours(8) };
    let ada = wish(&w, "ada", "a", any(1), HOUR);
    ask_for_offers(&mut w, person("ada"), ada, DAY, &[quiet]).unwrap();
    release(&mut w, "b0");
    assert_eq!(open(&w, "a"), None);
    let why = Listed::of(&w.fsm, &res("a")).unwrap().why(&w.fsm);
    assert_eq!(why, "its next offer comes in 8h at the earliest");
    wait(&mut w, "eve", "e", 1);
    assert!(open(&w, "e").is_some(), "it takes what the first must not have yet");
    accept(&mut w, "eve", "e").unwrap();
    w.now = START + Millis::hours(8) - Millis::minutes(1);
    w.pass(Millis::ZERO);
    assert_eq!(open(&w, "a"), None);
    w.pass(Millis::minutes(1));
    assert_eq!(open(&w, "a"), Some(w.now + OFFER_OPEN));
}

#[test]
fn the_latest_start_cuts_an_offer_short() {
    let mut w = full(Millis::days(9));
    let ada = wish(&w, "ada", "a", any(1), HOUR);
    ask_for_offers(&mut w, person("ada"), ada, Millis::minutes(20), &[]).unwrap();
    w.now = w.now + Millis::minutes(15);
    release(&mut w, "b0");
    let last = START + Millis::minutes(20);
    assert_eq!((open(&w, "a"), starts(&w, "a")), (Some(last), Some(last)));
    w.pass(Millis::minutes(5));
    assert_eq!(open(&w, "a"), None);
    w.pass(Millis(1));
    let over = w.fsm.waitlist().was_over(&res("a")).unwrap();
    assert_eq!(over.why.to_string(), "its offer was not accepted");
    let eve = wish(&w, "eve", "e", any(1), HOUR);
    let refused = ask_for_offers(&mut w, person("eve"), eve, Millis::minutes(4), &[]).unwrap_err();
    assert!(refused.to_string().contains("leave no time"), "{refused}");
}

#[test]
fn what_is_offered_is_not_changed_before_it_is_accepted() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    release(&mut w, "b0");
    let id = || res("a");
    let change = ReservationChange { note: Some("x".to_owned()), ..ReservationChange::default() };
    let extend = ReservationCommand::Extend { id: id(), ends_at: w.now + DAY };
    let edit = ReservationCommand::Edit { id: id(), change, seen: None };
    let at_end = EndingCommand::SetAtEnd { id: id(), at_end: EndPolicy::Stop };
    let sentence = "res-a: it is offered: accept it first (fleet reservation accept res-a)";
    for command in
        [Command::Reservation(extend), Command::Reservation(edit), Command::Ending(at_end)]
    {
        let refused = w.give(person("root"), command).unwrap_err();
        assert_eq!(refused.to_string(), sentence);
    }
    let spec = JobSpec { reservation: Some(id()), ..plain(1) };
    assert_eq!(w.submit("ada", "j", spec.clone()).unwrap_err().to_string(), sentence);
    accept(&mut w, "ada", "a").unwrap();
    w.submit("ada", "j", spec).unwrap();
    assert!(w.fsm.job(&job("j")).is_some());
}

#[test]
fn a_released_offer_leaves_the_list_for_good() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    wait_shortly(&mut w, "eve", "e");
    release(&mut w, "b0");
    release_as_owner(&mut w, "ada", "a").unwrap();
    assert!(w.fsm.waitlist().get(&res("a")).is_none());
    assert_eq!(state(&w, "a"), ReservationState::Cancelled);
    assert!(is_offered(&w, "e"), "the next one has it in the same command");
    assert!(matches!(accept(&mut w, "ada", "a"), Err(Rejection::AlreadyEnded { .. })));
}

#[test]
fn an_open_offer_counts_for_limits() {
    let mut w = full(Millis::days(9));
    let limits = ReservationLimits { gpus: Some(1), ..ReservationLimits::default() };
    w.give(person("root"), set("students", limits)).unwrap();
    let ada = || member("ada", &["students"]);
    for name in ["a", "more"] {
        let one = wish(&w, "ada", name, any(1), HOUR);
        ask_for_offers(&mut w, ada(), one, DAY, &[]).unwrap();
    }
    release(&mut w, "b0");
    release(&mut w, "b1");
    let behind = starts(&w, "a").unwrap() + HOUR;
    assert_eq!(starts(&w, "more"), Some(behind), "one at a time");
    let now = wish(&w, "ada", "now", any(1), HOUR);
    let refused = w.give(ada(), Command::Reservation(ReservationCommand::Create(now)));
    assert!(matches!(refused, Err(Rejection::AboveLimit { .. })), "{refused:?}");
}

#[test]
fn an_offer_with_a_bad_place_is_withdrawn_and_another_one_follows() {
    let mut w = World::with(&["titan01", "titan02"]);
    wait(&mut w, "ada", "a", 4);
    let on = |w: &World| w.fsm.reservation(&res("a")).unwrap().node.clone();
    let first = on(&w);
    w.now = w.now + Millis::secs(10);
    let drain = |node, deadline| NodeCommand::Drain { node, reason: "fan".to_owned(), deadline };
    w.give(person("root"), Command::Node(drain(first.clone(), None))).unwrap();
    let said = w.said();
    let withdrawn =
        format!("offer withdrawn: {first} is draining; that does not count as declined");
    assert!(said.contains(&withdrawn), "{said:?}");
    assert_ne!(on(&w), first);
    assert_eq!((open(&w, "a"), declined(&w, "a")), (Some(w.now + OFFER_OPEN), 0));
    // A silent node may be back: its offer stays, and it is accepted as it is.
    let second = on(&w);
    let silent = NodeCommand::SetLiveness {
        node: second.clone(),
        liveness: Liveness::Unreachable,
        silent_for: Millis::minutes(1),
    };
    w.give(Actor::controller(), Command::Node(silent)).unwrap();
    assert!(open(&w, "a").is_some());
    accept(&mut w, "ada", "a").unwrap();
    assert_eq!((state(&w, "a"), on(&w)), (ReservationState::Scheduled, second));
}

#[test]
fn a_closed_account_takes_no_offer() {
    for to in [None, Some(user("eve"))] {
        let mut w = full(Millis::days(9));
        wait(&mut w, "ada", "a", 1);
        release(&mut w, "b0");
        let close = AccessCommand::DisableUser {
            user: user("ada"),
            reason: "left".to_owned(),
            transfer_to: to.clone(),
        };
        w.give(person("root"), Command::Access(close)).unwrap();
        match to {
            None => {
                assert!(w.fsm.reservation(&res("a")).is_none());
                assert!(w.fsm.waitlist().was_over(&res("a")).is_some());
            }
            Some(eve) => {
                let r = w.fsm.reservation(&res("a")).unwrap();
                assert_eq!((&r.owner, r.offered_until().is_some()), (&eve, true));
                assert_eq!(declined(&w, "a"), 0);
            }
        }
    }
}

#[test]
fn one_above_a_limit_is_offered_once_it_is_approved() {
    let mut w = World::with(&["titan01"]);
    let limits = ReservationLimits { gpus: Some(2), ..ReservationLimits::default() };
    w.give(person("root"), set("students", limits)).unwrap();
    let bob = || member("bob", &["students"]);
    let wish = Box::new(wish(&w, "bob", "b", any(4), HOUR));
    let latest_start = w.now + DAY;
    let ask = Some(AskForApproval { reason: "the deadline".to_owned(), latest_start });
    let wait = ReservationCommand::Wait { wish, latest_start, ask, offer: Some(Vec::new()) };
    w.give(bob(), Command::Reservation(wait)).unwrap();
    assert!(open(&w, "b").is_none() && accept(&mut w, "bob", "b").is_err());
    let approve = ReservationCommand::Approve { id: res("b") };
    w.give(person("root"), Command::Reservation(approve)).unwrap();
    assert!(open(&w, "b").is_some());
    accept(&mut w, "bob", "b").unwrap();
    assert_eq!(state(&w, "b"), ReservationState::Active);
}

#[test]
fn no_job_leaves_for_an_offer() {
    let mut w = World::with(&["titan01"]);
    let class = ClassName::parse("scavenger").unwrap();
    let mut spec = JobSpec { class, ..training() };
    spec.gpus.count = 4;
    spec.time_limit = DAY;
    w.submit("eve", "low", spec).unwrap();
    assert_eq!(w.schedule(), 1);
    let low = w.fsm.job(&job("low")).unwrap().allocation().cloned().unwrap();
    w.start(&low);
    for number in 1..=3 {
        w.pass(Millis::minutes(10));
        w.checkpoint(&low, number, Millis::ZERO);
    }
    wait(&mut w, "ada", "a", 1);
    assert!(
        starts(&w, "a").is_none_or(|at| at > START + Millis::hours(12)),
        "{:?}",
        starts(&w, "a")
    );
    let bob = wish(&w, "bob", "b", any(1), HOUR);
    let latest_start = w.now + Millis::hours(4);
    let by_itself =
        ReservationCommand::Wait { wish: Box::new(bob), latest_start, ask: None, offer: None };
    w.give(person("bob"), Command::Reservation(by_itself)).unwrap();
    assert!(starts(&w, "b").is_some(), "it leaves for others, also behind the first");
}

#[test]
fn one_accepted_after_the_backup_is_accepted() {
    let mut w = full(Millis::days(9));
    wait(&mut w, "ada", "a", 1);
    release(&mut w, "b0");
    let backup = (w.fsm.clone(), w.index);
    accept(&mut w, "ada", "a").unwrap();
    let windows = w.fsm.desired(&node("titan01"), &[]).windows;
    let told = windows.into_iter().find(|told| told.reservation == res("a")).unwrap();
    let moved = told.window.starts_at;
    super::windows::restored(&mut w, backup);
    assert!(open(&w, "a").is_some());
    let report = crate::command::Report::Window(Box::new(answer(&told)));
    w.report("titan01", report).unwrap();
    let r = w.fsm.reservation(&res("a")).unwrap();
    assert_eq!((r.offered_until(), r.window.starts_at), (None, moved));
    assert!(w.fsm.waitlist().is_empty());
}
