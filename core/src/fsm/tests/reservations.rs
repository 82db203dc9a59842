//! Reservations: windows, leases, jobs under them, ends.

use super::world::{START, World, bad, facts, gpu, job, node, person, plain, res, user};
use crate::allocation::AttemptEnd;
use crate::command::{
    AccessCommand, Command, CreateReservation, JobCommand, Report, ReservationCommand,
};
use crate::health::Severity;
use crate::job::JobSpec;
use crate::lease::LeaseHolder;
use crate::name::GpuUuid;
use crate::rejection::Rejection;
use crate::reservation::{GpuRequest, ReservationState, SHARED_WITH_MAX};
use crate::time::{Millis, Timestamp, Window};

fn state(w: &World, name: &str) -> ReservationState {
    w.fsm.reservation(&res(name)).unwrap().state.clone()
}

#[test]
fn a_reservation_starts_holds_and_ends_by_time() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 2, Millis::hours(1), Millis::hours(8)).unwrap();
    assert_eq!(state(&w, "r"), ReservationState::Scheduled);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::hours(1)));
    w.pass(Millis::hours(1));
    assert_eq!(state(&w, "r"), ReservationState::Active);
    w.pass(Millis::hours(8));
    assert_eq!(state(&w, "r"), ReservationState::Ending);
    w.release("titan01");
    assert_eq!(state(&w, "r"), ReservationState::Ended);
    assert!(w.fsm.leases().is_empty());
    assert_eq!(w.fsm.next_deadline(), None);
}

#[test]
fn one_that_is_over_before_its_window_says_when_and_that_it_changed() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "cancelled", 1, Millis::days(9), Millis::hours(1)).unwrap();
    w.reserve("ada", "released", 1, Millis::ZERO, Millis::hours(8)).unwrap();
    w.reserve("ada", "over", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    w.pass(Millis::minutes(30));
    for name in ["cancelled", "released"] {
        let release = ReservationCommand::Release { id: res(name) };
        for _ in 0..2 {
            // The second one is refused, or changes nothing.
            drop(w.give(person("root"), Command::Reservation(release.clone())));
        }
    }
    let at = w.now;
    w.pass(Millis::hours(1));
    for (name, revision, released_at, by) in [
        ("cancelled", 2, Some(at), "root"),
        ("released", 2, Some(at), "root"),
        ("over", 1, None, ""),
    ] {
        let r = w.fsm.reservation(&res(name)).unwrap();
        assert_eq!((r.revision, r.released_at), (revision, released_at), "{name}");
        assert_eq!(r.changed.as_ref().map_or("", |changed| &changed.by), by, "{name}");
    }
}

#[test]
fn the_owners_jobs_run_under_it_and_others_do_not() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.submit("bob", "b", plain(1)).unwrap();
    assert_eq!(w.schedule(), 1);
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    let lease = w.fsm.lease(w.fsm.allocation(&a).unwrap().lease.as_ref().unwrap()).unwrap();
    assert!(lease.parent.is_some());
    assert!(matches!(&lease.holder, LeaseHolder::Allocation(id) if *id == a));
    let foreign = w.submit("bob", "c", JobSpec { reservation: Some(res("r")), ..plain(1) });
    assert!(matches!(foreign, Err(Rejection::Denied { .. })));

    w.pass(Millis::hours(8));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    w.release("titan01");
    assert_eq!(state(&w, "r"), ReservationState::Ended);
    assert_eq!(w.state_of("a"), "timed_out");
    assert_eq!(w.schedule(), 1, "bob's turn");
}

#[test]
fn the_parents_lease_outlives_its_children() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(8)).unwrap();
    let at = w.fsm.reservation(&res("r")).unwrap().gpus[0].clone();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    assert_eq!(state(&w, "r"), ReservationState::Active);
    let hold = w.fsm.hold(&at).unwrap();
    assert_eq!(hold.child, None);
}

