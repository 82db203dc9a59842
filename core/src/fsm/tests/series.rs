//! Series of reservations: all dates or none, which dates are refused, and what a release of many means.

use super::world::{START, World, person, res, user};
use crate::actor::{Actor, Who};
use crate::command::{Command, CreateReservation, LimitsCommand, ReservationCommand};
use crate::id::{ReservationId, SeriesId};
use crate::limits::ReservationLimits;
use crate::name::GroupName;
use crate::rejection::{DateProblem, Rejection};
use crate::reply::Reply;
use crate::reservation::{GpuRequest, ReservationState, SERIES_LENGTH_MAX, Series};
use crate::time::{Millis, Timestamp, Window};

fn id(name: &str) -> SeriesId {
    SeriesId::parse(&format!("ser-{name}")).unwrap()
}

fn day(days: u64) -> Timestamp {
    START + Millis::days(days)
}

/// A date of two hours for `count` GPUs, this many days after the start of the world.
fn date(name: &str, days: u64, count: u32) -> CreateReservation {
    let starts_at = day(days);
    CreateReservation::plain(
        res(name),
        user("ada"),
        GpuRequest { count, ..GpuRequest::default() },
        Window { starts_at, ends_at: starts_at + Millis::hours(2) },
    )
}

/// Five dates, a week apart, the first of them now.
fn weekly(count: u32) -> Vec<CreateReservation> {
    (0..5).map(|week| date(&format!("w{week}"), week * 7, count)).collect()
}

fn command(reservations: Vec<CreateReservation>, skip: bool) -> Command {
    let series = Series { id: id("s"), rule: "every week".to_owned() };
    Command::Reservation(ReservationCommand::CreateSeries { series, reservations, skip })
}

fn create(
    w: &mut World,
    dates: Vec<CreateReservation>,
    skip: bool,
) -> Result<(Vec<ReservationId>, Vec<DateProblem>), Rejection> {
    match w.give(person("ada"), command(dates, skip))? {
        Reply::SeriesCreated { reservations, skipped, .. } => Ok((reservations, skipped)),
        other => panic!("{other:?}"),
    }
}

fn release(w: &mut World, who: &str, from: Option<&str>) -> Result<Vec<ReservationId>, Rejection> {
    let command = ReservationCommand::ReleaseSeries { id: id("s"), from: from.map(res) };
    match w.give(person(who), Command::Reservation(command))? {
        Reply::SeriesReleased { reservations } => Ok(reservations),
        other => panic!("{other:?}"),
    }
}

fn ids(names: &[&str]) -> Vec<ReservationId> {
    names.iter().map(|name| res(name)).collect()
}

fn days(problems: &[DateProblem]) -> Vec<(u64, &'static str)> {
    let of = |p: &DateProblem| (p.window.starts_at.since(START).0 / 86_400_000, p.why.code());
    problems.iter().map(of).collect()
}

fn refused(
    said: Result<(Vec<ReservationId>, Vec<DateProblem>), Rejection>,
) -> Vec<(u64, &'static str)> {
    match said {
        Err(Rejection::DatesRefused { problems, .. }) => days(&problems),
        other => panic!("{other:?}"),
    }
}

/// Somebody else has all GPUs on the second and the fourth date.
fn taken() -> World {
    let mut w = World::with(&["titan01"]);
    for (name, days) in [("b1", 7), ("b2", 21)] {
        w.reserve("bob", name, 4, Millis::days(days), Millis::hours(1)).unwrap();
    }
    w
}

#[test]
fn all_dates_become_reservations_of_the_series_and_the_first_starts() {
    let mut w = World::with(&["titan01"]);
    let (made, skipped) = create(&mut w, weekly(2), false).unwrap();
    assert_eq!((made, skipped.len()), (ids(&["w0", "w1", "w2", "w3", "w4"]), 0));
    for r in w.fsm.reservations() {
        let series = r.series.as_ref().unwrap();
        assert_eq!((series.id.as_str(), series.rule.as_str()), ("ser-s", "every week"));
    }
    let said = w.said();
    let of = said.iter().filter(|said| said.starts_with("reserved for ada, a date of ser-s: "));
    assert_eq!(of.count(), 5, "{said:?}");
    assert_eq!(w.fsm.reservation(&res("w0")).unwrap().state, ReservationState::Active);
    assert_eq!(w.fsm.reservation(&res("w1")).unwrap().state, ReservationState::Scheduled);
}

