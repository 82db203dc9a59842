//! Stand-ins for reservations whose node is silent, and which of the two is kept.

use super::moving::{drain, get, on, silent};
use super::windows::{answers, told};
use super::world::{START, World, agent, bad, job, node, person, plain, res, user};
use crate::command::{Command, NodeCommand, Report, ReservationChange, ReservationCommand};
use crate::ending::WindowUse;
use crate::event::Event;
use crate::health::Severity;
use crate::id::ReservationId;
use crate::job::JobSpec;
use crate::name::GroupName;
use crate::reservation::{GpuRequest, Reservation, ReservationState};
use crate::risk::{HEARD_MIN, Keeps, Pair, RiskEvent, SILENT_MIN};
use crate::time::{Millis, Window};

const HOUR: Millis = Millis::hours(1);
const MINUTE: Millis = Millis::minutes(1);

/// A reservation in two hours whose node is silent for five minutes by now; and another node with `nodes` in all.
fn silent_home(nodes: &[&str]) -> (World, String) {
    let mut w = World::with(nodes);
    w.reserve("ada", "r", 2, Millis::hours(2), HOUR).unwrap();
    let home = on(&w, "r").to_owned();
    silent(&mut w, &home);
    (w, home)
}

fn stand_in(w: &World) -> Option<ReservationId> {
    match get(w, "r").pair.as_deref()? {
        Pair::HasStandIn(id) => Some(id.clone()),
        Pair::StandsInFor(_) | Pair::HadStandIn => None,
    }
}

/// With a stand-in, and nobody hears its node still.
fn doubled() -> (World, String, ReservationId) {
    let (mut w, home) = silent_home(&["titan01", "titan02"]);
    w.pass(SILENT_MIN);
    let second = stand_in(&w).unwrap();
    (w, home, second)
}

fn comes_back(w: &mut World, name: &str) {
    w.boot(name, "boot-1").unwrap();
}

fn state<'a>(w: &'a World, id: &ReservationId) -> &'a ReservationState {
    &w.fsm.reservation(id).unwrap().state
}

fn comes_to(w: &mut World, id: &ReservationId) {
    let on = w.fsm.reservation(id).unwrap().node.to_string();
    let used = Report::Use { reservation: id.clone(), seen: WindowUse::Used, came: true };
    w.report(&on, used).unwrap();
}

#[test]
fn it_gets_one_after_ten_minutes_of_silence() {
    let (mut w, home) = silent_home(&["titan01", "titan02"]);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::minutes(5)));
    w.pass(Millis::minutes(4));
    assert_eq!(stand_in(&w), None);
    w.pass(MINUTE);
    let second = w.fsm.reservation(&stand_in(&w).unwrap()).unwrap();
    let first = get(&w, "r");
    assert_ne!(second.node.as_str(), home);
    assert_eq!(
        (&second.owner, second.window, second.gpus.len(), &second.pair),
        (&first.owner, first.window, 2, &Some(Box::new(Pair::StandsInFor(res("r")))))
    );
    assert!(second.handed_out.is_some(), "its node has it");
    assert_eq!(first.state, ReservationState::Scheduled, "the first stays as it is");
    let said = w.said();
    let expected = format!("{home} is silent, so {} stands in for res-r", second.id);
    assert!(said.contains(&expected), "{said:?}");
}

#[test]
fn one_that_begins_later_gets_it_a_day_before() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 2, Millis::hours(50), HOUR).unwrap();
    let home = on(&w, "r").to_owned();
    silent(&mut w, &home);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::hours(26)));
    w.pass(Millis::hours(26));
    assert!(stand_in(&w).is_some());
}

#[test]
fn the_stand_in_is_released_when_the_node_is_back_before_the_start() {
    let (mut w, home, second) = doubled();
    comes_back(&mut w, &home);
    assert_eq!(state(&w, &second), &ReservationState::Scheduled, "it may be silent again at once");
    w.pass(HEARD_MIN);
    assert_eq!(state(&w, &second), &ReservationState::Cancelled);
    assert_eq!(get(&w, "r").pair, None);
    w.pass(Millis::hours(2));
    assert_eq!(get(&w, "r").state, ReservationState::Active);
}

