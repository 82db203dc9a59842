//! From the packages to the first job and back to a machine without fleet, on one machine that is controller and node.

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::steps::Steps;

use crate::debs::HIGHER;
use crate::lab;
use crate::machine::Machine;
use crate::page::Page;
use crate::site::Site;

/// A job that counts until it is told to stop, and says in its exit code that it ended by itself.
const COUNTING: &str =
    "i=0; while [ ! -e stop ]; do i=$((i+1)); echo line $i; sleep 0.5; done; exit 7";
/// What is on the machine, but for what dpkg and systemd note about themselves and what users wrote.
const FILES: &str = "find / -xdev ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/*' \
    ! -path '/var/lib/apt/*' ! -path '/tmp/*' ! -path '/var/tmp/*' ! -path '/root/*' ! -path '/home/*' \
    ! -path '/var/lib/systemd/*' | LC_ALL=C sort";
/// Users stay, as Debian's policy has it; the accounts' backup files come with them.
const ALLOWED_LEFT: &str = "grep -v -E '^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$'";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let machine = &*site.boot("titan01")?;
    machine.ok(&format!("{FILES} > /root/before"))?;
    steps.step("a controller by the words of the page", || {
        let said = lab::install(machine, &page, "controller")?;
        ensure!(said.contains("fleet-controller init"), "the next command is not said: {said}");
        nothing_runs(machine, "fleet*.service")?;
        lab::begin_controller(machine, &page)
    });
    steps.step("a node by the words of the page", || {
        let said = lab::install(machine, &page, "GPU node")?;
        ensure!(said.contains("fleet node token create"), "the next command is not said: {said}");
        nothing_runs(machine, "fleet-agent.service")?;
        lab::join(machine, machine, &page)
    });
    if !steps.all_held() {
        return Ok(());
    }
    steps.step("ada, who logs in by ssh, runs a job that can open its GPU and no other", || {
        first_job(machine)
    });
    steps.step(
        "held to reservations, bob opens no GPU by ssh, and ada the one she reserved",
        || held_to_reservations(machine),
    );
    steps.step("a job is in a unit of its own in fleet.slice, and outlives its agent", || {
        outlives(machine, &page)
    });
    steps.step("a purge ends what runs and leaves nothing", || purge(machine, &page));
    Ok(())
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

fn held_to_reservations(machine: &Machine) -> Result<()> {
    let before = lab::opened(machine, "bob")?;
    ensure!(before == (4, 0), "observed, but not held: {before:?}");
    lab::enforce(machine, "titan01", "on")?;
    let id = machine.ok_as("ada", "fleet reserve -G 1 -t 1h")?;
    let active = format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"active\"'");
    machine.until_as("ada", "the reservation is active", &active)?;
    for (user, expected) in [("bob", (0, 4)), ("ada", (1, 3))] {
        let found = lab::opened(machine, user)?;
        ensure!(found == expected, "{user}: {found:?}, not {expected:?}");
    }
    machine.ok_as("ada", &format!("fleet release {id}"))?;
    machine.until_as(
        "ada",
        "the GPU is closed again",
        "! cat /dev/nvidia[0-3] 2>&1 | grep -q address",
    )?;
    Ok(())
}

