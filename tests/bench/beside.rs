//! What fleet's watching costs a job: the next save beside the check and the flush of the one before, and at rest.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fleet_core::checkpoint::Content;

use crate::bench::Bench;
use crate::checkpoints;
use crate::row::{Better, Row};
use crate::samples::Samples;
use crate::watcher::Watcher;
use crate::{at_rest, timed};

const ROUNDS: usize = 5;
/// Of one save, 10 MB each: ten turns of two saves with a thousand would write 200 GB.
const SAVE_FILES: usize = 200;
/// By then the helper has seen that a directory keeps still, and begins to check and flush it.
const SETTLED: Duration = Duration::from_millis(2_100);
/// The next save may be slower by this factor.
const SLOWER: f64 = 1.05;
/// What is watched at rest.
const RESTING_DIRS: usize = 10;
const RESTING_FILES: usize = 1_000;
/// How long the bench measures the watchers at rest, after the helper has checked all files once.
const WATCH: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(20);
/// The file that ends a checkpoint of Hugging Face's Trainer.
const MARKER: &str = "trainer_state.json";

/// By turns, so that what the disk does meanwhile meets both.
pub(crate) fn next_save(bench: &Bench, folder: &Path) -> Result<Row> {
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for round in 0..if bench.quick() { 1 } else { ROUNDS } {
        for watched in [round % 2 == 0, round % 2 == 1] {
            let samples = if watched { &mut with } else { &mut without };
            samples.push(one_save(bench, &folder.join("saves"), watched)?);
        }
    }
    let (fleet, alone) = (with.median().unwrap_or_default(), without.median().unwrap_or_default());
    let gb = checkpoints::bytes_of(bench) as f64 * bench.of(SAVE_FILES) as f64 / 1e9;
    let words = format!(
        "{gb:.1} GB while the one before is checked and flushed; with fleet {}, without {}",
        list(&with),
        list(&without)
    );
    Ok(Row::new("next save beside the check", "s", Better::Lower, fleet)
        .peer("without fleet", Some(alone))
        .spread(words)
        .target("5 % more than without", Some(alone * SLOWER)))
}

fn list(samples: &Samples) -> String {
    let all: Vec<String> = samples.iter().map(|value| format!("{value:.2}")).collect();
    all.join(" ")
}

/// Seconds that the second of two saves takes.
fn one_save(bench: &Bench, dir: &Path, watched: bool) -> Result<f64> {
    fs::create_dir(dir)?;
    // What earlier turns left in memory is not this one's to write.
    nix::unistd::sync();
    let watcher = if watched { Some(Watcher::start(dir)?) } else { None };
    save(bench, &dir.join("checkpoint-1"))?;
    timed::rest(SETTLED)?;
    let begin = Instant::now();
    save(bench, &dir.join("checkpoint-2"))?;
    let took = begin.elapsed().as_secs_f64();
    if let Some(watcher) = watcher {
        let seen = watcher.end()?;
        let whole = seen.iter().filter(|seen| seen.facts.content == Content::Whole).count();
        ensure!(whole == 2, "the helper saw {whole} whole checkpoints, not 2: {seen:?}");
    }
    fs::remove_dir_all(dir)?;
    Ok(took)
}

fn save(bench: &Bench, dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for n in 0..bench.of(SAVE_FILES) {
        let path = dir.join(format!("model-{n}.safetensors"));
        checkpoints::write(&path, checkpoints::bytes_of(bench))?;
    }
    Ok(File::create(dir.join(MARKER))?.write_all(br#"{"global_step": 1}"#)?)
}

/// A run that saves nothing for a while: what its files cost all the same.
pub(crate) fn resting(bench: &Bench, folder: &Path) -> Result<Vec<Row>> {
    let dir = folder.join("resting");
    let (dirs, files) = (bench.of(RESTING_DIRS), bench.of(RESTING_FILES));
    for step in 0..dirs {
        let top = dir.join(format!("checkpoint-{step}"));
        fs::create_dir_all(&top)?;
        (0..files)
            .try_for_each(|n| checkpoints::write(&top.join(format!("{n}.safetensors")), 1))?;
        File::create(top.join(MARKER))?.write_all(br#"{"global_step": 1}"#)?;
    }
    let watchers = [Watcher::start(&dir)?, Watcher::idle(&dir)?];
    timed::rest(bench.time(SETTLE))?;
    let used = || -> Result<Vec<u64>> {
        watchers.iter().map(|watcher| at_rest::cpu_nanos(watcher.pid()?)).collect()
    };
    let (before, begin) = (used()?, Instant::now());
    timed::rest(bench.time(WATCH))?;
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    let after = used()?;
    let used_ms = |at: usize| after[at].saturating_sub(before[at]) as f64 / 1e6 / minutes;
    let memory = |at: usize| -> Result<f64> {
        Ok(at_rest::rss_anon_kib(watchers[at].pid()?)? as f64 * 1024.0 / 1e6)
    };
    let words =
        format!("{dirs} directories of {files} files; the floor only holds the same watches");
    let rows = vec![
        Row::new("checkpoints at rest, processor time", "ms/min", Better::Lower, used_ms(0))
            .floor(Some(used_ms(1)))
            .spread(words),
        Row::new("checkpoints at rest, memory (RssAnon)", "MB", Better::Lower, memory(0)?)
            .floor(Some(memory(1)?)),
    ];
    for watcher in watchers {
        watcher.end()?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(rows)
}
