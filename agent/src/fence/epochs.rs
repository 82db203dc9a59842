//! The fence of this node: the highest epoch seen per GPU and per allocation, on the disk before anything
//! starts under it.
//!
//! One append and one fdatasync for all starts that wait at the same time. A thread of its own owns the
//! file; those who start something hold an [`Epochs`]. What is refused is decided by [`fleet_node::epochs`]. A damaged file stops the agent: nothing is repaired silently.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fleet_node::epochs::{Claim, ClaimError, EpochLine, SeenEpochs};
use tokio::sync::{mpsc, oneshot};

/// In the state folder.
pub(crate) const FILE: &str = "epochs.jsonl";
/// With this many lines the file is rewritten.
const LINES_MAX: usize = 20_000;
/// Claims that wait for the disk.
const QUEUE: usize = 256;

/// Why the stored epochs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    #[error("{action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} line {line} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, line: usize, why: String },
}

/// Where the lines are kept. A trait so that tests and the simulation can see what is durable when.
pub trait Storage: Send {
    /// Appends and returns only when it is on the disk.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Replaces everything, durably.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The owner of the file.
#[derive(Debug)]
pub struct EpochStore<S> {
    seen: SeenEpochs,
    /// In the file.
    lines: usize,
    storage: S,
}

impl<S: Storage> EpochStore<S> {
    /// Takes over what `storage` holds: `text`, which names itself `path` in messages.
    pub fn read_back(storage: S, path: &Path, text: &[u8]) -> Result<Self, EpochError> {
        let (seen, lines) = read_back(path, text)?;
        Ok(Self { seen, lines, storage })
    }

    /// Checks every claim and makes the good ones durable together.
    pub fn claim(&mut self, claims: &[Claim]) -> Vec<Result<(), ClaimError>> {
        let judged = self.seen.judge(claims);
        let new: Vec<&EpochLine> =
            judged.iter().filter_map(|one| one.as_ref().ok()?.as_ref()).collect();
        if let Err(error) = self.append(&new) {
            let refused = |one: Result<Option<EpochLine>, ClaimError>| match one? {
                Some(_) => Err(ClaimError::Disk(error.to_string())),
                None => Ok(()),
            };
            return judged.into_iter().map(refused).collect();
        }
        for line in new {
            self.seen.take(line.clone());
        }
        if self.lines > LINES_MAX {
            self.compact();
        }
        judged.into_iter().map(|one| one.map(drop)).collect()
    }

    fn append(&mut self, new: &[&EpochLine]) -> io::Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        new.iter().for_each(|line| encode(line, &mut bytes));
        self.storage.append(&bytes)?;
        self.lines += new.len();
        Ok(())
    }

    fn compact(&mut self) {
        self.seen.shorten();
        let lines = self.seen.lines();
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| encode(line, &mut bytes));
        match self.storage.replace(&bytes) {
            Ok(()) => self.lines = lines.len(),
            // The long file is as good; tried again with the next claim.
            Err(error) => tracing::warn!(%error, "epochs could not be written again"),
        }
    }
}

fn encode(line: &EpochLine, bytes: &mut Vec<u8>) {
    // A line of ids and numbers always encodes.
    if serde_json::to_writer(&mut *bytes, line).is_ok() {
        bytes.push(b'\n');
    }
}

/// The file itself.
#[derive(Debug)]
pub(crate) struct EpochFile {
    path: PathBuf,
    file: File,
}

impl Storage for EpochFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // Half a line must not be followed by a whole one; opening would cut it as well.
            drop(self.file.set_len(before));
        }
        written
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        sync_parent(&self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        Ok(())
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// Opens the file below `state_dir` and reads it back.
pub(crate) fn open(state_dir: &Path) -> Result<EpochStore<EpochFile>, EpochError> {
    let path = state_dir.join(FILE);
    let failed = |action| {
        let path = path.clone();
        move |source| EpochError::Io { action, path, source }
    };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(failed("read")(source)),
    };
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (seen, lines) = read_back(&path, &text[..whole])?;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed("open"))?;
    if whole < text.len() {
        // A last line without its end was never acted upon.
        let length = u64::try_from(whole).unwrap_or(u64::MAX);
        file.set_len(length).and_then(|()| file.sync_all()).map_err(failed("cut"))?;
    }
    sync_parent(&path).map_err(failed("sync"))?;
    Ok(EpochStore { seen, lines, storage: EpochFile { path, file } })
}

/// With the number of lines.
fn read_back(path: &Path, text: &[u8]) -> Result<(SeenEpochs, usize), EpochError> {
    let (mut seen, mut read) = (SeenEpochs::default(), 0);
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    for (at, line) in lines {
        let damaged =
            |why: String| EpochError::Damaged { path: path.to_owned(), line: at + 1, why };
        let line: EpochLine = serde_json::from_slice(line).map_err(|e| damaged(e.to_string()))?;
        if let Some(v) = line.newer() {
            return Err(damaged(format!("version {v} was written by a newer fleet")));
        }
        seen.take(line);
        read += 1;
    }
    Ok((seen, read))
}

type Waiting = (Claim, oneshot::Sender<Result<(), ClaimError>>);

/// A way to the fence. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Epochs(mpsc::Sender<Waiting>);

impl Epochs {
    /// Opens the file below `state_dir` and starts the thread that owns it.
    pub fn start(state_dir: &Path) -> Result<Self, EpochError> {
        let store = open(state_dir)?;
        Self::serve(store).map_err(|source| EpochError::Io {
            action: "start a thread for",
            path: state_dir.join(FILE),
            source,
        })
    }

    fn serve<S: Storage + 'static>(mut store: EpochStore<S>) -> io::Result<Self> {
        let (sender, mut waiting) = mpsc::channel::<Waiting>(QUEUE);
        std::thread::Builder::new().name("fleet-epochs".to_owned()).spawn(move || {
            let mut batch = Vec::new();
            while waiting.blocking_recv_many(&mut batch, QUEUE) > 0 {
                let claims: Vec<Claim> = batch.iter().map(|(claim, _)| claim.clone()).collect();
                let verdicts = store.claim(&claims);
                for ((_, tell), verdict) in batch.drain(..).zip(verdicts) {
                    // Who asked may have given up; the epoch is taken all the same.
                    drop(tell.send(verdict));
                }
            }
        })?;
        Ok(Self(sender))
    }

    /// Returns when the claim is on the disk: only then may anything start under it.
    pub async fn claim(&self, claim: Claim) -> Result<(), ClaimError> {
        let gone = || ClaimError::Disk("the epoch thread has ended".to_owned());
        let (tell, verdict) = oneshot::channel();
        self.0.send((claim, tell)).await.map_err(|_| gone())?;
        verdict.await.unwrap_or_else(|_| Err(gone()))
    }
}

#[cfg(test)]
mod tests;
