//! From the previous version to this one, controller by controller and node by node, under load and under a job.
//!
//! `make upgrade-test` builds the version after this one, which only tests know: this one with a cluster version more. The
//! previous one is this tree's own, or that of an older commit. Programs are exchanged as packages exchange them: the
//! files first, then each process is restarted. What clients were answered in between must have an order, and all of it
//! must be in every controller's audit log.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::clients::{Clients, Seen};
use fleet_tests::history::{self, Operation};
use fleet_tests::lab::{ELECTION_MS, Lab, tell};
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL, POLL_COMMAND, SOON};

use crate::controllers::{WORKER, same_chains, works};
use crate::soak::everything_acknowledged_is_recorded;

/// The folder with the programs of the previous version; without it they are this tree's own.
const PREVIOUS: &str = "FLEET_PREVIOUS";
/// The folder with the programs of the next one.
const NEXT: &str = "FLEET_NEXT";
const CLIENTS: u64 = 4;
const SEED: u64 = 7;
/// Changes that are answered in each mixture of versions.
const CHANGES: usize = 20;
/// Until a controller that must not start has ended.
const REFUSAL_MAX: Duration = Duration::from_secs(30);

/// A lab half-way between two versions.
struct Upgrade<'a> {
    lab: &'a Lab,
    clients: &'a Clients,
    previous: PathBuf,
    newest: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Version {
    Previous,
    Newest,
}

impl Upgrade<'_> {
    /// Stops one component and starts it again in this version.
    fn to(&self, version: Version, role: &str, id: &str) -> Result<()> {
        self.start(version, role, id)?;
        if role == "controller" { self.lab.controllers_agree(3, LATER) } else { Ok(()) }
    }

    fn start(&self, version: Version, role: &str, id: &str) -> Result<()> {
        self.lab.exchange_programs(match version {
            Version::Previous => &self.previous,
            Version::Newest => &self.newest,
        })?;
        self.lab.terminate(role, id)?;
        self.lab.restart(role, id)
    }

    fn leads(&self, id: &str) -> Result<()> {
        if self.lab.leader()? != id {
            self.lab.output(&["controller", "transfer-leadership", id])?;
        }
        wait::until(&format!("controller {id} leads"), LATER, POLL_COMMAND, || {
            Ok((self.lab.leader()? == id).then_some(()))
        })
    }

    /// Clients still get answers in this mixture of versions, and the job keeps running.
    fn serves(&self) -> Result<()> {
        self.clients.next_round();
        let since = self.clients.now();
        wait::until("clients get answers", LATER, POLL, || {
            Ok((self.clients.answered_since(since).0 >= CHANGES).then_some(()))
        })?;
        self.lab.controllers_agree(3, LATER)?;
        works(self.lab)
    }

    fn cluster_version(&self) -> Result<u64> {
        self.lab.json(&["status"])?["cluster_version"].as_u64().context("cluster_version")
    }

    /// What the newest one knows is waited for, and then the previous one cannot come back.
    fn all_are_new(&self, before: u64) -> Result<()> {
        let newest = u64::from(fleet_core::command::CLUSTER_VERSION_MAX) + 1;
        ensure!(before < newest, "the previous one is of cluster version {before} already");
        wait::until("the cluster version rises", LATER, POLL_COMMAND, || {
            Ok((self.cluster_version()? == newest).then_some(()))
        })?;
        self.lab.controllers_agree(3, LATER)?;
        self.start(Version::Previous, "controller", "3")?;
        let code = self.lab.exit_code("controller", "3", REFUSAL_MAX)?;
        ensure!(code != 0, "the previous version ended with {code}");
        let log = self.lab.dev_file()?.process("controller", "3")?.log.clone();
        let said = std::fs::read_to_string(log)?;
        ensure!(said.contains("install the newer fleet again"), "it does not say what to do");
        self.lab.exchange_programs(&self.newest)?;
        self.lab.restart("controller", "3")?;
        self.lab.controllers_agree(3, LATER)
    }
}