#[test]
fn one_taken_date_leaves_everything_as_it_was_and_all_taken_ones_are_named() {
    let mut w = taken();
    let before = w.fsm.clone();
    let said = create(&mut w, weekly(1), false);
    let Err(Rejection::DatesRefused { problems, of, .. }) = &said else { panic!("{said:?}") };
    let Rejection::GpusHeld { holdings, .. } = &problems[0].why else { panic!("{problems:?}") };
    assert_eq!(
        (*of, holdings[0].owner.as_str(), holdings[0].holder.as_str()),
        (5, "bob", "res-b1")
    );
    assert_eq!(holdings[0].until, Some(day(7) + Millis::hours(1)));
    assert_eq!(said.as_ref().unwrap_err().code(), "dates_refused");
    assert_eq!(refused(said), [(7, "gpus_held"), (21, "gpus_held")]);
    assert!(w.fsm.reservations().eq(before.reservations()));
    assert!(w.said().is_empty());
}

#[test]
fn with_skip_the_other_dates_are_made_and_those_left_out_are_named() {
    let mut w = taken();
    let (made, skipped) = create(&mut w, weekly(1), true).unwrap();
    assert_eq!(made, ids(&["w0", "w2", "w4"]));
    assert_eq!(days(&skipped), [(7, "gpus_held"), (21, "gpus_held")]);
    let mut full = taken();
    let only_taken = vec![date("a", 7, 1), date("b", 21, 1)];
    assert_eq!(refused(create(&mut full, only_taken, true)).len(), 2);
}

#[test]
fn what_is_wrong_with_every_date_is_said_once() {
    let mut w = World::with(&["titan01"]);
    assert!(matches!(create(&mut w, weekly(9), true), Err(Rejection::NeverFits { .. })));
    let denied = w.give(person("bob"), command(weekly(1), true));
    assert!(matches!(denied, Err(Rejection::Denied { .. })), "{denied:?}");
    assert_eq!(w.fsm.reservations().count(), 0);
}

#[test]
fn dates_are_in_order_and_at_most_a_year_of_days() {
    let mut w = World::with(&["titan01"]);
    let many = |n: u64| (0..n).map(|at| date(&format!("d{at}"), at, 1)).collect::<Vec<_>>();
    let longest = SERIES_LENGTH_MAX as u64;
    let mut overlapping = many(3);
    overlapping[0].window.ends_at = overlapping[1].window.ends_at;
    let mut twice = many(2);
    twice[1].id = twice[0].id.clone();
    let mut backwards = many(2);
    backwards.reverse();
    for wrong in [Vec::new(), many(longest + 1), overlapping, twice, backwards] {
        let said = create(&mut w, wrong, true);
        let Err(Rejection::InvalidField { field, .. }) = &said else { panic!("{said:?}") };
        assert_eq!(field, "dates");
    }
    assert_eq!(create(&mut w, many(longest), false).unwrap().0.len(), SERIES_LENGTH_MAX);
}

#[test]
fn dates_beyond_a_users_limit_are_refused_one_by_one() {
    let mut w = World::with(&["titan01"]);
    let group = GroupName::parse("students").unwrap();
    let limits = ReservationLimits { gpus: Some(2), length: None, ahead: Some(Millis::days(14)) };
    let set = LimitsCommand::Set { group: group.clone(), limits };
    w.give(person("root"), Command::Limits(set)).unwrap();
    let groups = [group].into();
    let ada = Actor { who: Who::User { name: user("ada"), admin: false, groups }, ..person("ada") };
    w.reserve_as(ada.clone(), "own", 2, Millis::days(7), Millis::hours(1)).unwrap();
    let Err(Rejection::DatesRefused { problems, .. }) = w.give(ada, command(weekly(1), false))
    else {
        panic!("taken")
    };
    let wanted = [(7, "above_limit"), (21, "above_limit"), (28, "above_limit")];
    assert_eq!(days(&problems), wanted);
}

