//! Each input of the list "Sheets" in the issue, and its kind.

use super::*;

/// A line with these cells under `user,node,gpu,gpus,start,end,note`.
fn one(cells: &str) -> Sheet {
    sheet(&format!("user;node;gpu;gpus;start;end;note\n{cells}\n"))
}

fn only(cells: &str) -> SheetLine {
    let lines = well(one(cells));
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.into_iter().next().unwrap()
}

#[test]
fn a_note_with_a_line_break_becomes_one_line_and_lines_are_counted_right() {
    let text =
        "user,gpus,start,end,note\nada,1,now,+1h,\"first\nsecond\r\n third\"\nbob,0,now,+1h,\n";
    let read = sheet(text);
    assert_eq!(read.lines[0].note, "first second third");
    assert_eq!(wrong(&read), ["5: gpus: 0 GPUs; leave -G out for work without a GPU"]);
}

#[test]
fn joined_characters_stay_where_they_join_and_hidden_ones_go() {
    let note = |text: &str| only(&format!("ada;;;1;now;+1h;{text}")).note;
    for kept in ["👩\u{200d}🔬 runs", "می\u{200c}خواهم", "❤\u{fe0f}\u{200d}🔥"] {
        assert_eq!(note(kept), kept);
    }
    assert_eq!(note("a\u{200d}b\u{200b}c\u{feff}\u{202e}d\u{200e}"), "abcd");
    assert_eq!(note("a\u{a0}b\tc\u{2028}d"), "a b c d");
}

#[test]
fn excels_first_line_says_the_separator() {
    for first in ["sep=;\r\n", "sep=;\n", "SEP=;\r", "\"sep=;\"\n", "\u{feff}sep=;\n"] {
        let read = sheet(&format!("{first}user;gpus;start;end\nada;1,0;now;+1h\nbob;;now;+1h\n"));
        assert_eq!(read.lines[0].gpus, Which::Some("1".parse().unwrap()), "{first:?}");
        assert_eq!(wrong(&read), ["4: gpus: no number of GPUs, and no GPU is named"], "{first:?}");
    }
}

#[test]
fn the_header_is_found_below_titles() {
    let text = "Belegung GPU-Server;;;\n;;;\nStand: 20.11.2026;;;\nBenutzer;GPUs;Von;Bis\nada;1;28.11.2026;29.11.2026\n\
        November 2026;;;\nBenutzer;GPUs;Von;Bis\nbob;1;28.11.2026;29.11.2026\n";
    let read = sheet(text);
    assert!(read.notes.contains(&"the columns are named in line 4".to_owned()), "{:?}", read.notes);
    assert!(
        read.notes.contains(&"ignored lines that ask for nothing: 6, 7".to_owned()),
        "{:?}",
        read.notes
    );
    assert_eq!(well(read).iter().map(|line| line.number).collect::<Vec<_>>(), [5, 8]);
}

#[test]
fn columns_that_nobody_knows_are_named_in_one_note() {
    let text = "Timestamp,Email Address,Name,GPUs,Start,End\n11/20/2026 8:01:02,ada@example.org,ada,1,now,+1h\n";
    let read = sheet(text);
    assert_eq!(read.notes, ["ignored 2 columns: Timestamp, Email Address"]);
    assert_eq!(well(read)[0].user, "ada");
    let both = sheet("user,name,gpus,start,end\nada,Ada Lovelace,1,now,+1h\n");
    assert_eq!(both.notes, ["ignored the column: name"], "the better word counts");
    assert_eq!(well(both)[0].user, "ada");
}

#[test]
fn german_words_name_columns() {
    let words = [
        ("Person", "Von", "Bis", "Server", "GPUs", "Bemerkung"),
        ("Benutzer:", "Beginn *", "Ende (Datum)", "Rechner", "Anzahl GPUs", "Zweck"),
        ("WER?", "ab", "bis wann", "Knoten", "Anzahl", "Kommentar"),
    ];
    for (user, from, until, node, gpus, note) in words {
        let text = format!(
            "{user};{from};{until};{node};{gpus};{note}\nada;28.11.2026;29.11.2026;titan01;2;Messung\n"
        );
        let lines = well(sheet(&text));
        assert_eq!(
            (lines[0].node.as_str(), lines[0].note.as_str()),
            ("titan01", "Messung"),
            "{text}"
        );
    }
}

