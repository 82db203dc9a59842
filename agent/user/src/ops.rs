//! The one-shot operations of the helper. They run as the user, so the kernel decides what is allowed; nothing here
//! checks permissions by itself.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::op::{FileKind, FileStat, OpError, OpErrorKind, Reply, STAT_PATHS_MAX};

type Outcome = Result<Reply, OpError>;

pub fn check_dir(path: &Path, create: bool) -> Outcome {
    absolute(path)?;
    if create {
        std::fs::create_dir_all(path).map_err(|error| OpError::io(path, &error))?;
    }
    let meta = std::fs::metadata(path).map_err(|error| OpError::io(path, &error))?;
    if !meta.is_dir() {
        return Err(OpError::new(OpErrorKind::NotADirectory, path, "not a directory"));
    }
    // access(2) answers for the wrong side of NFS; only creating a file tells whether one can be created.
    let probe = path.join(format!(".fleet-probe-{}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe);
    made.and_then(|_| std::fs::remove_file(&probe)).map_err(|error| OpError::io(path, &error))?;
    Ok(Reply::Done)
}

pub fn stat(paths: &[PathBuf]) -> Outcome {
    if paths.len() > STAT_PATHS_MAX {
        return Err(OpError::new(
            OpErrorKind::TooLarge,
            "",
            format!("more than {STAT_PATHS_MAX} paths"),
        ));
    }
    let one = |path: &PathBuf| -> Result<FileStat, OpError> {
        absolute(path)?;
        let meta = std::fs::metadata(path).map_err(|error| OpError::io(path, &error))?;
        Ok(FileStat::from(&meta))
    };
    Ok(Reply::Stats(paths.iter().map(one).collect()))
}

pub fn write_file(path: &Path, text: &str) -> Outcome {
    absolute(path)?;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = write_synced(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = written {
        // The first error is the one to tell; a temporary file that cannot be removed is swept by nobody but its owner.
        let _already_failed = std::fs::remove_file(&temporary);
        return Err(OpError::io(path, &error));
    }
    Ok(Reply::Done)
}

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

pub fn read_file(path: &Path, bytes_max: u64) -> Outcome {
    let (file, stat) = open_regular(path)?;
    let mut text = Vec::new();
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut text)
        .map_err(|error| OpError::io(path, &error))?;
    if stat.size_bytes > bytes_max || u64::try_from(text.len()).is_ok_and(|len| len > bytes_max) {
        return Err(OpError::new(
            OpErrorKind::TooLarge,
            path,
            format!("longer than {bytes_max} bytes"),
        ));
    }
    let text = String::from_utf8(text)
        .map_err(|_| OpError::new(OpErrorKind::NotUtf8, path, "not UTF-8 text"))?;
    Ok(Reply::Text(text))
}

pub fn touch(path: &Path) -> Outcome {
    absolute(path)?;
    let touched = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .and_then(|file| file.set_modified(std::time::SystemTime::now()));
    touched.map_err(|error| OpError::io(path, &error))?;
    Ok(Reply::Done)
}

pub fn readable(path: &Path) -> Outcome {
    absolute(path)?;
    let meta = std::fs::metadata(path).map_err(|error| OpError::io(path, &error))?;
    if meta.is_dir() {
        let first = std::fs::read_dir(path).and_then(|mut entries| entries.next().transpose());
        first.map_err(|error| OpError::io(path, &error))?;
        return Ok(Reply::Done);
    }
    let (mut file, _) = open_regular(path)?;
    let mut byte = [0; 1];
    file.read(&mut byte).map_err(|error| OpError::io(path, &error))?;
    Ok(Reply::Done)
}

/// Connects to a Unix socket, and sends nothing to the program that listens there.
pub fn connect(path: &Path) -> Outcome {
    absolute(path)?;
    UnixStream::connect(path).map_err(|error| OpError::io(path, &error))?;
    Ok(Reply::Done)
}

/// Opens a regular file for reading; a fifo or device is refused without ever blocking on it.
pub fn open_regular(path: &Path) -> Result<(File, FileStat), OpError> {
    absolute(path)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| OpError::io(path, &error))?;
    let meta = file.metadata().map_err(|error| OpError::io(path, &error))?;
    let stat = FileStat::from(&meta);
    if stat.kind != FileKind::File {
        return Err(OpError::new(OpErrorKind::NotARegularFile, path, "not a regular file"));
    }
    Ok((file, stat))
}

pub fn remove_file(path: &Path) -> Outcome {
    absolute(path)?;
    match std::fs::remove_file(path) {
        Ok(()) => Ok(Reply::Done),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Reply::Done),
        Err(error) => Err(OpError::io(path, &error)),
    }
}

/// A regular file or a directory, for flushing it.
pub fn open_to_sync(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn absolute(path: &Path) -> Result<(), OpError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(OpError::new(OpErrorKind::Other, path, "the path is not absolute"))
}
