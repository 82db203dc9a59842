//! Recorded traces of real writers, replayed on a real directory: the writer is killed after every event and in the
//! middle of every file. What is torn then must not count, and the newest that is whole must.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use fleet_core::checkpoint::RuleChoice;
use nix::sys::inotify::{InitFlags, Inotify};

use super::super::whole::tests::{safetensors_bytes, zip_bytes};
use super::*;

pub(super) const NEVER_MS: u64 = 3_600_000;
/// Orders of two ranks' events that are tried, of each trace.
const ORDERS: u64 = 200;

/// What a writer did. Paths are relative to the checkpoint directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    MakeDir(String),
    /// Half of the content is there after it.
    Open(String),
    Close(String),
    Rename(String, String),
    /// From another directory of the same file system.
    BringIn(String),
    Link(String, String),
    Remove(String),
    RemoveDir(String),
}

/// One thread's act.
#[derive(Debug, Clone)]
struct Step {
    thread: String,
    act: Act,
}

fn inside(path: &str) -> Option<String> {
    path.strip_prefix("/ck/").map(str::to_owned)
}

fn quoted(line: &str) -> Vec<String> {
    line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn parse(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut open = BTreeSet::new();
    for line in text.lines().filter(|line| !line.contains(" = -1 ")) {
        let (thread, call) = line.split_once(' ').unwrap();
        let (call, paths) = (call.trim(), quoted(line));
        let act = match call.split('(').next().unwrap() {
            "mkdir" | "mkdirat" => inside(&paths[0]).map(Act::MakeDir),
            "openat" => inside(&paths[0]).map(|path| {
                open.insert(path.clone());
                Act::Open(path)
            }),
            "close" => {
                let path = line.split('<').nth(1).and_then(|rest| rest.split('>').next());
                path.and_then(inside).filter(|path| open.remove(path)).map(Act::Close)
            }
            "rename" | "renameat" | "renameat2" => {
                let (from, to) = (inside(&paths[0]), inside(&paths[1]));
                match (from, to) {
                    (Some(from), Some(to)) => {
                        if open.remove(&from) {
                            open.insert(to.clone());
                        }
                        Some(Act::Rename(from, to))
                    }
                    (None, Some(to)) => Some(Act::BringIn(to)),
                    (_, None) => None,
                }
            }
            "symlink" | "symlinkat" => inside(&paths[1]).map(|to| Act::Link(paths[0].clone(), to)),
            "unlink" | "unlinkat" if line.contains("AT_REMOVEDIR") => {
                inside(&paths[0]).map(Act::RemoveDir)
            }
            "unlink" | "unlinkat" => inside(&paths[0]).map(Act::Remove),
            "rmdir" => inside(&paths[0]).map(Act::RemoveDir),
            _ => None,
        };
        if let Some(act) = act {
            steps.push(Step { thread: thread.to_owned(), act });
        }
    }
    steps
}

fn content(name: &str) -> Vec<u8> {
    match name.rsplit('.').next().unwrap() {
        "safetensors" => safetensors_bytes(64),
        "pt" | "pth" | "bin" | "ckpt" => {
            zip_bytes(&[("archive/data.pkl", 40), ("archive/data/0", 60)])
        }
        "json" => br#"{"step": 12345678}"#.to_vec(),
        _ => b"0123456789".to_vec(),
    }
}

/// A directory in which a trace is carried out, with the watcher beside.
struct Stage {
    dir: tempfile::TempDir,
    /// The name that each temporary file will get.
    later: BTreeMap<String, String>,
    /// Files that are half written.
    half: BTreeSet<String>,
}

impl Stage {
    fn new(steps: &[Step]) -> Self {
        let mut later = BTreeMap::new();
        for step in steps {
            if let Act::Rename(from, to) = &step.act {
                later.insert(from.clone(), to.clone());
            }
        }
        Self { dir: tempfile::tempdir().unwrap(), later, half: BTreeSet::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn finish(&mut self, name: &str) {
        if self.half.remove(name) {
            let kind = self.later.get(name).map_or(name, String::as_str);
            fs::write(self.path(name), content(kind)).unwrap();
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::MakeDir(path) => fs::create_dir_all(self.path(path)).unwrap(),
            Act::Open(path) => {
                let kind = self.later.get(path).map_or(path, |name| name);
                let bytes = content(kind);
                fs::write(self.path(path), &bytes[..bytes.len() / 2]).unwrap();
                self.half.insert(path.clone());
            }
            Act::Close(path) => self.finish(path),
            Act::Rename(from, to) => {
                self.finish(from);
                fs::rename(self.path(from), self.path(to)).unwrap();
            }
            Act::BringIn(path) => {
                let outside = self.path(".outside");
                fs::write(&outside, content(path)).unwrap();
                fs::rename(outside, self.path(path)).unwrap();
            }
            Act::Link(target, path) => {
                let name = target.rsplit('/').next().unwrap();
                std::os::unix::fs::symlink(name, self.path(path)).unwrap();
            }
            // Threads delete beside each other, and the recording has some of their ends out of order.
            Act::Remove(path) => drop(fs::remove_file(self.path(path))),
            Act::RemoveDir(path) => drop(fs::remove_dir_all(self.path(path))),
        }
    }

    /// Files below a checkpoint, relative to it; the empty name is the checkpoint itself.
    fn files(&self, checkpoint: &str) -> BTreeSet<String> {
        let path = self.path(checkpoint);
        if path.is_file() {
            return BTreeSet::from([String::new()]);
        }
        Tree::read(&path)
            .map_or(BTreeSet::new(), |tree| tree.entries.into_iter().map(|e| e.name).collect())
    }

    fn is_half(&self, checkpoint: &str) -> bool {
        let below = format!("{checkpoint}/");
        self.half.iter().any(|half| half == checkpoint || half.starts_with(&below))
    }
}

/// What counted by the end, and was not called torn.
fn counted(lines: &[u8]) -> Vec<String> {
    let lines = String::from_utf8(lines.to_vec()).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<WatchLine>(line).unwrap());
    lines
        .filter_map(|line| match line {
            WatchLine::Seen(seen) if !seen.facts.content.is_torn() => Some(seen.path),
            _ => None,
        })
        .collect()
}

/// Looks into the directory; a file that was closed has to keep still for so long.
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

/// Carries out the first `until` steps while a watcher looks on; then the writer is dead.
fn killed_after(steps: &[Step], until: usize, pattern: Option<&str>) -> (Stage, Vec<String>) {
    let mut stage = Stage::new(steps);
    let request = request(stage.dir.path(), pattern, NEVER_MS);
    let mut output = Vec::new();
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
    let glob = request.pattern.as_deref().map(|text| Pattern::new(text).unwrap());
    let mut watcher = watcher(&request, glob, inotify, &mut output);
    watcher.scan(Purpose::Baseline).unwrap();
    for step in &steps[..until] {
        stage.act(&step.act);
        watcher.take_events().unwrap();
    }
    watcher.last_look().unwrap();
    drop(watcher);
    let counted = counted(&output);
    (stage, counted)
}

/// Every checkpoint of the trace with all the files that it ever had at once.
fn full_sets(
    steps: &[Step],
    is_checkpoint: &dyn Fn(&str) -> bool,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut stage = Stage::new(steps);
    let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for step in steps {
        stage.act(&step.act);
        for entry in fs::read_dir(stage.dir.path()).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if is_checkpoint(&name) && !entry.file_type().unwrap().is_symlink() {
                let files = stage.files(&name);
                let best = sets.entry(name).or_default();
                if files.len() >= best.len() {
                    *best = files;
                }
            }
        }
    }
    // Temporary files come and go.
    for set in sets.values_mut() {
        set.retain(|name| {
            !name.rsplit('/').next().unwrap().starts_with(".tmp") && !name.ends_with(".tmp")
        });
    }
    sets
}

fn check(
    name: &str,
    steps: &[Step],
    until: usize,
    pattern: Option<&str>,
    sets: &BTreeMap<String, BTreeSet<String>>,
) {
    let (stage, counted) = killed_after(steps, until, pattern);
    let whole = |checkpoint: &String| {
        let there = stage.files(checkpoint);
        sets.get(checkpoint).is_some_and(|all| all.is_subset(&there)) && !stage.is_half(checkpoint)
    };
    let at = steps[..until].last().map(|step| &step.act);
    for checkpoint in &counted {
        assert!(
            whole(checkpoint),
            "{name} after step {until} ({at:?}): {checkpoint} counted and is not whole"
        );
    }
    // Accelerate's last file is a pickle that nobody can check: cut off before it settled, it does not count.
    let checkable = |checkpoint: &&String| !sets[*checkpoint].contains("random_states_0.pkl");
    for checkpoint in sets.keys().filter(checkable).filter(|checkpoint| whole(checkpoint)) {
        assert!(
            counted.contains(checkpoint),
            "{name} after step {until} ({at:?}): {checkpoint} is whole and did not count: {counted:?}"
        );
    }
}

macro_rules! trace {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../testdata/checkpoint-traces/", $name, ".txt")))
    };
}

