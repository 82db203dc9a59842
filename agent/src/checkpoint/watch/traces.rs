//! Traces of real writers, replayed: the writer dies after each event and in the middle of each write, and pauses at each
//! event for longer than anything has to keep still. What is not there as a whole must not count.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use super::replay::{
    Act, Recorded, STILL_MS, Step, begun, counting, halved, parse, request, settles,
};

/// Orders of two ranks' events that are tried, of each trace.
const ORDERS: u64 = 60;

macro_rules! trace {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../tests/frameworks/traces/", $name, ".txt")))
    };
}

/// `step-1` for the prefix `step-`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(prefix).is_some_and(digits)
}

fn is_hugging_face(name: &str) -> bool {
    is_numbered(name, "checkpoint-")
}

fn is_torch_dcp(name: &str) -> bool {
    is_numbered(name, "dcp-")
}

fn is_lightning(name: &str) -> bool {
    name.starts_with("epoch") && name.ends_with(".ckpt")
}

fn is_orbax(name: &str) -> bool {
    is_numbered(name, "")
}

fn recorded() -> Vec<Recorded> {
    let of = |(name, text), pattern, is_checkpoint| {
        let recorded = Recorded::new(name, parse(text), pattern, is_checkpoint);
        assert!(!recorded.sets.is_empty(), "{name}");
        recorded
    };
    vec![
        of(trace!("hf-trainer"), Some("checkpoint-*"), is_hugging_face),
        of(trace!("hf-trainer"), None, is_hugging_face),
        of(trace!("hf-trainer-two-ranks"), Some("checkpoint-*"), is_hugging_face),
        of(trace!("lightning"), None, is_lightning),
        of(trace!("lightning"), Some("*.ckpt"), is_lightning),
        of(trace!("lightning-elsewhere"), None, is_lightning),
        of(trace!("lightning-elsewhere"), Some("epoch*.ckpt"), is_lightning),
        of(trace!("torch-dcp"), None, is_torch_dcp),
        of(trace!("torch-dcp-async"), None, is_torch_dcp),
        of(trace!("torch-dcp-two-ranks"), Some("dcp-*"), is_torch_dcp),
        of(trace!("torch-save"), Some("step-*.pt"), |name| name.starts_with("step-")),
        of(trace!("accelerate"), Some("acc-*"), |name| is_numbered(name, "acc-")),
        of(trace!("orbax"), None, is_orbax),
        of(trace!("orbax"), Some("[0-9]*"), is_orbax),
        of(trace!("orbax-async"), None, is_orbax),
    ]
}

#[test]
fn no_writer_that_dies_in_the_middle_of_a_write_leaves_a_torn_checkpoint_that_counts() {
    let mut halves = BTreeSet::new();
    for mut trace in recorded() {
        // With another pattern, after each event is enough.
        if halves.insert(trace.name) {
            trace.steps = halved(trace.steps);
        }
        for until in trace.last_save()..=trace.steps.len() {
            let (stage, counted) = trace.killed_after(until);
            trace.refuse_torn(&stage, &counted, until, "killed");
            trace.require_whole(&stage, &counted, until);
        }
    }
}

#[test]
fn a_writer_that_pauses_has_not_finished() {
    for trace in recorded() {
        let mut stage = trace.stage();
        let request = request(stage.dir.path(), trace.pattern, STILL_MS);
        let mut output = Vec::new();
        let mut watcher = begun(&request, &mut output);
        for (until, step) in (1..).zip(&trace.steps) {
            stage.act(&step.act);
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

/// `last.ckpt` is a link to what counts already, or is about to.
#[test]
fn a_link_to_the_last_is_no_checkpoint_of_its_own() {
    let (name, text) = trace!("lightning-last");
    for pattern in [None, Some("*.ckpt")] {
        let trace = Recorded::new(name, parse(text), pattern, is_lightning);
        for until in trace.last_save()..=trace.steps.len() {
            let (stage, counted) = trace.killed_after(until);
            let files: BTreeSet<String> =
                counted.into_iter().filter(|path| path != "last.ckpt").collect();
            trace.refuse_torn(&stage, &files, until, "killed");
            trace.require_whole(&stage, &files, until);
        }
    }
}

/// An export of a model by itself is no checkpoint to resume from.
#[test]
fn an_export_in_parts_does_not_count() {
    let (name, text) = trace!("shards");
    for pattern in [None, Some("model")] {
        let trace = Recorded::new(name, parse(text), pattern, |_| false);
        let (_, counted) = trace.killed_after(trace.steps.len());
        assert!(counted.is_empty(), "{pattern:?}: {counted:?}");
    }
}

/// The list is exact beside what else a run writes: event files, a log, a final export into the same directory.
#[test]
fn nothing_else_of_a_run_counts() {
    let (name, text) = trace!("hf-trainer");
    let file = |path: &str| {
        let path = path.to_owned();
        let write = Act::Write { path: path.clone(), from: 0, to: 400 };
        let acts = [Act::Open { path: path.clone(), empty: true }, write, Act::Close(path)];
        acts.map(|act| Step { thread: "x".to_owned(), act })
    };
    let runs = Step { thread: "x".to_owned(), act: Act::MakeDir("runs".to_owned()) };
    let before = ["runs/events.out.tfevents.1", "log.txt", "hparams.yaml"].map(file);
    let behind = [
        "config.json",
        "model.safetensors",
        "training_args.bin",
        "trainer_state.json",
        "all_results.json",
    ]
    .map(file);
    let mut steps = vec![runs];
    steps.extend(before.into_iter().flatten());
    steps.extend(parse(text));
    steps.extend(behind.into_iter().flatten());
    let trace = Recorded::new(name, steps, None, is_hugging_face);
    let (stage, counted) = trace.killed_after(trace.steps.len());
    let there = trace.sets.keys().filter(|name| !stage.files(name).is_empty());
    assert_eq!(counted, there.cloned().collect());
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
    for ((name, text), is_checkpoint) in [
        (trace!("torch-dcp-two-ranks"), is_torch_dcp as fn(&str) -> bool),
        (trace!("hf-trainer-two-ranks"), is_hugging_face),
    ] {
        let steps = parse(text);
        let mut dice = Dice(7);
        for _ in 0..ORDERS {
            let mixed = Recorded::new(name, mix(&steps, &mut dice), None, is_checkpoint);
            let until = dice.below(mixed.steps.len() + 1);
            let (stage, counted) = mixed.killed_after(until);
            mixed.refuse_torn(&stage, &counted, until, "killed");
            mixed.require_whole(&stage, &counted, until);
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
            Act::Open { path, .. } | Act::Write { path, .. } | Act::Close(path) => {
                path.contains(".metadata")
            }
            Act::Rename(path, _) => path.contains(".metadata"),
            Act::Remove(_) => true,
            Act::MakeDir(_) | Act::Resize(..) | Act::Link(..) => false,
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
