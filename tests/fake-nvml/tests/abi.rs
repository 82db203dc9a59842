//! The library as nvml-wrapper sees it: the calls the agent makes, on each kind of card.
#![allow(clippy::unwrap_used)]

mod machine;

use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use fleet_fake_nvml_control::{Ecc, Process, ProcessKind, Profile, RetiredPages, Throttle};
use machine::Machine;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, RetirementCause, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::{DeviceArchitecture, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

const GPU: TemperatureSensor = TemperatureSensor::Gpu;

#[test]
fn each_kind_of_card_is_what_it_says() {
    let machine = Machine::start(&Profile::ALL);
    let nvml = &machine.nvml;
    assert_eq!(nvml.sys_driver_version().unwrap(), "550.163.01");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_040);
    assert_eq!(nvml.device_count().unwrap(), 5);
    let seen: Vec<String> = (0..5)
        .map(|index| {
            let gpu = nvml.device_by_index(index).unwrap();
            assert_eq!(gpu.index().unwrap(), index);
            assert_eq!(gpu.minor_number().unwrap(), index);
            let twin = nvml.device_by_uuid(gpu.uuid().unwrap()).unwrap();
            assert_eq!(twin.index().unwrap(), index);
            let twin = nvml.device_by_pci_bus_id(gpu.pci_info().unwrap().bus_id).unwrap();
            assert_eq!(twin.index().unwrap(), index);
            let gib = gpu.memory_info().unwrap().total >> 30;
            format!("{} {:?} {gib}", gpu.name().unwrap(), gpu.architecture().unwrap())
        })
        .collect();
    let wanted = [
        "NVIDIA GeForce GTX TITAN X Maxwell 12",
        "NVIDIA TITAN X (Pascal) Pascal 12",
        "Tesla V100-PCIE-16GB Volta 16",
        "Tesla V100-SXM2-32GB Volta 32",
        "NVIDIA A100-SXM4-40GB Ampere 40",
    ];
    assert_eq!(seen, wanted);
    assert!(matches!(nvml.device_by_index(5), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
}

#[test]
fn what_a_card_lacks_is_not_supported() {
    let machine = Machine::start(&Profile::ALL);
    let supported = |index: u32| {
        let gpu = machine.nvml.device_by_index(index).unwrap();
        let said = |answer: Result<(), NvmlError>| match answer {
            Ok(()) => true,
            Err(NvmlError::NotSupported) => false,
            Err(other) => panic!("GPU {index}: {other}"),
        };
        let link = gpu.link_wrapper_for(0);
        [
            said(gpu.is_ecc_enabled().map(drop)),
            said(gpu.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).map(drop)),
            said(gpu.retired_pages(RetirementCause::DoubleBitEccError).map(drop)),
            said(gpu.are_pages_pending_retired().map(drop)),
            said(link.is_active().map(drop)),
            said(gpu.mig_mode().map(drop)),
            said(gpu.total_energy_consumption().map(drop)),
            said(gpu.serial().map(drop)),
        ]
    };
    assert_eq!(supported(0), [false; 8], "titan-x");
    assert_eq!(supported(1), [false; 8], "titan-x-pascal");
    assert_eq!(supported(2), [true, true, true, true, false, false, true, true], "v100-pcie");
    assert_eq!(supported(3), [true, true, true, true, true, false, true, true], "v100-sxm2");
    assert_eq!(supported(4), [true, true, false, false, true, true, true, true], "a100");
}

#[test]
fn faults_are_read_as_soon_as_they_are_written() {
    let machine = Machine::start(&[Profile::V100Pcie; 2]);
    let gpu = machine.nvml.device_by_index(1).unwrap();
    assert_eq!(gpu.temperature(GPU).unwrap(), 34);
    assert_eq!(gpu.current_pcie_link_width().unwrap(), 16);
    machine.change(1, |gpu| {
        gpu.faults.temperature_c = Some(95);
        gpu.faults.pcie_width = Some(8);
        gpu.faults.throttle = vec![Throttle::HwThermalSlowdown];
        gpu.faults.ecc = Ecc { volatile_uncorrected: 1, aggregate_corrected: 9, ..Ecc::default() };
        gpu.faults.retired_pages = RetiredPages { single_bit: 2, double_bit: 1, pending: true };
        gpu.faults.memory_used_bytes = Some(7 << 30);
    });
    assert_eq!(gpu.temperature(GPU).unwrap(), 95);
    assert_eq!(gpu.current_pcie_link_width().unwrap(), 8);
    let throttled = gpu.current_throttle_reasons().unwrap();
    assert!(throttled.contains(ThrottleReasons::HW_THERMAL_SLOWDOWN), "{throttled:?}");
    let ecc = |kind, counter| gpu.total_ecc_errors(kind, counter).unwrap();
    assert_eq!(ecc(MemoryError::Uncorrected, EccCounter::Volatile), 1);
    assert_eq!(ecc(MemoryError::Corrected, EccCounter::Aggregate), 9);
    let single = gpu.retired_pages(RetirementCause::MultipleSingleBitEccErrors).unwrap();
    assert_eq!(single.len(), 2);
    assert_eq!(gpu.retired_pages(RetirementCause::DoubleBitEccError).unwrap().len(), 1);
    assert!(gpu.are_pages_pending_retired().unwrap());
    assert_eq!(gpu.memory_info().unwrap().used, 7 << 30);
    let other = machine.nvml.device_by_index(0).unwrap();
    assert_eq!(other.temperature(GPU).unwrap(), 34);
    machine.change(1, |gpu| gpu.clear_faults());
    assert_eq!(gpu.temperature(GPU).unwrap(), 34);
}

#[test]
fn a_half_written_file_changes_nothing() {
    let machine = Machine::start(&[Profile::TitanX]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    std::fs::write(machine.file.path(), "v = 1\n[[gpus]\n").unwrap();
    assert_eq!(gpu.temperature(GPU).unwrap(), 34);
}

#[test]
fn processes_are_counted_then_listed_by_kind() {
    let machine = Machine::start(&[Profile::V100Pcie]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.running_compute_processes().unwrap(), vec![]);
    let pid = std::process::id();
    let pids = machine.file.path().with_extension("pids");
    std::fs::write(&pids, format!("{pid}\n4194999\n")).unwrap();
    machine.change(0, |gpu| {
        let process = |pid, kind| Process { pid, memory_bytes: 1 << 30, kind };
        gpu.faults.processes = vec![
            process(11, ProcessKind::Compute),
            process(12, ProcessKind::Graphics),
            process(13, ProcessKind::Mps),
        ];
        gpu.faults.process_files = vec![pids.clone()];
        gpu.memory_per_process_bytes = 1 << 20;
    });
    let compute = gpu.running_compute_processes().unwrap();
    let listed: Vec<u32> = compute.iter().map(|process| process.pid).collect();
    assert_eq!(listed, [11, pid], "the dead pid of the file is left out");
    assert_eq!(compute[1].used_gpu_memory, UsedGpuMemory::Used(1 << 20));
    assert_eq!(gpu.running_graphics_processes().unwrap()[0].pid, 12);
    assert_eq!(gpu.mps_running_compute_processes().unwrap()[0].pid, 13);
    assert_eq!(gpu.memory_info().unwrap().used, (3 << 30) + (1 << 20));
    assert_eq!(gpu.utilization_rates().unwrap().gpu, 97);
    let name = machine.nvml.sys_process_name(pid, 512).unwrap();
    assert!(name.contains("abi"), "{name}");
}

#[test]
fn real_processes_are_found_by_the_gpu_in_their_environment() {
    let machine = Machine::start(&[Profile::TitanX; 2]);
    let gpu = machine.nvml.device_by_index(1).unwrap();
    let sleep = || {
        let mut sleep = std::process::Command::new("sleep");
        sleep.arg("60").env("NVIDIA_VISIBLE_DEVICES", format!("GPU-0,{}", gpu.uuid().unwrap()));
        sleep
    };
    // The first process of a container has the variable too, and no driver would list it.
    let mut init = sleep().arg0("/dev/fleet/init").spawn().unwrap();
    let mut sleeper = sleep().spawn().unwrap();
    machine.file.update(|control| control.processes_from_environ = true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let listed = loop {
        // Between fork and exec the child still has the parent's environment.
        let listed = gpu.running_compute_processes().unwrap();
        if !listed.is_empty() || Instant::now() > deadline {
            break listed;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let other = machine.nvml.device_by_index(0).unwrap().running_compute_processes().unwrap();
    for child in [&mut sleeper, &mut init] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(listed.iter().map(|process| process.pid).collect::<Vec<_>>(), [sleeper.id()]);
    assert_eq!(other, vec![]);
    assert_eq!(gpu.running_compute_processes().unwrap(), vec![]);
}

#[test]
fn every_waiter_gets_each_new_xid_once() {
    let machine = Machine::start(&[Profile::TitanX; 2]);
    machine.change(1, |gpu| gpu.push_xid(13));
    let begun = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let gpu = machine.nvml.device_by_index(1).unwrap();
                    let set = machine.nvml.create_event_set().unwrap();
                    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
                    begun.wait();
                    let told: Vec<Option<XidError>> = (0..3)
                        .map(|_| {
                            let event = set.wait(20_000).unwrap();
                            assert_eq!(event.device.index().unwrap(), 1);
                            event.event_data
                        })
                        .collect();
                    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)));
                    told
                })
            })
            .collect();
        begun.wait();
        let start = Instant::now();
        machine.change(0, |gpu| gpu.push_xid(7));
        machine.change(1, |gpu| {
            gpu.push_xid(48);
            gpu.push_xid(48);
        });
        machine.change(1, |gpu| gpu.push_xid(999));
        let wanted = [XidError::Value(48), XidError::Value(48), XidError::Unknown].map(Some);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), wanted);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

