//! What a program for calendars reads, by another reader than the one that wrote it: line by line, and by a parser.
#![allow(clippy::unwrap_used, reason = "tests")]

use fleet_core::feed::Feed;
use fleet_core::id::ReservationId;
use fleet_core::name::{NodeName, ProjectName, UserName};
use fleet_proto::v1;
use icalendar::CalendarComponent;

use super::*;

const PAGE: &str = "https://ctl1.lab:8443";
/// 2026-12-01 09:00 UTC.
const START: u64 = 1_796_115_600_000;
const HOUR: u64 = 3_600_000;

fn gpus(count: u32) -> Vec<v1::GpuRef> {
    let gpu = |index| v1::GpuRef {
        uuid: format!("GPU-{index}"),
        node: "titan01".to_owned(),
        index,
        model: "v100".to_owned(),
    };
    (0..count).map(gpu).collect()
}

fn reservation(id: &str, note: &str) -> FeedReservation {
    let shown = v1::Reservation {
        id: id.to_owned(),
        owner: "ada".to_owned(),
        project: "vision".to_owned(),
        node: "titan01".to_owned(),
        gpus: gpus(2),
        state: "scheduled".to_owned(),
        note: note.to_owned(),
        revision: 3,
        ..v1::Reservation::default()
    };
    FeedReservation {
        id: ReservationId::parse(id).unwrap(),
        shown: shown.into(),
        is_own: true,
        is_cancelled: false,
        created_at: Timestamp(START - 48 * HOUR),
        changed_at: Some(Timestamp(START - HOUR)),
        starts_at: Timestamp(START),
        ends_at: Timestamp(START + 8 * HOUR),
    }
}

fn feed(scope: FeedScope, reservations: Vec<FeedReservation>) -> FeedNow {
    let feed = Feed {
        sha256: String::new(),
        user: UserName::parse("ada").unwrap(),
        scope,
        created_at: Timestamp(START),
        via: None,
    };
    FeedNow { feed, cluster: "fleet-lab".to_owned(), reservations }
}

fn mine(reservations: Vec<FeedReservation>) -> String {
    text(&feed(FeedScope::Mine, reservations), PAGE)
}

/// The lines as they are meant: a line that begins with a blank continues the one before.
fn lines(text: &str) -> Vec<String> {
    assert!(text.ends_with("\r\n") && !text.replace("\r\n", "").contains(['\r', '\n']), "{text:?}");
    let whole = text.replace("\r\n ", "");
    whole.split_terminator("\r\n").map(str::to_owned).collect()
}

fn events(text: &str) -> Vec<Event> {
    let calendar: Calendar = text.parse().unwrap();
    let event = |part: CalendarComponent| match part {
        CalendarComponent::Event(event) => event,
        other => panic!("{other:?}"),
    };
    calendar.components.into_iter().map(event).collect()
}

#[test]
fn a_reservation_is_an_event_with_what_programs_want() {
    let text = mine(vec![reservation("res-9d2fwm", "warm up")]);
    let lines = lines(&text);
    for wanted in [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//fleet//calendar feed//EN",
        "NAME:GPUs of ada",
        "X-WR-CALNAME:GPUs of ada",
        "REFRESH-INTERVAL;VALUE=DURATION:PT15M",
        "X-PUBLISHED-TTL:PT15M",
        "UID:res-9d2fwm@fleet-lab",
        "UID:res-9d2fwm-alarm@fleet-lab",
        "LAST-MODIFIED:20261201T080000Z",
        "CREATED:20261129T090000Z",
        "DTSTART:20261201T090000Z",
        "DTEND:20261201T170000Z",
        "SEQUENCE:3",
        "STATUS:CONFIRMED",
        "SUMMARY:2 GPUs on titan01 (ada)",
        "URL:https://ctl1.lab:8443/reservation/res-9d2fwm",
        "TRANSP:TRANSPARENT",
        "BEGIN:VALARM",
        "TRIGGER:-PT15M",
        "ACTION:DISPLAY",
    ] {
        assert_eq!(lines.iter().filter(|line| *line == wanted).count(), 1, "{wanted}\n{text}");
    }
    let event = &events(&text)[0];
    assert_eq!(
        event.get_description().unwrap(),
        "Reservation: res-9d2fwm\nGPUs: titan01:0,1 (v100)\nUser: ada\nProject: vision\nNote: warm up\n\
         State: scheduled\nhttps://ctl1.lab:8443/reservation/res-9d2fwm"
    );
}

