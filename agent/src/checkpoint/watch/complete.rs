//! The last steps before a checkpoint counts: is it whole, flush it to the disk, list its files.
//!
//! Runs in the as-user helper, also for what the job tells on its notify socket.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use fleet_core::checkpoint::{Content, Doubt, Facts};

use super::super::list::{FileList, job_dir, list_path};
use super::super::tree::Tree;
use super::super::{rules, whole};
use fleet_user::ops;

/// Longest time that flushing one checkpoint may take; after that it counts as not flushed.
pub(in crate::checkpoint) const FLUSH_MAX: Duration = Duration::from_secs(60);

/// What was found out about one checkpoint.
#[derive(Debug)]
pub(in crate::checkpoint) struct Found {
    pub(in crate::checkpoint) facts: Facts,
    pub(in crate::checkpoint) list: Option<FileList>,
}

/// Checks, flushes and lists. `job`: empty for one whose lists nobody keeps.
pub(in crate::checkpoint) fn find_out(
    dir: &Path,
    job: &str,
    path: &str,
    content: Content,
) -> Found {
    let full = dir.join(path);
    let flushed = content.is_torn() || flush(&full);
    let list = FileList::of(&full).filter(|_| !content.is_torn());
    // A list that cannot be written (a full quota) leaves the checkpoint to its content check.
    let list = list.filter(|list| !job.is_empty() && write_list(dir, job, list));
    let doubt = if flushed { Doubt::None } else { Doubt::NotFlushed };
    let digest = list.as_ref().map(FileList::digest);
    let step = rules::step_of(path);
    Found { facts: Facts { rule: None, step, content, doubt, list: digest }, list }
}

/// The same of a path that the job told of; relative to `dir`, or absolute.
pub(crate) fn inspect(dir: &Path, job: &str, path: &Path) -> Facts {
    let content = whole::check(&dir.join(path));
    find_out(dir, job, &path.to_string_lossy(), content).facts
}

/// Whether the list is on the disk now.
pub(in crate::checkpoint) fn write_list(dir: &Path, job: &str, list: &FileList) -> bool {
    let folder = job_dir(dir, job);
    std::fs::create_dir_all(&folder).is_ok()
        && ops::write_file(&list_path(dir, job, &list.digest()), &list.text()).is_ok()
}

/// Whether every file and its directory is on the disk now. A thread waits for the file system, so that one that hangs is
/// given up on; the thread ends with the helper.
fn flush(path: &Path) -> bool {
    let (done, wait) = mpsc::sync_channel(1);
    let path = path.to_path_buf();
    let thread = std::thread::Builder::new().name("fleet-flush".to_owned());
    let started = thread.spawn(move || done.send(sync_all(&path)));
    started.is_ok() && wait.recv_timeout(FLUSH_MAX).is_ok_and(|synced| synced.is_ok())
}

fn sync_all(path: &Path) -> std::io::Result<()> {
    let mut files: Vec<PathBuf> = vec![path.to_path_buf()];
    if path.is_dir() {
        let tree = Tree::read(path).ok_or_else(|| std::io::Error::other("too many files"))?;
        files
            .extend(tree.entries.iter().take(whole::FILES_MAX).map(|entry| path.join(&entry.name)));
    }
    for file in files.iter().rev() {
        // fsync works on a descriptor that was opened for reading.
        ops::open_to_sync(file)?.sync_all()?;
    }
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
