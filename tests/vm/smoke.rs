//! From the packages to the first job and back to a machine without fleet, on one machine that is controller and node:
//! by the short way of docs/first-day.md, word for word.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab;
use crate::machine::Machine;
use crate::page::Page;
use crate::short_way::ShortWay;
use crate::site::Site;
use crate::under_a_job::{self, COUNTING, PROCESSES};

/// What is on the machine, but for what dpkg and systemd note about themselves and what users wrote.
const FILES: &str = "find / -xdev ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/*' \
    ! -path '/var/lib/apt/*' ! -path '/tmp/*' ! -path '/var/tmp/*' ! -path '/root/*' ! -path '/home/*' \
    ! -path '/var/lib/systemd/*' | LC_ALL=C sort";
/// Users stay, as Debian's policy has it; the accounts' backup files come with them.
const ALLOWED_LEFT: &str = "grep -v -E '^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$'";

/// Its code says that no other start would mend it, so systemd tries none.
const GIVES_UP: &str =
    "systemctl restart fleet-controller 2>&1; systemctl is-failed -q fleet-controller";

/// ssh from the machine to itself, as people who log in to it have it.
const KEYS: &str = "mkdir -p -m 700 .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && \
    cp .ssh/id_ed25519.pub .ssh/authorized_keys && echo 'StrictHostKeyChecking accept-new' > .ssh/config";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    there_and_back(site, steps, |_, _| Ok(()))
}

/// The whole way, with what only such machines have to show once there are jobs, people and orders.
pub(crate) fn there_and_back(
    site: &Site,
    steps: &mut Steps,
    between: fn(&Machine, &mut Steps) -> Result<()>,
) -> Result<()> {
    let page = Page::operations()?;
    let way = ShortWay::of(&page)?;
    let machine = &*site.boot("titan01")?;
    machine.ok(&format!("{FILES} > /root/before"))?;
    steps.step("install to first job by following docs/first-day.md word for word", || {
        install(machine, &way)?;
        let told = machine.ok_as("ada", &way.people[0])?;
        ensure!(told.starts_with("GPU-") && told.lines().count() == 1, "the first job: {told}");
        Ok(())
    });
    if !steps.all_held() {
        return Ok(());
    }
    steps.step("a job of ada's can open its GPU and no other, and says how it ended", || {
        first_job(machine)
    });
    steps
        .step("enforcement, fleet reserve and ssh by the same words, in under 15 commands", || {
            held_to_reservations(machine, &way)
        });
    between(machine, steps)?;
    under_a_job::run(machine, &page, steps);
    let purged = match machine.keeps_people_out() {
        true => "purge: ends what runs, and bob, who was kept out, opens every GPU",
        false => "purge: ends what runs",
    };
    steps.step(purged, || purge(machine, &page));
    steps.step("back to a machine without fleet by the same words: nothing is left", || {
        back(machine, &way)
    });
    Ok(())
}

/// Controller and node, on one machine.
fn install(machine: &Machine, way: &ShortWay) -> Result<()> {
    let (first, rest) = way.controller.split_first().context("the packages come first")?;
    let said = lab::install_by(machine, first)?;
    ensure!(said.contains("fleet-controller init"), "the next command is not said: {said}");
    nothing_runs(machine, "fleet*.service")?;
    for line in rest {
        machine.ok(line)?;
    }
    for line in &way.node {
        let said = lab::install_by(machine, line)?;
        ensure!(said.contains("fleet node token create"), "the next command is not said: {said}");
    }
    nothing_runs(machine, "fleet-agent.service")?;
    let create = way.token.first().context("the page says how a token is made")?;
    lab::join_by(machine, machine, create, &way.join)
}

/// The installation started nothing.
fn nothing_runs(machine: &Machine, units: &str) -> Result<()> {
    let state = "--no-legend --state=active,activating,failed";
    let started = machine.ok(&format!("systemctl list-units {state} '{units}'"))?;
    ensure!(started.is_empty(), "started by the installation: {started}");
    Ok(())
}