#[test]
fn waiting_blocks_for_its_timeout() {
    let machine = Machine::start(&[Profile::V100Pcie]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    let set = machine.nvml.create_event_set().unwrap();
    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    let start = Instant::now();
    assert!(matches!(set.wait(150), Err(NvmlError::Timeout)));
    assert!(start.elapsed() >= Duration::from_millis(150));
}

#[test]
fn ecc_events_fire_where_the_card_has_ecc() {
    let machine = Machine::start(&[Profile::TitanX, Profile::V100Pcie]);
    let titan = machine.nvml.device_by_index(0).unwrap();
    let v100 = machine.nvml.device_by_index(1).unwrap();
    let double = EventTypes::DOUBLE_BIT_ECC_ERROR;
    assert!(!titan.supported_event_types().unwrap().contains(double));
    let set = machine.nvml.create_event_set().unwrap();
    let refused = titan.register_events(double, set).unwrap_err();
    assert!(matches!(refused.error, NvmlError::NotSupported));
    let set = v100.register_events(double, machine.nvml.create_event_set().unwrap()).unwrap();
    machine.change(1, |gpu| gpu.faults.ecc.volatile_uncorrected = 1);
    let event = set.wait(5_000).unwrap();
    assert_eq!(event.event_type, double);
    assert_eq!(event.event_data, None);
}

#[test]
fn a_lost_gpu_answers_lost_and_says_xid_79_once() {
    let machine = Machine::start(&[Profile::TitanX; 2]);
    let gpu = machine.nvml.device_by_index(0).unwrap();
    let set = machine.nvml.create_event_set().unwrap();
    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    machine.change(0, |gpu| gpu.faults.lost = true);
    assert_eq!(set.wait(5_000).unwrap().event_data, Some(XidError::Value(79)));
    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)));
    assert!(matches!(gpu.temperature(GPU), Err(NvmlError::GpuLost)));
    assert!(matches!(gpu.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(machine.nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert_eq!(machine.nvml.device_count().unwrap(), 2);
    machine.nvml.device_by_index(1).unwrap().temperature(GPU).unwrap();
}

#[test]
fn a_missing_gpu_is_gone_after_the_next_initialisation() {
    let machine = Machine::start(&[Profile::TitanX; 2]);
    machine.change(0, |gpu| gpu.faults.missing = true);
    assert_eq!(machine.nvml.device_count().unwrap(), 2);
    assert!(matches!(machine.nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    let Machine { nvml, file, turn } = machine;
    nvml.shutdown().unwrap();
    let library = machine::library();
    let again = nvml_wrapper::Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    assert_eq!(again.device_count().unwrap(), 1);
    assert_eq!(again.device_by_index(0).unwrap().minor_number().unwrap(), 1);
    again.shutdown().unwrap();
    file.update(|control| control.driver_loaded = false).unwrap();
    let refused = nvml_wrapper::Nvml::builder().lib_path(library.as_os_str()).init();
    assert!(matches!(refused, Err(NvmlError::DriverNotLoaded)));
    drop(turn);
}

#[test]
fn neighbours_are_told_by_bus_and_link() {
    let machine = Machine::start(&[Profile::V100Sxm2; 8]);
    let gpu = |index| machine.nvml.device_by_index(index).unwrap();
    let level = |one, two| gpu(one).topology_common_ancestor(gpu(two)).unwrap();
    assert_eq!(level(0, 1), TopologyLevel::Single);
    assert_eq!(level(0, 2), TopologyLevel::HostBridge);
    assert_eq!(level(0, 4), TopologyLevel::System);
    assert_eq!(gpu(5).memory_affinity(2, 0).unwrap(), [0b10, 0]);
    let links = |index| {
        let gpu = gpu(index);
        let bus = |link| gpu.link_wrapper_for(link).remote_pci_info().unwrap().bus;
        (0..6).map(bus).collect::<Vec<u32>>()
    };
    let bus = |index: u32| 0x1a + 2 * index;
    assert_eq!(links(0), [bus(1), bus(2), bus(3), bus(3), bus(4), bus(4)]);
    assert_eq!(links(7), [bus(3), bus(4), bus(4), bus(5), bus(6), bus(6)]);
    machine.change(0, |gpu| gpu.faults.nvlinks_down = vec![2]);
    assert!(!gpu(0).link_wrapper_for(2).is_active().unwrap());
    assert!(matches!(gpu(0).link_wrapper_for(6).is_active(), Err(NvmlError::InvalidArg)));
}

#[test]
fn architectures_match_what_the_health_tables_know() {
    let machine = Machine::start(&[Profile::A100, Profile::TitanX]);
    let architecture = |index| machine.nvml.device_by_index(index).unwrap().architecture().unwrap();
    assert_eq!(architecture(0), DeviceArchitecture::Ampere);
    assert_eq!(architecture(1), DeviceArchitecture::Maxwell);
}
