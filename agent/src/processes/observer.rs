//! Who has a GPU open: by the driver's word, and by the descriptors in `/proc`.
//!
//! Everything here reads `/proc` and may take a while on a busy node: call it on a thread of its own, and
//! only where a GPU is concerned. Nothing here ends a process.
//!
//! Whose a process is: a container of dockerd is its group's user's, or nobody's; a subordinate number in a user namespace
//! is its owner's; all others are who they are. The gate goes by the same, as far as a kernel can.
//!
//! What a process is called is believed only of those who need no lease: root, the system's users, the exempt.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_core::name::GpuUuid;

use super::proc_link;
use super::spared::Spared;
use crate::clock;
use crate::containers::user_behind;
use crate::gpu::GpuSnapshot;
use crate::unit::unit_name;
use fleet_kernel::filter::NvidiaMajors;
use fleet_kernel::proc_stat::{since_boot, started_ticks};
use fleet_user::Subordinates;

/// The number of no group (`(gid_t) -1`).
const NO_GROUP: u32 = u32::MAX;
/// Most descriptors of one process that are read.
const DESCRIPTORS_MAX: usize = 65_536;
/// A process that has a GPU open for longer does more than look at it once. Without `nvidia-persistenced` the driver
/// may take seconds.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Who it is now: who answers for that number.
    pub uid: u32,
    /// Who started it, whatever it has become; the same.
    pub real_uid: u32,
    pub real_gid: u32,
    /// When, in ticks since boot: with its number, that is this process and no other.
    pub started: u64,
    pub name: String,
    /// Those directly below the group of all jobs that it is in: of one attempt, as a rule, in each hierarchy.
    of_jobs: Vec<String>,
    exe: Option<Executable>,
}

/// The file that a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Executable {
    name: String,
    file: proc_link::File,
}

impl Executable {
    fn of(dir: &Path) -> Option<Self> {
        let link = dir.join("exe");
        let path = fs::read_link(&link).ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Self { name, file: proc_link::file(&link)? })
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}, uid {})", self.name, self.pid, self.uid)
    }
}

impl Process {
    /// Whether it runs in the control group of that attempt.
    pub fn is_of(&self, id: &AllocationId) -> bool {
        let unit = unit_name(id.as_str());
        self.of_jobs.iter().any(|group| group == id.as_str() || *group == unit)
    }

    /// Whether its file is root's and has one of these names.
    fn is_called(&self, names: &[String]) -> bool {
        let Some(exe) = &self.exe else { return false };
        exe.file.uid == 0 && names.contains(&exe.name)
    }

    /// Whether it runs the same program as this process, as the same user. Compares the files: in another mount
    /// namespace the same path may be another file.
    fn is_ours(&self) -> bool {
        let own = || proc_link::file(Path::new("/proc/self/exe"));
        let user = nix::unistd::getuid().as_raw();
        self.real_uid == user
            && self.exe.as_ref().is_some_and(|exe| own().as_ref() == Some(&exe.file))
    }

    /// How long ago it began.
    fn age(&self) -> Duration {
        clock::since_boot().saturating_sub(since_boot(self.started))
    }
}

/// What `/proc` says of a process; `None` when there is none.
fn process(pid: u32, subordinates: &Subordinates, jobs: &Path) -> Option<Process> {
    let dir = Path::new("/proc").join(pid.to_string());
    let started = started_ticks(&pid.to_string())?;
    let uid = fs::metadata(&dir).ok()?.uid();
    let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
    let real = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let (real_uid, real_gid) = (real("Uid:").unwrap_or(uid), real("Gid:").unwrap_or(0));
    let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
    let cgroups = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    let behind = user_behind(&cgroups)
        .or_else(|| subordinates.owner(real_uid).filter(|_| in_other_namespace(&dir)));
    // Groups in a container are the container's.
    let (uid, real_uid, real_gid) =
        behind.map_or((uid, real_uid, real_gid), |user| (user, user, NO_GROUP));
    let exe = Executable::of(&dir);
    let name = name.trim().chars().filter(|c| !c.is_control()).collect();
    Some(Process {
        pid,
        uid,
        real_uid,
        real_gid,
        started,
        name,
        of_jobs: below(&cgroups, jobs),
        exe,
    })
}

