//! Reservations above a limit: asked for, approved, denied, over.

use super::limits::{group, member, set};
use super::world::{START, World, job, node, person, res, training, user};
use crate::access::Login;
use crate::actor::Actor;
use crate::approval::ApprovalEvent;
use crate::command::{
    AccessCommand, AskForApproval, Command, CreateReservation, LimitsCommand, NodeCommand,
    ReservationCommand,
};
use crate::event::Event;
use crate::job::JobSpec;
use crate::limits::ReservationLimits;
use crate::name::ClassName;
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

/// The same, and a job of the lowest class has all GPUs of the only node.
fn scavenged() -> World {
    let mut w = limited(&["titan01"]);
    let spec = JobSpec { class: ClassName::parse("scavenger").unwrap(), ..training() };
    w.submit("eve", "low", JobSpec { gpus: any(4), ..spec }).unwrap();
    assert_eq!(w.schedule(), 1);
    let low = w.fsm.job(&job("low")).unwrap().allocation().cloned().unwrap();
    w.start(&low);
    w
}

fn bob() -> Actor {
    member("bob", &["students"])
}

fn any(count: u32) -> GpuRequest {
    GpuRequest { count, ..GpuRequest::default() }
}

fn wish(w: &World, name: &str, gpus: u32, after: Millis, length: Millis) -> CreateReservation {
    let starts_at = w.now + after;
    let window = Window { starts_at, ends_at: starts_at + length };
    CreateReservation::plain(res(name), user("bob"), any(gpus), window)
}

fn ask(w: &mut World, wish: CreateReservation, wait: Millis) -> Result<Reply, Rejection> {
    ask_for(w, wish, [wait, wait])
}

/// How much later it may begin: in any case, and if it waits for approval.
fn ask_for(
    w: &mut World,
    wish: CreateReservation,
    [wait, more]: [Millis; 2],
) -> Result<Reply, Rejection> {
    let starts_at = wish.window.starts_at;
    let ask = AskForApproval { reason: "the deadline".to_owned(), latest_start: starts_at + more };
    let (latest_start, ask) = (starts_at + wait, Some(ask));
    let command = ReservationCommand::Wait { wish: Box::new(wish), latest_start, ask, offer: None };
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
            "bob asked for approval of 4 GPUs for 1h. Limit: at most 2 at once (limit of students), this is 4. Reason: the deadline"
        ]
    );
    // Its place in the waiting list is nobody's, and all GPUs are free for others.
    assert_eq!(w.fsm.waitlist().place(&res("r")), None);
    w.reserve("eve", "e", 4, HOUR, HOUR).unwrap();
    let release = ReservationCommand::Release { id: res("e") };
    w.give(person("eve"), Command::Reservation(release)).unwrap();
    w.pass(Millis::minutes(30));
    assert_eq!(state(&w, "r"), None, "it is not served");

    let effect = w.fsm.effect_of_approval(&res("r"), w.now).unwrap();
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
fn an_approved_one_makes_jobs_of_lower_classes_leave_at_once() {
    let mut w = scavenged();
    let asked = wish(&w, "r", 4, Millis::hours(3), HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), waits("r"));
    let effect = w.fsm.effect_of_approval(&res("r"), w.now).unwrap();
    assert!(effect.place.is_ok(), "{effect:?}");
    assert_eq!(approve(&mut w, person("ada"), "r"), created("r"));
}

#[test]
fn within_the_limits_jobs_leave_as_for_anybody_who_reserves() {
    let mut w = scavenged();
    // Somebody else waits, and jobs leave for those first.
    let mut other = wish(&w, "o", 4, Millis::ZERO, HOUR);
    other.owner = user("carl");
    other.gpus.node = Some(node("titan01"));
    let latest_start = w.now;
    let wait =
        ReservationCommand::Wait { wish: Box::new(other), latest_start, ask: None, offer: None };
    w.give(person("carl"), Command::Reservation(wait)).unwrap();
    assert!(w.fsm.waitlist().waits(&res("o")).is_some());
    let asked = wish(&w, "r", 2, Millis::hours(3), HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), created("r"));
}

#[test]
fn the_effect_counts_what_serves_and_is_meant() {
    let mut w = limited(&["titan01", "titan02", "titan03"]);
    let (titan03, reason) = (node("titan03"), "fan".to_owned());
    let drain = NodeCommand::Drain { node: titan03, reason, deadline: None };
    w.give(person("root"), Command::Node(drain)).unwrap();
    w.reserve("eve", "e", 2, HOUR, HOUR).unwrap();
    w.reserve_as(bob(), "own", 1, HOUR, HOUR).unwrap();
    let asked = wish(&w, "r", 4, HOUR, HOUR);
    assert_eq!(ask(&mut w, asked, Millis::ZERO), waits("r"));
    let effect = w.fsm.effect_of_approval(&res("r"), w.now).unwrap();
    let free: u32 = 8 - 2 - 1 - 4;
    assert_eq!((effect.gpus_like_it, effect.left_free, effect.owner_has), (8, free, 1));
    assert_eq!(effect.place.unwrap().gpus.len(), 4);
    // Somebody takes what it would have: nobody is promised a place.
    w.reserve("eve", "f", 4, HOUR, HOUR).unwrap();
    let effect = w.fsm.effect_of_approval(&res("r"), w.now).unwrap();
    assert!(matches!(effect.place, Err(Rejection::GpusHeld { .. })), "{effect:?}");
    deny(&mut w, person("ada"), "r", "full").unwrap();
    let over = w.fsm.effect_of_approval(&res("r"), w.now).map(drop).unwrap_err();
    assert_eq!(over.code(), "already_ended");
}

#[test]
fn a_limit_that_only_the_first_free_place_passes_is_asked_for_too() {
    let mut w = limited(&["titan01"]);
    w.reserve("eve", "e", 4, Millis::ZERO, Millis::hours(2)).unwrap();
    w.reserve_as(bob(), "own", 2, Millis::hours(2), Millis::hours(8)).unwrap();
    let asked = wish(&w, "r", 2, Millis::ZERO, HOUR);
    assert_eq!(ask_for(&mut w, asked, [Millis::ZERO, Millis::hours(5)]), waits("r"));
    assert_eq!(shown(&w, "r"), Some(ReservationShown::Requested));
    assert_eq!(approve(&mut w, person("ada"), "r"), created("r"));
    assert_eq!(state(&w, "r"), Some((ReservationState::Scheduled, START + Millis::hours(2))));
    // Without a limit in its way it is refused as if it had not asked.
    for name in ["own", "r"] {
        let release = ReservationCommand::Release { id: res(name) };
        w.give(bob(), Command::Reservation(release)).unwrap();
    }
    let asked = wish(&w, "s", 1, Millis::ZERO, HOUR);
    let refused = ask_for(&mut w, asked, [Millis::ZERO, Millis::hours(5)]);
    assert!(matches!(refused, Err(Rejection::GpusHeld { .. })), "{refused:?}");
    // What begins now cannot wait for anybody.
    let asked = wish(&w, "t", 3, Millis::ZERO, HOUR);
    let refused = ask(&mut w, asked, Millis::ZERO);
    assert!(
        matches!(&refused, Err(Rejection::InvalidField { field, .. }) if field == "ask_reason"),
        "{refused:?}"
    );
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