fn outlives(machine: &Machine, page: &Page) -> Result<()> {
    let id = lab::submit(machine, "-G 1", COUNTING)?;
    lab::job_in(machine, &id, "running")?;
    let unit = unit_of_the_job(machine)?;
    let state =
        machine.ok(&format!("systemctl show -p Slice -p ActiveState -p Delegate {unit}"))?;
    for line in ["Slice=fleet.slice", "ActiveState=active", "Delegate=yes"] {
        ensure!(state.lines().any(|said| said == line), "{unit}: no {line} in {state}");
    }
    let tree = machine.ok("systemd-cgls --no-pager -l -u fleet.slice")?;
    ensure!(tree.contains(&unit) && tree.contains("while [ ! -e stop ]"), "{tree}");
    let before = job_process(machine)?;
    let upgrade = page.commands("Upgrade", 0)?.join(" && ");
    for (blow, another) in [
        ("systemctl restart fleet-agent".to_owned(), true),
        ("kill -KILL $(systemctl show -p MainPID --value fleet-agent)".to_owned(), true),
        ("systemctl daemon-reload".to_owned(), false),
        (format!("cd {} && {upgrade}", lab::NEXT_DEBS), true),
    ] {
        let agent = main_pid(machine)?;
        machine.ok(&blow)?;
        if another {
            let other = format!(
                "test $(systemctl show -p MainPID --value fleet-agent) != {agent} && \
                 systemctl is-active fleet-agent fleet-controller"
            );
            machine.until(&format!("there is another agent after `{blow}`"), &other)?;
        }
        ensure!(job_process(machine)? == before, "another process after `{blow}`");
        machine.until_as("ada", "the job is known", &format!("fleet ps | grep {id}"))?;
    }
    machine.ok_as("ada", "touch stop")?;
    let job = lab::job_in(machine, &id, "failed")?;
    ensure!(job["exit_code"] == 7 && job["attempt"] == 1, "{job}");
    let version = machine.ok("dpkg-query -W -f '${Version}' fleet-agent")?;
    ensure!(version.ends_with(HIGHER), "not upgraded: {version}");
    let lines = machine.ok_as("ada", &format!("rm stop; fleet logs {id}"))?;
    let expected: Vec<String> = (1..=lines.lines().count()).map(|n| format!("line {n}")).collect();
    ensure!(lines.lines().eq(expected.iter()) && expected.len() > 3, "not whole: {lines}");
    machine.until("its unit is gone", &format!("! systemctl is-active {unit}"))?;
    Ok(())
}

/// The one unit of a job there is.
pub(crate) fn unit_of_the_job(machine: &Machine) -> Result<String> {
    let units =
        machine.ok("systemctl list-units --no-legend --plain 'fleet-*.service' | cut -d' ' -f1")?;
    let of_jobs = |name: &&str| !["fleet-agent.service", "fleet-controller.service"].contains(name);
    let units: Vec<&str> = units.lines().filter(of_jobs).collect();
    match units[..] {
        [unit] => Ok(unit.to_owned()),
        _ => bail!("units of jobs: {units:?}"),
    }
}

/// The counting shell: its pid and when it was started.
pub(crate) fn job_process(machine: &Machine) -> Result<String> {
    let line =
        "pgrep -f '^sh -c i=0; while' | head -n 1 | xargs -I PID cut -d' ' -f1,22 /proc/PID/stat";
    let found = machine.ok(line)?;
    ensure!(!found.is_empty(), "the job's process is gone");
    Ok(found)
}

pub(crate) fn main_pid(machine: &Machine) -> Result<u32> {
    let pid = machine.ok("systemctl show -p MainPID --value fleet-agent")?;
    pid.parse().with_context(|| format!("the agent's pid: {pid:?}"))
}

fn purge(machine: &Machine, page: &Page) -> Result<()> {
    let id = lab::submit(machine, "-G 1", COUNTING)?;
    lab::job_in(machine, &id, "running")?;
    let steps = page.commands("Take a node away", 0)?;
    let purge = steps.iter().find(|line| line.starts_with("apt purge"));
    machine.ok(purge.context("the page says how a node is left")?)?;
    let gone = machine.run("pgrep -f '^sh -c i=0; while'")?;
    ensure!(gone.code() == 1, "the job runs on: {}", gone.stdout);
    // apt does not know by name what came from a file and is gone.
    machine.ok("apt purge $(dpkg-query -W -f '${Package} ' 'fleet*') 2>&1")?;
    let left = machine.ok(&format!(
        "{FILES} > /root/after; LC_ALL=C comm -13 /root/before /root/after | {ALLOWED_LEFT}; true"
    ))?;
    ensure!(left.is_empty(), "left behind: {left}");
    let gone = machine.ok("LC_ALL=C comm -23 /root/before /root/after")?;
    ensure!(gone.is_empty(), "taken away though not ours: {gone}");
    for (what, line) in [
        ("in /run", "find /run /sys/fs/cgroup -path '*fleet*' 2>/dev/null; true"),
        ("processes", "ps -eo args | grep -i '[f]leet'; true"),
        ("mounts", "grep -i fleet /proc/self/mountinfo; true"),
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