fn first_job(machine: &Machine) -> Result<()> {
    ensure!(machine.run_as("ada", "fleet run true")?.code() == 0, "fleet run true");
    ensure!(machine.run_as("ada", "fleet run -- sh -c 'exit 3'")?.code() == 3, "exit 3");
    // No driver is behind the nodes: the one that may be opened says ENXIO. The others are not there.
    let open = "for n in 0 1 2 3; do cat /dev/nvidia$n; done 2>&1; id -un";
    let ran = machine.run_as("ada", &format!("fleet run -G 1 -- sh -c '{open}'"))?;
    let said = ran.ok()?;
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    ensure!(
        count("No such device or address") == 1 && count("No such file or directory") == 3,
        "a job with one GPU of four saw: {said}"
    );
    ensure!(said.lines().last() == Some("ada"), "the job ran as somebody else: {said}");
    Ok(())
}

fn held_to_reservations(machine: &Machine, way: &ShortWay) -> Result<()> {
    let [_, enforce, reserve, ssh] = &way.people;
    let before = lab::opened(machine, "bob")?;
    ensure!(before == (4, 0), "observed, but not held: {before:?}");
    machine.ok_as("ada", enforce)?;
    lab::until_enforced(machine, "titan01", "on")?;
    machine.ok_as("ada", KEYS)?;
    let id = machine.ok_as("ada", reserve)?;
    let active = format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"active\"'");
    machine.until_as("ada", "the reservation is active", &active)?;
    // A shell over there reads what is typed.
    let typed = "for n in 0 1 2 3; do cat /dev/nvidia$n; done 2>&1; echo $CUDA_VISIBLE_DEVICES";
    let said = machine.ok_as("ada", &format!("echo '{typed}' | {ssh}"))?;
    let found = lab::answers(&said);
    ensure!(found == lab::reserved(machine, 1), "ada by `{ssh}`: {found:?}: {said}");
    ensure!(said.lines().last().is_some_and(|last| last.starts_with("GPU-")), "{said}");
    for (user, gpus) in [("bob", 0), ("ada", 1)] {
        let (found, expected) = (lab::opened(machine, user)?, lab::reserved(machine, gpus));
        ensure!(found == expected, "{user}: {found:?}, not {expected:?}");
    }
    machine.ok_as("ada", &format!("fleet release {id}"))?;
    let ended = format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"ended\"'");
    machine.until_as("ada", "the reservation has ended", &ended)?;
    let found = lab::opened(machine, "ada")?;
    ensure!(found == lab::reserved(machine, 0), "ada after the end: {found:?}");
    Ok(())
}

/// The node's package goes while a job runs and people are kept out.
fn purge(machine: &Machine, page: &Page) -> Result<()> {
    let id = lab::submit(machine, "-G 1", COUNTING)?;
    lab::job_in(machine, &id, "running")?;
    let before = lab::opened(machine, "bob")?;
    ensure!(before == lab::reserved(machine, 0), "bob before: {before:?}");
    let steps = page.commands("Take a node away", 0)?;
    let purge = steps.iter().find(|line| line.starts_with("apt purge"));
    machine.ok(purge.context("the page says how a node is left")?)?;
    let gone = machine.run(PROCESSES)?;
    ensure!(gone.code() == 1, "the job runs on: {}", gone.stdout);
    lab::nothing_acts(machine)?;
    let after = lab::opened(machine, "bob")?;
    ensure!(after == (4, 0), "bob afterwards: {after:?}");
    Ok(())
}

/// By a machine whose controller had given up, which leaves its unit listed as failed.
fn back(machine: &Machine, way: &ShortWay) -> Result<()> {
    machine.ok("echo broken > /etc/fleet/controller.toml")?;
    machine.until("the controller gives up", GIVES_UP)?;
    for line in &way.back {
        machine.ok(&format!("{line} 2>&1"))?;
    }
    let left = machine.ok(&format!(
        "{FILES} > /root/after; LC_ALL=C comm -13 /root/before /root/after | {ALLOWED_LEFT}; true"
    ))?;
    ensure!(left.is_empty(), "left behind: {left}");
    let gone = machine.ok("LC_ALL=C comm -23 /root/before /root/after")?;
    ensure!(gone.is_empty(), "taken away though not ours: {gone}");
    lab::nothing_acts(machine)?;
    for (what, line) in [
        ("in /run", "find /run /sys/fs/cgroup -path '*fleet*' 2>/dev/null; true"),
        ("units", "systemctl list-units --all --no-legend '*fleet*'; true"),
        // The guests' network is called so, and not ours.
        (
            "in what systemd notes",
            "find /var/lib/systemd /etc/systemd -name '*fleet*' ! -name '*.network'; true",
        ),
    ] {
        let left = machine.ok(line)?;
        ensure!(left.is_empty(), "{what}: {left}");
    }
    Ok(())
}
