//! Who held which GPUs, beside the audit records: the stays that are over, by their end.
//!
//! A stay is in the record that ended it, whole. So this is derived from the records alone, in the transaction that stores
//! or deletes them: every controller has the same, and a record that comes twice changes nothing. A database without it, or
//! with it in another version, gets it from the records when it is opened. The writer alone changes it.

use fleet_core::audit::AuditBody;
use fleet_core::stay::Stay;
use fleet_core::usage::{Usage, stay_ended_by};
use fleet_core::{Millis, Window};
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use super::floor::{floor, floor_in};
use super::store::{AuditError, AuditStore, NUMBERS, RECORDS, TEXTS, check_line};
use crate::blocking::blocking;

/// (end, record number, which of the record's stays): the stay, as JSON.
const STAYS: TableDefinition<'static, (u64, u64, u32), &str> = TableDefinition::new("stays");
/// Version of the table, and of what is derived.
const STAYS_VERSION: u64 = 1;
/// Key in [`NUMBERS`]: version of [`STAYS`].
const KEY_VERSION: &str = "stays_version";
/// Key in [`NUMBERS`]: the stays of all records up to this number are in the table.
const KEY_THROUGH: &str = "stays_through";
/// Key in [`NUMBERS`]: no stay is longer than this.
const KEY_LONGEST: &str = "stays_longest_ms";
/// Records that are read in one transaction while the table is made again.
const REBUILD_RECORDS: usize = 2_000;
/// Most stays that one report reads. With the ids that it keeps of them this is about 100 MiB.
pub const STAYS_READ_MAX: usize = 1_000_000;

/// What came of adding up.
#[derive(Debug, Clone)]
pub enum Added {
    All(Usage),
    /// There are more than [`STAYS_READ_MAX`].
    TooMany,
}

impl AuditStore {
    /// Adds to `usage` what the records up to `through` say of the window. One view of the database: a prune meanwhile
    /// changes nothing. Sees everything applied here before the call.
    pub async fn add_stays(
        &self,
        usage: Usage,
        window: Window,
        through: u64,
    ) -> Result<Added, AuditError> {
        self.flush().await?;
        let db = self.db()?;
        blocking(move || add_stays(&db, usage, window, (through, STAYS_READ_MAX)))
            .await
            .map_err(|e| AuditError::Read(e.to_string()))?
    }
}

/// At most `most` are read.
pub(super) fn add_stays(
    db: &Database,
    mut usage: Usage,
    window: Window,
    (through, most): (u64, usize),
) -> Result<Added, AuditError> {
    let read = db.begin_read().map_err(AuditError::read)?;
    let first = floor(&read)?.seq + 1;
    let longest = longest(&read)?;
    let stays = read.open_table(STAYS).map_err(AuditError::read)?;
    // One that ends as the window begins has no part in it. One that ends later than this began after the window.
    let from = (window.starts_at.0.saturating_add(1), 0, 0);
    let last = ((window.ends_at + longest).0, u64::MAX, u32::MAX);
    if from > last {
        return Ok(Added::All(usage));
    }
    for (number, row) in stays.range(from..=last).map_err(AuditError::read)?.enumerate() {
        if number >= most {
            return Ok(Added::TooMany);
        }
        let (key, line) = row.map_err(AuditError::read)?;
        let (_, seq, _) = key.value();
        // What was pruned may not be deleted yet.
        if (first..=through).contains(&seq) {
            usage.add(&read_stay(seq, line.value())?);
        }
    }
    Ok(Added::All(usage))
}

fn read_stay(seq: u64, line: &str) -> Result<Stay, AuditError> {
    serde_json::from_str(line).map_err(|error| AuditError::Damaged {
        seq,
        problem: format!("its stay cannot be read: {error}"),
    })
}

fn longest(read: &ReadTransaction) -> Result<Millis, AuditError> {
    let numbers = read.open_table(NUMBERS).map_err(AuditError::read)?;
    let longest = numbers.get(KEY_LONGEST).map_err(AuditError::read)?;
    Ok(Millis(longest.map_or(0, |longest| longest.value())))
}

/// The stays of a record, with their keys.
fn of(body: &AuditBody) -> impl Iterator<Item = ((u64, u64, u32), &Stay)> {
    let stays = body.events.iter().filter_map(stay_ended_by);
    stays.zip(0..).map(|(stay, number)| ((stay.until.0, body.seq, number), stay))
}

