#![allow(clippy::unwrap_used, reason = "tests")]
//! Files as kernels show them, in directories that stand for the hierarchies.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use cgroups_rs::fs::blkio::BlkIoController;
use fleet_kernel::cgroup::{CgroupPlan, Hierarchies};
use tempfile::TempDir;

use super::*;

const UNIFIED: &[(&str, &str)] = &[
    ("cpu.stat", "usage_usec 7250000\nuser_usec 7000000\nsystem_usec 250000\n"),
    ("memory.current", "1073741824\n"),
    ("memory.peak", "2147483648\n"),
    ("memory.max", "max\n"),
    ("memory.stat", "anon 1000000000\nfile 73741824\n"),
    ("pids.current", "37\n"),
    (
        "io.stat",
        "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n\
         8:0 rbytes=1000 wbytes=0 rios=1 wios=0 dbytes=0 dios=0 use_delay=0\n",
    ),
    ("cpu.pressure", "some avg10=12.50 avg60=3.00 avg300=1.00 total=900000\n"),
    (
        "memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=8\n",
    ),
    ("io.pressure", "some avg10=99.99 avg60=0.00 avg300=0.00 total=12345\n"),
];

const MEMORY_V1: &[(&str, &str)] = &[
    ("memory.usage_in_bytes", "1073741824\n"),
    ("memory.max_usage_in_bytes", "2147483648\n"),
    ("memory.limit_in_bytes", "9223372036854771712\n"),
    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
    (
        "memory.numa_stat",
        "total=51189 N0=51189\nfile=50175 N0=50175\nanon=1014 N0=1014\nunevictable=0 N0=0\n",
    ),
];
const PIDS_V1: &[(&str, &str)] = &[("pids.current", "37\n")];
const CPUACCT_V1: &[(&str, &str)] = &[("cpuacct.usage", "7250000999\n")];
const BLKIO_V1: &[(&str, &str)] = &[(
    "blkio.throttle.io_service_bytes_recursive",
    "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Async 2\n8:0 Total 12288\n\
     259:0 Read 1000\n259:0 Write 0\n259:0 Total 1000\nTotal 13288\n",
)];

type Tree<'a> = [(&'a str, &'a str, &'a [(&'a str, &'a str)])];

/// A machine with these hierarchies (mount point below the root, its options, files of the group) and one group.
fn machine(tree: &Tree<'_>) -> (TempDir, Cgroup) {
    let root = tempfile::tempdir().unwrap();
    let mut mounts = String::new();
    for (point, options, files) in tree {
        let kind = if options.is_empty() { "cgroup2" } else { "cgroup" };
        let point = root.path().join(point);
        let dir = point.join("fleet/alloc-a-1");
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in *files {
            fs::write(dir.join(name), text).unwrap();
        }
        let options = if options.is_empty() { "rw".to_owned() } else { format!("rw,{options}") };
        mounts
            .push_str(&format!("31 23 0:28 / {} rw - {kind} {kind} {options}\n", point.display()));
    }
    let table = root.path().join("mountinfo");
    fs::write(&table, mounts).unwrap();
    let hierarchies = Hierarchies::detect_in(&table, root.path()).unwrap();
    let plan = CgroupPlan::Path { parent: "fleet".to_owned(), name: "alloc-a-1".to_owned() };
    let group = Cgroup::locate(&hierarchies, &plan).unwrap();
    (root, group)
}

/// What the files above say on cgroup v2, without pressure.
fn expected() -> JobUse {
    JobUse {
        cpu_usec: Some(7_250_000),
        memory_bytes: Some(1 << 30),
        memory_peak_bytes: Some(2 << 30),
        read_bytes: Some(5_096),
        written_bytes: Some(8_192),
        pids: Some(37),
        ..JobUse::default()
    }
}

fn with_pressure(found: JobUse) -> JobUse {
    let stall = |percent, total_usec| Some(Stall { percent, total_usec });
    JobUse {
        cpu_stall: stall(13, 900_000),
        memory_stall: stall(0, 0),
        io_stall: stall(100, 12_345),
        ..found
    }
}

/// v1 counts next to nothing of what is written.
fn without_writes() -> JobUse {
    JobUse { written_bytes: None, ..expected() }
}

#[test]
fn a_unified_machine_says_all() {
    let (_root, group) = machine(&[("", "", UNIFIED)]);
    assert_eq!(read::read(&group), with_pressure(expected()));
}

#[test]
fn a_machine_of_v1_says_all_but_pressure_and_writes() {
    let (_root, group) = machine(&[
        ("cpu,cpuacct", "cpu,cpuacct", CPUACCT_V1),
        ("memory", "memory", MEMORY_V1),
        ("pids", "pids", PIDS_V1),
        ("blkio", "blkio", BLKIO_V1),
    ]);
    assert_eq!(read::read(&group), without_writes());
}

/// Its cgroup2 tree has no controllers: processor time and pressure are there, all else is in the trees of v1.
#[test]
fn a_hybrid_machine_says_all_but_writes() {
    let bare = |(name, _): &&(&str, &str)| name.ends_with("pressure") || *name == "cpu.stat";
    let bare: Vec<_> = UNIFIED.iter().filter(bare).copied().collect();
    let (_root, group) = machine(&[
        ("cpu,cpuacct", "cpu,cpuacct", &[]),
        ("memory", "memory", MEMORY_V1),
        ("pids", "pids", PIDS_V1),
        ("blkio", "blkio", BLKIO_V1),
        ("unified", "", &bare),
    ]);
    assert_eq!(read::read(&group), with_pressure(without_writes()));
}

