//! Finds the programs under test: those that were built beside the running test or demo.

use std::env;
use std::path::PathBuf;

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
fn folder() -> Result<PathBuf> {
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
