//! How busy held GPUs were, beside the audit records: what nodes measured, by hour.
//!
//! A row is what counts for one holder on one node, of one model of GPU. `derived.rs` keeps the table; `stays.rs` reads it
//! for a report.

use fleet_core::Window;
use fleet_core::audit::AuditBody;
use fleet_core::gpu_use::hour_of;
use fleet_core::usage::{HourUse, Usage, use_measured_by};
use redb::{ReadTransaction, TableDefinition};

use super::derived::{Key, Read, Rows, read};
use super::store::AuditError;

/// (beginning of the hour, record number, which of the record's rows): the row, as JSON.
pub(super) const TABLE: Rows = TableDefinition::new("gpu_use");
/// Most rows that one report reads: a month of 170 nodes with eight jobs each at any time. They take 250 MiB at most while
/// the report is made. A report of more has no measured use.
pub const HOURS_READ_MAX: usize = 1_000_000;

/// The rows of a record, with their keys.
pub(super) fn of(body: &AuditBody) -> impl Iterator<Item = (Key, HourUse)> {
    let seen = body.events.iter().filter_map(use_measured_by);
    let hours = seen.flat_map(HourUse::all_of).zip(0..);
    hours.map(|(hour, number)| ((hour.hour.0, body.seq, number), hour))
}

/// Notes in `usage` what records up to `through` say of hours that have a part in the window.
pub(super) fn note(
    view: &ReadTransaction,
    usage: &mut Usage,
    window: Window,
    limits: (u64, usize),
) -> Result<Read, AuditError> {
    let last = window.ends_at.0.saturating_sub(1);
    read(view, TABLE, (hour_of(window.starts_at).0, last), limits, |seq, line| {
        let hour = serde_json::from_str(line).map_err(|error| AuditError::Damaged {
            seq,
            problem: format!("its measured use cannot be read: {error}"),
        })?;
        usage.note(&hour);
        Ok(())
    })
}
