//! The corners of the ABI that nvml-wrapper's own calls never reach: wrong versions, short
//! buffers, NULL, foreign handles, and the library's ELF marks.
#![allow(clippy::unwrap_used)]
#![expect(unsafe_code, reason = "calls the C functions with what no wrapper would hand in")]

mod machine;

use std::process::Command;
use std::ptr::{null_mut, without_provenance_mut};

use fleet_fake_nvml_control::{Process, ProcessKind, Profile};
use machine::Machine;
use nvml_wrapper_sys::bindings as sys;

#[test]
fn bad_arguments_are_refused_not_crashed_on() {
    let machine = Machine::start(&[Profile::V100Pcie]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    let lib = machine.nvml.lib();
    // SAFETY: every pointer handed in is NULL or valid for what its length says; handles are only
    // compared.
    unsafe {
        let handle = gpu.handle();
        let mut old: sys::nvmlMemory_v2_t = std::mem::zeroed();
        old.version = 1;
        assert_eq!(lib.nvmlDeviceGetMemoryInfo_v2(handle, &raw mut old), 25);
        let mut text = [1i8; 41];
        assert_eq!(lib.nvmlDeviceGetUUID(handle, text.as_mut_ptr(), 40), 7);
        assert_eq!(text, [1; 41], "a short buffer is left alone");
        assert_eq!(lib.nvmlDeviceGetUUID(handle, text.as_mut_ptr(), 41), 0);
        assert_eq!((text[0], text[40]), (b'G' as i8, 0));
        assert_eq!(lib.nvmlDeviceGetName(handle, null_mut(), 0), 2);
        assert_eq!(lib.nvmlDeviceGetMinorNumber(handle, null_mut()), 2);
        for foreign in [0, 8, 0x1001, usize::MAX] {
            let mut minor = 0;
            let foreign = without_provenance_mut(foreign);
            assert_eq!(lib.nvmlDeviceGetMinorNumber(foreign, &raw mut minor), 2);
        }
        let mut data = std::mem::zeroed();
        assert_eq!(lib.nvmlEventSetWait_v2(null_mut(), &raw mut data, 0), 2);
        assert_eq!(lib.nvmlEventSetFree(without_provenance_mut(77)), 2);
    }
}

#[test]
fn process_lists_count_then_fill() {
    let machine = Machine::start(&[Profile::V100Pcie]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    let lib = machine.nvml.lib();
    let listed = |room: u32| {
        let mut infos: Vec<sys::nvmlProcessInfo_t> =
            // SAFETY: plain numbers.
            (0..room).map(|_| unsafe { std::mem::zeroed() }).collect();
        let mut count = room;
        let at = if room == 0 { null_mut() } else { infos.as_mut_ptr() };
        // SAFETY: `at` is NULL or has room for `count` items.
        let code = unsafe {
            lib.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle(), &raw mut count, at)
        };
        (code, count, infos.first().map(|info| info.pid))
    };
    assert_eq!(listed(0), (0, 0, None));
    machine.change(0, |gpu| {
        let process = |pid| Process { pid, memory_bytes: 1, kind: ProcessKind::Compute };
        gpu.faults.processes = (1..=3).map(process).collect();
    });
    assert_eq!(listed(0), (7, 3, None));
    assert_eq!(listed(2), (7, 3, Some(0)));
    assert_eq!(listed(8), (0, 3, Some(1)));
}

#[test]
fn the_library_has_nvmls_name_and_is_never_unloaded() {
    let Ok(read) = Command::new("readelf").arg("-d").arg(machine::library()).output() else {
        // Without binutils there is no linker either; say so and skip the test.
        eprintln!("SKIPPED: readelf is not installed");
        return;
    };
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(text.contains("[libnvidia-ml.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}
