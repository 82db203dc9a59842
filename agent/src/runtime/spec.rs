//! The OCI runtime specification of an allocation: root, mounts, namespaces, rights.
//!
//! Called by `bundle` only. The device list in here is a second fence: ours, attached by the shim, comes
//! first, and this one begins with "deny all" because a runtime without that rule may fail open.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{
    BoxBuilder, Capability, Linux, LinuxBlockIo, LinuxCapabilities, LinuxDeviceCgroup,
    LinuxDeviceType, LinuxNamespace, LinuxNamespaceType, LinuxResources,
    LinuxThrottleDeviceBuilder, Mount, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process,
    Root, Spec, User,
};

use super::destination::Begin;
use super::gpus::Inside;
use super::{Card, Image, NodeSettings, PrepareError, Prepared, seccomp};
use crate::attempts::Record;
use fleet_kernel::{
    cgroup::{CgroupPlan, Disk, DiskLimits, Mode},
    filter::{DeviceKind, DeviceRule},
};
use fleet_shim::{
    HOST_CONTROL_PATHS, init_arguments, init_path_in_container, notify_path_in_container,
    order::{NOTIFY_SOCKET_FILE, VolumeOrder, WindowSize},
};

/// Control nodes of NVIDIA's driver, shared by all who hold a lease.
pub(crate) const CONTROL_NODES: [&str; 4] =
    ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"];

const MASKED_PATHS: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What root inside an image keeps. Not: mknod, sys_admin, net_admin, raw sockets, ptrace, modules.
const ROOT_CAPABILITIES: [Capability; 8] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::Setgid,
    Capability::Setuid,
];

/// Size of `/dev/shm` for a job without a memory limit.
const SHM_UNLIMITED: &str = "size=50%";

/// What the specification is built from.
pub(super) struct Context<'a> {
    pub record: &'a Record,
    pub prepared: &'a Prepared,
    pub node: &'a NodeSettings,
    pub dir: &'a Path,
    pub cgroup: &'a CgroupPlan,
    pub mode: Mode,
    pub devices: &'a [DeviceRule],
    pub environment: Vec<String>,
    /// Volumes that the runtime mounts, in order.
    pub volumes: &'a [&'a VolumeOrder],
    /// Size of the job's terminal, if it has one.
    pub terminal: Option<WindowSize>,
    /// Files bound over the image's own (`/etc/passwd`, `/etc/resolv.conf`).
    pub overlays: Vec<(PathBuf, &'static str)>,
    /// What the image needs for its GPUs.
    pub inside: &'a Inside,
    pub root: PathBuf,
    pub begin: &'a Begin,
    pub argv: Vec<String>,
}

pub(super) fn build(context: &Context<'_>) -> Result<Spec, PrepareError> {
    let readonly = matches!(context.prepared.image, Image::Rootfs { readonly: true, .. });
    let mut root = Root::default();
    root.set_path(context.root.clone()).set_readonly(Some(readonly));
    let mut oci = Spec::default();
    oci.set_version("1.0.2".to_owned())
        .set_root(Some(root))
        .set_hostname(None)
        .set_mounts(Some(mounts(context, readonly)))
        // None, ever: one is root's, and comes when the user's volumes are mounted already.
        .set_hooks(None)
        .set_linux(Some(linux(context)?))
        .set_process(Some(process(context)?));
    Ok(oci)
}

