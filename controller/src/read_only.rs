//! What to do where the controller may not write though the disk is mounted for writing: systemd's unit is the likelier
//! reason then. `main` and the nightly backups ask.
//!
//! Reads errors only: it does not check whether there is a unit, and what the unit allows.

use std::fmt::Display;
use std::io;

/// The error; with what to do about `folder` where its cause is a file system that may only be read (EROFS), as
/// `ProtectSystem=strict` makes them all.
#[must_use]
pub fn explained(error: anyhow::Error, folder: impl Display) -> anyhow::Error {
    let is_read_only = |cause: &io::Error| cause.kind() == io::ErrorKind::ReadOnlyFilesystem;
    if !error.chain().any(|cause| cause.downcast_ref().is_some_and(is_read_only)) {
        return error;
    }
    error.context(format!(
        "the controller may not write there; where the disk is mounted for writing, let the unit do so (`systemctl edit \
         fleet-controller`: `[Service]`, `ReadWritePaths={folder}`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskError;
    use crate::raft::StartError;

    #[test]
    fn a_read_only_file_system_is_told_with_what_the_unit_lacks() {
        let of = |code| {
            let source = io::Error::from_raw_os_error(code);
            let error = StartError::from(DiskError::Open { path: "/data/raft".into(), source });
            explained(anyhow::Error::new(error), "FOLDER")
        };
        let read_only = of(nix::libc::EROFS);
        let said = format!("{read_only:#}");
        assert!(said.contains("`systemctl edit fleet-controller`"), "{said}");
        assert!(said.contains("`ReadWritePaths=FOLDER`"), "{said}");
        assert!(said.contains(": cannot open /data/raft: Read-only file system"), "{said}");
        let known = read_only.chain().any(|cause| cause.is::<StartError>());
        assert!(known, "its exit code would be another");
        let denied = format!("{:#}", of(nix::libc::EACCES));
        assert!(denied.starts_with("cannot open /data/raft"), "{denied}");
    }
}
