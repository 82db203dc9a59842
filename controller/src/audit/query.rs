//! Reading the audit log: pages of records by number, time or object. Never changes anything.

use fleet_core::{AuditRecord, Timestamp};
use redb::{Database, ReadTransaction, ReadableDatabase};

use super::floor::floor;
use super::store::{AuditError, AuditStore, BY_OBJECT, BY_TIME, RECORDS, check_line};
use crate::blocking::blocking;

/// Most records of one page, whatever was asked for.
pub const PAGE_RECORDS_MAX: usize = 1_000;
/// Most records behind a page that are counted.
const BEHIND_COUNTED_MAX: usize = 10_000;

/// Which end of the log comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordOrder {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Which records are wanted. All conditions hold together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Not before this record.
    pub from_seq: Option<u64>,
    /// Not behind this record.
    pub to_seq: Option<u64>,
    /// Not before this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// Only what touched this object (an id or a name, whole).
    pub object: Option<String>,
    pub order: RecordOrder,
    /// Wanted length of the page; at most [`PAGE_RECORDS_MAX`], 0 means that.
    pub limit: usize,
}

/// Records, and where the next page begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    pub records: Vec<AuditRecord>,
    /// Ask again with this as `from_seq` (oldest first) or `to_seq` (newest first).
    pub next: Option<u64>,
    /// How many records of the object are behind this page, as far as they are counted.
    pub behind: u64,
}

impl AuditStore {
    /// Reads one page. Sees everything applied here before the call.
    pub async fn query(&self, query: Query) -> Result<Page, AuditError> {
        self.flush().await?;
        let db = self.db()?;
        blocking(move || read_page(&db, &query))
            .await
            .map_err(|e| AuditError::Read(e.to_string()))?
    }
}

/// First and last record number the conditions on number and time leave. What was pruned is not there, though it
/// may not be deleted yet.
fn bounds(read: &ReadTransaction, query: &Query) -> Result<Option<(u64, u64)>, AuditError> {
    let mut first = query.from_seq.unwrap_or(0).max(floor(read)?.seq + 1);
    let mut last = query.to_seq.unwrap_or(u64::MAX);
    if query.since.is_some() || query.until.is_some() {
        // Times rise with numbers, but for an operator's reset of the clock: take the widest span
        // and let the records themselves decide.
        let by_time = read.open_table(BY_TIME).map_err(AuditError::read)?;
        let since = query.since.map_or(0, |t| t.0);
        let until = query.until.map_or(u64::MAX, |t| t.0);
        if since >= until {
            return Ok(None);
        }
        let mut range = by_time.range((since, 0)..(until, 0)).map_err(AuditError::read)?;
        let oldest = range.next().transpose().map_err(AuditError::read)?;
        let newest = range.next_back().transpose().map_err(AuditError::read)?;
        let Some((oldest, _)) = oldest else { return Ok(None) };
        let oldest = oldest.value().1;
        let newest = newest.map_or(oldest, |(key, _)| key.value().1);
        first = first.max(oldest.min(newest));
        last = last.min(oldest.max(newest));
    }
    Ok((first <= last).then_some((first, last)))
}

fn read_page(db: &Database, query: &Query) -> Result<Page, AuditError> {
    // One view of all tables: a prune meanwhile changes nothing here.
    let read = db.begin_read().map_err(AuditError::read)?;
    let Some((first, last)) = bounds(&read, query)? else { return Ok(Page::default()) };
    let limit = match query.limit {
        0 => PAGE_RECORDS_MAX,
        wanted => wanted.min(PAGE_RECORDS_MAX),
    };
    let records = read.open_table(RECORDS).map_err(AuditError::read)?;
    let mut page = Page::default();
    let mut take = |seq: u64, line: &str| -> Result<bool, AuditError> {
        if page.records.len() == limit {
            page.next = Some(seq);
            return Ok(false);
        }
        let record = check_line(seq, line)?;
        let at = record.body.at;
        if query.since.is_none_or(|t| at >= t) && query.until.is_none_or(|t| at < t) {
            page.records.push(record);
        }
        Ok(true)
    };
    if let Some(object) = query.object.as_deref() {
        let by_object = read.open_table(BY_OBJECT).map_err(AuditError::read)?;
        let range = by_object.range((object, first)..=(object, last)).map_err(AuditError::read)?;
        let mut keys = in_order(range, query.order);
        for key in keys.by_ref() {
            let seq = key.map_err(AuditError::read)?.0.value().1;
            let line = records.get(seq).map_err(AuditError::read)?;
            let line = line.ok_or_else(|| AuditError::Damaged {
                seq,
                problem: "the index names it, but it is missing".to_owned(),
            })?;
            if !take(seq, line.value())? {
                break;
            }
        }
        if page.next.is_some() {
            page.behind = 1 + keys.take(BEHIND_COUNTED_MAX - 1).count() as u64;
        }
    } else {
        let range = records.range(first..=last).map_err(AuditError::read)?;
        for row in in_order(range, query.order) {
            let (seq, line) = row.map_err(AuditError::read)?;
            if !take(seq.value(), line.value())? {
                break;
            }
        }
    }
    Ok(page)
}

fn in_order<T>(
    range: impl DoubleEndedIterator<Item = T> + 'static,
    order: RecordOrder,
) -> Box<dyn Iterator<Item = T>> {
    match order {
        RecordOrder::OldestFirst => Box::new(range),
        RecordOrder::NewestFirst => Box::new(range.rev()),
    }
}
