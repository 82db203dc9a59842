//! Where paths of the user lead in an image: destinations of volumes, and where the job begins.
//!
//! Called by `bundle` before anything is mounted or runs in there, so nobody can change the answer. The OCI runtime
//! is root, makes what is missing, and goes through whatever links there are by then. It therefore
//! gets these answers, never the user's own path, and no path in a volume: that would be on the node.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag},
};

use super::PrepareError;
use fleet_kernel::openat::openat2;
use fleet_shim::order::VolumeOrder;
use fleet_user::User;

/// Destinations a volume may not cover: they are made by us.
const PROTECTED: [&str; 4] = ["/proc", "/sys", "/dev", "/run/fleet"];

/// Directories in which the runtime makes and removes what the job needs, as root. With a link in place of one of them
/// it did so wherever that led (CVE-2026-41579 of runc, and the same of crun).
const OWN: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Where a job begins.
#[derive(Debug)]
pub(super) struct Begin {
    /// Where the runtime goes, as root, and makes the directory if need be.
    pub by_runtime: PathBuf,
    /// Where the job's init goes after that, as the user.
    pub by_init: Option<PathBuf>,
}

impl Begin {
    pub(super) fn of_init(dir: PathBuf) -> Self {
        Self { by_runtime: PathBuf::from("/"), by_init: Some(dir) }
    }
}

pub(super) fn can_be_covered(destination: &Path) -> bool {
    destination != Path::new("/") && !PROTECTED.iter().any(|path| destination.starts_with(path))
}

/// Refuses an image in which something else is where the runtime is to work.
pub(super) fn check_own(rootfs: &Path) -> Result<(), PrepareError> {
    for path in OWN {
        let refused = |reason| PrepareError::Image { path, reason };
        if in_image(rootfs, Path::new(path)).map_err(refused)? != Path::new(path) {
            return Err(refused("is a link"));
        }
        if rootfs.join(&path[1..]).is_file() {
            return Err(refused("is a file"));
        }
    }
    Ok(())
}

/// Refuses an image whose root folder the user may not enter: no program of it could even be found. Root may enter all.
pub(super) fn check_root(rootfs: &Path, user: &User) -> Result<(), PrepareError> {
    let meta = fs::metadata(rootfs).map_err(|source| PrepareError::Io {
        action: "look at",
        path: rootfs.into(),
        source,
    })?;
    let (mode, owner, group) = (meta.mode() & 0o7777, meta.uid(), meta.gid());
    let bit = if user.uid == owner {
        0o100
    } else if user.gid == group || user.groups.contains(&group) {
        0o010
    } else {
        0o001
    };
    if user.uid == 0 || mode & bit != 0 {
        return Ok(());
    }
    let who = match mode & 0o111 {
        0o100 => format!("only uid {owner} may enter"),
        0o010 => format!("only group {group} may enter"),
        0o110 => format!("only uid {owner} and group {group} may enter"),
        0 => "nobody may enter".to_owned(),
        // Others may, and this one may not.
        _ => format!("uid {} may not enter", user.uid),
    };
    Err(PrepareError::ClosedRoot { who, mode })
}

/// The number of the earlier volume that holds this volume's destination: the last one, which covers the others.
pub(super) fn within(volumes: &[VolumeOrder], index: usize) -> Option<usize> {
    let destination = &volumes.get(index)?.destination;
    volumes.iter().take(index).rposition(|outer| destination.starts_with(&outer.destination))
}

/// Where a job in an image begins. A directory of the image itself is the runtime's to go to: the user may be closed
/// out of it, as of `/root`, and the image's program wants to be there all the same.
pub(super) fn begin(
    rootfs: &Path,
    chosen: Begin,
    volumes: &[VolumeOrder],
) -> Result<Begin, PrepareError> {
    let Some(dir) = &chosen.by_init else { return Ok(chosen) };
    let refused = |reason| PrepareError::Cwd { path: dir.clone(), reason };
    let found = in_image(rootfs, dir).map_err(refused)?;
    if found.starts_with("/proc") {
        return Err(refused("leads below /proc in the image"));
    }
    if volumes.iter().any(|volume| found.starts_with(&volume.destination)) {
        return Ok(chosen);
    }
    Ok(Begin { by_runtime: found, by_init: None })
}

/// Follows the image's links, which never lead out of it. What is missing at the end stays as it is. The error says
/// what is wrong with the path.
pub(super) fn in_image(rootfs: &Path, path: &Path) -> Result<PathBuf, &'static str> {
    follow(rootfs, path).map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOTDIR) => "leads through a file of the image",
        Some(Errno::ELOOP) => "leads round in circles in the image",
        Some(Errno::ENOENT) => "leads to a link that leads nowhere in the image",
        _ => "cannot be looked up in the image",
    })
}

