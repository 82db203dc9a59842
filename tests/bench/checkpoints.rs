//! What it costs to find out whether a checkpoint is whole: 10 GB in 1,000 files that were written just now.
//!
//! The check is the agent's own, in this process. Its floor is the list of the files with their sizes, without a look into
//! any. Flushing to the disk is a row of its own: it is the disk's.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fleet_agent::checkpoint::{tree::Tree, whole};
use fleet_core::checkpoint::Content;

use crate::bench::Bench;
use crate::row::{Better, Row};

const FILES: usize = 1_000;
/// Of each file.
const BYTES: usize = 10 * 1000 * 1000;
/// What is written at a time.
const CHUNK: usize = 1 << 20;
const ROUNDS: usize = 5;

pub(crate) fn rows(bench: &Bench, folder: &Path) -> Result<Vec<Row>> {
    let top = folder.join("checkpoint-1");
    fs::create_dir(&top)?;
    let files = bench.of(FILES);
    let bytes = bytes_of(bench);
    for n in 0..files {
        write(&top.join(format!("model-{n}.safetensors")), bytes)?;
    }
    // "5" sets the peak back to what is in use now (proc(5)).
    fs::write("/proc/self/clear_refs", "5").context("cannot set the peak of the memory back")?;
    let (memory, unwritten) = (memory_peak()?, unwritten_gb()?);
    let begin = Instant::now();
    let content = whole::check(&top);
    let dirty = begin.elapsed();
    ensure!(content == Content::Whole, "the checkpoint is {content:?}");
    let grown = memory_peak()?.saturating_sub(memory);
    let begin = Instant::now();
    for n in 0..files {
        File::open(top.join(format!("model-{n}.safetensors")))?.sync_all()?;
    }
    let flushed = begin.elapsed();
    let mut floors = Vec::new();
    for _ in 0..bench.of(ROUNDS) {
        let begin = Instant::now();
        ensure!(Tree::read(&top).is_some(), "the directory cannot be listed");
        floors.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    floors.sort_by(f64::total_cmp);
    let floor = floors.get(floors.len() / 2).copied();
    let kind = file_system(&top)?;
    fs::remove_dir_all(&top)?;
    let gb = bytes as f64 * files as f64 / 1e9;
    Ok(vec![
        Row::new("checkpoint check, just written", "ms", Better::Lower, dirty.as_secs_f64() * 1e3)
            .floor(floor)
            .spread(format!(
                "{gb:.1} GB in {files} files on {kind}, {unwritten:.1} GB of it not on the disk yet; the floor only \
                 lists them"
            ))
            .target("2 s", Some(2_000.0)),
        Row::new("checkpoint check, memory", "MB", Better::Lower, grown as f64 / 1e6)
            .spread("VmHWM: how far the peak rose during the check".to_owned())
            .target("64 MiB", Some(67.1)),
        Row::new("checkpoint flush", "ms", Better::Lower, flushed.as_secs_f64() * 1e3)
            .spread("what was still in memory; the disk's own time".to_owned()),
    ])
}

/// Of each file, in this run.
pub(crate) fn bytes_of(bench: &Bench) -> usize {
    if bench.quick() { CHUNK } else { BYTES }
}

/// One tensor, as the format has it.
pub(crate) fn write(path: &Path, bytes: usize) -> Result<()> {
    let header =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let chunk = vec![7; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(CHUNK);
        file.write_all(&chunk[..part])?;
        left -= part;
    }
    Ok(())
}

/// What waits to be written to disks, or is being written.
fn unwritten_gb() -> Result<f64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let kib = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok())
    };
    let both = kib("Dirty:").zip(kib("Writeback:")).context("no Dirty in /proc/meminfo")?;
    Ok((both.0 + both.1) * 1024.0 / 1e9)
}

/// The type of the file system, from the mount that is longest above the path.
fn file_system(path: &Path) -> Result<String> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let above = mounts.filter(|(at, _)| path.starts_with(at)).max_by_key(|(at, _)| at.len());
    Ok(above.context("no mount is above the bench's folder")?.1.to_owned())
}

/// The most bytes that this process had in memory at a time.
fn memory_peak() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 =
        line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?.parse()?;
    Ok(kib * 1024)
}
