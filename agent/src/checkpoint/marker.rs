//! Can this node read the checkpoint that an attempt on another node has left?
//!
//! The same path on two nodes may be one NFS directory or two local disks. So the first attempt leaves a marker with a
//! random token beside its checkpoints, and a node resumes only where it reads that token and the checkpoint itself.

use std::path::{Path, PathBuf};

use fleet_user::op::{Op, OpErrorKind, Reply};
use fleet_user::{AsUser, AsUserError, User};

/// Longest marker that is read.
pub(super) const MARKER_BYTES_MAX: u64 = 4096;
/// Random bytes in a token.
const TOKEN_BYTES: usize = 16;

/// What a node can say about resuming here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeCheck {
    /// The marker is the right one and the checkpoint can be read.
    Readable,
    /// Another file system, or nothing was ever saved here.
    MissingMarker,
    /// Another job's or another disk's directory.
    WrongMarker,
    /// The node cannot read the marker, or it cannot read the checkpoint itself.
    Unreadable { why: String },
}

impl ResumeCheck {
    /// Why nothing can be resumed in that directory here.
    #[must_use]
    pub fn problem(self, dir: &Path) -> Option<String> {
        let shown = dir.display();
        match self {
            ResumeCheck::Readable => None,
            ResumeCheck::MissingMarker => Some(format!(
                "{shown} is not the directory the earlier attempt saved in (no marker there)"
            )),
            ResumeCheck::WrongMarker => Some(format!(
                "{shown} is not the directory the earlier attempt saved in (another marker)"
            )),
            ResumeCheck::Unreadable { why } => Some(why),
        }
    }
}

/// A token for a job's marker, made once per job.
pub fn new_marker_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// `.fleet-checkpoint-<job id>` in the checkpoint directory. Hidden, so that no pattern matches it.
#[must_use]
pub fn marker_path(dir: &Path, job_id: &str) -> PathBuf {
    dir.join(format!(".fleet-checkpoint-{job_id}"))
}

/// Writes the marker as the user, atomically. Writing it again is harmless.
pub async fn write_marker(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
    job_id: &str,
    token: &str,
) -> Result<(), AsUserError> {
    let op = Op::WriteFile { path: marker_path(dir, job_id), text: format!("{token}\n") };
    as_user.call(user, op).await.map(drop)
}

/// Tells whether the directory on this node is the one in which the job's earlier attempts saved.
pub async fn verify_marker(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
    job_id: &str,
    token: &str,
) -> ResumeCheck {
    // The marker itself can be read where it is the right one.
    verify_resume(as_user, user, dir, job_id, token, &marker_path(dir, job_id)).await
}

/// Says whether the next attempt can resume from `checkpoint` on this node. Never fails: not knowing is an answer.
pub async fn verify_resume(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
    job_id: &str,
    token: &str,
    checkpoint: &Path,
) -> ResumeCheck {
    let read = Op::ReadFile { path: marker_path(dir, job_id), bytes_max: MARKER_BYTES_MAX };
    match as_user.call(user, read).await {
        Ok(Reply::Text(text)) if text.trim_end() == token => {}
        Ok(Reply::Text(_)) => return ResumeCheck::WrongMarker,
        Ok(_) => {
            return ResumeCheck::Unreadable {
                why: "the helper answered another question".to_owned(),
            };
        }
        Err(AsUserError::Op(error)) => {
            return match error.kind {
                OpErrorKind::NotFound | OpErrorKind::NotADirectory => ResumeCheck::MissingMarker,
                OpErrorKind::TooLarge | OpErrorKind::NotUtf8 | OpErrorKind::NotARegularFile => {
                    ResumeCheck::WrongMarker
                }
                OpErrorKind::Denied
                | OpErrorKind::ReadOnly
                | OpErrorKind::NoSpace
                | OpErrorKind::Other => ResumeCheck::Unreadable { why: error.to_string() },
            };
        }
        Err(error) => return ResumeCheck::Unreadable { why: error.to_string() },
    }
    match as_user.call(user, Op::Readable { path: checkpoint.to_path_buf() }).await {
        Ok(_) => ResumeCheck::Readable,
        Err(error) => ResumeCheck::Unreadable { why: error.to_string() },
    }
}