/// `step-1`, for one of the prefixes that are told apart by `|`.
fn is_numbered(prefixes: &'static str) -> impl Fn(&str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    move |name: &str| {
        prefixes.split('|').any(|prefix| name.strip_prefix(prefix).is_some_and(digits))
    }
}

#[test]
fn no_writer_that_is_killed_leaves_a_torn_checkpoint_that_counts() {
    for ((name, text), prefix, pattern) in [
        (trace!("hf-trainer-5.17"), "checkpoint-", Some("checkpoint-*")),
        (trace!("hf-trainer-5.17"), "checkpoint-", None),
        (trace!("hf-trainer-5.17-two-ranks"), "checkpoint-", Some("checkpoint-*")),
        (trace!("torch-dcp-2.11"), "step-|async-", None),
        (trace!("torch-dcp-2.11-two-ranks"), "step-", Some("step-*")),
        (trace!("accelerate-1.15"), "acc-", Some("acc-*")),
    ] {
        let steps = parse(text);
        assert!(steps.len() > 5, "{name}");
        let sets = full_sets(&steps, &is_numbered(prefix));
        assert!(!sets.is_empty(), "{name}");
        for until in 0..=steps.len() {
            check(name, &steps, until, pattern, &sets);
        }
    }
}

#[test]
fn single_files_are_whole_or_do_not_count() {
    for ((name, text), pattern) in [
        (trace!("lightning-2.6.6"), Some("*.ckpt")),
        (trace!("lightning-2.6.6-other-filesystem"), Some("epoch*.ckpt")),
        (trace!("lightning-2.6.6-other-filesystem"), None),
    ] {
        let steps = parse(text);
        let sets = full_sets(&steps, &|name| name.starts_with("epoch") && name.ends_with(".ckpt"));
        assert!(!sets.is_empty(), "{name}");
        for until in 0..=steps.len() {
            let (stage, counted) = killed_after(&steps, until, pattern);
            for checkpoint in counted.iter().filter(|path| path.as_str() != "last.ckpt") {
                // One that was rotated away meanwhile was whole when it counted.
                assert!(!stage.is_half(checkpoint), "{name} after {until}: {checkpoint}");
            }
            for checkpoint in
                sets.keys().filter(|c| !stage.files(c).is_empty() && !stage.is_half(c))
            {
                assert!(
                    counted.contains(checkpoint),
                    "{name} after {until}: {checkpoint} in {counted:?}"
                );
            }
        }
    }
}

