//! Finds the programs on the GPUs of a node that is to reboot: those of users without a lease or a known job.
//!
//! The reconcile task asks before each attempt to reboot. This module ends no process. It must not wait for what the
//! reboot may be for: a driver or a GPU that does not answer, or a process that was killed and hangs in the kernel. If
//! the driver was released, or cannot be asked because its libraries are newer than its module, the open device files
//! show which processes use a GPU.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::gpu::{GPUS_PER_NODE_MAX, Presence};
use tokio::task::spawn_blocking;

use crate::gpu::{self, DriverState, GpuSnapshot};
use crate::holders::{Names, Observers};
use crate::processes::{Observer, Process};
use fleet_kernel::proc_stat::is_at_its_end;

/// Most programs that the words name; the rest are counted.
const NAMED_MAX: usize = 4;

/// What the reboot must wait for, in words; `None` if nothing.
pub(crate) async fn in_use(gpus: &gpu::Handle, observers: &Observers) -> Option<String> {
    // An older picture lacks processes that began a moment ago.
    let gpus = match gpus.sample_now().await {
        Ok(fresh) => fresh,
        Err(_) => gpus.latest(),
    };
    if gpus.is_unseen() {
        return Some("it is not known yet who uses its GPUs".to_owned());
    }
    let observer = observers.now();
    let found = match spawn_blocking(move || on_them(&observer, &gpus)).await {
        Ok(found) => found,
        Err(error) => return Some(format!("it cannot be seen who uses its GPUs: {error}")),
    };
    words(&found, &mut Names::default()).await
}

/// Processes that would lose work. Some drivers list processes that do not exist: those do not count.
fn on_them(observer: &Observer, gpus: &GpuSnapshot) -> Vec<Process> {
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    match gpus.driver_state {
        DriverState::Starting | DriverState::NotAnswering { .. } => {}
        DriverState::Running => {
            for gpu in gpus.gpus.iter().filter(|gpu| gpu.presence == Presence::Present) {
                let foreign = observer.foreign(gpus, &gpu.info.uuid, &[], &[]);
                found.extend(foreign.into_iter().filter_map(|one| Some((one.pid, one.found?))));
            }
        }
        DriverState::Released | DriverState::Absent { .. } | DriverState::Failed { .. } => {
            // Another driver may give them other numbers than those that are known.
            let minors: Vec<u32> = (0..).take(GPUS_PER_NODE_MAX).collect();
            let open = observer.by_descriptors(&minors).into_iter().map(|(_, one)| one);
            // Monitoring a GPU does not count as using it.
            let open = open.filter(|one| observer.is_in_the_way(one, false));
            found.extend(open.map(|one| (one.pid, one)));
        }
    }
    found.retain(|pid, _| !is_at_its_end(&pid.to_string()));
    found.into_values().collect()
}

/// Programs and whose they are, each once. What changes here is on record for good, so neither numbers of processes nor how
/// many they are belongs in it: those come and go while one and the same program runs.
async fn words(found: &[Process], names: &mut Names) -> Option<String> {
    let programs: BTreeSet<(u32, &str)> =
        found.iter().map(|one| (one.uid, one.name.as_str())).collect();
    let mut named = Vec::new();
    for (uid, name) in programs.iter().take(NAMED_MAX) {
        named.push(format!("{name} of {}", names.of(*uid).await));
    }
    let more = match programs.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("its GPUs are in use by {}{more}", named.join(", ")))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::{Child, Command};

    use fleet_core::time::Timestamp;

    use super::*;
    use crate::gpu::{GpuProcess, GpuState, Observed, ProcessKind, Telemetry};

    /// One GPU on which the driver shows these.
    pub(crate) fn used_by(pids: &[u32]) -> GpuSnapshot {
        let kind = ProcessKind::Compute;
        let process = |pid| GpuProcess { pid, kind, memory_bytes: None, started_ticks: None };
        let processes = Observed::Value(pids.iter().copied().map(process).collect());
        let gpu = GpuState {
            telemetry: Telemetry { processes, ..Telemetry::unknown("") },
            sampled_at: Some(Timestamp(1)),
            ..GpuState::of_tests(0)
        };
        GpuSnapshot { gpus: vec![gpu], ..GpuSnapshot::empty(DriverState::Running) }
    }

    /// A process of somebody's, ended when dropped.
    pub(crate) struct Sleeper(Child);

    impl Sleeper {
        pub(crate) fn id(&self) -> u32 {
            self.0.id()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    /// It has its name once this returns.
    pub(crate) fn sleeper() -> Sleeper {
        let child = Sleeper(Command::new("sleep").arg("1000").spawn().unwrap());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while Observer::default().process(child.id()).unwrap().name != "sleep" {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        child
    }

    #[tokio::test]
    async fn whoever_works_on_a_gpu_is_waited_for_and_nobody_else() {
        let child = sleeper();
        let seen = |gpus: &GpuSnapshot, known: &[String]| {
            let observer = Observer { baseline: known.into(), ..Observer::default() };
            on_them(&observer, gpus).iter().map(|one| one.pid).collect::<Vec<_>>()
        };
        let gpus = used_by(&[child.id(), u32::MAX]);
        assert!(!gpus.is_unseen());
        assert_eq!(seen(&gpus, &[]), [child.id()], "and not who does not exist");
        let mut unknown = gpus.clone();
        unknown.gpus[0].presence = Presence::Unknown;
        assert!(seen(&unknown, &[]).is_empty(), "a GPU that hangs");
        let reason = || "does not return".to_owned();
        let hangs = GpuSnapshot {
            driver_state: DriverState::NotAnswering { reason: reason() },
            ..gpus.clone()
        };
        assert!(seen(&hangs, &[]).is_empty() && !hangs.is_unseen(), "a driver that hangs");
        for none in [DriverState::Released, DriverState::Absent { reason: reason() }] {
            assert!(seen(&GpuSnapshot::empty(none), &[]).is_empty(), "nobody has one open");
        }
        assert!(GpuSnapshot::empty(DriverState::Starting).is_unseen());
        let mut fresh = gpus.clone();
        fresh.gpus[0].sampled_at = None;
        assert!(fresh.is_unseen());
        if nix::unistd::geteuid().is_root() {
            let trusted = crate::processes::Spared { below: 1_000, ..Default::default() };
            let baseline = vec!["sleep".to_owned()].into();
            let observer = Observer { baseline, trusted, ..Observer::default() };
            assert!(on_them(&observer, &gpus).is_empty(), "the administrator's own");
        }
        drop(child);
        assert!(seen(&gpus, &[]).is_empty());
    }

    #[tokio::test]
    async fn they_are_named_and_many_are_counted() {
        let own = Observer::default().process(std::process::id()).unwrap();
        let one = |pid, name: &str| {
            let mut one = own.clone();
            (one.pid, one.uid, one.name) = (pid, 4_000_000_000, name.to_owned());
            one
        };
        let mut names = Names::default();
        assert_eq!(words(&[], &mut names).await, None);
        let before = [one(7, "python3"), one(8, "nvtop"), one(9, "python3")];
        let said = words(&before, &mut names).await.unwrap();
        let both = "nvtop of 4000000000, python3 of 4000000000";
        assert_eq!(said, format!("its GPUs are in use by {both}"));
        let after = [one(8, "nvtop"), one(10, "python3")];
        assert_eq!(words(&after, &mut names).await.unwrap(), said, "the same programs");
        let many: Vec<Process> = (0..7).map(|n| one(n, &format!("worker{n}"))).collect();
        assert!(words(&many, &mut names).await.unwrap().ends_with(" and 3 more"));
    }
}
