//! Traces of real writers with every write and its place in the file (`tests/frameworks/record.py`), replayed on a real
//! directory: the writer dies after each event and in the middle of each write, and pauses at each event for longer than
//! anything has to keep still. What is not there as a whole must not count.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::inotify::{InitFlags, Inotify};

use super::super::whole::tests::{safetensors_bytes, zip_bytes};
use super::replay::{NEVER_MS, request};
use super::*;

/// How long a file that was closed must keep still where the writer pauses, in milliseconds.
const STILL_MS: u64 = 1;

/// One event. Paths are relative to the checkpoint directory; what lies outside of it begins with `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    MakeDir(String),
    Open { path: String, empty: bool },
    Write { path: String, from: usize, to: usize },
    Resize(String, usize),
    Close(String),
    Rename(String, String),
    Remove(String),
}

fn parse(text: &str) -> Vec<Act> {
    let mut acts = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let path = |at: usize| words[at].strip_prefix("/ck/").unwrap_or(words[at]).to_owned();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        acts.push(match words[0] {
            "mkdir" => Act::MakeDir(path(1)),
            "open" => Act::Open { path: path(1), empty: words.get(2) == Some(&"trunc") },
            "write" => Act::Write { path: path(1), from: number(2), to: number(2) + number(3) },
            "truncate" => Act::Resize(path(1), number(2)),
            "close" => Act::Close(path(1)),
            "rename" => Act::Rename(path(1), path(2)),
            "unlink" | "rmdir" => Act::Remove(path(1)),
            "fsync" => continue,
            other => panic!("{other}"),
        });
    }
    acts
}