/// Adds the stays of records, as part of the transaction that stores the records.
pub(super) fn insert<'a>(
    write: &WriteTransaction,
    records: impl IntoIterator<Item = &'a AuditBody>,
) -> Result<(), redb::Error> {
    let mut stays = write.open_table(STAYS)?;
    let (mut through, mut longest) = (0, Millis::ZERO);
    for body in records {
        through = through.max(body.seq);
        for (key, stay) in of(body) {
            longest = longest.max(stay.until.since(stay.from));
            // Plain data with text keys cannot fail to serialise.
            let line = serde_json::to_string(stay).unwrap_or_default();
            stays.insert(key, line.as_str())?;
        }
    }
    let mut numbers = write.open_table(NUMBERS)?;
    for (key, value) in [(KEY_THROUGH, through), (KEY_LONGEST, longest.0)] {
        let before = numbers.get(key)?.map_or(0, |before| before.value());
        numbers.insert(key, before.max(value))?;
    }
    Ok(())
}

/// Deletes those of a record, with the record.
pub(super) fn remove(write: &WriteTransaction, body: &AuditBody) -> Result<(), redb::Error> {
    let mut stays = write.open_table(STAYS)?;
    for (key, _) in of(body) {
        stays.remove(key)?;
    }
    Ok(())
}

/// Makes the table of the records, as far as it is missing. A start that is cut off continues where it was.
pub(super) fn rebuild(db: &Database) -> Result<(), AuditError> {
    let write = db.begin_write().map_err(AuditError::read)?;
    {
        let mut numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        let version = numbers.get(KEY_VERSION).map_err(AuditError::read)?.map(|v| v.value());
        if version != Some(STAYS_VERSION) {
            write.delete_table(STAYS).map_err(AuditError::read)?;
            numbers.insert(KEY_VERSION, STAYS_VERSION).map_err(AuditError::read)?;
            numbers.insert(KEY_THROUGH, 0).map_err(AuditError::read)?;
            numbers.insert(KEY_LONGEST, 0).map_err(AuditError::read)?;
        }
        write.open_table(STAYS).map_err(AuditError::read)?;
    }
    write.commit().map_err(AuditError::read)?;
    let mut read = 0;
    loop {
        match rebuild_some(db)? {
            0 => break,
            some => read += some,
        }
    }
    if read > 0 {
        tracing::info!(records = read, "who held which GPUs was read from the audit records");
    }
    Ok(())
}

/// Reads the next records; says how many.
fn rebuild_some(db: &Database) -> Result<usize, AuditError> {
    let mut write = db.begin_write().map_err(AuditError::read)?;
    write.set_two_phase_commit(true);
    let bodies = {
        let numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        let texts = write.open_table(TEXTS).map_err(AuditError::read)?;
        let through = numbers.get(KEY_THROUGH).map_err(AuditError::read)?;
        let through = through.map_or(0, |through| through.value());
        let first = through.max(floor_in(&numbers, &texts)?.seq) + 1;
        let records = write.open_table(RECORDS).map_err(AuditError::read)?;
        let mut bodies = Vec::new();
        for row in records.range(first..).map_err(AuditError::read)?.take(REBUILD_RECORDS) {
            let (seq, line) = row.map_err(AuditError::read)?;
            bodies.push(check_line(seq.value(), line.value())?.body);
        }
        bodies
    };
    if bodies.is_empty() {
        return Ok(0);
    }
    insert(&write, &bodies).map_err(AuditError::read)?;
    write.commit().map_err(AuditError::read)?;
    Ok(bodies.len())
}

/// For tests: as a build without the table left it, or one with another version of it.
#[cfg(test)]
pub(super) fn forget(db: &Database, version: Option<u64>) -> Result<(), AuditError> {
    let write = db.begin_write().map_err(AuditError::read)?;
    {
        let mut numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        match version {
            Some(version) => drop(numbers.insert(KEY_VERSION, version).map_err(AuditError::read)?),
            None => {
                for key in [KEY_VERSION, KEY_THROUGH, KEY_LONGEST] {
                    numbers.remove(key).map_err(AuditError::read)?;
                }
                write.delete_table(STAYS).map_err(AuditError::read)?;
            }
        }
    }
    write.commit().map_err(AuditError::read)
}

/// For tests: how many rows the table has.
#[cfg(test)]
pub(super) fn rows(db: &Database) -> Result<u64, AuditError> {
    let read = db.begin_read().map_err(AuditError::read)?;
    redb::ReadableTableMetadata::len(&read.open_table(STAYS).map_err(AuditError::read)?)
        .map_err(AuditError::read)
}
