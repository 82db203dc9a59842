//! The moment at which the kernel finds no memory for a group, and kills a process of it.
//!
//! Only with v1, where the rest of the group lives on. With v2 all of it dies at once (`memory.oom.group`), and the
//! moment is that of its end.

use std::{
    fs::{self, File},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Cgroup, Mode};

/// A descriptor that is readable once the kernel is about to kill a process, or has removed the group.
#[derive(Debug)]
pub struct OomWatch(EventFd);

impl Cgroup {
    /// Begins to watch. `None` with v2, and where this kernel does not tell: the count in [`super::Usage`] is there
    /// either way.
    ///
    /// The kernel's Documentation/admin-guide/cgroup-v1/memory.rst, part 10: it takes an eventfd beside the open
    /// `memory.oom_control`, which may be closed afterwards.
    #[must_use]
    pub fn watch_oom(&self) -> Option<OomWatch> {
        let dir = self.v1.get("memory").filter(|_| self.mode != Mode::Unified)?;
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok()?;
        let control = File::open(dir.join("memory.oom_control")).ok()?;
        let line = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
        fs::write(dir.join("cgroup.event_control"), line).ok()?;
        Some(OomWatch(event))
    }
}

impl OomWatch {
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether the kernel found no memory since the last call. It tells before it kills, perhaps several times for one
    /// kill: the count in [`super::Usage`] says whether it has.
    #[must_use]
    pub fn take(&self) -> bool {
        // EAGAIN: nothing happened.
        self.0.read().is_ok()
    }
}