fn process(context: &Context<'_>) -> Result<Process, PrepareError> {
    let owner = &context.prepared.user;
    let mut groups = owner.groups.clone();
    groups.extend(&context.inside.gids);
    let mut user = User::default();
    user.set_uid(owner.uid).set_gid(owner.gid).set_additional_gids(Some(groups));
    let mut process = Process::default();
    process
        .set_terminal(Some(context.terminal.is_some()))
        .set_user(user)
        .set_args(Some(init_arguments(context.begin.by_init.as_deref(), &context.argv)))
        .set_env(Some(context.environment.clone()))
        .set_cwd(context.begin.by_runtime.clone())
        .set_capabilities(Some(capabilities(owner.uid)))
        .set_rlimits(rlimits(context.node)?)
        // Always: setuid programs (sudo, at, crontab) are ways out of the cgroup and to root.
        .set_no_new_privileges(Some(true))
        .set_apparmor_profile(None)
        .set_selinux_label(None)
        .set_oom_score_adj(Some(0));
    if let Some(size) = context.terminal {
        let console = BoxBuilder::default()
            .height(u64::from(size.rows))
            .width(u64::from(size.columns))
            .build()?;
        process.set_console_size(Some(console));
    }
    Ok(process)
}

fn capabilities(uid: u32) -> LinuxCapabilities {
    let kept: std::collections::HashSet<Capability> =
        if uid == 0 { ROOT_CAPABILITIES.into() } else { [].into() };
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(kept.clone()))
        .set_effective(Some(kept.clone()))
        .set_permitted(Some(kept))
        .set_inheritable(Some([].into()))
        .set_ambient(Some([].into()));
    capabilities
}

fn rlimits(node: &NodeSettings) -> Result<Option<Vec<PosixRlimit>>, PrepareError> {
    if node.rlimits.is_empty() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for limit in &node.rlimits {
        let kind: PosixRlimitType = serde_json::from_value(limit.name.clone().into())
            .map_err(|_| PrepareError::Rlimit { name: limit.name.clone() })?;
        let rlimit = PosixRlimitBuilder::default().typ(kind).soft(limit.soft).hard(limit.hard);
        found.push(rlimit.build()?);
    }
    Ok(Some(found))
}

fn linux(context: &Context<'_>) -> Result<Linux, PrepareError> {
    let host = context.prepared.image == Image::Host;
    let namespaces = [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Cgroup,
    ];
    let namespaces = namespaces
        .into_iter()
        .map(|kind| {
            let mut namespace = LinuxNamespace::default();
            namespace.set_typ(kind).set_path(None);
            namespace
        })
        .collect();
    let mut masked: Vec<String> = MASKED_PATHS.iter().map(|path| (*path).to_owned()).collect();
    if host {
        masked.extend(HOST_CONTROL_PATHS.iter().map(|path| (*path).to_owned()));
        masked.extend(context.node.hidden.iter().map(|path| path.display().to_string()));
    }
    let mut resources = LinuxResources::default();
    resources
        .set_devices(Some(device_list(context.devices)))
        .set_memory(None)
        .set_cpu(None)
        .set_pids(None)
        .set_block_io(disk_limits(&context.node.disks)?);
    // With the node's own files a job may do what its user may do there.
    let filtered = context.node.seccomp && !host;
    let mut linux = Linux::default();
    linux
        .set_namespaces(Some(namespaces))
        .set_resources(Some(resources))
        // A group of its own below ours: runc takes existing programs off the group it is given.
        .set_cgroups_path(Some(Path::new("/").join(context.cgroup.relative()).join("runtime")))
        .set_masked_paths(Some(masked))
        .set_readonly_paths(Some(READONLY_PATHS.iter().map(|path| (*path).to_owned()).collect()))
        .set_devices(None)
        .set_seccomp(filtered.then(seccomp::profile).transpose()?)
        // Later auto-mounts of the node still arrive with image `host`.
        .set_rootfs_propagation(Some("rslave".to_owned()));
    Ok(linux)
}

fn disk_limits(limits: &DiskLimits) -> Result<Option<LinuxBlockIo>, PrepareError> {
    if *limits == DiskLimits::default() {
        return Ok(None);
    }
    let on_each = |bytes_per_s: u64| {
        let limit = |disk: Disk| {
            let device = LinuxThrottleDeviceBuilder::default();
            device.major(disk.major).minor(disk.minor).rate(bytes_per_s).build()
        };
        Disk::all().into_iter().map(limit).collect::<Result<Vec<_>, _>>()
    };
    let mut block_io = LinuxBlockIo::default();
    block_io
        .set_throttle_read_bps_device(limits.read_bytes_per_s.map(on_each).transpose()?)
        .set_throttle_write_bps_device(limits.write_bytes_per_s.map(on_each).transpose()?);
    Ok(Some(block_io))
}

