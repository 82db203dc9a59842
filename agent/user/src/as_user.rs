//! The agent's side of doing something as a user: start the helper, ask, wait with a deadline, kill.
//!
//! A process that waits for a dead NFS server cannot be killed until the server is back. Such helpers are abandoned:
//! counted, capped per user and in all, and collected when they finally end. So one user's dead file server costs that
//! user's operations, and nobody else's.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::deadline_reader::DeadlineReader;
use crate::identity::Identity;
use crate::op::resume::COPY_MAX;
use crate::op::{ANSWER_BYTES_MAX, CheckpointOp, Op, OpError, Reply};
use crate::resolve::User;

/// How long a killed helper gets to disappear before it counts as abandoned.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// Most of a helper's stderr that is kept for the error.
const STDERR_BYTES_MAX: u64 = 4096;

/// Which program is the helper.
#[derive(Debug, Clone)]
pub struct HelperProgram {
    pub program: PathBuf,
    /// Come before `UID GID GROUPS`.
    pub args: Vec<String>,
    /// The helper's whole environment.
    pub env: Vec<(String, String)>,
}

impl Default for HelperProgram {
    /// This binary, even when its file was replaced by an upgrade.
    fn default() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec!["as-user".to_owned()], env: Vec::new() }
    }
}

#[derive(Debug, Clone)]
pub struct AsUserConfig {
    pub helper: HelperProgram,
    /// How long one operation may take. Default 10 s.
    pub deadline: Duration,
    /// How long a stream may stand still between two bytes. Default 60 s.
    pub stall_max: Duration,
    /// Most helpers of one user, at work or abandoned. Default 24: one for each of the starts that are prepared at once, and
    /// for the images that are inspected, read and unpacked beside them.
    pub per_user_max: usize,
    /// Most watchers of one user, one per allocation. They last as long as a job, so they are not counted with the rest.
    /// Default 256.
    pub watchers_per_user_max: usize,
    /// Most helpers of all users that are no watchers. Default 256.
    pub total_max: usize,
}

impl Default for AsUserConfig {
    fn default() -> Self {
        Self {
            helper: HelperProgram::default(),
            deadline: Duration::from_secs(10),
            stall_max: Duration::from_secs(60),
            per_user_max: 24,
            watchers_per_user_max: 256,
            total_max: 256,
        }
    }
}

