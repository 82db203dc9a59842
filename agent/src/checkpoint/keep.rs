//! Keeps a second instance of a checkpoint in `.fleet/JOB/kept/`. Runs in the as-user helper.
//!
//! A program that saves under one name in place has nothing whole while it saves; and a dead attempt's machine may write
//! into what the next attempt resumes from. So the last whole state is kept under a name that no program looks for: by
//! reflink, which costs no space at first; else by a hard link, where the writer never writes into an old file; else by a
//! copy, where the job asks for it. One is kept for each name, and it is exactly what its list says, or it is not kept.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, ioctl_ficlone, renameat_with, statvfs};
use rustix::io::Errno;

use super::list::{Comparison, FileList, ListedFile, job_dir};
use fleet_user::ops;

/// Largest checkpoint that is copied.
pub(super) const KEEP_COPY_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// A copy is made only where so many of its size are free: the job's next save must not fail because of it.
const FREE_FACTOR: u64 = 2;
/// Folder in `.fleet/JOB/`.
pub(super) const KEPT: &str = "kept";
/// How names of what is being made begin in there. No name of a checkpoint begins with a dot.
const NEW: &str = ".new-";

/// What may be done where the file system has no reflinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Its writer replaces files and never writes into an old one.
    pub(super) hard_link: bool,
    /// The job asks for it.
    pub(super) copy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Reflink,
    HardLink,
    Copy,
}

/// Why nothing was kept. What was kept before of the same name still is.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("the file system cannot share data between files (reflink)")]
    NoReflink,
    #[error(
        "it has {} MiB, more than the {} MiB that fleet copies",
        mib(*.bytes),
        mib(KEEP_COPY_BYTES_MAX)
    )]
    TooLarge { bytes: u64 },
    #[error(
        "a copy of {} MiB needs {FREE_FACTOR} times that free; {} MiB are",
        mib(*.bytes),
        mib(*.free)
    )]
    NoSpace { bytes: u64, free: u64 },
    #[error("it was written again before the copy was complete")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1024 * 1024)
}

/// Where the one of that name is kept.
pub(super) fn kept_path(dir: &Path, job: &str, path: &Path) -> PathBuf {
    job_dir(dir, job).join(KEPT).join(flat_name(dir, path))
}

/// The path below `dir` as one file name.
pub(super) fn flat_name(dir: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(dir).unwrap_or(path);
    let parts = relative.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.collect::<Vec<_>>().join("%")
}

/// Keeps `from`, which is as its list says, at `to`; returns its bytes.
pub(super) fn keep(from: &Path, list: &FileList, to: &Path, ways: Ways) -> Result<u64, NotKept> {
    if list.compare(from) != Comparison::Same {
        return Err(NotKept::Changed);
    }
    let new = new_in(to.parent().ok_or(NotKept::NoReflink)?)?;
    let kept = make_exact(from, list, &new, ways).and_then(|()| put(&new, to).map_err(NotKept::Io));
    // What is left under that name is the one of before, or a part of this one.
    let removed = remove(&new);
    kept?;
    removed?;
    Ok(list.bytes())
}

/// A second instance of `from`, under the name that it has in the new directory `top`: first made beside, so that `top` is
/// there with all of it or not at all. `finish` adds to it.
pub(super) fn place_copy(
    (dir, job): (&Path, &str),
    (from, list): (&Path, &FileList),
    (top, name): (&Path, &Path),
    finish: impl FnOnce(&Path) -> Result<(), NotKept>,
) -> Result<(), NotKept> {
    sweep(dir, job);
    let new = new_in(&job_dir(dir, job).join(KEPT))?;
    let ways = Ways { hard_link: false, copy: true };
    let placed = make_exact(from, list, &new.join(name), ways)
        .and_then(|()| finish(&new))
        // The kernel refuses it where `top` holds anything.
        .and_then(|()| fs::rename(&new, top).map_err(NotKept::Io));
    if placed.is_err() {
        // What stays is swept by the next helper.
        drop(remove(&new));
    }
    placed
}

/// A free name in that folder for what is being made.
fn new_in(folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let new = folder.join(format!("{NEW}{}", std::process::id()));
    remove(&new)?;
    Ok(new)
}

/// Makes `new`, which is exactly what the list says, as `from` is before and after.
fn make_exact(from: &Path, list: &FileList, new: &Path, ways: Ways) -> Result<(), NotKept> {
    make(from, list, new, ways)?;
    let exact =
        list.compare(from) == Comparison::Same && list.compare_copy(new) == Comparison::Same;
    if exact { Ok(()) } else { Err(NotKept::Changed) }
}

/// Removes a kept file or directory; nothing where there is none.
pub(super) fn remove(kept: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(kept) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(kept),
        Ok(_) => fs::remove_file(kept),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what a helper that was killed had not finished.
pub(super) fn sweep(dir: &Path, job: &str) {
    let Ok(entries) = fs::read_dir(job_dir(dir, job).join(KEPT)) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(NEW) {
            // What cannot be removed now is tried again by the next helper.
            drop(remove(&entry.path()));
        }
    }
}

