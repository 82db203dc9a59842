//! The control groups in which containers of dockerd count as somebody's.
//!
//! A container of dockerd runs as root whichever user asked for it, so its uid says nothing. By default dockerd puts
//! containers below [`PARENT`], where they may open no GPU (`cgroup-parent` in its `daemon.json` sets another group).
//! `fleet docker run` puts a container below the group of one user, where it may open what that user may. The kernel's
//! program goes by the groups' ids ([`crate::gate::kernel`]); code that asks whose a process is uses its path, here.

use std::path::Path;

/// The slice of all of them, at the root of the tree.
pub const PARENT: &str = "fleetdocker.slice";
const USERS_PREFIX: &str = "fleetdocker-u";
const SLICE: &str = ".slice";
/// Most users' groups that are read. The agent makes one for each user who holds a GPU.
const USERS_MAX: usize = 10_000;
/// The uid of a container that belongs to no known user (`(uid_t) -1`): it never passes.
pub const NOBODY: u32 = u32::MAX;

/// The slice of one user's: systemd puts it below [`PARENT`], by its name.
#[must_use]
pub fn slice_of(uid: u32) -> String {
    format!("{USERS_PREFIX}{uid}{SLICE}")
}

/// Root needs no group, and the number of no user is nobody's.
fn user_of(slice: &str) -> Option<u32> {
    let digits = slice.strip_prefix(USERS_PREFIX)?.strip_suffix(SLICE)?;
    let uid = digits.parse().ok().filter(|uid| *uid != 0 && *uid != u32::MAX)?;
    (slice == slice_of(uid)).then_some(uid)
}

/// The users who have a group below this one.
pub(crate) fn users_below(parent: &Path) -> Vec<u32> {
    let names = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let users = names.filter_map(|entry| user_of(entry.file_name().to_str()?));
    users.take(USERS_MAX).collect()
}

/// The user behind a process in a container of dockerd, by its `/proc/PID/cgroup`; [`NOBODY`] if there is none. Only
/// groups at the root of the tree count: users may make groups of any name below their own.
#[must_use]
pub fn user_behind(cgroups: &str) -> Option<u32> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut groups = path.split('/');
    (groups.next() == Some(PARENT)).then(|| groups.next().and_then(user_of).unwrap_or(NOBODY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_told_by_the_group_at_the_root_and_no_other() {
        let of = |path: &str| user_behind(&format!("1:name=systemd:/x\n0::{path}\n"));
        assert_eq!(of("/fleetdocker.slice/fleetdocker-u1000.slice/docker-a.scope"), Some(1000));
        assert_eq!(of(&format!("/{PARENT}/{}", slice_of(7))), Some(7));
        for nobodys in [
            "/fleetdocker.slice/docker-a.scope",
            "/fleetdocker.slice",
            "/fleetdocker.slice/fleetdocker-u0.slice/x",
            "/fleetdocker.slice/fleetdocker-u01000.slice/x",
            "/fleetdocker.slice/fleetdocker-u+1000.slice/x",
            "/fleetdocker.slice/fleetdocker-u4294967295.slice/x",
            "/fleetdocker.slice/fleetdocker-ada.slice/x",
        ] {
            assert_eq!(of(nobodys), Some(NOBODY), "{nobodys}");
        }
        for other in [
            "/user.slice/fleetdocker.slice/fleetdocker-u1000.slice/x",
            "/fleetdocker-u1000.slice/x",
            "/",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(user_behind("4:devices:/fleetdocker.slice/fleetdocker-u1000.slice\n"), None);
    }
}
