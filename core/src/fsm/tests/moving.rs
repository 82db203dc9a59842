//! Reservations that leave a bad place before they begin, and those that stay there.

use super::windows::{answers, told};
use super::world::{START, World, bad, gpu, node, person, res, user};
use crate::actor::Actor;
use crate::calendar;
use crate::command::{
    ClusterCommand, Command, CreateReservation, NodeCommand, ReservationChange, ReservationCommand,
};
use crate::event::Event;
use crate::health::Severity;
use crate::name::GpuUuid;
use crate::node::Liveness;
use crate::reservation::{GpuRequest, Reservation, ReservationState};
use crate::risk::{Keeps, MOVE_AHEAD, MOVED_APART, RiskEvent};
use crate::time::{Millis, Window};

const HOUR: Millis = Millis::hours(1);

pub(super) fn get<'a>(w: &'a World, name: &str) -> &'a Reservation {
    w.fsm.reservation(&res(name)).unwrap()
}

pub(super) fn on<'a>(w: &'a World, name: &str) -> &'a str {
    get(w, name).node.as_str()
}

fn keeps(w: &World, name: &str) -> Option<Keeps> {
    get(w, name).risk.as_ref().map(|risk| risk.keeps)
}

/// What the last command said of bad places.
fn risks(w: &World) -> Vec<RiskEvent> {
    let of = |event: &Event| match event {
        Event::Risk(event) => Some((**event).clone()),
        _ => None,
    };
    w.last.iter().filter_map(of).collect()
}

/// In `from` for an hour, on a node that is named.
fn reserve_on(w: &mut World, who: &str, name: &str, on: &str, gpus: u32, from: Millis) {
    let wish = GpuRequest { count: gpus, node: Some(node(on)), ..GpuRequest::default() };
    reserve_for(w, who, name, wish, from);
}

fn reserve_for(w: &mut World, who: &str, name: &str, wish: GpuRequest, from: Millis) {
    let window = Window { starts_at: w.now + from, ends_at: w.now + from + HOUR };
    let wish = CreateReservation::plain(res(name), user(who), wish, window);
    w.give(person(who), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
}

fn admin() -> Actor {
    person("root")
}

pub(super) fn drain(w: &mut World, name: &str) {
    let (node, reason, deadline) = (node(name), "fan".to_owned(), None);
    w.give(admin(), Command::Node(NodeCommand::Drain { node, reason, deadline })).unwrap();
}

fn open(w: &mut World, name: &str) {
    w.give(admin(), Command::Node(NodeCommand::Uncordon { node: node(name) })).unwrap();
}

fn dies(w: &mut World, name: &str, index: u32) {
    w.conditions(name, vec![bad(name, index, Severity::Fatal)]);
}

pub(super) fn silent(w: &mut World, name: &str) {
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(5));
    let command = NodeCommand::SetLiveness { node: node(name), liveness, silent_for };
    w.give(Actor::controller(), Command::Node(command)).unwrap();
}

/// One of two nodes has a reservation of `gpus` in two hours; says which one, and the other.
fn world_of_two(gpus: u32) -> (World, String, String) {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", gpus, Millis::hours(2), HOUR).unwrap();
    let home = on(&w, "r").to_owned();
    let other = if home == "titan01" { "titan02" } else { "titan01" };
    (w, home, other.to_owned())
}

#[test]
fn it_leaves_a_drained_node_at_once_and_keeps_its_time() {
    let (mut w, home, other) = world_of_two(2);
    let window = get(&w, "r").window;
    drain(&mut w, &home);
    assert_eq!((on(&w, "r"), get(&w, "r").window), (other.as_str(), window));
    assert_eq!(get(&w, "r").changed.as_ref().unwrap().by, "fleet");
    let said = w.said();
    let begins = format!("moves to {other}:0");
    let moves = said.iter().find(|said| said.starts_with(&begins)).unwrap_or_else(|| {
        panic!("{said:?}");
    });
    assert!(
        moves.ends_with(&format!("once {home} has released the old place: {home} is draining")),
        "{moves}"
    );
    w.pass(Millis::hours(2));
    assert_eq!(get(&w, "r").state, ReservationState::Active);
}

#[test]
fn both_places_are_taken_until_its_node_has_released_the_old_one() {
    let (mut w, home, other) = world_of_two(4);
    w.agents_answer = false;
    drain(&mut w, &home);
    assert_eq!(on(&w, "r"), home);
    for name in [&home, &other] {
        let busy = calendar::busy(&w.fsm, &gpu(name, 0));
        assert_eq!(busy.len(), 1, "{name}");
    }
    let order = told(&w, &home, "r").unwrap();
    assert!(order.withdrawn);
    answers(&mut w, &home, &order, [None; 2]);
    assert_eq!(on(&w, "r"), other);
    assert!(calendar::busy(&w.fsm, &gpu(&home, 0)).is_empty());
}

