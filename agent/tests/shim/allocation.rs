//! One allocation under test: its directory, its settings, waiting for its end, and proof of cleanliness.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use fleet_agent::{
    attempts::Record,
    config::DriverPlaces,
    runtime::{Image, NodeSettings, Prepared, Runtime, discover, prepare},
    shim_client::ShimClient,
    unit::Launcher,
};
use fleet_core::{
    desired::StartOrder,
    id::{AllocationId, JobId, LeaseId},
    job::{JobSpec, TerminalSize, Volume},
    lease::Epoch,
    name::UserName,
    time::Timestamp,
};
use fleet_kernel::{
    cgroup::{Cgroup, DiskLimits, Hierarchies, Mode},
    filter::NvidiaMajors,
};
use fleet_shim::{
    log::{LogReader, Stream},
    order::{ExitRecord, LogSettings, ShimOrder, ShimState},
};
use fleet_user::User;

/// Longest wait for anything; generous, because the machine is shared.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A user nobody is.
pub(crate) const UID: u32 = 54321;

/// Runtimes to test with. Says aloud what is missing.
pub(crate) fn runtimes() -> Vec<Runtime> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return Vec::new();
    }
    let legacy = Hierarchies::detect().unwrap().mode() == Mode::Legacy;
    if legacy {
        eprintln!("SKIPPED: runc cannot run under fleet where there is only cgroup v1");
    }
    ["crun", "runc"]
        .into_iter()
        .filter(|name| !legacy || *name == "crun")
        .filter_map(|name| {
            let found = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
                .into_iter()
                .map(|dir| Path::new(dir).join(name))
                .find(|path| path.exists());
            if found.is_none() {
                eprintln!("SKIPPED: {name} is not installed");
            }
            found
        })
        .map(|path| discover(Some(&path)).unwrap())
        .collect()
}

/// A program of the crate `fleet-shim`: cargo puts it in the folder above that of this test.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join(name);
    assert!(program.is_file(), "{} is not built: run `make build` first", program.display());
    program
}

/// A path as orders have it.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

/// A volume that may be written to.
pub(crate) fn volume(source: impl AsRef<Path>, destination: impl AsRef<Path>) -> Volume {
    Volume { source: text(source), destination: text(destination), read_only: false }
}

pub(crate) struct Allocation {
    root: tempfile::TempDir,
    pub(crate) dir: PathBuf,
    pub(crate) record: Record,
    pub(crate) prepared: Prepared,
    pub(crate) node: NodeSettings,
}

impl Allocation {
    /// A shell script with image `host`, as an ordinary user.
    pub(crate) fn shell(runtime: &Runtime, script: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("alloc-test{}-{}", std::process::id(), number + 1);
        let root = tempfile::tempdir().unwrap();
        // The user must be able to reach what tests put beside the allocation.
        fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let dir = root.path().join(&id);
        let order = StartOrder {
            job: JobId::parse("job-test").unwrap(),
            attempt: 1,
            restarts_used: 0,
            owner: UserName::parse("tester").unwrap(),
            spec: JobSpec { name: "test".to_owned(), ..JobSpec::of(["/bin/sh", "-c", script]) },
            gpus: Vec::new(),
            cpu_millis: 0,
            memory_bytes: 0,
            resume_from: None,
            marker: String::new(),
            resume: None,
        };
        let record = Record::new(
            AllocationId::parse(&id).unwrap(),
            Epoch { incarnation: 1, index: u64::from(number) },
            Some(LeaseId::parse("lease-test").unwrap()),
            "boot".to_owned(),
            Timestamp(0),
            order,
        );
        let prepared = Prepared {
            user: User {
                name: "tester".to_owned(),
                uid: UID,
                gid: UID,
                groups: Vec::new(),
                home: PathBuf::from("/"),
                shell: PathBuf::from("/bin/sh"),
            },
            image: Image::Host,
            cards: Vec::new(),
            near_cpus: None,
            resume_from: None,
        };
        let node = NodeSettings {
            node_name: "titan01".to_owned(),
            runtime: runtime.choice(),
            seccomp: runtime.seccomp,
            shim_path: built("fleet-shim"),
            init_path: built("fleet-init"),
            cgroup_parent: format!("fleet-test{}-{number}", std::process::id()),
            systemd: false,
            majors: NvidiaMajors::default(),
            device_dir: PathBuf::from("/nonexistent"),
            driver: DriverPlaces::default(),
            hidden: Vec::new(),
            rlimits: Vec::new(),
            log: LogSettings::default(),
            pids_max: None,
            disks: DiskLimits::default(),
        };
        Self { root, dir, record, prepared, node }
    }

