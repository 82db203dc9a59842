//! What is behind the links in `/proc/PID/fd`, and behind `/proc/PID/exe`: asked of the kernel, never opened.
//!
//! Asked by [`super::observer`] about every descriptor of every process, every few seconds. It must not wait for a file
//! system that does not answer: of one behind a network only what this machine knows already is wanted. And it must not
//! open a device: that would be to enter the driver, and to hold what is asked about.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

/// What the kernel writes in place of a path for what has none (`sockfs_dname`, `pipefs_dname`, `anon_inodefs_dname`).
/// A path begins with a slash, so no file can be called so; most descriptors of most machines are these.
const WITHOUT_PATH: [&[u8]; 3] = [b"socket:[", b"pipe:[", b"anon_inode:"];

/// Major and minor number, if it is a character device.
pub(super) fn character_device(link: &Path) -> Option<(u32, u32)> {
    let target = fs::read_link(link).ok()?;
    let target = target.as_os_str().as_bytes();
    if WITHOUT_PATH.iter().any(|prefix| target.starts_with(prefix)) {
        return None;
    }
    let found = look(link, StatxFlags::TYPE)?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// A file, told from all others of the machine, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub uid: u32,
    device: (u32, u32),
    inode: u64,
}

pub(super) fn file(link: &Path) -> Option<File> {
    let found = look(link, StatxFlags::UID | StatxFlags::INO)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Some(File { uid: found.stx_uid, device, inode: found.stx_ino })
}

fn look(link: &Path, wanted: StatxFlags) -> Option<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, link, flags, wanted).ok()
}

/// Whether what is behind it was opened, and not only named (`O_PATH`): that anybody may do, whatever the file's mode and
/// the gate say, and it holds nothing. What cannot be seen counts as opened.
pub(super) fn is_opened(link: &Path) -> bool {
    flags(link).is_none_or(|flags| flags & libc::O_PATH.unsigned_abs() == 0)
}

/// The flags that it was opened with: octal, in `/proc/PID/fdinfo/N` (proc_pid_fdinfo(5)).
fn flags(link: &Path) -> Option<u32> {
    let info = link.parent()?.with_file_name("fdinfo").join(link.file_name()?);
    let info = fs::read_to_string(info).ok()?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok()
}
