//! `reservation import`: a spreadsheet becomes reservations, whole or not at all; `--undo` releases them.
//!
//! All errors are listed in one run: what the sheet shows, names that the fleet does not know, and
//! what the controller refuses of the lines that are well.

mod inventory;
mod problems;
mod undo;

use std::io::{self, Read as _};
use std::path::Path;

use fleet_core::fsm::IMPORT_LINES_MAX;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{CreateReservationRequest, GpuWish, ImportReservationsRequest};
use inventory::Inventory;

use super::Context;
use crate::args::ReservationImportArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::imported::Imported;
use crate::output::job::shell_words;
use crate::output::text::{print, say};
use crate::spreadsheet::{self, Named, Options, Problem, Sheet, SheetLine, parse_named};
use crate::times::{Clock, When};

/// Largest file that is read: 100,000 lines of CSV.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const HOUR_MS: u64 = 3_600_000;

pub(super) async fn run(context: &Context, args: &ReservationImportArgs) -> Result<Exit, Failure> {
    if let Some(id) = &args.undo {
        return undo::run(context, args, id).await;
    }
    let printer = context.printer(&args.output)?;
    let file = args.file.clone().unwrap_or_default();
    let bytes = read(&file)?;
    let options = Options {
        sheet: args.sheet.clone(),
        dates: args.dates,
        columns: named(&args.columns)?,
        grid: args.grid,
        lines: args.lines.clone(),
    };
    let sheet = spreadsheet::read(&bytes, &options, &context.clock)
        .map_err(|what| Failure::usage("FILE", format!("{}: it is {what}", file.display())))?;
    for note in &sheet.notes {
        say(&format!("note: {note}"));
    }
    let (over, lines) = parted(sheet.lines.clone(), &context.clock);
    check_count(&lines, args, &file)?;
    let client = context.client()?;
    let inventory = Inventory::of(&client, lines.iter().chain(&sheet.broken)).await?;
    let (requests, strange) = requests(&inventory, &lines, &sheet);
    let asked = Asked { dry_run: args.dry_run, new_users: args.new_users || args.consent.yes };
    if !strange.is_empty() || !sheet.problems.is_empty() {
        // Nothing will come of it: the controller only says what else is wrong, also with users of broken lines.
        let (rest, more) = self::requests(&inventory, &sheet.broken, &sheet);
        let strange = strange.into_iter().chain(more);
        let (problems, unwell): (Vec<Problem>, Vec<Numbered>) = strange.unzip();
        let mut wrong = [problems, sheet.problems.clone()].concat();
        let unwell = rest.into_iter().chain(unwell).collect();
        wrong.extend(refusals(context, &client, (requests, unwell), asked, &sheet).await);
        return Err(problems::refused(wrong));
    }
    let numbers: Vec<u64> = requests.iter().map(|(number, _)| *number).collect();
    let answer = if requests.is_empty() {
        Default::default()
    } else {
        let reservations = requests.into_iter().map(|(_, request)| request).collect();
        let call = send(&client, reservations, asked).await;
        call.map_err(|failure| problems::by_line(failure, &numbers, &sheet, &context.clock))?
    };
    let import = answer.import.clone();
    let mut items = imported(&lines, answer, args.dry_run);
    items.extend(over.iter().map(|line| Imported::over(line.number)));
    items.sort_by_key(|item| item.line);
    print(&printer.list(&items)?)?;
    say(&summary(&items, args.dry_run));
    if !import.is_empty() && !args.dry_run {
        say(&format!("this is {import}; undo it: fleet reservation import --undo {import}"));
    }
    Ok(Exit::Done)
}

fn named(said: &[String]) -> Result<Vec<Named>, Failure> {
    let mut all = Vec::new();
    for text in said {
        all.extend(parse_named(text).map_err(|why| Failure::usage("--columns", why))?);
    }
    Ok(all)
}

/// Lines that are over by this machine's clock, and the others: years of them need not be sent.
fn parted(lines: Vec<SheetLine>, clock: &Clock) -> (Vec<SheetLine>, Vec<SheetLine>) {
    lines.into_iter().partition(|line| matches!(line.end, When::At(end) if end <= clock.now))
}

/// # Errors
///
/// More lines than one step of the controllers may take, with the commands that import them in parts.
fn check_count(
    lines: &[SheetLine],
    args: &ReservationImportArgs,
    file: &Path,
) -> Result<(), Failure> {
    if lines.len() <= IMPORT_LINES_MAX {
        return Ok(());
    }
    let command = shell_words(&same_command(args, file));
    let file = file.display();
    let what = format!(
        "{file} has {} lines that are not over; one import takes {IMPORT_LINES_MAX}",
        lines.len()
    );
    let parts = parts(lines).into_iter();
    let mut parts = parts.map(|(first, last)| format!("{command} --lines {first}-{last}"));
    let failure = Failure::new(Exit::Usage, what);
    let hint = format!("import it in parts, the first with: {}", parts.next().unwrap_or_default());
    Err(Failure {
        details: parts.map(|part| format!("then {part}")).collect(),
        ..failure.hint(hint)
    })
}

