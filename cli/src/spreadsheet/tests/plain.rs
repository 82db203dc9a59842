//! What could mean two things is refused, and what could be lost is kept.

use super::*;

/// The window of the only line.
fn read_as(text: &str) -> String {
    let lines = well(sheet(text));
    assert_eq!(lines.len(), 1, "{lines:?}");
    window(&lines[0])
}

#[test]
fn parts_of_a_second_do_not_hide_the_offset() {
    for start in [
        "2026-11-28T08:00:00.000Z",
        "2026-11-28T09:00:00.123+0100",
        "2026-11-28 00:00:00.000 -0800",
        "2026-11-28 00:00:00 -08:00",
        "2026-11-28 09:00:00.123",
    ] {
        let read = read_as(&format!("gpus;start;end\n1;{start};2026-11-28 10:00\n"));
        assert_eq!(read, "2026-11-28 09:00 - 2026-11-28 10:00", "{start}");
    }
}

#[test]
fn a_time_without_a_date_is_refused() {
    let text = "gpus;date;from;until\n1;28.11.2026;09:00;10:00\n1;;14:00;15:00\n1;;friday;noon\n1;;Monday 09:00;+2h\n";
    let refused = |line: u32, column: &str, typed: &str| {
        format!("{line}: {column}: {typed:?} has no date; fill the column date")
    };
    assert_eq!(
        wrong(&sheet(text)),
        [
            refused(3, "from", "14:00"),
            refused(3, "until", "15:00"),
            refused(4, "from", "friday"),
            refused(4, "until", "noon"),
            refused(5, "from", "Monday 09:00"),
        ]
    );
    let without = wrong(&sheet("gpus;Von;Bis\n1;9 Uhr;+2h\n"));
    assert_eq!(without, ["2: Von: \"9 Uhr\" has no date; fill the column date"]);
}

#[test]
fn a_time_in_a_column_of_its_own_is_read_or_refused() {
    let line = |start: &str, time: &str| {
        sheet(&format!("gpus;Start date;Start time;End\n1;{start};{time};2026-11-29 10:00\n"))
    };
    for (time, read) in [
        ("9", "09:00"),
        ("09", "09:00"),
        ("0800", "08:00"),
        ("1730", "17:30"),
        ("9.30", "09:30"),
        ("9:15", "09:15"),
    ] {
        let wanted = format!("2026-11-28 {read} - 2026-11-29 10:00");
        assert_eq!(window(&well(line("2026-11-28", time))[0]), wanted, "{time}");
        // A day that shows midnight says nothing about the time.
        assert_eq!(window(&well(line("2026-11-28 00:00", time))[0]), wanted, "{time}");
    }
    for bad in ["morning", "9.5", "25", "2570", "0.375", "now"] {
        assert_eq!(
            wrong(&line("2026-11-28", bad)),
            [format!("2: Start time: {bad:?} is no time of day; write 09:00")]
        );
    }
    assert_eq!(
        wrong(&line("2026-11-28 08:00", "09:00")),
        ["2: Start time: \"09:00\" beside \"2026-11-28 08:00\", which has a time; keep one"]
    );
    // An end that shows midnight, without a time beside it, is that day as a whole.
    let text = "gpus;Start;End date;End time\n1;2026-11-28 09:00;2026-11-28 00:00;\n";
    assert_eq!(read_as(text), "2026-11-28 09:00 - 2026-11-29 00:00");
    let text = "gpus;Datum;Von;Bis\n1;28.11.2026 00:00;9;1730\n";
    assert_eq!(read_as(text), "2026-11-28 09:00 - 2026-11-28 17:30");
}

#[test]
fn a_column_holds_numbers_of_gpus_or_counts_of_them() {
    let text =
        "node;GPUs;start;end\ntitan01;0,1;now;+1h\ntitan01;2;now;+1h\ntitan01;v100:2;now;+1h\n";
    let refused = "\"2\" may be how many GPUs, or which one; say --columns \"GPUs=gpu\" if the column names GPUs, \
                   --columns \"GPUs=gpus\" if it counts them";
    assert_eq!(wrong(&sheet(text)), [format!("3: GPUs: {refused}")]);
    let zero = "node;GPUs;start;end\ntitan01;0;now;+1h\ntitan01;2;now;+1h\n";
    assert_eq!(wrong(&sheet(zero)).len(), 2);
    let said = |text: &str, columns: &str| {
        let columns = parse_named(columns).unwrap();
        with(text.as_bytes(), &Options { columns, ..Options::default() })
    };
    let lines = well(said(zero, "GPUs=gpu"));
    let gpus: Vec<Which> = lines.into_iter().map(|line| line.gpus).collect();
    assert_eq!(gpus, [these(&["titan01:0"]), these(&["titan01:2"])]);
    let lines = well(said(text, "GPUs=gpus"));
    assert_eq!(lines[1].gpus, Which::Some("2".parse().unwrap()));
    assert_eq!(well(sheet("node;GPUs;start;end\nt;1;now;+1h\nt;2;now;+1h\n")).len(), 2);
}

