//! The gate in a real kernel, on a control group of the test's own: who passes, who does not, and what stays.
//!
//! Needs root and a cgroup2 tree; says SKIPPED aloud elsewhere. What is opened are device nodes without a driver behind
//! them: ENXIO says that the kernel let it through.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_agent::containers;
use fleet_agent::gate::kernel::{self, Gate, Pass, Site, Wish};
use fleet_kernel::cgroup::Hierarchies;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

const NVIDIA: u32 = 195;
const ADA: u32 = 61_001;
const EVE: u32 = 61_002;
/// Until the last process of a group has gone for good.
const GONE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    LetThrough,
    Denied,
}
use Answer::{Denied, LetThrough};

struct Ground {
    root: PathBuf,
    /// Below the root of the tree.
    name: String,
    devices: tempfile::TempDir,
}

impl Ground {
    fn new(test: &str) -> Option<Self> {
        let hierarchies = Hierarchies::detect().ok()?;
        let unified = hierarchies.unified().map(Path::to_owned);
        let (Some(unified), true) = (unified, nix::unistd::geteuid().is_root()) else {
            eprintln!("SKIPPED: needs root and a cgroup2 tree");
            return None;
        };
        let name = format!("fleet-gate-{test}-{}", std::process::id());
        let devices = tempfile::tempdir().unwrap();
        fs::set_permissions(devices.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for minor in [0, 1, 254, 255] {
            let path = devices.path().join(format!("nvidia{minor}"));
            mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(u64::from(NVIDIA), minor)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        }
        let ground = Self { root: unified.join(&name), name, devices };
        for group in ["login", "jobs/one", "docker/one"] {
            fs::create_dir_all(ground.root.join(group)).unwrap();
        }
        Some(ground)
    }

    fn site(&self) -> Site {
        self.site_of("jobs")
    }

    fn site_of(&self, jobs: &str) -> Site {
        let below = |group: &str| format!("{}/{group}", self.name);
        Site::find(Some(&self.name), &below(jobs), &below("docker")).unwrap()
    }

    /// The group of a user's containers.
    fn containers_of(&self, uid: u32) -> String {
        let group = format!("docker/{}", containers::slice_of(uid));
        fs::create_dir_all(self.root.join(&group).join("one")).unwrap();
        format!("{group}/one")
    }

    /// Opens a GPU as this user and group, in this control group.
    fn opens(&self, group: &str, uid: u32, gid: u32, minor: u32) -> Answer {
        let script = format!(
            "echo 0 > {}/cgroup.procs && exec setpriv --reuid {uid} --regid {gid} --clear-groups \
             sh -c ': < {}/nvidia{minor}'",
            self.root.join(group).display(),
            self.devices.path().display()
        );
        let ran = Command::new("sh").args(["-c", &script]).env("LC_ALL", "C").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if said.contains("No such device") {
            return LetThrough;
        }
        assert!(said.contains("Operation not permitted"), "{said}");
        Denied
    }

    fn login(&self, uid: u32, minor: u32) -> Answer {
        self.opens("login", uid, uid, minor)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let deadline = Instant::now() + GONE_MAX;
        let slices = [ADA, EVE].map(|uid| format!("docker/{}", containers::slice_of(uid)));
        let of_users = slices.iter().flat_map(|slice| [format!("{slice}/one"), slice.clone()]);
        let others = ["docker/one", "docker", "login", "jobs/one", "jobs", ""].map(str::to_owned);
        for group in of_users.chain(others) {
            let path = self.root.join(group);
            while fs::remove_dir(&path).is_err() && path.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn wish(deny: bool, passes: &[Pass]) -> Wish {
    Wish { deny, cards: NVIDIA, passes: passes.iter().copied().collect() }
}

#[test]
fn only_who_is_said_passes_and_at_once() {
    let Some(ground) = Ground::new("passes") else { return };
    let mut gate = Gate::install(ground.site(), &wish(true, &[Pass::user(ADA, 0)])).unwrap();
    assert_eq!(ground.login(ADA, 0), LetThrough);
    assert_eq!(ground.login(ADA, 1), Denied);
    assert_eq!(ground.login(EVE, 0), Denied);
    assert_eq!(ground.login(EVE, 0), Denied);
    for control in [254, 255] {
        assert_eq!(ground.login(EVE, control), LetThrough, "everybody needs {control}");
    }
    assert_eq!(ground.login(0, 1), LetThrough, "root passes");
    let counted = gate.denials().unwrap();
    assert_eq!(counted.get(&(EVE, 0)), Some(&2));
    assert_eq!(counted.get(&(ADA, 1)), Some(&1));
    assert_eq!(counted.len(), 2);
    gate.set_passes(&BTreeSet::from([Pass::user(EVE, 0)])).unwrap();
    assert_eq!(ground.login(EVE, 0), LetThrough);
    assert_eq!(ground.login(ADA, 0), Denied);
    gate.set_passes(&BTreeSet::from([Pass::exempt_user(ADA), Pass::exempt_group(700)])).unwrap();
    assert_eq!(ground.login(ADA, 1), LetThrough);
    assert_eq!(ground.login(EVE, 1), Denied);
    assert_eq!(ground.opens("login", EVE, 700, 1), LetThrough);
    // A group's number is no user's.
    assert_eq!(ground.opens("login", 700, EVE, 1), Denied);
    assert!(kernel::remove(&ground.site()).unwrap());
    assert_eq!(ground.login(EVE, 1), LetThrough);
}

#[test]
fn it_only_counts_until_it_is_told_to_deny_and_stays_when_nobody_holds_it() {
    let Some(ground) = Ground::new("stays") else { return };
    let site = ground.site();
    drop(Gate::install(site.clone(), &wish(false, &[])).unwrap());
    assert_eq!(ground.login(EVE, 0), LetThrough);
    let shown = kernel::show(&site).unwrap().unwrap();
    assert_eq!((shown.deny, shown.denials), (false, vec![((EVE, 0), 1)]));
    // The next one takes its place, with the counts.
    drop(Gate::install(site.clone(), &wish(true, &[Pass::user(ADA, 1)])).unwrap());
    assert_eq!(ground.login(EVE, 0), Denied);
    assert_eq!(ground.login(ADA, 1), LetThrough);
    let shown = kernel::show(&site).unwrap().unwrap();
    assert_eq!((shown.deny, shown.denials), (true, vec![((EVE, 0), 2)]));
    let mut attached = fleet_kernel::filter::attached(site.cgroup()).unwrap();
    assert_eq!(attached.len(), 1, "it was replaced, not added");
    // One that somebody takes off is missed, and what others put there is left alone.
    let gate = Gate::install(site.clone(), &wish(true, &[])).unwrap();
    assert!(gate.is_there().unwrap());
    assert!(kernel::remove(&site).unwrap());
    assert!(!gate.is_there().unwrap());
    let other = fleet_kernel::filter::attach(site.cgroup(), &[]).unwrap();
    assert!(!kernel::remove(&site).unwrap());
    attached = fleet_kernel::filter::attached(site.cgroup()).unwrap();
    assert_eq!(attached.len(), 1);
    fleet_kernel::filter::detach(&other).unwrap();
}

#[test]
fn jobs_pass_by_their_control_group_where_the_kernel_can_tell() {
    let Some(ground) = Ground::new("jobs") else { return };
    let gate = Gate::install(ground.site(), &wish(true, &[])).unwrap();
    if !gate.tells_jobs() {
        eprintln!("SKIPPED: this kernel does not tell device programs the control group");
        drop(kernel::remove(&ground.site()));
        return;
    }
    assert_eq!(ground.opens("jobs/one", EVE, EVE, 0), LetThrough);
    assert_eq!(ground.login(EVE, 0), Denied);
    // The group of all jobs is removed and made again: another group, of the same name.
    let jobs = ground.root.join("jobs");
    fs::remove_dir(jobs.join("one")).unwrap();
    fs::remove_dir(&jobs).unwrap();
    fs::create_dir_all(jobs.join("one")).unwrap();
    gate.set_trees().unwrap();
    assert_eq!(ground.opens("jobs/one", EVE, EVE, 0), LetThrough);
    assert!(kernel::remove(&ground.site()).unwrap());
}

#[test]
fn containers_of_dockerd_open_what_their_user_may_though_they_are_roots() {
    let Some(ground) = Ground::new("containers") else { return };
    let mut gate = Gate::install(ground.site(), &wish(true, &[Pass::user(ADA, 0)])).unwrap();
    if !gate.tells_jobs() {
        eprintln!("SKIPPED: this kernel does not tell device programs the control group");
        drop(kernel::remove(&ground.site()));
        return;
    }
    assert_eq!(ground.opens("login", 0, 0, 0), LetThrough, "root by itself passes");
    assert_eq!(ground.opens("docker/one", 0, 0, 0), Denied, "a container that nobody answers for");
    assert_eq!(ground.opens("docker/one", ADA, ADA, 0), Denied);
    let (ada, eve) = (ground.containers_of(ADA), ground.containers_of(EVE));
    assert_eq!(ground.opens(&ada, 0, 0, 0), Denied, "until its group is known");
    assert_eq!(gate.set_trees().unwrap(), Some(BTreeSet::from([ADA, EVE])));
    for uid in [0, 33, EVE] {
        assert_eq!(ground.opens(&ada, uid, uid, 0), LetThrough, "for every user inside");
        assert_eq!(ground.opens(&ada, uid, uid, 1), Denied);
        assert_eq!(ground.opens(&eve, uid, uid, 0), Denied);
    }
    assert_eq!(gate.denials().unwrap().get(&(EVE, 0)), Some(&3), "who is denied is the user");
    gate.set_passes(&BTreeSet::from([Pass::user(EVE, 0)])).unwrap();
    assert_eq!(ground.opens(&ada, 0, 0, 0), Denied, "at once, as for who is logged in");
    assert_eq!(ground.opens(&eve, 0, 0, 0), LetThrough);
    // What makes a node and opens nothing is refused, and no denial.
    let before = gate.denials().unwrap();
    let node = ground.devices.path().join("made");
    let make = format!(
        "echo 0 > {}/cgroup.procs && exec mknod {} c {NVIDIA} 0",
        ground.root.join(&ada).display(),
        node.display()
    );
    let made = Command::new("sh").args(["-c", &make]).output().unwrap();
    assert!(!made.status.success() && !node.exists(), "{made:?}");
    assert_eq!(gate.denials().unwrap(), before);
    // A group below that of all jobs is a job's, whatever it is called.
    assert_eq!(ground.opens("jobs/one", EVE, EVE, 1), LetThrough);
    // Without the agent it stays as it is.
    drop(gate);
    assert_eq!(ground.opens(&eve, 0, 0, 0), LetThrough);
    assert_eq!(ground.opens(&ada, 0, 0, 0), Denied);
    assert!(kernel::remove(&ground.site()).unwrap());
    assert_eq!(ground.opens(&ada, 0, 0, 0), LetThrough);
}

#[test]
fn numbers_of_a_range_pass_where_their_owner_does() {
    let Some(ground) = Ground::new("subuids") else { return };
    let mut gate = Gate::install(ground.site(), &wish(true, &[Pass::user(ADA, 0)])).unwrap();
    let inside = [700_000, 700_033, 765_535];
    assert_eq!(ground.login(700_033, 0), Denied);
    let set = |gate: &mut Gate, text: &str, people: &[u32]| {
        let file = fleet_user::SubuidFile::parse(text);
        let found = file.resolve(|_| None, people.iter().copied());
        gate.set_subordinates(&Arc::new(found)).unwrap();
    };
    let ranges = format!("{ADA}:700000:65536\n{EVE}:765536:65536\n");
    set(&mut gate, &ranges, &[]);
    for uid in inside {
        assert_eq!(ground.login(uid, 0), LetThrough, "{uid}");
        assert_eq!(ground.login(uid, 1), Denied, "{uid}");
    }
    for uid in [699_999, 765_536, 831_072] {
        assert_eq!(ground.login(uid, 0), Denied, "{uid}");
    }
    let denied = gate.denials().unwrap();
    assert_eq!((denied.get(&(ADA, 1)), denied.get(&(EVE, 0))), (Some(&3), Some(&1)));
    assert_eq!(denied.get(&(700_033, 0)), Some(&1), "before anybody knew whose it is");
    // The owner's time is over, and then the range itself is gone.
    gate.set_passes(&BTreeSet::from([Pass::user(700_000, 1)])).unwrap();
    assert_eq!(ground.login(700_033, 0), Denied);
    assert_eq!(ground.login(700_000, 1), LetThrough, "a person with such a number passes as such");
    gate.set_passes(&BTreeSet::from([Pass::user(ADA, 0)])).unwrap();
    // A person's own number is inside the range.
    set(&mut gate, &ranges, &[700_033]);
    assert_eq!(ground.login(700_033, 0), Denied);
    assert_eq!(ground.login(700_034, 0), LetThrough);
    assert_eq!(gate.denials().unwrap().get(&(700_033, 0)), Some(&2), "as themselves");
    set(&mut gate, "", &[]);
    assert_eq!(ground.login(700_034, 0), Denied);
    assert!(kernel::remove(&ground.site()).unwrap());
}

#[test]
fn without_a_cgroup_nothing_is_there_and_nothing_to_remove() {
    let Some(ground) = Ground::new("none") else { return };
    let site = Site::find(Some(&format!("{}-not-there", ground.name)), "jobs", "docker").unwrap();
    assert_eq!(kernel::show(&site).unwrap(), None);
    assert!(!kernel::remove(&site).unwrap());
}
