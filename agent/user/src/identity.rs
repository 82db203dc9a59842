//! Becoming the user, for ever. Called once, first thing, in the helper process; never in the agent itself.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid};

use crate::resolve::User;

/// uid, gid and groups, as they travel on the helper's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl From<&User> for Identity {
    fn from(user: &User) -> Self {
        Self { uid: user.uid, gid: user.gid, groups: user.groups.clone() }
    }
}

impl Identity {
    /// `UID GID GROUP,GROUP,…` as three arguments.
    pub(crate) fn to_args(&self) -> [String; 3] {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        [self.uid.to_string(), self.gid.to_string(), groups.join(",")]
    }

    pub(crate) fn from_args(args: &[String]) -> Option<Self> {
        let [uid, gid, groups] = args else { return None };
        let groups = groups
            .split(',')
            .filter(|g| !g.is_empty())
            .map(|g| g.parse().ok())
            .collect::<Option<_>>()?;
        Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()?, groups })
    }

    /// Drops to this identity so that there is no way back, and proves it. A process that already is this user (an agent
    /// that was not started by root) keeps its groups.
    pub(crate) fn assume(&self) -> Result<(), String> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let now = getresuid().map_err(|errno| format!("getresuid: {errno}"))?;
        if now.effective.is_root() {
            let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
            setgroups(&groups).map_err(|errno| format!("setgroups: {errno}"))?;
            setresgid(gid, gid, gid).map_err(|errno| format!("setresgid {gid}: {errno}"))?;
            setresuid(uid, uid, uid).map_err(|errno| format!("setresuid {uid}: {errno}"))?;
            self.prove()?;
        } else if now.effective != uid || now.real != uid || now.saved != uid {
            return Err(format!(
                "this process is uid {} and cannot become uid {uid}",
                now.effective
            ));
        }
        prctl::set_no_new_privs().map_err(|errno| format!("no_new_privs: {errno}"))?;
        setrlimit(Resource::RLIMIT_CORE, 0, 0)
            .map_err(|errno| format!("no core dumps: {errno}"))?;
        umask(Mode::from_bits_truncate(0o022));
        Ok(())
    }

    fn prove(&self) -> Result<(), String> {
        let uids = getresuid().map_err(|errno| format!("getresuid: {errno}"))?;
        let gids = getresgid().map_err(|errno| format!("getresgid: {errno}"))?;
        let uid_held =
            [uids.real, uids.effective, uids.saved].iter().all(|u| u.as_raw() == self.uid);
        let gid_held =
            [gids.real, gids.effective, gids.saved].iter().all(|g| g.as_raw() == self.gid);
        let mut have: Vec<u32> = getgroups()
            .map_err(|e| format!("getgroups: {e}"))?
            .iter()
            .map(|g| g.as_raw())
            .collect();
        let mut want = self.groups.clone();
        for list in [&mut have, &mut want] {
            list.sort_unstable();
            list.dedup();
        }
        if !uid_held || !gid_held || have != want {
            return Err("the identity did not take".to_owned());
        }
        if self.uid != 0 && setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok()
        {
            return Err("the way back to root is open".to_owned());
        }
        Ok(())
    }
}
