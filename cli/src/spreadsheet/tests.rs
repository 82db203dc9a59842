#![allow(clippy::unwrap_used, clippy::expect_used)]

mod files;
mod hostile;
mod inputs;
mod plain;
mod timetable;

use super::*;

pub(super) fn clock() -> Clock {
    Clock::standing("2026-11-21T09:00:00Z", "Europe/Berlin")
}

pub(super) fn with(text: &[u8], options: &Options) -> Sheet {
    read(text, options, &clock()).unwrap()
}

pub(super) fn sheet(text: &str) -> Sheet {
    with(text.as_bytes(), &Options::default())
}

/// The lines of a sheet with which nothing is wrong.
pub(super) fn well(sheet: Sheet) -> Vec<SheetLine> {
    assert_eq!(sheet.problems, [], "{:?}", sheet.notes);
    sheet.lines
}

pub(super) fn wrong(sheet: &Sheet) -> Vec<String> {
    let told = sheet.problems.iter();
    told.map(|problem| format!("{}: {}", problem.line, problem.what)).collect()
}

/// Start and end as they are in Berlin.
pub(super) fn window(line: &SheetLine) -> String {
    let shown = |when: When| match when {
        When::Now => "now".to_owned(),
        When::At(at) => {
            at.to_zoned_datetime(clock().zone().clone()).strftime("%Y-%m-%d %H:%M").to_string()
        }
    };
    format!("{} - {}", shown(line.start), shown(line.end))
}

