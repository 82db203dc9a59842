//! Layers merged by copying, where overlayfs cannot be mounted.
//!
//! Both sides are walked by descriptors that never follow a link, so a link of a lower layer cannot lead a higher one
//! astray.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Result, copy};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, futimens};
use nix::sys::time::TimeSpec;

use super::beneath::{Root, file_type, names_in, set_owner_and_mode};
use super::store::Layer;

/// Deepest tree that is copied; layers are limited to less when unpacked.
const DEPTH_MAX: usize = 512;
const MODE_MASK: u32 = 0o7777;

/// Copies one layer over what lower ones have left in `dest`.
pub(super) fn copy_layer(layer: &Layer, dest: &Path) -> Result<()> {
    let (from, to) = (Root::open(&layer.dir)?, Root::open(dest)?);
    for path in &layer.whiteouts {
        if let Ok(place) = to.existing(path) {
            place.remove_tree(DEPTH_MAX)?;
        }
    }
    for path in &layer.opaque {
        let Ok(dir) = to.dir(path) else { continue };
        for name in names_in(dir)? {
            to.existing(&path.join(name))?.remove_tree(DEPTH_MAX)?;
        }
    }
    let mut copier = Copier { from, to, links: HashMap::new() };
    copier.copy_dir(Path::new(""), 0)
}

struct Copier {
    from: Root,
    to: Root,
    /// Where a file with several names was copied first.
    links: HashMap<u64, PathBuf>,
}

impl Copier {
    fn copy_dir(&mut self, path: &Path, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(std::io::Error::other(format!("{} is too deep", path.display())));
        }
        let source = self.from.dir(path)?;
        let stat = nix::sys::stat::fstat(&source)?;
        for name in names_in(source)? {
            let path = path.join(name);
            let Some(stat) = self.from.existing(&path)?.stat()? else { continue };
            self.copy_one(&path, &stat, depth)?;
        }
        let made = self.to.dir(path)?;
        set_owner_and_mode(&made, stat.st_uid, stat.st_gid, stat.st_mode & MODE_MASK)?;
        set_time(&made, &stat)
    }

    fn copy_one(&mut self, path: &Path, stat: &FileStat, depth: usize) -> Result<()> {
        let place = self.to.existing(path)?;
        let kind = file_type(stat);
        // The overlayfs form of a whiteout was dealt with by its list.
        if kind == SFlag::S_IFCHR {
            return Ok(());
        }
        if kind == SFlag::S_IFDIR {
            if !place.is_dir()? {
                place.remove_tree(DEPTH_MAX)?;
                place.make_dir()?;
            }
            return self.copy_dir(path, depth + 1);
        }
        place.remove_tree(DEPTH_MAX)?;
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&stat.st_ino)
        {
            return place.link_to(&self.to.existing(first)?);
        }
        let (parent, name) = (
            self.from.dir(path.parent().unwrap_or(Path::new("")))?,
            path.file_name().unwrap_or_default(),
        );
        match kind {
            SFlag::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let mut source = File::from(openat(&parent, name, flags, Mode::empty())?);
                let mut file = place.create_file()?;
                copy(&mut source, &mut file)?;
                set_owner_and_mode(&file, stat.st_uid, stat.st_gid, stat.st_mode & MODE_MASK)?;
                set_time(&file, stat)?;
            }
            SFlag::S_IFLNK => {
                place.symlink(readlinkat(&parent, name)?.as_encoded_bytes())?;
                place.set_owner(stat.st_uid, stat.st_gid)?;
            }
            SFlag::S_IFIFO => {
                place.make_fifo(stat.st_mode & MODE_MASK)?;
                place.set_owner(stat.st_uid, stat.st_gid)?;
            }
            // Nothing else is ever unpacked.
            _ => return Ok(()),
        }
        if stat.st_nlink > 1 {
            self.links.insert(stat.st_ino, path.to_path_buf());
        }
        Ok(())
    }
}

fn set_time(file: impl std::os::fd::AsFd, stat: &FileStat) -> Result<()> {
    let time = TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec);
    Ok(futimens(file, &time, &time)?)
}
