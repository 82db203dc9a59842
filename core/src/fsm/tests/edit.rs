//! Edits of a reservation: what changes at once, what waits for its node, and that nobody else is promised either place.

use super::windows::answer;
use super::world::{START, World, facts, gpu, node, person, res, user};
use crate::actor::{Actor, Who};
use crate::calendar;
use crate::command::{
    ClusterCommand, Command, CreateReservation, GpuCommand, LimitsCommand, NodeCommand, Report,
    ReservationChange, ReservationCommand,
};
use crate::event::Event;
use crate::id::ClusterId;
use crate::limits::ReservationLimits;
use crate::name::{GpuUuid, GroupName};
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, Reservation, ReservationState};
use crate::time::{Millis, Timestamp, Window};
use crate::view::ReservationShown;
use crate::view::reservation::{UnconfirmedChange, unconfirmed};
use crate::window::{DesiredWindow, HAND_OUT_AHEAD, WindowReport};

const HOUR: Millis = Millis::hours(1);

fn at(hours: u64) -> Timestamp {
    START + Millis::hours(hours)
}

fn window(from: u64, to: u64) -> Window {
    Window { starts_at: at(from), ends_at: at(to) }
}

fn change() -> ReservationChange {
    ReservationChange::default()
}

fn to(from: u64, until: u64) -> ReservationChange {
    ReservationChange { starts_at: Some(at(from)), ends_at: Some(at(until)), ..change() }
}

fn count(gpus: u32) -> ReservationChange {
    ReservationChange {
        gpus: Some(GpuRequest { count: gpus, ..GpuRequest::default() }),
        ..change()
    }
}

fn of(gpus: Vec<GpuUuid>) -> ReservationChange {
    let count = u32::try_from(gpus.len()).unwrap();
    ReservationChange {
        gpus: Some(GpuRequest { count, uuids: gpus, ..GpuRequest::default() }),
        ..change()
    }
}

fn edit_as(
    w: &mut World,
    actor: Actor,
    name: &str,
    change: ReservationChange,
    seen: Option<u64>,
) -> Result<Reply, Rejection> {
    let command = ReservationCommand::Edit { id: res(name), change, seen };
    w.give(actor, Command::Reservation(command))
}

fn edit(w: &mut World, change: ReservationChange) -> Result<Reply, Rejection> {
    edit_as(w, person("ada"), "r", change, None)
}

fn release(w: &mut World, name: &str) {
    let command = ReservationCommand::Release { id: res(name) };
    w.give(person("ada"), Command::Reservation(command)).unwrap();
}

fn r(w: &World) -> &Reservation {
    w.fsm.reservation(&res("r")).unwrap()
}

/// What its node gets of it now.
fn told(w: &World, on: &str) -> Option<DesiredWindow> {
    w.fsm.desired(&node(on), &[]).windows.into_iter().find(|told| told.reservation == res("r"))
}

fn answers(w: &mut World, on: &str) {
    let told = told(w, on).unwrap();
    w.report(on, Report::Window(Box::new(answer(&told)))).unwrap();
}

/// The node is cut off: it goes by what it was given, and answers nothing.
fn cut_off(w: &mut World, on: &str) {
    w.agents_answer = false;
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(5));
    let command = Command::Node(NodeCommand::SetLiveness { node: node(on), liveness, silent_for });
    w.give(Actor::controller(), command).unwrap();
}

/// Whether bob gets these GPUs then.
fn is_free(w: &World, gpus: &[GpuUuid], window: Window) -> bool {
    let count = u32::try_from(gpus.len()).unwrap();
    let wish = GpuRequest { count, uuids: gpus.to_vec(), ..GpuRequest::default() };
    let wish = CreateReservation::plain(res("bobs"), user("bob"), wish, window);
    match w.fsm.try_reservation(&person("bob"), &wish, w.now) {
        Ok(_) => true,
        Err(Rejection::GpusHeld { .. }) => false,
        Err(other) => panic!("{other:?}"),
    }
}

