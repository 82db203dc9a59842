//! A file that appears under its name only when it is whole: beside it first, on the disk, then renamed.
//!
//! Called by the commands that write what controllers send (`snapshot save`, `audit export`). Whatever interrupts them,
//! what had the name before is untouched.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Ending of a file that is not finished.
const PARTIAL: &str = ".partial";

/// The unfinished file; removed unless it is finished.
pub(crate) struct Partial {
    path: PathBuf,
    name: PathBuf,
    file: File,
    bytes: u64,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already after the rename.
        drop(std::fs::remove_file(&self.path));
    }
}

impl Partial {
    /// `option`: how the command line calls the name. `mode`: as for open(2), less the umask.
    pub(crate) fn begin(name: &Path, option: &str, mode: u32) -> Result<Self, Failure> {
        let Some(last) = name.file_name() else {
            return Err(Failure::usage(option, format!("{} names no file", name.display())));
        };
        let mut last = last.to_owned();
        last.push(PARTIAL);
        let path = name.with_file_name(last);
        // A leftover of an earlier try is ours; its mode may be another.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot("remove", &path, &error));
            }
            Ok(()) | Err(_) => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        let file = file.map_err(|error| cannot("create", &path, &error))?;
        Ok(Self { path, name: name.to_owned(), file, bytes: 0 })
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.file.write_all(data).map_err(|error| cannot("write", &self.path, &error))?;
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Gives it its name, and says how many bytes it has.
    pub(crate) fn finish(self) -> Result<u64, Failure> {
        self.file.sync_all().map_err(|error| cannot("sync", &self.path, &error))?;
        let renamed = std::fs::rename(&self.path, &self.name);
        renamed.map_err(|error| cannot("rename to", &self.name, &error))?;
        let synced = sync_folder(&self.name);
        synced.map_err(|error| cannot("sync the folder of", &self.name, &error))?;
        Ok(self.bytes)
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

/// What could not be done with a file that the user named.
pub(crate) fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied => Exit::Denied,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_had_the_name_stays_until_another_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("audit.jsonl");
        std::fs::write(&name, "of yesterday").unwrap();
        let mut partial = Partial::begin(&name, "--file", 0o666).unwrap();
        partial.write(b"of tod").unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), b"of yesterday");
        drop(partial);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!((left.len(), std::fs::read(&name).unwrap()), (1, b"of yesterday".to_vec()));
        // A leftover of one that was killed is no obstacle.
        std::fs::write(dir.path().join("audit.jsonl.partial"), "of to").unwrap();
        let mut partial = Partial::begin(&name, "--file", 0o666).unwrap();
        partial.write(b"of today").unwrap();
        assert_eq!(partial.finish().unwrap(), 8);
        assert_eq!(std::fs::read(&name).unwrap(), b"of today");
        assert!(Partial::begin(Path::new("/"), "--file", 0o666).is_err());
    }
}
