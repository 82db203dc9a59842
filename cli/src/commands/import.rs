//! `reservation import`: a spreadsheet becomes reservations, whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;

use fleet_core::Rejection;
use fleet_core::rejection::LineProblem;
use fleet_proto::v1::{CreateReservationRequest, GpuWish, ImportReservationsRequest};

use super::{Context, gpu};
use crate::args::ReservationImportArgs;
use crate::client::{Client, request_meta};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::imported::Imported;
use crate::output::reservation::Reservation;
use crate::output::text::{print, say};
use crate::spreadsheet::{self, Line, Which};
use crate::times::{Clock, parse_when};

/// Largest file that is read: far more than an import may hold.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most problems that are shown.
const PROBLEMS_MAX: usize = 50;

pub(super) async fn run(context: &Context, args: &ReservationImportArgs) -> Result<Exit, Failure> {
    let printer = context.printer(&args.output)?;
    let text = read(&args.file)?;
    let when = |text: &str| parse_when(text, context.clock.now, context.clock.zone());
    let lines = spreadsheet::read(&text, when).map_err(refused)?;
    let client = context.client()?;
    let reservations = requests(&client, &lines).await?;
    let dry_run = args.dry_run;
    let request =
        ImportReservationsRequest { meta: request_meta(&context.clock)?, reservations, dry_run };
    let call = client.call(request, async |api, r| api.import_reservations(r).await).await;
    let answer = call.map_err(|failure| by_line(failure, &lines, &context.clock))?;
    let items: Vec<Imported> = lines
        .iter()
        .zip(answer.items)
        .map(|(line, item)| {
            let created = item.outcome == "created";
            let mut reservation = item.reservation.map(Reservation::from);
            if let Some(drawn) = reservation.as_mut().filter(|_| dry_run && created) {
                // Nobody will find it under the name it had in the trial.
                drawn.id.clear();
            }
            let would = if dry_run && created { "would be " } else { "" };
            Imported { line: line.number, outcome: format!("{would}{}", item.outcome), reservation }
        })
        .collect();
    print(&printer.list(&items)?)?;
    say(&summary(&items, dry_run));
    Ok(Exit::Done)
}

