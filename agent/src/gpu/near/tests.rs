//! A made-up sysfs, and what is chosen by it.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::gpu::{DriverState, GpuState};

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0{index}")).unwrap()
}

/// A machine with some CPUs on, and GPUs that are near to some; `None`: the kernel has no such file.
struct Machine {
    sys: tempfile::TempDir,
    snapshot: GpuSnapshot,
}

fn machine(online: &str, near: &[Option<&str>]) -> Machine {
    let sys = tempfile::tempdir().unwrap();
    let cpus = sys.path().join("devices/system/cpu");
    fs::create_dir_all(&cpus).unwrap();
    fs::write(cpus.join("online"), format!("{online}\n")).unwrap();
    let mut snapshot = GpuSnapshot::empty(DriverState::Running);
    for (index, near) in (0..).zip(near) {
        snapshot.gpus.push(GpuState::of_tests(index));
        let Some(near) = near else { continue };
        let device = sys.path().join(format!("bus/pci/devices/0000:0{index}:00.0"));
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("local_cpulist"), format!("{near}\n")).unwrap();
    }
    Machine { sys, snapshot }
}

impl Machine {
    fn near(&self, gpus: &[u32], cpu_millis: u64) -> Option<String> {
        let wanted: Vec<GpuUuid> = gpus.iter().copied().map(uuid).collect();
        let found = near_cpus(self.sys.path(), &self.snapshot, &wanted, cpu_millis);
        found.map(|cpus| cpus.to_string())
    }
}

const ONE: Option<&str> = Some("0-15,32-47");
const TWO: Option<&str> = Some("16-31,48-63");

#[test]
fn a_job_keeps_to_the_cpus_of_its_gpus() {
    let both = machine("0-63", &[ONE, ONE, TWO, TWO]);
    assert_eq!(both.near(&[0], 16_000).as_deref(), ONE);
    assert_eq!(both.near(&[2], 1).as_deref(), TWO);
    assert_eq!(both.near(&[0, 1], 32_000).as_deref(), ONE);
    assert_eq!(both.near(&[0, 3], 32_000), None, "all that there are");
    let small = machine("0-7", &[Some("0-1"), Some("4-5"), Some("6-7")]);
    assert_eq!(small.near(&[0, 1], 4_000).as_deref(), Some("0-1,4-5"));
}

#[test]
fn a_job_that_asked_for_more_than_its_gpus_have_near_runs_anywhere() {
    let both = machine("0-63", &[ONE, ONE, TWO, TWO]);
    assert_eq!(both.near(&[0], 33_000), None, "more than are near");
    assert_eq!(both.near(&[0], 16_001), None, "more than the other GPU there leaves it");
    assert_eq!(both.near(&[0], 0), None, "without a limit it may use them all");
    // All GPUs at one socket: each one's share of the machine is twice its part of that socket.
    let lopsided = machine("0-63", &[ONE, ONE]);
    assert_eq!(lopsided.near(&[0], 32_000), None);
    assert_eq!(lopsided.near(&[0], 16_000).as_deref(), ONE);
    // The default of a job with one, and with all three at a socket.
    let odd = machine("0-63", &[ONE, ONE, ONE, TWO, TWO, TWO]);
    assert_eq!(odd.near(&[0], 64_000 / 6).as_deref(), ONE);
    assert_eq!(odd.near(&[0, 1, 2], 32_000).as_deref(), ONE);
}

#[test]
fn cpus_that_are_off_do_not_count() {
    let half = machine("0-31", &[ONE, TWO]);
    assert_eq!(half.near(&[0], 16_000).as_deref(), Some("0-15"));
    assert_eq!(half.near(&[0], 17_000), None);
    assert_eq!(machine("0-15", &[ONE, TWO]).near(&[1], 1_000), None, "none is left");
}

#[test]
fn where_the_kernel_says_nothing_a_job_runs_anywhere() {
    let one_of_two = machine("0-63", &[ONE, None]);
    assert_eq!(one_of_two.near(&[0], 1_000).as_deref(), ONE);
    assert_eq!(one_of_two.near(&[0, 1], 1_000), None);
    assert_eq!(machine("0-63", &[Some("0-63")]).near(&[0], 1_000), None, "no nodes of memory");
    assert_eq!(machine("0-63", &[Some("")]).near(&[0], 1_000), None);
    assert_eq!(machine("0-63", &[Some("nonsense")]).near(&[0], 1_000), None);
    assert_eq!(machine("", &[ONE]).near(&[0], 1_000), None);
    assert_eq!(machine("0-63", &[ONE]).near(&[7], 1_000), None, "not in this node");
}

#[test]
fn the_kernels_name_of_a_pci_device_is_shorter() {
    let path = |id: &str| local_list(Path::new("/s"), id);
    let wanted = Path::new("/s/bus/pci/devices/0000:3b:00.0/local_cpulist");
    assert_eq!(path("00000000:3B:00.0"), wanted);
    assert_eq!(path("0000:3b:00.0"), wanted);
    assert_eq!(
        path("00010000:3B:00.0"),
        Path::new("/s/bus/pci/devices/00010000:3b:00.0/local_cpulist")
    );
}