fn busy(w: &World, on: &str, index: u32) -> Vec<Window> {
    calendar::busy(&w.fsm, &gpu(on, index)).iter().map(|busy| busy.window).collect()
}

/// ada's reservation "r" of GPU 0 of titan01, from 2 to 4 o'clock, in its agent's hands.
fn given() -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    let wish = GpuRequest { count: 1, node: Some(node("titan01")), ..GpuRequest::default() };
    let wish = CreateReservation::plain(res("r"), user("ada"), wish, window(2, 4));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    assert_eq!(r(&w).gpus, [gpu("titan01", 0)]);
    w
}

#[test]
fn one_that_no_agent_has_yet_changes_at_once() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 1, HAND_OUT_AHEAD + Millis::hours(5), HOUR).unwrap();
    let (gpus, on) = (r(&w).gpus.clone(), r(&w).node.clone());
    let from = START + HAND_OUT_AHEAD + Millis::hours(9);
    let change = ReservationChange {
        starts_at: Some(from),
        note: Some("camera ready".to_owned()),
        with: Some([user("ada"), user("eve")].into()),
        ..change()
    };
    let whole = edit_as(&mut w, person("root"), "r", change.clone(), None);
    assert!(matches!(whole, Err(Rejection::InvalidField { field, .. }) if field == "with"));
    assert_eq!((r(&w).revision, r(&w).note.as_str()), (1, ""), "refused, so nothing of it is done");
    let change = ReservationChange { with: Some([user("eve")].into()), ..change };
    let reply = edit_as(&mut w, person("root"), "r", change, None).unwrap();
    assert_eq!(reply, Reply::ReservationEdited { id: res("r"), waits_for: None });
    let now = r(&w);
    assert_eq!((now.window.starts_at, now.window.ends_at), (from, from + HOUR), "its length stays");
    assert_eq!((&now.gpus, &now.node, now.note.as_str()), (&gpus, &on, "camera ready"));
    assert!(now.with.contains(&user("eve")) && now.next.is_none() && now.handed_out.is_none());
    assert_eq!((now.revision, now.changed.as_ref().unwrap().by.as_str()), (2, "root"));
    assert_eq!(
        w.said()[0],
        "root changed the reservation: time in 7d 9h for 1h (before: in 7d 5h for 1h); \
         shared with eve (before: nobody); note \"camera ready\" (before: \"\")"
    );
}

#[test]
fn an_agent_that_answers_gets_the_new_window_after_it_released_the_old_one() {
    let mut w = given();
    let first = told(&w, "titan01").unwrap();
    w.agents_answer = false;
    let reply = edit(&mut w, to(5, 7)).unwrap();
    let waits_for = Some(node("titan01"));
    assert_eq!(reply, Reply::ReservationEdited { id: res("r"), waits_for });
    assert!(w.said()[0].contains("it waits for titan01"), "{:?}", w.said());
    let order = told(&w, "titan01").unwrap();
    assert!(order.withdrawn && order.revision > first.revision);
    assert_eq!((order.window, r(&w).window), (window(2, 4), window(2, 4)));
    let shown = unconfirmed(&w.fsm, r(&w)).unwrap();
    assert_eq!(shown.what, UnconfirmedChange::Edited);
    assert!(shown.to_string().contains("waits for titan01"), "{shown}");
    assert_eq!(crate::view::reservation::reservation(r(&w)), ReservationShown::Scheduled);
    assert_eq!(busy(&w, "titan01", 0), [window(2, 4), window(5, 7)]);
    answers(&mut w, "titan01");
    assert_eq!((r(&w).window, r(&w).next.clone()), (window(5, 7), None));
    assert!(w.said().iter().any(|s| s.contains("the reservation moved to titan01:0")));
    let last = told(&w, "titan01").unwrap();
    assert!(!last.withdrawn && last.revision > order.revision && last.lease != first.lease);
    assert_eq!(last.window, window(5, 7));
    assert_eq!(busy(&w, "titan01", 0), [window(5, 7)]);
    assert!(is_free(&w, &[gpu("titan01", 0)], window(2, 4)));
}

