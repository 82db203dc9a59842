//! Reading and replacing the small JSON files of an allocation's directory.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use super::order::FileError;

/// Largest file that is read: an order carries mounts and devices, not data.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { action, path, source }
}

/// `None` when the file is not there.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned(), max: FILE_BYTES_MAX });
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| FileError::Invalid { path: path.to_owned(), source })
}

/// Replaces a file in one step for every reader. Not durable: for files that mean nothing after a
/// power cut, since no process survives one.
pub(super) fn replace_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let temporary = write_temporary(path, value)?.0;
    fs::rename(&temporary, path).map_err(failed("rename", path))
}

/// As [`replace_json`], and on the disk when it returns.
pub(super) fn replace_json_durably<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let (temporary, file) = write_temporary(path, value)?;
    file.sync_all().map_err(failed("sync", path))?;
    fs::rename(&temporary, path).map_err(failed("rename", path))?;
    let parent = path.parent().unwrap_or(Path::new("."));
    let dir = File::open(parent).map_err(failed("open", parent))?;
    dir.sync_all().map_err(failed("sync", parent))
}

fn write_temporary<T: Serialize>(path: &Path, value: &T) -> Result<(PathBuf, File), FileError> {
    let mut bytes = serde_json::to_vec(value)
        .map_err(|source| FileError::Invalid { path: path.to_owned(), source })?;
    bytes.push(b'\n');
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(&bytes).map_err(failed("write", &temporary))?;
    Ok((temporary, file))
}
