//! Asking a job to save soon, by a file beside its checkpoints.
//!
//! Called by the attempt's task when an eviction waits, a person asks or the machine goes down. Done as the user;
//! whether the job listens is its own affair. The file exists while the request is open, and at no other time: a
//! program that only looks whether it exists saves once for each request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use fleet_user::op::Op;
use fleet_user::{AsUser, AsUserError, User};

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

/// Takes the request back, if there is one.
pub async fn withdraw_request(
    as_user: &AsUser,
    user: &User,
    dir: &Path,
) -> Result<(), AsUserError> {
    as_user.call(user, Op::RemoveFile { path: dir.join(REQUEST_FILE) }).await.map(drop)
}

/// Keeps the request file as it was last wanted. One task does so, in order: a file server that hangs holds back
/// neither the attempt nor its stop, and an old wish never overtakes a new one.
#[derive(Debug)]
pub struct RequestFile {
    wanted: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RequestFile {
    /// Does nothing before the first [`RequestFile::set`].
    pub fn keep(as_user: AsUser, user: User, dir: PathBuf) -> Self {
        let (wanted, mut heard) = watch::channel(false);
        let task = tokio::spawn(async move {
            while heard.changed().await.is_ok() {
                let asks = *heard.borrow_and_update();
                let done = match asks {
                    true => request_checkpoint(&as_user, &user, &dir).await,
                    false => withdraw_request(&as_user, &user, &dir).await,
                };
                if let Err(error) = done {
                    let error = crate::chain::chain(&error);
                    tracing::warn!(dir = %dir.display(), asks, error, "request file not set");
                }
            }
        });
        Self { wanted, task }
    }

    pub fn set(&self, asks: bool) {
        self.wanted.send_replace(asks);
    }

    /// Waits until the last wish is done, at most this long.
    pub async fn settle(self, limit: Duration) {
        drop(self.wanted);
        // It ends by itself when the file server answers.
        timeout(limit, self.task).await.ok();
    }
}
