//! Each attempt's own checkpoint directory, when the job lets fleet manage it: `<base>/attempt-N`.
//!
//! A late writer of an earlier attempt then cannot spoil a later one. The earlier directories are for reading; the runtime
//! mounts them read-only. All of it is done as the user.

use std::path::{Path, PathBuf};

use crate::user::op::{Op, Reply};
use crate::user::{AsUser, AsUserError, User};

/// The file whose presence asks a job to save soon.
pub const REQUEST_FILE: &str = ".fleet-checkpoint-requested";
const PREFIX: &str = "attempt-";

/// Where an attempt saves, and what is there from before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptDirs {
    /// `$FLEET_CHECKPOINT_DIR` of this attempt.
    pub current: PathBuf,
    /// Directories of earlier attempts, oldest first, to be mounted read-only.
    pub earlier: Vec<PathBuf>,
}

/// Makes and checks the directory of `attempt` (1, 2, …) below `base`, as the user.
pub async fn prepare_attempt_dir(
    as_user: &AsUser,
    user: &User,
    base: &Path,
    attempt: u32,
) -> Result<AttemptDirs, AsUserError> {
    let current = base.join(format!("{PREFIX}{attempt}"));
    as_user.call(user, Op::CheckDir { path: current.clone(), create: true }).await?;
    let Reply::Names(names) = as_user.call(user, Op::ListDirs { path: base.to_path_buf() }).await?
    else {
        return Ok(AttemptDirs { current, earlier: Vec::new() });
    };
    let mut earlier: Vec<u32> = names
        .iter()
        .filter_map(|name| number_of(name))
        .filter(|number| *number < attempt)
        .collect();
    earlier.sort_unstable();
    let earlier =
        earlier.into_iter().map(|number| base.join(format!("{PREFIX}{number}"))).collect();
    Ok(AttemptDirs { current, earlier })
}

fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(PREFIX)?;
    // Only the spelling that we write: "attempt-07" is somebody else's.
    digits.parse().ok().filter(|number: &u32| number.to_string() == digits)
}

/// Asks the job for a checkpoint by file. The caller sends the signal; neither is ever assumed to work.
pub async fn request_checkpoint(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
) -> Result<(), AsUserError> {
    as_user.call(user, Op::Touch { path: dir.join(REQUEST_FILE) }).await.map(drop)
}
