//! Whether the kernel's clock follows a time server, by adjtimex(2). Called by [`super::look`].
#![expect(unsafe_code, reason = "adjtimex(2) has no safe wrapper")]

use std::io;

use nix::libc;

/// What every program that keeps the time (chrony, ntpd, timesyncd) sets and the kernel takes back when it is silent.
pub(super) fn is_synchronised() -> io::Result<bool> {
    // SAFETY: the struct is plain numbers, for which zero is a value; `modes` of zero changes nothing.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a struct of the right type that lives until the call is over.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0)
}
