//! Names of archives as relative paths. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::error::Refusal;
use crate::limits::Limits;

/// The kernel takes no longer name.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// A relative path without `.`, `..`, NUL or doubled slashes, within the limits.
pub(crate) fn safe_path(name: &[u8], limits: &Limits) -> Result<PathBuf, Refusal> {
    if name.starts_with(b"/") {
        return Err(Refusal::Absolute);
    }
    if name.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(Refusal::GoesUp);
    }
    rooted_path(name, limits)
}

/// The same for a name within a layer. A slash at the beginning is the image's own root. `..` takes the name before it
/// away, whatever that is, as docker has it; it never leads out.
pub(super) fn rooted_path(name: &[u8], limits: &Limits) -> Result<PathBuf, Refusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(Refusal::BadName);
    }
    let too_long = Refusal::PathTooLong { max: limits.path_bytes_max };
    if name.len() > limits.path_bytes_max {
        return Err(too_long);
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            parts.pop().ok_or(Refusal::GoesUp)?;
            continue;
        }
        if part.len() > NAME_BYTES_MAX {
            return Err(too_long);
        }
        parts.push(part);
    }
    if parts.len() > limits.depth_max {
        return Err(Refusal::TooDeep { max: limits.depth_max });
    }
    Ok(PathBuf::from(OsString::from_vec(parts.join(&b'/'))))
}