/// The edit is asked for while titan01 is cut off: nobody else gets the old place, which titan01 still opens, nor the new.
#[test]
fn while_its_node_is_cut_off_both_places_are_taken() {
    let named = [gpu("titan01", 3)];
    let elsewhere = GpuRequest { count: 1, node: Some(node("titan02")), ..GpuRequest::default() };
    let elsewhere = ReservationChange { gpus: Some(elsewhere), ..change() };
    let cases: [(&str, ReservationChange, GpuUuid, Window); 4] = [
        ("another start", to(5, 7), gpu("titan01", 0), window(5, 7)),
        ("an earlier one", to(1, 3), gpu("titan01", 0), window(1, 3)),
        ("another GPU", of(named.to_vec()), named[0].clone(), window(2, 4)),
        ("another node", elsewhere, gpu("titan02", 0), window(2, 4)),
    ];
    for (what, change, new_gpu, new_window) in cases {
        let mut w = given();
        cut_off(&mut w, "titan01");
        edit(&mut w, change).unwrap();
        assert!(r(&w).is_unconfirmed(), "{what}");
        let old = (&[gpu("titan01", 0)], window(2, 4));
        assert!(!is_free(&w, old.0, old.1), "{what}: the old place");
        assert!(!is_free(&w, std::slice::from_ref(&new_gpu), new_window), "{what}: the new place");
        let all_of_old: Vec<GpuUuid> = (0..4).map(|n| gpu("titan01", n)).collect();
        assert!(!is_free(&w, &all_of_old, window(3, 4)), "{what}: with others");
        // In a snapshot too.
        w.fsm = crate::state::Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
        assert!(!is_free(&w, old.0, old.1) && !is_free(&w, &[new_gpu], new_window), "{what}");
        // Its time comes, and nobody but titan01 may open it.
        w.pass(Millis::minutes(150));
        assert_eq!((&r(&w).state, r(&w).lease.as_ref()), (&ReservationState::Scheduled, None));
        assert!(told(&w, "titan02").is_none(), "{what}: never open on both");
    }
}

#[test]
fn a_node_that_opened_the_old_window_alone_gives_it_up_when_it_is_back() {
    let mut w = given();
    let held = told(&w, "titan01").unwrap();
    cut_off(&mut w, "titan01");
    edit(&mut w, to(5, 7)).unwrap();
    w.pass(Millis::hours(3));
    w.boot("titan01", "boot-1").unwrap();
    let opened = WindowReport { opened_at: Some(at(2)), ..answer(&held) };
    w.report("titan01", Report::Window(Box::new(opened))).unwrap();
    assert!(w.said().iter().any(|s| s.contains("opened it on its own")), "{:?}", w.said());
    assert!(
        !is_free(&w, &[gpu("titan01", 0)], window(3, 4)),
        "an older order's word settles nothing"
    );
    let order = told(&w, "titan01").unwrap();
    assert!(order.withdrawn);
    let closed = WindowReport { opened_at: Some(at(2)), closed_at: Some(at(3)), ..answer(&order) };
    w.report("titan01", Report::Window(Box::new(closed))).unwrap();
    assert_eq!((r(&w).window, &r(&w).state), (window(5, 7), &ReservationState::Scheduled));
    w.agents_answer = true;
    w.pass(Millis::hours(2));
    assert_eq!(r(&w).state, ReservationState::Active);
}

