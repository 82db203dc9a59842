//! Is a file open for writing by a process of this user? Runs in the as-user helper.
//!
//! Only the user's own processes can be asked, which is what is wanted: the job runs as the user. A process that may not
//! be asked (it is not dumpable) makes the answer unknown.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::rules::OpenForWriting;

/// Most processes checked for one answer.
const PROCESSES_MAX: usize = 32_768;
/// Most open files checked for one answer.
const FILES_MAX: usize = 262_144;

/// Looks through `/proc` for a writable descriptor of any of the files, each by `(dev, ino)`.
pub(super) fn open_for_writing(files: &HashSet<(u64, u64)>) -> OpenForWriting {
    let me = nix::unistd::getuid().as_raw();
    let Ok(processes) = fs::read_dir("/proc") else { return OpenForWriting::Unknown };
    let mut complete = true;
    let mut files_left = FILES_MAX;
    for (count, process) in processes.flatten().enumerate() {
        if count > PROCESSES_MAX || files_left == 0 {
            return OpenForWriting::Unknown;
        }
        let is_pid = process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_pid || !process.metadata().is_ok_and(|meta| meta.uid() == me) {
            continue;
        }
        match process_writes(&process.path(), files, &mut files_left) {
            Ok(true) => return OpenForWriting::Yes,
            Ok(false) => {}
            // Gone meanwhile is fine; anything else is not knowing.
            Err(error) => complete &= error.kind() == std::io::ErrorKind::NotFound,
        }
    }
    if complete { OpenForWriting::No } else { OpenForWriting::Unknown }
}

fn process_writes(
    process: &Path,
    files: &HashSet<(u64, u64)>,
    files_left: &mut usize,
) -> std::io::Result<bool> {
    for fd in fs::read_dir(process.join("fd"))?.flatten() {
        *files_left = files_left.saturating_sub(1);
        // Follows the magic link; the target may be on a dead NFS, then this helper hangs and is abandoned.
        let same =
            fs::metadata(fd.path()).is_ok_and(|meta| files.contains(&(meta.dev(), meta.ino())));
        if same && is_writable(process, &fd.file_name().to_string_lossy()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_writable(process: &Path, fd: &str) -> bool {
    let Ok(info) = fs::read_to_string(process.join("fdinfo").join(fd)) else { return true };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| i32::from_str_radix(text.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_open_for_writing_is_seen_and_one_open_for_reading_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = fs::File::create(&path).unwrap();
        let meta = writer.metadata().unwrap();
        assert_eq!(
            open_for_writing(&HashSet::from([(meta.dev(), meta.ino())])),
            OpenForWriting::Yes
        );
        drop(writer);
        let _reader = fs::File::open(&path).unwrap();
        assert_ne!(
            open_for_writing(&HashSet::from([(meta.dev(), meta.ino())])),
            OpenForWriting::Yes
        );
    }
}
