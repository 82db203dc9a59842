//! Reservations above a limit: asked for, approved, denied, over.

use super::limits::{group, member, set};
use super::world::{START, World, node, person, res, user};
use crate::access::Login;
use crate::actor::Actor;
use crate::approval::ApprovalEvent;
use crate::command::{
    AccessCommand, Command, CreateReservation, LimitsCommand, ReservationCommand,
};
use crate::event::Event;
use crate::limits::ReservationLimits;
use crate::people::PeopleChange;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, ReservationState, WaitOverWhy};
use crate::time::{Millis, Timestamp, Window};
use crate::view::ReservationShown;
use crate::view::reservation::Listed;

const HOUR: Millis = Millis::hours(1);

/// bob may reserve two GPUs for eight hours; ada approves more, and so do the members of `staff`.
fn limited(nodes: &[&str]) -> World {
    let mut w = World::with(nodes);
    let limits = ReservationLimits { gpus: Some(2), length: Some(Millis::hours(8)), ahead: None };
    w.give(person("root"), set("students", limits)).unwrap();
    let change = PeopleChange {
        add_members: [user("ada")].into(),
        add_groups: [group("staff")].into(),
        ..PeopleChange::default()
    };
    w.give(person("root"), Command::Limits(LimitsCommand::SetApprovers { change })).unwrap();
    w
}

fn bob() -> Actor {
    member("bob", &["students"])
}

fn wish(w: &World, name: &str, gpus: u32, after: Millis, length: Millis) -> CreateReservation {
    let gpus = GpuRequest { count: gpus, ..GpuRequest::default() };
    let starts_at = w.now + after;
    let window = Window { starts_at, ends_at: starts_at + length };
    CreateReservation::plain(res(name), user("bob"), gpus, window)
}

fn ask(w: &mut World, wish: CreateReservation, wait: Millis) -> Result<Reply, Rejection> {
    let latest_start = wish.window.starts_at + wait;
    let reason = Some("the deadline".to_owned());
    let command = ReservationCommand::Wait { wish: Box::new(wish), latest_start, reason };
    w.give(bob(), Command::Reservation(command))
}

fn approve(w: &mut World, actor: Actor, name: &str) -> Result<Reply, Rejection> {
    w.give(actor, Command::Reservation(ReservationCommand::Approve { id: res(name) }))
}

fn deny(w: &mut World, actor: Actor, name: &str, why: &str) -> Result<Reply, Rejection> {
    let why = why.to_owned();
    w.give(actor, Command::Reservation(ReservationCommand::Deny { id: res(name), why }))
}

fn waits(name: &str) -> Result<Reply, Rejection> {
    Ok(Reply::ReservationWaits { id: res(name) })
}

fn created(name: &str) -> Result<Reply, Rejection> {
    Ok(Reply::ReservationCreated { id: res(name) })
}

fn shown(w: &World, name: &str) -> Option<ReservationShown> {
    Listed::of(&w.fsm, &res(name)).map(Listed::shown)
}

fn state(w: &World, name: &str) -> Option<(ReservationState, Timestamp)> {
    w.fsm.reservation(&res(name)).map(|r| (r.state.clone(), r.window.starts_at))
}

/// Approvals for the log of all commands, beside limits of `students`: given, denied, and one that nobody decided.
pub(super) fn golden(w: &mut World) {
    let change = PeopleChange { add_members: [user("ada")].into(), ..PeopleChange::default() };
    w.give(person("root"), Command::Limits(LimitsCommand::SetApprovers { change })).unwrap();
    for name in ["given", "denied", "open"] {
        let asked = wish(w, name, 3, Millis::days(1), HOUR);
        ask(w, asked, Millis::days(2)).unwrap();
    }
    approve(w, person("ada"), "given").unwrap();
    deny(w, person("ada"), "denied", "too many").unwrap();
}

