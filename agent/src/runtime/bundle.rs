//! Writes an allocation's directory: the bundle's `config.json` and `order.json`, after checking what the
//! order says. It does not read a user's paths; `shim::mounts` does.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fleet_core::{
    job::{TerminalSize, Volume},
    lease::Epoch,
};
use fleet_user::User;
use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag},
    sys::stat,
};
use tracing::info;

use super::destination::{self, Begin};
use super::gpus::{self, Host, Inside};
use super::{Card, EnvironmentError, Image, NodeSettings, Prepared, environment, spec};
use crate::attempts::Record;
use fleet_kernel::{
    cgroup::{CgroupError, CgroupPlan, Hierarchies, Limits, Mode},
    filter::{self, NVIDIA_MAJOR_USUAL},
    openat::openat2,
};
use fleet_shim::order::{
    self, BUNDLE_DIR, FileError, Identity, MountPlan, RUN_DIR, RuntimeKind, ShimOrder,
    StopSettings, VERSION, VolumeOrder, WindowSize, is_clean,
};

/// Arguments of one job, and bytes of all of them.
const ARGUMENTS_MAX: usize = 16 * 1024;
const ARGUMENT_BYTES_MAX: usize = 1024 * 1024;
const VOLUMES_MAX: usize = 64;
/// Size of a terminal whose user has none, at the start.
const WINDOW: WindowSize = WindowSize { rows: 24, columns: 80 };
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

/// Makes `dir` (its parent must exist) and writes everything the shim needs: what was ordered by `record`, with what the
/// node has `prepared` for it. Nothing runs yet. Not synced: after a power cut there is no process, and the agent starts
/// again from its own record.
pub fn prepare(
    dir: &Path,
    record: &Record,
    prepared: &Prepared,
    node: &NodeSettings,
) -> Result<ShimOrder, PrepareError> {
    let (id, spec) = (record.id.as_str(), &record.order.spec);
    check_id(id)?;
    let argv = argv(&spec.argv, &prepared.image)?;
    let mut begin = working_dir(&spec.workdir, prepared)?;
    check_volumes(&spec.volumes)?;
    check_gpu_nodes(&prepared.cards, node)?;
    let hierarchies = Hierarchies::detect()?;
    if hierarchies.mode() == Mode::Legacy && node.runtime.kind == RuntimeKind::Runc {
        return Err(PrepareError::RuncOnLegacy);
    }
    let inside = inside(id, prepared, node);
    let environment = environment::build(record, prepared, &node.node_name, &inside.env)?;
    let mut volumes = volume_orders(dir, &spec.volumes);
    if let Image::Rootfs { path, .. } = &prepared.image {
        add_checkpoint_volumes(dir, record, prepared, &mut volumes);
        destination::check_root(path, &prepared.user)?;
        destination::check_own(path)?;
        lead_inside(&mut volumes, path)?;
        begin = destination::begin(path, begin, &volumes)?;
    }

    let bundle = dir.join(BUNDLE_DIR);
    for path in [dir, &dir.join(RUN_DIR), &bundle] {
        make_private_dir(path)?;
    }
    let host = prepared.image == Image::Host;
    let (root, overlays) = match &prepared.image {
        Image::Host => (bundle.join("rootfs"), Vec::new()),
        Image::Rootfs { path, .. } => (path.clone(), overlays(&bundle, path, &prepared.user)?),
    };
    let mut devices = filter::standard_rules();
    let minors: Vec<u32> = prepared.cards.iter().map(|card| card.minor).collect();
    devices.extend(filter::gpu_rules(node.majors, &minors));
    let cgroup = cgroup_plan(id, node);
    let terminal = spec.tty.then(|| spec.window.map_or(WINDOW, window));
    let config = spec::build(&spec::Context {
        record,
        prepared,
        node,
        dir,
        cgroup: &cgroup,
        mode: hierarchies.mode(),
        devices: &devices,
        environment,
        volumes: &of_runtime(host, &volumes),
        terminal,
        overlays,
        inside: &inside,
        root: root.clone(),
        begin: &begin,
        argv,
    })?;
    let bytes = serde_json::to_vec(&config).map_err(PrepareError::Config)?;
    write_private(&bundle.join("config.json"), &bytes)?;

    let order = ShimOrder {
        v: VERSION,
        allocation_id: id.to_owned(),
        lease_id: record.lease.as_ref().map(ToString::to_string).unwrap_or_default(),
        epoch: epoch(record.epoch),
        attempt: record.order.attempt,
        cgroup,
        limits: limits(record, node),
        near_cpus: prepared.near_cpus.clone(),
        devices,
        runtime: node.runtime.clone(),
        identity: identity(&prepared.user),
        mounts: MountPlan {
            host_root: host.then_some(root),
            volumes,
            working_dir: begin.by_init,
            hidden: node.hidden.clone(),
        },
        log: node.log,
        output_file: spec.output_file.as_ref().map(PathBuf::from),
        stop: StopSettings { grace_ms: spec.stop_grace.0, ..StopSettings::default() },
        tty: terminal,
        interactive: spec.interactive,
        notify: true,
        stop_after_ms: spec.stop_after.map(|after| after.0),
    };
    order.write(dir)?;
    Ok(order)
}