#[test]
fn nothing_is_taken_from_a_silent_node() {
    let (mut w, home, _) = world_of_two(2);
    silent(&mut w, &home);
    drain(&mut w, &home);
    w.pass(Millis::minutes(2));
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), None));
}

#[test]
fn a_dead_gpu_is_exchanged_on_its_node_where_others_are_free() {
    let (mut w, home, _) = world_of_two(2);
    let gpus = get(&w, "r").gpus.clone();
    let dead = (0..4).find(|at| gpus.contains(&gpu(&home, *at))).unwrap();
    dies(&mut w, &home, dead);
    assert_eq!(on(&w, "r"), home);
    assert!(!get(&w, "r").gpus.contains(&gpu(&home, dead)), "{:?}", get(&w, "r").gpus);
    let (mut w, home, other) = world_of_two(4);
    dies(&mut w, &home, 0);
    assert_eq!(on(&w, "r"), other, "no four others on its own node");
}

#[test]
fn a_degraded_gpu_is_a_matter_of_the_start() {
    let (mut w, home, _) = world_of_two(4);
    w.conditions(&home, vec![bad(&home, 0, Severity::Degraded)]);
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), None));
}

#[test]
fn what_its_owner_named_stays_and_its_owner_reads_what_is_free_instead() {
    let mut w = World::with(&["titan01", "titan02"]);
    reserve_on(&mut w, "ada", "node", "titan01", 2, Millis::hours(2));
    let uuids: Vec<GpuUuid> = vec![gpu("titan01", 2)];
    let named = GpuRequest { count: 1, uuids, ..GpuRequest::default() };
    reserve_for(&mut w, "bob", "gpu", named, Millis::hours(2));
    drain(&mut w, "titan01");
    for (name, count) in [("node", 2), ("gpu", 1)] {
        assert_eq!((on(&w, name), keeps(&w, name)), ("titan01", Some(Keeps::Named)), "{name}");
        let others = risks(&w).into_iter().find_map(|risk| match risk {
            RiskEvent::Stays { reservation, others, .. } if reservation == res(name) => others,
            _ => None,
        });
        let (free_on, gpus) = others.unwrap();
        assert_eq!((free_on.as_str(), gpus.len()), ("titan02", count), "{name}");
    }
    w.pass(Millis::minutes(5));
    assert_eq!((risks(&w), w.fsm.next_deadline()), (vec![], Some(START + Millis::hours(2))));
    let wish = GpuRequest { count: 2, node: Some(node("titan02")), ..GpuRequest::default() };
    let change = ReservationChange { gpus: Some(wish), ..ReservationChange::default() };
    let edit = ReservationCommand::Edit { id: res("node"), change, seen: None };
    w.give(person("ada"), Command::Reservation(edit)).unwrap();
    assert_eq!((on(&w, "node"), keeps(&w, "node")), ("titan02", None));
}

#[test]
fn with_nothing_free_it_stays_and_is_tried_each_minute() {
    let (mut w, home, other) = world_of_two(4);
    w.reserve("bob", "b", 4, Millis::hours(2), HOUR).unwrap();
    assert_eq!(on(&w, "b"), other);
    drain(&mut w, &home);
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), Some(Keeps::NothingFree)));
    assert_eq!(risks(&w).len(), 1);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::minutes(1)));
    w.pass(Millis::minutes(1));
    assert_eq!((on(&w, "r"), risks(&w)), (home.as_str(), vec![]), "said once");
    let release = ReservationCommand::Release { id: res("b") };
    w.give(person("bob"), Command::Reservation(release)).unwrap();
    w.pass(Millis::minutes(1));
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (other.as_str(), None));
}

#[test]
fn a_place_that_is_good_again_is_said() {
    let (mut w, home, _) = world_of_two(4);
    w.reserve("bob", "b", 4, Millis::hours(2), HOUR).unwrap();
    drain(&mut w, &home);
    open(&mut w, &home);
    assert_eq!(keeps(&w, "r"), None);
    assert_eq!(risks(&w), vec![RiskEvent::Over { reservation: res("r") }]);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::hours(2)));
}

#[test]
fn it_moves_once_in_an_hour_and_at_its_start_all_the_same() {
    let (mut w, home, other) = world_of_two(2);
    drain(&mut w, &home);
    assert_eq!(on(&w, "r"), other);
    open(&mut w, &home);
    drain(&mut w, &other);
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (other.as_str(), Some(Keeps::MovedLately)));
    w.pass(MOVED_APART.saturating_sub(Millis::minutes(1)));
    assert_eq!(on(&w, "r"), other);
    w.pass(Millis::minutes(1));
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), None));
    open(&mut w, &other);
    w.pass(Millis::minutes(59));
    drain(&mut w, &home);
    assert_eq!(keeps(&w, "r"), Some(Keeps::MovedLately));
    w.pass(Millis::minutes(1));
    assert_eq!((on(&w, "r"), &get(&w, "r").state), (other.as_str(), &ReservationState::Active));
}

