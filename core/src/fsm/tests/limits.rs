//! Limits on reservations by group: set, held to, lifted.

use super::world::{World, node, person, res, user};
use crate::actor::{Actor, Who};
use crate::command::{Command, CreateReservation, LimitsCommand, Report, ReservationCommand};
use crate::ending::WindowUse;
use crate::limits::{LIMITED_GROUPS_MAX, ReservationLimits};
use crate::name::GroupName;
use crate::rejection::Rejection;
use crate::reservation::{
    GpuRequest, RESERVATION_AHEAD_MAX, RESERVATION_LENGTH_MAX, ReservationState,
};
use crate::time::{Millis, Window};

const HOUR: Millis = Millis::hours(1);

pub(super) fn group(name: &str) -> GroupName {
    GroupName::parse(name).unwrap()
}

pub(super) fn member(name: &str, groups: &[&str]) -> Actor {
    let groups = groups.iter().map(|name| group(name)).collect();
    Actor { who: Who::User { name: user(name), admin: false, groups }, ..person(name) }
}

pub(super) fn set(name: &str, limits: ReservationLimits) -> Command {
    Command::Limits(LimitsCommand::Set { group: group(name), limits })
}

fn limited() -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    let limits = ReservationLimits {
        gpus: Some(3),
        length: Some(Millis::hours(8)),
        ahead: Some(Millis::days(2)),
    };
    w.give(person("root"), set("students", limits)).unwrap();
    w
}

