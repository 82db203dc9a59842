//! Timetables: GPUs as columns, times as rows, names in the cells.

use super::*;

fn grid(text: &str) -> Sheet {
    with(text.as_bytes(), &Options { grid: true, ..Options::default() })
}

fn seen(sheet: Sheet) -> Vec<(u64, String, Which, String)> {
    let lines = well(sheet).into_iter();
    lines.map(|line| (line.number, line.user.clone(), line.gpus.clone(), window(&line))).collect()
}

#[test]
fn a_timetable_by_days_is_one_reservation_for_names_that_follow_each_other() {
    let text = "Belegungsplan;;;;\n;titan01;;titan02;\nDatum;GPU 0;GPU 1;GPU 0;GPU 1\n\
        Mo 30.11.2026;ada;ada;;frei\n01.12.2026;ada ;ada;bob;-\n02.12.2026;;eve;bob;\n";
    assert_eq!(
        seen(grid(text)),
        [
            (
                4,
                "ada".to_owned(),
                these(&["titan01:0", "titan01:1"]),
                "2026-11-30 00:00 - 2026-12-02 00:00".to_owned()
            ),
            (
                5,
                "bob".to_owned(),
                these(&["titan02:0"]),
                "2026-12-01 00:00 - 2026-12-03 00:00".to_owned()
            ),
            (
                6,
                "eve".to_owned(),
                these(&["titan01:1"]),
                "2026-12-02 00:00 - 2026-12-03 00:00".to_owned()
            ),
        ]
    );
}

#[test]
fn a_timetable_by_hours_has_rows_that_last_until_the_next_or_say_their_end() {
    let text = "Tag,Zeit,titan01:0,titan02\n2026-11-30,09:00,ada,bob\n,13:00,ada,\n,17:00,eve,\n2026-12-01,09:00,,\n";
    assert_eq!(
        seen(grid(text)),
        [
            (
                2,
                "ada".to_owned(),
                these(&["titan01:0"]),
                "2026-11-30 09:00 - 2026-11-30 17:00".to_owned()
            ),
            (
                2,
                "bob".to_owned(),
                Which::All("titan02".to_owned()),
                "2026-11-30 09:00 - 2026-11-30 13:00".to_owned()
            ),
            (
                4,
                "eve".to_owned(),
                these(&["titan01:0"]),
                "2026-11-30 17:00 - 2026-12-01 09:00".to_owned()
            ),
        ]
    );
    let text = "Tag;Zeit;titan01 GPU 0\n30.11.2026;9-12 Uhr;ada\n30.11.2026;12:00 – 18:00;ada\n30.11.2026;22:00-06:00;bob\n";
    assert_eq!(
        seen(grid(text)),
        [
            (
                2,
                "ada".to_owned(),
                these(&["titan01:0"]),
                "2026-11-30 09:00 - 2026-11-30 18:00".to_owned()
            ),
            (
                4,
                "bob".to_owned(),
                these(&["titan01:0"]),
                "2026-11-30 22:00 - 2026-12-01 06:00".to_owned()
            ),
        ]
    );
}

#[test]
fn merged_names_and_dates_of_a_workbook_fill_their_cells() {
    let mut book = rust_xlsxwriter::Workbook::new();
    let (plain, day) = (
        rust_xlsxwriter::Format::new(),
        rust_xlsxwriter::Format::new().set_num_format("ddd dd.mm.yyyy"),
    );
    let sheet = book.add_worksheet();
    sheet.merge_range(0, 1, 0, 2, "titan01", &plain).unwrap();
    sheet.write(1, 1, 0).unwrap();
    sheet.write(1, 2, 1).unwrap();
    for (row, text) in (2..).zip(["2026-12-01", "2026-12-02", "2026-12-03"]) {
        let at = rust_xlsxwriter::ExcelDateTime::parse_from_str(text).unwrap();
        sheet.write_datetime_with_format(row, 0, at, &day).unwrap();
    }
    sheet.merge_range(2, 1, 3, 2, "ada", &plain).unwrap();
    sheet.write(4, 2, "bob").unwrap();
    let bytes = book.save_to_buffer().unwrap();
    let read = with(&bytes, &Options { grid: true, ..Options::default() });
    assert_eq!(
        seen(read),
        [
            (
                3,
                "ada".to_owned(),
                these(&["titan01:0", "titan01:1"]),
                "2026-12-01 00:00 - 2026-12-03 00:00".to_owned()
            ),
            (
                5,
                "bob".to_owned(),
                these(&["titan01:1"]),
                "2026-12-03 00:00 - 2026-12-04 00:00".to_owned()
            ),
        ]
    );
}

#[test]
fn what_is_wrong_with_a_timetable_is_told_by_line() {
    assert_eq!(
        wrong(&grid("a;b\nc;d\n")),
        ["0: no row of the timetable begins with a date; the first columns are the times"]
    );
    let node = wrong(&grid("Tag;0\n2026-12-01;ada\n"));
    assert_eq!(
        node,
        ["1: column 2 is headed \"0\", which is no GPU; write titan01:0, or titan01 above 0"]
    );
    let alone = wrong(&grid("Tag;titan01:0\n2026-12-01 09:00;ada\n"));
    assert_eq!(alone, ["2: how long does this row last? write 09:00-12:00"]);
    let open = wrong(&grid("Tag;titan01:0\n12/9/2026;ada\n"));
    assert!(open.len() == 1 && open[0].contains("--dates dmy or --dates mdy"), "{open:?}");
    assert_eq!(wrong(&grid("Tag;titan01:0\n2026-12-01;\n")), ["0: no line asks for GPUs"]);
}

#[test]
fn a_row_whose_day_is_not_understood_takes_none_from_above() {
    for bad in ["Di 24.11.", "Dienstag", "KW 48"] {
        let text = format!(
            "Tag;Zeit;titan01:0\n2026-11-23;9-12 Uhr;ada\n{bad};9-12 Uhr;bob\n;13-17 Uhr;eve\n"
        );
        assert_eq!(
            wrong(&grid(&text)),
            [
                format!("3: {bad:?} is no date and no time; write 24.11.2026 or 09:00-12:00"),
                "4: no date in this row, nor above it".to_owned(),
            ]
        );
    }
    let none =
        wrong(&grid("Tag;Zeit;t:0\n2026-11-23;9-12 Uhr;ada\n31.11.2026;;\n;13-17 Uhr;eve\n"));
    assert!(none[0].starts_with("3: \"31.11.2026\" is no date in the order"), "{none:?}");
    assert_eq!(none[1], "4: no date in this row, nor above it");
    // The weekday of a date that is there is one more word for it.
    let text = "Tag;Datum;Zeit;titan01:0\nMo;2026-11-23;9-12 Uhr;ada\nMontag;;13-17 Uhr;bob\n";
    assert_eq!(well(grid(text)).len(), 2);
    // Also where nobody is named in the row.
    let empty = wrong(&grid("Tag;titan01:0\n2026-11-23;ada\nDienstag;\n"));
    assert_eq!(empty.len(), 1, "{empty:?}");
}

#[test]
fn a_clock_that_goes_backwards_needs_a_new_date() {
    let text =
        "Tag;Zeit;titan01:0\n2026-11-23;22:00;ada\n;06:00;bob\n2026-11-24;12:00;eve\n;18:00;\n";
    assert_eq!(
        wrong(&grid(text)),
        ["3: 06:00 comes below 22:00 without a new date; write the date into this row"]
    );
}

#[test]
fn an_x_is_somebody() {
    let lines = well(grid("Tag;titan01:0\n2026-11-23;x\n"));
    assert_eq!(lines[0].user, "x");
}
