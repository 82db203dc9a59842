//! The whole GPU path, end to end: monitor, child process, nvml-wrapper, fake library, control file.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_agent::gpu::{
    Config, DriverState, GpuError, GpuEvent, GpuEventKind, GpuSnapshot, Handle, Monitor, Observed,
    event_signal, snapshot_signals,
};
use fleet_core::gpu::{Architecture, LinkLevel, Presence};
use fleet_core::health::HealthTracker;
use fleet_core::time::Timestamp;
use fleet_fake_nvml_control::{CONTROL_ENV, Control, ControlFile, Gpu, Process, Profile};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Longer than anything here takes, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    handle: Handle,
    events: Receiver<GpuEvent>,
    file: ControlFile,
    _dir: tempfile::TempDir,
}

fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libfleet_fake_nvml.so")
}

fn quick(file: &ControlFile) -> Config {
    Config {
        program: env!("CARGO_BIN_EXE_fleet-agent").into(),
        library: Some(library()),
        environment: vec![(CONTROL_ENV.to_owned(), file.path().to_owned())],
        sample_interval: Duration::from_millis(100),
        call_deadline: Duration::from_secs(1),
        start_deadline: Duration::from_secs(5),
        retry_after: Duration::from_millis(500),
        ..Config::default()
    }
}

impl Node {
    fn start(profiles: &[Profile], adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = ControlFile::new(dir.path().join("gpus.toml"));
        file.write(&Control::machine(profiles, "titan01", 0)).unwrap();
        let mut config = quick(&file);
        adjust(&mut config);
        let (handle, events, _task) = Monitor::spawn(config);
        Self { handle, events, file, _dir: dir }
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Gpu)) {
        self.file.update(|control| change(&mut control.gpus[index])).unwrap();
    }

    /// The first picture that satisfies `wanted`.
    async fn until(&self, what: &str, wanted: impl Fn(&GpuSnapshot) -> bool) -> Arc<GpuSnapshot> {
        let mut snapshots = self.handle.snapshots();
        match timeout(PATIENCE, snapshots.wait_for(|seen| wanted(seen))).await {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("not within {PATIENCE:?}: {what}; {:#?}", self.handle.latest()),
        }
    }

    async fn measured(&self) -> Arc<GpuSnapshot> {
        self.until("a first sample", |seen| seen.sample > 0).await
    }

    /// Its NVML child.
    fn child(&self) -> i32 {
        let owned = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
            let path = task.unwrap().path().join("children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let mut pids = children.split_ascii_whitespace().map(|pid| pid.parse::<i32>().unwrap());
            // Other tests have probes too: ours names our control file in its environment.
            pids.find(|pid| {
                let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let ours = self.file.path().to_str().unwrap().as_bytes();
                environ.windows(ours.len()).any(|window| window == ours)
            })
        });
        owned.last().unwrap()
    }

    async fn event(&mut self) -> GpuEvent {
        timeout(PATIENCE, self.events.recv()).await.unwrap().unwrap()
    }
}

fn presence(seen: &GpuSnapshot) -> Vec<Presence> {
    seen.gpus.iter().map(|gpu| gpu.presence).collect()
}

#[tokio::test]
async fn every_profile_is_taken_into_the_inventory() {
    let node = Node::start(&Profile::ALL, |_| {});
    let seen = node.measured().await;
    assert_eq!(seen.driver_state, DriverState::Running);
    let driver = seen.driver.clone().unwrap();
    assert_eq!(driver.driver_version, Observed::Value("550.163.01".to_owned()));
    assert_eq!(driver.cuda_version, Observed::Value("12.4".to_owned()));
    let listed: Vec<String> = seen
        .gpus
        .iter()
        .map(|gpu| {
            let info = &gpu.info;
            let (gib, numa) = (info.memory_bytes >> 30, info.numa_node.value());
            format!("{} {:?} {:?} {gib} {numa:?}", info.index, info.architecture, info.minor)
        })
        .collect();
    let wanted = [
        "0 Maxwell 0 12 Some(0)",
        "1 Pascal 1 12 Some(0)",
        "2 Volta 2 16 Some(0)",
        "3 Volta 3 32 Some(1)",
        "4 Ampere 4 40 Some(1)",
    ];
    assert_eq!(listed, wanted);
    assert_eq!(seen.gpus[0].info.architecture, Architecture::Maxwell);
    assert!(seen.gpus.iter().all(|gpu| gpu.telemetry.temperature_c == Observed::Value(34)));
}