#[test]
fn orbax_counts_when_its_directory_gets_its_name_and_nothing_else_does() {
    for ((name, text), pattern) in
        [(trace!("orbax"), None), (trace!("orbax"), Some("*/*")), (trace!("orbax-async"), None)]
    {
        let steps = parse(text);
        let (_, counted) = killed_after(&steps, steps.len(), pattern);
        let expected: Vec<String> = steps
            .iter()
            .filter_map(|step| match &step.act {
                Act::Rename(from, to) if *from == format!("{to}.orbax-checkpoint-tmp") => {
                    Some(to.clone())
                }
                _ => None,
            })
            .filter(|to| !to.ends_with("/default"))
            .collect();
        assert!(!expected.is_empty(), "{name}: {expected:?}");
        assert_eq!(counted, expected, "{name} {pattern:?}");
    }
}

#[test]
fn an_export_of_a_model_is_no_checkpoint() {
    let (name, text) = trace!("save-pretrained-shards-5.17");
    let steps = parse(text);
    for pattern in [None, Some("hfshards")] {
        let (_, counted) = killed_after(&steps, steps.len(), pattern);
        assert!(counted.is_empty(), "{name} {pattern:?}: {counted:?}");
    }
}

/// The list is exact beside what else a run writes: event files, a log, a final export into the same directory.
#[test]
fn nothing_else_of_a_run_counts() {
    let (_, text) = trace!("hf-trainer-5.17");
    let mut steps = parse(text);
    let add = |steps: &mut Vec<Step>, act| steps.push(Step { thread: "x".to_owned(), act });
    let mut before = Vec::new();
    add(&mut before, Act::MakeDir("runs".to_owned()));
    for name in ["runs/events.out.tfevents.1", "log.txt", "hparams.yaml"] {
        add(&mut before, Act::Open(name.to_owned()));
        add(&mut before, Act::Close(name.to_owned()));
    }
    steps.splice(0..0, before);
    for name in [
        "config.json",
        "model.safetensors",
        "training_args.bin",
        "trainer_state.json",
        "all_results.json",
    ] {
        add(&mut steps, Act::Open(name.to_owned()));
        add(&mut steps, Act::Close(name.to_owned()));
    }
    let sets = full_sets(&steps, &is_numbered("checkpoint-"));
    let (stage, counted) = killed_after(&steps, steps.len(), None);
    let there: Vec<&String> = sets.keys().filter(|c| !stage.files(c).is_empty()).collect();
    let mut sorted = counted.iter().collect::<Vec<_>>();
    sorted.sort();
    assert_eq!(sorted, there);
}

