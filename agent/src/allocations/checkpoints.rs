//! An attempt's checkpoints: observing them, counting those the job tells of.

use std::path::{Path, PathBuf};

use fleet_core::checkpoint::{CheckpointId, Presence};
use tokio::task::{JoinSet, spawn_blocking};

use super::order::{checkpoint_base, on_node};
use super::task::Happening;
use crate::attempts::{AllocationDir, Record};
use crate::chain::chain;
use crate::checkpoint::{self, Handle, ObserverConfig, ObserverError, OriginFate, Timings};
use fleet_shim::order::{EVENTS_FILE, JobEvent, Notice};
use fleet_user::{AsUser, User};

/// Of a longer file of notices only the end is read back.
const NOTICES_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Starts observing, or resumes after a restart of the agent.
pub(super) async fn observe(
    as_user: &AsUser,
    timings: Timings,
    record: &Record,
    user: &User,
    dir: &AllocationDir,
) -> Result<Handle, ObserverError> {
    let plan = record.order.spec.checkpoint.as_ref();
    let origin = dir.resumed_from().unwrap_or_else(|error| {
        tracing::warn!(id = %record.id, error = chain(&error), "what it resumed from is not compared");
        None
    });
    let config = ObserverConfig {
        user: user.clone(),
        dir: checkpoint_base(&record.order.spec).unwrap_or_else(|| PathBuf::from("/")),
        folder: plan.and_then(|plan| plan.folder_of(record.order.attempt)).unwrap_or_default(),
        pattern: plan.and_then(|plan| plan.pattern.clone()),
        rule: plan.map(|plan| plan.rule.clone()).unwrap_or_default(),
        job: record.order.job.to_string(),
        attempt: record.order.attempt,
        others_dead: record.order.resume.as_ref().is_none_or(|resume| resume.others_dead),
        origin,
        keep_copy: plan.is_some_and(|plan| plan.keep_copy),
        alloc_dir: dir.path().to_owned(),
        timings,
    };
    checkpoint::start(as_user.clone(), config).await
}

/// What is said of the checkpoint that the attempt resumed from, an earlier attempt's.
pub(super) fn of_fate(id: CheckpointId, fate: OriginFate) -> Option<Happening> {
    let (content, presence) = match fate {
        OriginFate::Same => return None,
        OriginFate::Gone => (None, Some(Presence::Gone)),
        OriginFate::Kept => (None, Some(Presence::Kept)),
        OriginFate::Changed { content, .. } => (Some(content), None),
    };
    let CheckpointId { attempt, seq } = id;
    Some(Happening::CheckpointChanged { attempt: Some(attempt), seq, content, presence })
}

/// Counts a checkpoint the job reported, as one of `tasks`. What cannot be counted is logged: the job keeps running.
pub(super) fn notified(tasks: &mut JoinSet<()>, observer: &Handle, record: &Record, path: &str) {
    // A relative path is relative to the checkpoint directory, which the observer knows.
    let path = on_node(&record.order.spec, Path::new(path));
    let (observer, id) = (observer.clone(), record.id.clone());
    // Those that are done need not be kept.
    while tasks.try_join_next().is_some() {}
    tasks.spawn(async move {
        if let Err(error) = observer.notify(&path.to_string_lossy()).await {
            tracing::warn!(%id, error = chain(&error), "a checkpoint was not counted");
        }
    });
}

/// What the job told on its socket since some notice.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Number of the last notice.
    pub(super) last: u64,
    pub(super) checkpoints: Vec<String>,
    /// The last it said of itself.
    pub(super) status: Option<String>,
}

/// What the job told since notice number `after`.
pub(super) async fn told_since(dir: &AllocationDir, after: u64) -> Told {
    let path = dir.path().join(EVENTS_FILE);
    let read = spawn_blocking(move || read_notices(&path)).await;
    let events = read.ok().and_then(Result::ok).unwrap_or_default();
    let new = events.into_iter().filter(|event| event.sequence > after);
    new.fold(Told { last: after, ..Told::default() }, |mut told, event| {
        match event.notice {
            Notice::Checkpoint { path } => told.checkpoints.push(path),
            Notice::Status { text } => told.status = Some(text),
            Notice::Done => {}
        }
        told.last = told.last.max(event.sequence);
        told
    })
}

fn read_notices(path: &Path) -> std::io::Result<Vec<JobEvent>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(NOTICES_BYTES_MAX)))?;
    let mut text = Vec::new();
    file.take(NOTICES_BYTES_MAX).read_to_end(&mut text)?;
    // The first line may be cut, the last one may be under way: neither parses.
    Ok(text.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect())
}