#[test]
fn dates_of_a_workbook_that_are_partly_text_are_refused() {
    let book = |texts: &[&str]| {
        let mut book = rust_xlsxwriter::Workbook::new();
        let day = rust_xlsxwriter::Format::new().set_num_format("dd.mm.yyyy");
        let sheet = book.add_worksheet();
        for (at, head) in (0..).zip(["GPUs", "Von", "Bis"]) {
            sheet.write(0, at, head).unwrap();
        }
        for (row, text) in (1..).zip(texts) {
            sheet.write(row, 0, 1).unwrap();
            match rust_xlsxwriter::ExcelDateTime::parse_from_str(text) {
                Ok(at) => drop(sheet.write_datetime_with_format(row, 1, at, &day).unwrap()),
                Err(_) => drop(sheet.write(row, 1, *text).unwrap()),
            }
            sheet.write(row, 2, "2030-01-01").unwrap();
        }
        with(&book.save_to_buffer().unwrap(), &Options::default())
    };
    for text in ["28/11/2026", "12/9/2026", "3.12.2026"] {
        let wanted = format!(
            "0: the column Von has dates (line 2: 2026-12-09) and dates as text (line 3: {text:?}): the program that saved it \
             may have swapped day and month of the others; format the whole column as dates, and check each"
        );
        let told = wrong(&book(&["2026-12-09", text]));
        assert!(told.contains(&wanted), "{told:?}");
    }
    assert_eq!(well(book(&["2026-12-09", "28.11.2026"])).len(), 2, "only one order is possible");
    assert_eq!(well(book(&["2026-12-09", "28. Nov 2026"])).len(), 2);
}

#[test]
fn a_night_ends_when_the_clock_of_the_next_day_shows_it() {
    let line = |day: &str, from: &str, until: &str| {
        sheet(&format!("Datum;Von;Bis;GPUs\n{day};{from};{until};1\n"))
    };
    let night = |day: &str| window(&well(line(day, "22:00", "06:00"))[0]);
    assert_eq!(night("27.03.2027"), "2027-03-27 22:00 - 2027-03-28 06:00");
    assert_eq!(night("30.10.2027"), "2027-10-30 22:00 - 2027-10-31 06:00");
    assert_eq!(
        wrong(&line("28.11.2026", "09:00", "09:00")),
        ["2: Bis: \"09:00\" is not after Von \"09:00\""]
    );
    let skipped = wrong(&line("27.03.2027", "22:00", "02:30"));
    assert!(skipped[0].contains("does not exist in Europe/Berlin"), "{skipped:?}");
}

#[test]
fn the_order_of_dates_follows_from_lines_that_are_not_imported_too() {
    let text = "gpus,start,end\n1,28/11/2026,2030-01-01\n1,1/12/2026,2030-01-01\n";
    let options = Options { lines: Some(3..=3), ..Options::default() };
    let lines = well(with(text.as_bytes(), &options));
    assert_eq!(window(&lines[0]), "2026-12-01 00:00 - 2030-01-02 00:00");
}

#[test]
fn numbers_of_gpus_are_no_date() {
    let gpus = |text: &str| {
        let lines = well(sheet(&format!("node;gpu;start;end\nt;{text};now;+1h\n")));
        lines.into_iter().map(|line| line.gpus).next().unwrap()
    };
    assert_eq!(gpus("8,9,10"), these(&["t:8", "t:9", "t:10"]));
    assert_eq!(gpus("0-1,10"), these(&["t:0", "t:1", "t:10"]));
    assert_eq!(gpus("1 2 10"), these(&["t:1", "t:2", "t:10"]));
    for date in ["2026-02-01", "1.2.2026", "1-Feb-26", "46054"] {
        let refused = wrong(&sheet(&format!("node;gpu;start;end\nt;{date};now;+1h\n")));
        assert!(refused[0].contains("spreadsheets make one of 1-2"), "{refused:?}");
    }
}

#[test]
fn a_time_of_a_sheet_that_occurs_twice_is_named_once() {
    let read = sheet(
        "user,gpus,start,end\nada,1,2027-10-31 02:30,2027-10-31 18:00\nbea,1,2027-10-31 02:30,2027-10-31 18:00\n",
    );
    let twice: Vec<&String> = read.notes.iter().filter(|n| n.contains("occurs twice")).collect();
    let [note] = twice.as_slice() else { panic!("{:?}", read.notes) };
    assert!(note.contains("the first is meant: Sun 2027-10-31 02:30 CEST"), "{note}");
    assert!(note.contains("2027-10-31T02:30:00+01:00"), "{note}");
    let other = sheet("user,gpus,start,end\nada,1,2027-10-31T02:30:00+01:00,2027-10-31 18:00\n");
    assert!(other.notes.iter().all(|note| !note.contains("twice")), "{:?}", other.notes);
}
