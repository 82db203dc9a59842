//! Somebody's terminal on this machine: a real one that belongs to them, with a process of theirs on it.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{OpenptyResult, openpty};
use nix::unistd::{Gid, Uid, fchown};

use crate::wait::{self, POLL_COMMAND};

/// See the module's doc. It is closed when dropped.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    /// Kept open: what nobody has open cannot be read from any more.
    _slave: OwnedFd,
    shell: Child,
    shown: String,
}

impl Terminal {
    /// Where a user has just logged in.
    pub fn of(uid: u32) -> Result<Self> {
        let OpenptyResult { master, slave } = openpty(None, None)?;
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
        let user = uid.to_string();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args(["sleep", "10000"]).stdin(Stdio::from(slave.try_clone()?));
        // Forks only where it leads a group already, which a child of ours does not.
        let shell = command.spawn()?;
        Ok(Self { master: File::from(master), _slave: slave, shell, shown: String::new() })
    }

    /// Waits until all of these are shown together; returns everything shown.
    pub fn shows(&mut self, wanted: &[&str], within: Duration) -> Result<String> {
        wait::until(&format!("the terminal shows {wanted:?}"), within, POLL_COMMAND, || {
            self.read()?;
            Ok(wanted.iter().all(|text| self.shown.contains(text)).then_some(()))
        })
        .with_context(|| format!("it shows {:?}", self.shown))?;
        Ok(self.shown.clone())
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 4_096];
        loop {
            match self.master.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(n) => self.shown.push_str(&String::from_utf8_lossy(&bytes[..n])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.shell.kill());
        drop(self.shell.wait());
    }
}
