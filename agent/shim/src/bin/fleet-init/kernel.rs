//! The way in and the system calls of a program without a C library. The only file of it with `unsafe`.
//!
//! The kernel starts a program with its words on the stack (System V ABI, AMD64 supplement, 3.4.1): their
//! count, the arguments, a null, the environment, a null. Numbers and layouts of calls are the kernel's;
//! `libc` gives constants here, never code.
#![expect(unsafe_code, reason = "there is nothing below this but the processor")]

use core::{
    arch::{asm, global_asm},
    ffi::{CStr, c_char},
    ptr,
};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("fleet-init knows how to start and how to call the kernel on x86_64 only");

// The frame pointer is zero by the ABI's wish, the stack is aligned as functions expect it.
global_asm!(
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

extern "C" fn start(stack: *mut usize) -> ! {
    // SAFETY: called by `_start` only, with the stack as the kernel left it; nobody else has pointers into it.
    let words = unsafe { Words::from_stack(stack) };
    exit(crate::main(words))
}

pub(crate) const SIGCHLD: i32 = libc::SIGCHLD;
/// Of a signal set as the kernel has it.
const SIGNAL_SET_BYTES: usize = 8;
const STDIN: usize = 0;
const SHELL: &CStr = c"/bin/sh";

/// What the kernel answers when it refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) const NOT_FOUND: Self = Self(libc::ENOENT);
    pub(crate) const NOT_ALLOWED: Self = Self(libc::EACCES);
    pub(crate) const NO_PROGRAM: Self = Self(libc::ENOEXEC);
    pub(crate) const NAME_TOO_LONG: Self = Self(libc::ENAMETOOLONG);
    pub(crate) const TOO_MANY_LINKS: Self = Self(libc::ELOOP);
    pub(crate) const INTERRUPTED: Self = Self(libc::EINTR);

    /// Whether a search along `PATH` continues after this error.
    pub(crate) fn goes_on(self) -> bool {
        [libc::ENOENT, libc::ESTALE, libc::ENOTDIR, libc::ENODEV, libc::ETIMEDOUT].contains(&self.0)
    }

    /// Whether what is in the file may be the reason, or the interpreter it names.
    pub(crate) fn may_be_of_content(self) -> bool {
        let of_file = [libc::ETXTBSY, libc::E2BIG, libc::ENOMEM, libc::EAGAIN, libc::ESTALE];
        !of_file.contains(&self.0)
    }

    pub(crate) fn text(self) -> &'static [u8] {
        match self.0 {
            libc::ENOENT => b"No such file or directory",
            libc::EACCES => b"Permission denied",
            libc::ENOEXEC => b"exec format error",
            libc::ENOTDIR => b"Not a directory",
            libc::EISDIR => b"Is a directory",
            libc::E2BIG => b"Argument list too long",
            libc::ELOOP => b"Too many symbolic links encountered",
            libc::ENAMETOOLONG => b"File name too long",
            libc::ETXTBSY => b"Text file busy",
            libc::ENOMEM => b"Cannot allocate memory",
            libc::EAGAIN => b"Resource temporarily unavailable (too many processes)",
            libc::EPERM => b"Operation not permitted",
            libc::EIO => b"I/O error",
            libc::ELIBBAD => b"Accessing a corrupted shared library",
            libc::EINVAL => b"Invalid argument",
            libc::ESTALE => b"Stale file handle",
            _ => b"the kernel refused",
        }
    }
}

/// How a child ended.
pub(crate) enum Status {
    Exited(i32),
    Signaled(i32),
    /// Stopped or continued: not asked for, so not seen.
    Other,
}

/// What the kernel put on the stack: arguments and environment, for as long as the process lives.
pub(crate) struct Words {
    /// The first of `count` arguments; a null follows.
    arguments: *mut *const c_char,
    count: usize,
    /// Ends with a null.
    environment: *const *const c_char,
}

