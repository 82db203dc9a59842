//! Tables beside the audit records that hold what the records say, in another order: `stays` and `measured`.
//!
//! They are derived from the records alone, in the transaction that stores or deletes them: every controller has the same,
//! and a record that comes twice changes nothing. A database without them, or with them in another version, gets them from
//! the records when it is opened. The writer alone changes them.

use fleet_core::audit::AuditBody;
use redb::{Database, ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::floor::{floor, floor_in};
use super::store::{AuditError, NUMBERS, RECORDS, TEXTS, check_line};
use super::{measured, stays};

/// (time, record number, which of the record's rows): the row, as JSON.
pub(super) type Rows = TableDefinition<'static, (u64, u64, u32), &'static str>;
pub(super) type Key = (u64, u64, u32);

/// Version of the tables, and of what is derived.
const VERSION: u64 = 2;
/// Key in [`NUMBERS`]: version of the tables.
const KEY_VERSION: &str = "stays_version";
/// Key in [`NUMBERS`]: what all records up to this number say is in the tables.
const KEY_THROUGH: &str = "stays_through";
/// Records that are read in one transaction while the tables are made again.
const REBUILD_RECORDS: usize = 2_000;

/// Adds what records say, as part of the transaction that stores the records.
pub(super) fn insert<'a>(
    write: &WriteTransaction,
    records: impl IntoIterator<Item = &'a AuditBody>,
) -> Result<(), redb::Error> {
    let (mut through, mut longest) = (0, 0);
    {
        let mut ended = write.open_table(stays::TABLE)?;
        let mut hours = write.open_table(measured::TABLE)?;
        for body in records {
            through = through.max(body.seq);
            for (key, stay) in stays::of(body) {
                longest = longest.max(stay.until.since(stay.from).0);
                // Plain data with text keys cannot fail to serialise.
                ended.insert(key, serde_json::to_string(stay).unwrap_or_default().as_str())?;
            }
            for (key, hour) in measured::of(body) {
                hours.insert(key, serde_json::to_string(&hour).unwrap_or_default().as_str())?;
            }
        }
    }
    let mut numbers = write.open_table(NUMBERS)?;
    for (key, value) in [(KEY_THROUGH, through), (stays::KEY_LONGEST, longest)] {
        let before = numbers.get(key)?.map_or(0, |before| before.value());
        numbers.insert(key, before.max(value))?;
    }
    Ok(())
}

/// Deletes what a record says, with the record.
pub(super) fn remove(write: &WriteTransaction, body: &AuditBody) -> Result<(), redb::Error> {
    let mut ended = write.open_table(stays::TABLE)?;
    for (key, _) in stays::of(body) {
        ended.remove(key)?;
    }
    let mut hours = write.open_table(measured::TABLE)?;
    for (key, _) in measured::of(body) {
        hours.remove(key)?;
    }
    Ok(())
}

/// What came of reading rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    All,
    /// There are more than was allowed.
    TooMany,
}

/// Gives the rows of a span of time to `take`, at most `most`, of records up to `through` that were not pruned.
pub(super) fn read(
    view: &ReadTransaction,
    table: Rows,
    (from, last): (u64, u64),
    (through, most): (u64, usize),
    mut take: impl FnMut(u64, &str) -> Result<(), AuditError>,
) -> Result<Read, AuditError> {
    if from > last {
        return Ok(Read::All);
    }
    let first = floor(view)?.seq + 1;
    let rows = view.open_table(table).map_err(AuditError::read)?;
    let span = (from, 0, 0)..=(last, u64::MAX, u32::MAX);
    for (number, row) in rows.range(span).map_err(AuditError::read)?.enumerate() {
        if number >= most {
            return Ok(Read::TooMany);
        }
        let (key, line) = row.map_err(AuditError::read)?;
        let (_, seq, _) = key.value();
        // What was pruned may not be deleted yet.
        if (first..=through).contains(&seq) {
            take(seq, line.value())?;
        }
    }
    Ok(Read::All)
}

/// Makes the tables of the records, as far as they are missing. A start that is cut off continues where it was.
pub(super) fn rebuild(db: &Database) -> Result<(), AuditError> {
    let write = db.begin_write().map_err(AuditError::read)?;
    {
        let mut numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        let version = numbers.get(KEY_VERSION).map_err(AuditError::read)?.map(|v| v.value());
        if version != Some(VERSION) {
            for table in [stays::TABLE, measured::TABLE] {
                write.delete_table(table).map_err(AuditError::read)?;
            }
            for (key, value) in [(KEY_VERSION, VERSION), (KEY_THROUGH, 0), (stays::KEY_LONGEST, 0)]
            {
                numbers.insert(key, value).map_err(AuditError::read)?;
            }
        }
        for table in [stays::TABLE, measured::TABLE] {
            write.open_table(table).map_err(AuditError::read)?;
        }
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
        tracing::info!(
            records = read,
            "who held and used which GPUs was read from the audit records"
        );
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

/// For tests: as a build without the tables left it, or one with another version of them.
#[cfg(test)]
pub(super) fn forget(db: &Database, version: Option<u64>) -> Result<(), AuditError> {
    let write = db.begin_write().map_err(AuditError::read)?;
    {
        let mut numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        match version {
            Some(version) => drop(numbers.insert(KEY_VERSION, version).map_err(AuditError::read)?),
            None => {
                for key in [KEY_VERSION, KEY_THROUGH, stays::KEY_LONGEST] {
                    numbers.remove(key).map_err(AuditError::read)?;
                }
                for table in [stays::TABLE, measured::TABLE] {
                    write.delete_table(table).map_err(AuditError::read)?;
                }
            }
        }
    }
    write.commit().map_err(AuditError::read)
}

/// For tests: how many rows a table has.
#[cfg(test)]
pub(super) fn rows(db: &Database, table: Rows) -> Result<u64, AuditError> {
    let read = redb::ReadableDatabase::begin_read(db).map_err(AuditError::read)?;
    redb::ReadableTableMetadata::len(&read.open_table(table).map_err(AuditError::read)?)
        .map_err(AuditError::read)
}
