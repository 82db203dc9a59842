//! Makes the folders that the agent keeps its state in, and takes them for one program.
//!
//! Called first by `server` and by `fleet-agent stop-all`, which must not run beside each other. It never uses a folder
//! that somebody else made where only the agent may write.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use fleet_core::state::{FORMAT, check_format};
use fleet_proto::transport::files::{MODE_PRIVATE, create_private_folder, write_atomic};
use nix::fcntl::{Flock, FlockArg};

use crate::attempts::{allocations_dir, volatile_dir};
use crate::config::Config;

/// All users must be able to enter the folder of the sockets. A folder that exists already keeps its mode.
const RUN_DIR_MODE: u32 = 0o755;
/// Taken by the one agent of a state folder.
const LOCK_FILE: &str = "agent.lock";
/// The format of what the agent and the shims of its jobs store there.
const FORMAT_FILE: &str = "format";

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
    take_format(config)?;
    make_own_folder(&volatile_dir(config))?;
    let path = config.state_dir.join(LOCK_FILE);
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        anyhow::anyhow!("{} is in use by another agent ({errno})", config.state_dir.display())
    })?;
    Ok(StateDirLock(lock))
}

/// Makes the folders for what is stored, or checks that a build of this format wrote what is there.
fn take_format(config: &Config) -> anyhow::Result<()> {
    let (path, attempts) = (config.state_dir.join(FORMAT_FILE), allocations_dir(config));
    let found = match std::fs::read_to_string(&path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    let is_new = found.is_none() && !attempts.exists();
    if !is_new {
        let checked = check_format(found.as_deref().map(str::trim_end));
        checked.map_err(|other| {
            let folder = config.state_dir.display();
            anyhow::anyhow!(
                "{folder} {other}. Install the build that wrote it; or end the jobs with that build's `fleet-agent stop-all`, remove \
                 {folder}, and join again"
            )
        })?;
    }
    create_private_folder(&config.state_dir)?;
    // Before the folder of the attempts: without a format, that folder is taken for one of another build.
    if is_new {
        write_atomic(&path, format!("{FORMAT}\n").as_bytes(), MODE_PRIVATE)?;
    }
    create_private_folder(&attempts)?;
    Ok(())
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
    fn what_a_build_of_another_format_stored_is_left_alone_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        std::fs::write(&file, format!("state_dir = {:?}\n", dir.path().join("state"))).unwrap();
        let config = Config::load(&file).unwrap();
        for again in 0..2 {
            take_format(&config).unwrap();
            assert!(allocations_dir(&config).exists(), "{again}");
        }
        let format = config.state_dir.join(FORMAT_FILE);
        std::fs::write(&format, "0123\n").unwrap();
        let said = take_format(&config).unwrap_err().to_string();
        assert!(said.contains("is of format 0123") && said.contains("stop-all"), "{said}");
        std::fs::remove_dir_all(allocations_dir(&config)).unwrap();
        std::fs::remove_file(&format).unwrap();
        std::fs::write(config.state_dir.join("identity"), "").unwrap();
        take_format(&config).unwrap();
        std::fs::remove_file(&format).unwrap();
        let said = take_format(&config).unwrap_err().to_string();
        assert!(said.contains("is of format none"), "of before formats had names: {said}");
    }

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