impl Words {
    /// SAFETY of callers: `stack` is where the kernel put the count, and only one `Words` is made of it.
    unsafe fn from_stack(stack: *mut usize) -> Self {
        // SAFETY: the layout of the module's doc.
        unsafe {
            let count = stack.read();
            let arguments = stack.add(1).cast::<*const c_char>();
            Self { arguments, count, environment: arguments.add(count).add(1) }
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<&'static [u8]> {
        if at >= self.count {
            return None;
        }
        // SAFETY: below the count there are strings of the kernel's, which stay.
        Some(unsafe { CStr::from_ptr(self.arguments.add(at).read()) }.to_bytes())
    }

    /// The value of a variable.
    pub(crate) fn variable(&self, name: &[u8]) -> Option<&'static [u8]> {
        let mut next = self.environment;
        loop {
            // SAFETY: `next` is not behind the null that ends the environment.
            let entry = unsafe { next.read() };
            if entry.is_null() {
                return None;
            }
            // SAFETY: a string of the kernel's, which stays.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(value);
            }
            // SAFETY: this entry was not the null, so there is another.
            next = unsafe { next.add(1) };
        }
    }

    /// Becomes the program at `path` with the arguments from `first` on. Returns only if that fails.
    pub(crate) fn execute(&self, path: &CStr, first: usize) -> Errno {
        // SAFETY: `first` was checked by `get`, so the vector ends with the kernel's null.
        let vector = unsafe { self.arguments.add(first.min(self.count)) };
        let arguments = [path.as_ptr().addr(), vector.addr(), self.environment.addr(), 0];
        // SAFETY: string, vector and environment end with nulls and stay.
        match unsafe { call(libc::SYS_execve, arguments) } {
            Err(error) => error,
            Ok(_) => Errno::NO_PROGRAM,
        }
    }

    /// The shell that reads scripts without an interpreter of their own.
    pub(crate) fn shell() -> &'static [u8] {
        SHELL.to_bytes()
    }

    /// Becomes a shell that reads the script at `path`; the arguments after `first` are the script's.
    pub(crate) fn execute_script(&mut self, path: &CStr, first: usize) -> Errno {
        let Some(before) = first.checked_sub(1) else { return Errno::NO_PROGRAM };
        // The two words before the script's own are ours to use: this program's own are there.
        // SAFETY: both are below the count, since `get(first)` was a word.
        unsafe {
            self.arguments.add(before).write(SHELL.as_ptr());
            self.arguments.add(first).write(path.as_ptr());
        }
        self.execute(SHELL, before)
    }
}

/// SAFETY of callers: whatever the call does with its arguments must be allowed.
unsafe fn call(number: libc::c_long, arguments: [usize; 4]) -> Result<usize, Errno> {
    let [first, second, third, fourth] = arguments;
    let answer: isize;
    // SAFETY: the kernel changes rax, rcx and r11 and no other register; memory as the caller allows.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if answer < 0 { Err(Errno(answer.wrapping_neg() as i32)) } else { Ok(answer as usize) }
}

/// A call that touches no memory of ours.
fn plain(number: libc::c_long, first: i32, second: i32) -> Result<usize, Errno> {
    let [first, second] = [first, second].map(|number| number as isize as usize);
    // SAFETY: for the numbers used in this file these are no pointers.
    unsafe { call(number, [first, second, 0, 0]) }
}

pub(crate) fn exit(code: i32) -> ! {
    loop {
        plain(libc::SYS_exit_group, code, 0).ok();
    }
}

/// `Some(pid)` in the parent, `None` in the child.
pub(crate) fn fork() -> Result<Option<i32>, Errno> {
    plain(libc::SYS_fork, 0, 0).map(|pid| i32::try_from(pid).ok().filter(|pid| *pid > 0))
}

pub(crate) fn become_undumpable() {
    plain(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0).ok();
}

pub(crate) fn make_own_group() {
    plain(libc::SYS_setpgid, 0, 0).ok();
}

pub(crate) fn kill(pid: i32, signal: i32) {
    plain(libc::SYS_kill, pid, signal).ok();
}

pub(crate) fn close(descriptor: i32) {
    plain(libc::SYS_close, descriptor, 0).ok();
}

/// Whether this user may run what is at `path`.
pub(crate) fn may_execute(path: &CStr) -> bool {
    let arguments = [path.as_ptr().addr(), libc::X_OK as usize, 0, 0];
    // SAFETY: the kernel reads a string that ends with a null.
    unsafe { call(libc::SYS_access, arguments) }.is_ok()
}

/// Opens a file that is there. One that has nobody at its other end does not keep us waiting.
pub(crate) fn open_to_read(path: &CStr) -> Result<i32, Errno> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the kernel reads a string that ends with a null.
    unsafe { call(libc::SYS_open, [path.as_ptr().addr(), flags as usize, 0, 0]) }
        .map(|descriptor| descriptor as i32)
}

/// Reads from a place in a file; fewer bytes than fit where it ends.
pub(crate) fn read_at(descriptor: i32, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let arguments =
        [descriptor as isize as usize, bytes.as_mut_ptr().addr(), bytes.len(), offset as usize];
    // SAFETY: the kernel writes into `bytes`, no more than there are.
    unsafe { call(libc::SYS_pread64, arguments) }
}

