//! The writer of the audit database, and the way to it.
//!
//! [`AuditStore`](super::AuditStore) sends what was applied; a thread of its own gathers it and writes all of a
//! second at once. Records are added only here. The writer must not be woken for each record: the thread that
//! applies an entry would pay for that, on every controller, at every change. So the writer looks by itself once in
//! [`FLUSH_INTERVAL`]. It is woken only by a caller that waits for an answer, and before its queue is full.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fleet_core::AuditRecord;
use fleet_core::audit::prune::Pruned;
use fleet_core::audit::{self, AuditBody};
use redb::{Database, ReadableDatabase, ReadableTable};
use tokio::sync::oneshot;

use super::derived;
use super::floor;
use super::store::{
    AuditError, BY_LOG_INDEX, BY_OBJECT, BY_TIME, Head, KEY_THROUGH, NUMBERS, RECORDS, check_line,
};
use crate::fatal::{Fatal, FatalHook};

/// Longest time a record stays in memory only.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Records in memory at which they are written at once.
const FLUSH_RECORDS: usize = 8_000;
/// Applied entries that may wait for the writer before apply is held up.
const QUEUE_LEN: usize = 4_096;
/// The writer is woken at every entry whose index is a multiple of this, so that the queue does not fill up.
const WAKE_ENTRIES: u64 = QUEUE_LEN as u64 / 4;

/// What the writer is to do, in the order of the calls.
pub(super) enum Message {
    Applied {
        log_index: u64,
        record: Option<Box<AuditRecord>>,
    },
    /// Records fetched from another controller, oldest first, as lines.
    Fetched(String, oneshot::Sender<Result<(), AuditError>>),
    /// Records up to this one were pruned elsewhere.
    BeginBehind(Head, oneshot::Sender<Result<(), AuditError>>),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

impl Message {
    /// Whether the writer should not wait until it looks by itself.
    fn is_urgent(&self) -> bool {
        match self {
            Message::Applied { log_index, .. } => log_index.is_multiple_of(WAKE_ENTRIES),
            Message::Fetched(..)
            | Message::BeginBehind(..)
            | Message::Flush(_)
            | Message::Close(_) => true,
        }
    }
}

/// The database while the store is open; readers hold it only for the length of a read.
#[derive(Debug)]
pub(super) struct Slot(pub(super) RwLock<Option<Arc<Database>>>);

/// The way to the writer.
#[derive(Clone)]
pub(super) enum Queue {
    /// A thread of its own, which sleeps while nothing is urgent.
    Thread { messages: SyncSender<Message>, writer: Thread },
    /// The sender itself writes: for simulations, where a thread would finish in an order no seed repeats.
    Direct(Arc<Mutex<Option<Writer>>>),
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

impl Queue {
    /// Starts a thread for `writer`.
    pub(super) fn to_thread(writer: Writer) -> std::io::Result<Queue> {
        let (messages, taken) = sync_channel(QUEUE_LEN);
        let thread = thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&taken))?.thread().clone();
        Ok(Queue::Thread { messages, writer: thread })
    }

    pub(super) fn direct(writer: Writer) -> Queue {
        Queue::Direct(Arc::new(Mutex::new(Some(writer))))
    }

    /// Waits (briefly: one commit) only when the writer is [`QUEUE_LEN`] entries behind.
    pub(super) fn send(&self, message: Message) -> Result<(), AuditError> {
        match self {
            Queue::Thread { messages, writer } => {
                let urgent = message.is_urgent();
                match messages.try_send(message) {
                    Ok(()) => {}
                    Err(TrySendError::Full(message)) => {
                        writer.unpark();
                        messages.send(message).map_err(|_| AuditError::Stopped)?;
                    }
                    Err(TrySendError::Disconnected(_)) => return Err(AuditError::Stopped),
                }
                if urgent {
                    writer.unpark();
                }
                Ok(())
            }
            Queue::Direct(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut at_work = writer.take().ok_or(AuditError::Stopped)?;
                if at_work.handle(message) && (!at_work.wait().is_zero() || at_work.flush()) {
                    *writer = Some(at_work);
                }
                Ok(())
            }
        }
    }
}