/// The groups directly below this one that a process is in, by its `/proc/PID/cgroup`, in whatever hierarchies. Only paths
/// from the root count: users may make groups of any name below their own (`systemd-run --user`).
fn below(cgroups: &str, parent: &Path) -> Vec<String> {
    let group = |line: &str| {
        let path = line.splitn(3, ':').nth(2)?.strip_prefix('/')?;
        let inside = Path::new(path).strip_prefix(parent).ok()?;
        Some(inside.components().next()?.as_os_str().to_str()?.to_owned())
    };
    let mut found: Vec<String> = cgroups.lines().filter_map(group).collect();
    found.dedup();
    found
}

/// Whether its users are others than this program's. Where that cannot be seen they are not.
fn in_other_namespace(dir: &Path) -> bool {
    let namespace = |dir: &Path| fs::read_link(dir.join("ns/user"));
    namespace(dir).is_ok_and(|its| namespace(Path::new("/proc/self")).is_ok_and(|own| own != its))
}

/// A process on a GPU that nothing explains. Some drivers list pids that do not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    pub pid: u32,
    pub found: Option<Process>,
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.found {
            Some(found) => write!(f, "{found}"),
            None => write!(f, "pid {}, which is not in /proc", self.pid),
        }
    }
}

/// Looks at the processes of this node, knowing what is known of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Observer {
    /// Programs of the administrator's that may use a GPU at any time.
    pub baseline: Arc<[String]>,
    pub subordinates: Arc<Subordinates>,
    /// Users that need no lease: the system's users, and those that the administrator exempts.
    pub trusted: Spared,
    /// The group of all jobs, below the root of each hierarchy.
    pub jobs: PathBuf,
}

impl Observer {
    /// What `/proc` says of a process; `None` when there is none.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<Process> {
        process(pid, &self.subordinates, &self.jobs)
    }

    /// Whether it is one of the administrator's own, or ours. A person's is not, whatever it is called: anybody can have
    /// `nvidia-smi` do something else (`LD_PRELOAD`), and mount another program under its name.
    #[must_use]
    pub fn is_baseline(&self, process: &Process) -> bool {
        process.is_ours() || (self.trusted.covers(process) && self.has_known_name(process))
    }

    /// Whether it has the name of one of the administrator's programs, run by any user. People monitor GPUs with some
    /// of them (`nvidia-smi`, `nvtop`); these have a GPU open, but do not use it.
    #[must_use]
    pub fn has_known_name(&self, process: &Process) -> bool {
        process.is_called(&self.baseline)
    }

    /// Whether one that has a GPU open, and is not shown on it by the driver, keeps it from being empty. Who looks at it
    /// does so only where `lookers` have to go: elsewhere nobody ends them, and an `nvtop` that somebody forgot would hold
    /// it for ever.
    #[must_use]
    pub fn is_in_the_way(&self, process: &Process, lookers: bool) -> bool {
        lookers || !self.has_known_name(process)
    }

    /// Whether a process that has a GPU open is there to stay, so that fleet may tell it to end: one that only looks at
    /// the GPU mostly ends by itself.
    #[must_use]
    pub fn stays(&self, process: &Process) -> bool {
        !self.has_known_name(process) || process.age() >= LOOK_MAX
    }

    /// The processes that the driver shows on a GPU and that nothing explains: neither one of the attempts,
    /// nor one of these users, nor the baseline.
    #[must_use]
    pub fn foreign(
        &self,
        snapshot: &GpuSnapshot,
        gpu: &GpuUuid,
        attempts: &[AllocationId],
        uids: &[u32],
    ) -> Vec<Foreign> {
        let Some(state) = snapshot.gpu(gpu) else { return Vec::new() };
        let Some(listed) = state.telemetry.processes.value() else { return Vec::new() };
        let mut pids: Vec<u32> = listed.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let foreign = |pid: u32| match self.process(pid) {
            None => Some(Foreign { pid, found: None }),
            Some(found) => {
                let explained = uids.contains(&found.uid)
                    || attempts.iter().any(|id| found.is_of(id))
                    || self.is_baseline(&found);
                (!explained).then_some(Foreign { pid, found: Some(found) })
            }
        };
        pids.into_iter().filter_map(foreign).collect()
    }

    /// The processes that have these GPUs open, by their descriptors, with the minor number; but for the baseline.
    #[must_use]
    pub fn by_descriptors(&self, minors: &[u32]) -> Vec<(u32, Process)> {
        let mut found = Vec::new();
        if minors.is_empty() {
            return found;
        }
        let cards = NvidiaMajors::cards_now();
        let Ok(entries) = fs::read_dir("/proc") else { return found };
        let pids =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            let open = opened(pid, cards, minors);
            let Some(holder) = (!open.is_empty()).then(|| self.process(pid)).flatten() else {
                continue;
            };
            if !self.is_baseline(&holder) {
                found.extend(open.into_iter().map(|minor| (minor, holder.clone())));
            }
        }
        found
    }
}

