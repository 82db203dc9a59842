//! One job that keeps running while its agent meets all planned events, and more. Part of the case `smoke`.

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::steps::Steps;

use crate::debs::HIGHER;
use crate::lab;
use crate::machine::Machine;
use crate::page::Page;

/// A job that counts until the file `stop` exists and then prints the count. Exit code 7 shows that it ended by itself.
pub(crate) const COUNTING: &str =
    "i=0; while [ ! -e stop ]; do i=$((i+1)); echo line $i; sleep 0.5; done; echo end $i; exit 7";
/// Whether it runs.
pub(crate) const PROCESSES: &str = "pgrep -f '^sh -c i=0; while'";

/// On a machine that is controller and node and holds bob to reservations, of which he has none.
pub(crate) fn run(machine: &Machine, page: &Page, steps: &mut Steps) {
    let mut job = None;
    steps.step("job with filter: in a unit of its own in fleet.slice, one GPU opens", || {
        job = Some(Job::begin(machine)?);
        Ok(())
    });
    let Some(job) = &job else { return };
    steps.step("a shutdown ends the job before its home, the network and names", || {
        job.is_in_order()
    });
    steps.step("agent restart under a job", || job.outlives("systemctl restart fleet-agent"));
    steps.step("agent crash (kill -9) under a job", || {
        job.outlives("kill -KILL $(systemctl show -p MainPID --value fleet-agent)")
    });
    steps.step("daemon-reload under a job", || job.goes_on_after("systemctl daemon-reload"));
    steps.step("daemon-reexec under a job", || job.goes_on_after("systemctl daemon-reexec"));
    let upgrade = match machine.keeps_people_out() {
        true => "package upgrade under a job, and bob is kept out all the while",
        false => "package upgrade under a job",
    };
    steps.step(upgrade, || job.is_upgraded(page));
    steps.step("the job under all of that: exit code and logs are complete", || job.ends());
}

struct Job<'a> {
    machine: &'a Machine,
    id: String,
    unit: String,
    process: String,
}

impl<'a> Job<'a> {
    fn begin(machine: &'a Machine) -> Result<Self> {
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
        let job = Self { machine, id, unit, process: job_process(machine)? };
        job.filter_holds()?;
        Ok(job)
    }

    /// Its unit comes after what it saves through, and a shutdown goes the other way round. How many tasks it may have is for
    /// the job's own group to say.
    fn is_in_order(&self) -> Result<()> {
        let Self { machine, unit, .. } = self;
        let shown = machine.ok(&format!("systemctl show -p After -p TasksMax {unit}"))?;
        let after = shown.lines().find_map(|line| line.strip_prefix("After="));
        let after: Vec<&str> = after.context("it says after what")?.split(' ').collect();
        for target in ["remote-fs.target", "network.target", "nss-user-lookup.target"] {
            ensure!(after.contains(&target), "{unit} is not after {target}: {shown}");
        }
        ensure!(shown.lines().any(|line| line == "TasksMax=infinity"), "{unit}: {shown}");
        Ok(())
    }

    /// Checks the device filter of the job's cgroup, as a user that nothing else keeps out and who sees all GPU nodes:
    /// root's shell moves into the cgroup for a moment.
    fn filter_holds(&self) -> Result<()> {
        let pid = self.process.split(' ').next().context("a pid comes first")?;
        // With cgroup v1 alone it is the devices controller's.
        let group = match self.machine.keeps_people_out() {
            true => "$(findmnt -n -f -t cgroup2 -o TARGET)$(sed -n 's/^0:://p'",
            false => "/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p'",
        };
        let line = format!(
            "group={group} /proc/{pid}/cgroup) && \
             echo $$ > $group/cgroup.procs && for n in 0 1 2 3; do cat /dev/nvidia$n; done 2>&1; true"
        );
        let said = self.machine.ok(&line)?;
        let found = lab::answers(&said);
        ensure!(found == (1, 3), "in the job's cgroup {found:?}, where one GPU is to open: {said}");
        Ok(())
    }

