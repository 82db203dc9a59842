//! The audit database: records by number, with indices by time and by object.
//!
//! Records arrive from the state machine in log order and are written by one thread (`writer`), at the latest
//! after a second; a snapshot waits for them, and only entries below a snapshot are purged
//! from the log, so whatever is not on disk yet is made again by replay. A record that is made again
//! must be the one that is stored, byte for byte; otherwise the process ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use fleet_core::AuditRecord;
use fleet_core::audit::{self, AuditBody};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend as _, TableDefinition};
use tokio::sync::oneshot;

use super::backend::DiskBackend;
use super::derived;
use super::floor;
use super::writer::{Message, Queue, Slot, Writer};
use crate::disk::Disk;
use crate::fatal::FatalHook;

/// Cache of the database.
const CACHE_BYTES: usize = 4 << 20;
/// Size up to which every page is checked at start; about a second of reading.
const CHECK_BYTES_MAX: u64 = 1 << 30;
/// Name of the database, beside log and snapshot.
pub(crate) const AUDIT_FILE: &str = "audit.redb";
/// Version of the tables.
const FORMAT_VERSION: u64 = 1;

/// Record number to its line.
pub(super) const RECORDS: TableDefinition<'static, u64, &str> = TableDefinition::new("records");
/// (time, number): records by time.
pub(super) const BY_TIME: TableDefinition<'static, (u64, u64), ()> =
    TableDefinition::new("by_time");
/// (object, number): records by what they touched.
pub(super) const BY_OBJECT: TableDefinition<'static, (&str, u64), ()> =
    TableDefinition::new("by_object");
/// Log index to record number.
pub(super) const BY_LOG_INDEX: TableDefinition<'static, u64, u64> =
    TableDefinition::new("by_log_index");
pub(super) const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");
pub(super) const TEXTS: TableDefinition<'static, &str, &str> = TableDefinition::new("texts");

/// Key in [`NUMBERS`]: version of the tables.
const KEY_FORMAT: &str = "format_version";
/// Key in [`NUMBERS`]: every record of entries up to this log index is stored.
pub(super) const KEY_THROUGH: &str = "through_log_index";
/// Key in [`TEXTS`].
const KEY_CLUSTER: &str = "cluster";

/// Why the audit database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("{} cannot be opened: {problem}; nothing was changed", file.display())]
    Open { file: PathBuf, problem: String },
    #[error("{} belongs to cluster {found}, not to {wanted}", file.display())]
    Foreign { file: PathBuf, found: String, wanted: String },
    #[error("{} has format version {found}, this build reads up to {FORMAT_VERSION}: install the newer fleet again", file.display())]
    TooNew { file: PathBuf, found: u64 },
    #[error("audit record {seq} is missing or damaged: {problem}")]
    Damaged { seq: u64, problem: String },
    #[error("cannot read the audit database: {0}")]
    Read(String),
    #[error("the audit log's writer has stopped")]
    Stopped,
}

impl AuditError {
    pub(super) fn read(error: impl Into<redb::Error>) -> AuditError {
        AuditError::Read(error.into().to_string())
    }
}

/// The end of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Number of the newest record, 0 if there is none.
    pub seq: u64,
    /// Its hash, or the genesis value.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Head { seq: 0, hash: audit::GENESIS.to_owned() }
    }
}

/// Handle to the audit log. Clones share one database and one writer.
#[derive(Debug, Clone)]
pub struct AuditStore {
    slot: Arc<Slot>,
    queue: Queue,
}

impl AuditStore {
    /// Opens (or creates) the database and starts its writer.
    pub(crate) fn open(
        file: &Path,
        cluster: &str,
        fatal: FatalHook,
    ) -> Result<AuditStore, AuditError> {
        let opening = |problem: String| AuditError::Open { file: file.to_owned(), problem };
        let mut db = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(file)
            .map_err(|e| opening(e.to_string()))?;
        let bytes = std::fs::metadata(file).map_err(|e| opening(e.to_string()))?.len();
        check_pages(&mut db, file, bytes)?;
        let (head, floor) = prepare(&db, file, cluster)?;
        derived::rebuild(&db)?;
        let (writer, slot) = Writer::new(db, head, floor, fatal)?;
        let queue = Queue::to_thread(writer).map_err(|e| opening(e.to_string()))?;
        Ok(AuditStore { slot, queue })
    }

