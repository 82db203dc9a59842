//! The half of checkpoint observation that runs as the user, in a helper process of its own.
//!
//! It watches the checkpoint directory with inotify and scans it now and then (inotify loses events when its queue
//! overflows, and sees nothing of what other machines do on NFS). It says what is complete, one JSON line each, and says
//! `alive` in between, so that the agent can tell a quiet directory from a hung file system. It ends when its stdin
//! closes, after a last look: then the job has no process left that could still write. It never numbers anything; of
//! files it writes only the lists in `.fleet/JOB/`.
//!
//! [`op::watch`](fleet_user::op::watch) is what both sides say, [`filling`] directories that are not complete yet, [`complete`] the last steps before
//! one counts, [`counted`] what becomes of those that did, [`origin`] what becomes of the one that was resumed from,
//! [`keeper`] keeps the last whole one beside. Which names and files make a checkpoint is `rules`.

pub(in crate::checkpoint) mod complete;
mod counted;
mod filling;
mod keeper;
mod look;
mod origin;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fleet_core::checkpoint::RuleChoice;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::rules::tracker::CANDIDATES_MAX;
use super::rules::{FileId, Now, Pattern, Settle, Sighting, Tracker, never_counts};
use super::tree::Tree;
use counted::Register;
use filling::FillingDirs;
pub use fleet_user::op::watch::{
    CountedBefore, OriginFate, ResumedFrom, SeenLine, Timings, WatchLine, WatchRequest,
};
pub(in crate::checkpoint) use fleet_user::op::watch::{ENDING, TOLD};
use fleet_user::op::{FileStat, OpError, OpErrorKind, answer};
use keeper::Keeper;
use origin::Origin;

/// Most directories watched below one checkpoint directory.
pub const DIRS_MAX: usize = 1024;
/// Most entries checked in one scan.
pub const SCAN_ENTRIES_MAX: usize = 100_000;
/// Without a pattern: how many levels of directories are looked into. Lightning's default is three below its root.
const DEPTH_WITHOUT_PATTERN: usize = 4;
/// A file in a directory that appeared so lately was put there with it.
const JUST_APPEARED_NS: i64 = 2_000_000_000;

/// Watches until stdin closes.
pub(crate) fn serve(request: &WatchRequest, output: &mut impl Write) -> std::io::Result<()> {
    let pattern = match request.pattern.as_deref().map(Pattern::new).transpose() {
        Ok(pattern) => pattern,
        Err(error) => {
            let error = OpError::new(OpErrorKind::Other, &request.dir, error.to_string());
            return answer(output, &WatchLine::Problem(error));
        }
    };
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let mut watcher = watcher(request, pattern, inotify, output);
    watcher.watch_origin(&request.counted);
    watcher.keep_origin();
    watcher.run(request.baseline, request.timings.scan_ms)
}

/// What a look into the directory finds complete, with nobody left who writes.
pub(in crate::checkpoint) fn found_by_a_look(request: &WatchRequest) -> Vec<SeenLine> {
    let Ok(pattern) = request.pattern.as_deref().map(Pattern::new).transpose() else {
        return Vec::new();
    };
    let Ok(inotify) = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC) else {
        return Vec::new();
    };
    let mut said = Vec::new();
    let mut watcher = watcher(request, pattern, inotify, &mut said);
    watcher.ending = true;
    // Writing into memory cannot fail.
    let looked = watcher
        .scan(Purpose::Search)
        .and_then(|()| watcher.look_into(&watcher.filling.all()))
        .and_then(|()| watcher.settle(&watcher.tracker.closed()));
    drop(watcher);
    let lines = said.split(|byte| *byte == b'\n').filter(|_| looked.is_ok());
    let seen = lines.filter_map(|line| match serde_json::from_slice(line) {
        Ok(WatchLine::Seen(seen)) => Some(*seen),
        Ok(_) | Err(_) => None,
    });
    seen.collect()
}

