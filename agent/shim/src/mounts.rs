//! What is mounted before the runtime runs: the node's root for image `host`, the user's volumes, the
//! runtime itself.
//!
//! Runs in the shim's forked child only, in a mount namespace of its own: nothing appears on the node,
//! and everything goes away with the container. The namespace stays a slave of the node's, so a file
//! system that is auto-mounted later still arrives. A dead NFS server hangs the child here, not the shim.
//!
//! A path of the user is resolved once, as the user, and what was found is held by a descriptor and mounted by it:
//! a user who exchanges a link afterwards changes nothing. The runtime, which is root, must never resolve one. Nothing
//! of the user's may be mounted over the node's own files either, for the runtime is still to be loaded from them.

use std::{
    ffi::CString,
    fs::{self, File, FileType},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag},
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::statvfs::{FsFlags, fstatvfs},
    unistd::{Gid, Uid, setegid, seteuid, setgroups},
};

mod doors;

use super::order::{Identity, MountPlan, RuntimeChoice, RuntimeKind, VolumeOrder};
use fleet_kernel::cgroup::Mode;
use fleet_kernel::openat::openat2;

pub use doors::HOST_CONTROL_PATHS;

const NOTHING: Option<&str> = None;

/// Text for the exit record: what was tried and what the system said.
pub(super) type Failure = String;

/// Enters a new mount namespace and makes everything the bundle refers to.
pub(super) fn prepare(plan: &MountPlan, identity: &Identity) -> Result<(), Failure> {
    enter_namespace()?;
    // The user's paths first, while the process sees the node as the user sees it.
    let mut held = Vec::new();
    let seen = as_user(identity, || look_at_user_paths(plan, &mut held))?;
    seen?;
    doors::refuse(plan, &held)?;
    if let Some(root) = &plan.host_root {
        show_node(root)?;
    }
    for (volume, source) in plan.volumes.iter().zip(&held) {
        anchor(volume, source)?;
    }
    match &plan.host_root {
        Some(root) => cover(plan, root, identity),
        None => nest(plan, identity),
    }
}

/// Binds the node's root to where the container's will be, without what the container gets of its own.
fn show_node(root: &Path) -> Result<(), Failure> {
    make_dir(root)?;
    bind("/", root, MsFlags::MS_REC)?;
    mount(NOTHING, root, NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING)
        .map_err(|error| format!("make {} a slave mount: {error}", root.display()))?;
    // The kernel refuses a second sysfs on top of the first. Only this namespace's copies go; one that is no
    // mount of its own is none of our business.
    for name in ["dev", "proc", "sys"] {
        umount2(&root.join(name), MntFlags::MNT_DETACH).ok();
    }
    Ok(())
}

/// With image `host`: mounts each volume where its destination leads in the copy of the node's root. The destination
/// must exist: if root made it, it would appear on the node.
fn cover(plan: &MountPlan, root: &Path, identity: &Identity) -> Result<(), Failure> {
    let copy = open_path(root).map_err(|error| format!("open {}: {error}", root.display()))?;
    for volume in &plan.volumes {
        let shown = volume.destination.display();
        let place =
            as_user(identity, || open_in(&copy, &volume.destination))?.map_err(|error| {
                format!("volume destination {shown}: {error} (with image host it must exist)")
            })?;
        put(volume, &place)?;
    }
    Ok(())
}

