//! Is a checkpoint whole? By headers and sizes, within limits; the files' data is not read.
//!
//! Runs in the as-user helper: before a checkpoint counts, and again before anybody resumes from it. It opens regular
//! files only, never follows a symlink, and never unpickles or decompresses anything. What it cannot judge is
//! `unchecked`, never `whole`.

mod dcp;
mod hdf5;
mod index;
mod safetensors;
mod zip;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fleet_core::checkpoint::Content;

use super::tree::{Entry, Tree};

/// Most bytes that are read of one file.
pub const READ_BYTES_MAX: u64 = 1024 * 1024;
/// Most files of one checkpoint that are checked.
pub const FILES_MAX: usize = 10_000;
/// Longest time for one checkpoint.
pub const TIME_MAX: Duration = Duration::from_secs(2);

/// Checks a file, or a directory with everything in it.
#[must_use]
pub fn check(path: &Path) -> Content {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => check_file(path, meta.len()),
        Ok(meta) if meta.is_dir() => {
            Tree::read(path).map_or(Content::Unchecked, |tree| check_tree(path, &tree))
        }
        Ok(_) => torn("it is neither a file nor a directory"),
        Err(error) => torn(format!("it cannot be read: {error}")),
    }
}

fn torn(why: impl Into<String>) -> Content {
    Content::Torn { why: why.into() }
}

/// Checks every file, and what they say of each other. One torn file makes all of it torn; it is whole where at least one
/// file could be checked and all others are of kinds without data of their own, or were checked too.
fn check_tree(top: &Path, tree: &Tree) -> Content {
    let until = Instant::now() + TIME_MAX;
    if tree.entries.len() > FILES_MAX {
        return Content::Unchecked;
    }
    if let Some(why) = index::missing_shard(top, tree).or_else(|| dcp::missing_rank(tree)) {
        return torn(why);
    }
    let (mut whole, mut unchecked) = (0_usize, 0_usize);
    for entry in &tree.entries {
        if Instant::now() > until {
            return Content::Unchecked;
        }
        match check_entry(top, entry) {
            Content::Torn { why } => return torn(format!("{}: {why}", entry.name)),
            Content::Whole => whole += 1,
            Content::Unchecked => unchecked += usize::from(!is_text(&entry.name)),
        }
    }
    // Shards of DCP have a format of their own; that all ranks are there and none is empty is the check.
    if dcp::is_one(tree) || (whole > 0 && unchecked == 0) {
        Content::Whole
    } else {
        Content::Unchecked
    }
}

/// Small files that say something of the others.
fn is_text(name: &str) -> bool {
    [".json", ".txt", ".yaml", ".yml", ".md", ".jinja", ".model"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn check_entry(top: &Path, entry: &Entry) -> Content {
    if entry.size == 0 && !may_be_empty(&entry.name) {
        return torn("it is empty");
    }
    check_file(&top.join(&entry.name), entry.size)
}

/// Markers say what they say by being there.
fn may_be_empty(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let plain = !file.contains('.') || file.starts_with('.') || file.starts_with('_');
    plain || file.ends_with(".txt") || file == "__init__.py"
}

fn check_file(path: &Path, size: u64) -> Content {
    if size == 0 {
        return torn("it is empty");
    }
    let mut file = match open(path) {
        Ok(file) => file,
        Err(error) => return torn(format!("it cannot be read: {error}")),
    };
    let head = match read_at(&mut file, 0, 16) {
        Ok(head) => head,
        Err(error) => return torn(format!("it cannot be read: {error}")),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let judged = if name.ends_with(".safetensors") {
        safetensors::check(&mut file, size)
    } else if name.ends_with(".json") {
        index::check_json(&mut file, size)
    } else if zip::begins(&head) {
        zip::check(&mut file, size).map(|_| Content::Whole)
    } else if hdf5::begins(&head) {
        hdf5::check(&head, &mut file, size)
    } else if zip::is_due(&name) && safetensors::plausible(&head) {
        safetensors::check(&mut file, size)
    } else {
        Ok(Content::Unchecked)
    };
    match judged {
        Ok(content) => content,
        Err(Problem::Torn(why)) => torn(why),
        Err(Problem::Io(error)) => torn(format!("it cannot be read: {error}")),
    }
}

/// Whether the content of a file is that of a checkpoint that stands alone: a zip with pickled data, HDF5, safetensors.
#[must_use]
pub(super) fn looks_like_a_checkpoint(path: &Path) -> bool {
    let Ok(mut file) = open(path) else { return false };
    let Ok(size) = file.metadata().map(|meta| meta.len()) else { return false };
    let Ok(head) = read_at(&mut file, 0, 16) else { return false };
    if zip::begins(&head) {
        return zip::check(&mut file, size).is_ok_and(|found| found.has_pickle);
    }
    hdf5::begins(&head) || safetensors::plausible(&head)
}

/// Why a file is not whole.
#[derive(Debug)]
enum Problem {
    Torn(String),
    Io(std::io::Error),
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Problem::Io(error)
    }
}

/// Never blocks on a fifo or device, and follows no link.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::other("not a regular file"))
}

/// At most `len` bytes from `at` on; fewer where the file ends.
fn read_at(file: &mut File, at: u64, len: u64) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(len.min(READ_BYTES_MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?).into())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests;
