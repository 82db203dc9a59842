//! What of the node no volume may show: the kernel's own file systems, and the sockets through which a program could have
//! something run outside of its cgroup.
//!
//! `mounts` calls [`refuse`] with the sources it holds open; `runtime::spec` masks the same sockets where a job sees the
//! node's own root. This module reads only `/proc` and the doors themselves, never a path of the user's: it identifies
//! a source by its descriptor, so that nobody can exchange it, and a dead file server is not asked.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use super::{Failure, held_path, open_path};
use crate::order::MountPlan;

/// Sockets and directories through which a program could have something run outside of its cgroup, or
/// that belong to a login session. Name services (nscd, sssd, resolved) stay.
pub const HOST_CONTROL_PATHS: [&str; 14] = [
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/machine",
    "/run/systemd/nspawn",
    "/run/dbus",
    "/run/user",
    "/run/docker.sock",
    "/run/docker",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/buildkit",
    "/run/snapd.socket",
    "/run/libvirt",
];

/// Show the node's processes and control groups; a job has its own.
const OF_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Refuses a source that is a door, is inside one, or holds one, under any name. A source may hold fleet's own folders:
/// fleet's state is often on the same disk as the users' data, and only root may read it.
pub(super) fn refuse(plan: &MountPlan, held: &[OwnedFd]) -> Result<(), Failure> {
    if held.is_empty() {
        return Ok(());
    }
    let table = Table::read().map_err(|error| format!("read the table of mounts: {error}"))?;
    let all = HOST_CONTROL_PATHS.iter().chain(&OF_THE_KERNEL).map(Path::new);
    let all: Vec<Door> = all.filter_map(|path| table.door(path)).collect();
    let own: Vec<Door> = plan.hidden.iter().filter_map(|path| table.door(path)).collect();
    for (volume, source) in plan.volumes.iter().zip(held) {
        let shown = volume.source.display();
        let found = Location::held(source)
            .and_then(|seen| Some((table.place(&seen)?, table.below(&seen.path))))
            .ok_or_else(|| format!("volume {shown}: nobody knows where on this node it is"))?;
        let (at, below) = found;
        let holds = |door: &&Door| below.iter().chain([&at]).any(|place| door.overlaps(place));
        let lies = |door: &&Door| door.places.iter().any(|place| at.is_in(place));
        if let Some(door) = all.iter().find(holds).or(own.iter().find(lies)) {
            let door = door.path.display();
            return Err(format!(
                "volume {shown}: the node's {door} would be in it, and through that a job could leave its limits; name \
                 the folders with your data instead (a job has a /proc and a /sys of its own)"
            ));
        }
    }
    Ok(())
}

/// Where a descriptor leads: its path, and the mount in which that is.
struct Location {
    path: PathBuf,
    mount: u64,
}

impl Location {
    fn held(fd: &OwnedFd) -> Option<Self> {
        let path = fs::read_link(held_path(fd)).ok()?;
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let mount = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        Some(Self { path, mount: mount.trim().parse().ok()? })
    }

    /// What is not there yet would be in the nearest folder that is.
    fn named(path: &Path) -> Option<Self> {
        let found = path.ancestors().find_map(|there| Some((there, open_path(there).ok()?)));
        let (there, fd) = found?;
        let mut seen = Self::held(&fd)?;
        seen.path.extend(path.strip_prefix(there).ok()?);
        Some(seen)
    }
}

/// A place by what is mounted and not by where: every bind mount of it is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    device: String,
    path: PathBuf,
}

impl Place {
    fn is_in(&self, other: &Place) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

#[derive(Debug)]
struct Door {
    path: PathBuf,
    places: Vec<Place>,
}

impl Door {
    fn overlaps(&self, place: &Place) -> bool {
        self.places.iter().any(|own| own.is_in(place) || place.is_in(own))
    }
}

/// A line of `mountinfo`, proc_pid_mountinfo(5).
#[derive(Debug)]
struct Mounted {
    id: u64,
    device: String,
    root: PathBuf,
    point: PathBuf,
    kind: String,
}

#[derive(Debug)]
struct Table(Vec<Mounted>);

impl Table {
    fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/mountinfo")?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        text.lines().map(Mounted::parse).collect::<Option<_>>().map(Self)
    }

    fn place(&self, seen: &Location) -> Option<Place> {
        let mounted = self.0.iter().find(|mounted| mounted.id == seen.mount)?;
        let below = seen.path.strip_prefix(&mounted.point).ok()?;
        let path = mounted.root.components().chain(below.components()).collect();
        Some(Place { device: mounted.device.clone(), path })
    }

    /// What is mounted below a path, and would be mounted with it.
    fn below(&self, path: &Path) -> Vec<Place> {
        let within = self.0.iter().filter(|mounted| mounted.point.starts_with(path));
        within.map(Mounted::place).collect()
    }

    fn door(&self, path: &Path) -> Option<Door> {
        let places = self.places(&Location::named(path)?)?;
        Some(Door { path: path.to_owned(), places })
    }

