//! Which CPUs are near a job's GPUs: those at the same memory as their PCI slots, as the kernel says.
//!
//! Asked when an attempt is made ready. It reads files of the kernel's PCI core and never enters the driver. What it
//! does not know it does not guess: then there is no set, and the job runs anywhere.

use std::{fs, path::Path};

use fleet_core::name::GpuUuid;

use super::GpuSnapshot;
use fleet_kernel::cgroup::CpuSet;

/// Where the kernel tells of its machine.
pub(crate) const SYS: &str = "/sys";

/// The CPUs near `wanted`, where a job with so many thousandths of a CPU is to keep to them. `None`: anywhere.
pub(crate) fn near_cpus(
    sys: &Path,
    snapshot: &GpuSnapshot,
    wanted: &[GpuUuid],
    cpu_millis: u64,
) -> Option<CpuSet> {
    let online = read_set(&sys.join("devices/system/cpu/online"))?;
    let near = |uuid: &GpuUuid| {
        let found = read_set(&local_list(sys, &snapshot.gpu(uuid)?.info.pci_bus_id))?;
        Some(found.common(&online)).filter(|cpus| !cpus.is_empty())
    };
    let of_job: Vec<CpuSet> = wanted.iter().map(near).collect::<Option<_>>()?;
    let all: Vec<CpuSet> =
        snapshot.gpus.iter().filter_map(|state| near(&state.info.uuid)).collect();
    choose(&of_job, &all, &online, cpu_millis)
}

/// Pure. A job keeps to the CPUs near its GPUs if it asked for no more than its GPUs' part of them: what is near to several
/// GPUs of the node (`all`, the job's own among them) is divided by their number. So jobs that keep to the same CPUs never
/// ask for more than these together, and none waits there while CPUs elsewhere idle.
fn choose(of_job: &[CpuSet], all: &[CpuSet], online: &CpuSet, cpu_millis: u64) -> Option<CpuSet> {
    let mut near = CpuSet::default();
    let mut part_millis = 0;
    for own in of_job {
        let sharers = all.iter().filter(|other| !other.common(own).is_empty()).count().max(1);
        // Up, so that parts of thousandths do not keep a job of all sharers from what is there for all.
        part_millis += (own.len() * 1_000).div_ceil(sharers);
        near.add(own);
    }
    let enough =
        cpu_millis > 0 && usize::try_from(cpu_millis).is_ok_and(|asked| asked <= part_millis);
    // With one socket, or where the firmware does not say, every CPU is as near as any.
    (enough && near != *online).then_some(near)
}

/// NVML prints eight digits of domain, the kernel four and small letters.
fn local_list(sys: &Path, bus_id: &str) -> std::path::PathBuf {
    let bus_id = bus_id.to_ascii_lowercase();
    let domain_digits = bus_id.find(':').unwrap_or(0);
    let short = if domain_digits == 8 { bus_id.strip_prefix("0000") } else { None };
    sys.join("bus/pci/devices").join(short.unwrap_or(&bus_id)).join("local_cpulist")
}

fn read_set(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests;
