//! What this machine is, and what its disk needs for one durable write: without that no figure means anything.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::Instant,
};

use anyhow::{Context as _, Result};

use crate::samples::{Samples, short};

/// A small log entry.
const WRITE_BYTES: usize = 2048;

/// Appends and syncs; the smallest thing that makes a write durable.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
}

impl Disk {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("disk");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self { file: file.with_context(|| format!("create {}", path.display()))? })
    }

    /// One write of 2 KiB and fdatasync, in milliseconds.
    pub(crate) fn write(&mut self, samples: &mut Samples) -> Result<()> {
        let begin = Instant::now();
        self.file.write_all(&[0x5a; WRITE_BYTES])?;
        self.file.sync_data()?;
        samples.push_time(begin.elapsed());
        Ok(())
    }
}

/// One line: processors, memory, kernel, cgroups, disk.
pub(crate) fn describe(folder: &Path, writes: usize) -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    let uname = nix::sys::utsname::uname()?;
    let mut disk = Disk::new(folder)?;
    let mut samples = Samples::default();
    for _ in 0..writes {
        disk.write(&mut samples)?;
    }
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(format!(
        "{cores} cores ({model}), {} GiB, Linux {}, cgroups {:?}, load {}; disk of {} (device {}): 2 KiB write + fdatasync p50 {} ms, p99 {} ms",
        memory.unwrap_or(0) >> 20,
        uname.release().to_string_lossy(),
        fleet_kernel::cgroup::Hierarchies::detect()?.mode(),
        load.split(' ').next().unwrap_or_default(),
        folder.display(),
        fs::metadata(folder)?.dev(),
        short(samples.median().unwrap_or(f64::NAN)),
        short(samples.p99().unwrap_or(f64::NAN)),
    ))
}
