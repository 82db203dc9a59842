//! Three controllers under load, and faults one after another: what clients were answered must have an order, what was
//! acknowledged must be in the audit log once, and the job of the day must not notice.
//!
//! `make soak CYCLES=N SEED=S` runs it for longer, and prints its figures.

use std::collections::BTreeMap;
use std::env;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::clients::{Clients, Noted, Seen};
use fleet_tests::history::{self, Answer, Asked, Operation};
use fleet_tests::lab::{Lab, tell};
use fleet_tests::network::Network;
use fleet_tests::random::Random;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL, POLL_COMMAND, SOON};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::controllers::{WORKER, chain_of, same_chains, works};

/// Cycles and seed, where nobody asks for others.
const CYCLES: u64 = 10;
const SEED: u64 = 3;
/// How long the controllers wait for a silent leader: short, so that much happens.
const ELECTION_MS: u64 = 800;
/// Folders and numbers of the three; the first of the cluster, which no proxy stands before, is removed.
const CONTROLLERS: [(&str, &str); 3] = [("c2", "2"), ("c3", "3"), ("c4", "4")];
const CLIENTS: u64 = 6;
/// Changes that are answered before and after each fault.
const CHANGES: usize = 12;

/// What happens in one cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillLeader,
    KillAny,
    KillTwo,
    KillAll,
    /// Stopped for so many election timeouts.
    StopLeader(u32),
    /// Nobody hears it and it hears nobody.
    CutLeader,
    /// Nobody hears it.
    MuteLeader,
    /// It hears nobody.
    DeafLeader,
    CutFollower,
}

/// The first cycles; those after them are drawn from the same.
const FAULTS: [Fault; 11] = [
    Fault::KillLeader,
    Fault::StopLeader(1),
    Fault::CutLeader,
    Fault::KillTwo,
    Fault::StopLeader(2),
    Fault::MuteLeader,
    Fault::KillAll,
    Fault::DeafLeader,
    Fault::StopLeader(10),
    Fault::KillAny,
    Fault::CutFollower,
];

/// One cluster with its clients.
struct Soak<'a> {
    lab: &'a Lab,
    network: &'a Network,
    clients: &'a Clients,
    random: Random,
    /// From each blow against a leader to the first change begun after it that was answered.
    without_leader: Vec<Duration>,
}

