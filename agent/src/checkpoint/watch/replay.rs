//! Carries out recorded traces of real writers (`tests/frameworks/record.py`) on a real directory, while a watcher looks
//! on. `traces.rs` has the tests.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use fleet_core::checkpoint::RuleChoice;
use nix::sys::inotify::{InitFlags, Inotify};

use super::super::whole::tests::{safetensors_bytes, zip_bytes};
use super::*;

/// In memory: the replay flushes each checkpoint, and a disk would take most of the time.
const STAGE_DIR: &str = "/dev/shm";
const NEVER_MS: u64 = 3_600_000;
/// How long a file that was closed must keep still where the writer pauses, in milliseconds.
pub(super) const STILL_MS: u64 = 1;

/// One event. Paths are relative to the checkpoint directory; a path outside of it begins with `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    MakeDir(String),
    Open {
        path: String,
        empty: bool,
    },
    Write {
        path: String,
        from: usize,
        to: usize,
    },
    Resize(String, usize),
    Close(String),
    Rename(String, String),
    /// What the link contains, and its path.
    Link(String, String),
    Remove(String),
}

/// What one thread did.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) thread: String,
    pub(super) act: Act,
}

pub(super) fn parse(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in text.lines() {
        let (thread, words) = line.split_once(' ').unwrap();
        let words: Vec<&str> = words.split(' ').collect();
        let path = |at: usize| words[at].strip_prefix("/ck/").unwrap_or(words[at]).to_owned();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        let act = match words[0] {
            "mkdir" => Act::MakeDir(path(1)),
            "open" => Act::Open { path: path(1), empty: words.get(2) == Some(&"trunc") },
            "write" | "sendfile" => {
                Act::Write { path: path(1), from: number(2), to: number(2) + number(3) }
            }
            "truncate" => Act::Resize(path(1), number(2)),
            "close" => Act::Close(path(1)),
            "rename" => Act::Rename(path(1), path(2)),
            "symlink" => Act::Link(words[1].to_owned(), path(2)),
            "unlink" | "rmdir" => Act::Remove(path(1)),
            "fsync" => continue,
            other => panic!("{other}"),
        };
        steps.push(Step { thread: thread.to_owned(), act });
    }
    steps
}

/// Each write in two halves, so that a writer can die between them.
pub(super) fn halved(steps: Vec<Step>) -> Vec<Step> {
    let halves = |step: Step| match step.act {
        Act::Write { path, from, to } if to - from > 1 => {
            let middle = from + (to - from) / 2;
            let first = Act::Write { path: path.clone(), from, to: middle };
            let acts = [first, Act::Write { path, from: middle, to }];
            acts.map(|act| Step { thread: step.thread.clone(), act }).to_vec()
        }
        _ => vec![step],
    };
    steps.into_iter().flat_map(halves).collect()
}

/// A valid file of that name and length.
fn content(name: &str, len: usize) -> Vec<u8> {
    let fitted = |of: &dyn Fn(usize) -> Vec<u8>| {
        // The longer the number of its bytes, the longer the rest.
        let found = (0..=len).rev().map(of).find(|bytes| bytes.len() <= len).unwrap();
        assert_eq!(found.len(), len, "{name}");
        found
    };
    match name.rsplit('.').next().unwrap() {
        "safetensors" => fitted(&safetensors_bytes),
        "pt" | "pth" | "bin" | "ckpt" => {
            fitted(&|data| zip_bytes(&[("archive/data.pkl", 40), ("archive/data/0", data)]))
        }
        "json" => {
            // Cut anywhere it is no JSON.
            let mut bytes = b"{\"step\": \"".to_vec();
            bytes.resize(len - 2, b'4');
            bytes.extend(b"\"}");
            bytes
        }
        _ => vec![b'p'; len],
    }
}

/// What each file of the trace has in the end, by the name under which it is written.
fn contents(steps: &[Step]) -> BTreeMap<String, Vec<u8>> {
    let (mut lengths, mut finals) = (BTreeMap::<String, usize>::new(), BTreeMap::new());
    for step in steps {
        match &step.act {
            Act::Write { path, to, .. } => {
                let len = lengths.entry(path.clone()).or_default();
                *len = (*len).max(*to);
            }
            Act::Resize(path, len) => drop(lengths.insert(path.clone(), *len)),
            Act::Rename(from, to) => drop(finals.insert(from.clone(), to.clone())),
            Act::MakeDir(_) | Act::Open { .. } | Act::Close(_) | Act::Link(..) | Act::Remove(_) => {
            }
        }
    }
    let of = |(path, len): (String, usize)| {
        let name = finals.get(&path).unwrap_or(&path).clone();
        (path, content(&name, len))
    };
    lengths.into_iter().map(of).collect()
}

/// A directory in which a trace is carried out.
pub(super) struct Stage {
    pub(super) dir: tempfile::TempDir,
    outside: tempfile::TempDir,
    contents: Rc<BTreeMap<String, Vec<u8>>>,
    /// By the name under which each was opened, as its content is. A file may be open more than once.
    open: BTreeMap<String, Vec<File>>,
    /// Where each file that has a name now was written.
    written_as: BTreeMap<String, String>,
}

