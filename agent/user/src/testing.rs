//! For the tests of all crates that work as a user: an [`AsUser`] whose helper is the test binary itself.
//!
//! Such a test binary has a test named [`ENTRY`] that calls [`enter`], as `main` does in the agent.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use crate::as_user::{AsUser, AsUserConfig, HelperProgram};
use crate::helper::{self, Checkpoints};
use crate::resolve::User;

/// The test that a helper starts in.
pub const ENTRY: &str = "test_helper::entry";

/// An `AsUser` whose helper is this test binary.
pub fn test_as_user(change: impl FnOnce(&mut AsUserConfig)) -> AsUser {
    let mut config = AsUserConfig { helper: test_helper(), ..AsUserConfig::default() };
    change(&mut config);
    AsUser::new(config)
}

/// The shell moves the answer pipe away from stdout, where the test harness prints.
#[must_use]
pub fn test_helper() -> HelperProgram {
    let exe = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    let script = format!(
        "export FLEET_TEST_HELPER=\"$*\"; exec 3>&1 >/dev/null; \
         exec \"$0\" --exact {ENTRY} --nocapture --test-threads=1"
    );
    HelperProgram {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script, exe],
        env: Vec::new(),
    }
}

/// The same, but of files with `slow` in their paths no byte ever comes, as from a file server that hangs behind the open.
#[must_use]
pub fn slow_helper() -> HelperProgram {
    let HelperProgram { program, args, env } = test_helper();
    let [option, script, exe] = <[String; 3]>::try_from(args).unwrap();
    // The agent sends `go` when it wants the bytes. The script keeps that from the helper, and keeps its input open.
    let feed = "IFS= read -r line; feed() { printf '%s\\n' \"$line\"; case $line in \
                *stream*slow*) exec cat 9>&1 >/dev/null ;; *) exec cat ;; esac; }; ";
    let script = format!("{feed}{}", script.replace("exec \"$0\"", "feed | \"$0\""));
    HelperProgram { program, args: vec![option, script, exe], env }
}

/// The life of a helper, if this process was started as one; otherwise nothing, as the test that it is.
pub fn enter(checkpoints: Checkpoints) {
    let Ok(args) = std::env::var("FLEET_TEST_HELPER") else { return };
    let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
    // A helper that is not root from the start cannot open root's pipe, and has nothing to answer either.
    let output =
        File::options().write(true).open("/proc/self/fd/3").or_else(|_| File::create("/dev/null"));
    let output = output.unwrap();
    std::process::exit(helper::serve(&args, std::io::stdin(), output, checkpoints).into());
}

/// A user that every Debian has.
#[must_use]
pub fn account(name: &str) -> User {
    let entry = nix::unistd::User::from_name(name).unwrap().unwrap();
    let (uid, gid) = (entry.uid.as_raw(), entry.gid.as_raw());
    User { name: name.to_owned(), uid, gid, groups: vec![gid], home: entry.dir, shell: entry.shell }
}

/// A temporary directory that belongs to a user and that others can pass through.
#[must_use]
pub fn dir_of(user: &User) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(user.uid), Some(user.gid)).unwrap();
    dir
}