fn follow(rootfs: &Path, path: &Path) -> io::Result<PathBuf> {
    let root = File::open(rootfs)?;
    let top = shown(root.as_raw_fd())?;
    let mut there = path.strip_prefix("/").unwrap_or(path);
    let mut missing: Vec<&OsStr> = Vec::new();
    loop {
        let looked = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        match open_inside(&root, looked, OFlag::empty()) {
            Ok(found) => {
                let found = shown(found.as_raw_fd())?;
                let below = found.strip_prefix(&top).map_err(io::Error::other)?;
                let mut real = Path::new("/").join(below);
                real.extend(missing.iter().rev());
                return Ok(real);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A runtime would make what such a link names, wherever that is.
                if open_inside(&root, looked, OFlag::O_NOFOLLOW).is_ok() {
                    return Err(error);
                }
                let (Some(name), Some(parent)) = (there.file_name(), there.parent()) else {
                    return Err(error);
                };
                missing.push(name);
                there = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

fn open_inside(root: &File, path: &Path, how: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | how)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how).map_err(io::Error::from)
}

fn shown(fd: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{fd}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_images_links_lead_where_they_lead_in_the_image() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("image");
        for dir in ["run", "proc", "data/sub"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("file"), "").unwrap();
        for (link, target) in [
            ("var", "/data"),
            ("up", "../../../../../data"),
            ("twice", "var/sub"),
            ("door", "/proc"),
            ("all", "/"),
            ("nowhere", "/none/at/all"),
            ("round", "round"),
            ("host", home.path().to_str().unwrap()),
            ("descriptor", "/proc/self/fd/7"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let leads = |path: &str| in_image(&root, Path::new(path));
        for (path, to) in [
            ("/", "/"),
            ("/data", "/data"),
            ("/new/place", "/new/place"),
            ("/var", "/data"),
            ("/var/new/place", "/data/new/place"),
            ("/up/sub", "/data/sub"),
            ("/twice", "/data/sub"),
            ("/door/1/root", "/proc/1/root"),
            ("/all", "/"),
            ("/file", "/file"),
        ] {
            assert_eq!(leads(path), Ok(PathBuf::from(to)), "{path}");
        }
        for path in ["/nowhere", "/nowhere/x", "/host", "/host/x", "/descriptor", "/descriptor/x"] {
            assert_eq!(
                leads(path),
                Err("leads to a link that leads nowhere in the image"),
                "{path}"
            );
        }
        assert_eq!(leads("/file/x"), Err("leads through a file of the image"));
        assert_eq!(leads("/round/x"), Err("leads round in circles in the image"));
    }

    #[test]
    fn a_root_folder_that_the_user_may_not_enter_says_who_may() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let home = tempfile::tempdir().unwrap();
        let user = |uid, gid, groups: &[u32]| User {
            uid,
            gid,
            groups: groups.to_vec(),
            name: "ada".to_owned(),
            home: "/home/ada".into(),
            shell: "/bin/sh".into(),
        };
        let ada = || user(2001, 2002, &[2003]);
        let tail = |mode: u32| format!("the root folder of this image (mode {mode:04o})");
        chown(home.path(), Some(1234), Some(1235)).unwrap();
        let says = |mode, user: User| {
            fs::set_permissions(home.path(), fs::Permissions::from_mode(mode)).unwrap();
            check_root(home.path(), &user).err().map(|error| error.to_string())
        };
        let said = |who: &str, mode| Some(format!("{who} may enter {}", tail(mode)));
        assert_eq!(says(0o700, ada()), said("only uid 1234", 0o700));
        assert_eq!(says(0o750, ada()), said("only uid 1234 and group 1235", 0o750));
        assert_eq!(says(0o010, ada()), said("only group 1235", 0o010));
        assert_eq!(says(0o666, ada()), said("nobody", 0o666));
        assert_eq!(
            says(0o701, user(2001, 1235, &[])),
            Some(format!("uid 2001 may not enter {}", tail(0o701)))
        );
        for (mode, user) in [
            (0o755, ada()),
            (0o711, ada()),
            (0o701, ada()),
            (0o700, user(1234, 5, &[])),
            (0o750, user(2001, 1235, &[])),
            (0o750, user(2001, 5, &[7, 1235])),
            (0o700, user(0, 0, &[])),
        ] {
            assert_eq!(says(mode, user), None, "{mode:o}");
        }
    }

    #[test]
    fn a_volume_lies_in_the_last_earlier_one_around_it() {
        let volumes: Vec<VolumeOrder> = ["/a", "/a/b", "/a/b/c", "/ab", "/a", "/a/b/d", "/a"]
            .map(|destination| VolumeOrder {
                source: "/s".into(),
                anchor: "/v".into(),
                destination: destination.into(),
                read_only: false,
                within: None,
            })
            .to_vec();
        let found: Vec<_> = (0..volumes.len()).map(|index| within(&volumes, index)).collect();
        assert_eq!(found, [None, Some(0), Some(1), None, Some(0), Some(4), Some(4)]);
    }
}
