//! The root file system of one allocation: its image's layers below, its own writes above.
//!
//! An overlayfs where the kernel and the disk allow it, a plain copy otherwise. Everything is stored in `rootfs/` of
//! the allocation's directory, so that an agent that was restarted finds and removes it. Mounting again what is
//! mounted, and unmounting what is not, are no errors. `rootfs/image.json` says which image is below, from before the
//! mount until after it: during this time the store must not remove any part of that image.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::beneath::Root;
use super::copy::{Files, copy_tree, make_alike};
use super::image::{Image, needed, used_now, view_of};
use super::overlay::{self, Above};
use super::pins::Claim;

const DIR: &str = "rootfs";
const IMAGE_FILE: &str = "image.json";
const VERSION: u32 = 1;
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
    let Claim { image: digest, layers } = image.pin.claim.clone();
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

/// The root directory itself is that of the upper side, so it takes everything from the image's.
fn like_top_layer(image: &Image, upper: &Path) -> Result<(), RootfsError> {
    let Some(layer) = image.layers.last() else { return Ok(()) };
    let made = File::open(&layer.dir).and_then(|layer| make_alike(layer, File::open(upper)?));
    made.map_err(io("give the attributes of the image's root to", upper))
}

fn mount_overlay(image: &Image, top: &Path) -> Result<(), String> {
    let (upper, work) = (top.join("upper"), top.join("work"));
    let above = Above { upper: &upper, work: &work };
    overlay::mount(&needed(&image.layers), Some(&above), &top.join("merged"))
}

fn copy_all(image: &Image, top: &Path) -> Result<(), RootfsError> {
    let merged = top.join("merged");
    let below = view_of(&image.layers, &merged).map_err(io("look through the layers at", top))?;
    let copied = Root::open(&merged).and_then(|merged| copy_tree(&below, &merged, Files::Copied));
    copied.map_err(io("copy the image to", &merged))?;
    let done = top.join("copied");
    fs::write(&done, b"").map_err(io("write", &done))
}
