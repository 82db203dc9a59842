//! A series moves as a whole or stays as it is, each of its dates as a reservation would alone.

use super::world::{START, World, person, res, user};
use crate::command::{
    Command, CreateReservation, LimitsCommand, ReservationChange, ReservationCommand, SeriesChange,
};
use crate::id::SeriesId;
use crate::limits::ReservationLimits;
use crate::name::GroupName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, Series};
use crate::time::{Millis, Timestamp, Window};

fn id() -> SeriesId {
    SeriesId::parse("ser-s").unwrap()
}

fn hour(hours: u64) -> Timestamp {
    START + Millis::hours(hours)
}

fn wish(name: &str, begins: u64, hours: u64, count: u32) -> CreateReservation {
    let window = Window { starts_at: hour(begins), ends_at: hour(begins + hours) };
    let gpus = GpuRequest { count, ..GpuRequest::default() };
    CreateReservation::plain(res(name), user("ada"), gpus, window)
}

/// No node has them in its hands yet.
const FIRST: u64 = 10 * 24;

/// Two hours of all GPUs of a node on four days in a row.
fn daily_from(first: u64) -> World {
    let mut w = World::with(&["titan01"]);
    create(&mut w, (0..4).map(|day| wish(&format!("d{day}"), first + day * 24, 2, 4)).collect());
    w
}

fn daily() -> World {
    daily_from(FIRST)
}

fn create(w: &mut World, reservations: Vec<CreateReservation>) {
    let series = Series { id: id(), rule: "every day".to_owned() };
    let create = ReservationCommand::CreateSeries { series, reservations, skip: false };
    w.give(person("ada"), Command::Reservation(create)).unwrap();
}

fn to(name: &str, begins: u64) -> SeriesChange {
    let change =
        ReservationChange { starts_at: Some(hour(begins)), ..ReservationChange::default() };
    SeriesChange { reservation: res(name), change, seen: None }
}

/// All four, the first of them at that hour.
fn moved(first: u64) -> Vec<SeriesChange> {
    (0..4).map(|day| to(&format!("d{day}"), first + day * 24)).collect()
}

fn edit(w: &mut World, who: &str, changes: Vec<SeriesChange>) -> Result<Reply, Rejection> {
    let rule = Some("every day, changed".to_owned());
    let edit = ReservationCommand::EditSeries { id: id(), changes, rule };
    w.give(person(who), Command::Reservation(edit))
}