impl Stage {
    fn new(contents: &Rc<BTreeMap<String, Vec<u8>>>) -> Self {
        let folder = || tempfile::tempdir_in(STAGE_DIR).unwrap();
        let (dir, outside) = (folder(), folder());
        let (open, written_as) = (BTreeMap::new(), BTreeMap::new());
        Self { dir, outside, contents: Rc::clone(contents), open, written_as }
    }

    fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix('/') {
            Some(outside) => self.outside.path().join(outside.replace('/', "-")),
            None => self.dir.path().join(name),
        }
    }

    pub(super) fn act(&mut self, act: &Act) {
        match act {
            Act::MakeDir(path) => fs::create_dir_all(self.path(path)).unwrap(),
            Act::Open { path, empty } => {
                let mut options = File::options();
                let file = options.create(true).write(true).truncate(*empty).open(self.path(path));
                self.open.entry(path.clone()).or_default().push(file.unwrap());
                self.written_as.insert(path.clone(), path.clone());
            }
            Act::Write { path, from, to } => {
                let bytes = &self.contents[path][*from..*to];
                self.opened(path).write_all_at(bytes, u64::try_from(*from).unwrap()).unwrap();
            }
            Act::Resize(path, len) => {
                self.opened(path).set_len(u64::try_from(*len).unwrap()).unwrap();
            }
            // Closed under the name that it has by now.
            Act::Close(path) => {
                let opened = self.written_as.get(path).unwrap_or(path);
                self.open.get_mut(opened).unwrap().pop().unwrap();
            }
            Act::Rename(from, to) => self.rename(from, to),
            Act::Link(target, path) => symlink(target, self.path(path)).unwrap(),
            Act::Remove(path) => {
                let full = self.path(path);
                drop(fs::remove_file(&full).or_else(|_| fs::remove_dir_all(&full)));
            }
        }
    }

    fn opened(&self, path: &str) -> &File {
        self.open[path].last().unwrap()
    }

    /// A directory takes the files in it along.
    fn rename(&mut self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
        let written = std::mem::take(&mut self.written_as);
        let renamed = |name: String| match name.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => name,
        };
        let stays = |name: &String| name.as_str() != to;
        self.written_as = written
            .into_iter()
            .filter(|(name, _)| stays(name))
            .map(|(name, opened)| (renamed(name), opened))
            .collect();
    }

    /// Files of a checkpoint that is a directory, or the file itself.
    pub(super) fn files(&self, checkpoint: &str) -> BTreeSet<String> {
        if self.path(checkpoint).is_file() {
            return BTreeSet::from([checkpoint.to_owned()]);
        }
        let tree = Tree::read(&self.path(checkpoint));
        let names = tree.into_iter().flat_map(|tree| tree.entries).map(|entry| entry.name);
        names.map(|name| format!("{checkpoint}/{name}")).collect()
    }

    /// All of its bytes are there.
    fn is_complete(&self, file: &str) -> bool {
        let opened = self.written_as.get(file).map_or(file, String::as_str);
        self.contents.get(opened).is_none_or(|all| fs::read(self.path(file)).unwrap() == *all)
    }
}

/// One trace: which names are checkpoints, and the files of each once it is whole.
pub(super) struct Recorded {
    pub(super) name: &'static str,
    pub(super) steps: Vec<Step>,
    pub(super) pattern: Option<&'static str>,
    pub(super) sets: BTreeMap<String, BTreeSet<String>>,
    pub(super) contents: Rc<BTreeMap<String, Vec<u8>>>,
}