#[test]
fn time_alone_settles_an_edit_whose_node_stays_away() {
    // The old window is over: titan01 cannot open it any more.
    let mut w = given();
    cut_off(&mut w, "titan01");
    edit(&mut w, to(5, 7)).unwrap();
    assert_eq!(w.fsm.next_deadline(), Some(at(4)));
    w.pass(Millis::hours(4));
    assert_eq!((r(&w).window, &r(&w).state), (window(5, 7), &ReservationState::Scheduled));
    assert_eq!((r(&w).next.clone(), r(&w).handed_out.clone()), (None, None));
    // The new window is over, and the old one is not: it counts again.
    let mut w = given();
    cut_off(&mut w, "titan01");
    edit(&mut w, ReservationChange { starts_at: Some(START + Millis::minutes(30)), ..to(0, 1) })
        .unwrap();
    assert_eq!(w.fsm.next_deadline(), Some(at(1)));
    w.pass(HOUR);
    assert_eq!((r(&w).window, r(&w).next.clone()), (window(2, 4), None));
    assert!(w.last.iter().any(|e| matches!(e, Event::ReservationEditLapsed { .. })));
    let order = told(&w, "titan01").unwrap();
    assert!(!order.withdrawn && order.window == window(2, 4));
    w.boot("titan01", "boot-1").unwrap();
    answers(&mut w, "titan01");
    w.pass(HOUR);
    assert_eq!(r(&w).state, ReservationState::Active);
}

#[test]
fn a_second_edit_replaces_the_first() {
    let mut w = given();
    cut_off(&mut w, "titan01");
    edit(&mut w, to(5, 7)).unwrap();
    edit(&mut w, to(8, 9)).unwrap();
    assert_eq!(busy(&w, "titan01", 0), [window(2, 4), window(8, 9)]);
    assert!(is_free(&w, &[gpu("titan01", 0)], window(5, 7)));
    // What it leaves alone is as the first left it.
    edit(&mut w, ReservationChange { ends_at: Some(at(10)), ..change() }).unwrap();
    assert_eq!(r(&w).wanted().window, window(8, 10));
    let extend = ReservationCommand::Extend { id: res("r"), ends_at: at(11) };
    w.give(person("ada"), Command::Reservation(extend)).unwrap();
    assert_eq!((r(&w).wanted().window, r(&w).window), (window(8, 11), window(2, 4)));
    // Back to where it is: its agent must hear that it keeps the window.
    let taken_back = told(&w, "titan01").unwrap();
    edit(&mut w, to(2, 4)).unwrap();
    assert_eq!(r(&w).next, None);
    let order = told(&w, "titan01").unwrap();
    assert!(taken_back.withdrawn && !order.withdrawn && order.revision > taken_back.revision);
    assert!(is_free(&w, &[gpu("titan01", 0)], window(8, 11)));
    answers(&mut w, "titan01");
    assert!(!r(&w).is_unconfirmed());
}

#[test]
fn one_that_waits_to_move_can_be_released() {
    let mut w = given();
    cut_off(&mut w, "titan01");
    edit(&mut w, to(5, 7)).unwrap();
    release(&mut w, "r");
    assert_eq!(busy(&w, "titan01", 0), [window(2, 4)], "no agent knows of the new place");
    assert!(matches!(edit(&mut w, to(8, 9)), Err(Rejection::AlreadyEnded { .. })));
    answers(&mut w, "titan01");
    assert_eq!(r(&w).state, ReservationState::Cancelled);
    assert!(busy(&w, "titan01", 0).is_empty());
}

#[test]
fn the_end_the_users_and_the_note_wait_for_nobody() {
    let mut w = given();
    let lease = told(&w, "titan01").unwrap().lease;
    cut_off(&mut w, "titan01");
    let change = ReservationChange {
        ends_at: Some(at(6)),
        with: Some([user("bob")].into()),
        note: Some("n".to_owned()),
        ..change()
    };
    let reply = edit_as(&mut w, person("root"), "r", change, None).unwrap();
    assert_eq!(reply, Reply::ReservationEdited { id: res("r"), waits_for: None });
    let order = told(&w, "titan01").unwrap();
    assert!(!order.withdrawn && order.lease == lease && order.with.contains(&user("bob")));
    assert_eq!((order.window, r(&w).window), (window(2, 6), window(2, 6)));
}

