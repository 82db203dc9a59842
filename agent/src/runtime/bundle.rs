//! Writes an allocation's directory: the bundle's `config.json` and `order.json`, after checking what the
//! order says. It does not read a user's paths; `shim::mounts` does.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag},
    sys::stat,
};
use tracing::info;

use super::destination::{self, Begin};
use super::gpus::{self, Host, Inside};
use super::{
    AllocationSpec, EnvironmentError, Gpu, Image, JobUser, NodeSettings, Volume, environment, spec,
};
use fleet_kernel::{
    cgroup::{CgroupError, CgroupPlan, Hierarchies, Limits, Mode},
    filter::{self, NVIDIA_MAJOR_USUAL},
    openat::openat2,
};
use fleet_shim::order::{
    BUNDLE_DIR, FileError, Identity, MountPlan, RUN_DIR, RuntimeKind, ShimOrder, VERSION,
    VolumeOrder, is_clean,
};

/// Arguments of one job, and bytes of all of them.
const ARGUMENTS_MAX: usize = 16 * 1024;
const ARGUMENT_BYTES_MAX: usize = 1024 * 1024;
const VOLUMES_MAX: usize = 64;
/// Largest `/etc/passwd` or `/etc/group` of an image that is taken over.
const NAMES_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("build the bundle's config.json")]
    Spec(#[from] oci_spec::OciSpecError),
    #[error("write the bundle's config.json")]
    Config(#[source] serde_json::Error),
    #[error("allocation_id: {id:?} is not a plain name")]
    BadId { id: String },
    #[error("argv: {reason}")]
    Argv { reason: &'static str },
    #[error("cwd: {} {reason}", path.display())]
    Cwd { path: PathBuf, reason: &'static str },
    #[error("volumes[{index}].{field}: {} {reason}", path.display())]
    Volume { index: usize, field: &'static str, path: PathBuf, reason: &'static str },
    #[error("image: {path} {reason}; the node's own goes there")]
    Image { path: &'static str, reason: &'static str },
    #[error("{who} the root folder of this image (mode {mode:04o})")]
    ClosedRoot { who: String, mode: u32 },
    #[error("volumes: more than {VOLUMES_MAX}")]
    TooManyVolumes,
    #[error("gpus: {} is not the character device {major}:{minor}", path.display())]
    GpuNode { path: PathBuf, major: u32, minor: u32 },
    /// runc insists on allowing every mknod in the v1 devices controller, which ours, above it, refuses.
    #[error(
        "runc cannot run under fleet's device list on a machine with cgroup v1 only: install crun"
    )]
    RuncOnLegacy,
    #[error("rlimits: {name:?} is not a limit")]
    Rlimit { name: String },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
    let path = path.to_owned();
    move |source| PrepareError::Io { action, path, source }
}

/// Makes `dir` (its parent must exist) and writes everything the shim needs. Nothing runs yet. Not
/// synced: after a power cut there is no process, and the agent starts again from its own record.
pub fn prepare(
    dir: &Path,
    spec: &AllocationSpec,
    node: &NodeSettings,
) -> Result<ShimOrder, PrepareError> {
    check_id(&spec.allocation_id)?;
    let argv = argv(spec)?;
    let mut begin = working_dir(spec)?;
    check_volumes(&spec.volumes)?;
    check_gpu_nodes(&spec.gpus, node)?;
    let hierarchies = Hierarchies::detect()?;
    if hierarchies.mode() == Mode::Legacy && node.runtime.kind == RuntimeKind::Runc {
        return Err(PrepareError::RuncOnLegacy);
    }
    let inside = inside(spec, node);
    let environment = environment::build(spec, &node.node_name, &inside.env)?;
    let mut spec = spec.clone();
    add_checkpoint_volume(&mut spec);
    if let Image::Rootfs { path, .. } = &spec.image {
        destination::check_root(path, &spec.user)?;
        destination::check_own(path)?;
        lead_inside(&mut spec.volumes, path)?;
        begin = destination::begin(path, begin, &spec.volumes)?;
    }

    let bundle = dir.join(BUNDLE_DIR);
    for path in [dir, &dir.join(RUN_DIR), &bundle] {
        make_private_dir(path)?;
    }
    let volumes = volume_orders(dir, &spec);
    let host = spec.image == Image::Host;
    let root = match &spec.image {
        Image::Host => bundle.join("rootfs"),
        Image::Rootfs { path, .. } => path.clone(),
    };
    let mut devices = filter::standard_rules();
    let minors: Vec<u32> = spec.gpus.iter().map(|gpu| gpu.minor).collect();
    devices.extend(filter::gpu_rules(node.majors, &minors));
    let cgroup = cgroup_plan(&spec.allocation_id, node);
    let overlays = match &spec.image {
        Image::Host => Vec::new(),
        Image::Rootfs { path, .. } => overlays(&bundle, path, &spec.user)?,
    };
    let config = spec::build(
        &spec,
        spec::Context {
            node,
            dir,
            cgroup: &cgroup,
            mode: hierarchies.mode(),
            devices: &devices,
            environment,
            volumes: &of_runtime(&spec, &volumes),
            overlays,
            inside: &inside,
            root: root.clone(),
            begin: &begin,
            argv,
        },
    )?;
    let bytes = serde_json::to_vec(&config).map_err(PrepareError::Config)?;
    write_private(&bundle.join("config.json"), &bytes)?;

    let order = ShimOrder {
        v: VERSION,
        allocation_id: spec.allocation_id.clone(),
        lease_id: spec.lease_id.clone(),
        epoch: spec.epoch,
        attempt: spec.attempt,
        cgroup,
        limits: limits(&spec),
        near_cpus: spec.near_cpus.clone(),
        devices,
        runtime: node.runtime.clone(),
        identity: Identity {
            uid: spec.user.uid,
            gid: spec.user.gid,
            groups: spec.user.groups.clone(),
        },
        mounts: MountPlan {
            host_root: host.then_some(root),
            volumes,
            working_dir: begin.by_init,
            hidden: node.hidden.clone(),
        },
        log: spec.log,
        output_file: spec.output_file.clone(),
        stop: spec.stop,
        tty: spec.tty,
        interactive: spec.interactive,
        notify: true,
        stop_after_ms: spec.stop_after_ms,
    };
    order.write(dir)?;
    Ok(order)
}

/// What an image needs of the node for its GPUs. With image `host` the node's own files are there.
fn inside(spec: &AllocationSpec, node: &NodeSettings) -> Inside {
    let Image::Rootfs { path, .. } = &spec.image else { return Inside::default() };
    if spec.gpus.is_empty() {
        return Inside::default();
    }
    let host = Host::look(&node.driver);
    let found = gpus::inside(&host, &spec.gpus, gpus::image_library_dir(path).as_deref());
    let (allocation, files) = (&spec.allocation_id, found.binds.len());
    info!(%allocation, files, descriptions = ?found.files, "files of the driver for an image");
    for note in &found.notes {
        info!(%allocation, note, "files of the driver for an image");
    }
    found
}

/// The cgroup of an allocation's processes on this node.
fn cgroup_plan(allocation_id: &str, node: &NodeSettings) -> CgroupPlan {
    if node.systemd {
        CgroupPlan::OwnUnit {
            slice: node.cgroup_parent.clone(),
            unit: crate::unit::unit_name(allocation_id),
        }
    } else {
        CgroupPlan::Path { parent: node.cgroup_parent.clone(), name: allocation_id.to_owned() }
    }
}

fn limits(spec: &AllocationSpec) -> Limits {
    Limits {
        cpu_quota_millis: spec.resources.cpu_millis,
        cpu_weight: spec.resources.cpu_millis.map(|millis| (millis / 10).clamp(1, 10_000)),
        memory_bytes: spec.resources.memory_bytes,
        pids_max: spec.resources.pids_max,
        disks: spec.resources.disks,
    }
}

/// The id becomes a directory, a cgroup, a unit and a container: letters, digits, `-` and `_` only.
fn check_id(id: &str) -> Result<(), PrepareError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > 128 || id.starts_with('-') || !id.bytes().all(plain) {
        return Err(PrepareError::BadId { id: id.to_owned() });
    }
    Ok(())
}