/// Why an operation as the user has no result.
#[derive(Debug, thiserror::Error)]
pub enum AsUserError {
    /// The user's own error: no permission, no such file, no space.
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(
        "{what} as user {user} did not finish within {waited:?}; its file system may be hanging"
    )]
    TimedOut { what: &'static str, user: String, waited: Duration },
    #[error("{what} was not tried: {count} operations of user {user} have not come back")]
    TooManyStuck { what: &'static str, user: String, count: usize },
    #[error("start the as-user helper")]
    Start(#[source] std::io::Error),
    #[error("the as-user helper failed on {what} for user {user}: {why}")]
    Helper { what: &'static str, user: String, why: String },
}

/// What a helper is counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    /// One operation.
    Short,
    /// A watcher, for as long as a job runs.
    Lasting,
}

#[derive(Debug, Default)]
struct Counts {
    by_uid: HashMap<(u32, Lane), usize>,
    /// Those that are no watchers.
    total: usize,
    abandoned: usize,
}

#[derive(Debug)]
struct Inner {
    config: AsUserConfig,
    counts: Mutex<Counts>,
}

/// Runs operations as users. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AsUser {
    inner: Arc<Inner>,
}

impl AsUser {
    #[must_use]
    pub fn new(config: AsUserConfig) -> Self {
        Self { inner: Arc::new(Inner { config, counts: Mutex::default() }) }
    }

    pub(crate) fn config(&self) -> &AsUserConfig {
        &self.inner.config
    }

    /// Helpers that were killed and have not ended.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.lock().abandoned
    }

    /// Does one operation as the user. Never blocks the caller's thread.
    pub async fn call(&self, user: &User, op: Op) -> Result<Reply, AsUserError> {
        let what = op_name(&op);
        let (this, owner) = (self.clone(), user.clone());
        let (tell, answer) = tokio::sync::oneshot::channel();
        let spawned =
            std::thread::Builder::new().name("fleet-as-user".to_owned()).spawn(move || {
                // The caller may have gone; the helper was still ended properly.
                let _caller_gone = tell.send(this.call_blocking(&owner, &op));
            });
        spawned.map_err(AsUserError::Start)?;
        answer.await.unwrap_or_else(|_| {
            Err(AsUserError::Helper {
                what,
                user: user.name.clone(),
                why: "its thread died".to_owned(),
            })
        })
    }

    /// [`AsUser::call`] for callers that own their thread. Blocks up to the deadline.
    pub fn call_blocking(&self, user: &User, op: &Op) -> Result<Reply, AsUserError> {
        let mut helper = self.start(user, op)?;
        let copies =
            matches!(op, Op::Checkpoint(CheckpointOp::Resume(request)) if request.own.is_some());
        let more = if copies { COPY_MAX } else { Duration::ZERO };
        let line = helper.read_line(Instant::now() + self.inner.config.deadline + more);
        let outcome = line.and_then(|line| helper.parse_reply(&line));
        helper.finish(outcome.is_ok());
        outcome
    }

    /// Starts a helper and hands it its request.
    pub fn start(&self, user: &User, op: &Op) -> Result<Helper, AsUserError> {
        let what = op_name(op);
        let slot = self.take_slot(user, op)?;
        let config = &self.inner.config.helper;
        let mut child = Command::new(&config.program)
            // What `ps` shows, instead of a path that says nothing.
            .arg0("fleet-agent")
            .args(&config.args)
            .args(Identity::from(user).to_args())
            .env_clear()
            .envs(config.env.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(AsUserError::Start)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut helper = Helper {
            what,
            user: user.name.clone(),
            child: Some(child),
            stdin,
            out: stdout.map(|out| DeadlineReader::new(OwnedFd::from(out))),
            slot: Some(slot),
        };
        helper.send(op)?;
        Ok(helper)
    }

    fn take_slot(&self, user: &User, op: &Op) -> Result<Slot, AsUserError> {
        let config = &self.inner.config;
        let (lane, max, total_max) = match op {
            Op::Checkpoint(CheckpointOp::Watch(_)) => {
                (Lane::Lasting, config.watchers_per_user_max, usize::MAX)
            }
            _ => (Lane::Short, config.per_user_max, config.total_max),
        };
        let key = (user.uid, lane);
        let mut counts = self.lock();
        let count = counts.by_uid.get(&key).copied().unwrap_or_default();
        if count >= max || counts.total >= total_max {
            return Err(AsUserError::TooManyStuck {
                what: op_name(op),
                user: user.name.clone(),
                count,
            });
        }
        counts.by_uid.insert(key, count + 1);
        counts.total += usize::from(lane == Lane::Short);
        drop(counts);
        Ok(Slot { owner: self.clone(), key })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.inner.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place under the caps; dropped, and so freed, when the helper has really ended.
#[derive(Debug)]
struct Slot {
    owner: AsUser,
    key: (u32, Lane),
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.owner.lock();
        counts.total = counts.total.saturating_sub(usize::from(self.key.1 == Lane::Short));
        let left = counts.by_uid.get(&self.key).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            counts.by_uid.remove(&self.key);
        } else {
            counts.by_uid.insert(self.key, left);
        }
    }
}

/// One running helper process. Dropping it kills it.
#[derive(Debug)]
pub struct Helper {
    what: &'static str,
    user: String,
    child: Option<Child>,
    stdin: Option<ChildStdin>,
    out: Option<DeadlineReader>,
    slot: Option<Slot>,
}

impl Helper {
    fn send(&mut self, op: &Op) -> Result<(), AsUserError> {
        let mut line = serde_json::to_vec(op).map_err(|error| self.error(&error.to_string()))?;
        line.push(b'\n');
        // The helper reads its request before it touches any user path, so this write cannot hang on one.
        self.tell(&line)
    }

    pub fn tell(&mut self, bytes: &[u8]) -> Result<(), AsUserError> {
        let sent = self
            .stdin
            .as_mut()
            .map_or(Ok(()), |stdin| stdin.write_all(bytes).and_then(|()| stdin.flush()));
        sent.map_err(|error| self.error(&error.to_string()))
    }

    /// The way to a helper that works until its input ends: dropping it ends the helper in order.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    pub fn read_line(&mut self, deadline: Instant) -> Result<Vec<u8>, AsUserError> {
        let started = Instant::now();
        let line = match self.out.as_mut() {
            Some(out) => out.read_line(deadline, ANSWER_BYTES_MAX),
            None => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
        };
        line.map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => AsUserError::TimedOut {
                what: self.what,
                user: self.user.clone(),
                waited: started.elapsed(),
            },
            _ => self.error(&error.to_string()),
        })
    }

    pub fn read_some(&mut self, buf: &mut [u8], deadline: Instant) -> std::io::Result<usize> {
        self.out.as_mut().map_or(Ok(0), |out| out.read_some(buf, deadline))
    }

    pub(crate) fn parse_reply(&mut self, line: &[u8]) -> Result<Reply, AsUserError> {
        let reply: Result<Reply, OpError> = serde_json::from_slice(line)
            .map_err(|error| self.error(&format!("unreadable answer: {error}")))?;
        reply.map_err(AsUserError::Op)
    }

    /// An error that carries what the helper said on stderr, if it has ended.
    pub fn error(&mut self, why: &str) -> AsUserError {
        let mut said = String::new();
        if let Some(child) = self.child.as_mut() {
            let ended = wait_until(child, Instant::now() + KILL_WAIT);
            if let (true, Some(stderr)) = (ended, child.stderr.take()) {
                let _partial_is_fine = stderr.take(STDERR_BYTES_MAX).read_to_string(&mut said);
            }
        }
        let said = said.trim();
        let why = if said.is_empty() { why.to_owned() } else { format!("{why}: {said}") };
        AsUserError::Helper { what: self.what, user: self.user.clone(), why }
    }

    /// Ends the helper. One that answered is about to exit by itself; any other is killed.
    pub fn finish(&mut self, answered: bool) {
        self.stdin = None;
        let (Some(mut child), Some(slot)) = (self.child.take(), self.slot.take()) else { return };
        if answered && wait_until(&mut child, Instant::now() + KILL_WAIT) {
            return;
        }
        if let Err(error) = child.kill() {
            warn!(%error, "kill an as-user helper");
        }
        if !wait_until(&mut child, Instant::now() + KILL_WAIT) {
            abandon(child, slot, self.what, self.user.clone());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.finish(false);
    }
}

