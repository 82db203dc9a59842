//! Reading a helper's pipe with deadlines.

use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const BUFFER_BYTES: usize = 64 * 1024;

/// A pipe that is read with a deadline instead of for ever.
#[derive(Debug)]
pub(crate) struct DeadlineReader {
    pipe: std::fs::File,
    /// Bytes read ahead of what was asked for.
    ahead: Vec<u8>,
}

impl DeadlineReader {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), ahead: Vec::new() }
    }

    /// One line without its end. `TimedOut` leaves what was read so far for the next call.
    pub(crate) fn read_line(&mut self, deadline: Instant, bytes_max: usize) -> Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.ahead[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.ahead.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.ahead, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.ahead.len();
            if searched > bytes_max {
                return Err(Error::new(ErrorKind::InvalidData, "line over the limit"));
            }
            let mut buf = vec![0; BUFFER_BYTES];
            let count = self.read_pipe(&mut buf, deadline)?;
            if count == 0 {
                return Err(Error::new(ErrorKind::UnexpectedEof, "it ended without an answer"));
            }
            self.ahead.extend_from_slice(&buf[..count]);
        }
    }

    pub(crate) fn read_some(&mut self, buf: &mut [u8], deadline: Instant) -> Result<usize> {
        if self.ahead.is_empty() {
            return self.read_pipe(buf, deadline);
        }
        let count = buf.len().min(self.ahead.len());
        buf[..count].copy_from_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        Ok(count)
    }

    fn read_pipe(&mut self, buf: &mut [u8], deadline: Instant) -> Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if left.is_zero() => return Err(Error::from(ErrorKind::TimedOut)),
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return self.pipe.read(buf),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
