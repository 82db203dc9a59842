//! One observer per allocation: takes what the watching helper sees and what the job notifies, gives each complete
//! checkpoint the next number, fsyncs it, then tells.
//!
//! A task owns the journal; callers hold a [`Handle`]. The helper runs on a thread of its own and is started again with
//! back-off when it dies or hangs. Nothing here blocks on the user's file system.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet_core::checkpoint::{
    CheckpointId, CheckpointNote, Doubt, Facts, Presence, Rule, RuleChoice,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::journal::{Journal, JournalError};
use super::rules::{FileId, Pattern, PatternError};
use super::watch::{
    CountedBefore, ENDING, OriginFate, ResumedFrom, SeenLine, TOLD, Timings, WatchLine,
    WatchRequest,
};
use fleet_user::as_user::Helper;
use fleet_user::op::{CheckpointOp, FileKind, FileStat, Op, Reply};
use fleet_user::{AsUser, AsUserError, User};

/// Checkpoints of one allocation that are kept for [`Handle::since`]; the journal on disk has more.
pub const RECENT_MAX: usize = 1024;
/// Most checkpoints that the observer names to a restarted helper, so that the helper notices when they are deleted.
const COUNTED_TOLD_MAX: usize = 32;
/// Lines and requests that wait for the task.
const QUEUE_LEN: usize = 256;
/// First and longest pause before the helper is started again.
const RESTART_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the helper may be silent beyond its scan interval before it counts as hung. Flushing one checkpoint may take
/// half of it.
const SILENT_MAX: Duration = Duration::from_secs(120);
/// How long the helper's thread waits before it looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(500);
/// Longest path in a notify message.
pub const NOTIFY_PATH_BYTES_MAX: usize = 4096;

/// How a checkpoint came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A complete file matching the pattern.
    Observed,
    /// The job said so.
    Notified,
}

/// A complete checkpoint of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSeen {
    /// 1, 2, 3… per allocation, without gaps.
    pub seq: u64,
    /// Absolute, as this node sees it.
    pub path: String,
    pub size_bytes: u64,
    /// This node's clock; for people. Order is by `seq`.
    pub completed_at_unix_ms: u64,
    pub source: Source,
    /// This node's clock, when it was checked and flushed; 0 in records of before.
    #[serde(default)]
    pub counted_at_unix_ms: u64,
    #[serde(default)]
    pub facts: Facts,
}

/// What to observe.
#[derive(Debug, Clone)]
pub struct ObserverConfig {
    pub user: User,
    /// The checkpoint directory, absolute.
    pub dir: PathBuf,
    /// The attempt's own folder in it, the only one that is looked into; empty where it has none.
    pub folder: String,
    /// Glob relative to that folder; without one, what a rule recognises.
    pub pattern: Option<String>,
    pub rule: RuleChoice,
    /// Whose checkpoints they are: names the folder of their lists.
    pub job: String,
    pub attempt: u32,
    /// No process of an earlier attempt is left anywhere.
    pub others_dead: bool,
    /// What the attempt resumed from, if that is in the directory.
    pub origin: Option<ResumedFrom>,
    /// Keep the last whole one by a copy where there is no other way.
    pub keep_copy: bool,
    /// The agent's own directory of this allocation; must exist.
    pub alloc_dir: PathBuf,
    pub timings: Timings,
}

#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("checkpoint directory {} is not absolute", .0.display())]
    NotAbsolute(PathBuf),
    #[error("the checkpoint directory could not be listed within {waited:?}: {why}")]
    NotReady { waited: Duration, why: String },
}

/// Why a notify message was not counted.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    #[error("notified checkpoint {path:?}: {why}")]
    Bad { path: String, why: &'static str },
    #[error("notified checkpoint {path:?}")]
    NotThere {
        path: String,
        #[source]
        source: AsUserError,
    },
    #[error("notified checkpoint {path:?}: the observer has ended")]
    Ended { path: String },
    #[error("notified checkpoint {path:?} could not be recorded: {why}")]
    NotRecorded { path: String, why: String },
}

/// The latest state, for the tasks that watch it.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// What was there before the attempt is on disk; the job may start.
    pub ready: bool,
    /// The newest [`RECENT_MAX`], oldest first.
    pub recent: Vec<CheckpointSeen>,
    /// By number: checkpoints that are deleted, not whole any more, or only kept beside.
    pub lost: BTreeMap<u64, Presence>,
    /// What the owner should know; each kind once.
    pub notes: Vec<CheckpointNote>,
    /// What became of the checkpoint that the attempt resumed from, by its own first one.
    pub origin: Option<(CheckpointId, OriginFate)>,
    /// Why nothing can be observed at present.
    pub problem: Option<String>,
}