#[test]
fn a_start_waits_for_the_gpus_to_be_empty_and_comes_with_the_release() {
    let mut w = World::with(&["titan01"]);
    let a = w.run(
        "a",
        JobSpec { time_limit: Millis::minutes(30), ..plain(4) },
        "titan01",
        &[0, 1, 2, 3],
    );
    w.reserve("bob", "r", 1, Millis::hours(1), Millis::hours(1)).unwrap();
    w.pass(Millis::minutes(30));
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    w.pass(Millis::minutes(30));
    assert_eq!(state(&w, "r"), ReservationState::Scheduled, "the driver still holds on");
    assert!(w.fsm.reservation(&res("r")).unwrap().reason.is_some());
    w.release("titan01");
    assert_eq!(state(&w, "r"), ReservationState::Active);
}

#[test]
fn overlaps_are_refused_with_who_and_until_when() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    let Err(Rejection::GpusHeld { holdings, next, .. }) =
        w.reserve("bob", "s", 1, Millis::hours(1), Millis::hours(1))
    else {
        panic!("it must be refused");
    };
    assert!(holdings.iter().all(|h| h.owner == user("ada")));
    assert_eq!(next.unwrap().starts_at, START + Millis::hours(8));
    w.reserve("bob", "s", 1, Millis::hours(8), Millis::hours(1)).unwrap();
}

#[test]
fn given_back_early_the_gpus_are_free_for_others() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    assert!(matches!(
        w.give(person("bob"), Command::Reservation(ReservationCommand::Release { id: res("r") })),
        Err(Rejection::Denied { .. })
    ));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    w.release("titan01");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
    w.reserve("bob", "s", 4, Millis::ZERO, Millis::hours(8)).unwrap();
}

#[test]
fn an_extension_must_not_run_into_somebody_else() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.reserve("bob", "s", 1, Millis::hours(10), Millis::hours(1)).unwrap();
    let extend = |hours| {
        Command::Reservation(ReservationCommand::Extend {
            id: res("r"),
            ends_at: START + Millis::hours(hours),
        })
    };
    w.give(person("ada"), extend(10)).unwrap();
    assert!(matches!(w.give(person("ada"), extend(11)), Err(Rejection::GpusHeld { .. })));
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().window.ends_at, START + Millis::hours(10));
}

#[test]
fn windows_that_make_no_sense_name_their_field() {
    let mut w = World::with(&["titan01"]);
    let day = Millis::days(1);
    let cases = [
        (START, START, "ends_at"),
        (START + day, START, "ends_at"),
        (START - day, START + day, "starts_at"),
        (START, START + Millis(61 * day.0), "ends_at"),
        (START + Millis(400 * day.0), START + Millis(401 * day.0), "starts_at"),
        (START, Timestamp(u64::MAX), "window"),
    ];
    for (starts_at, ends_at, wrong) in cases {
        let wish = CreateReservation::plain(
            res("r"),
            user("ada"),
            GpuRequest { count: 1, ..GpuRequest::default() },
            Window { starts_at, ends_at },
        );
        match w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))) {
            Err(Rejection::InvalidField { field, .. }) => assert_eq!(field, wrong),
            other => panic!("{starts_at:?}..{ends_at:?}: {other:?}"),
        }
    }
}

#[test]
fn counts_and_notes_are_checked() {
    let mut w = World::with(&["titan01"]);
    for count in [0, 65, u32::MAX] {
        let refused = w.reserve("ada", "r", count, Millis::ZERO, Millis::hours(1));
        assert!(matches!(refused, Err(Rejection::InvalidField { .. })), "{count}");
    }
    assert!(matches!(
        w.reserve("ada", "r", 8, Millis::ZERO, Millis::hours(1)),
        Err(Rejection::NeverFits { .. })
    ));
}