fn summary(items: &[Imported], dry_run: bool) -> String {
    let count = |outcome: &str| items.iter().filter(|item| item.outcome == outcome).count();
    let (there, over) = (count("there"), count("over"));
    let new = items.len() - there - over;
    let mut text = if dry_run {
        format!("nothing was changed; {new} would be imported")
    } else {
        format!("{new} imported")
    };
    for (count, what) in [(there, "there already"), (over, "over")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |why: String| Failure::usage("FILE", format!("{}: {why}", path.display()));
    let source: Box<dyn io::Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| cannot(error.to_string()))?)
    };
    let mut bytes = Vec::new();
    let read = source.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| cannot(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(cannot(format!("more than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| {
        cannot("not UTF-8 text".to_owned()).hint("save it from the spreadsheet as CSV, UTF-8")
    })
}

/// The lines as the controller takes them.
async fn requests(
    client: &Client,
    lines: &[Line],
) -> Result<Vec<CreateReservationRequest>, Failure> {
    let (mut requests, mut problems) = (Vec::new(), Vec::new());
    let mut known = BTreeMap::new();
    for line in lines {
        match wish(client, line, &mut known).await {
            Ok(gpus) => requests.push(CreateReservationRequest {
                meta: None,
                gpus: Some(gpus),
                starts_at_unix_ms: line.start.unix_ms(),
                ends_at_unix_ms: line.end.unix_ms(),
                note: line.note.clone(),
                project: line.project.clone(),
                owner: line.user.clone(),
                length_ms: 0,
                at_end: String::new(),
                with: Vec::new(),
                adopts: None,
            }),
            Err(failure) if failure.unanswered || failure.unreached => return Err(failure),
            Err(failure) => {
                problems.push(format!("line {}: gpu: {}", line.number, failure.message))
            }
        }
    }
    if problems.is_empty() { Ok(requests) } else { Err(refused(problems)) }
}

/// `known`: the UUIDs of names that were asked for before.
async fn wish(
    client: &Client,
    line: &Line,
    known: &mut BTreeMap<String, String>,
) -> Result<GpuWish, Failure> {
    let mut wish = GpuWish { node: line.node.clone(), ..Default::default() };
    match &line.gpus {
        Which::Some(some) => {
            wish.count = some.count;
            wish.model = some.model.clone().unwrap_or_default();
        }
        Which::These(names) => {
            for name in names {
                let uuid = match known.get(name) {
                    Some(uuid) => uuid.clone(),
                    None => client.resolve(gpu::KIND, name).await?,
                };
                known.insert(name.clone(), uuid.clone());
                wish.uuids.push(uuid);
            }
            wish.count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        }
    }
    Ok(wish)
}

/// What is wrong with the file, before the controller saw any of it.
fn refused(mut problems: Vec<String>) -> Failure {
    let count = problems.len();
    if count > PROBLEMS_MAX {
        problems.truncate(PROBLEMS_MAX);
        problems.push(format!("and {} more", count - PROBLEMS_MAX));
    }
    let failure = Failure::new(Exit::Usage, "nothing was imported");
    Failure { details: problems, ..failure }
}

/// The controller's refusal by the file's own line numbers.
fn by_line(failure: Failure, lines: &[Line], clock: &Clock) -> Failure {
    let Some(Rejection::LinesRefused { problems }) = failure.rejection.as_deref() else {
        return failure;
    };
    let numbered = |at: u32| lines.get(at as usize).map_or(0, |line| line.number);
    let told = problems.iter().map(|LineProblem { line, why, taken_by }| {
        let number = numbered(*line);
        let why = Failure::of_rejection(why.clone(), clock);
        let detail = match (taken_by, why.details.first()) {
            (Some(other), _) => format!(": line {} takes it", numbered(*other)),
            // Of several holders the first one says enough.
            (None, Some(first)) => format!(": {first}"),
            (None, None) => String::new(),
        };
        format!("line {number}: {}{detail}", why.message)
    });
    let details = told.collect();
    refused(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(outcome: &str) -> Imported {
        Imported { line: 2, outcome: outcome.to_owned(), reservation: None }
    }

    #[test]
    fn the_summary_counts_each_kind() {
        let items = [item("created"), item("there"), item("over"), item("over")];
        assert_eq!(summary(&items, false), "1 imported, 1 there already, 2 over");
        let items = [item("would be created"), item("would be created")];
        assert_eq!(summary(&items, true), "nothing was changed; 2 would be imported");
    }

    #[test]
    fn a_flood_of_problems_is_cut() {
        let failure = refused((0..60).map(|n| format!("line {n}")).collect());
        assert_eq!(failure.details.len(), PROBLEMS_MAX + 1);
        assert_eq!(failure.details.last().map(String::as_str), Some("and 10 more"));
    }

    #[test]
    fn a_refusal_names_the_lines_of_the_file() {
        let text = "gpus,start,end\n\n1,2026-11-23,2026-11-24 10:00\n";
        let when =
            |text: &str| parse_when(text, jiff::Timestamp::UNIX_EPOCH, &jiff::tz::TimeZone::UTC);
        let lines = spreadsheet::read(text, when).unwrap_or_default();
        let why = Rejection::field("owner", "is no name");
        let rejection = Rejection::LinesRefused {
            problems: vec![LineProblem { line: 0, why, taken_by: None }],
        };
        let clock = Clock::of_this_machine();
        let failure = by_line(Failure::of_rejection(rejection, &clock), &lines, &clock);
        assert_eq!(failure.details, ["line 3: owner: is no name"]);
        assert_eq!(lines.first().map(|line| line.end), when("2026-11-24 10:00").ok());
    }
}