#[test]
fn a_release_means_one_date_or_the_later_ones_or_all_that_have_not_started() {
    let mut w = World::with(&["titan01"]);
    create(&mut w, weekly(1), false).unwrap();
    let alone = ReservationCommand::Release { id: res("w1") };
    w.give(person("ada"), Command::Reservation(alone)).unwrap();
    assert!(matches!(release(&mut w, "bob", None), Err(Rejection::Denied { .. })));
    assert_eq!(release(&mut w, "ada", Some("w3")).unwrap(), ids(&["w3", "w4"]));
    // The first one has started: only its own release, or one from it on, ends it.
    assert_eq!(release(&mut w, "ada", None).unwrap(), ids(&["w2"]));
    assert_eq!(w.fsm.reservation(&res("w0")).unwrap().state, ReservationState::Active);
    let again = release(&mut w, "ada", None);
    assert!(matches!(again, Err(Rejection::AlreadyEnded { .. })), "{again:?}");
    assert_eq!(release(&mut w, "ada", Some("w0")).unwrap(), ids(&["w0"]));
    assert_ne!(w.fsm.reservation(&res("w0")).unwrap().state, ReservationState::Active);
    let strange = ReservationCommand::ReleaseSeries { id: id("none"), from: None };
    let strange = w.give(person("ada"), Command::Reservation(strange));
    assert!(matches!(strange, Err(Rejection::NotFound { .. })), "{strange:?}");
}

#[test]
fn a_release_is_refused_whole_where_one_date_belongs_to_somebody_else() {
    let mut w = World::with(&["titan01"]);
    let mut dates = weekly(1);
    dates[4].owner = user("bob");
    w.give(person("root"), command(dates, false)).unwrap();
    let before = w.fsm.clone();
    assert!(matches!(release(&mut w, "ada", Some("w1")), Err(Rejection::Denied { .. })));
    assert!(w.fsm.reservations().eq(before.reservations()));
    assert_eq!(release(&mut w, "root", Some("w1")).unwrap().len(), 4);
}

#[test]
fn a_trial_says_what_would_come_and_changes_nothing() {
    let mut w = taken();
    let (made, problems) = w.fsm.try_series(&person("ada"), &weekly(1), w.now).unwrap();
    let (ids, skipped) = create(&mut w, weekly(1), true).unwrap();
    assert_eq!((made.len(), problems), (ids.len(), skipped));
    for tried in made {
        let done = w.fsm.reservation(&tried.id).unwrap();
        assert_eq!((&tried.node, &tried.gpus, tried.window), (&done.node, &done.gpus, done.window));
    }
}

#[test]
fn the_same_request_twice_makes_one_series() {
    let mut w = World::with(&["titan01"]);
    let first = w.with_key(person("ada"), "key", "body", command(weekly(4), false));
    let again = w.with_key(person("ada"), "key", "body", command(weekly(4), false));
    assert_eq!(first.reply, again.reply);
    assert_eq!(w.fsm.reservations().count(), 5);
    assert_eq!(first.audit.unwrap().body.action, "create_series");
}

/// Two GPUs on each of so many nodes, this many days after the start.
fn at_once(name: &str, nodes: usize, days: u64, count: u32) -> Vec<CreateReservation> {
    (0..nodes).map(|node| date(&format!("{name}{node}"), days, count)).collect()
}

fn nodes_of(w: &World, made: &[ReservationId]) -> Vec<String> {
    let mut nodes: Vec<String> =
        made.iter().map(|id| w.fsm.reservation(id).unwrap().node.to_string()).collect();
    nodes.sort();
    nodes
}

#[test]
fn reservations_of_one_date_are_each_on_another_node() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let (made, _) = create(&mut w, at_once("a", 3, 0, 1), false).unwrap();
    assert_eq!(nodes_of(&w, &made), ["titan01", "titan02", "titan03"]);
    let state = |w: &World, id: &ReservationId| w.fsm.reservation(id).unwrap().state.clone();
    assert!(made.iter().all(|id| state(&w, id) == ReservationState::Active));
    assert_eq!(release(&mut w, "ada", None).unwrap().len(), 3, "a series of one date, as a whole");
}