/// A start as typed in a sheet that has no other date: how it is read, or what is wrong.
fn start(text: &str, dates: Option<DateOrder>) -> Result<String, String> {
    let options = Options { dates, ..Options::default() };
    let text = format!("gpus;start;end\n1;{text};2030-01-01\n");
    let read = with(text.as_bytes(), &options);
    match read.problems.first() {
        Some(problem) => Err(problem.what.clone()),
        None => Ok(window(&read.lines[0]).split(" - ").next().unwrap().to_owned()),
    }
}

#[test]
fn dates_are_read_as_people_write_them() {
    let nine = "2026-11-28 09:00";
    for text in [
        "28.11.2026 09:00",
        "28.11.26 9:00 Uhr",
        "Sa, 28.11.2026, 09:00",
        "Samstag 28. November 2026 um 9 Uhr",
        "28. Nov. 2026 09.00 Uhr",
        "28.11.2026\u{a0}09:00:00",
        "2026-11-28 09:00",
        "2026-11-28T09:00",
        "2026/11/28 9:00",
        "20261128 09:00",
        "28-Nov-26 9:00 AM",
        "Nov 28, 2026 9:00\u{202f}AM",
        "November 28th, 2026, 9 a.m.",
        "Saturday, November 28, 2026 9:00",
        "11/28/2026 9:00:00 AM",
        "28/11/2026 09:00",
        "46354.375",
        "46354,375",
        "2026-11-28 09:00:00+01:00",
        "2026-11-28T08:00:00Z",
    ] {
        assert_eq!(start(text, None).as_deref(), Ok(nine), "{text}");
    }
    assert_eq!(start("12/9/2026 7:00 PM", Some(DateOrder::Mdy)).unwrap(), "2026-12-09 19:00");
    assert_eq!(start("12/9/2026 7:00 PM", Some(DateOrder::Dmy)).unwrap(), "2026-09-12 19:00");
    assert_eq!(start("12/9/2026 12:00 AM", Some(DateOrder::Mdy)).unwrap(), "2026-12-09 00:00");
    let order = start("11/28/2026", Some(DateOrder::Dmy)).unwrap_err();
    assert_eq!(
        order,
        "start: \"11/28/2026\" is no date in the order day, month, year (--dates dmy)"
    );
    assert!(start("28.11.2026", Some(DateOrder::Iso)).unwrap_err().contains("(--dates iso)"));
    for bad in [
        "28.11.",
        "31.02.2026",
        "28.11.2026 25:00",
        "28.11.2026 24:01",
        "28.11.2026 13:00 PM",
        "Freitags",
    ] {
        start(bad, None).expect_err(bad);
    }
}

#[test]
fn the_order_of_dates_is_guessed_only_where_every_line_agrees() {
    let dates = |days: &[&str]| {
        let lines: String = days.iter().map(|day| format!("1,{day},2030-01-01\n")).collect();
        sheet(&format!("gpus,start,end\n{lines}"))
    };
    let german = dates(&["28/11/2026", "1/12/2026"]);
    assert_eq!(
        german.notes,
        [
            "dates are read as day, month, year, as every line agrees (--dates dmy)",
            "no column names users: every line is for you",
        ]
    );
    assert_eq!(window(&well(german)[1]), "2026-12-01 00:00 - 2030-01-02 00:00");
    let american = dates(&["11/28/2026", "12/1/2026"]);
    assert_eq!(window(&well(american)[1]), "2026-12-01 00:00 - 2030-01-02 00:00");
    let open = wrong(&dates(&["12/9/2026 7:00 PM", "1/2/2027", "bad"]));
    assert_eq!(open.len(), 2, "{open:?}");
    assert_eq!(
        open[0],
        "0: dates such as \"12/9/2026 7:00 PM\" (line 2) may be day first or month first; say --dates dmy or --dates mdy"
    );
    let mixed = wrong(&dates(&["28/11/2026", "11/29/2026"]));
    assert!(mixed[0].contains(
        "two orders: \"28/11/2026\" (line 2) has the day first, \"11/29/2026\" (line 3)"
    ));
    // The same day in both orders leaves nothing open.
    assert_eq!(window(&well(dates(&["12/12/2026"]))[0]), "2026-12-12 00:00 - 2030-01-02 00:00");
    let dotted = dates(&["9.12.2026"]);
    assert!(dotted.notes[0].contains("dates with dots"), "{:?}", dotted.notes);
}

