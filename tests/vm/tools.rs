//! The programs that make and run guests: qemu from Debian's packages, unpacked into a folder and never installed.
//!
//! A qemu from elsewhere that a machine may have (backports, a vendor) excludes Debian's own one, so installing is
//! no way; and a folder leaves the machine as it was. The other programs come from packaging/install-vm-tools.sh.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::command;
use fleet_tests::lab::tell;

/// Changes when the folder is made in another way.
const FORM: u32 = 1;
/// Whose qemu it is.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "qemu-system-x86,qemu-utils";
/// Asked for when it is to be seen whether there is a mirror at all.
const MIRROR_PROBE: &str = "http://deb.debian.org/debian/dists/bookworm/InRelease";
/// Programs of the machine itself that are called.
const NEEDED: [&str; 7] =
    ["mmdebstrap", "mke2fs", "ssh", "ssh-keygen", "dpkg-buildpackage", "dh", "setpriv"];
/// How often packages are fetched before it counts as impossible.
const FETCHES_MAX: u32 = 3;
/// All tries together. Beyond it the mirror, or this machine, is too slow for a test.
const FETCH_LIMIT: Duration = Duration::from_secs(420);
/// Whether there is a mirror is known sooner.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// What this machine lacks to run guests, for `SKIPPED`. No other error may be skipped.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Whether guests can be run here, before anything is fetched. Each `Err` is [`Unavailable`].
pub(crate) fn all_there() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        Unavailable("making the disk of a machine needs root".to_owned())
    );
    ensure!(cfg!(target_arch = "x86_64"), Unavailable("the guests are x86-64 machines".to_owned()));
    let path = env_path();
    let absent = |program: &&&str| !path.iter().any(|folder| folder.join(program).is_file());
    let missing: Vec<&str> = NEEDED.iter().filter(absent).copied().collect();
    ensure!(
        missing.is_empty(),
        Unavailable(format!(
            "not installed: {} (packaging/install-vm-tools.sh)",
            missing.join(", ")
        ))
    );
    Ok(())
}

fn env_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).collect()
}

/// qemu in its folder.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    root: PathBuf,
}

impl Tools {
    /// Takes what an earlier run left in `cache`, or fetches it. `Err` says why that is impossible.
    pub(crate) fn ready(cache: &Path) -> Result<Self> {
        let root = cache.join(format!("qemu-{SUITE}-{FORM}"));
        if !root.is_dir() {
            tell("fetching qemu from Debian");
            let new = root.with_extension("new");
            let options = ["--variant=extract", &format!("--include={PACKAGES}")].map(String::from);
            fetch(&options, SUITE, &new)?;
            fs::rename(&new, &root).with_context(|| format!("rename {}", new.display()))?;
        }
        let tools = Self { root };
        let ran = command::run(tools.program("qemu-img", &["--version"]), PROBE_LIMIT)?;
        ran.ok().context("the qemu that was fetched does not run")?;
        Ok(tools)
    }

    /// A program of the folder with its own libraries, whatever this machine has.
    pub(crate) fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.root.join("lib64/ld-linux-x86-64.so.2"));
        command.args(self.words(name)).args(arguments);
        command.env("QEMU_MODULE_DIR", self.root.join("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }

    /// What stands before the arguments of a program, for the loader.
    fn words(&self, name: &str) -> Vec<OsString> {
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
        let libraries: Vec<String> =
            libraries.iter().map(|part| self.root.join(part).display().to_string()).collect();
        vec![
            "--library-path".into(),
            libraries.join(":").into(),
            self.root.join("usr/bin").join(name).into(),
        ]
    }

    /// qemu as a child that dies with the thread that starts it, even where this process is killed.
    pub(crate) fn qemu(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(self.root.join("lib64/ld-linux-x86-64.so.2"));
        command.args(self.words("qemu-system-x86_64"));
        command.env("QEMU_MODULE_DIR", self.root.join("usr/lib/x86_64-linux-gnu/qemu"));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(folder));
        }
        command
    }
}

/// Makes a folder of Debian's packages. What an attempt left is removed before the next one. Where they cannot be
/// fetched it is [`Unavailable`], in time for a test that is skipped then.
pub(crate) fn fetch(options: &[String], suite: &str, into: &Path) -> Result<()> {
    if !mirror_answers()? {
        bail!(Unavailable(format!("no mirror of Debian can be reached ({MIRROR_PROBE})")));
    }
    let deadline = Instant::now() + FETCH_LIMIT;
    let mut last = Err(anyhow::anyhow!("mmdebstrap was never run"));
    for _ in 0..FETCHES_MAX {
        if into.exists() {
            fs::remove_dir_all(into).with_context(|| format!("remove {}", into.display()))?;
        }
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--aptopt=Acquire::Retries \"3\""]).args(options);
        mmdebstrap.arg(suite).arg(into);
        let left = deadline.saturating_duration_since(Instant::now());
        last = command::run(mmdebstrap, left).and_then(|ran| ran.ok().map(drop));
        if last.is_ok() || Instant::now() >= deadline {
            break;
        }
    }
    last.map_err(|error| {
        fs::remove_dir_all(into).ok();
        anyhow::Error::new(Unavailable(format!("packages cannot be fetched: {error:#}")))
    })
}

fn mirror_answers() -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let mut probe = Command::new("/usr/lib/apt/apt-helper");
    probe.args(["download-file", MIRROR_PROBE]).arg(folder.path().join("InRelease"));
    Ok(command::run(probe, PROBE_LIMIT).is_ok_and(|ran| ran.code() == 0))
}
