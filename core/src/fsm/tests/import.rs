//! Imports: whole or not at all, and again without doubling.

use super::world::{World, gpu, node, person, res, user};
use crate::calendar::tests::places;
use crate::command::{Command, CreateReservation, ReservationCommand};
use crate::fsm::IMPORT_LINES_MAX;
use crate::id::{ImportId, ReservationId};
use crate::rejection::{LineProblem, Rejection};
use crate::reply::{ImportedLine, Reply};
use crate::reservation::{GpuRequest, ReservationState};
use crate::time::{Millis, Timestamp, Window};

/// A line for `count` GPUs, from and until these hours after the world's time; a past one is negative.
fn line(
    w: &World,
    name: &str,
    owner: &str,
    count: u32,
    from: i64,
    until: i64,
) -> CreateReservation {
    let at = |hours: i64| Timestamp(w.now.0.saturating_add_signed(hours * 3_600_000));
    CreateReservation::plain(
        res(name),
        user(owner),
        GpuRequest { count, ..GpuRequest::default() },
        Window { starts_at: at(from), ends_at: at(until) },
    )
}

fn import(
    w: &mut World,
    who: &str,
    lines: Vec<CreateReservation>,
) -> Result<Vec<ImportedLine>, Rejection> {
    let command =
        Command::Reservation(ReservationCommand::Import { reservations: lines, import: None });
    match w.give(person(who), command)? {
        Reply::ReservationsImported { lines, .. } => Ok(lines),
        other => panic!("{other:?}"),
    }
}