/// What the thread owns.
pub(super) struct Writer {
    /// `None` once it is closed.
    db: Option<Arc<Database>>,
    slot: Arc<Slot>,
    /// End of the chain, records in `buffer` included.
    head: Head,
    buffer: Vec<AuditRecord>,
    /// The last record that was pruned.
    floor: Head,
    /// The floor is not on disk yet.
    floor_moved: bool,
    /// When records below the floor are deleted next; `None`: there are none.
    sweep: Option<Instant>,
    /// Newest log index taken that is not on disk yet.
    through: Option<u64>,
    /// When what is in memory is to be written.
    due: Instant,
    fatal: FatalHook,
}

impl Writer {
    pub(super) fn new(
        db: Database,
        head: Head,
        floor: Head,
        fatal: FatalHook,
    ) -> Result<(Writer, Arc<Slot>), AuditError> {
        let left_overs = floor::has_left_overs(&db, floor.seq)?;
        let db = Arc::new(db);
        let slot = Arc::new(Slot(RwLock::new(Some(Arc::clone(&db)))));
        let (buffer, through, due) = (Vec::new(), None, Instant::now() + FLUSH_INTERVAL);
        let writer = Writer {
            db: Some(db),
            slot: Arc::clone(&slot),
            head,
            buffer,
            floor,
            floor_moved: false,
            sweep: left_overs.then_some(due),
            through,
            due,
            fatal,
        };
        Ok((writer, slot))
    }

    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let goes_on = match messages.try_recv() {
                Ok(message) => self.handle(message),
                Err(TryRecvError::Disconnected) => false,
                Err(TryRecvError::Empty) => match self.wait() {
                    Duration::ZERO => self.flush(),
                    wait => {
                        thread::park_timeout(wait);
                        true
                    }
                },
            };
            if !goes_on {
                return;
            }
        }
    }

    /// How long what was taken may still wait.
    fn wait(&self) -> Duration {
        let due = self.sweep.map_or(self.due, |sweep| sweep.min(self.due));
        due.saturating_duration_since(Instant::now())
    }

    /// Does what is due; says whether the writer continues.
    fn flush(&mut self) -> bool {
        let now = Instant::now();
        let mut done = if self.due <= now { self.commit() } else { Ok(()) };
        if done.is_ok() && self.sweep.is_some_and(|sweep| sweep <= now) {
            done = self.sweep();
        }
        self.stands(done)
    }

    /// Deletes some of what was pruned. The next ones wait, so that the disk is there for the log.
    fn sweep(&mut self) -> Result<(), Fatal> {
        let Some(db) = &self.db else { return Ok(()) };
        let more = floor::sweep(db, self.floor.seq).map_err(|e| Fatal::Store {
            action: "deleting pruned audit records".to_owned(),
            error: e.to_string(),
        })?;
        self.sweep = more.then(|| Instant::now() + FLUSH_INTERVAL);
        Ok(())
    }

    /// Whether the writer continues after `step`.
    fn stands(&self, step: Result<(), Fatal>) -> bool {
        if let Err(fatal) = &step {
            self.fatal.stop(fatal);
        }
        step.is_ok()
    }

    /// Does what a message asks; says whether the writer continues.
    fn handle(&mut self, message: Message) -> bool {
        let step = match message {
            Message::Applied { log_index, record } => self.take(log_index, record).and_then(|()| {
                if self.buffer.len() >= FLUSH_RECORDS { self.commit() } else { Ok(()) }
            }),
            Message::Fetched(lines, done) => {
                // A bad record from outside is refused; it says nothing about this controller.
                let taken = self.take_fetched(&lines);
                self.commit().map(|()| {
                    done.send(taken).ok();
                })
            }
            Message::BeginBehind(floor, done) => {
                let taken = self.begin_behind(floor);
                self.commit().map(|()| {
                    done.send(taken).ok();
                })
            }
            Message::Flush(done) => self.commit().map(|()| {
                // Who stopped waiting does not need the answer.
                done.send(()).ok();
            }),
            Message::Close(done) => {
                let closed = self.commit();
                // The database is closed before the caller hears of it.
                self.slot.0.write().unwrap_or_else(PoisonError::into_inner).take();
                drop(self.db.take());
                match closed {
                    Ok(()) => {
                        done.send(()).ok();
                    }
                    Err(fatal) => self.fatal.stop(&fatal),
                }
                return false;
            }
        };
        self.stands(step)
    }

    fn take(&mut self, log_index: u64, record: Option<Box<AuditRecord>>) -> Result<(), Fatal> {
        self.through = self.through.max(Some(log_index));
        let Some(record) = record else { return Ok(()) };
        let seq = record.body.seq;
        if seq <= self.floor.seq {
            return self.compare_pruned(&record);
        }
        if seq <= self.head.seq {
            return self.compare(&record);
        }
        if seq != self.head.seq + 1 || record.body.prev != self.head.hash {
            return Err(Fatal::Diverged {
                what: format!("audit record {seq}"),
                detail: format!(
                    "it does not continue the stored chain, which ends at {}",
                    self.head.seq
                ),
            });
        }
        if let Some(pruned) = Pruned::of(&record.body) {
            self.prune(&pruned)?;
        }
        self.head = Head { seq, hash: record.hash.clone() };
        self.buffer.push(*record);
        Ok(())
    }

    /// Moves the floor to what the record of a prune says. It goes to the disk together with that record.
    fn prune(&mut self, pruned: &Pruned) -> Result<(), Fatal> {
        let Pruned { through, hash, .. } = pruned;
        let line = self.line_of(*through);
        let own = line.and_then(|line| check_line(*through, &line)).map(|record| record.hash);
        if own.as_ref().ok() != Some(hash) {
            let detail = match own {
                Ok(own) => format!("it was pruned with hash {hash}, but has hash {own} here"),
                Err(error) => error.to_string(),
            };
            return Err(Fatal::Diverged { what: format!("audit record {through}"), detail });
        }
        self.move_floor(Head { seq: *through, hash: hash.clone() });
        Ok(())
    }

    fn move_floor(&mut self, floor: Head) {
        self.floor = floor;
        self.floor_moved = true;
        self.sweep.get_or_insert_with(|| Instant::now() + FLUSH_INTERVAL);
    }

    fn begin_behind(&mut self, floor: Head) -> Result<(), AuditError> {
        let seq = floor.seq;
        if seq < self.floor.seq || floor == self.floor {
            return Ok(());
        }
        let other = || AuditError::Damaged {
            seq,
            problem: "it is another one than the one that was pruned elsewhere".to_owned(),
        };
        if seq == self.floor.seq {
            return Err(other());
        }
        if seq > self.head.seq {
            // What is here ends earlier; all of it was pruned.
            self.head = floor.clone();
        } else if check_line(seq, &self.line_of(seq)?)?.hash != floor.hash {
            return Err(other());
        }
        self.move_floor(floor);
        Ok(())
    }

    fn take_fetched(&mut self, lines: &str) -> Result<(), AuditError> {
        for line in lines.lines() {
            let seq = self.head.seq + 1;
            let (unsealed, _) = audit::unseal(line)
                .ok_or_else(|| AuditError::Damaged { seq, problem: "it has no hash".to_owned() })?;
            let claimed = serde_json::from_str::<AuditBody>(&unsealed).map_or(0, |b| b.seq);
            if claimed <= self.head.seq && claimed > 0 {
                continue;
            }
            let record = check_line(seq, line)?;
            if record.body.prev != self.head.hash {
                let problem = "it does not continue the chain".to_owned();
                return Err(AuditError::Damaged { seq, problem });
            }
            self.through = self.through.max(Some(record.body.log_index));
            self.head = Head { seq, hash: record.hash.clone() };
            self.buffer.push(record);
        }
        Ok(())
    }

    /// A record made again by replay must be the one that is there.
    fn compare(&self, record: &AuditRecord) -> Result<(), Fatal> {
        let seq = record.body.seq;
        let differs = |detail: String| Fatal::Diverged {
            what: format!(
                "audit record {seq}, made again by replaying entry {}",
                record.body.log_index
            ),
            detail,
        };
        let line = self.line_of(seq).map_err(|e| differs(e.to_string()))?;
        if line == record.line {
            return Ok(());
        }
        Err(differs(format!("it has hash {}, but the stored one differs", record.hash)))
    }

    /// Of records that were pruned only the hash of the last one is here. It covers all before it.
    fn compare_pruned(&self, record: &AuditRecord) -> Result<(), Fatal> {
        if record.body.seq < self.floor.seq || record.hash == self.floor.hash {
            return Ok(());
        }
        Err(Fatal::Diverged {
            what: format!("audit record {}, made again by replay", record.body.seq),
            detail: format!(
                "it has hash {}, and was pruned with hash {}",
                record.hash, self.floor.hash
            ),
        })
    }

    fn line_of(&self, seq: u64) -> Result<String, AuditError> {
        match self.buffer.iter().find(|record| record.body.seq == seq) {
            Some(record) => Ok(record.line.clone()),
            None => self.stored(seq),
        }
    }

    fn stored(&self, seq: u64) -> Result<String, AuditError> {
        let db = self.db.as_ref().ok_or(AuditError::Stopped)?;
        let read = db.begin_read().map_err(AuditError::read)?;
        let records = read.open_table(RECORDS).map_err(AuditError::read)?;
        let line = records.get(seq).map_err(AuditError::read)?;
        line.map(|line| line.value().to_owned())
            .ok_or_else(|| AuditError::Damaged { seq, problem: "it is missing".to_owned() })
    }

    fn commit(&mut self) -> Result<(), Fatal> {
        self.due = Instant::now() + FLUSH_INTERVAL;
        if self.through.is_none() && !self.floor_moved {
            return Ok(());
        }
        self.write().map_err(|e| Fatal::Store {
            action: "writing the audit database".to_owned(),
            error: e.to_string(),
        })?;
        self.buffer.clear();
        self.through = None;
        self.floor_moved = false;
        Ok(())
    }

    fn write(&self) -> Result<(), redb::Error> {
        let Some(db) = &self.db else { return Ok(()) };
        let mut write = db.begin_write()?;
        // Without it a crash while recovering from a crash could roll back what was durable.
        write.set_two_phase_commit(true);
        {
            let mut records = write.open_table(RECORDS)?;
            let mut by_time = write.open_table(BY_TIME)?;
            let mut by_object = write.open_table(BY_OBJECT)?;
            let mut by_log_index = write.open_table(BY_LOG_INDEX)?;
            for record in &self.buffer {
                let seq = record.body.seq;
                records.insert(seq, record.line.as_str())?;
                by_time.insert((record.body.at.0, seq), ())?;
                by_log_index.insert(record.body.log_index, seq)?;
                for object in &record.body.objects {
                    by_object.insert((object.as_str(), seq), ())?;
                }
            }
            let mut numbers = write.open_table(NUMBERS)?;
            let before = numbers.get(KEY_THROUGH)?.map_or(0, |through| through.value());
            numbers
                .insert(KEY_THROUGH, self.through.map_or(before, |through| through.max(before)))?;
        }
        derived::insert(&write, self.buffer.iter().map(|record| &record.body))?;
        if self.floor_moved {
            floor::set(&write, &self.floor)?;
        }
        write.commit()?;
        Ok(())
    }
}
