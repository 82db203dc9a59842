//! The bundle of the bare runtime: fleet's own `config.json` for `fleet run -- true`, less what only fleet
//! needs, so that the floor does the same work for the same isolation.
//!
//! Left as fleet makes it: the node's own root file system; new pid, ipc, uts, mount and cgroup
//! namespaces; private `/dev`, `/proc`, `/sys`, `/dev/shm`; masked and read-only paths; no new privileges;
//! the capabilities. Taken out: fleet's init and its notify socket.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use fleet_agent::{
    attempts::Record,
    config::DriverPlaces,
    runtime::{Image, NodeSettings, Prepared, prepare},
};
use fleet_core::{
    desired::StartOrder,
    id::{AllocationId, JobId},
    job::JobSpec,
    lease::Epoch,
    name::UserName,
    time::Timestamp,
};
use fleet_kernel::{
    cgroup::{DiskLimits, Limits},
    filter::{DeviceRule, NvidiaMajors},
};
use fleet_shim::order::{LogSettings, RuntimeChoice, RuntimeKind};
use fleet_user::User;
use serde_json::{Value, json};

/// A bundle directory of one worker, and what its containers are held to.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) dir: PathBuf,
    pub(crate) rootfs: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) devices: Vec<DeviceRule>,
    config: Value,
}

impl Bundle {
    /// `dir` must not exist; its parent must. `cgroup` is where a runtime that manages cgroups makes its own.
    pub(crate) fn make(
        dir: &Path,
        kind: RuntimeKind,
        runtime: &Path,
        cgroup: &str,
    ) -> Result<Self> {
        let choice = RuntimeChoice { kind, path: runtime.to_owned() };
        let order = prepare(dir, &record()?, &prepared(), &node(choice))
            .with_context(|| format!("prepare a bundle in {}", dir.display()))?;
        let bundle = dir.join("run/bundle");
        let rootfs = bundle.join("rootfs");
        fs::create_dir_all(&rootfs)?;
        let file = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
        strip(&mut config)?;
        config["linux"]["cgroupsPath"] = json!(cgroup);
        let made =
            Self { dir: bundle, rootfs, limits: order.limits, devices: order.devices, config };
        made.write()?;
        Ok(made)
    }

    /// A runtime that manages cgroups gets the limits in its configuration, and a cgroup per container.
    pub(crate) fn give_cgroup(&mut self, cgroup: &str) -> Result<()> {
        let linux = &mut self.config["linux"];
        linux["cgroupsPath"] = json!(cgroup);
        let millis = self.limits.cpu_quota_millis.unwrap_or(1000);
        linux["resources"]["cpu"] = json!({"quota": millis * 100, "period": 100_000});
        linux["resources"]["memory"] = json!({"limit": self.limits.memory_bytes});
        linux["resources"]["pids"] = json!({"limit": self.limits.pids_max});
        self.write()
    }

    fn write(&self) -> Result<()> {
        fs::write(self.dir.join("config.json"), serde_json::to_vec(&self.config)?)?;
        Ok(())
    }
}

/// Takes out fleet's init and notify socket, and runs the program itself.
fn strip(config: &mut Value) -> Result<()> {
    config["process"]["args"] = json!(["/bin/true"]);
    let mounts = config["mounts"].as_array_mut().context("the bundle has no mounts")?;
    let before = mounts.len();
    mounts.retain(|mount| {
        mount["destination"].as_str().is_none_or(|path| !path.starts_with("/dev/fleet/"))
    });
    ensure!(before == mounts.len() + 2, "the bundle has not the mounts this bench knows of");
    Ok(())
}

/// Thousandths of a CPU for each job, so that exactly four run at a time.
pub(crate) fn cpu_millis() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    cores * 1000 * crate::WITHOUT_GPUS_PERCENT / 100 / crate::AT_A_TIME
}

/// What each job may use.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;
const PIDS_MAX: u64 = 4096;

/// `fleet run -- true`, as the agent has it on the disk.
fn record() -> Result<Record> {
    let order = StartOrder {
        job: JobId::parse("job-floor")?,
        attempt: 1,
        restarts_used: 0,
        owner: UserName::parse("root")?,
        spec: JobSpec { name: String::new(), ..JobSpec::of(["/bin/true"]) },
        gpus: Vec::new(),
        cpu_millis: cpu_millis(),
        memory_bytes: MEMORY_BYTES,
        resume_from: None,
        marker: String::new(),
        resume: None,
    };
    let id = AllocationId::parse("alloc-floor-1")?;
    Ok(Record::new(id, Epoch::default(), None, String::new(), Timestamp(0), order))
}

fn prepared() -> Prepared {
    let user = User {
        name: "root".to_owned(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        home: PathBuf::from("/root"),
        shell: PathBuf::from("/bin/sh"),
    };
    Prepared { user, image: Image::Host, cards: Vec::new(), near_cpus: None, resume_from: None }
}

fn node(runtime: RuntimeChoice) -> NodeSettings {
    NodeSettings {
        node_name: "floor".to_owned(),
        runtime,
        seccomp: false,
        shim_path: PathBuf::from("/nonexistent"),
        init_path: PathBuf::from("/nonexistent"),
        cgroup_parent: crate::floor::CGROUP.to_owned(),
        systemd: false,
        majors: NvidiaMajors::default(),
        device_dir: PathBuf::from("/nonexistent"),
        driver: DriverPlaces::default(),
        hidden: Vec::new(),
        rlimits: Vec::new(),
        log: LogSettings::default(),
        pids_max: Some(PIDS_MAX),
        disks: DiskLimits::default(),
    }
}