/// In an image: mounts each volume whose destination is in another volume onto that volume's anchor. The runtime mounts
/// both with that anchor.
fn nest(plan: &MountPlan, identity: &Identity) -> Result<(), Failure> {
    let mut places = Vec::new();
    for volume in &plan.volumes {
        let Some(outer) = volume.within.and_then(|index| plan.volumes.get(index)) else { continue };
        let shown = volume.destination.display();
        let refused = |error: io::Error| {
            let around = outer.destination.display();
            format!(
                "volume destination {shown}: {error} (in the volume {around} it must exist, and not by a link)"
            )
        };
        let below = volume.destination.strip_prefix(&outer.destination);
        let below = below.map_err(|_| refused(io::ErrorKind::InvalidInput.into()))?;
        let around = open_path(&outer.anchor).map_err(refused)?;
        let place = if below.as_os_str().is_empty() {
            around
        } else {
            as_user(identity, || open_beneath(&around, below))?.map_err(refused)?
        };
        places.push((volume, place));
    }
    // Inner ones first, to be there when the outer one is copied to its place. All places were opened before
    // that, so none is looked for in what covers it.
    for (volume, place) in places.into_iter().rev() {
        put(volume, &place)?;
    }
    Ok(())
}

/// Makes the place that the runtime is started in. Comes last, since nothing of the bundle should see it.
pub(super) fn prepare_runtime(mode: Mode, runtime: &RuntimeChoice) -> Result<(), Failure> {
    protect(&runtime.path);
    if runtime.kind == RuntimeKind::Crun && mode == Mode::Hybrid {
        hide_cgroup_tree()?;
    }
    Ok(())
}

/// The same for `exec`, where nothing else is mounted.
pub(super) fn prepare_exec(mode: Mode, runtime: &RuntimeChoice) -> Result<(), Failure> {
    enter_namespace()?;
    prepare_runtime(mode, runtime)
}

/// Lets the runtime be started from a read-only mount. A container could overwrite the program that made it
/// through `/proc/self/exe` (CVE-2019-5736), so crun makes itself such a mount and starts a second time, with
/// all its libraries, unless it finds that it is in one already (libcrun, `cloned_binary.c`,
/// `is_self_cloned`). runc copies itself into memory in any case. Where this fails they help themselves, so there
/// is nothing to report.
fn protect(program: &Path) {
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    if bind(program, program, MsFlags::empty()).is_ok() {
        mount(NOTHING, program, NOTHING, again, NOTHING).ok();
    }
}

/// Hides the node's cgroup tree from crun, whose releases before 1.9 refuse to run beside a cgroup2 tree
/// that has controllers. The shim tells crun not to manage cgroups, and has put it into the right ones already.
fn hide_cgroup_tree() -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    mount(Some("none"), fleet_kernel::cgroup::ROOT, Some("tmpfs"), flags, Some("size=4k"))
        .map_err(|error| format!("hide the cgroup tree from the runtime: {error}"))
}

fn enter_namespace() -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| format!("make a mount namespace: {error}"))?;
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING)
        .map_err(|error| format!("detach the mount namespace: {error}"))
}

/// Runs `body` with the user's effective ids, as an NFS server with root_squash wants it, and returns.
fn as_user<T>(identity: &Identity, body: impl FnOnce() -> T) -> Result<T, Failure> {
    if identity.uid == 0 {
        return Ok(body());
    }
    let groups: Vec<Gid> = identity.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let become_user = || {
        setgroups(&groups)?;
        setegid(Gid::from_raw(identity.gid))?;
        seteuid(Uid::from_raw(identity.uid))
    };
    become_user().map_err(|error| format!("become user {}: {error}", identity.uid))?;
    let result = body();
    let become_root = || {
        seteuid(Uid::from_raw(0))?;
        setegid(Gid::from_raw(0))?;
        setgroups(&[])
    };
    become_root().map_err(|error| format!("become root again: {error}"))?;
    Ok(result)
}