/// Which of the character devices with this major number a process has open. By the number, whatever the name: anybody
/// may call a file `nvidia3`, and a device may be mounted under any name.
fn opened(pid: u32, major: u32, minors: &[u32]) -> BTreeSet<u32> {
    // A process that went away while we looked has nothing open.
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = descriptors.take(DESCRIPTORS_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let minor = |link: PathBuf| {
        let (of, minor) = proc_link::character_device(&link)?;
        (of == major && minors.contains(&minor) && proc_link::is_opened(&link)).then_some(minor)
    };
    links.filter_map(minor).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_of_an_attempt_by_its_group_at_the_root_and_no_other() {
        let observer = Observer::default();
        let own = observer.process(std::process::id()).unwrap();
        let id = AllocationId::parse("alloc-a-1").unwrap();
        let is_of = |cgroups: &str, jobs: &str| {
            Process { of_jobs: below(cgroups, Path::new(jobs)), ..own.clone() }.is_of(&id)
        };
        let nested = "fleet.slice/fleet-dev.slice";
        for (cgroups, jobs) in [
            ("0::/fleet/alloc-a-1\n", "fleet"),
            ("0::/fleet.slice/fleet-alloc-a-1.service/job\n", "fleet.slice"),
            ("0::/fleet.slice/fleet-dev.slice/fleet-alloc-a-1.service/job\n", nested),
            ("3:cpu,cpuacct:/\n2:freezer:/fleet/alloc-a-1\n1:name=systemd:/x\n0::/\n", "fleet"),
        ] {
            assert!(is_of(cgroups, jobs), "{cgroups}");
        }
        for (cgroups, jobs) in [
            ("0::/fleet/alloc-a-11\n", "fleet"),
            ("0::/fleet\n", "fleet"),
            ("0::/fleet.slice/fleet-alloc-a-1.service/job\n", nested),
            ("0::/fleet.slice/fleet-alloc-a-2.service/fleet-alloc-a-1.service\n", "fleet.slice"),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/fleet-alloc-a-1.service\n",
                "fleet.slice",
            ),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/fleet.slice/fleet-alloc-a-1.service\n",
                "fleet.slice",
            ),
            ("0::/fleet-alloc-a-1.service\n", "fleet.slice"),
            ("0::/x:/fleet/alloc-a-1\n", "fleet"),
        ] {
            assert!(!is_of(cgroups, jobs), "{cgroups}");
        }
        assert_eq!(observer.process(u32::MAX), None);
    }

    /// How it is seen once it has become `sleep`; it is ended then.
    fn seen_asleep(observer: &Observer, mut child: std::process::Child) -> Process {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let seen = loop {
            let seen = observer.process(child.id()).unwrap();
            if seen.name == "sleep" {
                break seen;
            }
            assert!(std::time::Instant::now() < deadline, "{seen:?}");
            std::thread::yield_now();
        };
        child.kill().unwrap();
        child.wait().unwrap();
        seen
    }

    #[test]
    fn a_name_is_believed_of_the_administrators_processes_and_of_no_persons() {
        let known = vec!["sleep".to_owned()];
        let spared = Spared { below: 1_000, uids: [4_712].into(), ..Spared::default() };
        let observer = Observer { baseline: known.into(), trusted: spared, ..Observer::default() };
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let of_root = seen_asleep(&observer, child);
        let of = |uid| Process { uid, real_uid: uid, ..of_root.clone() };
        assert!(observer.is_baseline(&of(0)), "root's");
        assert!(observer.is_baseline(&of(7)), "a service's");
        assert!(observer.is_baseline(&of(4_712)), "of an exempt user");
        let persons = of(4_711);
        assert!(!observer.is_baseline(&persons), "LD_PRELOAD=./x.so nvidia-smi");
        assert!(
            !observer.is_baseline(&Process { uid: 0, ..persons.clone() }),
            "it hides whose it is"
        );
        assert!(observer.has_known_name(&persons));
        // Who only looks is in nobody's way, unless they are not to have it open at all.
        assert!(!observer.is_in_the_way(&persons, false) && observer.is_in_the_way(&persons, true));
        let began = |ago: u64| Process {
            started: of_root.started.saturating_sub(ago * 100),
            ..persons.clone()
        };
        assert!(!observer.stays(&began(0)) && observer.stays(&began(30)));
        let other = Observer { baseline: Arc::default(), ..observer.clone() };
        assert!(other.is_in_the_way(&persons, false) && other.stays(&began(0)));
        let own = observer.process(std::process::id()).unwrap();
        let a_persons = Process { uid: 4_711, real_uid: 4_711, ..own.clone() };
        assert!(observer.is_baseline(&own) && !observer.is_baseline(&a_persons));
        assert!(!other.is_baseline(&of(own.real_uid)), "another file");
    }

    #[test]
    fn a_number_in_a_container_without_root_is_its_owners_and_a_persons_is_theirs() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: needs root to be somebody else");
            return;
        }
        let range = fleet_user::SubuidFile::parse("1000:100000:65536").resolve(|_| None, []);
        let observer = Observer { subordinates: Arc::new(range), ..Observer::default() };
        let seen = |namespace: &[&str]| {
            let mut other = std::process::Command::new("setpriv");
            other.args(["--reuid", "100033", "--regid", "100033", "--clear-groups"]);
            let child = other.args(namespace).args(["sleep", "1000"]).spawn().unwrap();
            let seen = seen_asleep(&observer, child);
            (seen.uid, seen.real_uid, seen.real_gid)
        };
        assert_eq!(seen(&["unshare", "--user"]), (1000, 1000, NO_GROUP));
        assert_eq!(seen(&[]), (100_033, 100_033, 100_033));
    }

    /// `/dev/zero`, which anybody may open and nobody is given, in the place of a GPU.
    const ZERO: (u32, u32) = (1, 5);

    /// Whether a shell that has run this has it open: nobody but that shell opens and closes its descriptors.
    fn has_zero_open(script: &str) -> bool {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).stdin(std::process::Stdio::piped());
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{script}");
        let found = opened(child.id(), ZERO.0, &[ZERO.1, 9_999]);
        drop(child.stdin.take());
        child.wait().unwrap();
        !found.is_empty()
    }

    #[test]
    fn who_has_a_device_open_is_told_by_its_number_whatever_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            |open: &str| format!("cd {} && {open} && echo ready && read end", dir.path().display());
        for name in ["nvidia3", "zero"] {
            fs::write(dir.path().join(name), "").unwrap();
            let held = has_zero_open(&script(&format!("exec 9< {name}")));
            assert!(!held, "a file of anybody's that is called {name}");
        }
        assert!(!has_zero_open(&script("true")), "pipes are no devices");
        assert!(!has_zero_open(&script("exec 9< /dev/null")), "another device");
        assert!(has_zero_open(&script("exec 9< /dev/zero")));
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("link")).unwrap();
        assert!(has_zero_open(&script("exec 9< link")));
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: needs root to make a device node");
            return;
        }
        let mknod = "mknod other c 1 5";
        assert!(has_zero_open(&script(&format!("{mknod} && exec 9< other"))));
        assert!(has_zero_open(&script("exec 9< other && rm other")), "nor is it there any more");
        fs::write(dir.path().join("bound"), "").unwrap();
        let bound = "exec unshare --mount sh -c 'mount --bind /dev/zero bound && exec 9< bound && umount --lazy bound \
             && echo ready && read end'";
        assert!(has_zero_open(&script(bound)), "nor is it mounted any more");
    }

    #[test]
    fn who_only_names_a_device_has_not_opened_it() {
        use std::os::unix::fs::OpenOptionsExt as _;
        // Nobody is asked whether they may do this: no file mode, no gate.
        let named = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/dev/zero");
        let link = |file: &fs::File| {
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
        };
        let named = named.unwrap();
        assert_eq!(proc_link::character_device(&link(&named)), Some(ZERO));
        assert!(!proc_link::is_opened(&link(&named)));
        let opened = fs::File::open("/dev/zero").unwrap();
        assert!(proc_link::is_opened(&link(&opened)));
    }
}