impl Soak<'_> {
    fn draw(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap_or(0)
    }

    fn cycle(&mut self, number: u64) -> Result<()> {
        let at = usize::try_from(number)?;
        let fault = match FAULTS.get(at) {
            Some(fault) => *fault,
            None => FAULTS[self.draw(FAULTS.len())],
        };
        self.cycle_with(fault).with_context(|| format!("cycle {number}, {fault:?}"))
    }

    fn cycle_with(&mut self, fault: Fault) -> Result<()> {
        self.clients.next_round();
        self.changes_since(self.clients.now())?;
        let leader = self.lab.leader()?;
        let mut others: Vec<&str> = CONTROLLERS.map(|(_, id)| id).to_vec();
        others.retain(|id| *id != leader);
        let other = others[self.draw(others.len())].to_owned();
        let struck = self.clients.now();
        match fault {
            Fault::KillLeader => self.kill(&[&leader])?,
            Fault::KillAny => {
                let any = CONTROLLERS[self.draw(CONTROLLERS.len())].1;
                self.kill(&[any])?;
            }
            Fault::KillTwo => self.kill(&[&leader, &other])?,
            Fault::KillAll => self.kill(&CONTROLLERS.map(|(_, id)| id))?,
            Fault::StopLeader(elections) => {
                self.lab.signal("controller", &leader, Signal::SIGSTOP)?;
                thread::sleep(elections * Duration::from_millis(ELECTION_MS));
                self.lab.signal("controller", &leader, Signal::SIGCONT)?;
            }
            Fault::CutLeader => self.cut(&leader, true, true)?,
            Fault::MuteLeader => self.cut(&leader, true, false)?,
            Fault::DeafLeader => self.cut(&leader, false, true)?,
            Fault::CutFollower => self.cut(&other, true, true)?,
        }
        let first = self.changes_since(struck)?;
        if !matches!(fault, Fault::KillAny | Fault::CutFollower) {
            self.without_leader.push(Duration::from_micros(first.saturating_sub(struck)));
        }
        // And again once everybody is there.
        self.changes_since(self.clients.now())?;
        works(self.lab)
    }

    /// Kills them at once, and starts them again one after another.
    fn kill(&mut self, ids: &[&str]) -> Result<()> {
        for id in ids {
            self.lab.signal("controller", id, Signal::SIGKILL)?;
        }
        for id in ids {
            // Gone already.
            self.lab.has_ended("controller", id, SOON)?;
            thread::sleep(Duration::from_millis(self.random.below(2 * ELECTION_MS)));
            self.lab.restart("controller", id)?;
        }
        Ok(())
    }

    /// Cuts one off for up to four election timeouts.
    fn cut(&mut self, id: &str, outwards: bool, inwards: bool) -> Result<()> {
        let name = |of: &str| CONTROLLERS.iter().find(|(_, id)| *id == of).map(|(name, _)| *name);
        let own = name(id).with_context(|| format!("controller {id} is none of the three"))?;
        for (other, _) in CONTROLLERS.iter().filter(|(name, _)| *name != own) {
            if outwards {
                self.network.cut(own, other);
            }
            if inwards {
                self.network.cut(other, own);
            }
        }
        thread::sleep(Duration::from_millis(2 * ELECTION_MS + self.random.below(2 * ELECTION_MS)));
        self.network.heal();
        Ok(())
    }

    /// Waits until changes that were begun after `since` were answered. Gives when the first was.
    fn changes_since(&self, since: u64) -> Result<u64> {
        let mut first = None;
        wait::until("clients get answers", LATER, POLL, || {
            let (count, moment) = self.clients.answered_since(since);
            first = moment;
            Ok((count >= CHANGES).then_some(()))
        })?;
        first.context("no change was answered")
    }
}

/// A number from the environment.
fn asked(name: &str, usual: u64) -> Result<u64> {
    match env::var(name) {
        Err(_) => Ok(usual),
        Ok(text) => text.parse().with_context(|| format!("{name}: {text:?} is not a number")),
    }
}

/// Three controllers, each behind a gate, in place of the one that began.
fn three_behind_gates(lab: &Lab, network: &Network) -> Result<()> {
    for (name, id) in CONTROLLERS {
        let given = lab.add_controller_behind(name, |port| network.gate(name, port))?;
        ensure!(given == id, "{name} is controller {given}");
    }
    lab.controllers_agree(4, LATER)?;
    lab.know_all_controllers("1")?;
    lab.output(&["controller", "remove", "1", "--yes"])?;
    lab.has_ended("controller", "1", LATER)?;
    wait::until("the three are among themselves", LATER, POLL_COMMAND, || {
        let found = lab.controllers()?;
        Ok((found.len() == 3 && found.iter().any(|c| c.role == "leader")).then_some(()))
    })?;
    lab.know_all_controllers(CONTROLLERS[0].1)
}

/// Each change that was acknowledged is in the audit log, once, and none is twice.
pub(crate) fn everything_acknowledged_is_recorded(lab: &Lab, noted: &[Noted]) -> Result<()> {
    let lines = chain_of(lab, &lab.leader()?)?;
    let mut recorded: BTreeMap<String, u32> = BTreeMap::new();
    for line in &lines {
        let record: Value = serde_json::from_str(line)?;
        if let Some(request) = record["request"].as_str().filter(|_| record["refused"].is_null()) {
            *recorded.entry(request.to_owned()).or_default() += 1;
        }
    }
    for Noted { operation, request } in noted {
        let Some(request) = request else { continue };
        let count = recorded.get(request).copied().unwrap_or(0);
        let right = match operation.answer {
            Answer::Done => count == 1,
            Answer::Refused => count == 0,
            Answer::Unknown => count <= 1,
            Answer::Holder(_) => false,
        };
        ensure!(right, "{operation:?} is recorded {count} times, as {request}");
    }
    Ok(())
}