#[tokio::test]
async fn what_a_card_cannot_do_is_neither_zero_nor_unknown() {
    let node = Node::start(&[Profile::TitanX, Profile::V100Pcie, Profile::A100], |_| {});
    let seen = node.measured().await;
    let titan = &seen.gpus[0];
    assert_eq!(titan.telemetry.ecc, Observed::NotSupported);
    assert_eq!(titan.telemetry.retired_pages, Observed::NotSupported);
    assert_eq!(titan.telemetry.remapped_rows, Observed::NotSupported);
    assert_eq!(titan.info.ecc_enabled, Observed::NotSupported);
    assert_eq!(titan.telemetry.processes, Observed::Value(vec![]));
    let v100 = &seen.gpus[1];
    assert_eq!(v100.telemetry.ecc, Observed::Value(Default::default()));
    assert_eq!(v100.telemetry.retired_pages, Observed::Value(Default::default()));
    assert_eq!(v100.telemetry.remapped_rows, Observed::NotSupported);
    let a100 = &seen.gpus[2];
    assert_eq!(a100.telemetry.retired_pages, Observed::NotSupported);
    assert_eq!(a100.telemetry.remapped_rows, Observed::Value(Default::default()));
    assert_eq!(a100.info.mig_enabled, Observed::Value(false));
}

#[tokio::test]
async fn neighbours_are_known_by_nvlink_and_pcie() {
    let node = Node::start(&[Profile::V100Sxm2; 8], |_| {});
    let seen = node.measured().await;
    assert_eq!(seen.links.len(), 28);
    let between = |a: usize, b: usize| {
        let (a, b) = (&seen.gpus[a].info.uuid, &seen.gpus[b].info.uuid);
        let mut links = seen.links.iter();
        let link = links.find(|link| (&link.a, &link.b) == (a, b) || (&link.a, &link.b) == (b, a));
        let link = link.unwrap();
        (link.level, link.nvlinks)
    };
    assert_eq!(between(0, 3), (LinkLevel::NvLink, 2));
    assert_eq!(between(0, 1), (LinkLevel::NvLink, 1));
    assert_eq!(between(0, 7), (LinkLevel::System, 0));
    let plain = Node::start(&[Profile::TitanX; 4], |_| {});
    let seen = plain.measured().await;
    let levels: Vec<LinkLevel> = seen.links.iter().map(|link| link.level).collect();
    assert!(!levels.contains(&LinkLevel::NvLink));
    assert_eq!(levels.iter().filter(|level| **level == LinkLevel::SingleSwitch).count(), 2);
    let switched = Node::start(&[Profile::A100; 2], |_| {});
    let seen = switched.measured().await;
    assert_eq!((seen.links[0].level, seen.links[0].nvlinks), (LinkLevel::NvLink, 12));
}

#[tokio::test]
async fn an_xid_arrives_within_a_second_and_prompts_a_sample() {
    let mut node = Node::start(&[Profile::TitanX; 2], |config| {
        config.sample_interval = Duration::from_secs(3600);
    });
    let first = node.measured().await;
    let start = Instant::now();
    node.change(1, |gpu| {
        gpu.faults.temperature_c = Some(91);
        gpu.push_xid(48);
    });
    let event = node.event().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(event.kind, GpuEventKind::Xid { code: Some(48) });
    assert_eq!(event.uuid, first.gpus[1].info.uuid);
    let hot = |seen: &GpuSnapshot| seen.gpus[1].telemetry.temperature_c == Observed::Value(91);
    node.until("a sample because of the event", hot).await;
    node.change(1, |gpu| gpu.push_xid(999));
    assert_eq!(node.event().await.kind, GpuEventKind::Xid { code: Some(999) });
}

#[tokio::test]
async fn a_lost_gpu_is_told_of_and_shown_as_lost() {
    let mut node = Node::start(&[Profile::V100Pcie; 2], |_| {});
    node.measured().await;
    node.change(0, |gpu| gpu.faults.lost = true);
    assert_eq!(node.event().await.kind, GpuEventKind::Xid { code: Some(79) });
    let wanted = [Presence::Lost, Presence::Present];
    let seen = node.until("lost", |seen| presence(seen) == wanted).await;
    assert!(seen.gpus[0].telemetry.temperature_c.is_unknown());
    assert!(seen.gpus[1].telemetry.temperature_c.value().is_some());
    node.change(0, |gpu| gpu.clear_faults());
    node.until("back", |seen| presence(seen) == [Presence::Present; 2]).await;
}