/// The command as docker would put it together: the image's entrypoint, then the user's or its own words.
fn argv(spec: &AllocationSpec) -> Result<Vec<String>, PrepareError> {
    let argv = match &spec.image {
        Image::Host => spec.argv.clone(),
        Image::Rootfs { config, .. } => {
            let words = if spec.argv.is_empty() { &config.cmd } else { &spec.argv };
            config.entrypoint.iter().chain(words).cloned().collect()
        }
    };
    let refused = |reason| Err(PrepareError::Argv { reason });
    if argv.first().is_none_or(String::is_empty) {
        return refused("no command given, and the image has none");
    }
    let bytes: usize = argv.iter().map(String::len).sum();
    if argv.len() > ARGUMENTS_MAX || bytes > ARGUMENT_BYTES_MAX {
        return refused("too many or too long arguments");
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return refused("an argument contains a NUL byte");
    }
    Ok(argv)
}

/// With image `host` the init goes there; where an image has it is still to be found out.
fn working_dir(spec: &AllocationSpec) -> Result<Begin, PrepareError> {
    let chosen = match (&spec.cwd, &spec.image) {
        (Some(dir), _) => dir.clone(),
        (None, Image::Host) => spec.user.home.clone(),
        (None, Image::Rootfs { config, .. }) => {
            config.working_dir.clone().unwrap_or_else(|| PathBuf::from("/"))
        }
    };
    // Below /proc a working directory could be another process's descriptor (CVE-2024-21626).
    if !is_clean(&chosen) || chosen.starts_with("/proc") {
        let reason = "must be absolute, without .., and not below /proc";
        return Err(PrepareError::Cwd { path: chosen, reason });
    }
    Ok(Begin::of_init(chosen))
}