fn make(from: &Path, list: &FileList, new: &Path, ways: Ways) -> Result<(), NotKept> {
    for way in [Way::Reflink, Way::HardLink] {
        if way == Way::HardLink && !ways.hard_link {
            continue;
        }
        match all_files(from, list, new, way) {
            Err(error) if is_unsupported(&error) => remove(new)?,
            made => return made.map_err(NotKept::Io),
        }
    }
    if !ways.copy {
        return Err(NotKept::NoReflink);
    }
    let bytes = list.bytes();
    if bytes > KEEP_COPY_BYTES_MAX {
        return Err(NotKept::TooLarge { bytes });
    }
    let space = statvfs(new.parent().unwrap_or(new)).map_err(io::Error::from)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < bytes.saturating_mul(FREE_FACTOR) {
        return Err(NotKept::NoSpace { bytes, free });
    }
    all_files(from, list, new, Way::Copy).map_err(NotKept::Io)
}

/// The file system, or this pair of files, has no such thing.
fn is_unsupported(error: &io::Error) -> bool {
    let none = [Errno::OPNOTSUPP, Errno::XDEV, Errno::INVAL, Errno::NOTTY, Errno::NOSYS];
    // Hard links: not allowed there, or too many.
    let links = [Errno::PERM, Errno::MLINK];
    let is = |errno: &Errno| error.raw_os_error() == Some(errno.raw_os_error());
    none.iter().any(is) || links.iter().any(is)
}

fn all_files(from: &Path, list: &FileList, new: &Path, way: Way) -> io::Result<()> {
    for file in &list.files {
        let (source, target) = (file.below(from), file.below(new));
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        match way {
            Way::HardLink => fs::hard_link(source, target)?,
            Way::Reflink | Way::Copy => one_file(&source, file, &target, way)?,
        }
    }
    Ok(())
}

fn one_file(source: &Path, listed: &ListedFile, target: &Path, way: Way) -> io::Result<()> {
    let source = ops::open_to_sync(source)?;
    let meta = source.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
    if way == Way::Reflink {
        ioctl_ficlone(&file, &source)?;
    } else {
        io::copy(&mut source.take(listed.size), &mut file)?;
        // The data of a reflink was flushed when the checkpoint counted.
        file.sync_all()?;
    }
    file.set_permissions(meta.permissions())?;
    file.set_times(FileTimes::new().set_modified(meta.modified()?))
}

/// Gives `new` its name; what had the name before gets that of `new`, or is removed.
fn put(new: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, to, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => fs::rename(new, to),
        // NFS cannot exchange two names. In between nothing is kept, and the original was whole a moment ago.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            remove(to)?;
            fs::rename(new, to)
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
pub(super) fn has_reflinks(dir: &Path) -> bool {
    let make =
        |name: &str| File::options().create(true).truncate(true).write(true).open(dir.join(name));
    let (target, source) = (make(".b"), make(".a").and_then(|_| File::open(dir.join(".a"))));
    matches!((&target, &source), (Ok(target), Ok(source)) if ioctl_ficlone(target, source).is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COPY: Ways = Ways { hard_link: false, copy: true };

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("a/checkpoint-5");
        fs::create_dir_all(top.join("inner")).unwrap();
        fs::write(top.join("model.bin"), "weights").unwrap();
        fs::write(top.join("inner/optimizer.bin"), "moments").unwrap();
        (dir, top)
    }

    #[test]
    fn a_copy_is_exact_and_takes_the_place_of_the_one_before() {
        let (dir, top) = place();
        let to = kept_path(dir.path(), "job-a", &top);
        assert!(to.ends_with(".fleet/job-a/kept/a%checkpoint-5"), "{to:?}");
        let first = FileList::of(&top).unwrap();
        assert_eq!(keep(&top, &first, &to, COPY).unwrap(), 14);
        assert_eq!(first.compare_copy(&to), Comparison::Same);
        fs::write(top.join("model.bin"), "weights 2").unwrap();
        assert!(matches!(keep(&top, &first, &to, COPY), Err(NotKept::Changed)));
        assert_eq!(first.compare_copy(&to), Comparison::Same, "the one of before stays");
        let second = FileList::of(&top).unwrap();
        keep(&top, &second, &to, COPY).unwrap();
        assert_eq!(second.compare_copy(&to), Comparison::Same);
        assert_ne!(first.compare_copy(&to), Comparison::Same);
        assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing is left over");
        remove(&to).unwrap();
        remove(&to).unwrap();
    }

    #[test]
    fn a_link_shares_the_files_and_leftovers_are_swept() {
        let (dir, top) = place();
        let to = kept_path(dir.path(), "job-a", &top);
        let list = FileList::of(&top).unwrap();
        let ways = Ways { hard_link: true, copy: false };
        keep(&top, &list, &to, ways).unwrap();
        assert_eq!(list.compare_copy(&to), Comparison::Same);
        let half = to.with_file_name(format!("{NEW}1"));
        fs::write(&half, "half").unwrap();
        sweep(dir.path(), "job-a");
        assert!(!half.exists() && to.exists());
        // A fifo that takes a file's place is neither opened nor waited for.
        fs::remove_file(top.join("model.bin")).unwrap();
        nix::unistd::mkfifo(&top.join("model.bin"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let list = FileList::of(&top).unwrap();
        assert!(keep(&top, &list, &to, COPY).is_err());
    }
}