#[test]
fn the_parents_proof_covers_its_children_whatever_the_order() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(8)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    let parent = w.fsm.leases().values().find(|l| l.parent.is_none()).unwrap().clone();
    let released = Report::Released { lease: parent.id.clone(), epoch: parent.epoch };
    w.report("titan01", released.clone()).unwrap();
    assert_eq!(state(&w, "r"), ReservationState::Ending, "its attempt has not ended");
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    w.report("titan01", released).unwrap();
    assert_eq!(state(&w, "r"), ReservationState::Ended);
    assert!(w.fsm.leases().is_empty());
}

#[test]
fn what_is_refused_without_the_log_is_refused_by_it_too() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    let commands = [
        Command::Reservation(ReservationCommand::Release { id: res("x") }),
        Command::Reservation(ReservationCommand::Release { id: res("r") }),
        Command::Reservation(ReservationCommand::Extend { id: res("r"), ends_at: START }),
        Command::Job(JobCommand::Cancel { id: job("x") }),
    ];
    for command in commands {
        let envelope = w.envelope(person("bob"), command);
        let early = w.fsm.answer_without_log(&envelope);
        assert_eq!(early, Some(w.apply(envelope).reply));
    }
}

#[test]
fn broken_gpus_are_replaced_before_the_start_where_others_are_free() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(1)).unwrap();
    let promised = w.fsm.reservation(&res("r")).unwrap().node.to_string();
    w.conditions(&promised, vec![bad(&promised, 0, Severity::Degraded)]);
    w.pass(Millis::hours(1));
    let r = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!(r.state, ReservationState::Active);
    assert_ne!(r.node.as_str(), promised);
    assert!(w.said().iter().any(|s| s.contains("not healthy")), "{:?}", w.said());
}

/// It began where it was promised before; only what is still to come can be promised twice.
#[test]
fn one_that_moved_to_where_another_was_over_before_is_in_order() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "first", 4, Millis::ZERO, Millis::hours(1)).unwrap();
    w.reserve("bob", "second", 4, Millis::minutes(30), Millis::hours(2)).unwrap();
    let begun = w.fsm.now();
    let first = w.fsm.reservation(&res("first")).unwrap().clone();
    let mut second = w.fsm.reservation(&res("second")).unwrap().clone();
    (second.node, second.gpus) = (first.node, first.gpus);
    w.fsm.reservations.remove(&second.id);
    w.fsm.reservations.insert(second);
    w.fsm.now = begun + Millis::minutes(45);
    assert!(w.fsm.check_invariants().unwrap_err().to_string().contains("at once"));
    w.fsm.now = begun + Millis::minutes(75);
    w.fsm.check_invariants().unwrap();
}

#[test]
fn with_nothing_else_free_the_promise_is_kept_as_it_is() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(1)).unwrap();
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    w.pass(Millis::hours(1));
    assert_eq!(state(&w, "r"), ReservationState::Active);
}

#[test]
fn a_job_without_a_limit_of_its_own_runs_in_its_owners_reservation() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(8)).unwrap();
    let reserved = w.fsm.reservation(&res("r")).unwrap().gpus.clone();
    let day = JobSpec { time_limit: Millis::hours(24), time_limit_given: false, ..plain(1) };
    w.submit("ada", "a", day).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    assert_eq!(w.fsm.allocation(&a).unwrap().gpus, reserved);
    w.start(&a);
    w.pass(Millis::hours(8));
    assert_eq!(w.state_of("a"), "stopping", "with the reservation");
}