#[test]
fn above_a_limit_it_waits_for_approval_and_holds_nothing() {
    let mut w = limited(&["titan01"]);
    let asked = wish(&w, "r", 4, HOUR, HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), waits("r"));
    assert_eq!(shown(&w, "r"), Some(ReservationShown::Requested));
    assert_eq!(
        w.said(),
        [
            "bob asks for 4 GPUs for 1h, above a limit (at most 2 at once (limit of students), this is 4): the deadline"
        ]
    );
    // Its place in the waiting list is nobody's, and all GPUs are free for others.
    assert_eq!(w.fsm.waitlist().place(&res("r")), None);
    w.reserve("eve", "e", 4, HOUR, HOUR).unwrap();
    let release = ReservationCommand::Release { id: res("e") };
    w.give(person("eve"), Command::Reservation(release)).unwrap();
    w.pass(Millis::minutes(30));
    assert_eq!(state(&w, "r"), None, "it is not served");

    let effect = w.fsm.effect_of_approval(w.fsm.waitlist().get(&res("r")).unwrap(), w.now);
    let place = effect.place.unwrap();
    assert_eq!((place.node, place.gpus.len()), (node("titan01"), 4));
    assert_eq!((effect.gpus_like_it, effect.left_free, effect.owner_has), (4, 0, 0));

    assert_eq!(approve(&mut w, person("ada"), "r"), created("r"));
    assert_eq!(state(&w, "r"), Some((ReservationState::Scheduled, START + HOUR)));
    let why = Rejection::NotChangeable {
        id: "res-r".to_owned(),
        why: "it has its GPUs and needs no approval".to_owned(),
    };
    assert_eq!(approve(&mut w, person("ada"), "r"), Err(why));
    w.pass(Millis::minutes(30));
    assert_eq!(state(&w, "r"), Some((ReservationState::Active, START + HOUR)));
}

#[test]
fn within_the_limits_it_is_reserved_at_once() {
    let mut w = limited(&["titan01"]);
    let asked = wish(&w, "r", 2, Millis::ZERO, HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), created("r"));
    assert!(w.fsm.waitlist().is_empty());
    // Two more are above the limit only while it lasts.
    let asked = wish(&w, "s", 2, Millis::ZERO, HOUR);
    assert_eq!(ask(&mut w, asked, HOUR), waits("s"));
    assert_eq!(shown(&w, "s"), Some(ReservationShown::Requested));
    // Who asks for a start that is not free learns that at once, whatever the limits say.
    w.reserve("eve", "e", 4, Millis::hours(3), HOUR).unwrap();
    for gpus in [2, 4] {
        let asked = wish(&w, "t", gpus, Millis::hours(3), HOUR);
        let refused = ask(&mut w, asked, Millis::ZERO);
        assert!(matches!(refused, Err(Rejection::GpusHeld { .. })), "{refused:?}");
    }
}

#[test]
fn approvers_decide_and_nobody_for_themselves() {
    let mut w = limited(&["titan01"]);
    let asked = wish(&w, "r", 4, HOUR, HOUR);
    let shared = CreateReservation { with: [user("ada")].into(), ..asked };
    let seen = AccessCommand::RecordLogins {
        logins: vec![Login {
            user: user("ada"),
            method: "local_socket".to_owned(),
            from: "controller".to_owned(),
            requests: 1,
        }],
    };
    w.give(Actor::controller(), Command::Access(seen)).unwrap();
    assert_eq!(ask(&mut w, shared, Millis::ZERO), waits("r"));
    let of_staff = |name: &str| member(name, &["staff"]);
    for (actor, name) in [(bob(), "its owner"), (person("ada"), "one who shares it")] {
        let refused = approve(&mut w, actor.clone(), "r");
        assert!(matches!(refused, Err(Rejection::Denied { .. })), "{name}: {refused:?}");
        let refused = deny(&mut w, actor, "r", "no");
        assert!(matches!(refused, Err(Rejection::Denied { .. })), "{name}: {refused:?}");
    }
    let refused = approve(&mut w, person("eve"), "r");
    assert!(matches!(refused, Err(Rejection::Denied { .. })), "{refused:?}");
    assert_eq!(approve(&mut w, of_staff("carl"), "r"), created("r"));
    // And bob, once he is one of them, not for what he asked for.
    let asked = wish(&w, "s", 4, Millis::hours(4), HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), waits("s"));
    let own = approve(&mut w, member("bob", &["students", "staff"]), "s");
    assert!(matches!(own, Err(Rejection::Denied { .. })), "{own:?}");
    assert_eq!(approve(&mut w, person("root"), "s"), created("s"));
    assert_eq!(
        approve(&mut w, person("root"), "x"),
        Err(Rejection::not_found("reservation", res("x")))
    );
}

