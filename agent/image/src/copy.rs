//! A tree copied from one directory to another, where overlayfs cannot be mounted.
//!
//! Called by `rootfs` for a job, and by the store for a layer that must also hold the content of all layers below it.
//! The copy walks both sides by descriptors that never follow a link, so a link in an image leads nowhere.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Result, copy};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, futimens};
use nix::sys::time::TimeSpec;

use super::beneath::{Place, Root, file_type, names_in, set_owner_and_mode};
use super::xattr;

/// Deepest tree that is copied; layers are limited to less when unpacked.
const DEPTH_MAX: usize = 512;
const MODE_MASK: u32 = 0o7777;

/// Whether files may be the same ones on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// Each is a file of its own: somebody will write into it.
    Copied,
    /// Hard links where the file system allows it. For layers only, whose files never change.
    Shared,
}

/// Copies all of `from` into the empty directory `to`, whose own attributes become those of `from`, too.
pub(super) fn copy_tree(from: &Root, to: &Root, files: Files) -> Result<()> {
    Copier { from, to, files, links: HashMap::new() }.copy_dir(Path::new(""), 0)
}

/// Gives a directory owner, mode, times and extended attributes of another.
pub(super) fn make_alike(from: impl AsFd, to: impl AsFd) -> Result<()> {
    let stat = fstat(from.as_fd())?;
    xattr::copy_user(from.as_fd(), to.as_fd())?;
    set_owner_and_mode(to.as_fd(), stat.st_uid, stat.st_gid, stat.st_mode & MODE_MASK)?;
    let time = TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec);
    Ok(futimens(to, &time, &time)?)
}

struct Copier<'a> {
    from: &'a Root,
    to: &'a Root,
    files: Files,
    /// Where a file with several names was copied first.
    links: HashMap<u64, PathBuf>,
}

impl Copier<'_> {
    fn copy_dir(&mut self, path: &Path, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(std::io::Error::other(format!("{} is too deep", path.display())));
        }
        for name in names_in(self.from.dir(path)?)? {
            let path = path.join(name);
            let Some(stat) = self.from.existing(&path)?.stat()? else { continue };
            self.copy_one(&path, &stat, depth)?;
        }
        // Behind all that is in it, which changes its time.
        make_alike(self.from.dir(path)?, self.to.dir(path)?)
    }

    fn copy_one(&mut self, path: &Path, stat: &FileStat, depth: usize) -> Result<()> {
        let (source, place) = (self.from.existing(path)?, self.to.existing(path)?);
        if file_type(stat) == SFlag::S_IFDIR {
            place.make_dir()?;
            return self.copy_dir(path, depth + 1);
        }
        if self.files == Files::Shared && place.link_to(&source).is_ok() {
            return Ok(());
        }
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&stat.st_ino)
        {
            return place.link_to(&self.to.existing(first)?);
        }
        self.copy_file(path, stat, &place)?;
        if stat.st_nlink > 1 {
            self.links.insert(stat.st_ino, path.to_path_buf());
        }
        Ok(())
    }

    fn copy_file(&self, path: &Path, stat: &FileStat, place: &Place) -> Result<()> {
        let parent = self.from.dir(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().unwrap_or_default();
        match file_type(stat) {
            SFlag::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let mut source = File::from(openat(&parent, name, flags, Mode::empty())?);
                let mut file = place.create_file()?;
                copy(&mut source, &mut file)?;
                make_alike(&source, &file)
            }
            SFlag::S_IFLNK => {
                place.symlink(readlinkat(&parent, name)?.as_encoded_bytes())?;
                place.set_owner(stat.st_uid, stat.st_gid)
            }
            SFlag::S_IFIFO => {
                place.make_fifo(stat.st_mode & MODE_MASK)?;
                place.set_owner(stat.st_uid, stat.st_gid)
            }
            // Layers of older versions of fleet had whiteouts as devices; nothing else is ever unpacked.
            _ => Ok(()),
        }
    }
}