impl Recorded {
    pub(super) fn new(
        name: &'static str,
        steps: Vec<Step>,
        pattern: Option<&'static str>,
        is_checkpoint: fn(&str) -> bool,
    ) -> Self {
        let contents = Rc::new(contents(&steps));
        let mut stage = Stage::new(&contents);
        let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for step in &steps {
            stage.act(&step.act);
            for entry in fs::read_dir(stage.dir.path()).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let files = stage.files(&name);
                if is_checkpoint(&name) && files.len() >= sets.get(&name).map_or(0, BTreeSet::len) {
                    sets.insert(name, files);
                }
            }
        }
        for set in sets.values_mut() {
            set.retain(|file| !file.contains("/.tmp") && !file.ends_with(".tmp"));
        }
        Self { name, steps, pattern, sets, contents }
    }

    pub(super) fn stage(&self) -> Stage {
        Stage::new(&self.contents)
    }

    /// Carries out the first `until` events while a watcher looks on, then has the writer die; what counts in the end.
    pub(super) fn killed_after(&self, until: usize) -> (Stage, BTreeSet<String>) {
        let mut stage = self.stage();
        let request = request(stage.dir.path(), self.pattern, NEVER_MS);
        let mut output = Vec::new();
        let mut watcher = begun(&request, &mut output);
        let mut removed = false;
        let last_save = self.last_save();
        for (at, step) in self.steps[..until].iter().enumerate() {
            let removes = matches!(step.act, Act::Remove(_));
            if removes && !removed {
                // Old ones are removed only after a new one was saved: those have kept still for long enough.
                settles(&mut watcher);
            }
            removed = removes;
            stage.act(&step.act);
            // The watcher may lag behind the writes of earlier saves: most of a trace is writes.
            if at >= last_save || !matches!(step.act, Act::Write { .. }) {
                watcher.take_events().unwrap();
            }
        }
        stage.open.clear();
        watcher.last_look().unwrap();
        drop(watcher);
        let counted = counting(&output);
        (stage, counted)
    }

    /// Whether its format's loader would take it, and with everything that belongs to it.
    pub(super) fn is_whole(&self, stage: &Stage, checkpoint: &str) -> bool {
        let there = stage.files(checkpoint);
        let all = self.sets.get(checkpoint);
        all.is_some_and(|all| all.is_subset(&there)) && there.iter().all(|f| stage.is_complete(f))
    }

    pub(super) fn refuse_torn(
        &self,
        stage: &Stage,
        counted: &BTreeSet<String>,
        until: usize,
        how: &str,
    ) {
        let at = self.steps[..until].last();
        let torn = counted.iter().find(|&checkpoint| !self.is_whole(stage, checkpoint));
        assert!(
            torn.is_none(),
            "{}, {how} after event {until} ({at:?}): {torn:?} counts",
            self.name
        );
    }

    /// All that is left and can be checked counts. Nobody can check accelerate's pickle.
    pub(super) fn require_whole(&self, stage: &Stage, counted: &BTreeSet<String>, until: usize) {
        let at = self.steps[..until].last();
        for checkpoint in self.sets.keys().filter(|name| self.is_whole(stage, name)) {
            let checkable = !self.sets[checkpoint].iter().any(|file| file.ends_with(".pkl"));
            assert!(
                !checkable || counted.contains(checkpoint),
                "{}, killed after event {until} ({at:?}): {checkpoint} is whole, and only {counted:?} counts",
                self.name
            );
        }
    }

    /// Where its last save begins: behind all that was written of the one before.
    pub(super) fn last_save(&self) -> usize {
        let mut ends = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let path = match &step.act {
                Act::MakeDir(path) | Act::Open { path, .. } | Act::Write { path, .. } => path,
                Act::Resize(path, _) | Act::Close(path) | Act::Rename(_, path) => path,
                Act::Link(..) | Act::Remove(_) => continue,
            };
            let checkpoint = path.split('/').next().unwrap();
            if self.sets.contains_key(checkpoint) {
                ends.insert(checkpoint, at + 1);
            }
        }
        let mut ends: Vec<usize> = ends.into_values().collect();
        ends.sort_unstable();
        ends.iter().rev().nth(1).copied().unwrap_or(0)
    }
}

/// Makes a request for the directory; a file that was closed has to keep still for `still_ms`.
pub(super) fn request(dir: &Path, pattern: Option<&str>, still_ms: u64) -> WatchRequest {
    let timings = Timings {
        settle_closed_ms: still_ms,
        settle_scanned_ms: NEVER_MS,
        settle_unknown_ms: NEVER_MS,
        scan_ms: NEVER_MS,
    };
    WatchRequest {
        dir: dir.to_path_buf(),
        folder: String::new(),
        pattern: pattern.map(str::to_owned),
        rule: RuleChoice::Auto,
        job: "job-a".to_owned(),
        others_dead: true,
        timings,
        baseline: true,
        known: Vec::new(),
        counted: Vec::new(),
        origin: None,
        keep_copy: false,
        attempt: 1,
    }
}

pub(super) fn begun<'a>(
    request: &'a WatchRequest,
    output: &'a mut Vec<u8>,
) -> Watcher<'a, Vec<u8>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
    let glob = request.pattern.as_ref().map(|text| Pattern::new(text).unwrap());
    let mut watcher = watcher(request, glob, inotify, output);
    watcher.scan(Purpose::Baseline).unwrap();
    watcher
}

/// What counts by the end of the lines: not torn, and not lost since.
pub(super) fn counting(lines: &[u8]) -> BTreeSet<String> {
    let lines = String::from_utf8(lines.to_vec()).unwrap();
    let mut counting = BTreeMap::new();
    for line in lines.lines() {
        match serde_json::from_str(line).unwrap() {
            WatchLine::Seen(seen) if !seen.facts.content.is_torn() => {
                counting.insert(seen.path, seen.id);
            }
            WatchLine::Gone(gone) => counting.retain(|_, id| *id != gone),
            _ => {}
        }
    }
    counting.into_keys().collect()
}

/// Time for all that keeps still.
pub(super) fn settles(watcher: &mut Watcher<'_, Vec<u8>>) {
    sleep(Duration::from_millis(3 * STILL_MS));
    watcher.look_into(&watcher.filling.all()).unwrap();
    sleep(Duration::from_millis(3 * STILL_MS));
    watcher.settle(&watcher.tracker.closed()).unwrap();
}