#[test]
fn the_stand_in_begins_alone_and_the_first_is_released_when_its_node_is_back() {
    let (mut w, home, second) = doubled();
    w.pass(Millis::hours(2));
    assert_eq!(state(&w, &second), &ReservationState::Active);
    assert_eq!(get(&w, "r").state, ReservationState::Scheduled, "nobody pays for both");
    comes_back(&mut w, &home);
    w.pass(HEARD_MIN);
    assert_eq!(get(&w, "r").state, ReservationState::Cancelled);
    let kept = w.fsm.reservation(&second).unwrap();
    assert_eq!((&kept.state, &kept.pair), (&ReservationState::Active, &None));
}

#[test]
fn the_first_begins_when_its_node_is_back_and_that_of_the_stand_in_is_silent() {
    let (mut w, home, second) = doubled();
    let other = w.fsm.reservation(&second).unwrap().node.to_string();
    w.pass(Millis::hours(2));
    assert_eq!(state(&w, &second), &ReservationState::Active);
    comes_back(&mut w, &home);
    assert_eq!(get(&w, "r").state, ReservationState::Scheduled, "nobody pays for both");
    silent(&mut w, &other);
    assert_eq!(get(&w, "r").state, ReservationState::Active);
    w.pass(HEARD_MIN);
    assert_eq!(
        get(&w, "r").state,
        ReservationState::Active,
        "it is not released for a silent node"
    );
    comes_to(&mut w, &res("r"));
    comes_back(&mut w, &other);
    assert!(matches!(state(&w, &second), ReservationState::Ending | ReservationState::Ended));
    assert_eq!(get(&w, "r").state, ReservationState::Active);
}

#[test]
fn what_its_owner_used_on_the_silent_node_is_kept() {
    let (mut w, home, second) = doubled();
    let given = told(&w, &home, "r").unwrap();
    w.pass(Millis::hours(2));
    comes_back(&mut w, &home);
    let at = w.now;
    answers(&mut w, &home, &given, [Some(at), None]);
    comes_to(&mut w, &res("r"));
    w.pass(HEARD_MIN);
    assert!(matches!(state(&w, &second), ReservationState::Ending | ReservationState::Ended));
    assert_eq!(get(&w, "r").state, ReservationState::Active);
}

#[test]
fn with_people_on_both_each_ends_in_its_time() {
    let (mut w, home, second) = doubled();
    let given = told(&w, &home, "r").unwrap();
    w.pass(Millis::hours(2));
    comes_to(&mut w, &second);
    comes_back(&mut w, &home);
    let at = w.now;
    answers(&mut w, &home, &given, [Some(at), None]);
    comes_to(&mut w, &res("r"));
    w.pass(Millis::minutes(10));
    assert_eq!(state(&w, &second), &ReservationState::Active);
    assert!(get(&w, "r").is_open());
}

#[test]
fn a_node_that_comes_back_with_a_dead_gpu_is_left() {
    let (mut w, home, second) = doubled();
    comes_back(&mut w, &home);
    let dead = get(&w, "r").gpus[0].clone();
    let index = (0..4).find(|at| super::world::gpu(&home, *at) == dead).unwrap();
    w.conditions(&home, vec![bad(&home, index, Severity::Fatal)]);
    assert_eq!(on(&w, "r"), home, "it takes no third place");
    w.pass(HEARD_MIN);
    let kept = w.fsm.reservation(&second).unwrap();
    assert_eq!((&kept.state, &kept.pair), (&ReservationState::Scheduled, &None));
    assert_eq!(get(&w, "r").state, ReservationState::Cancelled);
}