fn watcher<'a, W: Write>(
    request: &WatchRequest,
    pattern: Option<Pattern>,
    inotify: Inotify,
    output: &'a mut W,
) -> Watcher<'a, W> {
    let settle = Settle {
        closed_ms: request.timings.settle_closed_ms,
        scanned_ms: request.timings.settle_scanned_ms,
        unknown_ms: request.timings.settle_unknown_ms,
    };
    let mut keeper = Keeper::new(&request.dir, &request.job, request.attempt, request.keep_copy);
    let register = Register::before(&request.dir, &request.job, &request.counted, &mut keeper);
    Watcher {
        dir: request.dir.clone(),
        folder: request.folder.clone(),
        job: request.job.clone(),
        rule: request.rule.clone(),
        others_dead: request.others_dead,
        timings: request.timings,
        pattern,
        tracker: Tracker::new(settle, request.known.iter().copied().collect()),
        filling: FillingDirs::default(),
        register,
        keeper,
        origin: (request.origin.as_ref())
            .and_then(|from| Origin::of(&request.dir, &request.job, from)),
        local: HashSet::new(),
        noted: HashSet::new(),
        a_directory_counted: false,
        listing_left: SCAN_ENTRIES_MAX,
        ending: false,
        inotify,
        watched: HashMap::new(),
        started: Instant::now(),
        limited_said: false,
        output,
    }
}

struct Watcher<'a, W> {
    dir: PathBuf,
    /// All that is looked into; the whole of `dir` where it is empty.
    folder: String,
    job: String,
    rule: RuleChoice,
    others_dead: bool,
    timings: Timings,
    pattern: Option<Pattern>,
    tracker: Tracker,
    filling: FillingDirs,
    register: Register,
    origin: Option<Origin>,
    keeper: Keeper,
    /// Paths of which this node's kernel told: no other machine wrote them.
    local: HashSet<String>,
    /// Kinds of notes that were said.
    noted: HashSet<&'static str>,
    /// Without a pattern: a directory counted, so lone files are parts of something.
    a_directory_counted: bool,
    /// Files that the first listing may still look at. Where there are more, nothing counts without a pattern: a start does
    /// not wait for a large directory.
    listing_left: usize,
    /// The attempt is being stopped, or has ended.
    ending: bool,
    inotify: Inotify,
    /// Watched directories, relative to `dir`; `dir` itself is "".
    watched: HashMap<WatchDescriptor, String>,
    started: Instant,
    limited_said: bool,
    output: &'a mut W,
}

/// What woke the watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Events,
    /// The agent says that the attempt is being stopped.
    Ending,
    /// The agent says that a checkpoint of which the job told counts.
    Told,
    /// The agent has closed our stdin.
    Closed,
}

