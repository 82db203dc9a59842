//! What the agent knows about an allocation, and about its own node, when it starts one.

use std::path::PathBuf;

use crate::config::DriverPlaces;
use fleet_kernel::{
    cgroup::{CpuSet, DiskLimits},
    filter::NvidiaMajors,
};
use fleet_shim::order::{Epoch, LogSettings, RuntimeChoice, StopSettings, WindowSize};

/// Everything about one allocation. Values are as the controller ordered them; [`super::prepare`] checks
/// whatever could hurt the node.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationSpec {
    pub allocation_id: String,
    pub job_id: String,
    pub job_name: Option<String>,
    pub lease_id: String,
    pub epoch: Epoch,
    /// Counts from 1.
    pub attempt: u32,
    /// Attempts that ended through no fault of the job are not counted here.
    pub restart_count: u32,
    pub user: JobUser,
    pub image: Image,
    /// The command. May be empty for an image that has its own.
    pub argv: Vec<String>,
    /// Environment of the submitting shell; passed on with image `host` only.
    pub submit_env: Vec<(String, String)>,
    /// `-e NAME=VALUE`: always passed on, refused if it names what fleet sets.
    pub env: Vec<(String, String)>,
    /// `None`: the image's, or the user's home with image `host`.
    pub cwd: Option<PathBuf>,
    pub gpus: Vec<Gpu>,
    pub resources: Resources,
    /// The CPUs near its GPUs, if it is to keep to them.
    pub near_cpus: Option<CpuSet>,
    pub volumes: Vec<Volume>,
    pub tty: Option<WindowSize>,
    pub interactive: bool,
    /// On the node; visible to the job under the same path.
    pub checkpoint_dir: Option<PathBuf>,
    pub resume_from: Option<PathBuf>,
    pub log: LogSettings,
    /// `fleet-JOBID.log`, written as the user.
    pub output_file: Option<PathBuf>,
    pub stop: StopSettings,
    pub stop_after_ms: Option<u64>,
}

/// The owner as this node knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// The root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The node's own.
    Host,
    /// An unpacked image. Always run as the job's user: a name in the image is nobody on this node.
    Rootfs { path: PathBuf, readonly: bool, config: ImageConfig },
}

/// What an image says about running itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    pub env: Vec<(String, String)>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub working_dir: Option<PathBuf>,
}

/// A leased GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: String,
    pub minor: u32,
    /// The node on this machine (`/dev/nvidia3`); `None` where there is no driver.
    pub node_path: Option<PathBuf>,
}

/// Limits. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids_max: Option<u64>,
    pub disks: DiskLimits,
}

/// `-v SRC:DST[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub source: PathBuf,
    pub destination: PathBuf,
    pub read_only: bool,
}

/// A limit of setrlimit(2) by its OCI name (`RLIMIT_MEMLOCK`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rlimit {
    pub name: String,
    pub soft: u64,
    pub hard: u64,
}

/// What is the same for every allocation of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    pub node_name: String,
    pub runtime: RuntimeChoice,
    /// The runtime can give containers a filter of system calls.
    pub seccomp: bool,
    /// The `fleet-shim` binary.
    pub shim_path: PathBuf,
    /// The `fleet-init` binary, mounted into the container.
    pub init_path: PathBuf,
    /// Below which cgroup (or in which slice) allocations live, without slashes at the ends.
    pub cgroup_parent: String,
    /// Allocations are systemd units ([`crate::unit::Launcher`] says).
    pub systemd: bool,
    pub majors: NvidiaMajors,
    /// Where the driver's control nodes are: `/dev`.
    pub device_dir: PathBuf,
    /// Where the driver's files for jobs in images are looked for.
    pub driver: DriverPlaces,
    /// Fleet's own directories and sockets, to be hidden from jobs: with image `host`, and in volumes.
    pub hidden: Vec<PathBuf>,
    /// Login limits of jobs; empty: those of the shim, which are the service manager's defaults.
    pub rlimits: Vec<Rlimit>,
}