impl Observed {
    #[must_use]
    pub fn last(&self) -> Option<&CheckpointSeen> {
        self.recent.last()
    }
}

/// Talks to an observer. Cheap to clone; the observer ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Handle {
    orders: mpsc::Sender<ObserverOrder>,
    observed: watch::Receiver<Observed>,
    as_user: AsUser,
    user: User,
    dir: PathBuf,
    folder: String,
    job: String,
}

#[derive(Debug)]
enum ObserverOrder {
    Notified(Notified),
    /// The attempt is being stopped.
    Ending,
    /// Look once more, and say when that is done.
    Finish(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Notified {
    path: String,
    stat: FileStat,
    facts: Facts,
    reply: oneshot::Sender<Result<CheckpointSeen, String>>,
}

/// Opens the allocation's journal and starts observing. Call it before the job starts and await [`Handle::ready`]: what
/// is in the directory until then is not new. After an agent restart it resumes where it was.
pub async fn start(as_user: AsUser, config: ObserverConfig) -> Result<Handle, ObserverError> {
    config.pattern.as_deref().map(Pattern::new).transpose()?;
    if !config.dir.is_absolute() {
        return Err(ObserverError::NotAbsolute(config.dir));
    }
    let alloc_dir = config.alloc_dir.clone();
    let journal = tokio::task::spawn_blocking(move || Journal::open(&alloc_dir))
        .await
        .unwrap_or_else(|error| {
            Err(JournalError::Io {
                what: "open",
                path: config.alloc_dir.clone(),
                source: std::io::Error::other(error),
            })
        })?;
    let skip = journal.recent.len().saturating_sub(RECENT_MAX);
    let recent = journal.recent.iter().skip(skip).map(|(_, seen)| seen.clone()).collect();
    let ready = journal.baseline.is_some();
    let (tell, observed) = watch::channel(Observed { ready, recent, ..Observed::default() });
    let (orders, orders_in) = mpsc::channel(QUEUE_LEN);
    let handle = Handle {
        orders,
        observed,
        as_user: as_user.clone(),
        user: config.user.clone(),
        dir: config.dir.clone(),
        folder: config.folder.clone(),
        job: config.job.clone(),
    };
    let known = journal.known();
    let observer = Observer {
        as_user,
        config,
        journal: Some(journal),
        known,
        before: HashSet::new(),
        tell,
        ending: false,
        compared: false,
    };
    tokio::spawn(observer.run(orders_in));
    Ok(handle)
}

impl Handle {
    /// Waits until the directory was listed, so that a job started now has all its checkpoints counted.
    pub async fn ready(&self, wait_max: Duration) -> Result<(), ObserverError> {
        let mut observed = self.observed.clone();
        let waited = tokio::time::timeout(wait_max, observed.wait_for(|state| state.ready)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                let why = self
                    .observed
                    .borrow()
                    .problem
                    .clone()
                    .unwrap_or_else(|| "no answer".to_owned());
                Err(ObserverError::NotReady { waited: wait_max, why })
            }
        }
    }

    /// The latest state; changes with each checkpoint.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Observed> {
        self.observed.clone()
    }

    #[must_use]
    pub fn last(&self) -> Option<CheckpointSeen> {
        self.observed.borrow().last().cloned()
    }

    /// Checkpoints after number `seq`, oldest first, at most [`RECENT_MAX`].
    #[must_use]
    pub fn since(&self, seq: u64) -> Vec<CheckpointSeen> {
        self.observed.borrow().recent.iter().filter(|seen| seen.seq > seq).cloned().collect()
    }

