//! What is wrong with a sheet, in one list by the lines of the file and the names of its own columns.

use std::collections::BTreeMap;

use fleet_core::Rejection;
use fleet_core::rejection::LineProblem;

use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::spreadsheet::{Column, Problem, Sheet};
use crate::times::Clock;

/// Most sentences that are shown. What is the same in several lines is one.
const SHOWN_MAX: usize = 200;

/// What is wrong, in the order of the lines.
pub(super) fn refused(problems: Vec<Problem>) -> Failure {
    let mut by_text: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for Problem { line, what } in problems {
        by_text.entry(what).or_default().push(line);
    }
    let mut grouped: Vec<(Vec<u64>, String)> = by_text
        .into_iter()
        .map(|(what, mut lines)| {
            lines.sort_unstable();
            lines.dedup();
            (lines, what)
        })
        .collect();
    grouped.sort();
    let count = grouped.len();
    grouped.truncate(SHOWN_MAX);
    let mut details: Vec<String> =
        grouped.iter().map(|(lines, what)| format!("{}{what}", place(lines))).collect();
    if count > SHOWN_MAX {
        details.push(format!("and {} more; correct these first", count - SHOWN_MAX));
    }
    Failure { details, ..Failure::new(Exit::Usage, "nothing was imported") }
}

/// `line 3: `, `lines 3-7, 9: `; nothing for the file as a whole.
fn place(lines: &[u64]) -> String {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for line in lines.iter().copied().filter(|line| *line > 0) {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == line => *last = line,
            _ => spans.push((line, line)),
        }
    }
    let span = |(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    match spans.as_slice() {
        [] => String::new(),
        [(first, last)] if first == last => format!("line {first}: "),
        _ => format!("lines {}: ", spans.iter().map(span).collect::<Vec<_>>().join(", ")),
    }
}

/// The controller's refusal by the file's own lines; any other failure as it is.
pub(super) fn by_line(failure: Failure, numbers: &[u64], sheet: &Sheet, clock: &Clock) -> Failure {
    match failure.rejection.as_deref() {
        Some(Rejection::LinesRefused { problems, more }) => {
            let mut failure = refused(told(problems, numbers, sheet, clock));
            failure.details.extend(not_listed(*more));
            failure
        }
        _ => failure,
    }
}

/// What to say of it beside what is wrong with other lines. Of the lines from `count` on only the users count.
pub(super) fn of_failure(
    failure: &Failure,
    numbers: &[u64],
    count: usize,
    (sheet, clock): (&Sheet, &Clock),
) -> Vec<Problem> {
    match failure.rejection.as_deref() {
        Some(Rejection::LinesRefused { problems, more }) => {
            let of_user = |why: &Rejection| {
                matches!(why, Rejection::InvalidField { field, .. } if field == "owner")
                    || matches!(why, Rejection::Denied { .. })
            };
            let counts = |p: &&LineProblem| (p.line as usize) < count || of_user(&p.why);
            let problems: Vec<LineProblem> = problems.iter().filter(counts).cloned().collect();
            let mut problems = told(&problems, numbers, sheet, clock);
            problems.extend(not_listed(*more).map(Problem::of_file));
            problems
        }
        _ => {
            let what = format!("the controller did not check the other lines: {}", failure.message);
            vec![Problem::of_file(what)]
        }
    }
}

/// An answer of the controller has no room for thousands of lines.
fn not_listed(more: u32) -> Option<String> {
    (more > 0).then(|| format!("the controller refuses {more} more lines; correct these first"))
}

fn told(problems: &[LineProblem], numbers: &[u64], sheet: &Sheet, clock: &Clock) -> Vec<Problem> {
    let number = |at: u32| numbers.get(at as usize).copied().unwrap_or(0);
    let told = problems.iter().map(|LineProblem { line, why, taken_by }| {
        let why = in_its_words(why.clone(), sheet);
        let why = Failure::of_rejection(why, clock);
        let detail = match (taken_by, why.details.first()) {
            (Some(other), _) => format!(": line {} takes it", number(*other)),
            // Of several holders the first one says enough.
            (None, Some(first)) => format!(": {first}"),
            (None, None) => String::new(),
        };
        Problem::new(number(*line), format!("{}{detail}", why.message))
    });
    told.collect()
}

/// The field of the API by the column of the sheet.
fn in_its_words(why: Rejection, sheet: &Sheet) -> Rejection {
    let (field, problem) = match why {
        Rejection::InvalidField { field, problem } => (field, problem),
        Rejection::AboveLimit { why } => return in_its_words(*why, sheet),
        other => return other,
    };
    let column = match field.as_str() {
        "owner" => Some(Column::User),
        "starts_at" => Some(Column::Start),
        "ends_at" | "window" => Some(Column::End),
        "note" => Some(Column::Note),
        "project" => Some(Column::Project),
        "with" => Some(Column::With),
        "gpus.node" => Some(Column::Node),
        "gpus.count" | "gpus.model" => Some(Column::Gpus),
        "gpus.uuids" => Some(Column::Gpu),
        _ => None,
    };
    let field = column.map_or(field, |column| sheet.header.called(column).to_owned());
    Rejection::InvalidField { field, problem }
}
