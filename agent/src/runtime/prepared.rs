//! What the node itself works out before an attempt starts, beside the order that came from the controllers.

use std::path::PathBuf;

use fleet_core::name::GpuUuid;
use fleet_image::ImageConfig;
use fleet_kernel::{
    cgroup::{CpuSet, DiskLimits},
    filter::NvidiaMajors,
};
use fleet_shim::order::{LogSettings, RuntimeChoice};
use fleet_user::User;

use crate::config::DriverPlaces;

/// What the node found out for one attempt. Everything else is in the order ([`crate::attempts::Record`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The owner, as this node knows them.
    pub user: User,
    /// What the order's image is here.
    pub image: Image,
    /// The GPUs of the order, as this machine has them.
    pub cards: Vec<Card>,
    /// The CPUs near its GPUs, if it is to keep to them.
    pub near_cpus: Option<CpuSet>,
    /// The checkpoint that it resumes from, as the job sees it.
    pub resume_from: Option<PathBuf>,
}

/// The root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The node's own.
    Host,
    /// An unpacked image. Always run as the job's user: a name in the image is nobody on this node.
    Rootfs { path: PathBuf, readonly: bool, config: ImageConfig },
}

/// Where a leased GPU is on this machine: the order has its UUID alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    pub uuid: GpuUuid,
    /// `/dev/nvidia<minor>`.
    pub minor: u32,
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
    /// Where the driver's device nodes are: `/dev`.
    pub device_dir: PathBuf,
    /// Where the driver's files for jobs in images are looked for.
    pub driver: DriverPlaces,
    /// Fleet's own directories and sockets, to be hidden from jobs: with image `host`, and in volumes.
    pub hidden: Vec<PathBuf>,
    /// Login limits of jobs; empty: those of the shim, which are the service manager's defaults.
    pub rlimits: Vec<Rlimit>,
    pub log: LogSettings,
    /// Processes and threads of one job. `None` is no limit.
    pub pids_max: Option<u64>,
    pub disks: DiskLimits,
}

impl NodeSettings {
    /// The device node of a GPU; `None` where there is no driver.
    pub(super) fn device_node(&self, card: &Card) -> Option<PathBuf> {
        let path = self.device_dir.join(format!("nvidia{}", card.minor));
        path.exists().then_some(path)
    }
}