#[test]
fn one_that_ends_with_its_stand_in_is_not_started_for_it() {
    // By their names the stand-in ends first.
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "x", 2, Millis::hours(2), HOUR).unwrap();
    let home = on(&w, "x").to_owned();
    silent(&mut w, &home);
    w.pass(SILENT_MIN);
    w.pass(Millis::hours(2));
    assert_eq!(get(&w, "x").state, ReservationState::Scheduled);
    w.pass(HOUR);
    assert_eq!(get(&w, "x").state, ReservationState::Ended);
    let left: Vec<_> =
        w.fsm.leases().values().filter(|lease| lease.node.as_str() == home).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn who_moves_or_extends_one_of_the_two_keeps_both() {
    let edit = |w: &mut World, id: &ReservationId| {
        let starts_at = Some(START + Millis::days(3));
        let change = ReservationChange { starts_at, ..ReservationChange::default() };
        let edit = ReservationCommand::Edit { id: id.clone(), change, seen: None };
        w.give(person("ada"), Command::Reservation(edit)).unwrap();
    };
    for moves_first in [true, false] {
        let (mut w, home, second) = doubled();
        let first = res("r");
        edit(&mut w, if moves_first { &first } else { &second });
        assert_eq!(w.fsm.reservation(&second).unwrap().pair, None);
        w.pass(Millis::hours(2));
        comes_back(&mut w, &home);
        w.pass(Millis::minutes(30));
        let open = [get(&w, "r"), w.fsm.reservation(&second).unwrap()].map(Reservation::is_open);
        assert_eq!(open, [true, true], "{moves_first}");
    }
    let (mut w, _, second) = doubled();
    let ends_at = get(&w, "r").window.ends_at + HOUR;
    let extend = ReservationCommand::Extend { id: second.clone(), ends_at };
    w.give(person("ada"), Command::Reservation(extend)).unwrap();
    assert_eq!(get(&w, "r").pair.as_deref(), Some(&Pair::HadStandIn));
}

#[test]
fn a_refused_entry_does_not_cost_a_stand_in() {
    let (mut w, _) = silent_home(&["titan01", "titan02"]);
    w.now = w.now + Millis::minutes(6);
    w.reserve("ada", "r", 1, HOUR, HOUR).unwrap_err();
    assert_eq!(stand_in(&w), None);
    assert!(w.fsm.next_deadline().unwrap() <= w.fsm.now());
    w.pass(Millis::ZERO);
    assert!(stand_in(&w).is_some());
}

#[test]
fn nobody_waits_for_a_place_once_it_has_begun() {
    let (mut w, home) = silent_home(&["titan01", "titan02"]);
    let other = if home == "titan01" { "titan02" } else { "titan01" };
    silent(&mut w, other);
    w.pass(SILENT_MIN);
    assert_eq!(get(&w, "r").risk.as_ref().unwrap().keeps, Keeps::NothingFree);
    w.pass(Millis::hours(2));
    w.pass(MINUTE);
    assert_eq!((&get(&w, "r").risk, w.fsm.reservations.to_move().len()), (&None, 0));
}

#[test]
fn a_stand_in_goes_with_its_series() {
    let mut w = World::with(&["titan01", "titan02"]);
    let starts_at = w.now + HOUR;
    let window = Window { starts_at, ends_at: starts_at + HOUR };
    let gpus = GpuRequest { count: 2, ..GpuRequest::default() };
    let date = crate::command::CreateReservation::plain(res("r"), user("ada"), gpus, window);
    let id = crate::id::SeriesId::parse("ser-s").unwrap();
    let series = crate::reservation::Series { id: id.clone(), rule: "every week".to_owned() };
    let create = ReservationCommand::CreateSeries { series, reservations: vec![date], skip: false };
    w.give(person("ada"), Command::Reservation(create)).unwrap();
    let home = on(&w, "r").to_owned();
    silent(&mut w, &home);
    w.pass(SILENT_MIN);
    let second = stand_in(&w).unwrap();
    let release = ReservationCommand::ReleaseSeries { id, from: None };
    w.give(person("ada"), Command::Reservation(release)).unwrap();
    assert_eq!(state(&w, &second), &ReservationState::Cancelled);
    comes_back(&mut w, &home);
    assert_eq!(get(&w, "r").state, ReservationState::Cancelled);
}

#[test]
fn what_the_owner_releases_is_the_owners_choice() {
    let release = |w: &mut World, id: &ReservationId| {
        let release = ReservationCommand::Release { id: id.clone() };
        w.give(person("ada"), Command::Reservation(release)).unwrap();
    };
    let (mut w, _, second) = doubled();
    release(&mut w, &second);
    assert_eq!(get(&w, "r").pair.as_deref(), Some(&Pair::HadStandIn));
    w.pass(Millis::minutes(30));
    assert_eq!((stand_in(&w), w.fsm.reservations().count()), (None, 2), "it gets no other one");
    let (mut w, home, second) = doubled();
    release(&mut w, &res("r"));
    w.pass(MINUTE);
    assert_eq!(w.fsm.reservation(&second).unwrap().pair, None);
    comes_back(&mut w, &home);
    w.pass(HEARD_MIN);
    assert_eq!(get(&w, "r").state, ReservationState::Cancelled);
    assert_eq!(state(&w, &second), &ReservationState::Scheduled);
}

