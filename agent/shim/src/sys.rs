//! The system calls of the shim that have no safe wrapper. The only file of the shim with `unsafe`.
#![expect(
    unsafe_code,
    reason = "fork, clone3, close_range and the window-size ioctl have no safe wrapper"
)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::unistd::{ForkResult, Pid};

use super::order::WindowSize;

/// linux/sched.h; the libc crate's constant of that name is too narrow and reads 0.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks: `Some(pid)` in the parent, `None` in the child, which must end by an exec or by [`exit`].
///
/// The child is a full copy and may use anything, because the shim never has a second thread: no lock
/// can be held by somebody who is not there. Keep it so.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the process is single-threaded (see above), so the child may run any code.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// As [`fork`], but the child is born in the cgroup2 directory of `cgroup`, past its device filter, without
/// the wait that a move costs. `ENOSYS`, `E2BIG` or `EINVAL`: the kernel is older than 5.7 (clone(2)).
pub(super) fn fork_into(cgroup: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
    // SAFETY: a struct of integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    // SAFETY: without CLONE_VM the child is a full copy as after fork, of a process with one thread (see
    // `fork`); the kernel reads `arguments`, whose size is passed to it. What the C library does in its own fork
    // beside that (handlers, the thread's cached id) is not needed here before the exec.
    let answer =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    match answer {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends a forked child without running what belongs to the parent (destructors, atexit handlers).
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: _exit only ends the process.
    unsafe { libc::_exit(code) }
}

/// Undoes what Rust's runtime does at start: a program started with SIGPIPE ignored would get errors where
/// everybody expects it to end.
pub(super) fn restore_sigpipe() {
    // SAFETY: sets a default disposition; no handler is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Marks every descriptor from `first` on as close-on-exec. All of ours are opened that way; this is
/// for what the starter of this process may have left open. Kernels before 5.11 do not know it.
pub(super) fn close_on_exec_from(first: u32) {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Puts a copy of `fd` at exactly `target`, open across exec, and leaks it there: for the moment before
/// an exec only.
pub(super) fn place_for_exec(fd: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == target {
        // dup2 onto itself would leave close-on-exec set.
        // SAFETY: F_SETFD on a descriptor we hold touches no memory.
        let answer = unsafe { libc::fcntl(target, libc::F_SETFD, 0) };
        return if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    }
    // SAFETY: takes two integers; whatever was at `target` is closed, which callers arrange for.
    let answer = unsafe { libc::dup2(fd.as_raw_fd(), target) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes over a descriptor that the parent process left open for us across exec.
pub(super) fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_SETFD touches no memory; it fails on a descriptor that is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: it is open (checked), was put there for this process, and nobody else here owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the size of a terminal.
pub(super) fn set_window_size(terminal: BorrowedFd<'_>, size: WindowSize) -> io::Result<()> {
    let size =
        libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one `winsize`, which lives through the call.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