/// A small generator: tests need the same orders each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

#[test]
fn ranks_may_write_in_any_order() {
    for (name, text, prefix) in [
        (trace!("torch-dcp-2.11-two-ranks"), "step-"),
        (trace!("hf-trainer-5.17-two-ranks"), "checkpoint-"),
    ]
    .map(|((name, text), prefix)| (name, text, prefix))
    {
        let steps = parse(text);
        let sets = full_sets(&steps, &is_numbered(prefix));
        let mut dice = Dice(7);
        for _ in 0..ORDERS {
            let mixed = mix(&steps, &mut dice);
            let until = dice.below(mixed.len() + 1);
            check(name, &mixed, until, Some(&format!("{prefix}*")), &sets);
        }
    }
}

/// The events of one save by the ranks in another order that each rank's own order allows. Directories come first, and a
/// marker of rank 0 last, as a barrier makes it.
fn mix(steps: &[Step], dice: &mut Dice) -> Vec<Step> {
    let mut mixed = Vec::new();
    let mut from = 0;
    while from < steps.len() {
        // One save: up to the next new directory.
        let next = steps[from + 1..].iter().position(|step| matches!(step.act, Act::MakeDir(_)));
        let to = next.map_or(steps.len(), |at| from + 1 + at);
        let mut queues: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
        mixed.push(steps[from].clone());
        let barrier = |step: &Step| match &step.act {
            Act::Open(path) | Act::Close(path) | Act::Rename(path, _) => path.contains(".metadata"),
            Act::Remove(_) | Act::RemoveDir(_) => true,
            Act::MakeDir(_) | Act::BringIn(_) | Act::Link(..) => false,
        };
        let (behind, free): (Vec<&Step>, Vec<&Step>) =
            steps[from + 1..to].iter().partition(|step| barrier(step));
        for step in free {
            queues.entry(&step.thread).or_default().push(step);
        }
        while !queues.is_empty() {
            let at = dice.below(queues.len());
            let thread = *queues.keys().nth(at).unwrap();
            let queue = queues.get_mut(thread).unwrap();
            mixed.push(queue.remove(0).clone());
            if queue.is_empty() {
                queues.remove(thread);
            }
        }
        mixed.extend(behind.into_iter().cloned());
        from = to;
    }
    mixed
}