fn problems(refused: Result<Vec<ImportedLine>, Rejection>) -> Vec<(u32, &'static str)> {
    match refused {
        Err(Rejection::LinesRefused { problems, .. }) => {
            problems.iter().map(|problem| (problem.line, problem.why.code())).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_lines_become_reservations_and_those_under_way_start() {
    let mut w = World::with(&["titan01"]);
    let lines = vec![
        line(&w, "a", "ada", 2, -48, 3),
        line(&w, "b", "bob", 2, 1, 5),
        line(&w, "old", "ada", 4, -48, -24),
    ];
    let said = import(&mut w, "root", lines).unwrap();
    let created = |name| ImportedLine::Created(res(name));
    assert_eq!(said, [created("a"), created("b"), ImportedLine::Over]);
    let a = w.fsm.reservation(&res("a")).unwrap();
    assert_eq!((&a.state, a.window.starts_at), (&ReservationState::Active, w.now));
    assert_eq!(w.fsm.reservation(&res("b")).unwrap().state, ReservationState::Scheduled);
    assert!(w.fsm.reservation(&res("old")).is_none());
}

#[test]
fn one_bad_line_leaves_everything_as_it_was_and_all_bad_ones_are_told() {
    let mut w = World::with(&["titan01"]);
    let before = w.fsm.clone();
    let lines = vec![
        line(&w, "a", "ada", 3, 1, 5),
        line(&w, "b", "bob", 2, 2, 3),
        line(&w, "c", "bob", 1, 2, 3),
        line(&w, "d", "bob", 1, 5, 4),
        line(&w, "e", "eve", 5, 1, 2),
    ];
    let refused = import(&mut w, "root", lines);
    let Err(Rejection::LinesRefused { problems: told, .. }) = &refused else {
        panic!("{refused:?}")
    };
    let taken_by: Vec<_> = told.iter().map(|LineProblem { taken_by, .. }| *taken_by).collect();
    assert_eq!(taken_by, [Some(0), None, None]);
    let refused = problems(refused);
    assert_eq!(refused, [(1, "gpus_held"), (3, "invalid_field"), (4, "never_fits")]);
    assert!(w.fsm.reservations().eq(before.reservations()));
    assert!(w.said().is_empty());
}

#[test]
fn again_it_finds_what_is_there_and_two_equal_lines_are_two() {
    let mut w = World::with(&["titan01"]);
    let sheet = |w: &World, tag: &str| {
        let name = |n: u32| format!("{tag}{n}");
        vec![
            line(w, &name(1), "ada", 1, -1, 9),
            line(w, &name(2), "bob", 1, 20, 30),
            line(w, &name(3), "bob", 1, 20, 30),
        ]
    };
    let first = sheet(&w, "x");
    import(&mut w, "root", first).unwrap();
    let mut again = sheet(&w, "y");
    again.push(line(&w, "y4", "bob", 1, 20, 30));
    let said = import(&mut w, "root", again).unwrap();
    let there = |name: &str| ImportedLine::There(res(name));
    let wanted = [there("x1"), there("x2"), there("x3"), ImportedLine::Created(res("y4"))];
    assert_eq!(said, wanted);
    assert_eq!(w.fsm.reservations().count(), 4);
}

#[test]
fn lines_are_for_oneself_unless_an_admin_brings_them() {
    let mut w = World::with(&["titan01"]);
    let lines = vec![line(&w, "a", "ada", 1, 1, 2), line(&w, "b", "bob", 1, 1, 2)];
    assert_eq!(problems(import(&mut w, "ada", lines.clone())), [(1, "denied")]);
    assert_eq!(import(&mut w, "ada", lines[..1].to_vec()).unwrap().len(), 1);
}

#[test]
fn a_trial_says_what_would_come_and_changes_nothing() {
    let mut w = World::with(&["titan01", "titan02"]);
    let lines = vec![line(&w, "a", "ada", 3, 0, 2), line(&w, "b", "bob", 3, 0, 2)];
    let (said, trial) = w.fsm.try_import(&person("root"), &lines, w.now).unwrap();
    assert!(w.fsm.reservations().next().is_none());
    assert_eq!(import(&mut w, "root", lines).unwrap(), said);
    for name in ["a", "b"] {
        let (tried, done) =
            (trial.reservation(&res(name)).unwrap(), w.fsm.reservation(&res(name)).unwrap());
        assert_eq!((&tried.node, &tried.gpus), (&done.node, &done.gpus));
    }
}

/// Extends, releases and cancels what an import made, then imports it again with a line more.
fn corrected() -> (World, Result<Vec<ImportedLine>, Rejection>) {
    let mut w = World::with(&["titan01", "titan02"]);
    let start = w.now;
    let sheet = |w: &World, tag: &str| {
        let at = |name: &str, owner, count, from: i64, until: i64| {
            let mut line = line(w, &format!("{tag}{name}"), owner, count, 0, 0);
            let time = |hours: i64| Timestamp(start.0.saturating_add_signed(hours * 3_600_000));
            line.window = Window { starts_at: time(from), ends_at: time(until) };
            line
        };
        vec![
            at("extended", "ada", 4, -1, 9),
            at("released", "bob", 1, -1, 9),
            at("cancelled", "bob", 1, 20, 30),
            at("shortened", "eve", 1, 20, 30),
        ]
    };
    let first = sheet(&w, "x");
    import(&mut w, "root", first).unwrap();
    let extend = |name: &str, hours: u64| {
        Command::Reservation(ReservationCommand::Extend {
            id: res(name),
            ends_at: start + Millis::hours(hours),
        })
    };
    w.give(person("ada"), extend("xextended", 12)).unwrap();
    w.give(person("eve"), extend("xshortened", 25)).unwrap();
    for name in ["xreleased", "xcancelled"] {
        w.give(person("bob"), Command::Reservation(ReservationCommand::Release { id: res(name) }))
            .unwrap();
    }
    w.pass(Millis::hours(1));
    let mut again = sheet(&w, "y");
    again.push(line(&w, "ynew", "ada", 1, 40, 50));
    let said = import(&mut w, "root", again);
    (w, said)
}

#[test]
fn again_it_finds_what_was_extended_shortened_and_given_back() {
    let (w, said) = corrected();
    let there = |name: &str| ImportedLine::There(res(name));
    let wanted = [
        there("xextended"),
        there("xreleased"),
        there("xcancelled"),
        there("xshortened"),
        ImportedLine::Created(res("ynew")),
    ];
    assert_eq!(said.unwrap(), wanted);
    assert_eq!(w.fsm.reservations().count(), 5, "nobody gets back what they gave back");
}

#[test]
fn of_reservations_that_serve_a_line_each_line_gets_one() {
    let mut w = World::with(&["titan01"]);
    // By hand, before the spreadsheet comes: one begun, two to come, of which one was released.
    for wish in [
        line(&w, "now", "ada", 1, 0, 9),
        line(&w, "later", "bob", 1, 20, 40),
        line(&w, "sooner", "bob", 1, 20, 35),
        line(&w, "over", "eve", 1, 0, 9),
    ] {
        w.give(person("root"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    }
    w.give(person("eve"), Command::Reservation(ReservationCommand::Release { id: res("over") }))
        .unwrap();
    let lines = vec![
        line(&w, "a", "ada", 1, -1, 8),
        line(&w, "b", "bob", 1, 20, 30),
        line(&w, "c", "bob", 1, 20, 38),
        line(&w, "d", "eve", 1, -1, 8),
        line(&w, "e", "ada", 1, 60, 50),
    ];
    let refused = problems(import(&mut w, "root", lines.clone()));
    assert_eq!(refused, [(4, "invalid_field")]);
    let said = import(&mut w, "root", lines[..4].to_vec()).unwrap();
    let there = |name: &str| ImportedLine::There(res(name));
    // That eve gave back something else of this day says nothing of her line.
    let wanted = [there("now"), there("sooner"), there("later"), ImportedLine::Created(res("d"))];
    assert_eq!(said, wanted);
}

/// The page's way to correct a line: the user releases what it made before, and the line is a new one.
#[test]
fn a_line_that_ends_earlier_now_gets_its_reservation() {
    for given_back in [true, false] {
        let mut w = World::with(&["titan01"]);
        let first = vec![line(&w, "long", "bob", 1, 20, 40)];
        import(&mut w, "root", first).unwrap();
        if given_back {
            w.give(
                person("bob"),
                Command::Reservation(ReservationCommand::Release { id: res("long") }),
            )
            .unwrap();
        }
        let corrected = vec![line(&w, "short", "bob", 1, 20, 30)];
        let said = import(&mut w, "root", corrected).unwrap();
        assert_eq!(said, [ImportedLine::Created(res("short"))], "released: {given_back}");
    }
}

#[test]
fn what_was_made_by_hand_and_given_back_serves_no_line() {
    for until in [30, 40] {
        let mut w = World::with(&["titan01"]);
        let by_hand = line(&w, "hand", "bob", 1, 20, 40);
        w.give(person("bob"), Command::Reservation(ReservationCommand::Create(by_hand))).unwrap();
        w.give(
            person("bob"),
            Command::Reservation(ReservationCommand::Release { id: res("hand") }),
        )
        .unwrap();
        let sheet = vec![line(&w, "sheet", "bob", 1, 20, until)];
        assert_eq!(import(&mut w, "root", sheet).unwrap(), [ImportedLine::Created(res("sheet"))]);
    }
}

#[test]
fn no_line_takes_what_another_one_made_and_somebody_shortened() {
    for cancelled in [true, false] {
        let mut w = World::with(&["titan01"]);
        let sheet = |w: &World, tag: &str| {
            vec![
                line(w, &format!("{tag}short"), "eve", 1, 20, 30),
                line(w, &format!("{tag}long"), "eve", 1, 20, 40),
            ]
        };
        let first = sheet(&w, "x");
        let ends_at = first[0].window.ends_at;
        import(&mut w, "root", first).unwrap();
        let shorten =
            Command::Reservation(ReservationCommand::Extend { id: res("xlong"), ends_at });
        w.give(person("eve"), shorten).unwrap();
        if cancelled {
            w.give(
                person("eve"),
                Command::Reservation(ReservationCommand::Release { id: res("xshort") }),
            )
            .unwrap();
        }
        let again = sheet(&w, "y");
        let said = import(&mut w, "root", again).unwrap();
        let there = |name: &str| ImportedLine::There(res(name));
        assert_eq!(said, [there("xshort"), there("xlong")], "cancelled: {cancelled}");
    }
}

/// `now` is another moment in each import.
#[test]
fn a_line_from_now_on_finds_what_it_made_also_when_that_was_shortened() {
    let mut w = World::with(&["titan01"]);
    let first = vec![line(&w, "x", "ada", 1, 0, 9)];
    let ends_at = first[0].window.ends_at;
    import(&mut w, "root", first).unwrap();
    let sooner = Timestamp(ends_at.0 - Millis::hours(4).0);
    w.give(
        person("ada"),
        Command::Reservation(ReservationCommand::Extend { id: res("x"), ends_at: sooner }),
    )
    .unwrap();
    w.pass(Millis::hours(1));
    let mut again = line(&w, "y", "ada", 1, 0, 0);
    again.window.ends_at = ends_at;
    assert_eq!(import(&mut w, "root", vec![again]).unwrap(), [ImportedLine::There(res("x"))]);
}

/// A start may look for other GPUs in place of broken ones: not for those of a later line.
#[test]
fn a_line_that_starts_at_once_takes_nothing_of_a_later_one() {
    let mut w = World::with(&["titan01"]);
    let these = |name: &str, owner: &str, index: u32| {
        let mut wish = line(&w, name, owner, 1, 0, 2);
        wish.gpus.uuids = vec![gpu("titan01", index)];
        wish.gpus.node = Some(node("titan01"));
        wish
    };
    let lines = vec![
        line(&w, "a", "ada", 1, 0, 2),
        these("b", "bob", 1),
        these("c", "bob", 2),
        these("d", "bob", 3),
    ];
    import(&mut w, "root", lines).unwrap();
    let held: std::collections::BTreeSet<_> =
        w.fsm.reservations().flat_map(|r| r.gpus.clone()).collect();
    assert_eq!(held.len(), 4);
}

/// What is booked line by line in the trial is what looking at the whole node says.
#[test]
fn a_long_import_books_each_line_beside_those_before() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let gpus = w.fsm.gpus().len();
    let hour = |at: usize| i64::try_from(at / gpus).unwrap() + 1;
    let lines =
        (0..300).map(|at| line(&w, &at.to_string(), "ada", 1, hour(at), hour(at) + 1)).collect();
    let lines = import(&mut w, "root", lines).unwrap();
    assert!(lines.iter().all(|line| matches!(line, ImportedLine::Created(_))));
    w.fsm.check_invariants().unwrap();
    places::assert_claims_say_it_all(&w.fsm);
    let one_more = line(&w, "more", "bob", 1, 1, 2);
    let refused = import(&mut w, "root", vec![one_more]);
    assert!(matches!(refused, Err(Rejection::LinesRefused { .. })), "{refused:?}");
}

#[test]
fn too_many_lines_are_refused_at_once() {
    let mut w = World::with(&["titan01"]);
    let one = line(&w, "a", "ada", 1, 1, 2);
    let refused = import(&mut w, "root", vec![one; IMPORT_LINES_MAX + 1]);
    assert!(matches!(refused, Err(Rejection::LimitReached { .. })), "{refused:?}");
}

fn import_as(
    w: &mut World,
    who: &str,
    name: &str,
    lines: Vec<CreateReservation>,
) -> Option<String> {
    let import = ImportId::parse(&format!("imp-{name}")).unwrap();
    let command = Command::Reservation(ReservationCommand::Import {
        reservations: lines,
        import: Some(import),
    });
    match w.give(person(who), command).unwrap() {
        Reply::ReservationsImported { import, .. } => import.map(|id| id.to_string()),
        other => panic!("{other:?}"),
    }
}

fn undo(w: &mut World, who: &str, name: &str) -> Result<Vec<ReservationId>, Rejection> {
    let id = ImportId::parse(&format!("imp-{name}")).unwrap();
    match w.give(person(who), Command::Reservation(ReservationCommand::UndoImport { id }))? {
        Reply::ImportUndone { reservations } => Ok(reservations),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_undone_import_is_released_and_the_corrected_sheet_is_new() {
    for in_hands in [false, true] {
        let mut w = World::with(&["titan01", "titan02"]);
        let by_hand = line(&w, "hand", "ada", 1, 20, 30);
        w.give(person("ada"), Command::Reservation(ReservationCommand::Create(by_hand))).unwrap();
        let sheet = |w: &World, tag: &str| {
            vec![
                line(w, &format!("{tag}now"), "ada", 1, 0, 9),
                line(
                    w,
                    &format!("{tag}later"),
                    "bob",
                    4,
                    if in_hands { 20 } else { 24 * 20 },
                    24 * 20 + 5,
                ),
            ]
        };
        let first = sheet(&w, "x");
        assert_eq!(import_as(&mut w, "root", "one", first).as_deref(), Some("imp-one"));
        // The node has not heard of it: what is in its hands counts until it answers.
        w.agents_answer = false;
        assert_eq!(undo(&mut w, "root", "one").unwrap(), [res("xlater"), res("xnow")]);
        w.agents_answer = true;
        let again = sheet(&w, "y");
        w.pass(Millis::secs(1));
        assert!(w.fsm.reservation(&res("hand")).unwrap().is_open(), "made by hand");
        let (said, _) = w.fsm.try_import(&person("root"), &again, w.now).unwrap();
        let created = |name: &str| ImportedLine::Created(res(name));
        assert_eq!(said, [created("ynow"), created("ylater")], "in hands: {in_hands}");
    }
}

#[test]
fn an_import_is_undone_by_its_owner_or_an_admin_and_only_once() {
    let mut w = World::with(&["titan01"]);
    let lines = vec![line(&w, "a", "ada", 1, 1, 2), line(&w, "b", "bob", 1, 1, 2)];
    import_as(&mut w, "root", "one", lines);
    assert_eq!(undo(&mut w, "ada", "one").unwrap_err().code(), "denied");
    assert_eq!(undo(&mut w, "root", "other").unwrap_err().code(), "not_found");
    assert_eq!(undo(&mut w, "root", "one").unwrap().len(), 2);
    assert_eq!(undo(&mut w, "root", "one").unwrap_err().code(), "already_ended");
    let own = vec![line(&w, "c", "ada", 1, 3, 4)];
    import_as(&mut w, "ada", "two", own);
    assert_eq!(undo(&mut w, "ada", "two").unwrap(), [res("c")]);
    let nothing = vec![line(&w, "d", "ada", 1, -9, -8)];
    assert_eq!(import_as(&mut w, "ada", "three", nothing), None);
}

#[test]
fn a_line_that_names_the_gpus_of_a_reservation_finds_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    let by_count = line(&w, "hand", "ada", 2, 20, 30);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(by_count))).unwrap();
    let mut exported = line(&w, "x", "ada", 2, 20, 30);
    exported.gpus.uuids = w.fsm.reservation(&res("hand")).unwrap().gpus.clone();
    assert_eq!(
        import(&mut w, "root", vec![exported.clone()]).unwrap(),
        [ImportedLine::There(res("hand"))]
    );
    exported.note = "another".to_owned();
    assert_eq!(problems(import(&mut w, "root", vec![exported])), [(0, "gpus_held")]);
}

#[test]
fn a_note_may_hold_what_joins_letters() {
    let mut w = World::with(&["titan01"]);
    let mut wish = line(&w, "a", "ada", 1, 1, 2);
    wish.note = "👩\u{200d}🔬".to_owned();
    w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    let mut w = World::with(&["titan01"]);
    let mut wish = line(&w, "a", "ada", 1, 1, 2);
    wish.note = "a\u{200d}b".to_owned();
    let refused =
        w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap_err();
    assert_eq!(refused.code(), "invalid_field");
}