    /// The agent that is there afterwards is another one.
    fn outlives(&self, blow: &str) -> Result<()> {
        let agent = main_pid(self.machine)?;
        self.machine.ok(blow)?;
        let other = format!(
            "test $(systemctl show -p MainPID --value fleet-agent) != {agent} && \
             systemctl is-active fleet-agent && systemctl is-active fleet-controller"
        );
        self.machine.until(&format!("there is another agent after `{blow}`"), &other)?;
        self.goes_on(blow)
    }

    /// The agent that is there afterwards is the same.
    fn goes_on_after(&self, blow: &str) -> Result<()> {
        let agent = main_pid(self.machine)?;
        self.machine.ok(blow)?;
        self.machine.until("systemd answers", "systemctl is-active fleet-agent")?;
        ensure!(main_pid(self.machine)? == agent, "another agent after `{blow}`");
        self.goes_on(blow)
    }

    fn goes_on(&self, blow: &str) -> Result<()> {
        ensure!(job_process(self.machine)? == self.process, "another process after `{blow}`");
        self.filter_holds()?;
        let known = format!("fleet ps | grep {}", self.id);
        self.machine.until_as("ada", "the job is known", &known).map(drop)
    }

    fn is_upgraded(&self, page: &Page) -> Result<()> {
        lab::begin_trying(self.machine, "bob", "/dev/nvidia[0-3]")?;
        let upgrade = page.commands("Upgrade", 0)?.join(" && ");
        self.outlives(&format!("cd {} && {upgrade}", lab::NEXT_DEBS))?;
        let version = self.machine.ok("dpkg-query -W -f '${Version}' fleet-agent")?;
        ensure!(version.ends_with(HIGHER), "not upgraded: {version}");
        let found = lab::opened(self.machine, "bob")?;
        ensure!(found == lab::reserved(self.machine, 0), "bob after the upgrade: {found:?}");
        let tried = lab::tried(self.machine, "bob")?;
        let always = match self.machine.keeps_people_out() {
            true => "Operation not permitted",
            false => "No such device or address",
        };
        ensure!(tried == [always], "bob during the upgrade: {tried:?}");
        Ok(())
    }

    fn ends(&self) -> Result<()> {
        let Self { machine, id, unit, .. } = self;
        machine.ok_as("ada", "touch stop")?;
        let job = lab::job_in(machine, id, "failed")?;
        ensure!(job["exit_code"] == 7 && job["attempt"] == 1, "{job}");
        let said = machine.ok_as("ada", &format!("rm stop; fleet logs {id}"))?;
        ensure!(is_whole(&said), "not whole: {said}");
        machine.until("its unit is gone", &format!("! systemctl is-active {unit}")).map(drop)
    }
}

/// Whether this is all that [`COUNTING`] said. How much that is says only its last line, so that a lost end is seen too.
fn is_whole(said: &str) -> bool {
    let last = said.lines().last().and_then(|last| last.strip_prefix("end "));
    let Some(count) = last.and_then(|count| count.parse::<u32>().ok()) else { return false };
    let expected = (1..=count).map(|n| format!("line {n}")).chain([format!("end {count}")]);
    count > 3 && expected.eq(said.lines())
}

/// The one unit of a job there is.
fn unit_of_the_job(machine: &Machine) -> Result<String> {
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
fn job_process(machine: &Machine) -> Result<String> {
    let line = format!("{PROCESSES} | head -n 1 | xargs -I PID cut -d' ' -f1,22 /proc/PID/stat");
    let found = machine.ok(&line)?;
    ensure!(!found.is_empty(), "the job's process is gone");
    Ok(found)
}

fn main_pid(machine: &Machine) -> Result<u32> {
    let pid = machine.ok("systemctl show -p MainPID --value fleet-agent")?;
    pid.parse().with_context(|| format!("the agent's pid: {pid:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_lost_a_line_anywhere_is_not_whole() {
        let whole = ["line 1", "line 2", "line 3", "line 4", "end 4"];
        assert!(is_whole(&whole.join("\n")));
        for lost in 0..whole.len() {
            let mut lines = whole.to_vec();
            lines.remove(lost);
            assert!(!is_whole(&lines.join("\n")), "without {}", whole[lost]);
        }
        assert!(!is_whole("line 2\nline 1\nline 3\nline 4\nend 4"));
        assert!(!is_whole(""));
    }
}