impl Helper {
    /// Kills the helper and waits until it is really gone, however long its file system hangs. For a thread that has
    /// nothing else to do, and must not start another helper before.
    pub fn end_and_wait(mut self) {
        self.stdin = None;
        let Some(mut child) = self.child.take() else { return };
        let ended = child.kill().and_then(|()| child.wait());
        if let Err(error) = ended {
            warn!(%error, user = self.user, what = self.what, "wait for an as-user helper");
        }
    }
}

/// Waits a short, bounded time for the child to end.
fn wait_until(child: &mut Child, deadline: Instant) -> bool {
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leaves a helper that does not die to a thread that waits for it; its place stays taken until then.
fn abandon(mut child: Child, slot: Slot, what: &'static str, user: String) {
    let owner = slot.owner.clone();
    owner.lock().abandoned += 1;
    warn!(
        user,
        what,
        pid = child.id(),
        "an as-user helper does not die; its file system may be hanging"
    );
    let thread = std::thread::Builder::new().name("fleet-abandoned".to_owned()).spawn(move || {
        let ended = child.wait();
        info!(user, what, ?ended, "an abandoned as-user helper ended");
        slot.owner.lock().abandoned -= 1;
        drop(slot);
    });
    if let Err(error) = thread {
        warn!(%error, "start the thread that waits for an abandoned helper");
        owner.lock().abandoned -= 1;
    }
}

fn op_name(op: &Op) -> &'static str {
    match op {
        Op::CheckDir { .. } => "check directory",
        Op::Stat { .. } => "stat",
        Op::WriteFile { .. } => "write file",
        Op::ReadFile { .. } => "read file",
        Op::Touch { .. } => "touch",
        Op::RemoveFile { .. } => "remove file",
        Op::Readable { .. } => "read",
        Op::Connect { .. } => "connect",
        Op::Stream { .. } => "open file",
        Op::Checkpoint(op) => checkpoint_op_name(op),
    }
}

fn checkpoint_op_name(op: &CheckpointOp) -> &'static str {
    match op {
        CheckpointOp::Inspect { .. } => "check a checkpoint",
        CheckpointOp::Resume(_) => "choose a checkpoint",
        CheckpointOp::PutBack { .. } => "move checkpoints back",
        CheckpointOp::RemoveJobFiles { .. } => "remove files beside checkpoints",
        CheckpointOp::Watch(_) => "watch checkpoints",
    }
}
