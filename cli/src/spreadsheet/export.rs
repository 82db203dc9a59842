//! The calendar as a sheet that an import reads again.

use fleet_proto::json::reservation::Reservation;
use fleet_proto::json::values::{Time, gpu_names};

use super::wording::no_formula;
use crate::times::Clock;

/// The columns, by the names that an import knows.
const HEADER: [&str; 7] = ["user", "gpu", "start", "end", "note", "project", "with"];

/// One line for each reservation, with the GPUs that it has. Times have their offset, so that the file means the
/// same on every machine.
pub(crate) fn csv(reservations: &[Reservation], clock: &Clock) -> String {
    let mut lines = csv::Writer::from_writer(Vec::new());
    let rows = reservations.iter().map(|r| {
        let at = |at: Option<Time>| at.map(|at| clock.exact(at.0)).unwrap_or_default();
        let gpus: Vec<String> =
            r.gpus.iter().map(|gpu| gpu_names(std::slice::from_ref(gpu))).collect();
        [
            r.owner.clone(),
            gpus.join(" "),
            at(r.starts_at),
            at(r.ends_at),
            no_formula(r.note.as_deref().unwrap_or_default()),
            no_formula(&r.project),
            r.with.join(" "),
        ]
    });
    let head = HEADER.map(str::to_owned);
    for row in std::iter::once(head).chain(rows) {
        // Into memory, and every row has the same number of cells: nothing can fail.
        drop(lines.write_record(&row));
    }
    lines.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}
