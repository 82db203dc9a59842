//! Lists and choices; and groups made of plain files, where a link stands for what the kernel makes of a set.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use super::*;

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

#[test]
fn lists_are_read_and_written_as_the_kernel_has_them() {
    for (text, count) in [("", 0), ("3", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
        assert_eq!((set(text).len(), set(text).to_string().as_str()), (count, text));
    }
    assert_eq!(set("8,0-2,1-4\n").to_string(), "0-4,8");
    for text in ["a", "1-", "-1", "1-b", "0-65536", "0 1"] {
        assert_eq!(CpuSet::parse(text), Err(BadCpuList(text.to_owned())));
    }
    let stored = serde_json::to_string(&set("0-3,8")).unwrap();
    assert_eq!(stored, "\"0-3,8\"");
    assert_eq!(serde_json::from_str::<CpuSet>(&stored).unwrap(), set("0-3,8"));
}

#[test]
fn a_set_is_of_what_is_allowed_and_never_less_than_the_limit() {
    let (wanted, allowed) = (set("0-3,8-11"), set("2-9"));
    assert_eq!(chosen(&wanted, &allowed, 4), Some(set("2-3,8-9")));
    assert_eq!(chosen(&wanted, &allowed, 5), None);
    assert_eq!(chosen(&set("0-1"), &allowed, 0), None, "nothing would be left");
    assert_eq!(chosen(&set("0-15"), &allowed, 1), None, "it may use them all as it is");
}

/// A directory with the given files; a file that is named as a link shows what the other one holds.
fn group(dir: &Path, files: &[(&str, &str)], links: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
    for (name, target) in links {
        symlink(target, dir.join(name)).unwrap();
    }
}

fn choose(allowed: &CpuSet) -> Option<CpuSet> {
    chosen(&set("4-7"), allowed, 2)
}

#[test]
fn on_v2_a_set_that_did_not_come_out_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let (took, refused) = (dir.path().join("took"), dir.path().join("refused"));
    let effective = "cpuset.cpus.effective";
    group(&took, &[("cpuset.cpus", "0-7\n")], &[(effective, "cpuset.cpus")]);
    place_unified(&took, choose).unwrap();
    assert_eq!(fs::read_to_string(took.join("cpuset.cpus")).unwrap(), "4-7");

    group(&refused, &[("cpuset.cpus", "\n"), (effective, "0-7\n")], &[]);
    let error = place_unified(&refused, choose).unwrap_err();
    assert!(matches!(&error, CgroupError::NotKept { found, .. } if found == "0-7"), "{error}");
    assert_eq!(fs::read_to_string(refused.join("cpuset.cpus")).unwrap(), "\n");
    // Who asks for more than there are gets none.
    fs::write(refused.join(effective), "0-4\n").unwrap();
    place_unified(&refused, choose).unwrap();
    // Without the controller there are no files.
    assert!(place_unified(&dir.path().join("none"), choose).is_err());
}

#[test]
fn on_v1_the_levels_between_and_the_memory_are_as_above() {
    let root = tempfile::tempdir().unwrap();
    let (fleet, job) = (root.path().join("fleet"), root.path().join("fleet/alloc-x"));
    let effective = "cpuset.effective_cpus";
    group(
        root.path(),
        &[("cpuset.cpus", "0-7\n"), ("cpuset.mems", "0-1\n"), (effective, "0-7\n")],
        &[],
    );
    let empty = [("cpuset.cpus", "\n"), ("cpuset.mems", "\n")];
    for dir in [&fleet, &job] {
        group(dir, &empty, &[(effective, "cpuset.cpus")]);
    }
    let relative = Path::new("fleet/alloc-x");
    assert_eq!(place_v1(root.path(), relative, choose).unwrap().as_ref(), Some(&job));
    let found = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).unwrap();
    assert_eq!((found(&fleet, "cpuset.cpus"), found(&fleet, "cpuset.mems")), both("0-7", "0-1"));
    assert_eq!((found(&job, "cpuset.cpus"), found(&job, "cpuset.mems")), both("4-7", "0-1"));

    // What somebody has given the jobs stays, and a job is within it.
    fs::write(fleet.join("cpuset.cpus"), "2-5\n").unwrap();
    place_v1(root.path(), relative, choose).unwrap();
    assert_eq!((found(&fleet, "cpuset.cpus"), found(&job, "cpuset.cpus")), both("2-5\n", "4-5"));
    fs::write(fleet.join("cpuset.cpus"), "0-4\n").unwrap();
    assert_eq!(place_v1(root.path(), relative, choose).unwrap(), None);
}

fn both(one: &str, other: &str) -> (String, String) {
    (one.to_owned(), other.to_owned())
}

/// Above its unit the tree is systemd's.
#[test]
fn on_v2_the_controller_is_passed_down_within_a_unit_only() {
    for (relative, passed) in [
        ("fleet/alloc-x", ["+cpuset", "+cpuset", ""]),
        ("fleet.slice/fleet-x.service/job", ["", "", "+cpuset"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let levels = [("cgroup.controllers", "cpu cpuset\n"), ("cgroup.subtree_control", "")];
        let mut dir = root.path().to_owned();
        let mut dirs = vec![dir.clone()];
        for part in Path::new(relative) {
            group(&dir, &levels, &[]);
            dir = dir.join(part);
            dirs.push(dir.clone());
        }
        group(&dir, &levels, &[]);
        group(&dir, &[("cpuset.cpus", "0-7\n")], &[("cpuset.cpus.effective", "cpuset.cpus")]);
        let mounts = root.path().join("mountinfo");
        let point = root.path().display().to_string();
        fs::write(&mounts, format!("29 23 0:26 / {point} rw - cgroup2 cgroup2 rw\n")).unwrap();
        let hierarchies = Hierarchies::detect_in(&mounts, root.path()).unwrap();
        let mut job = Cgroup::at(&hierarchies, Path::new(relative)).unwrap();
        job.place(&hierarchies, &set("0-3"), 1).unwrap();
        for (dir, passed) in dirs.iter().zip(passed) {
            let found = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap();
            assert_eq!(found, passed, "{}", dir.display());
        }
        fs::write(dir.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let error = job.place(&hierarchies, &set("0-3"), 1).unwrap_err();
        assert!(matches!(error, CgroupError::NoController { .. }), "{error}");
    }
}
