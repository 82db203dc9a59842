//! What a test starts from: an own folder, a cluster in it, and the proof in the end that nothing is left of it.

use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cluster::Cluster;
use crate::leftovers::Belongings;
use crate::logs::{self, Expected};
use crate::programs;
use crate::steps::Steps;

/// How long controllers of a test wait for a silent leader: longer than a busy machine lets one wait.
pub const ELECTION_MS: u64 = 2_000;
/// Where a lab has programs of its own.
const PROGRAMS: &str = "programs";

/// A cluster and its folder. Derefs to the cluster. A test ends it by [`Lab::conclude`].
#[derive(Debug)]
pub struct Lab {
    /// Declared first: the cluster ends before its folder is removed.
    cluster: Cluster,
    belongings: Belongings,
    expected: Vec<Expected>,
    folder: tempfile::TempDir,
}

impl Lab {
    /// Starts a cluster of one controller. `None`, and says so, where this user cannot: that counts as
    /// skipped.
    pub fn start(nodes: u16, gpus: &str) -> Result<Option<Self>> {
        Self::start_in("", |state, lab| Cluster::start(state, lab, nodes, gpus))
    }

    /// The same with a network between agents and controller that can be cut.
    pub fn start_with_relays(nodes: u16, gpus: &str) -> Result<Option<Self>> {
        Self::start_in("", |state, lab| Cluster::start_with_relays(state, lab, nodes, gpus))
    }

    /// The same with 1, 3 or 5 controllers, or with one that others will join: elections are slow, so
    /// that a busy machine does not cause them.
    pub fn start_with(controllers: u16, nodes: u16, gpus: &str) -> Result<Option<Self>> {
        Self::start_at_pace((controllers, ELECTION_MS), nodes, gpus)
    }

    /// The same; they wait so many milliseconds for a silent leader.
    pub fn start_at_pace(pace: (u16, u64), nodes: u16, gpus: &str) -> Result<Option<Self>> {
        Self::start_in("", |state, lab| Cluster::start_with(state, lab, pace, nodes, gpus))
    }

    /// One controller, in a folder below the test's own.
    pub fn start_below(nodes: u16, gpus: &str, below: &str) -> Result<Option<Self>> {
        Self::start_in(below, |state, lab| Cluster::start(state, lab, nodes, gpus))
    }

    /// The same with the programs of another build, in a folder of this lab: [`Lab::exchange_programs`] puts others there.
    pub fn start_of(
        build: &Path,
        pace: (u16, u64),
        nodes: u16,
        gpus: &str,
    ) -> Result<Option<Self>> {
        Self::start_in("", |state, lab| {
            let programs = state.with_file_name(PROGRAMS);
            programs::exchange(build, &programs)?;
            // The other build may not know every option.
            Cluster::start_from(&programs, state, lab, (pace, &[]), nodes, gpus)
        })
    }

    /// What is started from now on are the programs of this build.
    pub fn exchange_programs(&self, build: &Path) -> Result<()> {
        programs::exchange(build, &self.folder().join(PROGRAMS))
    }

    fn start_in(
        below: &str,
        start: impl FnOnce(&Path, &Path) -> Result<Cluster>,
    ) -> Result<Option<Self>> {
        if !nix::unistd::geteuid().is_root() {
            tell("SKIPPED: clusters with containers and cgroups need root");
            return Ok(None);
        }
        let folder = tempfile::Builder::new().prefix("fleet-it-").tempdir()?;
        // Other users' jobs work below it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let lab = folder.path().join(below).join("lab");
        fs::create_dir_all(&lab)?;
        fs::set_permissions(&lab, fs::Permissions::from_mode(0o777))?;
        let state = folder.path().join(below).join("cluster");
        let cluster = start(&state, &lab)?;
        let belongings = Belongings::of(folder.path(), &state)?;
        Ok(Some(Self { cluster, belongings, expected: Vec::new(), folder }))
    }

    /// From now on lines that hold `text` may be in the logs, because `why`.
    pub fn expect_in_logs(&mut self, text: &'static str, why: &'static str) {
        self.expected.push(Expected { text, why });
    }

    /// The test stops or kills the controller.
    pub fn controller_goes_away(&mut self) {
        self.expect_in_logs("no link to a controller", "the test takes the controller away");
        self.expect_in_logs("a controller does not answer", "the test takes the controller away");
        self.expect_in_logs("cut off a log write", "a kill may come in the middle of one");
    }

    /// The test breaks GPUs.
    pub fn gpus_break(&mut self) {
        self.expect_in_logs("the driver told of an error", "the test makes XIDs");
        self.expect_in_logs("GPUs are not proven empty", "a lost GPU cannot be asked");
    }

    /// A path in the folder where commands run and jobs start.
    pub fn path(&self, name: &str) -> PathBuf {
        self.cluster.lab().join(name)
    }

    /// The whole folder of this test, for files beside cluster and lab.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn belongings(&self) -> &Belongings {
        &self.belongings
    }

    /// The end of a test that consists of steps.
    pub fn conclude(mut self, mut steps: Steps) -> Result<()> {
        steps.step("it stops, leaves nothing behind, and no log complains", || self.finish());
        if !steps.all_held() {
            self.folder.disable_cleanup(true);
            tell(&format!("its files are kept in {}", self.folder.path().display()));
        }
        steps.verdict()
    }

    /// Stops the cluster; nothing of it may be left, and nothing unexpected may be in its logs.
    fn finish(&self) -> Result<()> {
        let processes = self.cluster.dev_file()?.processes;
        self.cluster.stop()?;
        self.belongings.nothing_left()?;
        let logs: Vec<(String, PathBuf)> =
            processes.into_iter().map(|process| (process.name, process.log)).collect();
        logs::nothing_unexpected(&logs, &self.expected).with_context(|| {
            format!(
                "allowed are only {:?}",
                self.expected.iter().map(|e| e.text).collect::<Vec<_>>()
            )
        })
    }
}

impl Deref for Lab {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Prints a line for a person who reads the test's output.
pub fn tell(text: &str) {
    // Nobody may be reading.
    writeln!(std::io::stderr(), "{text}").ok();
}