#[test]
fn a_reservation_is_shared_with_people_who_are_known_while_their_accounts_are_open() {
    let mut w = World::with(&["titan01"]);
    let start = w.now;
    let wish = |name: &str, with: &[&str]| CreateReservation {
        with: with.iter().map(|name| user(name)).collect(),
        ..CreateReservation::plain(
            res(name),
            user("ada"),
            GpuRequest { count: 1, ..GpuRequest::default() },
            Window { starts_at: start, ends_at: start + Millis::hours(1) },
        )
    };
    let shared = |name: &str, with: &[&str]| {
        Command::Reservation(ReservationCommand::Create(wish(name, with)))
    };
    for with in [&["bob"][..], &["ada"]] {
        match w.give(person("ada"), shared("r", with)) {
            Err(Rejection::InvalidField { field, .. }) => assert_eq!(field, "with"),
            other => panic!("{with:?}: {other:?}"),
        }
    }
    let many: Vec<String> = (0..=SHARED_WITH_MAX).map(|n| format!("user{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(w.give(person("root"), shared("r", &many)).is_err());
    w.give(person("root"), shared("r", &["bob", "eve"])).unwrap();
    assert!(
        w.said().iter().any(|said| said.contains("ada, shared with bob, eve")),
        "{:?}",
        w.said()
    );
    let told = |w: &World| {
        let desired = w.fsm.desired(&node("titan01"), &[]);
        let lease = desired.leases[0].users().map(ToString::to_string).collect::<Vec<_>>();
        (desired.windows[0].with.clone(), lease, desired.windows[0].revision)
    };
    let (with, lease, revision) = told(&w);
    assert_eq!(with, [user("bob"), user("eve")].into());
    assert_eq!(lease, ["ada", "bob", "eve"]);
    let close = AccessCommand::DisableUser {
        user: user("eve"),
        reason: "left".to_owned(),
        transfer_to: None,
    };
    w.give(person("root"), Command::Access(close)).unwrap();
    let (with, lease, later) = told(&w);
    assert_eq!((with, lease), ([user("bob")].into(), vec!["ada".to_owned(), "bob".to_owned()]));
    assert!(later > revision, "the node hears of it");
    let refused = w.give(person("root"), shared("r2", &["eve"]));
    assert!(matches!(refused, Err(Rejection::Denied { .. })), "{refused:?}");
}

#[test]
fn work_that_runs_without_a_lease_is_taken_over_on_named_gpus_and_from_now_on() {
    let mut w = World::with(&["titan01"]);
    let (start, hour) = (w.now, Millis::hours(1));
    let in_use = gpu("titan01", 2);
    let mut facts = facts("titan01", 4, "boot-1");
    facts.gpus[2].dirty = Some("python3 of ada".to_owned());
    w.report("titan01", Report::Facts { facts }).unwrap();
    let wish = |name: &str, uuids: &[GpuUuid], starts_at, adopts| CreateReservation {
        adopts,
        ..CreateReservation::plain(
            res(name),
            user("ada"),
            GpuRequest { count: 1, uuids: uuids.to_vec(), ..GpuRequest::default() },
            Window { starts_at, ends_at: starts_at + hour },
        )
    };
    let named = std::slice::from_ref(&in_use);
    let adopting = Command::Reservation(ReservationCommand::Create(wish("r", named, start, true)));
    let plain = Command::Reservation(ReservationCommand::Create(wish("r", named, start, false)));
    match w.give(person("ada"), plain) {
        Err(Rejection::GpusHeld { wanted, .. }) => {
            assert!(wanted.contains("titan01:2 is in use without a lease"), "{wanted}");
        }
        other => panic!("{other:?}"),
    }
    for (uuids, starts_at) in [(&[][..], start), (named, start + hour)] {
        let later =
            Command::Reservation(ReservationCommand::Create(wish("r", uuids, starts_at, true)));
        match w.give(person("ada"), later) {
            Err(Rejection::InvalidField { field, .. }) => assert_eq!(field, "adopts"),
            other => panic!("{other:?}"),
        }
    }
    w.give(person("ada"), adopting).unwrap();
    assert!(w.said().iter().any(|said| said.contains("with what runs there already")));
    let made = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!((&made.state, &made.gpus[..]), (&ReservationState::Active, named));
    // What somebody has is nobody's to take over.
    let again = Command::Reservation(ReservationCommand::Create(wish("r2", named, start, true)));
    assert!(matches!(w.give(person("ada"), again), Err(Rejection::GpusHeld { .. })));
}