fn device_list(rules: &[DeviceRule]) -> Vec<LinuxDeviceCgroup> {
    let mut deny = LinuxDeviceCgroup::default();
    deny.set_allow(false).set_typ(None).set_major(None).set_minor(None);
    deny.set_access(Some("rwm".to_owned()));
    let mut list = vec![deny];
    for rule in rules {
        let kind = match rule.kind {
            DeviceKind::Char => LinuxDeviceType::C,
            DeviceKind::Block => LinuxDeviceType::B,
        };
        let mut line = LinuxDeviceCgroup::default();
        line.set_allow(true)
            .set_typ(Some(kind))
            .set_major(Some(i64::from(rule.major)))
            .set_minor(rule.minor.map(i64::from))
            .set_access(Some(rule.access.letters()));
        list.push(line);
    }
    list
}

fn mounts(context: &Context<'_>, readonly: bool) -> Vec<Mount> {
    let shm = match context.record.order.memory_bytes {
        0 => SHM_UNLIMITED.to_owned(),
        bytes => format!("size={}k", bytes / 1024),
    };
    let mut list = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=1777", &shm]),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ];
    if context.mode == Mode::Unified {
        let options = ["nosuid", "noexec", "nodev", "relatime", "ro"];
        list.push(mount("/sys/fs/cgroup", "cgroup", "cgroup", &options));
    }
    if readonly {
        list.push(mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=1777"]));
    }
    list.push(bind(&context.node.init_path, init_path_in_container(), &["ro", "nosuid", "nodev"]));
    let notify = context.dir.join(fleet_shim::order::NOTIFY_DIR).join(NOTIFY_SOCKET_FILE);
    list.push(bind(&notify, notify_path_in_container(), &["nosuid", "nodev", "noexec"]));
    for node in device_nodes(&context.prepared.cards, context.node) {
        let name = node.1;
        list.push(bind(&node.0, &format!("/dev/{name}"), &["nosuid", "noexec"]));
    }
    for (source, destination) in &context.overlays {
        list.push(bind(source, destination, &["ro", "nosuid", "nodev"]));
    }
    for file in &context.inside.binds {
        // A folder with all that is mounted in it.
        let options = ["rbind", "ro", "nosuid", "nodev"];
        let destination = file.destination.display().to_string();
        list.push(mount(&destination, "bind", &file.source, &options));
    }
    for volume in context.volumes {
        let access = if volume.read_only { "ro" } else { "rw" };
        let destination = volume.destination.display().to_string();
        list.push(mount(
            &destination,
            "bind",
            &volume.anchor,
            &["rbind", "nosuid", "nodev", access],
        ));
    }
    list
}

/// Device nodes to show, with their names in the container: the leased cards and, with any of them, the
/// control nodes that exist.
fn device_nodes(cards: &[Card], node: &NodeSettings) -> Vec<(PathBuf, String)> {
    if cards.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<_> = cards
        .iter()
        .filter_map(|card| Some((node.device_node(card)?, format!("nvidia{}", card.minor))))
        .collect();
    for name in CONTROL_NODES {
        let path = node.device_dir.join(name);
        if path.exists() {
            found.push((path, name.to_owned()));
        }
    }
    found
}

fn mount(destination: &str, kind: &str, source: impl AsRef<Path>, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(PathBuf::from(destination))
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(source.as_ref().to_owned()))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}

fn bind(source: &Path, destination: &str, options: &[&str]) -> Mount {
    let mut all = vec!["bind"];
    all.extend(options);
    mount(destination, "bind", source, &all)
}