/// Opens each volume's source as the user, and with image `host` looks whether the working directory is there.
fn look_at_user_paths(plan: &MountPlan, held: &mut Vec<OwnedFd>) -> Result<(), Failure> {
    for volume in &plan.volumes {
        let source = open_path(&volume.source)
            .map_err(|error| format!("volume {}: {error}", volume.source.display()))?;
        if is_device(&source)? {
            let shown = volume.source.display();
            return Err(format!("volume {shown}: a device node cannot be a volume"));
        }
        held.push(source);
    }
    if let (Some(dir), Some(_)) = (&plan.working_dir, &plan.host_root)
        && !plan.volumes.iter().any(|volume| dir.starts_with(&volume.destination))
    {
        let found = open_path(dir)
            .and_then(|fd| File::from(fd).metadata())
            .map_err(|error| format!("working directory {}: {error}", dir.display()))?;
        if !found.is_dir() {
            return Err(format!("working directory {} is not a directory", dir.display()));
        }
    }
    Ok(())
}

/// Opens without reading: a handle on the file, no links of `/proc` followed.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    open_by(AT_FDCWD, path, ResolveFlag::empty())
}

/// The same below a directory that is the root of all links.
fn open_in(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    open_by(root, path, ResolveFlag::RESOLVE_IN_ROOT)
}

/// The same without any link.
fn open_beneath(dir: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    open_by(dir, path, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)
}

fn open_by(from: impl AsFd, path: &Path, resolve: ResolveFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(from, path, how).map_err(io::Error::from)
}

fn kind(fd: &OwnedFd) -> Result<FileType, Failure> {
    let copy = fd.try_clone().map_err(|error| format!("copy a descriptor: {error}"))?;
    let metadata =
        File::from(copy).metadata().map_err(|error| format!("look at a volume: {error}"))?;
    Ok(metadata.file_type())
}

fn is_device(fd: &OwnedFd) -> Result<bool, Failure> {
    kind(fd).map(|kind| kind.is_block_device() || kind.is_char_device())
}

/// Binds the opened source onto its anchor, where the bundle expects it.
fn anchor(volume: &VolumeOrder, source: &OwnedFd) -> Result<(), Failure> {
    if kind(source)?.is_dir() {
        make_dir(&volume.anchor)?;
    } else {
        let parent = volume.anchor.parent().unwrap_or(Path::new("/"));
        make_dir(parent)?;
        File::create(&volume.anchor)
            .map_err(|error| format!("create {}: {error}", volume.anchor.display()))?;
    }
    bind(held_path(source), &volume.anchor, MsFlags::MS_REC)
}

/// Mounts an anchored volume on a place that was opened, as the runtime would mount it.
fn put(volume: &VolumeOrder, place: &OwnedFd) -> Result<(), Failure> {
    let shown = volume.destination.display();
    let failed = |error: io::Error| format!("volume destination {shown}: {error}");
    let source = open_path(&volume.anchor).map_err(failed)?;
    if kind(&source)?.is_dir() != kind(place)?.is_dir() {
        return Err(format!("volume destination {shown} is not the same kind as its source"));
    }
    let inherited = fstatvfs(&source).map_err(|error| failed(error.into()))?.flags();
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    flags.set(MsFlags::MS_NOEXEC, inherited.contains(FsFlags::ST_NOEXEC));
    flags.set(MsFlags::MS_RDONLY, volume.read_only || inherited.contains(FsFlags::ST_RDONLY));
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags;
    mount(NOTHING, &volume.anchor, NOTHING, again, NOTHING)
        .map_err(|error| failed(error.into()))?;
    bind(held_path(&source), &held_path(place), MsFlags::MS_REC)
}

/// A path that leads to what a descriptor holds, wherever that is by now.
fn held_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn bind(source: impl AsRef<Path>, target: &Path, flags: MsFlags) -> Result<(), Failure> {
    let source = source.as_ref();
    mount(Some(source), target, NOTHING, MsFlags::MS_BIND | flags, NOTHING)
        .map_err(|error| format!("bind {} to {}: {error}", source.display(), target.display()))
}

fn make_dir(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|error| format!("create {}: {error}", dir.display()))
}

/// An argument or variable for exec; NUL cannot be in one.
pub(super) fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| "an argument contains a NUL byte".to_owned())
}

#[cfg(test)]
mod tests;