    /// The same on a simulated disk and without a thread.
    pub(crate) fn open_on(
        disk: &dyn Disk,
        cluster: &str,
        fatal: FatalHook,
    ) -> Result<AuditStore, AuditError> {
        let file = disk.path().join(AUDIT_FILE);
        let opening = |problem: String| AuditError::Open { file: file.clone(), problem };
        let backend = DiskBackend::open(disk, AUDIT_FILE).map_err(|e| opening(e.to_string()))?;
        let bytes = backend.len().map_err(|e| opening(e.to_string()))?;
        let mut db = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(backend)
            .map_err(|e| opening(e.to_string()))?;
        check_pages(&mut db, &file, bytes)?;
        let (head, floor) = prepare(&db, &file, cluster)?;
        derived::rebuild(&db)?;
        let (writer, slot) = Writer::new(db, head, floor, fatal)?;
        Ok(AuditStore { slot, queue: Queue::direct(writer) })
    }

    /// Takes what applying the entry `log_index` made. Called by the state machine, in log order.
    /// Waits (briefly: one commit) only when the writer is far behind.
    pub(crate) fn applied(
        &self,
        log_index: u64,
        record: Option<AuditRecord>,
    ) -> Result<(), AuditError> {
        let record = record.map(Box::new);
        self.queue.send(Message::Applied { log_index, record })
    }

    /// Returns once everything taken so far is on disk.
    pub async fn flush(&self) -> Result<(), AuditError> {
        self.ask(Message::Flush).await
    }

    /// Takes records that another controller sent ahead of a snapshot: each must continue the chain
    /// (or be stored already). They are on disk when this returns.
    pub(crate) async fn fetched(&self, lines: String) -> Result<(), AuditError> {
        let (done, finished) = oneshot::channel();
        self.queue.send(Message::Fetched(lines, done))?;
        finished.await.map_err(|_| AuditError::Stopped)?
    }

    /// Lets the records begin behind `floor`, which a prune that was applied elsewhere named: those up to it are deleted,
    /// and the chain continues from there. It is on disk when this returns.
    ///
    /// # Errors
    /// The record that is here under this number is another one.
    pub(crate) async fn begin_behind(&self, floor: Head) -> Result<(), AuditError> {
        let (done, finished) = oneshot::channel();
        self.queue.send(Message::BeginBehind(floor, done))?;
        finished.await.map_err(|_| AuditError::Stopped)?
    }

    /// Writes what is left and ends the writer.
    pub(crate) async fn close(&self) -> Result<(), AuditError> {
        self.ask(Message::Close).await
    }

    async fn ask(
        &self,
        message: impl FnOnce(oneshot::Sender<()>) -> Message,
    ) -> Result<(), AuditError> {
        let (done, finished) = oneshot::channel();
        self.queue.send(message(done))?;
        finished.await.map_err(|_| AuditError::Stopped)
    }

    /// The database, for the length of one read.
    pub(super) fn db(&self) -> Result<Arc<Database>, AuditError> {
        let slot = self.slot.0.read().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or(AuditError::Stopped)
    }

    /// The end of the chain on disk.
    pub fn head(&self) -> Result<Head, AuditError> {
        let read = self.db()?.begin_read().map_err(AuditError::read)?;
        head_of(&read.open_table(RECORDS).map_err(AuditError::read)?, &floor::floor(&read)?)
    }

    /// Every record of entries up to this log index is on disk.
    pub fn durable_log_index(&self) -> Result<u64, AuditError> {
        let read = self.db()?.begin_read().map_err(AuditError::read)?;
        let numbers = read.open_table(NUMBERS).map_err(AuditError::read)?;
        let through = numbers.get(KEY_THROUGH).map_err(AuditError::read)?;
        Ok(through.map_or(0, |through| through.value()))
    }

    /// Whether record `seq` is on disk with this hash: what a snapshot claims must be there. A record that was pruned
    /// was there. The log continues from it to the floor, where its replay is compared.
    pub(crate) fn contains(&self, seq: u64, hash: &str) -> Result<bool, AuditError> {
        if seq == 0 {
            return Ok(true);
        }
        let read = self.db()?.begin_read().map_err(AuditError::read)?;
        let floor = floor::floor(&read)?;
        if seq <= floor.seq {
            return Ok(seq < floor.seq || hash == floor.hash);
        }
        let records = read.open_table(RECORDS).map_err(AuditError::read)?;
        let line = records.get(seq).map_err(AuditError::read)?;
        Ok(match line {
            Some(line) => check_line(seq, line.value())?.hash == hash,
            None => false,
        })
    }
}

