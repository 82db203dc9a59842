//! Calls about who uses a GPU: listed by hand, by pid files, or found by their environment.
#![expect(unsafe_code, reason = "the C ABI")]

use std::ffi::c_uint;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_fake_nvml_control::{Process, ProcessKind};
use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, put_list};
use crate::state::{self, View};

/// NVML's "no such instance" of MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;
const VISIBLE_DEVICES: &[u8] = b"NVIDIA_VISIBLE_DEVICES=";
/// More processes than anybody runs on one GPU; a runaway pid file ends here.
const PROCESSES_MAX: usize = 4096;

/// The processes on a GPU now, each once.
pub(crate) fn of(view: &View) -> Vec<Process> {
    let gpu = view.gpu();
    let mut all = gpu.faults.processes.clone();
    let mut real: Vec<u32> = gpu.faults.process_files.iter().flat_map(|at| pids(at)).collect();
    if view.control().processes_from_environ {
        real.extend(by_environ(&gpu.uuid));
    }
    for pid in real {
        if all.len() < PROCESSES_MAX && all.iter().all(|known| known.pid != pid) {
            let memory_bytes = gpu.memory_per_process_bytes;
            all.push(Process { pid, memory_bytes, kind: ProcessKind::Compute });
        }
    }
    all
}

/// Living pids named by a file (one a line) or by the entries of a directory.
fn pids(at: &Path) -> Vec<u32> {
    let named = match std::fs::read_dir(at) {
        Ok(entries) => {
            let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).take(PROCESSES_MAX).collect()
        }
        Err(_) => {
            let text = std::fs::read_to_string(at).unwrap_or_default();
            let lines = text.lines().filter_map(|line| line.trim().parse().ok());
            lines.take(PROCESSES_MAX).collect::<Vec<u32>>()
        }
    };
    named.into_iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect()
}

/// How long one scan of all environments serves: many calls of one sample need it.
const SCAN_KEPT: Duration = Duration::from_millis(100);

/// (pid, GPUs it was given) of every process that was given some.
type Scan = Vec<(u32, Vec<String>)>;

static SCAN: Mutex<Option<(Instant, Scan)>> = Mutex::new(None);

/// Real processes that were given this GPU by environment, as the container toolkit does it.
fn by_environ(uuid: &str) -> Vec<u32> {
    let mut kept = SCAN.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.as_ref().is_none_or(|(at, _)| at.elapsed() > SCAN_KEPT) {
        *kept = Some((Instant::now(), scan()));
    }
    let all = kept.iter().flat_map(|(_, scan)| scan);
    let given = all.filter(|(_, gpus)| gpus.iter().any(|gpu| gpu == uuid));
    let pids = given.map(|(pid, _)| *pid);
    pids.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect()
}

/// The first process of fleet's containers, as it was started: a program that it becomes has a name of its own.
const INIT: &[u8] = b"/dev/fleet/init";

fn is_init(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).next() == Some(INIT)
}

fn scan() -> Scan {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let all = entries.filter_map(Result::ok);
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // fleet's own init has the variable and never opens a GPU: no driver would list it.
    let pids = pids.filter(|pid| !is_init(*pid));
    let given = pids.map(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let values = environ
            .split(|byte| *byte == 0)
            .filter_map(|entry| entry.strip_prefix(VISIBLE_DEVICES));
        let gpus = values.flat_map(|value| value.split(|byte| *byte == b','));
        (pid, gpus.map(|gpu| String::from_utf8_lossy(gpu).into_owned()).collect::<Vec<String>>())
    });
    given.filter(|(_, gpus)| !gpus.is_empty()).collect()
}

/// # Safety
/// `count` is NULL or points to a `c_uint`; `infos` is NULL or has room for `*count` items.
unsafe fn list(
    device: sys::nvmlDevice_t,
    kind: ProcessKind,
    count: *mut c_uint,
    infos: *mut sys::nvmlProcessInfo_t,
) -> Result<(), Code> {
    let view = state::gpu(device)?;
    if kind == ProcessKind::Mps && !view.facts.has_mps_list {
        return Err(Code::NOT_SUPPORTED);
    }
    let wanted = of(&view).into_iter().filter(|process| process.kind == kind);
    let found: Vec<sys::nvmlProcessInfo_t> = wanted
        .map(|process| sys::nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory_bytes,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
        .collect();
    // SAFETY: this function's contract.
    unsafe { put_list(count, infos, &found) }
}

/// Exports the process lists; `_v2` of two of them is what drivers before 510 had.
macro_rules! lists {
    ($($name:ident = $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: sys::nvmlDevice_t,
            count: *mut c_uint,
            infos: *mut sys::nvmlProcessInfo_t,
        ) -> sys::nvmlReturn_t {
            answer(|| {
                // SAFETY: NVML's contract is that of `list`.
                unsafe { list(device, $kind, count, infos) }
            })
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses_v3 = ProcessKind::Compute;
    nvmlDeviceGetGraphicsRunningProcesses_v3 = ProcessKind::Graphics;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = ProcessKind::Mps;
    nvmlDeviceGetComputeRunningProcesses_v2 = ProcessKind::Compute;
    nvmlDeviceGetGraphicsRunningProcesses_v2 = ProcessKind::Graphics;
}
