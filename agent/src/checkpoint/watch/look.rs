//! Looking at one file or directory, and counting it when it is complete.

use std::collections::HashSet;
use std::io::Write;

use fleet_core::checkpoint::{CheckpointNote, Content, Doubt, Rule, RuleChoice};

use super::super::list::FileList;
use super::super::openfd::open_for_writing;
use super::super::rules::{self, Candidate, FileId, OpenForWriting, Sighting};
use super::super::tree::Tree;
use super::super::whole;
use super::complete::find_out;
use super::filling::Look;
use super::keeper::Who;
use super::{JUST_APPEARED_NS, Watcher};
use fleet_user::op::watch::{SeenLine, WatchLine};
use fleet_user::op::{FileKind, FileStat};

/// After this time, in milliseconds, the owner gets a note about a directory that does not count.
const NOTE_AFTER_MS: u64 = 40_000;
/// After this time, in milliseconds, the owner gets a note about a directory that has its marker but keeps changing.
const RESTLESS_AFTER_MS: u64 = 600_000;

/// How something became complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By one rename: nobody can have cut it.
    Renamed,
    InPlace,
}

impl<W: Write> Watcher<'_, W> {
    /// Stats one file that may count and lets the tracker decide.
    pub(super) fn look_at(&mut self, path: &str, how: Sighting) -> std::io::Result<()> {
        let Some((path, stat)) = self.stat(path) else { return Ok(()) };
        if stat.kind == FileKind::Dir {
            // By a link: the directory counts by its own rule.
            self.touch(&path);
            return Ok(());
        }
        let id = FileId::of(&stat);
        if stat.kind == FileKind::Other || self.tracker.is_known(&id) {
            return Ok(());
        }
        if how == Sighting::Moved {
            return if self.is_meant(&path, &stat) {
                self.renamed(&path, id, stat)
            } else {
                Ok(())
            };
        }
        self.tracker.sighted(&path, id, how, self.now());
        Ok(())
    }

    fn renamed(&mut self, path: &str, id: FileId, stat: FileStat) -> std::io::Result<()> {
        let now = self.now();
        if self.may_be_a_part(path) {
            // It waits until the directory keeps still.
            self.tracker.sighted(path, id, Sighting::Closed, now);
            return Ok(());
        }
        match self.tracker.sighted(path, id, Sighting::Moved, now) {
            Some(at) => self.count(path, id, &stat, (Rule::File, Way::Renamed), at),
            None => Ok(()),
        }
    }

    /// A file in a directory that was just made. Its writer may have closed or renamed it before the directory was
    /// watched, so that nobody will tell; if it is whole and nobody is seen to have it open it counts now.
    pub(super) fn look_at_appeared(&mut self, path: &str) -> std::io::Result<()> {
        let Some((path, stat)) = self.stat(path) else { return Ok(()) };
        let now_ns =
            i64::try_from(self.now().unix_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let just_now = now_ns.saturating_sub(stat.ctime_ns).abs() < JUST_APPEARED_NS;
        let free = stat.kind == FileKind::File
            && stat.size_bytes > 0
            && just_now
            && open_for_writing(&HashSet::from([(stat.dev, stat.ino)])) != OpenForWriting::Yes;
        if !free {
            return self.look_at(&path, Sighting::Scanned);
        }
        self.is_local(&path);
        // A rename changes the file's own change time and not that of its content.
        let renamed = stat.ctime_ns > stat.mtime_ns;
        let whole = whole::check(&self.dir.join(&path)) == Content::Whole;
        self.look_at(&path, if renamed || whole { Sighting::Moved } else { Sighting::Closed })
    }

    /// Whether a file counts by itself: what the pattern names, else what is a checkpoint by its content.
    fn is_meant(&self, path: &str, stat: &FileStat) -> bool {
        let by_rule = match &self.rule {
            RuleChoice::Auto | RuleChoice::Only(Rule::File) => true,
            RuleChoice::Only(Rule::Lightning) => path.ends_with(".ckpt"),
            RuleChoice::Only(_) => false,
        };
        if !by_rule || self.pattern.is_some() {
            return by_rule;
        }
        let full = self.dir.join(path);
        !self.a_directory_counted
            && stat.size_bytes > 0
            && !full.with_file_name("config.json").exists()
            && whole::looks_like_a_checkpoint(&full)
    }

    /// Looks into directories that may be complete.
    pub(super) fn look_into(&mut self, paths: &[String]) -> std::io::Result<()> {
        // They get their numbers in the order in which they got their names.
        let mut dirs: Vec<(i64, &String)> =
            paths.iter().map(|path| (self.changed_ns(path), path)).collect();
        dirs.sort();
        for (_, path) in dirs {
            self.judge_dir(path, false)?;
        }
        Ok(())
    }

    /// When a file or directory got its name, or was changed last.
    pub(super) fn changed_ns(&self, path: &str) -> i64 {
        self.stat(path).map_or(0, |(_, stat)| stat.ctime_ns)
    }

    /// `moved`: it was renamed to its name just now, with everything in it.
    pub(super) fn judge_dir(&mut self, path: &str, moved: bool) -> std::io::Result<()> {
        let began_ms = self.now().monotonic_ms;
        let there = self.stat(path).filter(|(_, stat)| stat.kind == FileKind::Dir);
        let Some((_, stat)) = there else {
            self.filling.forget(path);
            return Ok(());
        };
        let Some(tree) = Tree::read(&self.dir.join(path)) else {
            // Too large to look into, or closed to us.
            self.filling.looked_at(path, FileId::of(&stat), self.look_since(began_ms));
            return Ok(());
        };
        let id = tree.id(&stat);
        if self.tracker.is_known(&id) || self.register.is_leftover(path, &tree) {
            // The watcher checks it less and less often, until something happens in it.
            self.filling.looked_at(path, id, self.look_since(began_ms));
            return Ok(());
        }
        let renamed = moved || was_renamed(&stat, &tree);
        let candidate = Candidate { path, tree: &tree, renamed, named: self.pattern.is_some() };
        let Some(rule) = rules::judge(&self.rule, candidate) else {
            return self.not_complete(candidate, id, began_ms);
        };
        self.filling.forget(path);
        let now = self.now();
        if renamed && matches!(rule, Rule::Orbax | Rule::RenamedDir) {
            return match self.tracker.sighted(path, id, Sighting::Moved, now) {
                Some(at) => self.count(path, id, &stat, (rule, Way::Renamed), at),
                None => Ok(()),
            };
        }
        self.tracker.sighted(path, id, Sighting::Filled, now);
        Ok(())
    }

    /// Has the directory checked again later; after some time its owner gets a note about it.
    fn not_complete(
        &mut self,
        of: Candidate<'_>,
        id: FileId,
        began_ms: u64,
    ) -> std::io::Result<()> {
        let followed_ms = self.filling.looked_at(of.path, id, self.look_since(began_ms));
        if followed_ms < NOTE_AFTER_MS || !of.named || of.tree.entries.is_empty() {
            return Ok(());
        }
        let (why, try_with) = rules::advice(&self.rule, of);
        self.note(CheckpointNote::NotCounted { path: of.path.to_owned(), why, try_with })
    }

    fn look_since(&self, began_ms: u64) -> Look {
        Look { began_ms, now_ms: self.now().monotonic_ms, again_ms: self.timings.scan_ms }
    }

    pub(super) fn note(&mut self, note: CheckpointNote) -> std::io::Result<()> {
        if self.noted.insert(note.kind()) { self.say(&WatchLine::Noted(note)) } else { Ok(()) }
    }

    /// Looks again at what may have kept still.
    pub(super) fn settle(&mut self, paths: &[String]) -> std::io::Result<()> {
        let mut files = Vec::new();
        for path in paths {
            match self.stat(path) {
                None => drop(self.tracker.settled(path, None, OpenForWriting::No, self.now())),
                Some((_, stat)) if stat.kind == FileKind::Dir => self.settle_dir(path, &stat)?,
                Some((_, stat)) => files.push((path, stat)),
            }
        }
        // After the directories: beside one that counts a lone file is a part of something.
        for (path, stat) in files {
            match stat.kind {
                FileKind::File => self.settle_file(path, &stat)?,
                FileKind::Dir | FileKind::Other => self.tracker.forget(path),
            }
        }
        Ok(())
    }

    fn settle_file(&mut self, path: &str, stat: &FileStat) -> std::io::Result<()> {
        if !self.is_meant(path, stat) {
            self.tracker.forget(path);
            return Ok(());
        }
        if !self.surroundings_are_quiet(path) {
            self.tracker.postpone(path, self.now());
            return Ok(());
        }
        let open = open_for_writing(&HashSet::from([(stat.dev, stat.ino)]));
        let id = FileId::of(stat);
        match self.tracker.settled(path, Some(id), open, self.now()) {
            Some(at) => self.count(path, id, stat, (Rule::File, Way::InPlace), at),
            None => Ok(()),
        }
    }

    /// Without a pattern a file in a sub-directory may be a part of what is still being written there.
    fn may_be_a_part(&self, path: &str) -> bool {
        self.pattern.is_none() && self.inside(path).is_some_and(|path| path.contains('/'))
    }

    fn surroundings_are_quiet(&self, path: &str) -> bool {
        let Some((parent, _)) = path.rsplit_once('/').filter(|_| self.may_be_a_part(path)) else {
            return true;
        };
        let Some(tree) = Tree::read(&self.dir.join(parent)) else { return false };
        let now_ns =
            i64::try_from(self.now().unix_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let quiet_ms = now_ns.saturating_sub(tree.newest_ns) / 1_000_000;
        self.ending || u64::try_from(quiet_ms).is_ok_and(|ms| ms >= self.timings.settle_unknown_ms)
    }

    fn settle_dir(&mut self, path: &str, stat: &FileStat) -> std::io::Result<()> {
        let Some(tree) = Tree::read(&self.dir.join(path)) else { return Ok(()) };
        let id = tree.id(stat);
        let candidate = Candidate {
            path,
            tree: &tree,
            renamed: was_renamed(stat, &tree),
            named: self.pattern.is_some(),
        };
        let Some(rule) = rules::judge(&self.rule, candidate) else {
            self.tracker.forget(path);
            self.touch(path);
            return Ok(());
        };
        let files: HashSet<_> = tree.entries.iter().map(|entry| (entry.dev, entry.ino)).collect();
        let open = open_for_writing(&files);
        let now = self.now();
        match self.tracker.settled(path, Some(id), open, now) {
            Some(at) => self.count(path, id, stat, (rule, Way::InPlace), at),
            None => self.restless(path, &tree),
        }
    }

    /// It has its marker and something in it keeps changing.
    fn restless(&mut self, path: &str, tree: &Tree) -> std::io::Result<()> {
        let Some(waited_ms) = self.tracker.waited_ms(path, self.now()) else { return Ok(()) };
        if waited_ms < RESTLESS_AFTER_MS {
            return Ok(());
        }
        let newest = tree.entries.iter().max_by_key(|entry| entry.mtime_ns);
        let what = newest.map_or("something in it", |entry| entry.name.as_str());
        let why = format!("{what} keeps changing");
        self.note(CheckpointNote::NotCounted { path: path.to_owned(), why, try_with: None })
    }

    /// Other ranks may have had files to add.
    fn is_short_of_files(&self, path: &str, stat: &FileStat) -> bool {
        stat.kind == FileKind::Dir
            && Tree::read(&self.dir.join(path))
                .is_none_or(|tree| self.register.lacks(path, &tree).is_some())
    }

    /// The last steps; what was cut does not count.
    fn count(
        &mut self,
        path: &str,
        id: FileId,
        stat: &FileStat,
        (rule, way): (Rule, Way),
        completed_at_unix_ms: u64,
    ) -> std::io::Result<()> {
        let content = whole::check(&self.dir.join(path));
        let good_enough = match (self.ending, way) {
            (false, _) => true,
            (true, Way::Renamed) => !content.is_torn(),
            (true, Way::InPlace) => {
                content == Content::Whole && !self.is_short_of_files(path, stat)
            }
        };
        if !good_enough {
            return Ok(());
        }
        let found = find_out(&self.dir, &self.job, path, content);
        let mut facts = found.facts;
        facts.rule = Some(rule);
        if !self.others_dead && !self.local.remove(path) {
            facts.doubt = Doubt::WriterUnknown;
        }
        self.a_directory_counted |= stat.kind == FileKind::Dir;
        let size_bytes = match stat.kind {
            FileKind::Dir => facts.list.as_ref().map_or(id.size_bytes, |list| list.bytes),
            FileKind::File | FileKind::Other => stat.size_bytes,
        };
        // One that a dead attempt's machine may have written is no sign of this attempt, and is not kept.
        let own = !facts.content.is_torn() && facts.doubt != Doubt::WriterUnknown;
        let list = found.list.clone().filter(|_| own);
        let over_origin = self.origin.as_ref();
        let over_origin =
            over_origin.is_some_and(|origin| origin.is_overwritten_by(path, id.ino, list.as_ref()));
        let replaced = self.register.add(path, id, found.list);
        let in_place = over_origin || replaced.as_ref().is_some_and(|before| before.in_place);
        let to_keep = list.filter(|_| in_place);
        let line = SeenLine { path: path.to_owned(), id, size_bytes, completed_at_unix_ms, facts };
        self.say(&WatchLine::Seen(Box::new(line)))?;
        if own {
            self.own_counted(Some(path), to_keep.is_some())?;
        }
        if let Some(before) = replaced {
            self.say_replaced(path, before.id, to_keep.is_some())?;
        }
        match to_keep {
            Some(list) => self.overwritten_in_place(path, id, list),
            None => Ok(()),
        }
    }

    /// The one that had the name is gone, unless it is kept: then it is lost when the new one is kept in its place.
    fn say_replaced(&mut self, path: &str, before: FileId, to_keep: bool) -> std::io::Result<()> {
        match (self.keeper.holds(path, Who::Own(before)), to_keep) {
            (true, true) => Ok(()),
            (true, false) => self.say(&WatchLine::Kept(before)),
            (false, _) => self.say(&WatchLine::Gone(before)),
        }
    }

    /// It is said once, and each time what counts now is kept for the time of the next save.
    fn overwritten_in_place(
        &mut self,
        path: &str,
        id: FileId,
        list: FileList,
    ) -> std::io::Result<()> {
        self.keeper.keep(path, Who::Own(id), list, false);
        self.note(CheckpointNote::OneName { path: path.to_owned() })
    }
}

/// A directory found by scanning was renamed into place if its own change time is later than its last entry and nothing
/// in it is newer: rename sets the change time of the directory, filling it sets both.
fn was_renamed(stat: &FileStat, tree: &Tree) -> bool {
    stat.ctime_ns > stat.mtime_ns && !tree.entries.is_empty() && tree.newest_ns <= stat.ctime_ns
}