#[test]
fn one_that_is_cancelled_says_so_and_rings_no_bell() {
    let mut cancelled = reservation("res-a", "");
    cancelled.is_cancelled = true;
    let lines = lines(&mine(vec![cancelled]));
    assert!(lines.contains(&"STATUS:CANCELLED".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("VALARM")), "{lines:?}");
}

#[test]
fn the_feed_of_a_node_or_project_has_its_name_and_no_bells_for_others() {
    let mut others = reservation("res-a", "");
    others.is_own = false;
    let node = FeedScope::Node { name: NodeName::parse("titan01").unwrap() };
    let lines = lines(&text(&feed(node, vec![others]), PAGE));
    assert!(lines.contains(&"NAME:GPUs of titan01".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("VALARM")), "{lines:?}");
    let project = FeedScope::Project { name: ProjectName::parse("vision").unwrap() };
    let empty = text(&feed(project, Vec::new()), PAGE);
    assert!(empty.contains("NAME:GPUs of project vision\r\n"), "{empty}");
    assert!(events(&empty).is_empty());
}

#[test]
fn the_place_that_a_reservation_waits_for_is_named() {
    let mut moves = reservation("res-a", "");
    let next = v1::ReservationPlace {
        node: "titan02".to_owned(),
        gpus: gpus(1),
        starts_at_unix_ms: START,
        ends_at_unix_ms: START + HOUR,
    };
    moves.shown.next = Some(next.into());
    moves.shown.unconfirmed = Some("titan01 has it still".to_owned());
    let text = mine(vec![moves]);
    let shown = events(&text)[0].get_description().unwrap().to_owned();
    assert!(shown.contains("Unconfirmed: titan01 has it still\n"), "{shown}");
    assert!(
        shown
            .contains("Moves to: titan01:0 (v100), 2026-12-01 09:00 UTC to 2026-12-01 10:00 UTC\n"),
        "{shown}"
    );
}

#[test]
fn whatever_a_note_holds_is_text_and_no_line_is_too_long() {
    let long = "a note; with, all \\of it: ".repeat(40);
    let wide = "größe 訓練 👩\u{200d}🔬 ".repeat(60);
    for note in [
        "a; b, c\\ d",
        "two\nlines",
        "two\r\nlines",
        "END:VEVENT\r\nBEGIN:VEVENT\r\nSUMMARY:evil",
        "<script>alert(1)</script>",
        "trailing backslash\\",
        "a\tb\u{7}c\rd",
        &long,
        &wide,
        &"x".repeat(1_000),
        &" ".repeat(400),
        "日".repeat(300).as_str(),
    ] {
        let text = mine(vec![reservation("res-a", note), reservation("res-b", "after it")]);
        for line in text.split("\r\n") {
            assert!(line.len() <= 75, "{} octets: {line:?}", line.len());
        }
        let events = events(&text);
        assert_eq!(events.len(), 2, "{note:?}: {text}");
        let shown = events[0].get_description().unwrap();
        let wanted: String =
            note.replace("\r\n", "\n").chars().filter(|c| *c == '\n' || !c.is_control()).collect();
        assert!(shown.contains(&format!("Note: {wanted}\nState")), "{note:?}: {shown:?}");
        let begins = lines(&text).iter().filter(|line| *line == "BEGIN:VEVENT").count();
        assert_eq!(begins, 2, "{text}");
    }
}

#[test]
fn long_names_fit_too() {
    let mut named = reservation("res-a", "");
    named.shown.owner = "u".repeat(200);
    named.shown.node = Some("n".repeat(200));
    named.shown.with = (0..32).map(|number| format!("user-{number}")).collect();
    let text = mine(vec![named]);
    assert!(text.split("\r\n").all(|line| line.len() <= 75), "{text}");
    let events = events(&text);
    assert!(events[0].get_summary().unwrap().ends_with(&format!("({})", "u".repeat(200))));
    assert!(events[0].get_description().unwrap().contains("user-30, user-31\n"));
}

#[test]
fn the_same_reservations_give_the_same_bytes() {
    let made = || mine(vec![reservation("res-a", "x"), reservation("res-b", "")]);
    assert_eq!(made(), made());
}