/// What refused it: the field, or what there is too much of.
fn refused(w: &mut World, actor: Actor, wish: (&str, u32, Millis, Millis)) -> String {
    let (name, gpus, after, length) = wish;
    let above = |refused| match refused {
        Rejection::AboveLimit { why } => *why,
        other => other,
    };
    match w.reserve_as(actor, name, gpus, after, length).map_err(above) {
        Ok(_) => "granted".to_owned(),
        Err(Rejection::InvalidField { field, .. }) => field,
        Err(Rejection::LimitReached { what, limit }) => format!("{limit} {what}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// Limits for the log of all commands.
pub(super) fn golden(w: &mut World) {
    let (gpus, length, ahead) = (Some(2), Some(Millis::days(3)), Some(Millis::days(14)));
    for (name, limits) in [
        ("students", ReservationLimits { gpus, length, ahead }),
        ("*", ReservationLimits::default()),
    ] {
        w.give(person("root"), set(name, limits)).unwrap();
    }
    let remove = LimitsCommand::Remove { group: group("*") };
    w.give(person("root"), Command::Limits(remove)).unwrap();
}

#[test]
fn members_are_held_to_the_limits_of_their_group_and_others_are_not() {
    let mut w = limited();
    let bob = || member("bob", &["students"]);
    assert_eq!(refused(&mut w, bob(), ("r", 1, Millis(0), Millis::hours(9))), "ends_at");
    assert_eq!(refused(&mut w, bob(), ("r", 1, Millis::days(3), HOUR)), "starts_at");
    let too_many = refused(&mut w, bob(), ("r", 4, Millis(0), HOUR));
    assert_eq!(too_many, "gpus.count");
    for actor in [member("ada", &[]), person("root")] {
        let name = actor.display_name();
        assert_eq!(
            refused(&mut w, actor, (&name, 4, Millis::days(3), Millis::hours(9))),
            "granted"
        );
    }
    assert_eq!(refused(&mut w, bob(), ("r", 3, Millis(0), Millis::hours(8))), "granted");
}

#[test]
fn only_what_is_reserved_at_the_same_time_counts_together() {
    let mut w = limited();
    let bob = || member("bob", &["students"]);
    assert_eq!(refused(&mut w, bob(), ("a", 2, HOUR, HOUR)), "granted");
    assert_eq!(
        refused(&mut w, bob(), ("b", 2, Millis::hours(2), HOUR)),
        "granted",
        "one after the other"
    );
    assert_eq!(
        refused(&mut w, bob(), ("c", 1, Millis(0), Millis::hours(4))),
        "granted",
        "3 at most"
    );
    let said = refused(&mut w, bob(), ("d", 1, Millis::hours(2), HOUR));
    assert!(said.contains("bob has reserved 3 then already"), "{said}");
    // A released reservation does not count.
    w.give(bob(), Command::Reservation(ReservationCommand::Release { id: res("b") })).unwrap();
    assert_eq!(refused(&mut w, bob(), ("d", 1, Millis::hours(2), HOUR)), "granted");
    // Nor does it help to make one longer.
    let longer = |hours| {
        Command::Reservation(ReservationCommand::Extend {
            id: res("d"),
            ends_at: w.now + Millis::hours(hours),
        })
    };
    let (within, beyond) = (longer(9), longer(11));
    w.give(bob(), within).unwrap();
    match w.give(bob(), beyond) {
        Err(Rejection::InvalidField { field, .. }) => assert_eq!(field, "ends_at"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_given_back_or_was_had_before_does_not_count() {
    let mut w = limited();
    let bob = || member("bob", &["students"]);
    assert_eq!(refused(&mut w, bob(), ("a", 3, Millis(0), Millis::hours(8))), "granted");
    assert!(refused(&mut w, bob(), ("b", 1, Millis(0), HOUR)).contains("has reserved 3"));
    // Its node has not said yet that the GPUs are empty.
    w.give(bob(), Command::Reservation(ReservationCommand::Release { id: res("a") })).unwrap();
    assert_eq!(w.fsm.reservation(&res("a")).unwrap().state, ReservationState::Ending);
    assert_eq!(refused(&mut w, bob(), ("b", 3, Millis(0), Millis::hours(2))), "granted");
    // Beside it by an admin's word: what comes after both is what counts.
    let ends_at = w.now + HOUR;
    let beside = w.reserve("bob", "c", 1, Millis(0), HOUR);
    assert!(beside.is_ok(), "{beside:?}");
    let extend = |id: &str, ends_at| {
        Command::Reservation(ReservationCommand::Extend { id: res(id), ends_at })
    };
    w.give(bob(), extend("b", ends_at + Millis::hours(2))).unwrap();
    assert!(matches!(
        w.give(bob(), extend("c", ends_at + HOUR)),
        Err(Rejection::LimitReached { .. })
    ));
}

#[test]
fn where_there_are_limits_none_goes_on_into_the_owners_next() {
    for (limited, expected) in [(true, "ended"), (false, "extended")] {
        let mut w = World::with(&["titan01", "titan02"]);
        if limited {
            w.give(person("root"), set("*", ReservationLimits::default())).unwrap();
        }
        let starts_at = w.now;
        for (name, on, after) in [("a", "titan01", Millis(0)), ("b", "titan02", HOUR)] {
            let wish = CreateReservation::plain(
                res(name),
                user("bob"),
                GpuRequest { count: 1, node: Some(node(on)), ..GpuRequest::default() },
                Window { starts_at: starts_at + after, ends_at: starts_at + after + HOUR },
            );
            w.give(person("bob"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
        }
        let (reservation, seen) = (res("a"), WindowUse::Used);
        w.report("titan01", Report::Use { reservation, seen, came: true }).unwrap();
        w.pass(HOUR);
        let a = w.fsm.reservation(&res("a")).unwrap();
        let found = if a.window.ends_at > w.now { "extended" } else { "ended" };
        assert_eq!(found, expected);
    }
}

#[test]
fn limits_are_the_admins_and_what_cannot_be_is_refused() {
    let mut w = limited();
    let none = ReservationLimits::default();
    assert!(matches!(w.give(person("ada"), set("students", none)), Err(Rejection::Denied { .. })));
    let more = |limit: Millis| Some(limit + Millis(1));
    for limits in [
        ReservationLimits { length: more(RESERVATION_LENGTH_MAX), ..none },
        ReservationLimits { ahead: more(RESERVATION_AHEAD_MAX), ..none },
    ] {
        assert!(matches!(
            w.give(person("root"), set("x", limits)),
            Err(Rejection::InvalidField { .. })
        ));
    }
    let remove = |name: &str| Command::Limits(LimitsCommand::Remove { group: group(name) });
    assert!(matches!(w.give(person("root"), remove("phd")), Err(Rejection::NotFound { .. })));
    w.give(person("root"), remove("students")).unwrap();
    assert!(w.said()[0].contains("limits on reservations of group students removed by root"));
    assert!(w.fsm.reservation_limits().is_empty());
    for n in 0..LIMITED_GROUPS_MAX {
        w.give(person("root"), set(&format!("g{n}"), none)).unwrap();
    }
    assert!(matches!(
        w.give(person("root"), set("one-more", none)),
        Err(Rejection::LimitReached { .. })
    ));
}