fn versions(upgrade: &Upgrade<'_>, steps: &mut Steps) -> Result<()> {
    use Version::{Newest, Previous};
    let before = upgrade.cluster_version()?;
    steps.step("the previous version alone", || {
        upgrade.leads("1")?;
        upgrade.serves()
    });
    steps.step("a new one follows previous ones", || {
        upgrade.to(Newest, "controller", "2")?;
        upgrade.serves()?;
        ensure!(upgrade.cluster_version()? == before, "it rose before all are new");
        Ok(())
    });
    steps.step("a new one leads previous ones", || {
        upgrade.leads("2")?;
        upgrade.serves()
    });
    steps.step("back to the previous version, on what the new one wrote", || {
        upgrade.leads("1")?;
        upgrade.to(Previous, "controller", "2")?;
        upgrade.leads("2")?;
        upgrade.serves()
    });
    steps.step("a previous one among new ones leads, then follows", || {
        upgrade.to(Newest, "controller", "1")?;
        upgrade.to(Newest, "controller", "3")?;
        upgrade.leads("2")?;
        upgrade.serves()?;
        upgrade.leads("3")?;
        upgrade.serves()
    });
    steps.step("a node's agent is new before all controllers are", || {
        upgrade.to(Newest, "agent", "titan01")?;
        upgrade.lab.node_in("titan01", "ready", LATER)?;
        upgrade.serves()
    });
    steps.step("all controllers are new, and none goes back any more", || {
        upgrade.to(Newest, "controller", "2")?;
        upgrade.all_are_new(before)?;
        upgrade.serves()
    });
    steps.step("the last agent", || {
        upgrade.to(Newest, "agent", "titan02")?;
        upgrade.lab.node_in("titan02", "ready", LATER)?;
        upgrade.serves()
    });
    Ok(())
}

#[test]
fn from_one_version_to_the_next() -> Result<()> {
    let Some(newest) = env::var_os(NEXT).map(PathBuf::from) else {
        tell("SKIPPED: from one version to the next: `make upgrade-test` builds that one");
        return Ok(());
    };
    let previous =
        env::var_os(PREVIOUS).map_or_else(programs::folder, |at| Ok(PathBuf::from(at)))?;
    let pace = (3, ELECTION_MS);
    let Some(mut lab) = Lab::start_of(&previous, pace, 2, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("the cluster was raised to version", "the test puts the previous one back");
    let mut steps = Steps::default();
    let mut seen = Seen::default();
    lab.controllers_agree(3, SOON)?;
    let job = lab.submit(&["-G", "1", "-J", "worker"], &["sh", "-c", WORKER])?;
    let node = lab.job_in(&job, "running", SOON)?["node"].clone();
    tell(&format!("the job runs on {node}"));
    {
        let clients = Clients::start(&lab, "titan01", CLIENTS, SEED)?;
        let upgrade = Upgrade { lab: &lab, clients: &clients, previous, newest };
        versions(&upgrade, &mut steps)?;
        steps.step("what clients saw has an order", || {
            seen = clients.finish()?;
            let operations: Vec<Operation> = seen.noted.iter().map(|n| n.operation).collect();
            tell(&format!("{} operations, refused {:?}", operations.len(), seen.refusals));
            ensure!(seen.problems.is_empty(), "{}", seen.problems.join("\n"));
            history::check(&operations)
        });
    }
    steps.step("all three have the same history, with all that was acknowledged, once", || {
        same_chains(&lab)?;
        everything_acknowledged_is_recorded(&lab, &seen.noted)
    });
    steps.step("the job never noticed, and new ones run", || {
        std::fs::write(lab.path("over"), "")?;
        let ended = lab.job_ended(&job, SOON)?;
        ensure!(ended["exit_code"] == 3 && ended["attempt"] == 1, "{ended}");
        lab.run(&["run", "-G", "1", "--", "sh", "-c", "exit 5"])?.ends(5)?;
        lab.gpus_free(4, SOON)
    });
    lab.conclude(steps)
}