impl<W: Write> Watcher<'_, W> {
    fn run(&mut self, baseline: bool, scan_ms: u64) -> std::io::Result<()> {
        self.scan(if baseline { Purpose::Baseline } else { Purpose::Look })?;
        self.say(&WatchLine::Ready)?;
        let mut next_scan_ms = self.now().monotonic_ms + scan_ms;
        loop {
            let now_ms = self.now().monotonic_ms;
            let due_ms = [self.tracker.next_due_ms(), self.filling.next_due_ms()];
            let wake_ms = due_ms.into_iter().flatten().min().unwrap_or(u64::MAX).min(next_scan_ms);
            // At least a little pause: a file that stays due (still open) must not turn this into a spin.
            match self.wait(wake_ms.saturating_sub(now_ms).clamp(20, scan_ms.max(20)))? {
                Woken::Closed => return self.last_look(),
                Woken::Ending => self.begin_to_end()?,
                Woken::Told => self.own_counted(None, false)?,
                Woken::Events => {}
            }
            self.take_events()?;
            self.look_into(&self.filling.due(self.now().monotonic_ms))?;
            self.settle(&self.tracker.due(self.now()))?;
            self.take_kept()?;
            if self.now().monotonic_ms >= next_scan_ms {
                self.scan(Purpose::Look)?;
                self.say_gone(false)?;
                self.compare_origin(false)?;
                self.say(&WatchLine::Alive)?;
                next_scan_ms = self.now().monotonic_ms + scan_ms;
            }
        }
    }

    /// What has kept still by now counts as always; what comes later was perhaps cut by the stop.
    fn begin_to_end(&mut self) -> std::io::Result<()> {
        self.take_events()?;
        self.look_into(&self.filling.due(self.now().monotonic_ms))?;
        self.settle(&self.tracker.due(self.now()))?;
        self.ending = true;
        Ok(())
    }

    /// Its writers are gone, but a close by their death is no completion: what has not kept still counts only where it is
    /// whole.
    fn last_look(&mut self) -> std::io::Result<()> {
        self.begin_to_end()?;
        self.scan(Purpose::Look)?;
        self.look_into(&self.filling.all())?;
        self.settle(&self.tracker.closed())?;
        self.take_kept()?;
        self.say_gone(true)?;
        self.compare_origin(true)
    }

    fn wait(&self, wait_ms: u64) -> std::io::Result<Woken> {
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
        if !fds[1].any().unwrap_or(false) {
            return Ok(Woken::Events);
        }
        // Each line has one meaning, and all have one length; the end of the input means another thing.
        let mut line = [0; ENDING.len()];
        // The code that read the request still holds the lock on standard input, so this reads the descriptor.
        match nix::unistd::read(stdin.as_fd(), &mut line)? {
            0 => Ok(Woken::Closed),
            _ if line == *TOLD.as_bytes() => Ok(Woken::Told),
            _ => Ok(Woken::Ending),
        }
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
        let moved = event.mask.contains(AddWatchFlags::IN_MOVED_TO);
        self.origin_event(&path);
        // A marker may have a hidden name, such as `.metadata`.
        self.touch_parents(&path);
        if never_counts(&path) {
            return Ok(());
        }
        if event.mask.contains(AddWatchFlags::IN_ISDIR) {
            return self.dir_appeared(&path, moved);
        }
        if !self.may_be_a_file_checkpoint(&path) {
            return Ok(());
        }
        self.is_local(&path);
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

    /// This node's kernel told of it. Only asked for where an earlier attempt may still write.
    fn is_local(&mut self, path: &str) {
        if !self.others_dead && self.local.len() < CANDIDATES_MAX {
            self.local.insert(path.to_owned());
        }
    }

    /// Something happened below these directories, so each may be complete now.
    fn touch_parents(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at);
        for parent in ends.map(|end| &path[..end]) {
            if !never_counts(parent) && self.may_be_a_dir_checkpoint(parent) {
                self.touch(parent);
            }
        }
    }

    /// Something happened in it.
    fn touch(&mut self, path: &str) {
        let now_ms = self.now().monotonic_ms;
        self.filling.touch(path, now_ms);
    }

    /// A scan found it; nothing says that anything happened in it.
    fn follow(&mut self, path: &str) {
        let now_ms = self.now().monotonic_ms;
        self.filling.follow(path, now_ms);
    }

    fn dir_appeared(&mut self, path: &str, moved: bool) -> std::io::Result<()> {
        if self.may_be_a_dir_checkpoint(path) {
            self.is_local(path);
            if moved {
                self.judge_dir(path, true)?;
            }
            self.touch(path);
        }
        if self.is_looked_into(path) || self.may_be_a_dir_checkpoint(path) {
            let mut budget = SCAN_ENTRIES_MAX;
            let purpose = if moved { Purpose::Moved } else { Purpose::Appeared };
            self.scan_dir(path, purpose, &mut budget)?;
        }
        Ok(())
    }

    /// Whether a file of this name can be a checkpoint by itself.
    fn may_be_a_file_checkpoint(&self, path: &str) -> bool {
        let Some(path) = self.inside(path) else { return false };
        match &self.pattern {
            Some(pattern) => pattern.outermost(path) == Some(path),
            None => {
                self.listing_left > 0
                    && depth(path) <= self.depth() + 1
                    && !super::rules::parts::is_part(path)
            }
        }
    }

    fn may_be_a_dir_checkpoint(&self, path: &str) -> bool {
        let Some(path) = self.inside(path) else { return false };
        match &self.pattern {
            Some(pattern) => pattern.outermost(path) == Some(path),
            None => self.listing_left > 0 && depth(path) <= self.depth(),
        }
    }

    /// The path within the folder that is looked into.
    fn inside<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.folder.as_str() {
            "" => Some(path),
            folder => path.strip_prefix(folder)?.strip_prefix('/'),
        }
    }

    fn is_looked_into(&self, path: &str) -> bool {
        self.inside(path).is_some_and(|path| depth(path) <= self.depth())
    }

    /// How many levels of directories are looked into.
    fn depth(&self) -> usize {
        self.pattern.as_ref().map_or(DEPTH_WITHOUT_PATTERN, Pattern::depth)
    }

    fn scan(&mut self, purpose: Purpose) -> std::io::Result<()> {
        let (mut budget, began_ms) = (SCAN_ENTRIES_MAX, self.now().monotonic_ms);
        self.scan_dir(&self.folder.clone(), purpose, &mut budget)?;
        self.tracker.found_together(began_ms, self.now());
        Ok(())
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
            return match relative == self.folder {
                true => self.say(&WatchLine::Problem(error)),
                false => Ok(()),
            };
        }
        let Ok(entries) = std::fs::read_dir(&full) else { return Ok(()) };
        let mut entries: Vec<_> = entries.flatten().take(SCAN_ENTRIES_MAX).collect();
        if matches!(purpose, Purpose::Appeared | Purpose::Moved | Purpose::Search) {
            // What counts at once gets its number in the order in which it was put there.
            entries.sort_by_cached_key(|entry| {
                entry.metadata().map_or(0, |meta| FileStat::from(&meta).ctime_ns)
            });
        }
        for entry in entries {
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
            if never_counts(&path) {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.scanned_dir(&path, purpose, budget)?;
            } else if self.may_be_a_file_checkpoint(&path) {
                self.scanned_file(&path, purpose)?;
            }
        }
        Ok(())
    }

    fn scanned_dir(
        &mut self,
        path: &str,
        purpose: Purpose,
        budget: &mut usize,
    ) -> std::io::Result<()> {
        if self.may_be_a_dir_checkpoint(path) {
            match purpose {
                Purpose::Baseline => self.dir_was_there(path)?,
                Purpose::Look => self.follow(path),
                Purpose::Appeared | Purpose::Search => self.touch(path),
                Purpose::Moved => {
                    self.judge_dir(path, true)?;
                    self.touch(path);
                }
            }
        }
        // Inside of a match nothing is a checkpoint of its own.
        let is_part = self.inside(path).zip(self.pattern.as_ref());
        let is_part = is_part.is_some_and(|(path, pattern)| pattern.outermost(path).is_some());
        if self.is_looked_into(path) && !is_part {
            self.scan_dir(path, purpose, budget)?;
        }
        Ok(())
    }

    fn scanned_file(&mut self, path: &str, purpose: Purpose) -> std::io::Result<()> {
        match purpose {
            Purpose::Look => self.look_at(path, Sighting::Scanned),
            Purpose::Moved | Purpose::Search => self.look_at(path, Sighting::Moved),
            Purpose::Appeared => self.look_at_appeared(path),
            Purpose::Baseline => {
                let Some((_, stat)) = self.stat(path) else { return Ok(()) };
                let id = FileId::of(&stat);
                self.tracker.add_known(id);
                self.say(&WatchLine::Before(id))
            }
        }
    }

    fn dir_was_there(&mut self, path: &str) -> std::io::Result<()> {
        let Some((_, stat)) = self.stat(path) else { return Ok(()) };
        if self.listing_left == 0 {
            return Ok(());
        }
        let tree = Tree::read(&self.dir.join(path));
        let entries = tree.as_ref().map_or(usize::MAX, |tree| tree.entries.len());
        self.listing_left = self.listing_left.saturating_sub(entries);
        if self.listing_left == 0 && self.pattern.is_none() {
            let what = format!(
                "more than {SCAN_ENTRIES_MAX} files in {}: only what a pattern names or the job tells counts",
                self.dir.display()
            );
            return self.limited(what);
        }
        let Some(tree) = tree else { return Ok(()) };
        let id = tree.id(&stat);
        self.tracker.add_known(id);
        // A later look must see that nothing was written since.
        self.register.add(path, id, None);
        self.say(&WatchLine::Before(id))
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

    /// The file or directory of that name. A link counts as the file it names, where that is in the same directory: its
    /// path is the one that comes back.
    fn stat(&self, path: &str) -> Option<(String, FileStat)> {
        let meta = std::fs::symlink_metadata(self.dir.join(path)).ok()?;
        if !meta.is_symlink() {
            return Some((path.to_owned(), FileStat::from(&meta)));
        }
        let target = std::fs::read_link(self.dir.join(path)).ok()?;
        let target = target.to_str().filter(|name| !name.contains('/') && !never_counts(name))?;
        let target = path.rsplit_once('/').map_or(target.to_owned(), |(dir, _)| join(dir, target));
        let meta = std::fs::symlink_metadata(self.dir.join(&target)).ok()?;
        // A link to a link is followed by nobody here.
        (!meta.is_symlink()).then(|| (target, FileStat::from(&meta)))
    }

    /// `at_end`: no process of the attempt is left that could still be writing.
    fn say_gone(&mut self, at_end: bool) -> std::io::Result<()> {
        for (id, kept) in self.register.gone(&self.dir, &self.keeper, at_end) {
            self.say(&if kept { WatchLine::Kept(id) } else { WatchLine::Gone(id) })?;
        }
        Ok(())
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

#[cfg(test)]
mod replay;
#[cfg(test)]
mod traces;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Everything found was there before.
    Baseline,
    Look,
    /// Inside a directory that was just made: its files may have been put there before it was watched.
    Appeared,
    /// Inside a directory that was renamed into place.
    Moved,
    /// A look long after all writers have ended.
    Search,
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// How many directories a path goes through, itself included when it is one.
fn depth(path: &str) -> usize {
    path.matches('/').count() + 1
}