#[tokio::test]
async fn a_gpu_missing_after_a_driver_reload_is_lost_and_found_again() {
    let node = Node::start(&[Profile::TitanX; 2], |_| {});
    node.measured().await;
    let child = node.child();
    assert!(node.handle.release_driver());
    let released = |seen: &GpuSnapshot| seen.driver_state == DriverState::Released;
    let seen = node.until("released", released).await;
    assert_eq!(presence(&seen), [Presence::Unknown; 2]);
    assert!(snapshot_signals(&seen).is_empty(), "neither good nor bad");
    assert!(!PathBuf::from(format!("/proc/{child}")).exists(), "nobody has the driver open");
    assert_eq!(node.handle.sample_now().await, Err(GpuError::NotAvailable));
    node.change(0, |gpu| gpu.faults.missing = true);
    assert!(!node.handle.release_driver(), "it is wanted already");
    assert!(node.handle.attach());
    node.handle.sample_now().await.expect("who asks at once waits for it");
    // Both have index 0 now: one had it before, the other has it since.
    let lost = |seen: &GpuSnapshot| {
        let is = |minor, presence| {
            seen.gpus.iter().any(|gpu| gpu.info.minor == minor && gpu.presence == presence)
        };
        is(0, Presence::Lost) && is(1, Presence::Present)
    };
    node.until("lost", lost).await;
    node.change(0, |gpu| gpu.faults.missing = false);
    node.until("found by a retry", |seen| presence(seen) == [Presence::Present; 2]).await;
}

#[tokio::test]
async fn a_gpu_that_hangs_is_unknown_within_the_deadline_and_the_others_go_on() {
    let mut node = Node::start(&[Profile::TitanX; 3], |_| {});
    node.measured().await;
    let start = Instant::now();
    node.change(1, |gpu| gpu.faults.hang = true);
    let unknown = |seen: &GpuSnapshot| seen.gpus[1].presence == Presence::Unknown;
    let seen = node.until("unknown", unknown).await;
    // The deadline, one sample interval, and room for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    let reason = seen.gpus[1].reason.clone().unwrap();
    assert!(reason.contains("does not answer"), "{reason}");
    node.change(2, |gpu| gpu.faults.temperature_c = Some(77));
    let hot = |seen: &GpuSnapshot| {
        unknown(seen) && seen.gpus[2].telemetry.temperature_c == Observed::Value(77)
    };
    node.until("the others continue", hot).await;
    node.change(0, |gpu| gpu.push_xid(13));
    assert_eq!(node.event().await.kind, GpuEventKind::Xid { code: Some(13) });
    node.change(1, |gpu| gpu.clear_faults());
    node.until("answers again", |seen| presence(seen) == [Presence::Present; 3]).await;
}

#[tokio::test]
async fn a_gpu_that_hangs_from_the_start_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = ControlFile::new(dir.path().join("gpus.toml"));
    let mut control = Control::machine(&[Profile::TitanX; 2], "titan01", 0);
    control.gpus[0].faults.hang = true;
    file.write(&control).unwrap();
    let config = Config {
        start_deadline: Duration::from_secs(1),
        retry_after: Duration::from_secs(3600),
        ..quick(&file)
    };
    let (handle, events, _task) = Monitor::spawn(config);
    let node = Node { handle, events, file, _dir: dir };
    let seen = node.measured().await;
    assert_eq!(seen.gpus.len(), 1);
    assert_eq!(seen.gpus[0].info.index, 1);
    assert!(seen.problems[0].starts_with("GPU 0: driver does not answer"), "{:?}", seen.problems);
}

#[tokio::test]
async fn without_a_library_or_a_driver_there_are_no_gpus_and_no_error() {
    let node = Node::start(&[Profile::TitanX], |config| {
        config.library = Some("/nonexistent/libnvidia-ml.so.1".into());
    });
    let absent = |seen: &GpuSnapshot| matches!(seen.driver_state, DriverState::Absent { .. });
    let seen = node.until("absent", absent).await;
    assert_eq!(seen.gpus, []);
    let unloaded = Node::start(&[], |_| {});
    unloaded.until("no GPUs", |seen| seen.driver_state == DriverState::Running).await;
    unloaded.file.update(|control| control.driver_loaded = false).unwrap();
    unloaded.handle.release_driver();
    let released = |seen: &GpuSnapshot| seen.driver_state == DriverState::Released;
    unloaded.until("released", released).await;
    unloaded.handle.attach();
    unloaded.until("driver unloaded", absent).await;
}

