//! The half of checkpoint observation that runs as the user, in a helper process of its own.
//!
//! It watches the checkpoint directory with inotify and scans it now and then (inotify loses events when its queue
//! overflows, and sees nothing of what other machines do on NFS). It says what is complete, one JSON line each, and says
//! `alive` in between, so that the agent can tell a quiet directory from a hung file system. It ends when its stdin
//! closes, after a last look: then the job has no process left that could still write. It never numbers anything and
//! never writes a file.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use serde::{Deserialize, Serialize};

use super::openfd::open_for_writing;
use super::rules::{FileId, Now, OpenForWriting, Pattern, Settle, Sighting, Tracker};
use crate::user::helper::answer;
use crate::user::op::{FileKind, FileStat, OpError, OpErrorKind};

/// Most directories watched below one checkpoint directory.
pub const DIRS_MAX: usize = 1024;
/// Most entries looked at in one scan.
pub const SCAN_ENTRIES_MAX: usize = 100_000;
/// Most entries looked at inside one directory checkpoint.
const TREE_ENTRIES_MAX: usize = 100_000;

/// The waiting times of observation, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// How long a file that was written in place and closed must keep still.
    pub settle_closed_ms: u64,
    /// How long a file must keep still when nobody was seen closing it.
    pub settle_scanned_ms: u64,
    /// The same, when it is not known whether it is still open.
    pub settle_unknown_ms: u64,
    /// How often the directory is scanned.
    pub scan_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            settle_closed_ms: 2_000,
            settle_scanned_ms: 10_000,
            settle_unknown_ms: 60_000,
            scan_ms: 10_000,
        }
    }
}

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    pub dir: PathBuf,
    pub pattern: String,
    pub timings: Timings,
    /// Report what is there now as [`WatchLine::Before`] and count none of it.
    pub baseline: bool,
    /// File states that are not new.
    pub known: Vec<FileId>,
}

/// What the helper says, one per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchLine {
    /// There before the attempt.
    Before(FileId),
    /// All of `Before` was said; from now on everything new counts.
    Ready,
    Seen(SeenLine),
    /// Something is not looked at because of a limit.
    Limited {
        what: String,
    },
    /// The directory cannot be watched now; it is tried again with each scan.
    Problem(OpError),
    Alive,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenLine {
    /// Relative to the checkpoint directory.
    pub path: String,
    pub id: FileId,
    pub size_bytes: u64,
    pub completed_at_unix_ms: u64,
}

/// Watches until stdin closes.
pub(crate) fn serve(request: &WatchRequest, output: &mut impl Write) -> std::io::Result<()> {
    let pattern = match Pattern::new(&request.pattern) {
        Ok(pattern) => pattern,
        Err(error) => {
            let error = OpError::new(OpErrorKind::Other, &request.dir, error.to_string());
            return answer(output, &WatchLine::Problem(error));
        }
    };
    let settle = Settle {
        closed_ms: request.timings.settle_closed_ms,
        scanned_ms: request.timings.settle_scanned_ms,
        unknown_ms: request.timings.settle_unknown_ms,
    };
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let mut watcher = Watcher {
        dir: request.dir.clone(),
        pattern,
        tracker: Tracker::new(settle, request.known.iter().copied().collect()),
        inotify,
        watched: HashMap::new(),
        started: Instant::now(),
        limited_said: false,
        output,
    };
    watcher.run(request.baseline, request.timings.scan_ms)
}

struct Watcher<'a, W> {
    dir: PathBuf,
    pattern: Pattern,
    tracker: Tracker,
    inotify: Inotify,
    /// Watched directories, relative to `dir`; the top is "".
    watched: HashMap<WatchDescriptor, String>,
    started: Instant,
    limited_said: bool,
    output: &'a mut W,
}

