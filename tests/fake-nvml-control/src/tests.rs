//! The format: what is written is read back, a hand-written file works, bad values are named.
#![allow(clippy::unwrap_used)]

use super::*;

fn file() -> (tempfile::TempDir, ControlFile) {
    let dir = tempfile::tempdir().unwrap();
    let file = ControlFile::new(dir.path().join("gpus.toml"));
    (dir, file)
}

#[test]
fn everything_written_is_read_back() {
    let (_dir, file) = file();
    let mut control = Control::machine(&Profile::ALL, "titan01", 0);
    let gpu = &mut control.gpus[2];
    gpu.push_xid(48);
    gpu.faults = Faults {
        lost: true,
        missing: true,
        hang: true,
        silent: true,
        temperature_c: Some(91),
        utilization_percent: Some(3),
        memory_used_bytes: Some(1 << 33),
        pcie_width: Some(8),
        pcie_generation: Some(1),
        nvlinks_down: vec![1],
        throttle: vec![Throttle::HwThermalSlowdown],
        processes: vec![Process { pid: 7, memory_bytes: 9, kind: ProcessKind::Mps }],
        process_files: vec!["/x/cgroup.procs".into()],
        ecc: Ecc { volatile_uncorrected: 2, ..Ecc::default() },
        retired_pages: RetiredPages { single_bit: 3, double_bit: 1, pending: true },
        remapped_rows: RemappedRows { corrected: 1, uncorrected: 2, pending: true, failed: true },
    };
    file.write(&control).unwrap();
    assert_eq!(file.read().unwrap(), control);
}

#[test]
fn a_file_by_hand_needs_only_four_fields_per_gpu() {
    let (_dir, file) = file();
    let text = "v = 1\n[[gpus]]\nprofile = \"titan-x\"\nuuid = \"GPU-0a\"\nminor = 3\n\
                pci_bus_id = \"00000000:3B:00.0\"\n[gpus.faults]\ntemperature_c = 88\n";
    fs::write(file.path(), text).unwrap();
    let control = file.read().unwrap();
    assert_eq!(control.gpus[0].faults.temperature_c, Some(88));
    assert_eq!(control.gpus[0].pci_address(), Some((0, 0x3b, 0)));
    assert!(control.driver_loaded);
}

#[test]
fn bad_values_are_named() {
    let (_dir, file) = file();
    for (text, named) in [
        ("v = 2", "v = 2"),
        ("v = 1\ntypo = 1", "typo"),
        ("v = 1\n[[gpus]]\nprofile = \"titan\"", "titan"),
        (
            "v = 1\n[[gpus]]\nprofile=\"a100\"\nuuid=\"GPU-1\"\nminor=0\npci_bus_id=\"3B\"",
            "pci_bus_id",
        ),
        (
            "v = 1\n[[gpus]]\nprofile=\"a100\"\nuuid=\"GPU-1\"\nminor=255\npci_bus_id=\"0:1:0.0\"",
            "minor",
        ),
        ("v = 1\n[[gpus]]\nprofile=\"a100\"\nuuid=\"x\"\nminor=0\npci_bus_id=\"0:1:0.0\"", "uuid"),
    ] {
        fs::write(file.path(), text).unwrap();
        let error = file.read().unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let said = format!("{error} {}", source.unwrap_or_default());
        assert!(said.contains(named), "{said}");
    }
    let mut swapped = Control::machine(&[Profile::TitanX; 2], "x", 0);
    swapped.gpus.swap(0, 1);
    assert!(swapped.check().unwrap_err().contains("order"));
    let mut twins = Control::machine(&[Profile::TitanX; 2], "x", 0);
    twins.gpus[1].minor = 0;
    assert!(matches!(file.write(&twins), Err(ControlError::Invalid { .. })));
}

#[test]
fn writers_do_not_lose_each_others_changes() {
    let (_dir, file) = file();
    file.write(&Control::machine(&[Profile::TitanX], "x", 0)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    file.update(|control| control.gpus[0].push_xid(13)).unwrap();
                }
            });
        }
    });
    assert_eq!(file.read().unwrap().gpus[0].xid_seq, 40);
}

#[test]
fn the_xid_history_is_bounded_and_numbers_go_on() {
    let mut gpu = Control::machine(&[Profile::A100], "x", 0).gpus.remove(0);
    for _ in 0..XID_HISTORY_MAX + 5 {
        gpu.push_xid(31);
    }
    assert_eq!(gpu.xids.len(), XID_HISTORY_MAX);
    gpu.clear_faults();
    assert_eq!(gpu.xids.last().unwrap().seq, gpu.xid_seq);
}

#[test]
fn machines_differ_by_seed_and_are_stable() {
    let machine = |seed| Control::machine(&[Profile::V100Sxm2; 8], seed, 4);
    assert_eq!(machine("a"), machine("a"));
    assert_ne!(machine("a").gpus[0].uuid, machine("b").gpus[0].uuid);
    assert_eq!(machine("a").gpus[7].minor, 11);
    assert_eq!(machine("a").check(), Ok(()));
    assert_eq!("v100-sxm2".parse(), Ok(Profile::V100Sxm2));
    assert!("v100".parse::<Profile>().is_err());
}