#[tokio::test]
async fn emptiness_is_proven_by_a_sample_taken_after_the_question() {
    let node = Node::start(&[Profile::V100Pcie], |config| {
        config.sample_interval = Duration::from_secs(3600);
    });
    node.measured().await;
    let me = std::process::id();
    node.change(0, |gpu| {
        let process = |pid| Process { pid, memory_bytes: 1 << 30, kind: Default::default() };
        gpu.faults.processes = vec![process(me), process(4_194_999)];
    });
    let seen = node.handle.sample_now().await.unwrap();
    let gpu = &seen.gpus[0];
    assert_eq!(gpu.is_empty(0), Some(false));
    let processes = gpu.telemetry.processes.value().unwrap();
    assert!(processes[0].started_ticks.is_some(), "our own process is alive");
    assert_eq!(processes[1].started_ticks, None, "no such pid in /proc");
    assert_eq!(gpu.telemetry.memory_used_bytes, Observed::Value(2 << 30));
    node.change(0, |gpu| gpu.clear_faults());
    let seen = node.handle.sample_now().await.unwrap();
    assert_eq!(seen.gpus[0].is_empty(0), Some(true));
    node.change(0, |gpu| gpu.faults.memory_used_bytes = Some(5 << 20));
    let seen = node.handle.sample_now().await.unwrap();
    assert_eq!(seen.gpus[0].is_empty(1 << 20), Some(false), "memory without a process");
    assert_eq!(seen.gpus[0].is_empty(8 << 20), Some(true), "below the idle floor");
}

#[tokio::test]
async fn a_question_before_the_first_child_waits_for_it() {
    // Several times: who comes first, the question or the child's start, is not settled.
    for _ in 0..8 {
        let node = Node::start(&[Profile::TitanX], |config| config.start_deadline = PATIENCE);
        let seen = node.handle.sample_now().await.unwrap();
        assert_eq!(presence(&seen), [Presence::Present]);
    }
}

#[tokio::test]
async fn a_gpu_that_hangs_does_not_cost_the_others_their_answer() {
    let node = Node::start(&[Profile::TitanX; 2], |config| {
        config.sample_interval = Duration::from_secs(3600);
        config.retry_after = Duration::from_secs(3600);
        config.start_deadline = PATIENCE;
    });
    node.measured().await;
    node.change(0, |gpu| gpu.faults.hang = true);
    let seen = node.handle.sample_now().await.unwrap();
    assert_eq!(presence(&seen), [Presence::Unknown, Presence::Present]);
}

/// The probe: the only child of this thread. Tests run on a thread each.
fn probe() -> nix::unistd::Pid {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    nix::unistd::Pid::from_raw(children.trim().parse().unwrap())
}

#[tokio::test]
async fn a_probe_that_is_killed_is_replaced() {
    let node = Node::start(&[Profile::TitanX], |_| {});
    let first = node.measured().await;
    nix::sys::signal::kill(probe(), nix::sys::signal::Signal::SIGKILL).unwrap();
    let later = |seen: &GpuSnapshot| {
        seen.sample > first.sample + 3 && presence(seen) == [Presence::Present]
    };
    node.until("a new probe", later).await;
}