    /// The job said `CHECKPOINT=path`: counts it unless that state of that file already has a number, which is then
    /// returned. A relative path is relative to the attempt's checkpoint directory; the path is one of this node, so the caller
    /// translates container paths.
    pub async fn notify(&self, path: &str) -> Result<CheckpointSeen, NotifyError> {
        let bad = |why| NotifyError::Bad { path: path.to_owned(), why };
        if path.is_empty() || path.len() > NOTIFY_PATH_BYTES_MAX {
            return Err(bad("the path must have 1 to 4096 bytes"));
        }
        if path.chars().any(char::is_control) {
            return Err(bad("the path holds a control character"));
        }
        let full = self.dir.join(&self.folder).join(path);
        let not_there = |source| NotifyError::NotThere { path: path.to_owned(), source };
        let stat = match self.as_user.call(&self.user, Op::Stat { paths: vec![full.clone()] }).await
        {
            Ok(Reply::Stats(stats)) => match stats.into_iter().next() {
                Some(stat) => stat.map_err(|error| not_there(AsUserError::Op(error)))?,
                None => return Err(bad("the helper said nothing about it")),
            },
            Ok(_) => return Err(bad("the helper answered another question")),
            Err(source) => return Err(not_there(source)),
        };
        if stat.kind == FileKind::Other {
            return Err(bad("it is neither a file nor a directory"));
        }
        let facts = self.inspect(&full).await.map_err(not_there)?;
        let (reply, answer) = oneshot::channel();
        let ended = || NotifyError::Ended { path: path.to_owned() };
        let order = Notified { path: full.to_string_lossy().into_owned(), stat, facts, reply };
        self.orders.send(ObserverOrder::Notified(order)).await.map_err(|_| ended())?;
        let recorded = answer.await.map_err(|_| ended())?;
        recorded.map_err(|why| NotifyError::NotRecorded { path: path.to_owned(), why })
    }