#[test]
fn nothing_moves_for_its_health_while_evictions_are_frozen() {
    let names = ["titan01", "titan02", "titan03", "titan04"];
    let mut w = World::with(&names);
    w.reserve("ada", "r", 4, Millis::hours(2), HOUR).unwrap();
    let home = on(&w, "r").to_owned();
    let others: Vec<&str> = names.into_iter().filter(|name| *name != home).collect();
    for name in &others[..2] {
        dies(&mut w, name, 0);
    }
    dies(&mut w, &home, 0);
    assert!(w.fsm.evictions_frozen().is_some());
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), Some(Keeps::Frozen)));
    w.give(admin(), Command::Cluster(ClusterCommand::ThawEvictions)).unwrap();
    w.pass(Millis::minutes(1));
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (others[2], None));
}

#[test]
fn one_that_begins_much_later_leaves_when_it_comes_near() {
    let mut w = World::with(&["titan01", "titan02"]);
    let from = MOVE_AHEAD + Millis::hours(5);
    w.reserve("ada", "r", 2, from, HOUR).unwrap();
    let home = on(&w, "r").to_owned();
    drain(&mut w, &home);
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), None));
    w.pass(Millis::hours(5));
    assert_ne!(on(&w, "r"), home);
}

#[test]
fn users_of_an_open_one_read_once_that_a_gpu_is_dead() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 2, Millis::ZERO, HOUR).unwrap();
    let (home, gpus) = (on(&w, "r").to_owned(), get(&w, "r").gpus.clone());
    drain(&mut w, &home);
    assert_eq!((keeps(&w, "r"), risks(&w)), (None, vec![]), "a drain waits for its end");
    open(&mut w, &home);
    let dead = (0..4).find(|at| gpus.contains(&gpu(&home, *at))).unwrap();
    dies(&mut w, &home, dead);
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), Some(Keeps::Begun)));
    let [RiskEvent::Stays { others: Some((_, others)), .. }] = &risks(&w)[..] else {
        panic!("{:?}", w.said());
    };
    assert_eq!(others.len(), 2);
    w.pass(Millis::minutes(5));
    assert_eq!(risks(&w), vec![]);
    w.conditions(&home, vec![]);
    assert_eq!(risks(&w), vec![RiskEvent::Over { reservation: res("r") }]);
}

#[test]
fn one_that_must_begin_on_a_dead_gpu_says_so() {
    let mut w = World::with(&["titan01"]);
    reserve_on(&mut w, "ada", "r", "titan01", 4, Millis::hours(2));
    dies(&mut w, "titan01", 3);
    assert_eq!(keeps(&w, "r"), Some(Keeps::NothingFree), "another GPU of the node would do");
    w.pass(Millis::hours(2));
    assert_eq!(get(&w, "r").state, ReservationState::Active);
    assert_eq!((risks(&w).len(), keeps(&w, "r")), (1, Some(Keeps::Begun)), "{:?}", w.said());
}

#[test]
fn a_drain_for_a_reboot_moves_nothing() {
    let (mut w, home, _) = world_of_two(2);
    let (node, reason) = (node(&home), "kernel".to_owned());
    w.give(admin(), Command::Reboot(crate::command::RebootCommand::Ask { node, reason })).unwrap();
    assert_eq!((on(&w, "r"), keeps(&w, "r")), (home.as_str(), None));
}

#[test]
fn a_node_with_very_many_empties_in_several_passes() {
    let mut w = World::with(&["titan01", "titan02"]);
    for at in 0..70_u64 {
        let from = Millis::hours(2 + at);
        reserve_on(&mut w, "ada", &format!("r{at}"), "titan01", 4, from);
        let mut r = w.fsm.reservations.get_mut(&res(&format!("r{at}"))).unwrap();
        r.wish.node = None;
    }
    w.agents_answer = false;
    drain(&mut w, "titan01");
    let left = |w: &World| {
        let stays = |at: &usize| get(w, &format!("r{at}")).next.is_none();
        (0..70).filter(stays).collect::<Vec<_>>()
    };
    assert_eq!(left(&w), (64..70).collect::<Vec<_>>(), "the first to begin come first");
    assert_eq!((keeps(&w, "r69"), risks(&w)), (Some(Keeps::Queued), vec![]));
    w.pass(Millis::minutes(1));
    assert_eq!(left(&w), Vec::<usize>::new());
}
