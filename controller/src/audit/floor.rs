//! Where the stored records begin: behind the last one that was pruned, which is the floor.
//!
//! The floor is written together with the record of the prune, in one transaction. From then on no reader sees a
//! record at or below it. The records themselves are deleted afterwards, some at a time, so that no entry waits for
//! that; a crash between leaves them to the next start. Only the writer calls what changes something here.

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    WriteTransaction,
};

use super::derived;
use super::store::{
    AuditError, AuditStore, BY_LOG_INDEX, BY_OBJECT, BY_TIME, Head, NUMBERS, RECORDS, TEXTS,
    check_line,
};
use crate::blocking::blocking;
use fleet_core::Timestamp;

/// Records that are deleted in one transaction.
pub(super) const SWEEP_RECORDS: usize = 2_000;
/// Key in [`NUMBERS`]: number of the last record that was pruned.
const KEY_PRUNED: &str = "pruned_through";
/// Key in [`TEXTS`]: its hash.
const KEY_PRUNED_HASH: &str = "pruned_hash";

/// What a prune up to some record would take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prunable {
    /// Hash of the last of the records.
    pub hash: String,
    /// Numbers of the first and the last of them.
    pub first: u64,
    pub through: u64,
    /// Times of the oldest and the newest of them.
    pub from: Timestamp,
    pub until: Timestamp,
    /// Length of their lines.
    pub bytes: u64,
}

impl AuditStore {
    /// The last record that was pruned; number 0 if none was.
    pub fn floor(&self) -> Result<Head, AuditError> {
        floor(&self.db()?.begin_read().map_err(AuditError::read)?)
    }

    /// What a prune up to record `through` would take; `None` if that record is not here.
    pub async fn prunable(&self, through: u64) -> Result<Option<Prunable>, AuditError> {
        self.flush().await?;
        let db = self.db()?;
        blocking(move || prunable(&db, through))
            .await
            .map_err(|e| AuditError::Read(e.to_string()))?
    }
}

fn prunable(db: &Database, through: u64) -> Result<Option<Prunable>, AuditError> {
    let read = db.begin_read().map_err(AuditError::read)?;
    let first = floor(&read)?.seq + 1;
    if through < first {
        return Ok(None);
    }
    let records = read.open_table(RECORDS).map_err(AuditError::read)?;
    let Some(last) = records.get(through).map_err(AuditError::read)? else { return Ok(None) };
    let last = check_line(through, last.value())?;
    let mut found = Prunable { hash: last.hash, first, through, ..Prunable::default() };
    for row in records.range(first..=through).map_err(AuditError::read)? {
        found.bytes += row.map_err(AuditError::read)?.1.value().len() as u64 + 1;
    }
    // The newest time need not be that of the last record: an admin may have set the clock back.
    let by_time = read.open_table(BY_TIME).map_err(AuditError::read)?;
    let mut times = by_time.iter().map_err(AuditError::read)?.filter_map(|row| match row {
        Ok((key, _)) => {
            let (at, seq) = key.value();
            (first..=through).contains(&seq).then_some(Ok(at))
        }
        Err(error) => Some(Err(AuditError::read(error))),
    });
    found.from = Timestamp(times.next().transpose()?.unwrap_or_default());
    found.until = Timestamp(times.next_back().transpose()?.unwrap_or(found.from.0));
    Ok(Some(found))
}

/// The floor as `read` sees it.
pub(super) fn floor(read: &ReadTransaction) -> Result<Head, AuditError> {
    let numbers = read.open_table(NUMBERS).map_err(AuditError::read)?;
    let texts = read.open_table(TEXTS).map_err(AuditError::read)?;
    floor_in(&numbers, &texts)
}

pub(super) fn floor_in(
    numbers: &impl ReadableTable<&'static str, u64>,
    texts: &impl ReadableTable<&'static str, &'static str>,
) -> Result<Head, AuditError> {
    let seq = numbers.get(KEY_PRUNED).map_err(AuditError::read)?.map(|seq| seq.value());
    let hash = texts.get(KEY_PRUNED_HASH).map_err(AuditError::read)?;
    let hash = hash.map(|hash| hash.value().to_owned());
    Ok(match (seq, hash) {
        (Some(seq), Some(hash)) => Head { seq, hash },
        (_, _) => Head::default(),
    })
}

/// Puts the floor where `floor` says, as part of `write`.
pub(super) fn set(write: &WriteTransaction, floor: &Head) -> Result<(), redb::Error> {
    write.open_table(NUMBERS)?.insert(KEY_PRUNED, floor.seq)?;
    write.open_table(TEXTS)?.insert(KEY_PRUNED_HASH, floor.hash.as_str())?;
    Ok(())
}

/// Whether records at or below `floor` are still stored.
pub(super) fn has_left_overs(db: &Database, floor: u64) -> Result<bool, AuditError> {
    let read = db.begin_read().map_err(AuditError::read)?;
    let records = read.open_table(RECORDS).map_err(AuditError::read)?;
    if records.is_empty().map_err(AuditError::read)? {
        return Ok(false);
    }
    let first = records.first().map_err(AuditError::read)?;
    Ok(first.is_some_and(|(seq, _)| seq.value() <= floor))
}

/// Deletes some records at or below `floor`, the oldest first; says whether there are more.
pub(super) fn sweep(db: &Database, floor: u64) -> Result<bool, redb::Error> {
    let mut write = db.begin_write()?;
    write.set_two_phase_commit(true);
    let swept = {
        let mut records = write.open_table(RECORDS)?;
        let mut by_time = write.open_table(BY_TIME)?;
        let mut by_object = write.open_table(BY_OBJECT)?;
        let mut by_log_index = write.open_table(BY_LOG_INDEX)?;
        let mut oldest = Vec::new();
        for row in records.range(..=floor)?.take(SWEEP_RECORDS) {
            let (seq, line) = row?;
            oldest.push((seq.value(), line.value().to_owned()));
        }
        for (seq, line) in &oldest {
            records.remove(seq)?;
            // No query follows an index below the floor, so what a damaged record leaves there does no harm.
            let Ok(record) = check_line(*seq, line) else {
                tracing::warn!(seq, "a pruned audit record was damaged");
                continue;
            };
            derived::remove(&write, &record.body)?;
            by_time.remove((record.body.at.0, *seq))?;
            by_log_index.remove(record.body.log_index)?;
            for object in &record.body.objects {
                by_object.remove((object.as_str(), *seq))?;
            }
        }
        oldest.len()
    };
    write.commit()?;
    Ok(swept == SWEEP_RECORDS)
}
