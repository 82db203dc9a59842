//! What the attempt resumed from: is it still what it was when the attempt has its own first checkpoint?
//!
//! A node that was cut off may write into it although its attempt is dead: its kernel sends what it had not sent when the
//! network returns. That cannot be prevented, so it is found. What the attempt itself does to it is no such change.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use fleet_core::checkpoint::Content;

use super::super::list::{Comparison, FileList, LIST_BYTES_MAX, list_path};
use super::super::openfd::open_for_writing;
use super::super::rules::OpenForWriting;
use super::super::tree::Tree;
use super::super::whole;
use super::Watcher;
use super::keeper::Who;
use fleet_user::op::watch::{CountedBefore, OriginFate, ResumedFrom, WatchLine};
use fleet_user::op::{FileStat, Reply};
use fleet_user::ops;

/// If a deletion file by file stands still this long, in milliseconds, it is no deletion.
const DELETION_STILL_MAX_MS: u64 = 60_000;

/// Followed until its fate is said.
#[derive(Debug)]
pub(super) struct Origin {
    from: ResumedFrom,
    place: PathBuf,
    list: FileList,
    /// This node's kernel told of a write into it: that is the attempt's own.
    written_here: bool,
    /// The attempt has its own first checkpoint.
    due: bool,
    /// Files that were left of it, and since when.
    left: Option<(usize, u64)>,
}

impl Origin {
    /// None where the list is not there any more: nothing can be compared.
    pub(super) fn of(dir: &Path, job: &str, from: &ResumedFrom) -> Option<Self> {
        let text = ops::read_file(&list_path(dir, job, &from.list), LIST_BYTES_MAX).ok()?;
        let Reply::Text(text) = text else { return None };
        let list = FileList::from_text(&text, &from.list)?;
        let (from, place) = (from.clone(), dir.join(&from.path));
        Some(Self { from, place, list, written_here: false, due: false, left: None })
    }

    pub(super) fn path(&self) -> &str {
        &self.from.path
    }

    pub(super) fn list(&self) -> &FileList {
        &self.list
    }

    pub(super) fn may_link(&self) -> bool {
        self.from.may_link
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The attempt wrote into it: what counts there now is the same file or directory, with other content.
    pub(super) fn is_overwritten_by(&self, path: &str, ino: u64, list: Option<&FileList>) -> bool {
        let same = self.from.path == path && self.from.ino == ino;
        same && list.is_some_and(|list| list.rewrites(&self.list))
    }

    /// Something on this node wrote at that path.
    fn note_event(&mut self, path: &str) {
        let below = path.strip_prefix(&self.from.path);
        self.written_here |= below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    }

    /// What became of it; none while a deletion may be under way. `at_end`: no process of the attempt is left.
    fn fate(&mut self, now_ms: u64, at_end: bool) -> Option<OriginFate> {
        let compared = self.list.compare(&self.place);
        if compared == Comparison::Same {
            return Some(OriginFate::Same);
        }
        if self.written_here || self.is_being_written() {
            return Some(OriginFate::Gone);
        }
        let changed = |why: String, content: Content| Some(OriginFate::Changed { why, content });
        match compared {
            Comparison::Same => Some(OriginFate::Same),
            Comparison::Missing { why } => match self.is_being_deleted(now_ms) {
                Deletion::Done => Some(OriginFate::Gone),
                Deletion::UnderWay if at_end => Some(OriginFate::Gone),
                Deletion::UnderWay => None,
                Deletion::StandsStill => changed(why.clone(), Content::Torn { why }),
            },
            Comparison::Torn { why } => changed(why.clone(), Content::Torn { why }),
            Comparison::Touched { why } => changed(why, whole::check(&self.place)),
        }
    }

    /// A process of this node has one of its files open for writing.
    fn is_being_written(&self) -> bool {
        let own = std::fs::symlink_metadata(&self.place).ok().map(|meta| FileStat::from(&meta));
        let below = Tree::read(&self.place).unwrap_or_default().entries;
        let below = below.iter().map(|entry| (entry.dev, entry.ino));
        let files: HashSet<_> = own.iter().map(|stat| (stat.dev, stat.ino)).chain(below).collect();
        open_for_writing(&files) == OpenForWriting::Yes
    }

    fn is_being_deleted(&mut self, now_ms: u64) -> Deletion {
        if std::fs::symlink_metadata(&self.place).is_err() {
            return Deletion::Done;
        }
        let left = Tree::read(&self.place).map_or(0, |tree| tree.entries.len());
        let (_, since_ms) = self.left.filter(|(n, _)| *n == left).unwrap_or((left, now_ms));
        self.left = Some((left, since_ms));
        match now_ms.saturating_sub(since_ms) < DELETION_STILL_MAX_MS {
            true => Deletion::UnderWay,
            false => Deletion::StandsStill,
        }
    }
}

enum Deletion {
    Done,
    UnderWay,
    StandsStill,
}

impl<W: Write> Watcher<'_, W> {
    /// The kernel tells of writes into it, where it is a directory, although nothing in it counts by itself. `own`: what
    /// the attempt has saved before this helper began.
    pub(super) fn watch_origin(&mut self, own: &[CountedBefore]) {
        let Some(origin) = &mut self.origin else { return };
        origin.due = !own.is_empty();
        origin.written_here = own.iter().any(|one| one.path == origin.path());
        let path = origin.path().to_owned();
        let full = self.dir.join(&path);
        if full.is_dir() {
            // If it cannot be watched, a change is reported as another writer's; the owner can judge it.
            drop(self.watch_dir(&path, &full));
        }
    }

    pub(super) fn origin_event(&mut self, path: &str) {
        if let Some(origin) = &mut self.origin {
            origin.note_event(path);
        }
    }

    /// The attempt has a checkpoint of its own; none: the job told of it. `is_kept`: and it is about to be kept.
    pub(super) fn own_counted(&mut self, path: Option<&str>, is_kept: bool) -> std::io::Result<()> {
        let Some(origin) = &mut self.origin else { return Ok(()) };
        origin.due = true;
        if path != Some(origin.path()) {
            return self.compare_origin(false);
        }
        let Some(origin) = self.origin.take() else { return Ok(()) };
        if is_kept && self.keeper.holds(origin.path(), Who::Origin) {
            // It is lost when the new one is kept in its place.
            return Ok(());
        }
        self.keeper.discard_origin(&origin.from.path, origin.list);
        self.say(&WatchLine::Origin(OriginFate::Gone))
    }

    /// Says what became of it, once, when the attempt has its own first checkpoint.
    pub(super) fn compare_origin(&mut self, at_end: bool) -> std::io::Result<()> {
        let now_ms = self.now().monotonic_ms;
        let Some(origin) = self.origin.as_mut().filter(|origin| origin.due) else { return Ok(()) };
        let Some(fate) = origin.fate(now_ms, at_end) else { return Ok(()) };
        if let Some(origin) = self.origin.take() {
            // Nobody needs its kept instance any more.
            self.keeper.discard_origin(&origin.from.path, origin.list);
        }
        self.say(&WatchLine::Origin(fate))
    }
}
