//! Finds the programs under test: those that were built beside the running test or demo, or in another build.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// All that a cluster consists of, as `make build` leaves it.
const NEEDED: [&str; 6] = [
    "fleet",
    "fleet-controller",
    "fleet-agent",
    "fleet-shim",
    "fleet-init",
    "libfleet_fake_nvml.so",
];

/// A built program or library by its file name.
pub fn built(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(name))
}

/// The folder with all of them: that of the running program, or for a test the one above `deps`.
pub fn folder() -> Result<PathBuf> {
    let own = env::current_exe().context("find the running program")?;
    let mut best: Vec<&str> = NEEDED.to_vec();
    for folder in own.ancestors().skip(1).take(2) {
        let missing: Vec<&str> =
            NEEDED.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
        if missing.is_empty() {
            return Ok(folder.to_owned());
        }
        if missing.len() < best.len() {
            best = missing;
        }
    }
    bail!(
        "not built: {}; run `make build` first (looked beside {})",
        best.join(", "),
        own.display()
    )
}

/// Replaces the programs in a folder by those of a build, as a package does: running processes keep the old file.
pub fn exchange(build: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for name in NEEDED {
        let (from, new) = (build.join(name), folder.join(format!("{name}.new")));
        fs::copy(&from, &new).with_context(|| format!("copy {}", from.display()))?;
        fs::rename(&new, folder.join(name))?;
    }
    Ok(())
}
