//! The view of several layers as one tree, by the kernel's overlayfs.
//!
//! Called by the store while it unpacks a layer over those below, and by `rootfs` for a job. The directories are named by
//! descriptors: paths could hold what separates options, and many would not fit.

use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount as mount_fs, umount2};
use nix::sys::stat::Mode;

use super::beneath::Root;
use super::xattr;

/// The kernel takes one page of mount options.
const OPTIONS_BYTES_MAX: usize = 4095;
/// Nothing in a layer may make overlayfs look elsewhere; the attributes for that are never unpacked, and this says so
/// again.
const OPTIONS: &str = "redirect_dir=nofollow,metacopy=off,index=off";
/// Only to see whether the disk has the kind of attributes that overlayfs keeps.
const PROBE: &CStr = c"trusted.overlay.fleet";

/// Where the changes of a mount go.
pub(super) struct Above<'a> {
    pub(super) upper: &'a Path,
    pub(super) work: &'a Path,
}

/// Mounts the layers at `at`, the lowest first in `lower`. Without `above` nothing can be changed there, and there must be
/// two layers at least. The error is for the log: callers have a way without overlayfs.
pub(super) fn mount(lower: &[&Path], above: Option<&Above<'_>>, at: &Path) -> Result<(), String> {
    let open_dir = |path: &Path| -> Result<OwnedFd, String> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(path, flags, Mode::empty())
            .map_err(|errno| format!("open {}: {errno}", path.display()))
    };
    let by_fd = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    // overlayfs wants the uppermost first.
    let lower_dirs =
        lower.iter().rev().map(|path| open_dir(path)).collect::<Result<Vec<_>, _>>()?;
    let lower: Vec<String> = lower_dirs.iter().map(by_fd).collect();
    let mut options = format!("lowerdir={},{OPTIONS}", lower.join(":"));
    let mut open_above = Vec::new();
    if let Some(Above { upper, work }) = above {
        for (option, path) in [("upperdir", upper), ("workdir", work)] {
            let dir = open_dir(path)?;
            options.push_str(&format!(",{option}={}", by_fd(&dir)));
            open_above.push(dir);
        }
    }
    // Without such attributes overlayfs mounts, and fails later, where a directory takes the place of a deleted one.
    if let Some(work) = open_above.last() {
        let marked = open(by_fd(work).as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(std::io::Error::from)
            .and_then(|work| xattr::set(work, PROBE, b"1"));
        marked.map_err(|error| format!("attributes of overlayfs: {error}"))?;
    }
    if options.len() > OPTIONS_BYTES_MAX {
        return Err("too many layers for one mount".to_owned());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_fs(Some("fleet"), at, Some("overlay"), flags, Some(options.as_str()))
        .map_err(|errno| format!("mount: {errno}"))
}

/// The same for this process alone, gone when the result is dropped. `at` is an empty directory that is free again when
/// this returns.
pub(super) fn open_view(
    lower: &[&Path],
    above: Option<&Above<'_>>,
    at: &Path,
) -> Result<Root, String> {
    mount(lower, above, at)?;
    let opened = Root::open(at).map_err(|error| format!("open {}: {error}", at.display()));
    // Out of sight at once: what dies with this process cannot be left behind mounted.
    let detached = umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    detached.map_err(|errno| format!("detach {}: {errno}", at.display()))?;
    opened
}

/// Detaches what a process that died between the two calls above has left at `at` of each directory in `tmp`.
pub(super) fn detach_left(tmp: &Path, at: &str) {
    for entry in fs::read_dir(tmp).into_iter().flatten().flatten() {
        // Nothing is mounted there as a rule, which is an error and needs no answer.
        let _nothing_there =
            umount2(&entry.path().join(at), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
}