/// Puts in place of each destination where the image's links lead.
fn lead_inside(volumes: &mut [Volume], rootfs: &Path) -> Result<(), PrepareError> {
    for (index, volume) in volumes.iter_mut().enumerate() {
        let path = volume.destination.clone();
        let refused = |reason| PrepareError::Volume { index, field: "destination", path, reason };
        volume.destination = destination::in_image(rootfs, &volume.destination).map_err(refused)?;
        if !destination::can_be_covered(&volume.destination) {
            let path = volume.destination.clone();
            let reason = "cannot be covered, and the image leads there";
            return Err(PrepareError::Volume { index, field: "destination", path, reason });
        }
    }
    Ok(())
}

fn volume_orders(dir: &Path, spec: &AllocationSpec) -> Vec<VolumeOrder> {
    let in_image = spec.image != Image::Host;
    let order = |(index, volume): (usize, &Volume)| VolumeOrder {
        source: volume.source.clone(),
        anchor: dir.join(format!("volumes/{index}")),
        destination: volume.destination.clone(),
        read_only: volume.read_only,
        within: in_image.then(|| destination::within(&spec.volumes, index)).flatten(),
    };
    spec.volumes.iter().enumerate().map(order).collect()
}

/// The volumes that the runtime may mount: it is root, and makes destinations that are missing. The shim mounts volumes
/// whose destination is in another volume or, with image `host`, on the node itself.
fn of_runtime(spec: &AllocationSpec, orders: &[VolumeOrder]) -> Vec<(Volume, PathBuf)> {
    let mut found = Vec::new();
    for (volume, order) in spec.volumes.iter().zip(orders) {
        if spec.image != Image::Host && order.within.is_none() {
            found.push((volume.clone(), order.anchor.clone()));
        }
    }
    found
}

