//! `reservation import --undo`: releases what an import made.

use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::UndoImportRequest;

use crate::args::ReservationImportArgs;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn run(
    context: &Context,
    args: &ReservationImportArgs,
    id: &str,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = |dry_run| -> Result<UndoImportRequest, Failure> {
        let meta = if dry_run { client.meta_of_its_own()? } else { client.request_meta()? };
        Ok(UndoImportRequest { meta, id: id.to_owned(), dry_run })
    };
    if args.dry_run || args.consent.is_asked_for() {
        let call = client.call(request(true)?, async |api, r| api.undo_import(r).await).await?;
        let found: Vec<Reservation> = call.items.into_iter().map(Reservation::from).collect();
        let begun = found.iter().filter(|r| r.state.is(ReservationShown::Active)).count();
        let what = what(found.len(), begun, id);
        if args.dry_run {
            print(&printer.list(&found)?)?;
            say(&format!("nothing was changed; this would release {what}"));
            return Ok(Exit::Done);
        }
        args.consent.ask(&format!("Release {what}?"))?;
    }
    let call = client.call(request(false)?, async |api, r| api.undo_import(r).await).await?;
    let released: Vec<Reservation> = call.items.into_iter().map(Reservation::from).collect();
    print(&printer.changed(&released, |r| &r.id)?)?;
    say(&format!(
        "released {} reservations of {id}; import the corrected sheet again",
        released.len()
    ));
    Ok(Exit::Done)
}

/// `12 reservations of imp-k3v9, of which 2 have begun`.
fn what(count: usize, begun: usize, id: &str) -> String {
    let reservations = if count == 1 { "reservation" } else { "reservations" };
    match begun {
        0 => format!("{count} {reservations} of {id}"),
        _ => format!("{count} {reservations} of {id}, of which {begun} began and may be in use"),
    }
}
