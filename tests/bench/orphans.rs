//! Processes whose parents have gone before them: this program takes them on, so that they do not stay
//! behind as zombies where process 1 does not care.

use std::fs;

use anyhow::Result;
use nix::{
    sys::{
        prctl,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

/// Programs that outlive their parents here. The parent of any other program waits for it.
const NAMES: [&str; 2] = ["slurmstepd", "fleet-shim"];

/// From now on they become children of this process.
pub(crate) fn adopt() -> Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Takes away those that have ended.
pub(crate) fn reap() -> Result<()> {
    for thread in fs::read_dir("/proc/self/task")? {
        let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if NAMES.contains(&name.trim()) {
                // One that still runs is left alone; one that is gone needs nothing.
                waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)).ok();
            }
        }
    }
    Ok(())
}