/// The first and last rows of parts that one import takes. A row of a timetable has several lines: they stay together.
fn parts(lines: &[SheetLine]) -> Vec<(u64, u64)> {
    let (mut parts, mut taken): (Vec<(u64, u64)>, usize) = (Vec::new(), 0);
    for row in lines.chunk_by(|one, next| one.number == next.number) {
        let Some(number) = row.first().map(|line| line.number) else { continue };
        taken += row.len();
        match parts.last_mut() {
            Some((_, last)) if taken <= IMPORT_LINES_MAX => *last = number,
            _ => {
                parts.push((number, number));
                taken = row.len();
            }
        }
    }
    parts
}

/// The words that read the file as this command does, without the lines.
fn same_command(args: &ReservationImportArgs, file: &Path) -> Vec<String> {
    let mut words = ["fleet", "reservation", "import"].map(str::to_owned).to_vec();
    words.push(file.display().to_string());
    let dates = args.dates.map(|order| order.word().to_owned());
    let flags = [("--sheet", args.sheet.clone()), ("--dates", dates)];
    let columns = args.columns.iter().map(|text| ("--columns", Some(text.clone())));
    for (flag, value) in flags.into_iter().chain(columns) {
        words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    for (flag, is_said) in [("--grid", args.grid), ("--new-users", args.new_users)] {
        words.extend(is_said.then(|| flag.to_owned()));
    }
    words
}

/// How the controller is asked.
#[derive(Debug, Clone, Copy)]
struct Asked {
    dry_run: bool,
    new_users: bool,
}

async fn send(
    client: &Client,
    reservations: Vec<CreateReservationRequest>,
    Asked { dry_run, new_users }: Asked,
) -> Result<fleet_proto::v1::ImportReservationsResponse, Failure> {
    let meta = if dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
    let request = ImportReservationsRequest { meta, reservations, dry_run, new_users };
    client.call(request, async |api, r| api.import_reservations(r).await).await
}

/// A line's number, and what it asks for.
type Numbered = (u64, CreateReservationRequest);

/// What the controller has against the lines that are well so far, and against the users of those that are not.
async fn refusals(
    context: &Context,
    client: &Client,
    (well, broken): (Vec<Numbered>, Vec<Numbered>),
    asked: Asked,
    sheet: &Sheet,
) -> Vec<Problem> {
    let count = well.len();
    // Last, so that they take nothing from lines that are well; for an hour, as they have no times.
    let for_an_hour = broken.into_iter().map(|(number, request)| {
        (number, CreateReservationRequest { ends_at_unix_ms: 0, length_ms: HOUR_MS, ..request })
    });
    let (numbers, reservations): (Vec<u64>, Vec<_>) =
        well.into_iter().chain(for_an_hour).take(IMPORT_LINES_MAX).unzip();
    if reservations.is_empty() {
        return Vec::new();
    }
    match send(client, reservations, Asked { dry_run: true, ..asked }).await {
        Ok(_) => Vec::new(),
        Err(failure) => problems::of_failure(&failure, &numbers, count, (sheet, &context.clock)),
    }
}

fn imported(
    lines: &[SheetLine],
    answer: fleet_proto::v1::ImportReservationsResponse,
    dry_run: bool,
) -> Vec<Imported> {
    let items = lines.iter().zip(answer.items).map(|(line, item)| {
        let created = item.outcome == "created";
        let mut reservation = item.reservation.map(Reservation::from);
        if let Some(drawn) = reservation.as_mut().filter(|_| dry_run && created) {
            // Nobody will find it under the name it had in the trial.
            drawn.id.clear();
        }
        let would = if dry_run && created { "would be " } else { "" };
        Imported { line: line.number, outcome: format!("{would}{}", item.outcome), reservation }
    });
    items.collect()
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

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
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
        let limit = FILE_BYTES_MAX >> 20;
        return Err(cannot(format!("more than {limit} MiB, the largest file that is read")));
    }
    Ok(bytes)
}

/// The lines as the controller takes them, by their numbers; and those that name what the fleet does not have, with
/// what is wrong and as a wish for any GPU.
fn requests(
    inventory: &Inventory,
    lines: &[SheetLine],
    sheet: &Sheet,
) -> (Vec<Numbered>, Vec<(Problem, Numbered)>) {
    let (mut well, mut strange) = (Vec::new(), Vec::new());
    for line in lines {
        match inventory.wish(line) {
            Ok(gpus) => well.push((line.number, request(line, gpus))),
            Err((column, why)) => {
                let called = sheet.header.called(column);
                let problem = Problem::new(line.number, format!("{called}: {why}"));
                let any = GpuWish { count: 1, ..GpuWish::default() };
                strange.push((problem, (line.number, request(line, any))));
            }
        }
    }
    (well, strange)
}

fn request(line: &SheetLine, gpus: GpuWish) -> CreateReservationRequest {
    CreateReservationRequest {
        meta: None,
        gpus: Some(gpus),
        starts_at_unix_ms: line.start.unix_ms(),
        ends_at_unix_ms: line.end.unix_ms(),
        note: line.note.clone(),
        project: line.project.clone(),
        owner: line.user.clone(),
        length_ms: 0,
        at_end: String::new(),
        with: line.with.clone(),
        adopts: None,
        new_users: false,
        dry_run: false,
        wait_ms: 0,
        ask_reason: String::new(),
        ask_wait_ms: 0,
        offer: None,
    }
}

#[cfg(test)]
mod tests;