#[test]
fn an_end_without_a_time_is_the_end_of_that_day() {
    let line = |start: &str, end: &str| window(&only(&format!("ada;;;1;{start};{end};")));
    assert_eq!(line("28.11.2026", "28.11.2026"), "2026-11-28 00:00 - 2026-11-29 00:00");
    assert_eq!(line("28.11.2026", "30.11.2026"), "2026-11-28 00:00 - 2026-12-01 00:00");
    assert_eq!(line("2026-11-28", "2026-12-31"), "2026-11-28 00:00 - 2027-01-01 00:00");
    assert_eq!(line("28.11.2026 00:00", "30.11.2026 00:00"), "2026-11-28 00:00 - 2026-11-30 00:00");
    assert_eq!(line("tomorrow", "tomorrow"), "2026-11-22 00:00 - 2026-11-23 00:00");
    // The clocks are put back on the 25th of October: that day has 25 hours.
    assert_eq!(line("2027-10-31", "2027-10-31"), "2027-10-31 00:00 - 2027-11-01 00:00");
}

#[test]
fn midnight_is_24_00_too() {
    let line = only("ada;;;1;28.11.2026 20:00;28.11.2026 24:00;");
    assert_eq!(window(&line), "2026-11-28 20:00 - 2026-11-29 00:00");
    assert_eq!(
        window(&only("ada;;;1;2026-12-31 24:00;2027-01-01;")),
        "2027-01-01 00:00 - 2027-01-02 00:00"
    );
}

#[test]
fn day_and_time_may_have_columns_of_their_own() {
    let text =
        "Datum;Von;Bis;GPUs\n28.11.2026;09:00;17 Uhr;1\n28.11.2026;22:00;06:00;1\n29.11.2026;;;1\n";
    let windows: Vec<_> = well(sheet(text)).iter().map(window).collect();
    assert_eq!(
        windows,
        [
            "2026-11-28 09:00 - 2026-11-28 17:00",
            "2026-11-28 22:00 - 2026-11-29 06:00",
            "2026-11-29 00:00 - 2026-11-30 00:00",
        ]
    );
    let text = "Start date,Start time,End date,End time,GPUs\n2026-11-28,9:00 AM,2026-11-29,5:30 PM,1\n2026-11-28,,2026-11-28,,1\n";
    let windows: Vec<_> = well(sheet(text)).iter().map(window).collect();
    assert_eq!(
        windows,
        ["2026-11-28 09:00 - 2026-11-29 17:30", "2026-11-28 00:00 - 2026-11-29 00:00"]
    );
    assert_eq!(
        window(&well(sheet("Start Time,End Time,GPUs\n2026-11-28 09:00,2026-11-28 10:00,1\n"))[0]),
        "2026-11-28 09:00 - 2026-11-28 10:00"
    );
}

#[test]
fn numbers_of_gpus_may_be_written_in_many_ways() {
    let wish = |text: &str| only(&format!("ada;;;{text};now;+1h;")).gpus;
    let some = |text: &str| Which::Some(text.parse().unwrap());
    for text in ["1.0", "1", "1,0", "1,00", "1 GPU", "1.0 GPUs"] {
        assert_eq!(wish(text), some("1"), "{text}");
    }
    for text in ["v100:2", "2x V100", "2 x v100", "2 × V100"] {
        assert_eq!(wish(text), some("v100:2"), "{text}");
    }
    let refused = |text: &str| wrong(&one(&format!("ada;;;{text};now;+1h;")));
    assert_eq!(refused("1.5"), ["2: gpus: \"1.5\" is not a number of GPUs from 1 to 1024"]);
    assert!(refused("0.0")[0].starts_with("2: gpus: \"0.0\" may be how many GPUs, or which one;"));
}