fn check_volumes(volumes: &[Volume]) -> Result<(), PrepareError> {
    if volumes.len() > VOLUMES_MAX {
        return Err(PrepareError::TooManyVolumes);
    }
    for (index, volume) in volumes.iter().enumerate() {
        let refused = |field, path: &Path, reason| {
            Err(PrepareError::Volume { index, field, path: path.to_owned(), reason })
        };
        for (field, path) in [("source", &volume.source), ("destination", &volume.destination)] {
            if !is_clean(path) {
                return refused(field, path, "must be absolute and without ..");
            }
        }
        if !destination::can_be_covered(&volume.destination) {
            return refused("destination", &volume.destination, "cannot be covered");
        }
    }
    Ok(())
}

/// A node that is not what its name says would open another card's door.
fn check_gpu_nodes(gpus: &[Gpu], node: &NodeSettings) -> Result<(), PrepareError> {
    let major = node.majors.cards.unwrap_or(NVIDIA_MAJOR_USUAL);
    for gpu in gpus {
        let Some(path) = &gpu.node_path else { continue };
        let metadata = fs::metadata(path).map_err(failed("look at", path))?;
        let device = (stat::major(metadata.rdev()), stat::minor(metadata.rdev()));
        if !metadata.file_type().is_char_device()
            || device != (u64::from(major), u64::from(gpu.minor))
        {
            return Err(PrepareError::GpuNode { path: path.clone(), major, minor: gpu.minor });
        }
    }
    Ok(())
}

/// An image does not contain the checkpoint directory: bring it in under its own path.
fn add_checkpoint_volume(spec: &mut AllocationSpec) {
    if spec.image == Image::Host {
        return;
    }
    for path in [&spec.checkpoint_dir, &spec.resume_from].into_iter().flatten() {
        let inside = spec.volumes.iter().any(|volume| path.starts_with(&volume.destination));
        if !inside {
            spec.volumes.push(Volume {
                source: path.clone(),
                destination: path.clone(),
                read_only: Some(path) == spec.resume_from.as_ref(),
            });
        }
    }
}

/// Files an image needs to have from the node: names for the user's ids, and the node's name service
/// (the network is the node's).
fn overlays(
    bundle: &Path,
    rootfs: &Path,
    user: &JobUser,
) -> Result<Vec<(PathBuf, &'static str)>, PrepareError> {
    let mut found = Vec::new();
    let passwd =
        format!("{}:x:{}:{}::{}:{}", user.name, user.uid, user.gid, user.home.display(), "/bin/sh");
    let group = format!("{}:x:{}:", user.name, user.gid);
    for (destination, id, line) in
        [("/etc/passwd", user.uid, passwd), ("/etc/group", user.gid, group)]
    {
        let mut text = read_inside(rootfs, &destination[1..]);
        let known = text.lines().any(|entry| entry.split(':').nth(2) == Some(&id.to_string()));
        if known || line.contains('\n') {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&line);
        text.push('\n');
        let path = bundle.join(destination.rsplit('/').next().unwrap_or_default());
        write_private(&path, text.as_bytes())?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .map_err(failed("set the mode of", &path))?;
        found.push((path, destination));
    }
    for destination in ["/etc/resolv.conf", "/etc/hosts"] {
        if let Ok(path) = fs::canonicalize(destination) {
            found.push((path, destination));
        }
    }
    Ok(found)
}

/// A small file of an image. Its links are the image's own and lead nowhere outside. Empty if not there.
fn read_inside(rootfs: &Path, relative: &str) -> String {
    let open = || -> io::Result<String> {
        let root = fs::File::open(rootfs)?;
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let file = fs::File::from(openat2(&root, Path::new(relative), how)?);
        let mut bytes = Vec::new();
        file.take(NAMES_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    open().unwrap_or_default()
}

fn make_private_dir(path: &Path) -> Result<(), PrepareError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
    .map_err(failed("create", path))
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), PrepareError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path).and_then(|mut file| file.write_all(bytes)).map_err(failed("write", path))
}