#[test]
fn all_nodes_or_none() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("bob", "b", 4, Millis::ZERO, Millis::days(1)).unwrap();
    let said = create(&mut w, at_once("a", 2, 0, 2), false);
    let Err(Rejection::DatesRefused { problems, of, .. }) = said else { panic!("{said:?}") };
    assert_eq!((days(&problems), of), (vec![(0, "gpus_held")], 1));
    assert!(problems[0].why.to_string().contains("2 GPUs on each of 2 nodes"), "{problems:?}");
    assert_eq!(w.fsm.reservations().count(), 1);
    let Rejection::GpusHeld { next: Some(next), .. } = &problems[0].why else {
        panic!("{problems:?}");
    };
    assert_eq!(next.starts_at, day(1));
    // The other node is taken then, so both are free a day later.
    let tomorrow = CreateReservation { owner: user("carol"), ..date("c", 1, 4) };
    let tomorrow =
        CreateReservation { window: Window { starts_at: day(1), ends_at: day(2) }, ..tomorrow };
    w.give(person("carol"), Command::Reservation(ReservationCommand::Create(tomorrow))).unwrap();
    let said = create(&mut w, at_once("a", 2, 0, 2), false);
    let Err(Rejection::DatesRefused { problems, .. }) = said else { panic!("{said:?}") };
    assert!(
        matches!(&problems[0].why, Rejection::GpusHeld { next: Some(next), .. } if next.starts_at == day(2)),
        "{problems:?}"
    );
    let (made, _) = create(&mut w, at_once("a", 2, 2, 2), false).unwrap();
    assert_eq!(nodes_of(&w, &made), ["titan01", "titan02"]);
}

#[test]
fn more_nodes_than_there_are_never_fit() {
    let mut w = World::with(&["titan01", "titan02"]);
    let said = create(&mut w, at_once("a", 3, 0, 2), false).unwrap_err();
    let expected = "2 GPUs each: 2 of the fleet's nodes, and 3 are wanted";
    assert!(matches!(&said, Rejection::NeverFits { why } if why == expected), "{said:?}");
    let named = |count| {
        let mut all = at_once("a", count, 0, 1);
        all[0].gpus.node = Some(super::world::node("titan01"));
        all
    };
    create(&mut w, named(2), false).unwrap_err();
    create(&mut w, at_once("a", 65, 0, 1), false).unwrap_err();
}

#[test]
fn dates_on_several_nodes_count_as_dates() {
    let mut w = World::with(&["titan01", "titan02"]);
    let taken = date("b", 7, 1);
    let taken = CreateReservation { owner: user("bob"), ..taken };
    let mut all = taken.clone();
    all.gpus.count = 4;
    w.give(person("bob"), Command::Reservation(ReservationCommand::Create(all))).unwrap();
    let wishes: Vec<CreateReservation> =
        (0..3).flat_map(|week| at_once(&format!("w{week}-"), 2, week * 7, 1)).collect();
    let (made, skipped) = create(&mut w, wishes, true).unwrap();
    assert_eq!((made.len(), days(&skipped)), (4, vec![(7, "gpus_held")]));
}

#[test]
fn limits_count_all_nodes_of_a_date_together() {
    let mut w = World::with(&["titan01", "titan02"]);
    let group = GroupName::parse("students").unwrap();
    let limits = ReservationLimits { gpus: Some(3), length: None, ahead: None };
    let set = LimitsCommand::Set { group: group.clone(), limits };
    w.give(person("root"), Command::Limits(set)).unwrap();
    let mut ada = person("ada");
    if let Who::User { groups, .. } = &mut ada.who {
        groups.insert(group);
    }
    let mut ask = |count| {
        let wishes = at_once(&format!("of{count}-"), 2, 0, count);
        w.give(ada.clone(), command(wishes, false))
    };
    ask(2).unwrap_err();
    ask(1).unwrap();
}