    pub(crate) fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// What its user asked for.
    pub(crate) fn spec(&mut self) -> &mut JobSpec {
        &mut self.record.order.spec
    }

    /// Gives the job a terminal of this size.
    pub(crate) fn terminal(&mut self, rows: u16, columns: u16) {
        let window = Some(TerminalSize { rows, columns });
        (self.spec().tty, self.spec().window) = (true, window);
    }

    /// A place beside the allocation that its user may write to.
    pub(crate) fn playground(&self) -> PathBuf {
        let dir = self.root.path().join("playground");
        if !dir.exists() {
            fs::create_dir(&dir).unwrap();
            std::os::unix::fs::chown(&dir, Some(UID), Some(UID)).unwrap();
        }
        dir
    }

    pub(crate) fn prepare(&self) -> ShimOrder {
        prepare(&self.dir, &self.record, &self.prepared, &self.node).unwrap()
    }

    pub(crate) async fn launch(&self) -> ShimOrder {
        let order = self.prepare();
        self.launch_prepared().await;
        order
    }

    /// Launches it with a longer or shorter life than the agent gives to what its main process left behind.
    pub(crate) async fn launch_lingering(&self, linger_ms: u64) {
        let mut order = self.prepare();
        order.stop.linger_ms = linger_ms;
        order.write(&self.dir).unwrap();
        self.launch_prepared().await;
    }

    pub(crate) async fn launch_prepared(&self) {
        Launcher::Plain.launch(&self.node.shim_path, &self.dir, self.id(), "a test").await.unwrap();
    }

    pub(crate) async fn exit(&self) -> ExitRecord {
        let exit = self.wait_for("exit.json", || ExitRecord::read(&self.dir).unwrap()).await;
        // Only seen where a test fails: most look at what the job did, not at why it did not.
        eprintln!("{exit:?}");
        exit
    }

    pub(crate) async fn running(&self) -> ShimState {
        self.wait_for("a running job", || {
            ShimState::read(&self.dir).unwrap().filter(|state| state.main_pid.is_some())
        })
        .await
    }

    pub(crate) async fn client(&self) -> ShimClient {
        self.running().await;
        ShimClient::connect(&self.dir).await.unwrap()
    }

    /// Waits for a condition, never for a time.
    pub(crate) async fn wait_for<T>(&self, what: &str, condition: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = condition() {
                return value;
            }
            if Instant::now() >= deadline {
                let shim_log =
                    fs::read_to_string(self.dir.join("run/shim.log")).unwrap_or_default();
                let runtime_log =
                    fs::read_to_string(self.dir.join("run/runtime.log")).unwrap_or_default();
                panic!("no {what} in {PATIENCE:?}; shim: {shim_log} runtime: {runtime_log}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) fn output(&self) -> String {
        self.output_of(None)
    }

    pub(crate) fn output_of(&self, wanted: Option<Stream>) -> String {
        let mut reader = LogReader::new(self.dir.clone());
        let mut data = Vec::new();
        while let Some(record) = reader.read_record().unwrap() {
            if wanted.is_none_or(|stream| stream == record.stream) {
                data.extend(record.data);
            }
        }
        String::from_utf8_lossy(&data).into_owned()
    }

    pub(crate) fn cgroup(&self) -> Cgroup {
        let order = ShimOrder::read(&self.dir).unwrap();
        Cgroup::locate(&Hierarchies::detect().unwrap(), &order.cgroup).unwrap()
    }

    /// After the end: no cgroup, no mount, no socket, no process, no runtime state.
    pub(crate) async fn nothing_is_left(&self) {
        let cgroup = self.cgroup();
        self.wait_for("removed cgroup", || (!cgroup.exists()).then_some(())).await;
        let socket = self.dir.join("run/shim.sock");
        self.wait_for("removed socket", || (!socket.exists()).then_some(())).await;
        assert!(!self.dir.join("run/runtime").exists(), "runtime state is left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let name = self.root.path().to_str().unwrap();
        assert!(!mounts.contains(name), "a mount is left: {mounts}");
        let shim_log = fs::read_to_string(self.dir.join("run/shim.log")).unwrap();
        assert_eq!(shim_log, "", "the shim complained");
    }
}

impl Drop for Allocation {
    /// A failed test must not leave processes either.
    fn drop(&mut self) {
        if ShimOrder::read(&self.dir).is_err() {
            return;
        }
        let cgroup = self.cgroup();
        cgroup.kill_all().ok();
        let deadline = Instant::now() + Duration::from_secs(10);
        while cgroup.populated().unwrap_or(false) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        cgroup.remove().ok();
        Hierarchies::detect()
            .unwrap()
            .remove_empty(Path::new(&self.node.cgroup_parent), Duration::ZERO);
    }
}
