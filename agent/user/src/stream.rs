//! A file of a user, read through a helper's pipe.

use std::io::{self, Error, ErrorKind, Read};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::as_user::{AsUser, AsUserError, Helper};
use crate::op::{FileStat, Op, Reply};
use crate::resolve::User;

/// A file that a helper opened as the user and sends through a pipe.
#[derive(Debug)]
pub struct UserStream {
    helper: Helper,
    stat: FileStat,
    path: PathBuf,
    stall_max: Duration,
    asked: bool,
    left: u64,
}

impl AsUser {
    /// Opens a regular file as the user; its bytes come through a pipe, so that a dead file server hangs only the helper.
    pub fn open_blocking(&self, user: &User, path: PathBuf) -> Result<UserStream, AsUserError> {
        let mut helper = self.start(user, &Op::Stream { path: path.clone() })?;
        let deadline = Instant::now() + self.config().deadline;
        let reply = match helper.read_line(deadline).and_then(|line| helper.parse_reply(&line)) {
            Ok(reply) => reply,
            Err(error) => {
                helper.finish(false);
                return Err(error);
            }
        };
        let Reply::File(stat) = reply else {
            return Err(helper.error("it answered another question"));
        };
        Ok(UserStream::new(helper, stat, path, self.config().stall_max))
    }
}

impl UserStream {
    fn new(helper: Helper, stat: FileStat, path: PathBuf, stall_max: Duration) -> Self {
        Self { helper, stat, path, stall_max, asked: false, left: stat.size_bytes }
    }

    /// Metadata at the time of opening; reading yields exactly `size_bytes`, or fails.
    #[must_use]
    pub fn stat(&self) -> FileStat {
        self.stat
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Read for UserStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.asked {
            self.asked = true;
            self.helper.tell(b"go\n").map_err(|error| Error::other(error.to_string()))?;
        }
        if self.left == 0 || buf.is_empty() {
            return Ok(0);
        }
        let cap = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let count = self.helper.read_some(&mut buf[..cap], Instant::now() + self.stall_max)?;
        if count == 0 {
            let error = self.helper.error("the file ended early");
            return Err(Error::new(ErrorKind::UnexpectedEof, error.to_string()));
        }
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}
