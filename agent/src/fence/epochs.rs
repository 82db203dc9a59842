//! The fence of this node: the highest epoch seen per GPU and per allocation, on the disk before anything
//! starts under it.
//!
//! One append and one fdatasync for all starts that wait at the same time. A thread of its own owns the
//! file; those who start something hold an [`Epochs`]. A lower epoch is refused; an equal one with the
//! equal lease is the same order, sent again. A damaged file stops the agent: nothing is repaired silently.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::GpuUuid;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

/// In the state folder.
pub(crate) const FILE: &str = "epochs.jsonl";
const VERSION: u32 = 1;
/// With this many lines the file is rewritten.
const LINES_MAX: usize = 20_000;
/// Allocations whose own epoch is remembered; older ones are covered by the floor.
const ALLOCATIONS_MAX: usize = 5_000;
/// Claims that wait for the disk.
const QUEUE: usize = 256;

/// A start that wants to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    pub gpus: Vec<GpuUuid>,
}

/// Why a start must not happen.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("{what} was granted under epoch {}.{} already, this order is from {}.{}", seen.incarnation, seen.index, claimed.incarnation, claimed.index)]
    Lower { what: String, seen: Epoch, claimed: Epoch },
    #[error("{gpu} is under lease {lease} of the same epoch")]
    OtherLease { gpu: GpuUuid, lease: String },
    #[error("epochs cannot be made durable: {0}")]
    Disk(String),
}