pub(super) fn these(names: &[&str]) -> Which {
    Which::These(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn a_sheet_is_read_whatever_its_separators_order_and_case() {
    let comma = "user,gpus,start,end,note\nada,v100:2,2026-11-23 09:00,2026-11-24 18:00,\"paper, figures\"\n";
    let semicolon = "\u{feff}END;Start;GPUs;Owner;comment\r\n2026-11-24 18:00;2026-11-23 09:00;V100:2;ada;paper, figures\r\n";
    let tab = "note\tuser\tgpus\tstart\tend\npaper, figures\tada\tv100:2\t2026-11-23 09:00\t2026-11-24 18:00\n";
    for text in [comma, semicolon, tab] {
        let lines = well(sheet(text));
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((line.number, line.user.as_str()), (2, "ada"));
        assert_eq!(line.gpus, Which::Some("v100:2".parse().unwrap()));
        assert_eq!(window(line), "2026-11-23 09:00 - 2026-11-24 18:00");
        assert_eq!(line.note, "paper, figures", "{text}");
    }
}

#[test]
fn gpus_may_be_named_by_node_and_number() {
    let text = "gpu,node,start,end\n0 1,titan01,now,+2h\ntitan02:3;titan02:1,,now,+2h\n\n,,,\n2,titan01,now,+1h\n";
    let lines = well(sheet(text));
    let gpus: Vec<_> = lines.iter().map(|line| line.gpus.clone()).collect();
    let wanted = [
        these(&["titan01:0", "titan01:1"]),
        these(&["titan02:3", "titan02:1"]),
        these(&["titan01:2"]),
    ];
    assert_eq!(gpus, wanted);
    let numbers: Vec<_> = lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers, [2, 3, 6], "blank lines count as lines");
    assert_eq!(lines[0].user, "");
}

#[test]
fn all_that_is_wrong_is_told_by_line() {
    let text = "user,gpus,gpu,start,end\n\
        ada,0,,2026-11-23,2026-11-24 10:00\n\
        ,1,,soon,2026-11-24\n\
        bob,1,titan01:1,now,+2h\n\
        bob,,3,now,+2h\n\
        bob,,a:1 a:1,now,\n\
        bob,1,,now,+1h,more\n\
        bob,1,,now,Now\n\
        bob,1,,2026-11-24 10:00,2026-11-23 10:00\n\
        \"bob,1,,now,+1h\n\
        bob,x y,,now,+1h\n";
    let wanted = [
        "2: gpus: 0 GPUs; leave -G out for work without a GPU",
        "3: start: \"soon\" is not a time; write one like now, +2h, tomorrow 09:00 or 2026-11-22 09:00",
        "3: user: empty",
        "4: gpus: give how many GPUs, or which, not both",
        "5: gpu: 3 of which node? write titan01:3, or fill the column node",
        "6: end: empty",
        "6: gpu: a:1 is named twice",
        "7: 6 cells, and the header (line 1) has 5; put text that holds a separator in quotes",
        "8: end: that is now: no time at all",
        "9: end: \"2026-11-23 10:00\" is not after start \"2026-11-24 10:00\"",
        "10: a quote (\") is never closed",
        "11: gpus: \"x y\" is not a model; write N or MODEL:N, like 2 or v100:2",
    ];
    assert_eq!(wrong(&sheet(text)), wanted);
}

#[test]
fn a_sheet_without_a_header_is_refused_with_what_to_write() {
    let none = wrong(&sheet("ada,2,2026-11-23,2026-11-24\n"));
    assert!(
        none[0].starts_with("0: no line names the columns (the first is \"ada, 2,"),
        "{none:?}"
    );
    let two = wrong(&sheet("user,user,gpus,start,end\n"));
    assert_eq!(two, ["1: two columns are the user (\"user\" and \"user\"); rename one"]);
    assert_eq!(wrong(&sheet("gpus,start,end\n")), ["0: no line asks for GPUs"]);
    let missing = wrong(&sheet("Person,Wann,Bis,GPUs\nada,2026-11-23,2026-11-24,1\n"));
    let wanted =
        "1: there is no column start; if it is one of \"Wann\", say --columns HEADER=COLUMN";
    assert_eq!(missing, [wanted]);
    assert_eq!(read(b"  \n", &Options::default(), &clock()).unwrap_err(), "empty");
}

#[test]
fn columns_may_be_named_by_the_one_who_imports() {
    let columns = parse_named("Wer braucht es, und wofür?=note,Wann=from").unwrap();
    assert_eq!(columns[0], ("Wer braucht es, und wofür?".to_owned(), Column::Note));
    let text = "Wer braucht es, und wofür?;Wann;Bis;GPUs\nich;2026-11-23;2026-11-24;1\n";
    let options = Options { columns, ..Options::default() };
    let lines = well(with(text.as_bytes(), &options));
    assert_eq!(lines[0].note, "ich");
    let absent = with("a;Bis;GPUs\n".as_bytes(), &options);
    assert!(wrong(&absent).iter().any(|what| what.contains("no column is called \"Wann\"")));
    assert!(parse_named("Wann").unwrap_err().contains("write HEADER=COLUMN"));
    assert!(
        parse_named("Wann=when")
            .unwrap_err()
            .contains("there is no column \"when\"; there are user,")
    );
}

#[test]
fn only_the_lines_that_are_named_are_read() {
    let text = "gpus,start,end\n1,now,+1h\n2,now,+1h\n3,now,+1h\nbad,bad,bad\n";
    let options = Options { lines: Some(3..=4), ..Options::default() };
    let lines = well(with(text.as_bytes(), &options));
    assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn an_export_is_read_again() {
    use fleet_proto::json::reservation::Reservation;
    use fleet_proto::json::values::{GpuRef, Time};

    let gpu = |index| GpuRef {
        uuid: format!("GPU-0000{index}"),
        node: Some("titan01".to_owned()),
        index: Some(index),
        model: None,
    };
    let mut reservation = Reservation::from(fleet_proto::v1::Reservation::default());
    reservation.owner = "ada".to_owned();
    reservation.gpus = vec![gpu(0), gpu(3)];
    reservation.starts_at = Some(Time(1_795_000_000_123));
    reservation.ends_at = Some(Time(1_795_003_600_000));
    reservation.note = Some("=SUM(A1), \"quoted\"".to_owned());
    reservation.project = "default".to_owned();
    reservation.with = vec!["bob".to_owned(), "eve".to_owned()];
    let text = csv(&[reservation], &clock());
    assert!(text.contains("'=SUM"), "{text}");
    let lines = well(sheet(&text));
    let line = &lines[0];
    assert_eq!(line.gpus, these(&["titan01:0", "titan01:3"]));
    assert_eq!((line.start.unix_ms(), line.end.unix_ms()), (1_795_000_000_123, 1_795_003_600_000));
    assert_eq!((line.note.as_str(), line.project.as_str()), ("=SUM(A1), \"quoted\"", "default"));
    assert_eq!(line.with, ["bob", "eve"]);
}
