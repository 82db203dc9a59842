//! A machine with cgroup v1 alone: the way of `smoke`, and what the agent does about people where no kernel can keep them
//! out of GPUs.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab;
use crate::machine::Machine;
use crate::site::Site;
use crate::smoke;

/// Somebody else's work, at a terminal, and the file by which the pretended driver sees it on a GPU.
const WORK: &str = "tmux new-session -d -s work 'echo $$ > running; exec sleep 10000'";
const SEEN: &str = "test -s ~bob/running && cp ~bob/running /run/uses-3";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    smoke::there_and_back(site, steps, people)
}

fn people(machine: &Machine, steps: &mut Steps) -> Result<()> {
    steps.step("what stands in the gate's place is said, and fails no unit", || said(machine));
    steps.step("who uses a GPU without a reservation is seen, told and left alone", || {
        warned(machine)
    });
    steps.step("and ended, where the node's configuration says so", || stopped(machine));
    Ok(())
}

fn said(machine: &Machine) -> Result<()> {
    let shown = machine.ok("fleet-agent gate show")?;
    ensure!(shown.starts_with("off: ") && shown.contains("cgroup v1 alone"), "{shown}");
    machine.ok("systemctl restart fleet-agent")?;
    lab::until_enforced(machine, "titan01", "on")?;
    let failed = machine.ok("systemctl list-units --no-legend --state=failed 'fleet*'; true")?;
    ensure!(failed.is_empty(), "{failed}");
    let ends = machine.ok("systemctl show -p Result --value fleet-gate.service")?;
    ensure!(ends == "success", "the gate's unit at boot: {ends}");
    let node = machine.ok_as("ada", "fleet node list")?;
    ensure!(node.contains("on (warn and stop)"), "{node}");
    let doctor = machine.ok("fleet doctor -o json; true")?;
    ensure!(doctor.contains("cgroup v1 alone"), "{doctor}");
    Ok(())
}

fn warned(machine: &Machine) -> Result<()> {
    machine.ok_as("bob", WORK)?;
    machine.until("his work is on a GPU", SEEN)?;
    let seen = "fleet gpu list -o wide | grep -q 'bob sleep.*without a lease'";
    machine.until_as("ada", "his work is seen", seen)?;
    let told = lab::on_terminal("work", "titan01:3 is held by nobody.*fleet reserve --adopt all");
    machine.until_as("bob", "he reads how to keep it", &told)?;
    machine.ok_as("bob", "kill -0 $(cat running)").context("nobody is to end it").map(drop)
}

fn stopped(machine: &Machine) -> Result<()> {
    machine.ok("sed -i '/^\\[enforce\\]/a foreign = \"stop\"' /etc/fleet/agent.toml")?;
    machine.ok("systemctl restart fleet-agent")?;
    machine.until("his work is ended", "! kill -0 $(cat ~bob/running) && rm /run/uses-3")?;
    let quiet = "! fleet gpu list -o wide | grep -q 'without a lease'";
    machine.until_as("ada", "nobody is without a lease", quiet)?;
    machine.ok("sed -i '/^foreign = \"stop\"/d' /etc/fleet/agent.toml").map(drop)
}