impl<W: Write> Watcher<'_, W> {
    fn run(&mut self, baseline: bool, scan_ms: u64) -> std::io::Result<()> {
        self.scan(if baseline { Purpose::Baseline } else { Purpose::Look })?;
        self.say(&WatchLine::Ready)?;
        let mut next_scan_ms = self.now().monotonic_ms + scan_ms;
        loop {
            let now_ms = self.now().monotonic_ms;
            let wake_ms = self.tracker.next_due_ms().unwrap_or(u64::MAX).min(next_scan_ms);
            // At least a little pause: a file that stays due (still open) must not turn this into a spin.
            if !self.wait(wake_ms.saturating_sub(now_ms).clamp(20, scan_ms.max(20)))? {
                return self.last_look();
            }
            self.take_events()?;
            self.settle(&self.tracker.due(self.now()))?;
            if self.now().monotonic_ms >= next_scan_ms {
                self.scan(Purpose::Look)?;
                self.say(&WatchLine::Alive)?;
                next_scan_ms = self.now().monotonic_ms + scan_ms;
            }
        }
    }

    /// What its writer has closed needs no time to keep still any more.
    fn last_look(&mut self) -> std::io::Result<()> {
        self.take_events()?;
        self.scan(Purpose::Look)?;
        self.settle(&self.tracker.closed())
    }

    /// Waits for events; false when the agent has closed our stdin.
    fn wait(&self, wait_ms: u64) -> std::io::Result<bool> {
        let stdin = std::io::stdin();
        let mut fds = [
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = PollTimeout::try_from(wait_ms).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(!fds[1].any().unwrap_or(false))
    }

    fn take_events(&mut self) -> std::io::Result<()> {
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            for event in events {
                self.take_event(&event)?;
            }
        }
    }

    fn take_event(&mut self, event: &InotifyEvent) -> std::io::Result<()> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return self.scan(Purpose::Look);
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.watched.remove(&event.wd);
            return Ok(());
        }
        let (Some(parent), Some(name)) = (self.watched.get(&event.wd), event.name.as_ref()) else {
            return Ok(());
        };
        let Some(name) = name.to_str() else { return Ok(()) };
        let path = join(parent, name);
        if super::rules::never_counts(&path) {
            return Ok(());
        }
        let moved = event.mask.contains(AddWatchFlags::IN_MOVED_TO);
        if event.mask.contains(AddWatchFlags::IN_ISDIR) {
            return self.dir_appeared(&path, moved);
        }
        if !self.pattern.matches(&path) {
            return Ok(());
        }
        // A file that only appeared is about to be written, or a hard link: the settle rule tells which.
        let how = if moved {
            Sighting::Moved
        } else if event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE) {
            Sighting::Closed
        } else {
            Sighting::Scanned
        };
        self.look_at(&path, how)
    }

    fn dir_appeared(&mut self, path: &str, moved: bool) -> std::io::Result<()> {
        if moved && self.pattern.matches(path) {
            self.look_at(path, Sighting::Moved)?;
        }
        if depth(path) <= self.pattern.depth() {
            let mut budget = SCAN_ENTRIES_MAX;
            self.scan_dir(path, if moved { Purpose::Moved } else { Purpose::Look }, &mut budget)?;
        }
        Ok(())
    }

    /// Stats one matching path and lets the tracker decide.
    fn look_at(&mut self, path: &str, how: Sighting) -> std::io::Result<()> {
        let Some(stat) = self.stat(path) else { return Ok(()) };
        let now = self.now();
        let id = FileId::of(&stat);
        if self.tracker.is_known(&id) {
            return Ok(());
        }
        let how = match stat.kind {
            FileKind::File => how,
            FileKind::Dir if how == Sighting::Moved || self.was_renamed(path, &stat) => how,
            FileKind::Dir | FileKind::Other => return Ok(()),
        };
        match self.tracker.sighted(path, id, how, now) {
            Some(completed_at_unix_ms) => self.seen(path, &stat, completed_at_unix_ms),
            None => Ok(()),
        }
    }

    fn settle(&mut self, paths: &[String]) -> std::io::Result<()> {
        for path in paths {
            let stat = self
                .stat(path)
                .filter(|stat| stat.kind != FileKind::Dir || self.was_renamed(path, stat));
            let open = match &stat {
                Some(stat) if stat.kind == FileKind::File => open_for_writing(stat.dev, stat.ino),
                _ => OpenForWriting::No,
            };
            let completed =
                self.tracker.settled(path, stat.as_ref().map(FileId::of), open, self.now());
            if let (Some(completed_at_unix_ms), Some(stat)) = (completed, stat) {
                self.seen(path, &stat, completed_at_unix_ms)?;
            }
        }
        Ok(())
    }

    fn seen(
        &mut self,
        path: &str,
        stat: &FileStat,
        completed_at_unix_ms: u64,
    ) -> std::io::Result<()> {
        let size_bytes = match stat.kind {
            FileKind::Dir => tree(&self.dir.join(path)).map_or(0, |tree| tree.bytes),
            FileKind::File | FileKind::Other => stat.size_bytes,
        };
        let path = path.to_owned();
        self.say(&WatchLine::Seen(SeenLine {
            path,
            id: FileId::of(stat),
            size_bytes,
            completed_at_unix_ms,
        }))
    }

    /// A directory found by scanning was renamed into place if its own change time is later than its last entry and
    /// nothing in it is newer: rename sets the change time of the directory, filling it sets both.
    fn was_renamed(&self, path: &str, stat: &FileStat) -> bool {
        stat.ctime_ns > stat.mtime_ns
            && tree(&self.dir.join(path))
                .is_some_and(|tree| tree.entries > 0 && tree.newest_ns <= stat.ctime_ns)
    }

    fn scan(&mut self, purpose: Purpose) -> std::io::Result<()> {
        let mut budget = SCAN_ENTRIES_MAX;
        self.scan_dir("", purpose, &mut budget)
    }

    /// Watches a directory, then lists it: in this order nothing falls between.
    fn scan_dir(
        &mut self,
        relative: &str,
        purpose: Purpose,
        budget: &mut usize,
    ) -> std::io::Result<()> {
        let full = self.dir.join(relative);
        if let Err(error) = self.watch_dir(relative, &full) {
            return if relative.is_empty() { self.say(&WatchLine::Problem(error)) } else { Ok(()) };
        }
        let Ok(entries) = std::fs::read_dir(&full) else { return Ok(()) };
        for entry in entries.flatten() {
            if *budget == 0 {
                return self.limited(format!(
                    "more than {SCAN_ENTRIES_MAX} files in {}",
                    self.dir.display()
                ));
            }
            *budget -= 1;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let path = join(relative, name);
            if super::rules::never_counts(&path) {
                continue;
            }
            if self.pattern.matches(&path) {
                self.scanned(&path, purpose)?;
            }
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && depth(&path) <= self.pattern.depth() {
                self.scan_dir(&path, purpose, budget)?;
            }
        }
        Ok(())
    }

    fn scanned(&mut self, path: &str, purpose: Purpose) -> std::io::Result<()> {
        match purpose {
            Purpose::Look => self.look_at(path, Sighting::Scanned),
            Purpose::Moved => self.look_at(path, Sighting::Moved),
            Purpose::Baseline => {
                let Some(stat) = self.stat(path) else { return Ok(()) };
                let id = FileId::of(&stat);
                self.tracker.add_known(id);
                self.say(&WatchLine::Before(id))
            }
        }
    }

    fn watch_dir(&mut self, relative: &str, full: &Path) -> Result<(), OpError> {
        if self.watched.len() >= DIRS_MAX && !self.watched.values().any(|known| known == relative) {
            let what = format!("more than {DIRS_MAX} directories in {}", self.dir.display());
            // Said once; the scan still looks into them.
            let _agent_gone = self.limited(what);
            return Ok(());
        }
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        match self.inotify.add_watch(full, events) {
            Ok(watch) => {
                self.watched.insert(watch, relative.to_owned());
                Ok(())
            }
            Err(errno) => Err(OpError::io(full, &errno.into())),
        }
    }

    /// Never follows a link: what it names is counted where it lies.
    fn stat(&self, path: &str) -> Option<FileStat> {
        let meta = std::fs::symlink_metadata(self.dir.join(path)).ok()?;
        (!meta.is_symlink()).then(|| FileStat::from(&meta))
    }

    fn limited(&mut self, what: String) -> std::io::Result<()> {
        if std::mem::replace(&mut self.limited_said, true) {
            return Ok(());
        }
        self.say(&WatchLine::Limited { what })
    }

    fn say(&mut self, line: &WatchLine) -> std::io::Result<()> {
        answer(self.output, line)
    }

    fn now(&self) -> Now {
        let ms =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Now {
            monotonic_ms: ms(self.started.elapsed()),
            unix_ms: ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Everything found was there before.
    Baseline,
    Look,
    /// Inside a directory that was renamed into place.
    Moved,
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// How many directories a path goes through, itself included when it is one.
fn depth(path: &str) -> usize {
    path.matches('/').count() + 1
}

struct Tree {
    entries: usize,
    bytes: u64,
    newest_ns: i64,
}

/// Sums up what is inside a directory; `None` when it is too large or cannot be read.
fn tree(top: &Path) -> Option<Tree> {
    let mut sum = Tree { entries: 0, bytes: 0, newest_ns: 0 };
    let mut todo = vec![top.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).ok()? {
            let entry = entry.ok()?;
            let stat = FileStat::from(&entry.metadata().ok()?);
            sum.entries += 1;
            if sum.entries > TREE_ENTRIES_MAX {
                return None;
            }
            sum.newest_ns = sum.newest_ns.max(stat.ctime_ns);
            if stat.kind == FileKind::Dir {
                todo.push(entry.path());
            } else {
                sum.bytes = sum.bytes.saturating_add(stat.size_bytes);
            }
        }
    }
    Some(sum)
}