/// Each write in two halves, so that a writer can die between them.
fn halved(acts: Vec<Act>) -> Vec<Act> {
    let halves = |act: Act| match act {
        Act::Write { path, from, to } if to - from > 1 => {
            let middle = from + (to - from) / 2;
            let first = Act::Write { path: path.clone(), from, to: middle };
            vec![first, Act::Write { path, from: middle, to }]
        }
        act => vec![act],
    };
    acts.into_iter().flat_map(halves).collect()
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
fn contents(acts: &[Act]) -> BTreeMap<String, Vec<u8>> {
    let (mut lengths, mut finals) = (BTreeMap::<String, usize>::new(), BTreeMap::new());
    for act in acts {
        match act {
            Act::Write { path, to, .. } => {
                let len = lengths.entry(path.clone()).or_default();
                *len = (*len).max(*to);
            }
            Act::Resize(path, len) => drop(lengths.insert(path.clone(), *len)),
            Act::Rename(from, to) => drop(finals.insert(from.clone(), to.clone())),
            Act::MakeDir(_) | Act::Open { .. } | Act::Close(_) | Act::Remove(_) => {}
        }
    }
    let of = |(path, len): (String, usize)| {
        let name = finals.get(&path).unwrap_or(&path).clone();
        (path, content(&name, len))
    };
    lengths.into_iter().map(of).collect()
}

/// A directory in which a trace is carried out.
struct Stage {
    dir: tempfile::TempDir,
    outside: tempfile::TempDir,
    contents: Rc<BTreeMap<String, Vec<u8>>>,
    /// By the name under which each was opened, as its content is.
    open: BTreeMap<String, File>,
    /// Where each file that has a name now was written.
    written_as: BTreeMap<String, String>,
}

impl Stage {
    fn new(contents: &Rc<BTreeMap<String, Vec<u8>>>) -> Self {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (open, written_as) = (BTreeMap::new(), BTreeMap::new());
        Self { dir, outside, contents: Rc::clone(contents), open, written_as }
    }

    fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix('/') {
            Some(outside) => self.outside.path().join(outside.replace('/', "-")),
            None => self.dir.path().join(name),
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::MakeDir(path) => fs::create_dir_all(self.path(path)).unwrap(),
            Act::Open { path, empty } => {
                let mut options = File::options();
                let file = options.create(true).write(true).truncate(*empty).open(self.path(path));
                self.open.insert(path.clone(), file.unwrap());
                self.written_as.insert(path.clone(), path.clone());
            }
            Act::Write { path, from, to } => {
                let bytes = &self.contents[path][*from..*to];
                self.open[path].write_all_at(bytes, u64::try_from(*from).unwrap()).unwrap();
            }
            Act::Resize(path, len) => {
                self.open[path].set_len(u64::try_from(*len).unwrap()).unwrap();
            }
            // Closed under the name that it has by now.
            Act::Close(path) => {
                let opened = self.written_as.get(path).unwrap_or(path);
                self.open.remove(opened);
            }
            Act::Rename(from, to) => {
                fs::rename(self.path(from), self.path(to)).unwrap();
                let opened = self.written_as.remove(from).unwrap_or_else(|| from.clone());
                self.written_as.insert(to.clone(), opened);
            }
            Act::Remove(path) => {
                let full = self.path(path);
                drop(fs::remove_file(&full).or_else(|_| fs::remove_dir_all(&full)));
            }
        }
    }

    /// Files of a checkpoint that is a directory, or the file itself.
    fn files(&self, checkpoint: &str) -> BTreeSet<String> {
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
struct Recorded {
    name: &'static str,
    acts: Vec<Act>,
    pattern: Option<&'static str>,
    sets: BTreeMap<String, BTreeSet<String>>,
    contents: Rc<BTreeMap<String, Vec<u8>>>,
}

impl Recorded {
    fn new(
        (name, text): (&'static str, &str),
        pattern: Option<&'static str>,
        is_checkpoint: fn(&str) -> bool,
    ) -> Self {
        let acts = parse(text);
        let contents = Rc::new(contents(&acts));
        let mut stage = Stage::new(&contents);
        let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for act in &acts {
            stage.act(act);
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
        assert!(!sets.is_empty(), "{name}");
        Self { name, acts, pattern, sets, contents }
    }

    /// Carries out the first `until` events while a watcher looks on, then has the writer die; what counts in the end.
    fn killed_after(&self, until: usize) -> (Stage, BTreeSet<String>) {
        let mut stage = Stage::new(&self.contents);
        let request = request(stage.dir.path(), self.pattern, NEVER_MS);
        let mut output = Vec::new();
        let mut watcher = begun(&request, &mut output);
        let mut removed = false;
        for act in &self.acts[..until] {
            let removes = matches!(act, Act::Remove(_));
            if removes && !removed {
                // Old ones are removed only after a new one was saved: those have kept still for long enough.
                settles(&mut watcher);
            }
            removed = removes;
            stage.act(act);
            watcher.take_events().unwrap();
        }
        stage.open.clear();
        watcher.last_look().unwrap();
        drop(watcher);
        let counted = counting(&output);
        (stage, counted)
    }

    /// Whether its format's loader would take it, and with everything that belongs to it.
    fn is_whole(&self, stage: &Stage, checkpoint: &str) -> bool {
        let there = stage.files(checkpoint);
        let all = self.sets.get(checkpoint);
        all.is_some_and(|all| all.is_subset(&there)) && there.iter().all(|f| stage.is_complete(f))
    }

    fn refuse_torn(&self, stage: &Stage, counted: &BTreeSet<String>, until: usize, how: &str) {
        let at = self.acts[..until].last();
        let torn = counted.iter().find(|&checkpoint| !self.is_whole(stage, checkpoint));
        assert!(
            torn.is_none(),
            "{}, {how} after event {until} ({at:?}): {torn:?} counts",
            self.name
        );
    }

    /// Where its last save begins: behind all that was written of the one before.
    fn last_save(&self) -> usize {
        let mut ends = BTreeMap::new();
        for (at, act) in self.acts.iter().enumerate() {
            let path = match act {
                Act::MakeDir(path) | Act::Open { path, .. } | Act::Write { path, .. } => path,
                Act::Resize(path, _) | Act::Close(path) | Act::Rename(_, path) => path,
                Act::Remove(_) => continue,
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

fn begun<'a>(request: &'a WatchRequest, output: &'a mut Vec<u8>) -> Watcher<'a, Vec<u8>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
    let glob = request.pattern.as_ref().map(|text| Pattern::new(text).unwrap());
    let mut watcher = watcher(request, glob, inotify, output);
    watcher.scan(Purpose::Baseline).unwrap();
    watcher
}

/// What counts by the end of the lines: not torn, and not lost since.
fn counting(lines: &[u8]) -> BTreeSet<String> {
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
fn settles(watcher: &mut Watcher<'_, Vec<u8>>) {
    sleep(Duration::from_millis(3 * STILL_MS));
    watcher.look_into(&watcher.filling.all()).unwrap();
    sleep(Duration::from_millis(3 * STILL_MS));
    watcher.settle(&watcher.tracker.closed()).unwrap();
}

macro_rules! trace {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../tests/frameworks/traces/", $name, ".txt")))
    };
}

fn recorded() -> Vec<Recorded> {
    vec![
        Recorded::new(trace!("hf-trainer"), Some("checkpoint-*"), |n| n.starts_with("checkpoint-")),
        Recorded::new(trace!("lightning"), None, |name| name.ends_with(".ckpt")),
        Recorded::new(trace!("torch-dcp"), None, |name| name.starts_with("dcp-")),
        Recorded::new(trace!("torch-save"), Some("step-*.pt"), |name| name.starts_with("step-")),
        Recorded::new(trace!("accelerate"), Some("acc-*"), |name| name.starts_with("acc-")),
    ]
}

#[test]
fn no_writer_that_dies_in_the_middle_of_a_write_leaves_a_torn_checkpoint_that_counts() {
    for trace in recorded() {
        let trace = Recorded { acts: halved(trace.acts), ..trace };
        for until in trace.last_save()..=trace.acts.len() {
            let (stage, counted) = trace.killed_after(until);
            trace.refuse_torn(&stage, &counted, until, "killed");

            // All that is left and can be checked counts. Nobody can check accelerate's pickle.
            for checkpoint in trace.sets.keys().filter(|name| trace.is_whole(&stage, name)) {
                let checkable = !trace.sets[checkpoint].iter().any(|file| file.ends_with(".pkl"));
                assert!(!checkable || counted.contains(checkpoint), "{}: {counted:?}", trace.name);
            }
        }
    }
}

#[test]
fn a_writer_that_pauses_has_not_finished() {
    for trace in recorded() {
        let mut stage = Stage::new(&trace.contents);
        let request = request(stage.dir.path(), trace.pattern, STILL_MS);
        let mut output = Vec::new();
        let mut watcher = begun(&request, &mut output);
        for (until, act) in (1..).zip(&trace.acts) {
            stage.act(act);
            watcher.take_events().unwrap();
            settles(&mut watcher);
            watcher.say_gone(false).unwrap();
            trace.refuse_torn(&stage, &counting(watcher.output), until, "it pauses");
        }
        let counted = counting(watcher.output);
        let whole = trace.sets.keys().filter(|name| trace.is_whole(&stage, name));
        assert_eq!(counted, whole.cloned().collect(), "{}", trace.name);
    }
}

/// An export of a model by itself is no checkpoint to resume from.
#[test]
fn an_export_in_parts_does_not_count() {
    let (name, text) = trace!("shards");
    let acts = parse(text);
    let contents = Rc::new(contents(&acts));
    let trace = Recorded { name, acts, pattern: None, sets: BTreeMap::new(), contents };
    let (_, counted) = trace.killed_after(trace.acts.len());
    assert!(counted.is_empty(), "{counted:?}");
}