#[test]
fn what_the_kernel_does_not_say_is_unknown_and_not_zero() {
    let (_root, group) = machine(&[("", "", &[])]);
    assert_eq!(read::read(&group), JobUse::default());
    let names = ["memory", "pids", "blkio", "cpuacct"];
    let (_root, group) = machine(&names.map(|name| (name, name, &[][..])));
    assert_eq!(read::read(&group), JobUse::default());
    // No device was used: that is known.
    let (_root, group) = machine(&[("", "", &[("io.stat", "")])]);
    let nothing = JobUse { read_bytes: Some(0), written_bytes: Some(0), ..JobUse::default() };
    assert_eq!(read::read(&group), nothing);
}

/// Why I/O is not read by way of cgroups-rs. Should this fail with a later version, ADR 54 can be changed.
#[test]
fn cgroups_rs_reads_no_bytes_from_io_stat() {
    let (_root, group) = machine(&[("", "", UNIFIED)]);
    let dir = group.unified.unwrap();
    let found = BlkIoController::new(dir.clone(), dir, true).blkio().io_stat;
    assert_eq!(found.len(), 1, "a line with more than seven words is left out");
    assert_eq!((found[0].major, found[0].rbytes, found[0].wbytes), (259, 0, 0));
}

#[test]
fn processor_use_is_the_mean_between_two_looks() {
    let (_root, group) = machine(&[("", "", UNIFIED)]);
    let stat = group.unified.as_deref().map(|dir: &Path| dir.join("cpu.stat")).unwrap();
    let id = AllocationId::parse("alloc-a-1").unwrap();
    let running = BTreeSet::from([id.clone()]);
    let (mut looker, start) = (Looker::default(), Instant::now());
    let mut look = |usec: u64, at: u64| {
        fs::write(&stat, format!("usage_usec {usec}\n")).unwrap();
        let now = start + Duration::from_secs(at);
        let seen = looker.look(&running, |_| Some(group.clone()), || now);
        assert_eq!(seen[&id].0, now);
        seen[&id].1.cpu_millis
    };
    assert_eq!(look(1_000_000, 0), None, "one look is no mean");
    assert_eq!(look(8_500_000, 5), Some(1_500));
    assert_eq!(look(8_500_000, 10), Some(0), "it did nothing: that is known");
    assert_eq!(look(8_500_000, 10), None, "no time has passed");
    assert_eq!(look(5, 15), None, "counted from the beginning again");
    let none = BTreeSet::new();
    assert_eq!(looker.look(&none, |_| None, || start), Seen::new());
    assert!(looker.0.is_empty());
}

#[test]
fn a_group_that_is_not_known_yet_is_left_out() {
    let running = BTreeSet::from([AllocationId::parse("alloc-a-1").unwrap()]);
    let mut looker = Looker::default();
    assert_eq!(looker.look(&running, |_| None, Instant::now), Seen::new());
    let (_root, group) = machine(&[("", "", UNIFIED)]);
    assert_eq!(looker.look(&running, |_| Some(group.clone()), Instant::now).len(), 1);
}

#[test]
fn each_group_has_the_time_of_its_own_read() {
    let (_root, group) = machine(&[("", "", UNIFIED)]);
    let ids = ["alloc-a-1", "alloc-b-1"].map(|id| AllocationId::parse(id).unwrap());
    let (start, reads) = (Instant::now(), Cell::new(0));
    let now = || {
        reads.set(reads.get() + 1);
        start + Duration::from_secs(reads.get())
    };
    let mut looker = Looker::default();
    let seen = looker.look(&BTreeSet::from(ids.clone()), |_| Some(group.clone()), now);
    assert_eq!(ids.map(|id| (seen[&id].0 - start).as_secs()), [1, 2]);
}

#[test]
fn a_panic_of_cgroups_rs_costs_only_the_attempt_that_it_read() {
    let odd =
        [("memory.oom_control", "oom_kill_disable what\n"), ("memory.usage_in_bytes", "4096\n")];
    let (_root, odd) = machine(&[("memory", "memory", &odd)]);
    let (_other, good) = machine(&[("", "", UNIFIED)]);
    let [first, second] = ["alloc-a-1", "alloc-b-1"].map(|id| AllocationId::parse(id).unwrap());
    let group_of = |id: &AllocationId| Some(if *id == first { odd.clone() } else { good.clone() });
    let mut looker = Looker::default();
    let seen =
        looker.look(&BTreeSet::from([first.clone(), second.clone()]), group_of, Instant::now);
    assert_eq!(seen.keys().collect::<Vec<_>>(), [&second]);
    assert!(looker.0[&first].warned && !looker.0[&second].warned);
}

#[test]
fn values_of_a_read_that_hangs_are_unknown_after_three_looks() {
    let ids = ["alloc-a-1", "alloc-b-1"].map(|id| AllocationId::parse(id).unwrap());
    let now = Instant::now();
    let before = |age: Duration| now.checked_sub(age).unwrap();
    let seen = [
        (ids[0].clone(), (before(LOOK_EVERY), expected())),
        (ids[1].clone(), (before(LOOK_EVERY * 3 + Duration::from_millis(1)), expected())),
    ];
    let (_sender, receiver) = watch::channel(Arc::new(Seen::from(seen)));
    let uses = JobUses(receiver);
    assert_eq!(uses.latest(), BTreeMap::from([(ids[0].clone(), expected())]));
    let sent: Vec<_> = uses.to_wire().into_iter().map(|one| one.allocation).collect();
    assert_eq!(sent, ["alloc-a-1"]);
}