    async fn inspect(&self, path: &Path) -> Result<Facts, AsUserError> {
        let (dir, job, path) = (self.dir.clone(), self.job.clone(), path.to_path_buf());
        let inspect = Op::Checkpoint(CheckpointOp::Inspect { dir, job, path });
        match self.as_user.call(&self.user, inspect).await {
            Ok(Reply::Facts(facts)) => Ok(Facts { rule: Some(Rule::Notified), ..*facts }),
            Ok(_) => Ok(Facts { rule: Some(Rule::Notified), ..Facts::default() }),
            Err(AsUserError::TimedOut { .. }) => {
                // A file system that hangs: it counts, and nobody knows more of it.
                let doubt = Doubt::NotFlushed;
                Ok(Facts { rule: Some(Rule::Notified), doubt, ..Facts::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// The attempt is being stopped: what is written in place from now on counts only where it is whole.
    pub async fn ending(&self) {
        // An observer that has ended has nothing to judge any more.
        self.orders.send(ObserverOrder::Ending).await.ok();
    }

    /// The job has no process left: whatever is complete by now is counted when this returns, unless the
    /// file system takes longer than `wait_max`. Nothing is observed after it.
    pub async fn finish(&self, wait_max: Duration) {
        let (reply, done) = oneshot::channel();
        let finished = async {
            if self.orders.send(ObserverOrder::Finish(reply)).await.is_ok() {
                // An observer that has ended has nothing to say.
                drop(done.await);
            }
        };
        if tokio::time::timeout(wait_max, finished).await.is_err() {
            warn!(dir = %self.dir.display(), "the last look for checkpoints takes too long");
        }
    }
}

enum Event {
    Order(Option<ObserverOrder>),
    Line(Option<Result<WatchLine, String>>),
    Restart,
}

struct Observer {
    as_user: AsUser,
    config: ObserverConfig,
    /// Away only while a blocking thread writes it; gone for good if that thread died.
    journal: Option<Journal>,
    known: HashSet<FileId>,
    /// Collected until `Ready`.
    before: HashSet<FileId>,
    tell: watch::Sender<Observed>,
    /// The attempt is being stopped.
    ending: bool,
    /// What the attempt resumed from was compared again.
    compared: bool,
}

/// What counts now, before it has its number.
struct Counted {
    path: String,
    size_bytes: u64,
    completed_at_unix_ms: u64,
    source: Source,
    facts: Facts,
}

impl Observer {
    async fn run(mut self, mut orders: mpsc::Receiver<ObserverOrder>) {
        let mut pause = RESTART_AFTER.0;
        let mut helper = Some(self.start_helper());
        let mut restart_at = tokio::time::Instant::now();
        loop {
            let event = tokio::select! {
                order = orders.recv() => Event::Order(order),
                line = next_line(&mut helper) => Event::Line(line),
                () = tokio::time::sleep_until(restart_at), if helper.is_none() => Event::Restart,
            };
            match event {
                Event::Order(None) => return,
                Event::Order(Some(ObserverOrder::Notified(order))) => {
                    if self.notified(order).await
                        && let Some(helper) = &helper
                    {
                        helper.own_is_told();
                    }
                }
                Event::Order(Some(ObserverOrder::Ending)) => {
                    self.ending = true;
                    if let Some(helper) = &helper {
                        helper.begin_to_end();
                    }
                }
                Event::Order(Some(ObserverOrder::Finish(reply))) => {
                    if let Some(helper) = helper.take() {
                        self.finish(helper).await;
                    }
                    // Who asked may have given up.
                    reply.send(()).ok();
                    return;
                }
                Event::Line(Some(Ok(line))) => {
                    if line == WatchLine::Alive {
                        pause = RESTART_AFTER.0;
                    }
                    self.take_line(line).await;
                }
                Event::Line(Some(Err(why))) => self.set_problem(Some(why)),
                Event::Line(None) => {
                    helper = None;
                    self.before.clear();
                    warn!(dir = %self.config.dir.display(), pause_ms = pause.as_millis(), "checkpoint watcher ended");
                    restart_at = tokio::time::Instant::now() + pause;
                    pause = (pause * 2).min(RESTART_AFTER.1);
                }
                Event::Restart => helper = Some(self.start_helper()),
            }
        }
    }

    /// Takes what the helper still says; its channel closes when it has ended.
    async fn finish(&mut self, mut helper: RunningHelper) {
        helper.finish();
        while let Some(line) = helper.lines.recv().await {
            match line {
                Ok(line) => self.take_line(line).await,
                Err(why) => self.set_problem(Some(why)),
            }
        }
    }

    async fn take_line(&mut self, line: WatchLine) {
        match line {
            WatchLine::Before(file) => {
                self.before.insert(file);
            }
            WatchLine::Ready => self.become_ready().await,
            WatchLine::Seen(seen) => {
                let path = self.config.dir.join(&seen.path).to_string_lossy().into_owned();
                let SeenLine { id, size_bytes, completed_at_unix_ms, facts, .. } = *seen;
                let found = Counted {
                    path,
                    size_bytes,
                    completed_at_unix_ms,
                    source: Source::Observed,
                    facts,
                };
                if let Err(why) = self.count(id, found).await {
                    self.set_problem(Some(why));
                }
            }
            WatchLine::Gone(id) => self.lost(id, Presence::Gone),
            WatchLine::Kept(id) => self.lost(id, Presence::Kept),
            WatchLine::Origin(fate) => self.take_fate(fate),
            WatchLine::Noted(note) => self.note(note),
            WatchLine::Limited { what } => warn!(what, "checkpoints are not all observed"),
            WatchLine::Problem(error) => self.set_problem(Some(error.to_string())),
            WatchLine::Alive => {}
        }
    }

    async fn become_ready(&mut self) {
        if self.journal.as_ref().is_some_and(|journal| journal.baseline.is_none()) {
            let before = std::mem::take(&mut self.before);
            self.known.extend(before.iter().copied());
            if let Err(why) = self.with_journal(move |journal| journal.set_baseline(before)).await {
                self.set_problem(Some(why));
                return;
            }
        }
        self.tell.send_modify(|state| {
            state.ready = true;
            state.problem = None;
        });
    }

    /// Whether it counts, and can be resumed from.
    async fn notified(&mut self, order: Notified) -> bool {
        let id = FileId::of(&order.stat);
        let already = self.known.contains(&id).then(|| self.number_of(id)).flatten();
        let result = match already {
            Some(seen) => Ok(seen),
            None => {
                let found = Counted {
                    path: order.path,
                    size_bytes: order.stat.size_bytes,
                    completed_at_unix_ms: unix_ms(),
                    source: Source::Notified,
                    facts: order.facts,
                };
                self.count(id, found).await
            }
        };
        let sound = result.as_ref().is_ok_and(|seen| !seen.facts.content.is_torn());
        // A job that closed its socket does not wait for the answer.
        let _caller_gone = order.reply.send(result);
        sound
    }

    fn number_of(&self, id: FileId) -> Option<CheckpointSeen> {
        let journal = self.journal.as_ref()?;
        journal.recent.iter().rev().find(|(file, _)| *file == id).map(|(_, seen)| seen.clone())
    }

    /// Numbers, fsyncs, then tells. A state that has a number keeps it.
    async fn count(&mut self, id: FileId, found: Counted) -> Result<CheckpointSeen, String> {
        let Counted { path, size_bytes, completed_at_unix_ms, source, facts } = found;
        if let (true, Some(seen)) = (self.known.contains(&id), self.number_of(id)) {
            return Ok(seen);
        }
        if self.known.contains(&id) {
            return Err(format!("{path} was there before this attempt"));
        }
        let Some(seq) = self.journal.as_ref().map(Journal::next_seq) else {
            return Err("the checkpoint journal is lost".to_owned());
        };
        let counted_at_unix_ms = unix_ms();
        let seen = CheckpointSeen {
            seq,
            path,
            size_bytes,
            completed_at_unix_ms,
            source,
            counted_at_unix_ms,
            facts,
        };
        let record = seen.clone();
        self.with_journal(move |journal| journal.append(id, record)).await?;
        self.known.insert(id);
        info!(seq, path = seen.path, size_bytes, ?source, "checkpoint complete");
        self.tell.send_modify(|state| {
            let excess = (state.recent.len() + 1).saturating_sub(RECENT_MAX);
            state.recent.drain(..excess);
            state.recent.push(seen.clone());
            state.problem = None;
        });
        Ok(seen)
    }

    fn lost(&self, id: FileId, presence: Presence) {
        let Some(seen) = self.number_of(id) else { return };
        let before = |state: &mut Observed| state.lost.insert(seen.seq, presence);
        self.tell.send_if_modified(|state| before(state) != Some(presence));
    }

    /// A helper that is started again need not compare it once more.
    fn take_fate(&mut self, fate: OriginFate) {
        let Some(origin) = &self.config.origin else { return };
        self.compared = true;
        if let OriginFate::Changed { why, .. } = &fate {
            warn!(path = origin.path, why, "changed after the attempt resumed from it");
            let (path, why) = (origin.path.clone(), why.clone());
            self.note(CheckpointNote::ChangedAfterResume { path, why });
        }
        let Some(id) = origin.id else { return };
        self.tell.send_modify(|state| state.origin = Some((id, fate)));
    }

    fn note(&self, note: CheckpointNote) {
        self.tell.send_if_modified(|state| {
            let new = !state.notes.iter().any(|known| known.is_of_kind(&note));
            if new {
                state.notes.push(note);
            }
            new
        });
    }

    /// What this attempt has counted, for a helper that is started again.
    fn counted(&self) -> Vec<CountedBefore> {
        let recent =
            self.journal.as_ref().map(|journal| journal.recent.as_slice()).unwrap_or_default();
        let newest = recent.iter().rev().take(COUNTED_TOLD_MAX).rev();
        let relative = |path: &str| {
            let path = Path::new(path).strip_prefix(&self.config.dir).ok()?;
            Some(path.to_str()?.to_owned())
        };
        let one = |(id, seen): &(FileId, CheckpointSeen)| {
            let path = relative(&seen.path)?;
            Some(CountedBefore { path, id: *id, list: seen.facts.list.clone() })
        };
        newest.filter_map(one).collect()
    }

    async fn with_journal(
        &mut self,
        act: impl FnOnce(&mut Journal) -> Result<(), JournalError> + Send + 'static,
    ) -> Result<(), String> {
        let Some(mut journal) = self.journal.take() else {
            return Err("the checkpoint journal is lost".to_owned());
        };
        let done = tokio::task::spawn_blocking(move || {
            let result = act(&mut journal);
            (journal, result)
        })
        .await;
        let (journal, result) = done.map_err(|error| error.to_string())?;
        self.journal = Some(journal);
        result.map_err(|error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    fn set_problem(&self, problem: Option<String>) {
        if let Some(why) = &problem {
            warn!(dir = %self.config.dir.display(), why, "checkpoints cannot be observed");
        }
        self.tell.send_if_modified(|state| {
            let changed = state.problem != problem;
            state.problem = problem;
            changed
        });
    }

    fn start_helper(&self) -> RunningHelper {
        let request = WatchRequest {
            dir: self.config.dir.clone(),
            folder: self.config.folder.clone(),
            pattern: self.config.pattern.clone(),
            rule: self.config.rule.clone(),
            job: self.config.job.clone(),
            attempt: self.config.attempt,
            others_dead: self.config.others_dead,
            counted: self.counted(),
            origin: self.config.origin.clone().filter(|_| !self.compared),
            keep_copy: self.config.keep_copy,
            timings: self.config.timings,
            baseline: self.journal.as_ref().is_some_and(|journal| journal.baseline.is_none()),
            known: self.known.iter().copied().collect(),
        };
        let helper = RunningHelper::start(self.as_user.clone(), self.config.user.clone(), request);
        if self.ending {
            helper.begin_to_end();
        }
        helper
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

async fn next_line(helper: &mut Option<RunningHelper>) -> Option<Result<WatchLine, String>> {
    match helper {
        Some(helper) => helper.lines.recv().await,
        None => std::future::pending().await,
    }
}

/// One life of the watching helper, on a thread of its own. Dropping it ends the helper.
struct RunningHelper {
    lines: mpsc::Receiver<Result<WatchLine, String>>,
    stop: Arc<AtomicBool>,
    ending: Arc<Ending>,
}

/// How the observer tells a helper that the job has ended.
#[derive(Debug, Default)]
struct Ending {
    told: AtomicBool,
    /// The attempt is being stopped.
    begun: AtomicBool,
    /// The helper's input, while it works.
    input: Mutex<Option<ChildStdin>>,
}

impl Ending {
    fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.close();
    }

    /// Gives the input of a helper that has just begun.
    fn hold(&self, input: Option<ChildStdin>) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = input;
        if self.begun.load(Ordering::SeqCst) {
            self.begin();
        }
        if self.told.load(Ordering::SeqCst) {
            self.close();
        }
    }

    /// Says it to the helper now, or when it begins.
    fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.say(ENDING);
    }

    fn say(&self, line: &str) {
        if let Some(input) = &mut *self.input.lock().unwrap_or_else(PoisonError::into_inner) {
            // A helper that is gone is started again and told again.
            input.write_all(line.as_bytes()).ok();
        }
    }

    fn close(&self) {
        drop(self.input.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl RunningHelper {
    fn start(as_user: AsUser, user: User, request: WatchRequest) -> Self {
        let (tell, lines) = mpsc::channel(QUEUE_LEN);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let ending = Arc::new(Ending::default());
        let told = Arc::clone(&ending);
        let thread = std::thread::Builder::new().name("fleet-watch".to_owned());
        let spawned = thread.spawn(move || {
            if let Err(why) = read_lines(&as_user, &user, request, &tell, &stopped, &told) {
                // The task may be gone already.
                let _task_gone = tell.blocking_send(Err(why));
            }
        });
        if let Err(error) = spawned {
            warn!(%error, "start the checkpoint watcher's thread");
        }
        Self { lines, stop, ending }
    }

    /// What is written in place from now on may be cut.
    fn begin_to_end(&self) {
        self.ending.begin();
    }

    /// The job told of a checkpoint, which counts. A helper that begins later finds it in the journal.
    fn own_is_told(&self) {
        self.ending.say(TOLD);
    }

    /// The helper looks once more, says what it sees, and ends.
    fn finish(&self) {
        self.ending.tell();
    }
}

impl Drop for RunningHelper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read_lines(
    as_user: &AsUser,
    user: &User,
    request: WatchRequest,
    tell: &mpsc::Sender<Result<WatchLine, String>>,
    stop: &AtomicBool,
    ending: &Ending,
) -> Result<(), String> {
    let silent_max = Duration::from_millis(request.timings.scan_ms).saturating_add(SILENT_MAX);
    let mut helper = as_user
        .start(user, &Op::Checkpoint(CheckpointOp::Watch(Box::new(request))))
        .map_err(|error| error.to_string())?;
    ending.hold(helper.take_input());
    let result = forward_lines(&mut helper, silent_max, tell, stop);
    // A helper that ended after the observer told it to is no problem.
    if let Err(why) = &result
        && !ending.told.load(Ordering::SeqCst)
    {
        // Told now, since the end may be long in coming. Only when it has come is the channel closed, and another helper
        // started: a dead file server costs one helper per allocation, not one per attempt.
        let _task_gone = tell.blocking_send(Err(why.clone()));
    }
    ending.close();
    helper.end_and_wait();
    Ok(())
}

fn forward_lines(
    helper: &mut Helper,
    silent_max: Duration,
    tell: &mpsc::Sender<Result<WatchLine, String>>,
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut heard_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let line = match helper.read_line(Instant::now() + STOP_CHECK) {
            Ok(line) => line,
            Err(AsUserError::TimedOut { .. }) if heard_at.elapsed() < silent_max => continue,
            Err(AsUserError::TimedOut { .. }) => {
                return Err(format!(
                    "the watcher has said nothing for {silent_max:?}; the file system may be hanging"
                ));
            }
            Err(error) => return Err(error.to_string()),
        };
        heard_at = Instant::now();
        let line: WatchLine = serde_json::from_slice(&line)
            .map_err(|error| format!("the watcher's line: {error}"))?;
        if tell.blocking_send(Ok(line)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
