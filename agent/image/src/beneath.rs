//! File operations that cannot leave one directory, whatever links lie in it.
//!
//! Every path is resolved by the kernel in one call (openat2 with BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV), so there is
//! nothing to race, and the last component is only ever used with NOFOLLOW calls relative to its opened parent.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{
    Gid, Uid, UnlinkatFlags, fchown, fchownat, linkat, mkfifoat, symlinkat, unlinkat,
};

use fleet_kernel::openat::openat2;

/// A directory that nothing done through it can leave.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
}

/// An opened parent and the name of something in it.
#[derive(Debug)]
pub(super) struct Place {
    parent: OwnedFd,
    name: OsString,
}

fn resolve_flags() -> ResolveFlag {
    ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV
}

fn dir_flags() -> OFlag {
    OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fd = open(path, dir_flags(), Mode::empty())?;
        Ok(Self { fd })
    }

    /// Opens a directory below; the empty path is the root itself.
    pub(super) fn dir(&self, relative: &Path) -> Result<OwnedFd> {
        let path = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let how = OpenHow::new().flags(dir_flags()).resolve(resolve_flags());
        Ok(openat2(&self.fd, path, how)?)
    }

    /// The place of a path: its parent is opened, its name is kept.
    pub(super) fn existing(&self, relative: &Path) -> Result<Place> {
        let name = relative.file_name().ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        let parent = self.dir(relative.parent().unwrap_or(Path::new("")))?;
        Ok(Place { parent, name: name.to_owned() })
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Place {
    pub(super) fn of(parent: OwnedFd, name: OsString) -> Self {
        Self { parent, name }
    }

    pub(super) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// What is there, not following a link; `None` if nothing is.
    pub(super) fn stat(&self) -> Result<Option<FileStat>> {
        match fstatat(&self.parent, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn is_dir(&self) -> Result<bool> {
        Ok(self.stat()?.is_some_and(|stat| file_type(&stat) == SFlag::S_IFDIR))
    }

    pub(super) fn make_dir(&self) -> Result<()> {
        Ok(mkdirat(&self.parent, self.name.as_os_str(), Mode::from_bits_truncate(0o700))?)
    }

    pub(super) fn open_dir(&self) -> Result<OwnedFd> {
        Ok(openat(&self.parent, self.name.as_os_str(), dir_flags(), Mode::empty())?)
    }

    /// A new file; whatever is there already is an error, so nothing is ever written through a link.
    pub(super) fn create_file(&self) -> Result<File> {
        let flags =
            OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd =
            openat(&self.parent, self.name.as_os_str(), flags, Mode::from_bits_truncate(0o600))?;
        Ok(fd.into())
    }

    pub(super) fn symlink(&self, target: &[u8]) -> Result<()> {
        Ok(symlinkat(OsStr::from_bytes(target), &self.parent, self.name.as_os_str())?)
    }

    /// Makes this a hard link of `other`, which is not followed if it is a link itself.
    pub(super) fn link_to(&self, other: &Place) -> Result<()> {
        let (from, to) = (other.name.as_os_str(), self.name.as_os_str());
        Ok(linkat(&other.parent, from, &self.parent, to, AtFlags::empty())?)
    }

    pub(super) fn make_fifo(&self, mode: u32) -> Result<()> {
        Ok(mkfifoat(&self.parent, self.name.as_os_str(), Mode::from_bits_truncate(mode))?)
    }

    /// Where the link that is there leads, as it is written.
    pub(super) fn read_link(&self) -> Result<OsString> {
        Ok(readlinkat(&self.parent, self.name.as_os_str())?)
    }

    pub(super) fn remove_file(&self) -> Result<()> {
        Ok(unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes whatever is there, directories with all that is in them, never following a link.
    pub(super) fn remove_tree(&self, depth_left: usize) -> Result<()> {
        if !self.is_dir()? {
            return match self.remove_file() {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        if depth_left == 0 {
            return Err(Error::other("the tree is too deep"));
        }
        for name in names_in(self.open_dir()?)? {
            Place { parent: self.open_dir()?, name }.remove_tree(depth_left - 1)?;
        }
        self.remove_dir()
    }

    /// Removes an empty directory.
    pub(super) fn remove_dir(&self) -> Result<()> {
        Ok(unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::RemoveDir)?)
    }

    /// Sets the owner of the thing itself, link or not.
    pub(super) fn set_owner(&self, uid: u32, gid: u32) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(fchownat(&self.parent, self.name.as_os_str(), uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }
}

/// Owner and mode of something open. The owner first: changing it clears bits of the mode.
pub(super) fn set_owner_and_mode(file: impl AsFd, uid: u32, gid: u32, mode: u32) -> Result<()> {
    fchown(file.as_fd(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    Ok(fchmod(file.as_fd(), Mode::from_bits_truncate(mode))?)
}

pub(super) fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// Names in an opened directory, without "." and "..".
pub(super) fn names_in(dir: OwnedFd) -> Result<Vec<OsString>> {
    let mut dir = nix::dir::Dir::from_fd(dir)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
