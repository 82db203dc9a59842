//! The few file operations the log needs, over one directory.
//!
//! The journal and the snapshot files go through [`Disk`], so that tests and the simulation can put a
//! disk of their own underneath and cut the power after any operation. [`RealDisk`] is the only one used
//! outside them; opening it locks the directory, and refuses a network file system. Nothing here retries:
//! an error goes up and ends the process.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs;

/// The file that marks the directory as in use, by flock(2), for as long as the process lives.
const LOCK_FILE: &str = "LOCK";

/// File systems on which fsync, rename or flock do not promise what the store relies on.
/// Numbers that the libc headers lack are from `linux/magic.h` and `fs/smb/client`.
const NETWORK_FILE_SYSTEMS: [(i64, &str); 7] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x517B, "SMB"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
];

/// One directory of files.
pub trait Disk: Send + Sync + Debug {
    /// Names of the regular files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a file that must not exist yet.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// The directory, for messages.
    fn path(&self) -> &Path;
}

/// One open file. Writes are positioned; there is no cursor.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait DiskFile: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// fdatasync(2). After an error the file's contents are unknown; never call it again.
    fn sync_data(&self) -> io::Result<()>;
}

/// Why a directory cannot hold a store.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("{} is on {kind}, which does not keep what it has acknowledged; use a local disk", path.display())]
    NetworkFileSystem { path: PathBuf, kind: &'static str },
    #[error("{} is used by another process; stop it first", path.display())]
    InUse { path: PathBuf },
    #[error("{} is not a directory of its own (a link?)", path.display())]
    NotADirectory { path: PathBuf },
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
}

/// A directory on a local disk, locked against other processes while this value lives.
#[derive(Debug)]
pub(crate) struct RealDisk {
    dir: PathBuf,
    handle: File,
    _lock: Flock<File>,
}

impl RealDisk {
    /// Opens (and creates, mode 0700) `dir`.
    pub(crate) fn open(dir: &Path) -> Result<RealDisk, DiskError> {
        let open = |source| DiskError::Open { path: dir.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(open)?;
        if !std::fs::symlink_metadata(dir).map_err(open)?.is_dir() {
            return Err(DiskError::NotADirectory { path: dir.to_owned() });
        }
        let handle = File::open(dir).map_err(open)?;
        let magic = statfs::fstatfs(&handle).map_err(|e| open(e.into()))?.filesystem_type().0;
        if let Some(kind) = network_file_system(magic) {
            return Err(DiskError::NetworkFileSystem { path: dir.to_owned(), kind });
        }
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))
            .map_err(open)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| DiskError::InUse { path: dir.to_owned() })?;
        Ok(RealDisk { dir: dir.to_owned(), handle, _lock: lock })
    }

    fn file(&self, name: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(create)
            .mode(0o600)
            .open(self.dir.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }
}

/// Which network file system `path` is on, if it is on one that cannot hold a store. Waits for a server that is silent.
pub(crate) fn network_file_system_of(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(network_file_system(statfs::statfs(path)?.filesystem_type().0))
}

#[expect(clippy::cast_lossless, reason = "the type of f_type differs between C libraries")]
fn network_file_system(magic: impl Into<i64>) -> Option<&'static str> {
    let magic = magic.into() as u32 as i64;
    NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && name != LOCK_FILE {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, false)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, true)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn path(&self) -> &Path {
        &self.dir
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_all(file: &dyn DiskFile, limit: u64) -> io::Result<Vec<u8>> {
    let len = file.len()?;
    if len > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{len} bytes, more than the {limit} a file of this kind can have"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Puts `bytes` under `name` so that after a crash the old or the new contents are there, whole.
pub(crate) fn replace_file(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    if disk.list()?.contains(&temporary) {
        disk.remove(&temporary)?;
    }
    let file = disk.create(&temporary)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&temporary, name)?;
    disk.sync_dir()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = RealDisk::open(dir.path()).unwrap();
        assert!(matches!(RealDisk::open(dir.path()), Err(DiskError::InUse { .. })));
        drop(first);
        RealDisk::open(dir.path()).unwrap();
    }

    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        // CIFS's magic has the top bit set and arrives sign-extended on some targets.
        assert_eq!(network_file_system(i64::from(0xFF53_4D42_u32 as i32)), Some("CIFS"));
        assert_eq!(network_file_system(0xEF53), None, "ext4");
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
        assert!(matches!(
            RealDisk::open(&dir.path().join("link")),
            Err(DiskError::NotADirectory { .. })
        ));
    }
}