    /// All that a door is: itself, what is mounted in the kernel's own (its control groups, bpf), and the file systems that
    /// sessions have below `/run/user`. What else is mounted in a door (a user's disk, say) is none elsewhere.
    fn places(&self, seen: &Location) -> Option<Vec<Place>> {
        let mut places = vec![self.place(seen)?];
        let kernels = OF_THE_KERNEL.iter().any(|path| seen.path == Path::new(path));
        let own = |mounted: &&Mounted| {
            let sessions = mounted.kind == "tmpfs" && mounted.root == Path::new("/");
            mounted.point.starts_with(&seen.path) && (kernels || sessions)
        };
        places.extend(self.0.iter().filter(own).map(Mounted::place));
        Some(places)
    }
}

impl Mounted {
    fn parse(line: &str) -> Option<Self> {
        let (fields, rest) = line.split_once(" - ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let [id, _parent, device, root, point, ..] = fields.as_slice() else { return None };
        Some(Self {
            id: id.parse().ok()?,
            device: (*device).to_owned(),
            root: plain(root),
            point: plain(point),
            kind: rest.split(' ').next()?.to_owned(),
        })
    }

    fn place(&self) -> Place {
        Place { device: self.device.clone(), path: self.root.clone() }
    }
}

/// Without the escapes that the kernel uses for blanks and backslashes (`\040`).
fn plain(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let code = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        plain.push(code.unwrap_or(*byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A node with sessions, a disk with two places, a root that was prepared for chroot(2), and the user's sessions
    /// shown once more.
    const MOUNTS: &str = "\
1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
2 1 0:21 / /proc rw - proc proc rw
3 1 0:22 / /sys rw - sysfs sysfs rw
4 3 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
5 1 0:25 / /run rw - tmpfs tmpfs rw
6 5 0:40 / /run/user/1000 rw - tmpfs tmpfs rw
7 1 8:17 /data /scratch rw - ext4 /dev/sdb1 rw
8 1 8:17 / /mnt/my\\040disk rw - ext4 /dev/sdb1 rw
9 1 0:50 / /nfs rw - nfs4 server:/nfs rw
10 1 0:21 / /srv/chroot/proc rw - proc proc rw
11 1 0:40 / /home/eve/session rw - tmpfs tmpfs rw
12 1 0:25 /dbus /home/bob/bus rw - tmpfs tmpfs rw
13 6 0:60 / /run/user/1000/gvfs rw - fuse.gvfsd-fuse gvfsd rw
14 1 0:60 / /data/shared rw - fuse.gvfsd-fuse gvfsd rw
15 1 0:30 / /home/ada/groups rw - cgroup2 cgroup2 rw
";

    #[test]
    fn a_place_is_what_is_mounted_and_not_where() {
        let table = Table::parse(MOUNTS).unwrap();
        let seen = |mount, path: &str| Location { mount, path: path.into() };
        let place = |mount, path| table.place(&seen(mount, path)).unwrap();
        assert_eq!(place(7, "/scratch/ada"), place(8, "/mnt/my disk/data/ada"));
        assert_eq!(place(12, "/home/bob/bus/x"), place(5, "/run/dbus/x"));
        assert_eq!(table.place(&seen(7, "/elsewhere")), None);
        assert_eq!(table.place(&seen(99, "/")), None);
        assert!(Table::parse("1 0 8:1 /").is_none());
    }

    #[test]
    fn a_door_is_found_at_below_and_above_and_in_bind_mounts() {
        let table = Table::parse(MOUNTS).unwrap();
        let door = |(mount, path): (u64, &str)| {
            let places = table.places(&Location { mount, path: path.into() }).unwrap();
            Door { path: path.into(), places }
        };
        let doors = [(5, "/run/dbus"), (5, "/run/user"), (2, "/proc"), (3, "/sys")].map(door);
        for (mount, path, wanted) in [
            (1, "/", Some("/run/dbus")),
            (5, "/run", Some("/run/dbus")),
            (5, "/run/dbus/system_bus_socket", Some("/run/dbus")),
            (5, "/run/user", Some("/run/user")),
            (6, "/run/user/1000", Some("/run/user")),
            (6, "/run/user/1000/systemd/private", Some("/run/user")),
            (11, "/home/eve/session/bus", Some("/run/user")),
            (1, "/home/eve", Some("/run/user")),
            (12, "/home/bob/bus", Some("/run/dbus")),
            (1, "/home", Some("/run/dbus")),
            (1, "/srv", Some("/proc")),
            (10, "/srv/chroot/proc/1", Some("/proc")),
            (3, "/sys/class", Some("/sys")),
            (4, "/sys/fs/cgroup", Some("/sys")),
            (15, "/home/ada/groups/user.slice", Some("/sys")),
            (5, "/run/resolvconf", None),
            (5, "/run/dbusy", None),
            (1, "/home/ada/data", None),
            (1, "/etc", None),
            (1, "/var", None),
            (7, "/scratch", None),
            (8, "/mnt/my disk", None),
            (1, "/mnt", None),
            (9, "/nfs/home/ada", None),
            (1, "/data", None),
        ] {
            let at = table.place(&Location { mount, path: path.into() }).unwrap();
            let all = [vec![at], table.below(Path::new(path))].concat();
            let found = doors.iter().find(|door| all.iter().any(|place| door.overlaps(place)));
            let found = found.map(|door| door.path.to_str().unwrap());
            assert_eq!(found, wanted, "{path}");
        }
    }
}
