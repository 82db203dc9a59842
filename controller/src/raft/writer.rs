//! The log's writer: drains the queue, writes one group, syncs once, answers everybody.
//!
//! A thread of its own, which may wait for the disk; in a simulation a task, which waits on simulated
//! time. The only place where the journal is written. Any error goes to the fatal hook, which ends the
//! process; where the hook returns (tests), the writer answers every later call with the error and
//! touches the disk no more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::IOFlushed;
use tokio::sync::{mpsc, oneshot};

use super::codec::{StoredLogId, StoredVote};
use super::journal::{Group, Journal, Place};
use super::log_store::Shared;
use super::types::TypeConfig;
use crate::fatal::FatalHook;

/// Calls taken from the queue into one group at most.
const GROUP_OPS_MAX: usize = 1024;

/// How long a simulated disk takes before it does what is asked of it; asked before each group.
#[derive(Clone)]
pub struct Pace(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Pace {
    pub fn with(pace: impl Fn() -> Duration + Send + Sync + 'static) -> Pace {
        Pace(Arc::new(pace))
    }
}

impl std::fmt::Debug for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pace")
    }
}

/// Where a store's writer runs.
#[derive(Debug, Clone)]
pub(crate) enum Writers {
    Threads,
    Tasks(Pace),
}

/// Answer to a call that waits for the disk.
pub(crate) type Written = oneshot::Sender<io::Result<()>>;

/// One change of the log.
pub(crate) enum Op {
    Append { lines: Vec<(StoredLogId, Vec<u8>)>, done: IOFlushed<TypeConfig> },
    Vote(StoredVote, Written),
    Truncate(Option<StoredLogId>, Written),
    Purge { upto: StoredLogId, last: StoredLogId, done: Written },
    Committed(Option<StoredLogId>),
    Close(Written),
}

enum Waiting {
    Append(IOFlushed<TypeConfig>),
    Call(Written),
}

impl Waiting {
    fn answer(self, result: io::Result<()>) {
        match self {
            Waiting::Append(done) => done.io_completed(result),
            Waiting::Call(done) => {
                // A caller that went away does not need the answer.
                done.send(result).ok();
            }
        }
    }
}

/// Runs until the queue closes or `Close` comes.
pub(crate) fn run_writer(
    journal: Journal,
    mut ops: mpsc::Receiver<Op>,
    shared: &Shared,
    fatal: &FatalHook,
) {
    let mut writer = Writer::new(journal, shared, fatal);
    let mut closing = None;
    while closing.is_none()
        && let Some(op) = ops.blocking_recv()
    {
        closing = writer.take_group(op, &mut ops);
    }
    writer.end(closing);
}

/// The same as a task.
pub(crate) async fn run_writer_in_task(
    journal: Journal,
    mut ops: mpsc::Receiver<Op>,
    shared: Arc<Shared>,
    fatal: FatalHook,
    pace: Pace,
) {
    let mut writer = Writer::new(journal, &shared, &fatal);
    let mut closing = None;
    while closing.is_none()
        && let Some(op) = ops.recv().await
    {
        tokio::time::sleep((pace.0)()).await;
        closing = writer.take_group(op, &mut ops);
    }
    writer.end(closing);
}

struct Writer<'a> {
    journal: Journal,
    group: Group,
    waiting: Vec<Waiting>,
    committed: Option<Option<StoredLogId>>,
    purged: bool,
    failed: Option<String>,
    shared: &'a Shared,
    fatal: &'a FatalHook,
}

impl<'a> Writer<'a> {
    fn new(journal: Journal, shared: &'a Shared, fatal: &'a FatalHook) -> Writer<'a> {
        Writer {
            journal,
            group: Group::default(),
            waiting: Vec::new(),
            committed: None,
            purged: false,
            failed: None,
            shared,
            fatal,
        }
    }

    /// Writes what waits, beginning with `first`; gives back the answer channel of a `Close`.
    fn take_group(&mut self, first: Op, ops: &mut mpsc::Receiver<Op>) -> Option<Written> {
        let mut closing = self.take(first);
        for _ in 1..GROUP_OPS_MAX {
            if closing.is_some() {
                break;
            }
            let Ok(op) = ops.try_recv() else { break };
            closing = self.take(op);
        }
        self.flush();
        closing
    }

    fn end(self, closing: Option<Written>) {
        let closed = self.close();
        if let Some(done) = closing {
            done.send(closed).ok();
        }
    }

    /// Adds one call to the group; gives back the answer channel of a `Close`.
    fn take(&mut self, op: Op) -> Option<Written> {
        let (added, waiting) = match op {
            Op::Append { lines, done } => {
                for (id, line) in &lines {
                    if !self.group.is_empty()
                        && self.group.len() + line.len() > Journal::group_bytes_max()
                    {
                        self.flush();
                    }
                    self.group.push_entry(*id, line);
                }
                (Ok(()), Waiting::Append(done))
            }
            Op::Vote(vote, done) => (self.group.push_vote(vote), Waiting::Call(done)),
            Op::Truncate(keep, done) => (self.group.push_truncate(keep), Waiting::Call(done)),
            Op::Purge { upto, last, done } => {
                self.purged = true;
                (self.group.push_purge(upto, last), Waiting::Call(done))
            }
            Op::Committed(committed) => {
                self.committed = Some(committed);
                return None;
            }
            Op::Close(done) => return Some(done),
        };
        self.waiting.push(waiting);
        if let Err(error) = added {
            self.fail("encoding a log record", &error);
        }
        None
    }

    /// Writes the group, syncs it and answers everybody whose call is in it.
    fn flush(&mut self) {
        let group = std::mem::take(&mut self.group);
        if self.failed.is_none()
            && let Err((action, error)) = self.write(&group)
        {
            self.fail(action, &error);
        }
        for waiting in self.waiting.drain(..) {
            let result = match &self.failed {
                None => Ok(()),
                Some(reason) => Err(io::Error::other(reason.clone())),
            };
            waiting.answer(result);
        }
    }

    fn write(&mut self, group: &Group) -> Result<(), (&'static str, io::Error)> {
        if !group.is_empty() {
            let measures = self.shared.measures();
            measures.begin();
            let (file, start) = self.journal.append(group).map_err(|e| ("writing the log", e))?;
            measures.end(group.entries.len(), group.len());
            self.shared.placed(group.entries.iter().map(|(id, at, len, checksum)| {
                let place = Place {
                    file: std::sync::Arc::clone(&file),
                    offset: start + *at as u64,
                    len: *len as u32,
                    checksum: *checksum,
                };
                (*id, place)
            }));
        }
        if let Some(committed) = self.committed.take() {
            self.journal
                .set_committed(committed)
                .map_err(|e| ("writing the log's watermark", e))?;
        }
        if std::mem::take(&mut self.purged) {
            self.journal.drop_purged().map_err(|e| ("deleting purged log files", e))?;
        }
        Ok(())
    }

    fn fail(&mut self, action: &str, error: &io::Error) {
        self.failed = Some(format!("{action}: {error}"));
        self.fatal.store_failed(action, error);
    }

    fn close(mut self) -> io::Result<()> {
        self.flush();
        match &self.failed {
            Some(reason) => Err(io::Error::other(reason.clone())),
            None => self.journal.close(),
        }
    }
}
