//! Who held which GPUs, beside the audit records: the stays that are over, by their end.
//!
//! A stay is in the record that ended it, whole. `derived.rs` keeps the table of them.

use fleet_core::audit::AuditBody;
use fleet_core::stay::Stay;
use fleet_core::usage::{Usage, stay_ended_by};
use fleet_core::{Millis, Window};
use redb::{Database, ReadTransaction, ReadableDatabase, TableDefinition};

use super::derived::{Key, Read, Rows, read};
use super::measured;
use super::measured::HOURS_READ_MAX;
use super::store::{AuditError, AuditStore, NUMBERS};
use crate::blocking::blocking;

/// (end, record number, which of the record's stays): the stay, as JSON.
pub(super) const TABLE: Rows = TableDefinition::new("stays");
/// Key in [`NUMBERS`]: no stay is longer than this, in milliseconds.
pub(super) const KEY_LONGEST: &str = "stays_longest_ms";
/// Most stays that one report reads. With the ids that it keeps of them this is about 100 MiB.
pub const STAYS_READ_MAX: usize = 1_000_000;

/// What came of adding up.
#[derive(Debug, Clone)]
pub enum Added {
    All {
        usage: Box<Usage>,
        /// There are more measured hours than [`HOURS_READ_MAX`]: all that was held counts as unknown.
        measured_left_out: bool,
    },
    /// There are more than [`STAYS_READ_MAX`].
    TooMany,
}

impl AuditStore {
    /// Adds to `usage` what lasts, and what the records up to `through` say of the window. One view of the database: a
    /// prune meanwhile changes nothing. Sees everything applied here before the call.
    pub async fn add_stays(
        &self,
        usage: Usage,
        lasting: Vec<Stay>,
        window: Window,
        through: u64,
    ) -> Result<Added, AuditError> {
        self.flush().await?;
        let db = self.db()?;
        let most = (STAYS_READ_MAX, HOURS_READ_MAX);
        blocking(move || add_stays(&db, usage, &lasting, window, through, most))
            .await
            .map_err(|e| AuditError::Read(e.to_string()))?
    }
}

/// Reads at most this many stays and measured hours.
pub(super) fn add_stays(
    db: &Database,
    mut usage: Usage,
    lasting: &[Stay],
    window: Window,
    through: u64,
    (stays_max, hours_max): (usize, usize),
) -> Result<Added, AuditError> {
    let view = db.begin_read().map_err(AuditError::read)?;
    // Before the stays, which take it.
    let noted = measured::note(&view, &mut usage, window, (through, hours_max))?;
    let measured_left_out = noted == Read::TooMany;
    if measured_left_out {
        usage.forget_measured();
    }
    lasting.iter().for_each(|stay| usage.add(stay));
    // One that ends as the window begins has no part in it. One that ends later than this began after the window.
    let span = (window.starts_at.0.saturating_add(1), (window.ends_at + longest(&view)?).0);
    let all = read(&view, TABLE, span, (through, stays_max), |seq, line| {
        usage.add(&read_stay(seq, line)?);
        Ok(())
    })?;
    Ok(match all {
        Read::All => Added::All { usage: Box::new(usage), measured_left_out },
        Read::TooMany => Added::TooMany,
    })
}

fn read_stay(seq: u64, line: &str) -> Result<Stay, AuditError> {
    serde_json::from_str(line).map_err(|error| AuditError::Damaged {
        seq,
        problem: format!("its stay cannot be read: {error}"),
    })
}

fn longest(view: &ReadTransaction) -> Result<Millis, AuditError> {
    let numbers = view.open_table(NUMBERS).map_err(AuditError::read)?;
    let longest = numbers.get(KEY_LONGEST).map_err(AuditError::read)?;
    Ok(Millis(longest.map_or(0, |longest| longest.value())))
}

/// The stays of a record, with their keys.
pub(super) fn of(body: &AuditBody) -> impl Iterator<Item = (Key, &Stay)> {
    let stays = body.events.iter().filter_map(stay_ended_by);
    stays.zip(0..).map(|(stay, number)| ((stay.until.0, body.seq, number), stay))
}