pub(crate) fn change_dir(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads a string that ends with a null.
    unsafe { call(libc::SYS_chdir, [path.as_ptr().addr(), 0, 0, 0]) }.map(|_| ())
}

pub(crate) fn write(descriptor: i32, bytes: &[u8]) {
    let arguments = [descriptor as isize as usize, bytes.as_ptr().addr(), bytes.len(), 0];
    // SAFETY: the kernel reads `bytes`, as many as there are.
    unsafe { call(libc::SYS_write, arguments) }.ok();
}

/// Blocks every signal, or none.
pub(crate) fn block_signals(all: bool) {
    let set: u64 = if all { u64::MAX } else { 0 };
    let how = libc::SIG_SETMASK as usize;
    let arguments = [how, ptr::from_ref(&set).addr(), 0, SIGNAL_SET_BYTES];
    // SAFETY: the kernel reads eight bytes.
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) }.ok();
}

/// The next signal; `None` if the wait was interrupted.
pub(crate) fn wait_for_signal() -> Option<i32> {
    let set = u64::MAX;
    let arguments = [ptr::from_ref(&set).addr(), 0, 0, SIGNAL_SET_BYTES];
    // SAFETY: the kernel reads eight bytes; no information and no timeout are asked for.
    unsafe { call(libc::SYS_rt_sigtimedwait, arguments) }.ok().map(|signal| signal as i32)
}

/// A child that has ended; `None` if all are still running, ECHILD if there is no child.
pub(crate) fn wait_for_child() -> Result<Option<(i32, Status)>, Errno> {
    let mut status = 0_i32;
    let any = -1_isize as usize;
    let arguments = [any, ptr::from_mut(&mut status).addr(), libc::WNOHANG as usize, 0];
    // SAFETY: the kernel writes four bytes.
    let pid = unsafe { call(libc::SYS_wait4, arguments) }? as i32;
    let ended = match (status & 0x7f, status >> 8 & 0xff) {
        (0, code) => Status::Exited(code),
        (0x7f, _) => Status::Other,
        (signal, _) => Status::Signaled(signal),
    };
    Ok((pid > 0).then_some((pid, ended)))
}

/// Makes the own process group the foreground of the terminal on standard input, if there is one.
/// SIGTTOU must be blocked.
pub(crate) fn take_terminal() {
    let Ok(group) = plain(libc::SYS_getpid, 0, 0) else { return };
    let group = group as i32;
    let arguments = [STDIN, libc::TIOCSPGRP as usize, ptr::from_ref(&group).addr(), 0];
    // SAFETY: the kernel reads four bytes, and nothing where there is no terminal.
    unsafe { call(libc::SYS_ioctl, arguments) }.ok();
}

pub(crate) fn set_window_size(rows: u16, columns: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let arguments = [STDIN, libc::TIOCSWINSZ as usize, ptr::from_ref(&size).addr(), 0];
    // SAFETY: the kernel reads one `winsize`.
    unsafe { call(libc::SYS_ioctl, arguments) }.ok();
}

/// What compiled code calls by name. The C library's own choose their variant at its start, which does not
/// happen here.
mod memory {
    /// SAFETY of callers: as memcpy(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's.
        (0..length).for_each(|at| unsafe { to.add(at).write(from.add(at).read()) });
        to
    }

    /// SAFETY of callers: as memmove(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's; the direction is the one in which nothing is read after it was written.
        let step = |at| unsafe { to.add(at).write(from.add(at).read()) };
        if to.addr() <= from.addr() {
            (0..length).for_each(step);
        } else {
            (0..length).rev().for_each(step);
        }
        to
    }

    /// SAFETY of callers: as memset(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
        // SAFETY: the caller's.
        (0..length).for_each(|at| unsafe { to.add(at).write(value as u8) });
        to
    }

    /// SAFETY of callers: as memcmp(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        for at in 0..length {
            // SAFETY: the caller's.
            let (one, other) = unsafe { (one.add(at).read(), other.add(at).read()) };
            if one != other {
                return i32::from(one).wrapping_sub(i32::from(other));
            }
        }
        0
    }

    /// SAFETY of callers: as bcmp(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: the caller's.
        unsafe { memcmp(one, other, length) }
    }

    /// SAFETY of callers: as strlen(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut length = 0_usize;
        // SAFETY: the caller's: there is a null.
        while unsafe { text.add(length).read() } != 0 {
            length = length.wrapping_add(1);
        }
        length
    }
}
