//! Makes the folders that the agent keeps its state in, and takes them for one program.
//!
//! Called first by `server` and by `fleet-agent stop-all`, which must not run beside each other. It never uses a folder
//! that somebody else made where only the agent may write.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use fleet_proto::transport::files::create_private_folder;
use nix::fcntl::{Flock, FlockArg};

use crate::attempts::{allocations_dir, volatile_dir};
use crate::config::Config;

/// All users must be able to enter the folder of the sockets. A folder that exists already keeps its mode.
const RUN_DIR_MODE: u32 = 0o755;
/// Taken by the one agent of a state folder.
const LOCK_FILE: &str = "agent.lock";

/// The hold of this agent on its state folder; dropping it releases the folder.
#[derive(Debug)]
pub(crate) struct StateDirLock(
    #[expect(dead_code, reason = "held, not read")] Flock<std::fs::File>,
);

/// Makes the state folder and takes it.
pub(crate) fn take_state_dir(config: &Config) -> anyhow::Result<StateDirLock> {
    // Not only ours: users pass through it to the sockets, and on a machine with both programs the controller's is there too.
    let fresh = !config.run_dir.exists();
    std::fs::create_dir_all(&config.run_dir)
        .and_then(|()| match fresh {
            // Set it, for the umask of the process that started the agent may be narrower.
            true => std::fs::set_permissions(&config.run_dir, Permissions::from_mode(RUN_DIR_MODE)),
            false => Ok(()),
        })
        .with_context(|| format!("create {}", config.run_dir.display()))?;
    for folder in [&config.state_dir, &allocations_dir(config)] {
        create_private_folder(folder)?;
    }
    make_own_folder(&volatile_dir(config))?;
    let path = config.state_dir.join(LOCK_FILE);
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        anyhow::anyhow!("{} is in use by another agent ({errno})", config.state_dir.display())
    })?;
    Ok(StateDirLock(lock))
}

/// Makes a folder of this agent's own where others may make theirs too: whose it was before could change what is in it.
fn make_own_folder(folder: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("create {}", folder.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(folder)
        .with_context(|| format!("look at {}", folder.display()))?;
    let (is, owner, me) = (found.file_type(), found.uid(), nix::unistd::geteuid().as_raw());
    anyhow::ensure!(
        is.is_dir() && owner == me,
        "{} is no folder of uid {me}'s, who runs this agent, but something of uid {owner}'s: see who made it, remove it, and \
         start the agent again",
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn what_another_user_made_where_the_agent_keeps_its_own_is_not_used() {
        let shared = tempfile::tempdir().unwrap();
        let folder = shared.path().join("allocations");
        for again in 0..2 {
            make_own_folder(&folder).unwrap();
            let mode = std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o700, "{again}");
        }
        let elsewhere = shared.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let link = shared.path().join("link");
        symlink(&elsewhere, &link).unwrap();
        let said = make_own_folder(&link).unwrap_err().to_string();
        assert!(said.contains("remove it"), "{said}");
        if nix::unistd::geteuid().is_root() {
            chown(&folder, Some(65_534), None).unwrap();
            let said = make_own_folder(&folder).unwrap_err().to_string();
            assert!(said.contains("of uid 65534's"), "{said}");
        }
    }
}
