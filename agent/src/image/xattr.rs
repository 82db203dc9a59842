//! Extended attributes by descriptor. nix has no call for them.
#![expect(unsafe_code, reason = "fsetxattr(2) and fgetxattr(2) through libc")]

use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// Sets one attribute of an open file or directory.
pub(super) fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for the call, `name` ends with NUL, and `value` is `value.len()` readable bytes.
    let rc = unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Reads one attribute, for tests of what was set.
#[cfg(test)]
pub(super) fn get(file: impl AsFd, name: &CStr) -> Result<Vec<u8>> {
    let mut value = vec![0_u8; 65536];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for the call, `name` ends with NUL, and `value` is `value.len()` writable bytes.
    let count =
        unsafe { libc::fgetxattr(fd, name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let count = usize::try_from(count).map_err(|_| Error::last_os_error())?;
    value.truncate(count);
    Ok(value)
}