#[test]
fn a_probe_ends_with_its_agent_even_while_a_call_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let file = ControlFile::new(dir.path().join("gpus.toml"));
    let mut control = Control::machine(&[Profile::TitanX], "titan01", 0);
    control.gpus[0].faults.hang = true;
    file.write(&control).unwrap();
    let mut probe = std::process::Command::new(env!("CARGO_BIN_EXE_fleet-agent"))
        .args(["nvml-probe", "--library"])
        .arg(library())
        .env(CONTROL_ENV, file.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    let begun = |line: &String| line.contains("inventory");
    assert!(lines.map(Result::unwrap).any(|line| begun(&line)), "it enters the hanging call");
    drop(probe.stdin.take());
    let deadline = Instant::now() + PATIENCE;
    while probe.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            probe.kill().unwrap();
            panic!("the probe outlives its agent");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A cgroup whose processes do not react to anything, SIGKILL included, until it is dropped: what
/// a process stuck in a driver looks like. Only the freezer of cgroup v1 does this.
struct Freezer(PathBuf);

impl Freezer {
    fn freeze(pid: nix::unistd::Pid) -> Option<Self> {
        let group = PathBuf::from(format!("/sys/fs/cgroup/freezer/fleet-test-{pid}"));
        std::fs::create_dir(&group).ok()?;
        let freezer = Self(group);
        std::fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(freezer.0.join("freezer.state"), "FROZEN").unwrap();
        Some(freezer)
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let thawed = std::fs::write(self.0.join("freezer.state"), "THAWED");
        assert!(thawed.is_ok(), "cannot thaw {}", self.0.display());
        let deadline = Instant::now() + PATIENCE;
        // The group can go when the killed process has been reaped.
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_outlives_sigkill_is_abandoned_counted_and_replaced() {
    let node = Node::start(&[Profile::TitanX], |config| {
        config.kill_grace = Duration::from_millis(100);
    });
    let first = node.measured().await;
    let stuck = nix::unistd::Pid::from_raw(node.child());
    let Some(freezer) = Freezer::freeze(stuck) else {
        eprintln!("SKIPPED: needs root and the freezer of cgroup v1");
        return;
    };
    let replaced = |seen: &GpuSnapshot| {
        seen.stuck_probes == 1
            && seen.sample > first.sample + 3
            && presence(seen) == [Presence::Present]
    };
    let seen = node.until("abandoned and replaced", replaced).await;
    assert_eq!(seen.driver_state, DriverState::Running);
    node.handle.release_driver();
    let released = |seen: &GpuSnapshot| seen.driver_state == DriverState::Released;
    let seen = node.until("released", released).await;
    assert_eq!(seen.stuck_probes, 1, "one that holds it open all the same");
    node.handle.attach();
    node.until("attached again", |seen| seen.driver_state == DriverState::Running).await;
    drop(freezer);
    node.until("no longer stuck", |seen| seen.stuck_probes == 0).await;
}

/// Folds what the node sees, sample by sample, until its conditions are these.
async fn judged(node: &mut Node, tracker: &mut HealthTracker, wanted: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    let mut snapshots = node.handle.snapshots();
    loop {
        let seen = snapshots.borrow_and_update().clone();
        while let Ok(event) = node.events.try_recv() {
            tracker.observe(event.at, &event_signal(&event, &seen));
        }
        for signal in snapshot_signals(&seen) {
            let newest = seen.gpus.iter().filter_map(|gpu| gpu.sampled_at).max();
            tracker.observe(newest.unwrap_or(Timestamp(0)), &signal);
        }
        let held = tracker.conditions();
        let held: Vec<String> =
            held.iter().map(|held| format!("{} {:?}", held.kind, held.severity)).collect();
        if held == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "wanted {wanted:?}, holds {held:?}");
        let _changed = timeout(Duration::from_millis(50), snapshots.changed()).await;
    }
}

#[tokio::test]
async fn faults_become_conditions_and_go_again() {
    let mut node = Node::start(&[Profile::V100Pcie, Profile::TitanX], |config| {
        config.sample_interval = Duration::from_millis(20);
    });
    let tracker = &mut HealthTracker::new("boot");
    node.measured().await;
    judged(&mut node, tracker, &[]).await;
    node.change(0, |gpu| gpu.faults.temperature_c = Some(88));
    judged(&mut node, tracker, &["temperature_high Degraded"]).await;
    node.change(0, |gpu| gpu.clear_faults());
    judged(&mut node, tracker, &[]).await;
    node.change(0, |gpu| gpu.faults.retired_pages.pending = true);
    judged(&mut node, tracker, &["page_retirement_pending Degraded"]).await;
    node.change(0, |gpu| gpu.clear_faults());
    judged(&mut node, tracker, &[]).await;
    node.change(0, |gpu| gpu.push_xid(13));
    judged(&mut node, tracker, &["xid_13 Notice"]).await;
    node.change(0, |gpu| gpu.faults.ecc.volatile_uncorrected = 1);
    judged(&mut node, tracker, &["ecc_uncorrected Fatal", "xid_13 Notice"]).await;
    node.change(1, |gpu| gpu.faults.lost = true);
    let wanted = ["gpu_lost Fatal", "xid_79 Fatal", "ecc_uncorrected Fatal", "xid_13 Notice"];
    let by_uuid = node.handle.latest().gpus[0].info.uuid < node.handle.latest().gpus[1].info.uuid;
    let wanted = if by_uuid { [wanted[2], wanted[0], wanted[1], wanted[3]] } else { wanted };
    judged(&mut node, tracker, &wanted).await;
}
