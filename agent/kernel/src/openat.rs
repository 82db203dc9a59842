//! `openat2`, tried again if the kernel could not tell whether a path stays inside its directory.
//!
//! Everything that resolves a path of a user or an image opens it by this function. It never widens what `how` allows.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OpenHow;

/// Most tries. One takes microseconds, and so does the rename that made it fail.
const TRIES_MAX: u32 = 1_000;

/// Opens `path` below `dir` as `how` says.
///
/// While the kernel resolves a `..` with `RESOLVE_IN_ROOT` or `RESOLVE_BENEATH`, a rename or a mount anywhere on the
/// machine makes it give up with EAGAIN, and the caller is expected to try again: openat2(2), ERRORS.
///
/// # Errors
///
/// Those of openat2(2); EAGAIN only after [`TRIES_MAX`] tries.
pub fn openat2(dir: impl AsFd, path: &Path, how: OpenHow) -> nix::Result<OwnedFd> {
    for _ in 1..TRIES_MAX {
        match nix::fcntl::openat2(&dir, path, how) {
            Err(Errno::EAGAIN) => {}
            done => return done,
        }
    }
    nix::fcntl::openat2(&dir, path, how)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, File};
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::fcntl::{OFlag, ResolveFlag};

    use super::*;

    /// Enough for a machine with one processor to be interrupted in the middle of a call.
    const CALLS_MAX: u32 = 5_000_000;

    #[test]
    fn renames_elsewhere_fail_no_path_with_dots() {
        let home = tempfile::tempdir().unwrap();
        let inside = home.path().join("inside");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        let (one, other) = (home.path().join("one"), home.path().join("other"));
        fs::create_dir(&one).unwrap();
        let root = File::open(&inside).unwrap();
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let path = Path::new("a/b/../b/../b/../b/../../../a");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&one, &other).unwrap();
                    fs::rename(&other, &one).unwrap();
                }
            });
            let kernel_gave_up = (0..CALLS_MAX).any(|_| {
                assert_eq!(openat2(&root, path, how).map(drop), Ok(()));
                nix::fcntl::openat2(&root, path, how).is_err_and(|error| error == Errno::EAGAIN)
            });
            done.store(true, Ordering::Relaxed);
            assert!(kernel_gave_up, "the kernel never gave up, so nothing was shown");
        });
    }
}