#[test]
fn its_gpus_stay_where_they_fit_and_are_others_of_the_same_wish_where_not() {
    let mut w = given();
    w.reserve_as(person("bob"), "b", 4, Millis::hours(5), Millis::hours(2)).unwrap();
    let bobs = w.fsm.reservation(&res("b")).unwrap().node.clone();
    let other = if bobs == node("titan01") { node("titan02") } else { node("titan01") };
    edit(&mut w, count(2)).unwrap();
    assert_eq!(r(&w).gpus.len(), 2);
    assert!(r(&w).gpus.contains(&gpu("titan01", 0)), "those that it has stay: {:?}", r(&w).gpus);
    edit(&mut w, count(1)).unwrap();
    let left = r(&w).gpus.clone();
    assert!(left == [gpu("titan01", 0)] || left == [gpu("titan01", 1)], "{left:?}");
    // The wish names titan01: there or nowhere.
    let refused = edit(&mut w, to(5, 6));
    match bobs == node("titan01") {
        true => assert!(matches!(refused, Err(Rejection::GpusHeld { .. })), "{refused:?}"),
        false => assert_eq!((refused.is_ok(), r(&w).gpus.clone()), (true, left)),
    }
    let wish = GpuRequest { count: 1, node: Some(bobs), ..GpuRequest::default() };
    let there = ReservationChange { gpus: Some(wish), ..to(5, 6) };
    assert!(matches!(edit(&mut w, there), Err(Rejection::GpusHeld { .. })));
    let wish = GpuRequest { count: 4, node: Some(other.clone()), ..GpuRequest::default() };
    edit(&mut w, ReservationChange { gpus: Some(wish), ..to(5, 6) }).unwrap();
    assert_eq!((&r(&w).node, r(&w).gpus.len(), r(&w).window), (&other, 4, window(5, 6)));
}

#[test]
fn a_wish_that_names_no_node_moves_to_another_one() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 3, Millis::hours(2), HOUR).unwrap();
    let was = r(&w).node.clone();
    let rest = GpuRequest { count: 4, node: Some(was.clone()), ..GpuRequest::default() };
    let bobs = CreateReservation::plain(res("b"), user("bob"), rest, window(5, 6));
    w.give(person("bob"), Command::Reservation(ReservationCommand::Create(bobs))).unwrap();
    w.agents_answer = false;
    edit(&mut w, to(5, 6)).unwrap();
    let next = r(&w).next.clone().unwrap();
    assert_ne!(next.node, was);
    assert!(told(&w, next.node.as_str()).is_none(), "not before the old node has released it");
    answers(&mut w, was.as_str());
    assert_eq!((&r(&w).node, r(&w).window), (&next.node, window(5, 6)));
    assert!(told(&w, was.as_str()).is_none());
    assert_eq!(told(&w, next.node.as_str()).unwrap().gpus, next.gpus);
}

