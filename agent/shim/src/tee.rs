//! The second copy of the output, for the user: `fleet-JOBID.log` in the working directory.
//!
//! Written by a forked helper that is the user in every respect, because the file may be on NFS with
//! root_squash, on a quota, or on a server that is gone. The shim only feeds a pipe and never waits: when
//! the helper falls too far behind, output is left out of this copy (the log has it) and a line says so.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{SigSet, SigmaskHow, sigprocmask},
    unistd::{Gid, Pid, Uid, pipe2, setgid, setgroups, setuid},
};

use super::{order::Identity, sys};

/// Output that may wait for the helper.
const PENDING_BYTES_MAX: usize = 512 * 1024;
/// How long the end of a job waits for the helper to write the rest.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Exit code of a helper that found no regular file; others are the number of the error, all of which are smaller.
const NOT_A_FILE: i32 = 200;

/// What the helper's exit code says.
pub(super) fn problem(code: i32) -> String {
    match code {
        NOT_A_FILE => "it is not a regular file".to_owned(),
        code => Errno::from_raw(code).desc().to_lowercase(),
    }
}

#[derive(Debug)]
pub(super) struct Tee {
    pipe: Option<File>,
    pid: Pid,
    pending: Vec<u8>,
    left_out: u64,
    /// All that was ever left out.
    lost: u64,
}

impl Tee {
    /// Forks the helper. Called before the shim opens anything the helper must not hold open.
    pub(super) fn fork(path: &Path, identity: &Identity) -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        let Some(pid) = sys::fork()? else {
            drop(write);
            let result = copy(File::from(read), path, identity);
            sys::exit(result.err().map_or(0, |error| error.raw_os_error().unwrap_or(NOT_A_FILE)))
        };
        let flags = OFlag::from_bits_truncate(fcntl(&write, FcntlArg::F_GETFL)?);
        fcntl(&write, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: Some(File::from(write)), pid, pending: Vec::new(), left_out: 0, lost: 0 })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Bytes that the user's copy lacks, since the helper fell behind.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn push(&mut self, data: &[u8]) {
        if self.pipe.is_none() {
            return;
        }
        if self.pending.len() + data.len() > PENDING_BYTES_MAX {
            self.left_out += data.len() as u64;
            self.lost += data.len() as u64;
            return;
        }
        if self.left_out > 0 {
            let note = format!("\n[fleet: {} bytes left out; see fleet logs]\n", self.left_out);
            self.left_out = 0;
            self.pending.extend_from_slice(note.as_bytes());
        }
        self.pending.extend_from_slice(data);
        self.flush();
    }

    /// The descriptor to wait for room on, when output waits.
    pub(super) fn writable(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { None } else { self.pipe.as_ref().map(AsFd::as_fd) }
    }

    pub(super) fn flush(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        while !self.pending.is_empty() {
            match pipe.write(&self.pending) {
                Ok(length) => drop(self.pending.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The helper could not open or write the file; its exit code says why.
                Err(_) => {
                    self.pending.clear();
                    self.pipe = None;
                    return;
                }
            }
        }
    }

    /// Lets the helper see the end once everything is in the pipe. True when there is nothing to wait for.
    pub(super) fn close_when_written(&mut self) -> bool {
        self.flush();
        if self.pending.is_empty() {
            self.pipe = None;
        }
        self.pipe.is_none()
    }
}

fn copy(mut from: File, path: &Path, identity: &Identity) -> io::Result<()> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    let groups: Vec<Gid> = identity.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    setgroups(&groups)?;
    setgid(Gid::from_raw(identity.gid))?;
    setuid(Uid::from_raw(identity.uid))?;
    let mut options = OpenOptions::new();
    // Not through a terminal or a FIFO that would block for ever.
    options.append(true).create(true).mode(0o644).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    let mut to = options.open(path)?;
    if !to.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
