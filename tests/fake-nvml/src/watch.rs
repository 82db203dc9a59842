//! Waiting: for the control file to change, and for ever.
#![expect(unsafe_code, reason = "inotify, poll and signal dispositions")]

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the file is read if inotify is not available (its instances are limited per user).
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Notices that something happened in the control file's directory.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Option<OwnedFd>,
}

impl Watch {
    /// Begins to watch: changes after this are noticed by [`Watch::wait`].
    pub(crate) fn begin(file: Option<&Path>) -> Self {
        Self { inotify: file.and_then(Path::parent).and_then(open) }
    }

    /// Sleeps until something may have changed, or the deadline.
    pub(crate) fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(inotify) = &self.inotify else {
            std::thread::sleep(left.min(POLL_INTERVAL));
            return;
        };
        let millis = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: inotify.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, millis) };
        if ready > 0 {
            let mut buffer = [0u8; 4096];
            // SAFETY: the buffer is as long as said. The read only drains the events; the caller reads the
            // file again afterwards. The descriptor does not block.
            unsafe { libc::read(poll.fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        }
    }
}

fn open(directory: &Path) -> Option<OwnedFd> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    // SAFETY: no pointers.
    let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let mask = libc::IN_MOVED_TO | libc::IN_CLOSE_WRITE | libc::IN_DELETE_SELF;
    // SAFETY: a valid descriptor and a NUL-terminated path.
    let added = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), mask) };
    (added >= 0).then_some(owned)
}

/// A driver call that never returns: the process does not react to any signal but SIGKILL, and
/// neither does clearing the fault wake it.
pub(crate) fn hang() -> ! {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    loop {
        std::thread::park();
    }
}
