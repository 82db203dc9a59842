//! Key, certificate and identity files: written whole or not at all, read with a limit.
//!
//! Blocking, and small: callers on a runtime use it at start-up or a few times a day.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::limits::IDENTITY_FILE_BYTES_MAX;

/// Only the owner may read: keys.
pub const MODE_PRIVATE: u32 = 0o600;
/// Everybody may read: certificates.
pub const MODE_PUBLIC: u32 = 0o644;

/// What went wrong with which file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is larger than {IDENTITY_FILE_BYTES_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} may be read by others (mode {mode:o}); chmod 600 it, and make a new key if anybody could", path.display())]
    Exposed { path: PathBuf, mode: u32 },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |source| FileError::Io { action, path: path.to_owned(), source }
}

/// Replaces `path` with `bytes`: temporary file in the same folder, fsync, rename, fsync the folder.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = write_new(&temporary, bytes, mode)
        .and_then(|()| fs::rename(&temporary, path).map_err(failed("replace", path)));
    if written.is_err() {
        // The half-written file is ours alone; a failure to remove it changes nothing.
        drop(fs::remove_file(&temporary));
    }
    written?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed("flush", folder))
}

/// Removes a file for good: it does not come back after a power cut.
pub fn remove(path: &Path) -> Result<(), FileError> {
    fs::remove_file(path).map_err(failed("remove", path))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed("flush", folder))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(path).map_err(failed("create", path))?;
    // `mode` above is narrowed by the umask and ignored when the file exists.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed("chmod", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", path))
}

/// Reads a whole small file.
pub fn read_limited(path: &Path) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let mut bytes = Vec::new();
    file.take(IDENTITY_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if bytes.len() as u64 > IDENTITY_FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// Reads a key file, and refuses one that others may read.
pub fn read_private(path: &Path) -> Result<Vec<u8>, FileError> {
    let mode = fs::metadata(path).map_err(failed("open", path))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode });
    }
    read_limited(path)
}

/// Makes a folder that only its owner may enter.
pub fn create_private_folder(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(failed("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed("chmod", path))
}