#[test]
fn one_that_has_started_keeps_its_start_and_its_gpus() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(2)).unwrap();
    for (change, says) in [
        (to(1, 3), "its start stays"),
        (count(2), "second reservation"),
        (of(vec![gpu("titan01", 3)]), "reserve again"),
    ] {
        let before = r(&w).clone();
        match edit(&mut w, change) {
            Err(Rejection::NotChangeable { why, .. }) => assert!(why.contains(says), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(*r(&w), before);
    }
    let lease = r(&w).lease.clone();
    let change =
        ReservationChange { ends_at: Some(at(4)), with: Some([user("bob")].into()), ..count(1) };
    edit_as(&mut w, person("root"), "r", change, None).unwrap();
    assert_eq!((&r(&w).lease, &r(&w).state), (&lease, &ReservationState::Active));
    let order = told(&w, "titan01").unwrap();
    assert_eq!((order.window.ends_at, order.with.len()), (at(4), 1));
    w.reserve("bob", "b", 4, Millis::hours(5), HOUR).unwrap();
    let into = ReservationChange { ends_at: Some(at(6)), ..change_note("x") };
    assert!(matches!(edit(&mut w, into), Err(Rejection::GpusHeld { .. })));
    assert_eq!((r(&w).note.as_str(), r(&w).window.ends_at), ("", at(4)), "wholly or not at all");
}

fn change_note(note: &str) -> ReservationChange {
    ReservationChange { note: Some(note.to_owned()), ..change() }
}

#[test]
fn limits_count_for_what_an_edit_adds_and_not_twice() {
    let mut w = World::with(&["titan01", "titan02"]);
    let group = GroupName::parse("students").unwrap();
    let limits = ReservationLimits {
        gpus: Some(3),
        length: Some(Millis::hours(8)),
        ahead: Some(Millis::days(2)),
    };
    let set = LimitsCommand::Set { group: group.clone(), limits };
    w.give(person("root"), Command::Limits(set)).unwrap();
    let ada = || Actor {
        who: Who::User { name: user("ada"), admin: false, groups: [group.clone()].into() },
        ..person("ada")
    };
    w.reserve_as(ada(), "r", 2, Millis::hours(2), Millis::hours(2)).unwrap();
    w.reserve_as(ada(), "s", 1, Millis::hours(6), Millis::hours(2)).unwrap();
    let mut given =
        |change, field: Option<&str>| match (edit_as(&mut w, ada(), "r", change, None), field) {
            (Ok(_), None) => {}
            (Err(Rejection::InvalidField { field, .. }), Some(expected)) => {
                assert_eq!(field, expected);
            }
            (Err(Rejection::LimitReached { what, .. }), Some(expected)) => {
                assert!(what.contains(expected), "{what}");
            }
            (other, _) => panic!("{other:?}, not {field:?}"),
        };
    given(count(3), None);
    given(to(3, 5), None);
    given(count(4), Some("gpus.count"));
    given(to(2, 11), Some("ends_at"));
    given(to(49, 50), Some("starts_at"));
    given(to(5, 7), Some("ada has reserved 1 then already"));
    given(ReservationChange { gpus: count(2).gpus, ..to(5, 7) }, None);
}

#[test]
fn an_edit_of_what_somebody_else_changed_meanwhile_is_refused() {
    let mut w = given();
    let seen = Some(r(&w).revision);
    edit_as(&mut w, person("root"), "r", change_note("a"), seen).unwrap();
    let refused = edit_as(&mut w, person("ada"), "r", to(5, 7), seen);
    let Err(refused @ Rejection::ChangedSince { .. }) = refused else { panic!("{refused:?}") };
    assert!(refused.to_string().contains("(by root)"), "{refused}");
    assert_eq!(r(&w).window, window(2, 4));
    let seen = Some(r(&w).revision);
    edit_as(&mut w, person("ada"), "r", to(5, 7), seen).unwrap();
    let extend = ReservationCommand::Extend { id: res("r"), ends_at: at(8) };
    w.give(person("ada"), Command::Reservation(extend)).unwrap();
    let stale = edit_as(&mut w, person("ada"), "r", to(6, 7), seen);
    assert!(matches!(stale, Err(Rejection::ChangedSince { .. })), "an extension counts too");
}

#[test]
fn only_its_owner_and_admins_change_it() {
    let mut w = given();
    let refused = edit_as(&mut w, person("bob"), "r", to(5, 7), None);
    assert!(matches!(refused, Err(Rejection::Denied { .. })));
    assert!(matches!(edit(&mut w, change()), Err(Rejection::InvalidField { .. })));
    let past = ReservationChange { starts_at: Some(START - HOUR), ..change() };
    assert!(matches!(edit(&mut w, past), Err(Rejection::InvalidField { .. })));
    let over = ReservationChange { ends_at: Some(START), ..change() };
    assert!(matches!(edit(&mut w, over), Err(Rejection::InvalidField { .. })));
    assert!(matches!(edit(&mut w, to(9_000, 9_001)), Err(Rejection::InvalidField { .. })));
    assert_eq!((r(&w).revision, r(&w).window), (1, window(2, 4)));
}

#[test]
fn a_dry_run_says_the_same_and_changes_nothing() {
    let w = given();
    let before = w.fsm.digest();
    let would = w.fsm.try_edit(&person("ada"), &res("r"), &to(5, 7), None, w.now).unwrap();
    assert_eq!((would.wanted().window, would.next.is_some()), (window(5, 7), true));
    let refused = w.fsm.try_edit(&person("bob"), &res("r"), &to(5, 7), None, w.now);
    assert!(matches!(refused, Err(Rejection::Denied { .. })));
    assert_eq!(w.fsm.digest(), before);
}

#[test]
fn a_node_or_a_card_that_one_moves_to_stays() {
    let mut w = given();
    cut_off(&mut w, "titan01");
    let wish = GpuRequest { count: 1, node: Some(node("titan02")), ..GpuRequest::default() };
    edit(&mut w, ReservationChange { gpus: Some(wish), ..change() }).unwrap();
    let mut left = facts("titan02", 4, "boot-2");
    left.gpus.remove(0);
    w.report("titan02", Report::Facts { facts: left }).unwrap();
    let forget =
        GpuCommand::Forget { gpu: gpu("titan02", 0), reason: "x".to_owned(), replace: false };
    let refused = w.give(person("root"), Command::Gpu(forget)).unwrap_err();
    assert!(refused.to_string().contains("reservation res-r of ada"), "{refused}");
    let remove =
        crate::command::AccessCommand::RemoveNode { node: node("titan02"), reason: "x".to_owned() };
    let refused = w.give(person("root"), Command::Access(remove)).unwrap_err();
    assert!(matches!(refused, Rejection::InUse { .. }), "{refused}");
}

#[test]
fn a_machine_that_is_vouched_to_be_off_holds_no_edit_up() {
    let mut w = given();
    cut_off(&mut w, "titan01");
    edit(&mut w, to(5, 7)).unwrap();
    let command = GpuCommand::DeclareFree { gpu: gpu("titan01", 0), reason: "scrapped".to_owned() };
    w.give(person("root"), Command::Gpu(command)).unwrap();
    assert_eq!((r(&w).window, r(&w).next.clone()), (window(5, 7), None));
    assert_eq!(busy(&w, "titan01", 0), [window(5, 7)]);
}

/// The controllers come back from a backup of before the edit, at once or when the old time is over by that backup.
#[test]
fn after_a_restore_a_moved_reservation_is_where_its_node_says() {
    for hours in [1, 5] {
        let mut w = given();
        let backup = (w.fsm.clone(), w.index);
        let wish = of(vec![gpu("titan01", 2), gpu("titan01", 3)]);
        edit(&mut w, ReservationChange { gpus: wish.gpus, ..to(5, 7) }).unwrap();
        let held = told(&w, "titan01").unwrap();
        (w.fsm, w.index) = backup;
        let cluster = ClusterId::parse("fleet-test").unwrap();
        let restored = ClusterCommand::Init { cluster, incarnation: 2 };
        w.give(Actor::controller(), Command::Cluster(restored)).unwrap();
        w.agents_answer = false;
        w.pass(Millis::hours(hours));
        w.report("titan01", Report::Window(Box::new(answer(&held)))).unwrap();
        let (allocations, reservations) = (Vec::new(), Vec::new());
        w.report("titan01", Report::Holdings { allocations, reservations }).unwrap();
        assert_eq!((r(&w).window, &r(&w).gpus), (window(5, 7), &held.gpus), "after {hours} h");
        let order = told(&w, "titan01").unwrap();
        assert!(!order.withdrawn && order.revision > held.revision);
        assert!(is_free(&w, &[gpu("titan01", 0)], window(6, 7)));
        let expected =
            if hours == 5 { ReservationState::Active } else { ReservationState::Scheduled };
        assert_eq!(r(&w).state, expected);
        assert_eq!((r(&w).owner.clone(), r(&w).wish.count), (user("ada"), 2));
    }
}