/// Lets the database check every page, which it does not do by itself after a clean stop: a damaged
/// page could otherwise hide records. Beyond [`CHECK_BYTES_MAX`] each record's own hash has to do.
fn check_pages(db: &mut Database, file: &Path, bytes: u64) -> Result<(), AuditError> {
    let opening = |problem: String| AuditError::Open { file: file.to_owned(), problem };
    if bytes > CHECK_BYTES_MAX {
        tracing::info!(file = %file.display(), bytes, "audit database too large to check whole at start");
        return Ok(());
    }
    match db.check_integrity() {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(opening("it is damaged; restore this controller from a backup".to_owned()))
        }
        Err(e) => {
            Err(opening(format!("it is damaged ({e}); restore this controller from a backup")))
        }
    }
}

/// Creates the tables, checks whose they are, and reads head and floor.
fn prepare(db: &Database, file: &Path, cluster: &str) -> Result<(Head, Head), AuditError> {
    let write = db.begin_write().map_err(AuditError::read)?;
    let ends = {
        let mut numbers = write.open_table(NUMBERS).map_err(AuditError::read)?;
        let mut texts = write.open_table(TEXTS).map_err(AuditError::read)?;
        let records = write.open_table(RECORDS).map_err(AuditError::read)?;
        write.open_table(BY_TIME).map_err(AuditError::read)?;
        write.open_table(BY_OBJECT).map_err(AuditError::read)?;
        write.open_table(BY_LOG_INDEX).map_err(AuditError::read)?;
        let version = numbers.get(KEY_FORMAT).map_err(AuditError::read)?.map(|v| v.value());
        let owner = texts.get(KEY_CLUSTER).map_err(AuditError::read)?.map(|v| v.value().to_owned());
        match (version, owner) {
            (Some(found), _) if found > FORMAT_VERSION => {
                return Err(AuditError::TooNew { file: file.to_owned(), found });
            }
            (Some(_), Some(found)) if found != cluster => {
                return Err(AuditError::Foreign {
                    file: file.to_owned(),
                    found,
                    wanted: cluster.to_owned(),
                });
            }
            (Some(_), Some(_)) => {}
            (_, _) => {
                numbers.insert(KEY_FORMAT, FORMAT_VERSION).map_err(AuditError::read)?;
                texts.insert(KEY_CLUSTER, cluster).map_err(AuditError::read)?;
            }
        }
        let floor = floor::floor_in(&numbers, &texts)?;
        (head_of(&records, &floor)?, floor)
    };
    write.commit().map_err(AuditError::read)?;
    Ok(ends)
}

/// The newest record, or the floor where there is none above it.
fn head_of(
    records: &impl ReadableTable<u64, &'static str>,
    floor: &Head,
) -> Result<Head, AuditError> {
    let last = records.last().map_err(AuditError::read)?;
    match last.filter(|(seq, _)| seq.value() > floor.seq) {
        None => Ok(floor.clone()),
        Some((seq, line)) => {
            let seq = seq.value();
            Ok(Head { seq, hash: check_line(seq, line.value())?.hash })
        }
    }
}

/// Reads a stored line back; a changed byte is an error.
pub(super) fn check_line(seq: u64, line: &str) -> Result<AuditRecord, AuditError> {
    let damaged = |problem: &str| AuditError::Damaged { seq, problem: problem.to_owned() };
    let (unsealed, hash) = audit::unseal(line).ok_or_else(|| damaged("it has no hash"))?;
    if audit::hash_of_unsealed(&unsealed) != hash {
        return Err(damaged("its hash does not match its contents"));
    }
    let body: AuditBody =
        serde_json::from_str(&unsealed).map_err(|e| damaged(&format!("it cannot be read: {e}")))?;
    if body.seq != seq {
        return Err(damaged("it carries another number"));
    }
    Ok(AuditRecord { body, hash: hash.to_owned(), line: line.to_owned() })
}