#[test]
fn ranges_lists_and_all_name_gpus() {
    let both = these(&["titan01:0", "titan01:1"]);
    for text in [
        "0-1",
        "0 - 1",
        "0–1",
        "0..1",
        "0,1",
        "0+1",
        "0/1",
        "0 und 1",
        "GPU0 GPU1",
        "GPU 0, GPU 1",
        "#0 #1",
        "0.0 1.0",
    ] {
        assert_eq!(only(&format!("ada;titan01;{text};;now;+1h;")).gpus, both, "{text}");
    }
    assert_eq!(only("ada;;titan01:0-1;;now;+1h;").gpus, both);
    // The same where the sheet has only one column for both.
    assert_eq!(only("ada;titan01;;0-1;now;+1h;").gpus, both);
    for text in
        ["ada;titan01;all;;now;+1h;", "ada;titan01;;Alle;now;+1h;", "ada;;titan01:all;;now;+1h;"]
    {
        assert_eq!(only(text).gpus, Which::All("titan01".to_owned()), "{text}");
    }
    let refused = |cells: &str| wrong(&one(cells)).remove(0);
    assert_eq!(
        refused("ada;;all;;now;+1h;"),
        "2: gpu: all GPUs of which node? fill the column node"
    );
    assert_eq!(
        refused("ada;;0-1;;now;+1h;"),
        "2: gpu: 0-1 of which node? write titan01:0-1, or fill the column node"
    );
    assert_eq!(refused("ada;t;3-1;;now;+1h;"), "2: gpu: 3-1 ends before it begins; write 1-3");
    assert!(refused("ada;t;0-99;;now;+1h;").contains("more than 16 GPUs are named"));
    assert!(refused("ada;t;2026-02-01;;now;+1h;").contains("spreadsheets make one of 1-2"));
    assert!(refused("ada;t;beide;;now;+1h;").contains("\"beide\" is no GPU"));
}

#[test]
fn blanks_around_names_go_and_the_case_stays() {
    let line = only("  Ada \u{a0};  titan01\t;0;;now;+1h; note  ");
    assert_eq!((line.user.as_str(), line.note.as_str()), ("Ada", "note"));
    assert_eq!(line.gpus, these(&["titan01:0"]));
    assert_eq!(only("ada@example.org;;;1;now;+1h;").user, "ada", "of a mail address the name");
}

#[test]
fn an_open_quote_is_told_by_its_line_and_hides_no_other_problem() {
    let text =
        "user,gpus,start,end,note\nada,1,now,+1h,\"open\nbob,0,now,+1h,\neve,1,now,+1h,\"x\" y\n";
    assert_eq!(
        wrong(&sheet(text)),
        [
            "2: text follows a closing quote (\"); double each quote within a cell",
            "3: gpus: 0 GPUs; leave -G out for work without a GPU",
            "4: text follows a closing quote (\"); double each quote within a cell",
        ]
    );
    let text = "user,gpus,start,end,note\nada,1,now,+1h,\"open\nbob,1,now,+1h,12\" rack\n";
    assert_eq!(
        wrong(&sheet(text)),
        ["2: text follows a closing quote (\"); double each quote within a cell"]
    );
    let last = wrong(&sheet("user,gpus,start,end,note\nada,1,now,+1h,\"open\n"));
    assert_eq!(last, ["2: a quote (\") is never closed"]);
}

#[test]
fn ten_thousand_lines_are_read() {
    let mut text = "user;node;gpu;start;end;note\n".to_owned();
    for n in 0..10_000 {
        text.push_str(&format!(
            "u{n};titan{:02};0-1;28.11.2026 09:00;29.11.2026;\"note; {n}\"\n",
            n % 50
        ));
    }
    let lines = well(sheet(&text));
    assert_eq!((lines.len(), lines.last().unwrap().number), (10_000, 10_001));
}
