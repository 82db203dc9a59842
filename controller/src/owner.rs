//! Whose the data folder is: `init`, `join`, `restore` and `run` ask before they write anything into it.
//!
//! The service runs as the user who owns the folder. It could not open a file that root left in there, and would
//! report that only at its next start. This module only checks and reports. It never changes an owner, since nobody
//! knows which of the two was meant.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// The data folder belongs to somebody else than who runs this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} belongs to {owner}, who could not open what {me} makes in it. Nothing was changed; as root, type it as that user: `{command}`",
    folder.display()
)]
pub struct OtherOwner {
    folder: PathBuf,
    owner: String,
    me: String,
    command: String,
}

/// Refuses a folder of somebody else's. `typed` is the verb, with what stands for its arguments: those of a join hold a
/// secret.
pub fn check(data_dir: &Path, typed: &str) -> Result<(), OtherOwner> {
    check_as(data_dir, typed, Uid::effective())
}

fn check_as(data_dir: &Path, typed: &str, me: Uid) -> Result<(), OtherOwner> {
    // A missing folder is made, and systemd gives its own (StateDirectory=) to the service's user as a whole. A folder
    // that we may not read we may not write to either: the first write reports that.
    let Ok(found) = data_dir.metadata() else { return Ok(()) };
    if found.uid() == me.as_raw() {
        return Ok(());
    }
    let name = name_of(Uid::from_raw(found.uid()));
    let command = match &name {
        Some(name) => format!("runuser -u {name} -- fleet-controller {typed}"),
        // runuser takes names only.
        None => {
            let (uid, gid) = (found.uid(), found.gid());
            format!("setpriv --reuid {uid} --regid {gid} --clear-groups fleet-controller {typed}")
        }
    };
    Err(OtherOwner {
        folder: data_dir.to_owned(),
        owner: name.unwrap_or_else(|| format!("uid {}", found.uid())),
        me: name_of(me).unwrap_or_else(|| format!("uid {me}")),
        command,
    })
}

/// By the name service; none where it knows nobody, or does not answer.
fn name_of(uid: Uid) -> Option<String> {
    Some(User::from_uid(uid).ok()??.name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::chown;

    use fleet_daemon::logging;
    use fleet_daemon::process::{Process, watch_signals};

    use super::*;
    use crate::backup;
    use crate::config::Config;
    use crate::join::{self, JoinError};
    use crate::server;

    /// Nobody has it, one hopes.
    const NAMELESS: u32 = 3_999_999_999;

    #[test]
    fn ones_own_folder_and_one_that_is_not_there_are_fine() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check(folder.path(), "init"), Ok(()));
        assert_eq!(check(&folder.path().join("data"), "init"), Ok(()));
    }

    #[test]
    fn the_owner_of_a_folder_is_named_with_what_to_type() {
        let said = check_as(Path::new("/"), "restore …", Uid::from_raw(NAMELESS));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("/ belongs to root"), "{said}");
        assert!(said.contains("`runuser -u root -- fleet-controller restore …`"), "{said}");
        assert!(said.contains(&format!("what uid {NAMELESS} makes")), "{said}");
    }

    /// A configuration whose data folder is somebody else's: of a user without a name, or root's where root is not asking.
    fn others(folder: &Path) -> Config {
        let data = match Uid::effective().is_root() {
            false => PathBuf::from("/"),
            true => {
                let data = folder.join("data");
                std::fs::create_dir(&data).unwrap();
                chown(&data, Some(NAMELESS), Some(NAMELESS)).unwrap();
                data
            }
        };
        let file = folder.join("controller.toml");
        std::fs::write(&file, format!("data_dir = {data:?}\n")).unwrap();
        Config::load(&file).unwrap()
    }

    #[tokio::test]
    async fn nothing_is_written_into_somebody_elses_folder() {
        let folder = tempfile::tempdir().unwrap();
        let config = others(folder.path());
        let is_refused = |error: &(dyn std::error::Error + 'static), verb: &str| {
            let said = error.to_string();
            assert!(said.contains(&format!("fleet-controller {verb}")), "{verb}: {said}");
            let empty = || config.data_dir.read_dir().unwrap().next().is_none();
            assert!(!config.data_dir.starts_with(folder.path()) || empty(), "{verb} wrote there");
        };
        let init = server::init(&config).await.unwrap_err();
        is_refused(init.as_ref(), "init");
        let secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0MDE";
        let invitation = format!("fleet1.token-a.{secret}.{secret}@127.0.0.1:9").parse().unwrap();
        let join = join::join(&config, &invitation).await.unwrap_err();
        assert!(matches!(join, JoinError::Owner(_)), "{join}");
        is_refused(&join, "join …");
        // Here too, the check comes before the backup is read: the folder's owner has to read that.
        let restore = backup::restore(&config, &folder.path().join("none")).await.unwrap_err();
        is_refused(restore.as_ref(), "restore …");
        let (config_path, logging) = (folder.path().join("controller.toml"), logging::init("info"));
        let process = Process { config_path, logging, signals: watch_signals().unwrap() };
        let run = Box::pin(server::serve(config.clone(), process)).await.unwrap_err();
        is_refused(run.as_ref(), "run");
    }
}
