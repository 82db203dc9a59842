//! The root file system of one allocation: its image's layers below, its own writes above.
//!
//! overlayfs where the kernel and the disk allow it, a plain copy otherwise. Everything lies in `rootfs/` of the
//! allocation's directory, so that an agent that was restarted finds and removes it. Mounting again what is mounted, and
//! unmounting what is not, are no errors. `rootfs/image.json` says which image is below, from before the mount until after
//! it: nothing of that may be removed from the store.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount as mount_fs, umount2};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::copy::copy_layer;
use super::store::{Claim, Image, used_now};

const DIR: &str = "rootfs";
const IMAGE_FILE: &str = "image.json";
const VERSION: u32 = 1;
/// The kernel takes one page of mount options.
const OPTIONS_BYTES_MAX: usize = 4095;
/// Nothing in a layer may make overlayfs look elsewhere; the attributes for that are never unpacked, and this says so
/// again.
const OPTIONS: &str = "redirect_dir=nofollow,metacopy=off,index=off";

/// A root file system ready for the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rootfs {
    pub path: PathBuf,
    pub kind: RootfsKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootfsKind {
    Overlay,
    /// Why not by overlay is in the log.
    Copy,
}

#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What a root file system is made of.
#[derive(Debug, Serialize, Deserialize)]
struct Below {
    v: u32,
    image: String,
    layers: Vec<String>,
    /// The image's record in the store.
    record: PathBuf,
}

/// What the allocation of this directory has of the store. `Err`: something, and nobody knows what.
pub(super) fn in_use(alloc_dir: &Path) -> Result<Option<Claim>, ()> {
    let top = alloc_dir.join(DIR);
    match below(&top) {
        Some(Below { image, layers, .. }) => Ok(Some(Claim { image, layers })),
        // Half written by an agent that died, or by one that did not write it yet.
        None if is_mount_point(&top.join("merged")) => Err(()),
        None => Ok(None),
    }
}

fn below(top: &Path) -> Option<Below> {
    let below: Below = serde_json::from_slice(&fs::read(top.join(IMAGE_FILE)).ok()?).ok()?;
    (below.v <= VERSION).then_some(below)
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RootfsError {
    let path = path.to_path_buf();
    move |source| RootfsError::Io { what, path, source }
}

/// Makes the root file system of an allocation. Blocks (for long when it copies): call it on a thread of its own.
pub fn mount(image: &Image, alloc_dir: &Path) -> Result<Rootfs, RootfsError> {
    let top = alloc_dir.join(DIR);
    let merged = top.join("merged");
    if is_mount_point(&merged) {
        return Ok(Rootfs { path: merged, kind: RootfsKind::Overlay });
    }
    if top.join("copied").exists() {
        return Ok(Rootfs { path: merged, kind: RootfsKind::Copy });
    }
    // Left by an agent that died half-way.
    remove(&top)?;
    for (name, mode) in [("", 0o755), ("upper", 0o755), ("work", 0o755), ("merged", 0o755)] {
        let path = top.join(name);
        fs::DirBuilder::new().mode(mode).create(&path).map_err(io("make", &path))?;
    }
    let Claim { image: digest, layers } = image.hold.claim.clone();
    let below = Below { v: VERSION, image: digest, layers, record: image.record.clone() };
    let path = top.join(IMAGE_FILE);
    let text = serde_json::to_vec(&below).map_err(std::io::Error::from);
    text.and_then(|text| fs::write(&path, text)).map_err(io("write", &path))?;
    like_top_layer(image, &top.join("upper"))?;
    match mount_overlay(image, &top) {
        Ok(()) => Ok(Rootfs { path: merged, kind: RootfsKind::Overlay }),
        Err(why) => {
            warn!(dir = %top.display(), why, "overlayfs cannot be used, copying the image");
            copy_all(image, &top)?;
            Ok(Rootfs { path: merged, kind: RootfsKind::Copy })
        }
    }
}

/// Removes the root file system of an allocation, and all that was written in it. Call it when its cgroup is empty.
pub fn unmount(alloc_dir: &Path) -> Result<(), RootfsError> {
    let top = alloc_dir.join(DIR);
    let merged = top.join("merged");
    if is_mount_point(&merged) {
        let unmounted = match umount2(&merged, MntFlags::UMOUNT_NOFOLLOW) {
            Err(Errno::EBUSY) => {
                warn!(dir = %merged.display(), "the root file system is still in use, detaching it");
                umount2(&merged, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
            }
            other => other,
        };
        unmounted.map_err(|errno| io("unmount", &merged)(errno.into()))?;
    }
    if let Some(below) = below(&top) {
        used_now(&below.record);
    }
    remove(&top)
}

fn remove(top: &Path) -> Result<(), RootfsError> {
    match fs::remove_dir_all(top) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", top)(error)),
        _ => Ok(()),
    }
}

fn is_mount_point(path: &Path) -> bool {
    let dev = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.dev()).ok();
    let parent = path.parent().and_then(dev);
    dev(path).is_some_and(|dev| Some(dev) != parent)
}

/// The root directory itself is that of the upper side, so it takes owner and mode from the image.
fn like_top_layer(image: &Image, upper: &Path) -> Result<(), RootfsError> {
    let Some(layer) = image.layers.last() else { return Ok(()) };
    let meta = fs::metadata(&layer.dir).map_err(io("stat", &layer.dir))?;
    std::os::unix::fs::chown(upper, Some(meta.uid()), Some(meta.gid()))
        .map_err(io("chown", upper))?;
    fs::set_permissions(upper, fs::Permissions::from_mode(meta.mode() & 0o1777))
        .map_err(io("chmod", upper))
}

/// The directories are named by descriptors: paths could hold what separates options, and many would not fit.
fn mount_overlay(image: &Image, top: &Path) -> Result<(), String> {
    if let Some(layer) = image.layers.iter().find(|layer| !layer.overlay) {
        return Err(format!("{} could not be given overlayfs whiteouts", layer.dir.display()));
    }
    let open_dir = |path: &Path| -> Result<OwnedFd, String> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(path, flags, Mode::empty())
            .map_err(|errno| format!("open {}: {errno}", path.display()))
    };
    // overlayfs wants the uppermost first, and no directory twice. Of a layer that comes twice (docker's empty one does)
    // the upper one hides all that the lower one could show.
    let mut used = BTreeSet::new();
    let once = image.layers.iter().rev().filter(|layer| used.insert(&layer.dir));
    let lower_dirs = once.map(|layer| open_dir(&layer.dir)).collect::<Result<Vec<_>, _>>()?;
    let (upper, work) = (open_dir(&top.join("upper"))?, open_dir(&top.join("work"))?);
    let by_fd = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let lower: Vec<String> = lower_dirs.iter().map(by_fd).collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},{OPTIONS}",
        lower.join(":"),
        by_fd(&upper),
        by_fd(&work)
    );
    if options.len() > OPTIONS_BYTES_MAX {
        return Err("too many layers for one mount".to_owned());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let merged = top.join("merged");
    mount_fs(Some("fleet"), &merged, Some("overlay"), flags, Some(options.as_str()))
        .map_err(|errno| format!("mount: {errno}"))
}

fn copy_all(image: &Image, top: &Path) -> Result<(), RootfsError> {
    let merged = top.join("merged");
    for layer in &image.layers {
        copy_layer(layer, &merged).map_err(io("copy layer", &layer.dir))?;
    }
    let done = top.join("copied");
    fs::write(&done, b"").map_err(io("write", &done))
}
