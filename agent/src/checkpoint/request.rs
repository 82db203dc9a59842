//! Asking a job to save soon, by a file beside its checkpoints.
//!
//! Called by the attempt's task when an eviction waits. Done as the user; whether the job listens is its own
//! affair.

use std::path::Path;

use crate::user::op::Op;
use crate::user::{AsUser, AsUserError, User};

/// The file whose presence asks a job to save soon.
pub const REQUEST_FILE: &str = ".fleet-checkpoint-requested";

/// Asks the job for a checkpoint by file. The caller sends the signal; neither is ever assumed to work.
pub async fn request_checkpoint(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
) -> Result<(), AsUserError> {
    as_user.call(user, Op::Touch { path: dir.join(REQUEST_FILE) }).await.map(drop)
}