fn percentile(sorted: &[Duration], of_hundred: usize) -> Duration {
    let at = (sorted.len() * of_hundred).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

fn tell_figures(cycles: u64, seen: &Seen, without_leader: &mut [Duration], wrong: usize) {
    let Seen { noted, refusals, .. } = seen;
    let unknown = noted.iter().filter(|noted| noted.operation.answer == Answer::Unknown).count();
    let changes = noted.iter().filter(|noted| noted.operation.asked != Asked::Read).count();
    without_leader.sort();
    tell(&format!(
        "soak: {cycles} cycles, {} operations ({changes} changes), {unknown} unknown, refused \
         {refusals:?}; without leader p50 {:.2} s, p99 {:.2} s; {wrong} violations",
        noted.len(),
        percentile(without_leader, 50).as_secs_f64(),
        percentile(without_leader, 99).as_secs_f64(),
    ));
}

#[test]
fn no_fault_breaks_what_was_acknowledged() -> Result<()> {
    let (cycles, seed) = (asked("SOAK_CYCLES", CYCLES)?, asked("SOAK_SEED", SEED)?);
    let Some(mut lab) = Lab::start_at_pace((1, ELECTION_MS), 2, "v100-pcie:2")? else {
        return Ok(());
    };
    lab.controller_goes_away();
    lab.expect_in_logs("was removed from", "the first controller is");
    lab.expect_in_logs("it waits for the controller's next answer", "a stopped controller is late");
    lab.expect_in_logs("an outdated document is ignored", "a deposed leader may not know it yet");
    let network = Network::new(lab.state());
    let mut steps = Steps::default();
    steps.step("three controllers, each behind a gate", || three_behind_gates(&lab, &network));
    let (mut job, mut seen) = (String::new(), Seen::default());
    let mut without_leader = Vec::new();
    if steps.all_held() {
        steps.step(&format!("{cycles} cycles from seed {seed}"), || {
            job = lab.submit(&["-G", "1", "-J", "worker"], &["sh", "-c", WORKER])?;
            lab.job_in(&job, "running", SOON)?;
            let clients = Clients::start(&lab, "titan01", CLIENTS, seed)?;
            let random = Random::new(seed);
            let (lab, network, clients_of) = (&lab, &network, &clients);
            let mut soak =
                Soak { lab, network, clients: clients_of, random, without_leader: Vec::new() };
            let done = (0..cycles).try_for_each(|number| soak.cycle(number));
            network.heal();
            without_leader = soak.without_leader;
            seen = clients.finish()?;
            done
        });
        steps.step("what clients saw has an order", || {
            let operations: Vec<Operation> =
                seen.noted.iter().map(|noted| noted.operation).collect();
            let found = history::check(&operations);
            let wrong = seen.problems.len() + usize::from(found.is_err());
            tell_figures(cycles, &seen, &mut without_leader, wrong);
            found?;
            if !seen.problems.is_empty() {
                bail!("refused {:?}\n{}", seen.refusals, seen.problems.join("\n"));
            }
            Ok(())
        });
        steps.step("all three have the same history", || same_chains(&lab));
        steps.step("it holds what was acknowledged, once", || {
            everything_acknowledged_is_recorded(&lab, &seen.noted)
        });
        steps.step("the job never noticed", || {
            let found = lab.job(&job)?;
            ensure!(found["state"] == "running" && found["attempt"] == 1, "{found}");
            std::fs::write(lab.path("over"), "")?;
            let ended = lab.job_ended(&job, SOON)?;
            ensure!(ended["exit_code"] == 3 && ended["attempt"] == 1, "{ended}");
            lab.gpus_free(4, SOON)
        });
    }
    lab.conclude(steps)
}
