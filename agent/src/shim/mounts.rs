//! What is mounted before the runtime runs: the node's root for image `host`, the user's volumes, the
//! runtime itself.
//!
//! Runs in the shim's forked child only, in a mount namespace of its own: nothing appears on the node,
//! and everything goes away with the container. The namespace stays a slave of the node's, so a file
//! system that is auto-mounted later still arrives. A dead NFS server hangs the child here, not the shim.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    unistd::{Gid, Uid, setegid, seteuid, setgroups},
};

use super::order::{Identity, MountPlan, RuntimeChoice, RuntimeKind, VolumeOrder};
use crate::cgroup::Mode;

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
    if let Some(root) = &plan.host_root {
        make_dir(root)?;
        bind("/", root, MsFlags::MS_REC)?;
        mount(NOTHING, root, NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING)
            .map_err(|error| format!("make {} a slave mount: {error}", root.display()))?;
        // The container gets its own. The kernel refuses a second sysfs on top of the first. Only this
        // namespace's copies go; one that is no mount of its own is none of our business.
        for name in ["dev", "proc", "sys"] {
            umount2(&root.join(name), MntFlags::MNT_DETACH).ok();
        }
    }
    for (volume, source) in plan.volumes.iter().zip(&held) {
        anchor(volume, source)?;
    }
    Ok(())
}

/// Makes the place that crun wants to be started in; runc needs nothing. Comes last, since nothing of the
/// bundle should see it.
pub(super) fn prepare_runtime(mode: Mode, runtime: &RuntimeChoice) -> Result<(), Failure> {
    if runtime.kind != RuntimeKind::Crun {
        return Ok(());
    }
    protect(&runtime.path);
    if mode == Mode::Hybrid { hide_cgroup_tree() } else { Ok(()) }
}

/// The same for `exec`, where nothing else is mounted.
pub(super) fn prepare_exec(mode: Mode, runtime: &RuntimeChoice) -> Result<(), Failure> {
    if runtime.kind != RuntimeKind::Crun {
        return Ok(());
    }
    enter_namespace()?;
    prepare_runtime(mode, runtime)
}

/// Lets the runtime be started from a read-only mount. A container could overwrite the program that made it
/// through `/proc/self/exe` (CVE-2019-5736), so crun makes itself such a mount and starts a second time, with
/// all its libraries, unless it finds that it is in one already (libcrun, `cloned_binary.c`,
/// `is_self_cloned`). Where this fails crun does it, so there is nothing to report.
fn protect(program: &Path) {
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    if bind(program, program, MsFlags::empty()).is_ok() {
        mount(NOTHING, program, NOTHING, again, NOTHING).ok();
    }
}

/// Hides the node's cgroup tree from crun, whose releases before 1.9 refuse to run beside a cgroup2 tree
/// that has controllers. It is told not to manage cgroups and has been put into the right ones already.
fn hide_cgroup_tree() -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    mount(Some("none"), crate::cgroup::ROOT, Some("tmpfs"), flags, Some("size=4k"))
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

/// Opens each volume's source as the user, and with image `host` checks what the runtime would
/// otherwise create as root on the node: mount points and the working directory.
fn look_at_user_paths(plan: &MountPlan, held: &mut Vec<OwnedFd>) -> Result<(), Failure> {
    for volume in &plan.volumes {
        let source = open_path(&volume.source)
            .map_err(|error| format!("volume {}: {error}", volume.source.display()))?;
        if plan.host_root.is_some() {
            check_destination(volume, &source)?;
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

/// With image `host` a volume's destination is on the node itself and is not made for the user.
fn check_destination(volume: &VolumeOrder, source: &OwnedFd) -> Result<(), Failure> {
    let shown = volume.destination.display();
    let destination =
        open_path(&volume.destination).and_then(|fd| File::from(fd).metadata()).map_err(
            |error| format!("volume destination {shown}: {error} (with image host it must exist)"),
        )?;
    if destination.is_dir() != is_dir(source)? {
        return Err(format!("volume destination {shown} is not the same kind as its source"));
    }
    Ok(())
}

/// Opens without reading: a handle on the file, no links of `/proc` followed.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(AT_FDCWD, path, how).map_err(io::Error::from)
}

fn is_dir(fd: &OwnedFd) -> Result<bool, Failure> {
    let copy = fd.try_clone().map_err(|error| format!("copy a descriptor: {error}"))?;
    let metadata =
        File::from(copy).metadata().map_err(|error| format!("look at a volume: {error}"))?;
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        return Err("a device node cannot be a volume".to_owned());
    }
    Ok(kind.is_dir())
}

/// Binds the opened source onto its anchor, where the bundle expects it.
fn anchor(volume: &VolumeOrder, source: &OwnedFd) -> Result<(), Failure> {
    if is_dir(source)? {
        make_dir(&volume.anchor)?;
    } else {
        let parent = volume.anchor.parent().unwrap_or(Path::new("/"));
        make_dir(parent)?;
        File::create(&volume.anchor)
            .map_err(|error| format!("create {}: {error}", volume.anchor.display()))?;
    }
    let opened = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    bind(&opened, &volume.anchor, MsFlags::MS_REC)
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
