#![allow(clippy::unwrap_used)]

use super::*;

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
90 31 0:38 / /tmp/elsewhere rw,relatime - cgroup2 cgroup2 rw
";

#[test]
fn a_hybrid_machine_is_recognised() {
    let found = Hierarchies::parse(HYBRID, Path::new(ROOT)).unwrap();
    assert_eq!(found.mode(), Mode::Hybrid);
    assert_eq!(found.unified(), Some(Path::new("/sys/fs/cgroup/unified")));
    assert_eq!(found.v1("cpuacct"), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct")));
    assert_eq!(found.v1("name=systemd"), None);
}

#[test]
fn unified_and_legacy_machines_are_recognised() {
    let unified = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    assert_eq!(Hierarchies::parse(unified, Path::new(ROOT)).unwrap().mode(), Mode::Unified);
    let legacy = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    assert_eq!(Hierarchies::parse(legacy, Path::new(ROOT)).unwrap().mode(), Mode::Legacy);
    assert!(Hierarchies::parse("1 1 0:1 / / rw - ext4 /dev/vda rw\n", Path::new(ROOT)).is_none());
}

#[test]
fn names_that_leave_the_tree_are_refused() {
    let hierarchies = Hierarchies::parse(HYBRID, Path::new(ROOT)).unwrap();
    for name in ["../x", "", "a/../../b", "."] {
        let plan = CgroupPlan::Path { parent: "fleet".to_owned(), name: name.to_owned() };
        assert!(Cgroup::locate(&hierarchies, &plan).is_err(), "{name:?} was accepted");
    }
}

/// Plain directories stand for hierarchies, as with a kernel an empty group is removed by `rmdir`.
#[test]
fn beside_systemd_only_groups_that_it_does_not_know_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let group = Path::new("fleet.slice");
    let hierarchies = ["cpu,cpuacct", "devices", "systemd", "freezer", "net_cls,net_prio", "misc"];
    let mount = |name: &&str| {
        let point = root.path().join(name);
        fs::create_dir_all(point.join(group)).unwrap();
        let option = if *name == "systemd" { "name=systemd" } else { name };
        format!("32 31 0:29 / {} rw - cgroup cgroup rw,{option}\n", point.display())
    };
    let table: String = hierarchies.iter().map(mount).collect();
    let busy = root.path().join("misc").join(group).join("job");
    fs::create_dir(&busy).unwrap();
    let found = Hierarchies::parse(&table, root.path()).unwrap();
    found.remove_empty_beside_systemd(group, Duration::from_millis(1));
    let left = hierarchies.iter().filter(|name| root.path().join(name).join(group).exists());
    assert_eq!(left.collect::<Vec<_>>(), [&"cpu,cpuacct", &"devices", &"systemd", &"misc"]);
}

#[test]
fn values_are_found_by_their_key() {
    let text = "usage_usec 120\nuser_usec 7\n";
    assert_eq!(keyed(text, "user_usec"), Some(7));
    assert_eq!(keyed(text, "usec"), None);
}

/// A group made of plain directories: enough for the rules that do not need a kernel.
#[test]
fn a_missing_group_is_empty_and_removing_it_is_no_error() {
    let root = tempfile::tempdir().unwrap();
    let group = Cgroup {
        mode: Mode::Unified,
        unified: Some(root.path().join("fleet/alloc-x")),
        v1: BTreeMap::new(),
        unused: Vec::new(),
        relative: PathBuf::from("fleet/alloc-x"),
    };
    assert!(!group.populated().unwrap());
    assert!(group.members().unwrap().is_empty());
    group.kill_all().unwrap();
    group.remove().unwrap();
    assert!(!group.exists());
}
