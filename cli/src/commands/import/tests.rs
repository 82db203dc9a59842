use fleet_core::Rejection;
use fleet_core::rejection::LineProblem;
use fleet_proto::json::gpu::Gpu;

use super::inventory::Inventory;
use super::*;
use crate::spreadsheet::Which;

fn item(outcome: &str) -> Imported {
    Imported { line: 2, outcome: outcome.to_owned(), reservation: None }
}

fn clock() -> Clock {
    Clock::standing("2026-11-21T09:00:00Z", "UTC")
}

fn sheet(text: &str) -> Sheet {
    spreadsheet::read(text.as_bytes(), &Options::default(), &clock()).unwrap_or_default()
}

/// The arguments of an import with these words.
fn args(words: &[&str]) -> ReservationImportArgs {
    use clap::{Args as _, FromArgMatches as _};
    let command = ReservationImportArgs::augment_args(clap::Command::new("import"));
    let words = ["import", "gpus.csv"].iter().chain(words);
    let read = command.try_get_matches_from(words);
    let read = read.and_then(|matches| ReservationImportArgs::from_arg_matches(&matches));
    read.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_summary_counts_each_kind() {
    let items = [item("created"), item("there"), item("over"), item("over")];
    assert_eq!(summary(&items, false), "1 imported, 1 there already, 2 over");
    let items = [item("would be created"), item("would be created")];
    assert_eq!(summary(&items, true), "nothing was changed; 2 would be imported");
}

#[test]
fn what_is_the_same_in_several_lines_is_told_once_and_a_flood_is_cut() {
    let same = [9, 3, 4, 5, 3].map(|line| Problem::new(line, "user: empty"));
    let other = [Problem::new(4, "end: empty"), Problem::of_file("which order?")];
    let failure = problems::refused(same.into_iter().chain(other).collect());
    assert_eq!(
        failure.details,
        ["which order?", "lines 3-5, 9: user: empty", "line 4: end: empty"]
    );
    let many = (1..=210).map(|line| Problem::new(line, format!("wrong {line}")));
    let failure = problems::refused(many.collect());
    assert_eq!(failure.details.len(), 201);
    assert_eq!(
        failure.details.last().map(String::as_str),
        Some("and 10 more; correct these first")
    );
}

#[test]
fn a_refusal_names_the_lines_and_the_columns_of_the_file() {
    let sheet = sheet("Benutzer;GPUs;Von;Bis\n\nada;1;23.11.2026;24.11.2026 10:00\n");
    let why = Rejection::field("owner", "unknown user \"ada\"");
    let rejection = Rejection::LinesRefused {
        problems: vec![LineProblem { line: 0, why, taken_by: None }],
        more: 7,
    };
    let failure = Failure::of_rejection(rejection, &clock());
    let failure = problems::by_line(failure, &[3], &sheet, &clock());
    assert_eq!(
        failure.details,
        [
            "line 3: Benutzer: unknown user \"ada\"",
            "the controller refuses 7 more lines; correct these first"
        ]
    );
}

#[test]
fn too_many_lines_are_refused_with_the_commands_that_import_them_in_parts() {
    let lines = "1,now,+1h\n".repeat(IMPORT_LINES_MAX * 2 + 5);
    let text = format!("gpus,start,end\n2,2020-01-01,2020-01-02\n{lines}");
    let (over, lines) = parted(sheet(&text).lines, &clock());
    assert_eq!(over.len(), 1, "what is over does not count");
    let Err(failure) = check_count(&lines, &args(&[]), Path::new("gpus.csv")) else { panic!() };
    let most = IMPORT_LINES_MAX;
    assert_eq!(
        failure.message,
        format!("gpus.csv has {} lines that are not over; one import takes {most}", most * 2 + 5)
    );
    let hint = format!(
        "import it in parts, the first with: fleet reservation import gpus.csv --lines 3-{}",
        most + 2
    );
    assert_eq!(failure.hint, Some(hint));
    assert_eq!(failure.details.len(), 2);
    let few = lines.get(..most).unwrap_or_default();
    assert!(check_count(few, &args(&[]), Path::new("gpus.csv")).is_ok());
}

#[test]
fn the_commands_for_parts_keep_the_flags_and_cut_no_row() {
    let said = ["--grid", "--sheet", "Mai 2026", "--dates", "dmy", "--new-users"];
    let sheet = sheet("gpus,start,end\n1,now,+1h\n");
    let line = sheet.lines.first().cloned().unwrap_or_else(|| panic!("{:?}", sheet.problems));
    // A timetable with 3 GPUs in each row: its rows do not fill a part.
    let numbers = (2..).take(IMPORT_LINES_MAX / 2).flat_map(|number| [number; 3]);
    let lines: Vec<SheetLine> =
        numbers.map(|number| SheetLine { number, ..line.clone() }).collect();
    let Err(failure) = check_count(&lines, &args(&said), Path::new("gpu's plan.xlsx")) else {
        panic!()
    };
    let (rows, last) = (IMPORT_LINES_MAX as u64 / 3, IMPORT_LINES_MAX as u64 / 2 + 1);
    let command = "fleet reservation import 'gpu'\\''s plan.xlsx' --sheet 'Mai 2026' --dates dmy --grid --new-users";
    assert_eq!(
        failure.hint,
        Some(format!("import it in parts, the first with: {command} --lines 2-{}", rows + 1))
    );
    assert_eq!(failure.details, [format!("then {command} --lines {}-{last}", rows + 2)]);
    let columns = args(&["--columns", "Wann=from"]);
    assert_eq!(
        same_command(&columns, Path::new("-")).join(" "),
        "fleet reservation import - --columns Wann=from"
    );
}

#[test]
fn nodes_and_gpus_are_found_whatever_their_case() {
    let gpu = |node: &str, index: u32| {
        let uuid = format!("GPU-{node}-{index}");
        Gpu::from(fleet_proto::v1::Gpu { uuid, node: node.to_owned(), index, ..Default::default() })
    };
    let inventory = Inventory::from(vec![gpu("titan01", 0), gpu("titan01", 1), gpu("titan02", 0)]);
    let ask = |cells: &str| {
        let sheet = sheet(&format!("node;gpu;gpus;start;end\n{cells};now;+1h\n"));
        let line = sheet.lines.first().cloned();
        line.map(|line| inventory.wish(&line)).unwrap_or_else(|| panic!("{:?}", sheet.problems))
    };
    let all = ask("Titan01;all;").map(|wish| (wish.count, wish.uuids));
    assert_eq!(all, Ok((2, vec!["GPU-titan01-0".to_owned(), "GPU-titan01-1".to_owned()])));
    assert_eq!(ask("TITAN02;;1").map(|wish| wish.node), Ok("titan02".to_owned()));
    assert_eq!(ask(";GPU-titan02-0;").map(|wish| wish.count), Ok(1));
    let no_gpu = ask("titan01;0-2;").map_err(|(column, why)| (column.name(), why));
    assert_eq!(no_gpu, Err(("gpu", "titan01 has no GPU 2; it has 0, 1".to_owned())));
    let no_node = ask("titan09;;1").map_err(|(column, why)| (column.name(), why));
    let wanted = "no node \"titan09\" has GPUs; there are titan01, titan02 (fleet node list)";
    assert_eq!(no_node, Err(("node", wanted.to_owned())));
    assert!(matches!(sheet("node;gpu;start;end\nt;all;now;+1h\n").lines[0].gpus, Which::All(_)));
}