impl ClaimError {
    /// Whether the order is out of date, in contrast to a node that cannot carry it out.
    pub fn is_stale(&self) -> bool {
        !matches!(self, ClaimError::Disk(_))
    }
}

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EpochLine {
    Claim {
        v: u32,
        claim: Claim,
    },
    /// Allocations below it are not remembered one by one any more.
    Floor {
        v: u32,
        epoch: Epoch,
    },
    /// The newest grant of a GPU whose allocation is not remembered any more.
    Gpu {
        v: u32,
        gpu: GpuUuid,
        epoch: Epoch,
        lease: Option<LeaseId>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    epoch: Epoch,
    lease: Option<LeaseId>,
}

/// What is remembered; pure.
#[derive(Debug, Default)]
struct SeenEpochs {
    gpus: BTreeMap<GpuUuid, Grant>,
    allocations: BTreeMap<AllocationId, Epoch>,
    floor: Epoch,
    lines: usize,
}

impl SeenEpochs {
    /// `Ok(true)`: new; `Ok(false)`: the same order again.
    fn check(&self, claim: &Claim) -> Result<bool, ClaimError> {
        let lower = |what: String, seen| ClaimError::Lower { what, seen, claimed: claim.epoch };
        for gpu in &claim.gpus {
            let Some(grant) = self.gpus.get(gpu) else { continue };
            if claim.epoch < grant.epoch {
                return Err(lower(gpu.to_string(), grant.epoch));
            }
            if claim.epoch == grant.epoch && claim.lease != grant.lease {
                let lease = grant.lease.as_ref().map_or("none", LeaseId::as_str).to_owned();
                return Err(ClaimError::OtherLease { gpu: gpu.clone(), lease });
            }
        }
        match self.allocations.get(&claim.allocation) {
            Some(seen) if claim.epoch < *seen => Err(lower(claim.allocation.to_string(), *seen)),
            Some(seen) if claim.epoch == *seen => {
                Ok(claim.gpus.iter().any(|gpu| !self.gpus.contains_key(gpu)))
            }
            Some(_) => Ok(true),
            None if claim.epoch < self.floor => {
                Err(lower(claim.allocation.to_string(), self.floor))
            }
            None => Ok(true),
        }
    }

    fn take(&mut self, line: EpochLine) {
        self.lines += 1;
        match line {
            EpochLine::Floor { epoch, .. } => self.floor = self.floor.max(epoch),
            EpochLine::Gpu { gpu, epoch, lease, .. } => {
                self.gpus.insert(gpu, Grant { epoch, lease });
            }
            EpochLine::Claim { claim, .. } => {
                let Claim { allocation, epoch, lease, gpus } = claim;
                for gpu in gpus {
                    self.gpus.insert(gpu, Grant { epoch, lease: lease.clone() });
                }
                self.allocations.insert(allocation, epoch);
            }
        }
    }

    /// Forgets the oldest allocations, raising the floor to what was forgotten.
    fn shorten(&mut self) {
        let excess = self.allocations.len().saturating_sub(ALLOCATIONS_MAX);
        let mut by_age: Vec<(Epoch, AllocationId)> =
            self.allocations.iter().map(|(id, epoch)| (*epoch, id.clone())).collect();
        by_age.sort();
        for (epoch, id) in by_age.into_iter().take(excess) {
            self.floor = self.floor.max(epoch);
            self.allocations.remove(&id);
        }
    }

    fn lines(&self) -> Vec<EpochLine> {
        let mut lines = vec![EpochLine::Floor { v: VERSION, epoch: self.floor }];
        let claim = |claim| EpochLine::Claim { v: VERSION, claim };
        lines.extend(self.allocations.iter().map(|(allocation, epoch)| {
            let allocation = allocation.clone();
            claim(Claim { allocation, epoch: *epoch, lease: None, gpus: Vec::new() })
        }));
        lines.extend(self.gpus.iter().map(|(gpu, grant)| {
            let (gpu, epoch, lease) = (gpu.clone(), grant.epoch, grant.lease.clone());
            EpochLine::Gpu { v: VERSION, gpu, epoch, lease }
        }));
        lines
    }
}

/// The owner of the file.
#[derive(Debug)]
pub struct EpochStore<S> {
    seen: SeenEpochs,
    storage: S,
}

impl<S: Storage> EpochStore<S> {
    /// Takes over what `storage` holds: `text`, which names itself `path` in messages.
    pub fn read_back(storage: S, path: &Path, text: &[u8]) -> Result<Self, EpochError> {
        Ok(Self { seen: read_back(path, text)?, storage })
    }

    /// Checks every claim and makes the good ones durable together.
    pub fn claim(&mut self, claims: &[Claim]) -> Vec<Result<(), ClaimError>> {
        let mut verdicts = Vec::with_capacity(claims.len());
        let mut bytes = Vec::new();
        let mut lines: Vec<(usize, EpochLine)> = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            // Two of one batch may want the same GPU: the later one must see the earlier one.
            let rival = lines.iter().find_map(|(_, line)| conflict(line, claim));
            let verdict = rival.map_or_else(|| self.seen.check(claim), Err);
            match verdict {
                Ok(true) => {
                    let line = EpochLine::Claim { v: VERSION, claim: claim.clone() };
                    encode(&line, &mut bytes);
                    lines.push((at, line));
                    verdicts.push(Ok(()));
                }
                Ok(false) => verdicts.push(Ok(())),
                Err(error) => verdicts.push(Err(error)),
            }
        }
        if lines.is_empty() {
            return verdicts;
        }
        if let Err(error) = self.storage.append(&bytes) {
            for (at, _) in &lines {
                verdicts[*at] = Err(ClaimError::Disk(error.to_string()));
            }
            return verdicts;
        }
        for (_, line) in lines {
            self.seen.take(line);
        }
        if self.seen.lines > LINES_MAX {
            self.compact();
        }
        verdicts
    }

    fn compact(&mut self) {
        self.seen.shorten();
        let lines = self.seen.lines();
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| encode(line, &mut bytes));
        match self.storage.replace(&bytes) {
            Ok(()) => self.seen.lines = lines.len(),
            // The long file is as good; tried again with the next claim.
            Err(error) => tracing::warn!(%error, "epochs could not be written again"),
        }
    }
}

fn conflict(line: &EpochLine, claim: &Claim) -> Option<ClaimError> {
    let EpochLine::Claim { claim: earlier, .. } = line else { return None };
    let gpu = claim.gpus.iter().find(|gpu| earlier.gpus.contains(gpu))?;
    if earlier.lease == claim.lease && earlier.epoch == claim.epoch {
        return None;
    }
    let lease = earlier.lease.as_ref().map_or("none", LeaseId::as_str).to_owned();
    Some(ClaimError::OtherLease { gpu: gpu.clone(), lease })
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
    let seen = read_back(&path, &text[..whole])?;
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
    Ok(EpochStore { seen, storage: EpochFile { path, file } })
}

fn read_back(path: &Path, text: &[u8]) -> Result<SeenEpochs, EpochError> {
    let mut seen = SeenEpochs::default();
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    for (at, line) in lines {
        let damaged =
            |why: String| EpochError::Damaged { path: path.to_owned(), line: at + 1, why };
        let line: EpochLine = serde_json::from_slice(line).map_err(|e| damaged(e.to_string()))?;
        let (EpochLine::Claim { v, .. } | EpochLine::Floor { v, .. } | EpochLine::Gpu { v, .. }) =
            &line;
        if *v > VERSION {
            return Err(damaged(format!("version {v} was written by a newer fleet")));
        }
        seen.take(line);
    }
    Ok(seen)
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
