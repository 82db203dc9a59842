//! Reads what a control group has used, on cgroup v1, v2 and hybrid machines.
//!
//! Processor time, memory and processes are read by cgroups-rs, whose controllers are made here from the directories
//! of the group: it finds the root of no hierarchy by itself. It fills in 0 for what it cannot read, so a 0 of a group
//! that has processes counts as unknown. I/O is read here, as cgroups-rs reads 0 bytes from every `io.stat`, and
//! so is pressure, which it does not know (ADR 54).

use std::fs;
use std::path::Path;

use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::cpuacct::CpuAcctController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use fleet_kernel::cgroup::{Cgroup, Mode};

use super::{JobUse, Stall};

/// All but the processor use of late, which needs two looks.
pub(super) fn read(group: &Cgroup) -> JobUse {
    let is_v2 = group.mode == Mode::Unified;
    let unified = group.unified.as_deref();
    let of = |controller: &str| match is_v2 {
        true => unified,
        false => group.v1.get(controller).map(|dir| dir.as_path()),
    };
    let memory = of("memory").map(|dir| MemController::new(dir.into(), dir.into(), is_v2));
    let memory = memory.map(|memory| memory.memory_stat());
    let pids = of("pids").map(|dir| PidController::new(dir.into(), dir.into(), is_v2));
    let (read_bytes, written_bytes) = match is_v2 {
        true => unified.and_then(io_v2).unzip(),
        // v1 counts only writes that pass the page cache by, which are next to none.
        false => (of("blkio").and_then(read_v1), None),
    };
    // The tree of cgroup v2 counts processor time also beside v1 controllers.
    let cpu_usec =
        unified.and_then(cpu_v2).or_else(|| group.v1.get("cpuacct").and_then(|dir| cpu_v1(dir)));
    JobUse {
        cpu_usec,
        cpu_millis: None,
        memory_bytes: memory.as_ref().and_then(|memory| known(memory.usage_in_bytes)),
        memory_peak_bytes: memory.as_ref().and_then(|memory| known(memory.max_usage_in_bytes)),
        read_bytes,
        written_bytes,
        pids: pids.and_then(|pids| pids.get_pid_current().ok()),
        cpu_stall: unified.and_then(|dir| stall(dir, "cpu.pressure")),
        memory_stall: unified.and_then(|dir| stall(dir, "memory.pressure")),
        io_stall: unified.and_then(|dir| stall(dir, "io.pressure")),
    }
}

/// cgroups-rs says 0 for a file that does not exist: `memory.peak` before Linux 5.19.
fn known(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

fn cpu_v2(dir: &Path) -> Option<u64> {
    let stat = CpuController::new(dir.into(), dir.into(), true).cpu().stat;
    stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
}

fn cpu_v1(dir: &Path) -> Option<u64> {
    let nanoseconds = CpuAcctController::new(dir.into(), dir.into()).cpuacct().usage;
    known(nanoseconds).map(|nanoseconds| nanoseconds / 1_000)
}

/// Bytes read and written of all devices. A device that was not used has no line.
fn io_v2(dir: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(dir.join("io.stat")).ok()?;
    let sum = |key: &str| {
        let values = text.split_whitespace().filter_map(|word| word.strip_prefix(key));
        values.filter_map(|value| value.parse::<u64>().ok()).fold(0, u64::saturating_add)
    };
    Some((sum("rbytes="), sum("wbytes=")))
}

/// Bytes read of all devices, on v1.
fn read_v1(dir: &Path) -> Option<u64> {
    const FILES: [&str; 2] =
        ["blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"];
    let text = FILES.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok())?;
    let values = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        (words.next()? == "Read").then(|| words.next()?.parse::<u64>().ok())?
    });
    Some(values.fold(0, u64::saturating_add))
}

/// `some avg10=1.25 avg60=0.40 avg300=0.09 total=812345`. A kernel without PSI, or with `psi=0`, has no such file or
/// cannot read it.
fn stall(dir: &Path, file: &str) -> Option<Stall> {
    let text = fs::read_to_string(dir.join(file)).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = |key: &str| some.split(' ').find_map(|word| word.strip_prefix(key));
    let percent = value("avg10=")?.parse::<f64>().ok()?.round().clamp(0.0, 100.0);
    Some(Stall { percent: percent as u32, total_usec: value("total=")?.parse().ok()? })
}
