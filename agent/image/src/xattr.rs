//! Extended attributes by descriptor. Called by those who make files of an image.

use std::ffi::CStr;
use std::io::{ErrorKind, Result};
use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

/// The kernel lets one value, and all names of one file together, have no more.
const BYTES_MAX: usize = 64 << 10;

/// Sets one attribute of an open file or directory.
pub(super) fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<()> {
    Ok(fsetxattr(file, name, value, XattrFlags::empty())?)
}

/// Gives `to` the attributes of `from` that images may have. A file system without any is no error.
pub(super) fn copy_user(from: impl AsFd, to: impl AsFd) -> Result<()> {
    let mut names = vec![0_u8; BYTES_MAX];
    let length = match flistxattr(&from, &mut *names).map_err(std::io::Error::from) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        length => length?,
    };
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if !name.to_bytes().starts_with(b"user.") {
            continue;
        }
        let mut value = vec![0_u8; BYTES_MAX];
        let length = fgetxattr(&from, name, &mut *value)?;
        match set(&to, name, &value[..length]) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}

/// Reads one attribute, for tests of what was set.
#[cfg(test)]
pub(super) fn get(file: impl AsFd, name: &CStr) -> Result<Vec<u8>> {
    let mut value = vec![0_u8; BYTES_MAX];
    let length = fgetxattr(file, name, &mut *value)?;
    value.truncate(length);
    Ok(value)
}
