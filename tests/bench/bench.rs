//! How much is measured: all of it, or a short run that only shows that it works.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

// Groups of rows.
/// Those on a cluster with one controller, and those on one with three.
const ONE: [&str; 4] = ["rest", "start", "durable", "jobs"];
/// Those that need no cluster.
const NONE: [&str; 2] = ["checkpoints", "scale"];
const THREE: [&str; 3] = ["replicated", "failover", "agents"];
/// A short run does so many times less, but never nothing.
const QUICK_DIVISOR: usize = 20;
const QUICK_MIN: usize = 5;
const QUICK_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Bench {
    quick: bool,
    groups: Vec<String>,
    /// A folder of the file system to measure checkpoints on, where that is not the bench's own.
    checkpoints_in: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn from_environment() -> Result<Self> {
        let quick = env::var("BENCH_QUICK").is_ok_and(|value| !["", "0"].contains(&value.as_str()));
        let only = env::var("BENCH_ONLY").unwrap_or_default();
        let groups: Vec<String> =
            only.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let known = [ONE.as_slice(), THREE.as_slice(), NONE.as_slice()].concat();
        for group in &groups {
            let words = known.join(", ");
            ensure!(known.contains(&group.as_str()), "BENCH_ONLY: {group:?} is none of {words}");
        }
        let checkpoints_in = env::var_os("BENCH_CHECKPOINTS_IN").filter(|dir| !dir.is_empty());
        Ok(Self { quick, groups, checkpoints_in: checkpoints_in.map(PathBuf::from) })
    }

    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// A folder for the checkpoints of jobs, which goes when it is dropped; in `usual` unless another one was named.
    pub(crate) fn folder_of_jobs(&self, usual: &Path) -> Result<TempDir> {
        let parent = self.checkpoints_in.as_deref().unwrap_or(usual);
        tempfile::Builder::new().prefix("checkpoints-").tempdir_in(parent).with_context(|| {
            format!("cannot make a folder for checkpoints in {}", parent.display())
        })
    }

    pub(crate) fn wants(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|wanted| wanted == group)
    }

    /// A group on a cluster with one controller.
    pub(crate) fn wants_one(&self) -> bool {
        ONE.iter().any(|group| self.wants(group))
    }

    /// A group on a cluster with three.
    pub(crate) fn wants_three(&self) -> bool {
        THREE.iter().any(|group| self.wants(group))
    }

    pub(crate) fn wants_slurm(&self) -> bool {
        self.wants("start") || self.wants("jobs")
    }

    /// How long, where a whole run takes `full`.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        if self.quick { full.min(QUICK_TIME) } else { full }
    }

    /// How often, where a whole run does it `full` times.
    pub(crate) fn of(&self, full: usize) -> usize {
        if self.quick { (full / QUICK_DIVISOR).max(QUICK_MIN).min(full) } else { full }
    }
}
