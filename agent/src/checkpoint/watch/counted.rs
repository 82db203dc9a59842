//! What has counted already: seeing it go, and seeing it overwritten.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::list::{Comparison, FileList, LIST_BYTES_MAX, list_path};
use super::super::rules::FileId;
use super::super::tree::Tree;
use super::keeper::{Keeper, Who};
use fleet_user::op::watch::CountedBefore;
use fleet_user::op::{FileKind, FileStat, Reply};
use fleet_user::ops;

/// How many checkpoints each scan checks again, the newest ones.
const FOLLOWED_MAX: usize = 32;

/// One that has counted.
#[derive(Debug)]
struct Counted {
    id: FileId,
    list: Option<FileList>,
    /// The newest write into any of its files when it counted.
    newest_mtime_ns: i64,
    /// Which of all was counted when, so that the oldest is let fall.
    order: u64,
    gone: bool,
}

/// By path: the newest that counted under each name.
#[derive(Debug, Default)]
pub(super) struct Register {
    counted: BTreeMap<String, Counted>,
    next: u64,
}

/// What a checkpoint does to the one that had its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) id: FileId,
    /// The same file was written again.
    pub(super) in_place: bool,
}

impl Register {
    pub(super) fn before(
        dir: &Path,
        job: &str,
        counted: &[CountedBefore],
        keeper: &mut Keeper,
    ) -> Self {
        let mut register = Self::default();
        for one in counted {
            let list = one.list.as_ref().and_then(|digest| {
                match ops::read_file(&list_path(dir, job, digest), LIST_BYTES_MAX) {
                    Ok(Reply::Text(text)) => FileList::from_text(&text, digest),
                    Ok(_) | Err(_) => None,
                }
            });
            if let Some(list) = &list {
                keeper.recall(&one.path, Who::Own(one.id), list);
            }
            register.add(&one.path, one.id, list);
        }
        register
    }

    /// Takes note of one that counts now.
    pub(super) fn add(
        &mut self,
        path: &str,
        id: FileId,
        list: Option<FileList>,
    ) -> Option<Replaced> {
        self.next += 1;
        // A directory that only got another file is not overwritten.
        let rewrites = |before: &FileList| list.as_ref().is_some_and(|list| list.rewrites(before));
        let in_place = |before: &Counted| {
            before.id.ino == id.ino && before.list.as_ref().is_some_and(rewrites)
        };
        let replaced = self.counted.get(path).filter(|before| !before.gone);
        let replaced = replaced.map(|one| Replaced { id: one.id, in_place: in_place(one) });
        let one = Counted { id, list, newest_mtime_ns: id.mtime_ns, order: self.next, gone: false };
        self.counted.insert(path.to_owned(), one);
        if self.counted.len() > FOLLOWED_MAX {
            let oldest = self.counted.iter().min_by_key(|(_, one)| one.order);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                self.counted.remove(&oldest);
            }
        }
        replaced
    }

    /// Whether a directory is one that counted, without a later write into it: then it is the same one, or what a
    /// deletion has left of it.
    pub(super) fn is_leftover(&self, path: &str, tree: &Tree) -> bool {
        let one = self.counted.get(path);
        one.is_some_and(|one| tree.newest_mtime_ns <= one.newest_mtime_ns)
    }

    /// A file that the last directory which counted has and this one has not: its writer was perhaps cut off before it.
    pub(super) fn lacks(&self, path: &str, tree: &Tree) -> Option<&str> {
        let dirs = self.counted.iter().filter(|(counted, _)| counted.as_str() != path);
        let listed = dirs.filter_map(|(_, one)| Some((one.order, one.list.as_ref()?)));
        let (_, list) =
            listed.filter(|(_, list)| list.files.len() > 1).max_by_key(|(order, _)| *order)?;
        let missing = list.files.iter().find(|file| !tree.has(&file.name));
        missing.map(|file| file.name.as_str())
    }

    /// Those that are gone since the last look: deleted, or without one of their files; and whether they are kept beside.
    /// One that is kept is also gone where no process is left that could complete what it has begun to write.
    pub(super) fn gone(
        &mut self,
        dir: &Path,
        keeper: &Keeper,
        at_end: bool,
    ) -> Vec<(FileId, bool)> {
        let mut gone = Vec::new();
        for (path, one) in self.counted.iter_mut().filter(|(_, one)| !one.gone) {
            let full = dir.join(path);
            let kept = keeper.holds(path, Who::Own(one.id));
            let stat = std::fs::symlink_metadata(&full).ok().map(|meta| FileStat::from(&meta));
            let lost = match (&stat, &one.list) {
                (None, _) => true,
                (Some(_), Some(list)) if at_end && kept => list.compare(&full) != Comparison::Same,
                // Overwritten: the watcher reports this when the new file counts.
                (Some(stat), _) if stat.kind == FileKind::File => false,
                (Some(_), Some(list)) => matches!(
                    list.compare(&full),
                    Comparison::Missing { .. } | Comparison::Torn { .. }
                ),
                (Some(_), None) => false,
            };
            if lost {
                one.gone = true;
                gone.push((one.id, kept));
            }
        }
        gone
    }
}
