//! A process that is held on to, so that a signal reaches it and no other that got its number.
//!
//! Only this module sends signals to processes of people.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use fleet_kernel::proc_stat::started_ticks;

/// What to tell a process by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// To end: it may save what it has.
    Term,
    Kill,
    /// What the job's owner named to ask for a checkpoint.
    Save(Signal),
}

/// One process, and no other after it.
#[derive(Debug)]
pub(crate) struct Target(OwnedFd);

impl Target {
    /// Holds the process that has this number and began then; none if it is gone, even if another has its number now.
    pub(crate) fn hold(pid: u32, started: u64) -> io::Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let fd = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Read the start time after the pidfd is open: it is that of the held process, or of a later one with the same
        // number, which began later.
        Ok((started_ticks(&pid.to_string()) == Some(started)).then_some(Self(fd)))
    }

    /// False where it is gone.
    pub(crate) fn tell(&self, tell: Tell) -> io::Result<bool> {
        let signal = match tell {
            Tell::Term => Signal::TERM,
            Tell::Kill => Signal::KILL,
            Tell::Save(signal) => signal,
        };
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_process_that_is_meant_is_told() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let started = started_ticks(&pid.to_string()).unwrap();
        assert!(Target::hold(pid, started + 1).unwrap().is_none(), "another one with its number");
        let target = Target::hold(pid, started).unwrap().unwrap();
        assert!(target.tell(Tell::Term).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(
            !target.tell(Tell::Kill).unwrap(),
            "it is gone, and no other process gets the signal"
        );
        assert!(Target::hold(pid, started).unwrap().is_none());
    }
}
