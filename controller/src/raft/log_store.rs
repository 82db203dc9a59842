//! openraft's log storage over the journal: an index in memory, a writer thread for the disk.
//!
//! Appends return once the entries are readable; their callbacks fire after the fsync. Votes,
//! truncations and purges return after it. All go through one queue to one thread, so their order
//! on disk is the order of the calls, and whatever waits in the queue shares one fsync. Newer
//! entries are kept decoded, up to [`CACHE_BYTES`]; older ones are read back from disk.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{mpsc, oneshot};

use super::codec::{self, StoredLogId, StoredVote};
use super::journal::{Identity, Journal, JournalError, JournalState, Place};
use super::measures::LogMeasures;
use super::types::{Entry, LogId, TypeConfig, Vote};
use super::writer::{Op, Writers, Written, run_writer, run_writer_in_task};
use crate::disk::Disk;
use crate::fatal::FatalHook;

/// Calls that may wait for the writer thread before callers are held up.
const QUEUE_LEN: usize = 1024;
/// Decoded entries kept in memory, measured by their encoded size.
const CACHE_BYTES: usize = 8 << 20;
/// Encoded size at which one read for replication ends; the next read continues from there.
const READ_BYTES: usize = 2 << 20;

/// The log as openraft sees it. Clones share one log.
#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Op>,
}

/// What readers need, updated before or after the disk as each call's contract demands.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    index: Mutex<Index>,
    measures: LogMeasures,
}

#[derive(Debug, Default)]
struct Index {
    vote: Option<StoredVote>,
    committed: Option<StoredLogId>,
    purged: Option<StoredLogId>,
    last: Option<StoredLogId>,
    slots: BTreeMap<u64, Slot>,
    /// Indices in the order in which they were cached.
    cached: VecDeque<u64>,
    cached_bytes: usize,
    /// Encoded size of all slots.
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    id: StoredLogId,
    bytes: usize,
    place: Option<Place>,
    entry: Option<Entry>,
}

impl Index {
    fn forget(&mut self, removed: BTreeMap<u64, Slot>) {
        for slot in removed.into_values() {
            self.bytes -= slot.bytes;
            if slot.entry.is_some() {
                self.cached_bytes -= slot.bytes;
            }
        }
    }

    fn truncate(&mut self, keep: Option<StoredLogId>) {
        let removed = self.slots.split_off(&keep.map_or(0, |keep| keep.index + 1));
        self.forget(removed);
        self.last = keep;
    }

    fn purge(&mut self, upto: StoredLogId) -> StoredLogId {
        let kept = self.slots.split_off(&(upto.index + 1));
        let removed = std::mem::replace(&mut self.slots, kept);
        self.forget(removed);
        self.purged = Some(upto);
        let last = self.last.map_or(upto, |last| last.max(upto));
        self.last = Some(last);
        last
    }

    /// Drops decoded entries that are on disk, oldest first, until the cache is small enough.
    fn evict(&mut self) {
        while self.cached_bytes > CACHE_BYTES {
            let Some(index) = self.cached.front() else { break };
            if let Some(slot) = self.slots.get_mut(index) {
                if slot.place.is_none() {
                    break;
                }
                if slot.entry.take().is_some() {
                    self.cached_bytes -= slot.bytes;
                }
            }
            self.cached.pop_front();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Index> {
        // No code that can panic runs under the lock with the index half changed.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn measures(&self) -> &LogMeasures {
        &self.measures
    }

    /// Called by the writer: these entries can be read from disk now.
    pub(crate) fn placed(&self, places: impl Iterator<Item = (StoredLogId, Place)>) {
        let mut index = self.lock();
        for (id, place) in places {
            if let Some(slot) = index.slots.get_mut(&id.index)
                && slot.id == id
            {
                slot.place = Some(place);
            }
        }
        index.evict();
    }
}

impl LogStore {
    /// Opens the log and starts its writer thread.
    #[cfg(test)]
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        identity: Identity,
        create: bool,
        segment_bytes: u64,
        fatal: FatalHook,
    ) -> Result<LogStore, JournalError> {
        Self::open_with(disk, identity, create, segment_bytes, fatal, Writers::Threads)
    }

    /// Opens the log and starts its writer.
    pub(crate) fn open_with(
        disk: Arc<dyn Disk>,
        identity: Identity,
        create: bool,
        segment_bytes: u64,
        fatal: FatalHook,
        writers: Writers,
    ) -> Result<LogStore, JournalError> {
        let dir = disk.path().to_owned();
        let (journal, state) = Journal::open(disk, identity, create, segment_bytes)?;
        let shared = Arc::new(Shared {
            index: Mutex::new(index_of(state)),
            measures: LogMeasures::default(),
        });
        let (queue, ops) = mpsc::channel(QUEUE_LEN);
        let for_writer = Arc::clone(&shared);
        match writers {
            Writers::Threads => {
                std::thread::Builder::new()
                    .name("raft-log".to_owned())
                    .spawn(move || run_writer(journal, ops, &for_writer, &fatal))
                    .map_err(|source| JournalError::Io { file: dir, source })?;
            }
            Writers::Tasks(pace) => {
                tokio::spawn(run_writer_in_task(journal, ops, for_writer, fatal, pace));
            }
        }
        Ok(LogStore { shared, queue })
    }

    /// Syncs everything and ends the writer thread; the directory can be opened again afterwards.
    pub(crate) async fn close(&self) -> io::Result<()> {
        self.durable(Op::Close).await
    }

    /// What the log counts.
    pub(crate) fn measures(&self) -> LogMeasures {
        self.shared.measures().clone()
    }

    /// The log's position: purged and last entry.
    pub(crate) fn bounds(&self) -> (Option<StoredLogId>, Option<StoredLogId>) {
        let index = self.shared.lock();
        (index.purged, index.last)
    }

    /// Bytes of all entries that are not purged.
    pub(crate) fn bytes(&self) -> usize {
        self.shared.lock().bytes
    }

    async fn durable(&self, op: impl FnOnce(Written) -> Op) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.send(op(done)).await?;
        written.await.map_err(|_| writer_gone())?
    }