#[test]
fn what_is_denied_lapses_or_is_withdrawn_is_over() {
    let mut w = limited(&["titan01"]);
    for name in ["d", "l", "w"] {
        let asked = wish(&w, name, 4, HOUR, HOUR);
        assert_eq!(ask(&mut w, asked, Millis::ZERO), waits(name));
    }
    assert!(matches!(
        deny(&mut w, person("ada"), "d", " "),
        Err(Rejection::InvalidField { field, .. }) if field == "reason"
    ));
    w.heard.clear();
    deny(&mut w, person("ada"), "d", "after the deadline").unwrap();
    assert_eq!(w.said(), ["denied by ada: after the deadline"]);
    let over = w.fsm.waitlist().was_over(&res("d")).unwrap();
    assert!(matches!(over.why, WaitOverWhy::Denied { .. }));
    let release = ReservationCommand::Release { id: res("w") };
    w.give(bob(), Command::Reservation(release)).unwrap();
    assert_eq!(w.fsm.next_deadline(), Some(START + HOUR + Millis(1)), "nothing is tried meanwhile");
    w.pass(HOUR + Millis(1));
    let over = w.fsm.waitlist().was_over(&res("l")).unwrap();
    assert_eq!(over.why, WaitOverWhy::NotApproved);
    for name in ["d", "l", "w"] {
        let refused = approve(&mut w, person("root"), name);
        assert!(matches!(refused, Err(Rejection::AlreadyEnded { .. })), "{name}: {refused:?}");
    }
    assert!(w.fsm.waitlist().is_empty());
}

#[test]
fn approved_without_free_gpus_it_waits_for_them_and_limits_do_not_count_any_more() {
    let mut w = limited(&["titan01"]);
    let asked = wish(&w, "r", 4, HOUR, HOUR);
    assert_eq!(ask(&mut w, asked, Millis::hours(2)), waits("r"));
    // Somebody else reserves all of it meanwhile: an approval takes nothing from anybody.
    w.reserve("eve", "e", 4, HOUR, Millis::hours(4)).unwrap();
    w.heard.clear();
    assert_eq!(approve(&mut w, person("ada"), "r"), waits("r"));
    assert_eq!(
        w.said(),
        [
            "approved by ada",
            "bob waits for 4 GPUs on one node, place 1 on the waiting list; it begins within 3h, or not at all"
        ]
    );
    assert_eq!(shown(&w, "r"), Some(ReservationShown::Waiting));
    let again = approve(&mut w, person("root"), "r");
    assert!(
        matches!(again, Err(Rejection::NotChangeable { why, .. }) if why.contains("ada has approved it"))
    );
    w.pass(Millis::minutes(10));
    let release = ReservationCommand::Release { id: res("e") };
    w.give(person("eve"), Command::Reservation(release)).unwrap();
    w.pass(Millis::minutes(1));
    assert_eq!(state(&w, "r"), Some((ReservationState::Scheduled, START + HOUR)));
}

#[test]
fn what_nobody_may_have_any_more_is_over_or_not_approved() {
    let mut w = limited(&["titan01"]);
    let asked = wish(&w, "r", 4, HOUR, HOUR);
    assert_eq!(ask(&mut w, asked, HOUR), waits("r"));
    let disable = AccessCommand::DisableUser {
        user: user("bob"),
        reason: "left".to_owned(),
        transfer_to: None,
    };
    w.give(person("root"), Command::Access(disable)).unwrap();
    let refused = approve(&mut w, person("ada"), "r");
    assert!(matches!(refused, Err(Rejection::AlreadyEnded { .. })), "{refused:?}");
    let is_asked = |e: &&Event| matches!(e, Event::Approval(event) if matches!(**event, ApprovalEvent::Asked { .. }));
    assert_eq!(w.heard.iter().filter(is_asked).count(), 1);
}