/// When each of them begins, in hours.
fn begins(w: &World) -> Vec<u64> {
    let mut all: Vec<u64> = w
        .fsm
        .reservations()
        .map(|r| r.wanted().window.starts_at.since(START).0 / 3_600_000)
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn all_dates_move_at_once_in_either_direction() {
    for by in [25, 23, 24, 2] {
        let mut w = daily();
        let Ok(Reply::SeriesEdited { reservations }) = edit(&mut w, "ada", moved(FIRST + by))
        else {
            panic!("it is refused");
        };
        assert_eq!(reservations, ["d0", "d1", "d2", "d3"].map(res));
        assert_eq!(begins(&w), [0, 24, 48, 72].map(|day| FIRST + by + day));
        let rules = w.fsm.reservations().map(|r| r.series.as_ref().unwrap().rule.as_str());
        assert!(rules.eq(["every day, changed"; 4]));
        edit(&mut w, "ada", moved(FIRST)).unwrap();
        assert_eq!(begins(&w), [0, 24, 48, 72].map(|day| FIRST + day));
    }
}

#[test]
fn what_a_node_has_in_its_hands_is_not_free_for_another_date() {
    let mut w = daily_from(24);
    w.agents_answer = false;
    // Beside their old places they move, and wait for their node.
    edit(&mut w, "ada", moved(28)).unwrap();
    assert_eq!(begins(&w), [28, 52, 76, 100]);
    assert!(w.fsm.reservations().all(|r| r.next.is_some()));
    let mut w = daily_from(24);
    let refused = edit(&mut w, "ada", moved(48)).unwrap_err();
    let Rejection::DatesRefused { problems, .. } = refused else { panic!("{refused:?}") };
    let Rejection::GpusHeld { holdings, .. } = &problems[0].why else { panic!("{problems:?}") };
    assert_eq!((problems.len(), holdings[0].holder.as_str()), (3, "res-d1"));
    assert_eq!(begins(&w), [24, 48, 72, 96]);
}

#[test]
fn where_one_date_cannot_move_none_does_and_all_such_dates_are_named() {
    let mut w = daily();
    w.reserve("bob", "b1", 1, Millis::hours(FIRST + 29), Millis::hours(1)).unwrap();
    w.reserve("bob", "b2", 1, Millis::hours(FIRST + 77), Millis::hours(1)).unwrap();
    let before = w.fsm.clone();
    w.said();
    let changes = moved(FIRST + 4);
    let refused = edit(&mut w, "ada", changes.clone()).unwrap_err();
    let Rejection::DatesRefused { problems, of, .. } = refused else { panic!("{refused:?}") };
    let days: Vec<Timestamp> = problems.iter().map(|problem| problem.window.starts_at).collect();
    assert_eq!((of, days), (4, vec![hour(FIRST + 28), hour(FIRST + 76)]));
    assert!(w.fsm.reservations().eq(before.reservations()));
    assert!(w.said().is_empty());
    let command = ReservationCommand::EditSeries { id: id(), changes: changes.clone(), rule: None };
    let (made, problems) = w.fsm.try_edit_series(&person("ada"), &command, w.now).unwrap();
    assert_eq!((made.len(), problems.len()), (0, 2));
    // Without those two the others move.
    edit(&mut w, "ada", vec![changes[0].clone(), changes[2].clone()]).unwrap();
    assert_eq!(begins(&w), [4, 24, 29, 52, 72, 77].map(|hours| FIRST + hours));
}

#[test]
fn who_may_and_what_belongs_to_the_series_is_checked_first() {
    let mut w = daily();
    w.reserve("ada", "alone", 1, Millis::hours(200), Millis::hours(1)).unwrap();
    let before = w.fsm.clone();
    let refused = |w: &mut World, who: &str, changes| edit(w, who, changes).unwrap_err().code();
    assert_eq!(refused(&mut w, "bob", vec![to("d0", 30)]), "denied");
    assert_eq!(refused(&mut w, "ada", vec![]), "invalid_field");
    assert_eq!(refused(&mut w, "ada", vec![to("d0", 30), to("d0", 31)]), "invalid_field");
    assert_eq!(refused(&mut w, "ada", vec![to("d0", 30), to("alone", 31)]), "invalid_field");
    assert_eq!(refused(&mut w, "ada", vec![to("d0", 30), to("none", 31)]), "invalid_field");
    let stale = SeriesChange { seen: Some(7), ..to("d2", 60) };
    assert_eq!(refused(&mut w, "ada", vec![to("d0", 30), stale]), "changed_since");
    assert!(w.fsm.reservations().eq(before.reservations()));
    edit(&mut w, "root", vec![to("d0", 30)]).unwrap();
}

#[test]
fn a_limit_counts_what_the_others_are_by_then() {
    let mut w = daily();
    let limits = ReservationLimits { gpus: Some(4), ..ReservationLimits::default() };
    let group = GroupName::parse("*").unwrap();
    w.give(person("root"), Command::Limits(LimitsCommand::Set { group, limits })).unwrap();
    edit(&mut w, "ada", moved(FIRST + 24)).unwrap();
    assert_eq!(begins(&w), [24, 48, 72, 96].map(|day| FIRST + day));
}

#[test]
fn the_reservations_of_one_date_stay_on_different_nodes() {
    let mut w = World::with(&["titan01", "titan02"]);
    create(&mut w, vec![wish("a", 24, 2, 2), wish("b", 24, 2, 2)]);
    let node = |w: &World, name: &str| w.fsm.reservation(&res(name)).unwrap().wanted().node;
    let (first, second) = (node(&w, "a"), node(&w, "b"));
    assert_ne!(first, second);
    // All of the second one's node is taken at that time, and two GPUs of the first one's are free beside it.
    let gpus = GpuRequest { count: 4, node: Some(second.clone()), ..GpuRequest::default() };
    let window = Window { starts_at: hour(30), ends_at: hour(32) };
    let taken = CreateReservation::plain(res("t"), user("bob"), gpus, window);
    w.give(person("bob"), Command::Reservation(ReservationCommand::Create(taken))).unwrap();
    let refused = edit(&mut w, "ada", vec![to("a", 30), to("b", 30)]).unwrap_err();
    let Rejection::DatesRefused { problems, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(problems.len(), 1);
    assert_eq!((node(&w, "a"), node(&w, "b")), (first, second));
    assert_eq!(begins(&w), [24, 24, 30]);
}