    async fn send(&self, op: Op) -> io::Result<()> {
        self.queue.send(op).await.map_err(|_| writer_gone())
    }

    /// Entries of a range, from memory or disk, at most `bytes_max` of them but at least one.
    fn read(&self, range: impl RangeBounds<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        enum Source {
            Cached(Box<Entry>),
            OnDisk(Place),
        }
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        if is_empty(&bounds) {
            return Ok(Vec::new());
        }
        let mut sources = Vec::new();
        {
            let index = self.shared.lock();
            let mut bytes = 0;
            let mut expected = None;
            for (at, slot) in index.slots.range(bounds) {
                if expected.is_some_and(|expected| expected != *at) {
                    return Err(io::Error::other(format!("the log has a hole before entry {at}")));
                }
                expected = Some(at + 1);
                bytes += slot.bytes;
                if bytes > bytes_max && !sources.is_empty() {
                    break;
                }
                sources.push(match (&slot.entry, &slot.place) {
                    (Some(entry), _) => Source::Cached(Box::new(entry.clone())),
                    (None, Some(place)) => Source::OnDisk(place.clone()),
                    (None, None) => {
                        return Err(io::Error::other(format!(
                            "entry {at} is neither cached nor on disk"
                        )));
                    }
                });
            }
        }
        let entry = |source| match source {
            Source::Cached(entry) => Ok(*entry),
            Source::OnDisk(place) => codec::decode_entry(&place.read()?).map_err(undecodable),
        };
        sources.into_iter().map(entry).collect()
    }
}

fn index_of(state: JournalState) -> Index {
    let bytes = state.entries.values().map(|(_, place)| place.len as usize).sum();
    let slots = state.entries.into_iter().map(|(at, (id, place))| {
        (at, Slot { id, bytes: place.len as usize, place: Some(place), entry: None })
    });
    Index {
        bytes,
        vote: state.vote,
        committed: state.committed,
        purged: state.purged,
        last: state.last,
        slots: slots.collect(),
        ..Index::default()
    }
}

fn is_empty(bounds: &(Bound<u64>, Bound<u64>)) -> bool {
    let start = match bounds.0 {
        Bound::Included(at) => at,
        Bound::Excluded(at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    match bounds.1 {
        Bound::Included(end) => start > end,
        Bound::Excluded(end) => start >= end,
        Bound::Unbounded => false,
    }
}

fn undecodable(problem: String) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a log entry cannot be decoded ({problem}): was it written by a newer fleet?"),
    )
}

fn writer_gone() -> io::Error {
    io::Error::other("the log's writer has stopped")
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.read(range, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start..end, READ_BYTES)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.lock().vote.map(Vote::from))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let (purged, last) = self.bounds();
        Ok(LogState {
            last_purged_log_id: purged.map(LogId::from),
            last_log_id: last.map(LogId::from),
        })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = StoredVote::from(vote);
        self.durable(|done| Op::Vote(vote, done)).await?;
        self.shared.lock().vote = Some(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let committed = committed.map(StoredLogId::from);
        self.shared.lock().committed = committed;
        self.send(Op::Committed(committed)).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.lock().committed.map(LogId::from))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut lines = Vec::new();
        let mut decoded = Vec::new();
        for entry in entries {
            let line = codec::encode_entry(&entry)?;
            let id = StoredLogId::from(entry.log_id);
            decoded.push((id, line.len(), entry));
            lines.push((id, line));
        }
        {
            let mut index = self.shared.lock();
            for (id, bytes, entry) in decoded {
                if let Some(last) = index.last
                    && last.index + 1 != id.index
                {
                    let problem = format!("entry {} cannot follow entry {}", id.index, last.index);
                    return Err(io::Error::other(problem));
                }
                index.last = Some(id);
                index.slots.insert(id.index, Slot { id, bytes, place: None, entry: Some(entry) });
                index.cached.push_back(id.index);
                index.cached_bytes += bytes;
                index.bytes += bytes;
            }
        }
        self.send(Op::Append { lines, done: callback }).await
    }

    async fn truncate_after(&mut self, keep: Option<LogId>) -> io::Result<()> {
        let keep = keep.map(StoredLogId::from);
        {
            let mut index = self.shared.lock();
            if keep >= index.last {
                return Ok(());
            }
            index.truncate(keep);
        }
        self.durable(|done| Op::Truncate(keep, done)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let upto = StoredLogId::from(upto);
        let last = self.shared.lock().purge(upto);
        self.durable(|done| Op::Purge { upto, last, done }).await
    }
}
