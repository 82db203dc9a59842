//! Reading and replacing the small JSON files of an allocation's directory.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

/// Largest file that is read: an order carries mounts and devices, not data.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Why a file of an allocation's directory was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is not valid", path.display())]
    Invalid { path: PathBuf, source: serde_json::Error },
    #[error("{} has version {found}, this program knows {known}", path.display())]
    Version { path: PathBuf, found: u32, known: u32 },
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge { path: PathBuf, max: u64 },
}

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

/// Replaces a file in one step for every reader. Not durable before [`sync`]; most of these files mean
/// nothing after a power cut, since no process survives one.
pub(super) fn replace_json<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let temporary = write_temporary(path, value)?;
    fs::rename(&temporary, path).map_err(failed("rename", path))
}

/// Writes over what is in `room`, which has the length that is needed, and gives it the name `path`: takes no room that
/// was not taken before.
pub(super) fn fill_json<T: Serialize>(
    room: &Path,
    path: &Path,
    value: &T,
) -> Result<(), FileError> {
    let bytes = encoded(path, value)?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(room);
    let mut file = file.map_err(failed("create", room))?;
    file.write_all(&bytes).map_err(failed("write", room))?;
    file.set_len(bytes.len() as u64).map_err(failed("shorten", room))?;
    fs::rename(room, path).map_err(failed("rename", path))
}

/// The file and its name are on the disk when this returns.
pub(super) fn sync(path: &Path) -> Result<(), FileError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    for path in [path, parent] {
        let synced = File::open(path).and_then(|file| file.sync_all());
        synced.map_err(failed("sync", path))?;
    }
    Ok(())
}

fn encoded<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, FileError> {
    let mut bytes = serde_json::to_vec(value)
        .map_err(|source| FileError::Invalid { path: path.to_owned(), source })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn write_temporary<T: Serialize>(path: &Path, value: &T) -> Result<PathBuf, FileError> {
    let bytes = encoded(path, value)?;
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
    Ok(temporary)
}
