#![allow(clippy::unwrap_used)]
use super::*;
use crate::times::parse_when;

fn when(text: &str) -> Result<When, TimeError> {
    let now: jiff::Timestamp = "2026-11-21T09:00:00Z".parse().unwrap();
    parse_when(text, now, &jiff::tz::TimeZone::UTC)
}

fn sheet(text: &str) -> Result<Vec<Line>, Vec<String>> {
    read(text, when)
}

fn these(names: &[&str]) -> Which {
    Which::These(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn a_sheet_is_read_whatever_its_separators_order_and_case() {
    let comma = "user,gpus,start,end,note\nada,v100:2,2026-11-23 09:00,2026-11-24 18:00,\"paper, figures\"\n";
    let semicolon = "\u{feff}END;Start;GPUs;Owner;comment\r\n2026-11-24 18:00;2026-11-23 09:00;V100:2;ada;paper, figures\r\n";
    let tab = "note\tuser\tgpus\tstart\tend\npaper, figures\tada\tv100:2\t2026-11-23 09:00\t2026-11-24 18:00\n";
    let wanted = Line {
        number: 2,
        user: "ada".to_owned(),
        gpus: Which::Some("v100:2".parse().unwrap()),
        node: String::new(),
        start: when("2026-11-23 09:00").unwrap(),
        end: when("2026-11-24 18:00").unwrap(),
        note: "paper, figures".to_owned(),
        project: String::new(),
    };
    for text in [comma, semicolon, tab] {
        assert_eq!(sheet(text).unwrap(), std::slice::from_ref(&wanted), "{text}");
    }
}

#[test]
fn very_gpus_may_be_named_by_node_and_number() {
    let text = "gpu,node,start,end\n0 1,titan01,now,+2h\ntitan02:3;titan02:1,,now,+2h\n\n,,,\n2,titan01,now,+1h\n";
    let lines = sheet(text).unwrap();
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
        bob,1,,now,Now\n";
    let wanted = [
        "line 2: gpus: 0 GPUs; leave -G out for work without a GPU",
        "line 3: start: \"soon\" is not a time; write one like now, +2h, tomorrow 09:00 or 2026-11-22 09:00",
        "line 3: end: \"2026-11-24\" has no time of day; the end of a day is 00:00 of the next",
        "line 3: user: empty",
        "line 4: gpus and gpu: say how many, or which, not both",
        "line 5: gpu: 3 of which node? write titan01:3",
        "line 6: end: empty",
        "line 6: gpu: a:1 is named twice",
        "line 7: 6 cells, and the first line names 5; put text with separators in quotes",
        "line 8: end: that is now: no time at all",
    ];
    assert_eq!(sheet(text).unwrap_err(), wanted);
}

#[test]
fn a_first_line_that_names_no_columns_is_refused() {
    let problems = sheet("ada,2,2026-11-23,2026-11-24\n").unwrap_err();
    assert!(
        problems[0].starts_with("line 1: \"ada\" is no column; there are user, gpus, gpu,"),
        "{problems:?}"
    );
    assert!(problems.contains(&"line 1: there is no column start".to_owned()), "{problems:?}");
    assert_eq!(sheet("user,user,gpus,start,end\n").unwrap_err(), ["line 1: two columns are user"]);
    assert_eq!(sheet("gpus,start,end\n").unwrap_err(), ["there is no line below the first"]);
    assert_eq!(sheet("").unwrap_err().len(), 3);
}