#[test]
fn one_whose_stand_in_is_released_leaves_a_node_that_was_drained_meanwhile() {
    let (mut w, home, second) = doubled();
    drain(&mut w, &home);
    comes_back(&mut w, &home);
    assert_eq!(on(&w, "r"), home);
    // The command changes the node of the stand-in alone.
    let release = ReservationCommand::Release { id: second };
    w.give(person("ada"), Command::Reservation(release)).unwrap();
    assert_ne!(get(&w, "r").wanted().node.as_str(), home);
}

#[test]
fn jobs_that_wait_in_the_first_run_in_the_stand_in() {
    let (mut w, home, second) = doubled();
    let spec = JobSpec { reservation: Some(res("r")), time_limit: Millis::minutes(30), ..plain(1) };
    w.submit("ada", "a", spec).unwrap();
    w.pass(Millis::hours(2));
    assert_eq!(w.fsm.job(&job("a")).unwrap().spec.reservation, Some(second.clone()));
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    comes_back(&mut w, &home);
    w.pass(HEARD_MIN);
    assert_eq!(get(&w, "r").state, ReservationState::Cancelled);
    assert_eq!(w.state_of("a"), "running");
}

#[test]
fn a_stand_in_does_not_count_against_limits() {
    let (mut w, _, _) = doubled();
    let (gpus, length, ahead) = (Some(4), None, None);
    let limits = crate::limits::ReservationLimits { gpus, length, ahead };
    let group = GroupName::parse("students").unwrap();
    let set = crate::command::LimitsCommand::Set { group: group.clone(), limits };
    w.give(person("root"), Command::Limits(set)).unwrap();
    let mut ada = person("ada");
    if let crate::actor::Who::User { groups, .. } = &mut ada.who {
        groups.insert(group);
    }
    w.reserve_as(ada, "more", 2, Millis::hours(2), HOUR).unwrap();
}

#[test]
fn named_gpus_and_a_dead_switch_make_none() {
    let mut w = World::with(&["titan01", "titan02"]);
    let wish = GpuRequest { count: 1, node: Some(node("titan01")), ..GpuRequest::default() };
    let window = Window { starts_at: w.now + HOUR, ends_at: w.now + HOUR + HOUR };
    let named = crate::command::CreateReservation::plain(res("named"), user("ada"), wish, window);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(named))).unwrap();
    silent(&mut w, "titan01");
    w.pass(SILENT_MIN);
    let r = get(&w, "named");
    assert_eq!((&r.pair, r.risk.as_ref().unwrap().keeps), (&None, Keeps::Named));
    assert!(w.last.iter().any(|event| matches!(event, Event::Risk(risk)
        if matches!(**risk, RiskEvent::Stays { others: Some(_), .. }))));

    let (mut w, home) = silent_home(&["titan01", "titan02", "titan03", "titan04", "titan05"]);
    for name in ["titan01", "titan02", "titan03"].iter().filter(|name| **name != home).take(2) {
        silent(&mut w, name);
    }
    w.pass(SILENT_MIN);
    assert_eq!((stand_in(&w), get(&w, "r").risk.as_ref().unwrap().keeps), (None, Keeps::Frozen));
    comes_back(&mut w, if home == "titan02" { "titan01" } else { "titan02" });
    w.pass(MINUTE);
    assert!(stand_in(&w).is_some());
}

#[test]
fn no_place_on_another_silent_node_is_taken() {
    let (mut w, home) = silent_home(&["titan01", "titan02"]);
    let other = if home == "titan01" { "titan02" } else { "titan01" };
    silent(&mut w, other);
    w.pass(SILENT_MIN);
    assert_eq!(
        (stand_in(&w), get(&w, "r").risk.as_ref().unwrap().keeps),
        (None, Keeps::NothingFree)
    );
    let facts = Box::new(super::world::facts(other, 4, "boot-1"));
    let register = NodeCommand::Register { node: node(other), facts };
    w.give(agent(other), Command::Node(register)).unwrap();
    w.pass(MINUTE);
    assert!(stand_in(&w).is_some());
}