/// The shim has its own types for this and for a terminal's size ([`order::Epoch`] says why). No other place makes them from
/// the core's.
fn epoch(Epoch { incarnation, index }: Epoch) -> order::Epoch {
    order::Epoch { incarnation, index }
}

fn window(TerminalSize { rows, columns }: TerminalSize) -> WindowSize {
    WindowSize { rows, columns }
}

fn identity(user: &User) -> Identity {
    Identity { uid: user.uid, gid: user.gid, groups: user.groups.clone() }
}

/// What an image needs of the node for its GPUs. With image `host` the node's own files are there.
fn inside(allocation: &str, prepared: &Prepared, node: &NodeSettings) -> Inside {
    let Image::Rootfs { path, .. } = &prepared.image else { return Inside::default() };
    if prepared.cards.is_empty() {
        return Inside::default();
    }
    let host = Host::look(&node.driver);
    let found = gpus::inside(&host, &prepared.cards, gpus::image_library_dir(path).as_deref());
    let files = found.binds.len();
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

fn limits(record: &Record, node: &NodeSettings) -> Limits {
    let order = &record.order;
    let cpu_millis = Some(order.cpu_millis).filter(|millis| *millis > 0);
    Limits {
        cpu_quota_millis: cpu_millis,
        cpu_weight: cpu_millis.map(|millis| (millis / 10).clamp(1, 10_000)),
        memory_bytes: Some(order.memory_bytes).filter(|bytes| *bytes > 0),
        pids_max: node.pids_max,
        disks: node.disks,
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
fn argv(given: &[String], image: &Image) -> Result<Vec<String>, PrepareError> {
    let argv = match image {
        Image::Host => given.to_vec(),
        Image::Rootfs { config, .. } => {
            let words = if given.is_empty() { &config.cmd } else { given };
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
fn working_dir(given: &str, prepared: &Prepared) -> Result<Begin, PrepareError> {
    let chosen = match (given, &prepared.image) {
        ("", Image::Host) => prepared.user.home.clone(),
        ("", Image::Rootfs { config, .. }) if config.working_dir.is_empty() => PathBuf::from("/"),
        ("", Image::Rootfs { config, .. }) => PathBuf::from(&config.working_dir),
        (dir, _) => PathBuf::from(dir),
    };
    // Below /proc a working directory could be another process's descriptor (CVE-2024-21626).
    if !is_clean(&chosen) || chosen.starts_with("/proc") {
        let reason = "must be absolute, without .., and not below /proc";
        return Err(PrepareError::Cwd { path: chosen, reason });
    }
    Ok(Begin::of_init(chosen))
}

/// Puts in place of each destination where the image's links lead, and notes which volumes hold others.
fn lead_inside(volumes: &mut [VolumeOrder], rootfs: &Path) -> Result<(), PrepareError> {
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
    let within: Vec<_> = (0..volumes.len()).map(|n| destination::within(volumes, n)).collect();
    for (volume, within) in volumes.iter_mut().zip(within) {
        volume.within = within;
    }
    Ok(())
}

fn volume_orders(dir: &Path, volumes: &[Volume]) -> Vec<VolumeOrder> {
    let order = |(index, volume): (usize, &Volume)| VolumeOrder {
        source: PathBuf::from(&volume.source),
        anchor: anchor(dir, index),
        destination: PathBuf::from(&volume.destination),
        read_only: volume.read_only,
        within: None,
    };
    volumes.iter().enumerate().map(order).collect()
}

fn anchor(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("volumes/{index}"))
}

/// The volumes that the runtime may mount: it is root, and makes destinations that are missing. The shim mounts volumes
/// whose destination is in another volume or, with image `host`, on the node itself.
fn of_runtime(host: bool, volumes: &[VolumeOrder]) -> Vec<&VolumeOrder> {
    volumes.iter().filter(|volume| !host && volume.within.is_none()).collect()
}

fn check_volumes(volumes: &[Volume]) -> Result<(), PrepareError> {
    if volumes.len() > VOLUMES_MAX {
        return Err(PrepareError::TooManyVolumes);
    }
    for (index, volume) in volumes.iter().enumerate() {
        let refused = |field, path: &Path, reason| {
            Err(PrepareError::Volume { index, field, path: path.to_owned(), reason })
        };
        let (source, inside) = (Path::new(&volume.source), Path::new(&volume.destination));
        for (field, path) in [("source", source), ("destination", inside)] {
            if !is_clean(path) {
                return refused(field, path, "must be absolute and without ..");
            }
        }
        if !destination::can_be_covered(inside) {
            return refused("destination", inside, "cannot be covered");
        }
    }
    Ok(())
}

/// A node that is not what its name says would open another card's door.
fn check_gpu_nodes(cards: &[Card], node: &NodeSettings) -> Result<(), PrepareError> {
    let major = node.majors.cards.unwrap_or(NVIDIA_MAJOR_USUAL);
    for card in cards {
        let Some(path) = node.device_node(card) else { continue };
        let metadata = fs::metadata(&path).map_err(failed("look at", &path))?;
        let device = (stat::major(metadata.rdev()), stat::minor(metadata.rdev()));
        if !metadata.file_type().is_char_device()
            || device != (u64::from(major), u64::from(card.minor))
        {
            return Err(PrepareError::GpuNode { path, major, minor: card.minor });
        }
    }
    Ok(())
}

/// An image does not contain the checkpoint directory: bring it in under its own path.
fn add_checkpoint_volumes(
    dir: &Path,
    record: &Record,
    prepared: &Prepared,
    volumes: &mut Vec<VolumeOrder>,
) {
    let saves = record.order.spec.checkpoint.as_ref();
    let saves = saves.map(|plan| PathBuf::from(plan.dir_of(record.order.attempt)));
    let resumes = &prepared.resume_from;
    for path in [&saves, resumes].into_iter().flatten() {
        if !volumes.iter().any(|volume| path.starts_with(&volume.destination)) {
            volumes.push(VolumeOrder {
                source: path.clone(),
                anchor: anchor(dir, volumes.len()),
                destination: path.clone(),
                read_only: Some(path) == resumes.as_ref(),
                within: None,
            });
        }
    }
}

/// Files an image needs to have from the node: names for the user's ids, and the node's name service
/// (the network is the node's).
fn overlays(
    bundle: &Path,
    rootfs: &Path,
    user: &User,
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
