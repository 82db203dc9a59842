//! A fleet on machines, set up as docs/install.md says: what is typed here stands on that page.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::image::GPUS;
use crate::machine::Machine;
use crate::page::Page;
use crate::site::Site;

/// Where the packages are on each machine, and the same again with a higher version.
const DEBS: &str = "/mnt/debs";
pub(crate) const NEXT_DEBS: &str = "/mnt/next";
/// What an admin of these machines has to say besides: that there is no real driver.
const PRETENDED: &str = r#"sed -i '/^\[gpu\]/a nvml_library = "/mnt/libfleet_fake_nvml.so"\nenvironment = { FLEET_FAKE_NVML = "/mnt/gpus-titan01.toml" }\nsample_interval_ms = 1000' /etc/fleet/agent.toml"#;

/// A controller and two nodes.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) fleet1: Arc<Machine>,
    pub(crate) titan01: Arc<Machine>,
    pub(crate) titan02: Arc<Machine>,
}

impl Lab {
    pub(crate) fn of_three(site: &Site, page: &Page) -> Result<Self> {
        let [fleet1, titan01, titan02] = site.boot_together(["fleet1", "titan01", "titan02"])?;
        install(&fleet1, page, "controller")?;
        begin_controller(&fleet1, page)?;
        for node in [&titan01, &titan02] {
            install(node, page, "GPU node")?;
            join(&fleet1, node, page)?;
        }
        Ok(Self { fleet1, titan01, titan02 })
    }

    /// Has an admin say how a node holds people to their reservations; returns when it is in force.
    pub(crate) fn enforce(&self, node: &str, mode: &str) -> Result<()> {
        enforce(&self.fleet1, node, mode)
    }
}

/// The same on one machine that is controller and node.
pub(crate) fn enforce(controller: &Machine, node: &str, mode: &str) -> Result<()> {
    controller.ok_as("ada", &format!("fleet node enforce {node} {mode} --yes"))?;
    until_enforced(controller, node, mode)
}

/// Waits until the node says that it does, or what it does in its place.
pub(crate) fn until_enforced(controller: &Machine, node: &str, mode: &str) -> Result<()> {
    let said = match (controller.keeps_people_out(), mode) {
        (false, "on") => "\"enforced_fallback\": *\"warn and stop\"".to_owned(),
        _ => format!("\"enforced\": *\"{mode}\""),
    };
    let held = format!("fleet node show {node} -o json | grep -q '{said}'");
    controller.until_as("ada", &format!("{node} is enforced {mode}"), &held).map(drop)
}

/// How many of the four GPUs' nodes answered with each error: no driver is behind them, so that one that may be opened
/// says ENXIO, and one that may not EPERM.
pub(crate) fn opened(machine: &Machine, user: &str) -> Result<(usize, usize)> {
    let open = "for n in 0 1 2 3; do cat /dev/nvidia$n; done 2>&1; true";
    Ok(answers(&machine.ok_as(user, open)?))
}

/// What [`opened`] is for somebody who has `gpus` of the four reserved, on a node that is enforced.
pub(crate) fn reserved(machine: &Machine, gpus: usize) -> (usize, usize) {
    let all = GPUS as usize;
    match machine.keeps_people_out() {
        true => (gpus, all - gpus),
        false => (all, 0),
    }
}

/// How many of the nodes said ENXIO, and how many EPERM.
pub(crate) fn answers(said: &str) -> (usize, usize) {
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    (count("No such device or address"), count("Operation not permitted"))
}

/// A line that tries such nodes of GPUs again and again and writes down what came of it, until that is [`tried`]. It
/// can stand between single quotes.
pub(crate) fn trying(gpus: &str) -> String {
    format!("until [ -e enough ]; do cat {gpus} 2>&1 | sed \"s/.*: //\" >> tries; sleep 1; done")
}

/// Has a user do that from now on, whatever happens to the login.
pub(crate) fn begin_trying(machine: &Machine, user: &str, gpus: &str) -> Result<()> {
    let line = format!("rm -f enough tries; setsid nohup sh -c '{}'", trying(gpus));
    machine.ok_as(user, &format!("{line} > /dev/null 2>&1 < /dev/null &")).map(drop)
}

/// Ends that; returns what came of it, each answer once for as long as it was the same.
pub(crate) fn tried(machine: &Machine, user: &str) -> Result<Vec<String>> {
    let said = machine.ok_as(user, "touch enough; uniq tries")?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// A line that ends with 0 where this stands on the terminal of one's tmux session, as grep has it, however it was broken
/// into lines there.
pub(crate) fn on_terminal(session: &str, text: &str) -> String {
    format!("tmux capture-pane -p -J -t {session} | grep '{text}'")
}

/// Installs the packages that the table names for such a machine; returns what the installation said.
pub(crate) fn install(machine: &Machine, page: &Page, kind: &str) -> Result<String> {
    install_by(machine, &page.in_table("Install", kind)?)
}

/// The same by a line that is known.
pub(crate) fn install_by(machine: &Machine, line: &str) -> Result<String> {
    machine.ok(&format!("cd {DEBS} && {line} 2>&1"))
}

/// From the installed package to a controller that answers.
pub(crate) fn begin_controller(machine: &Machine, page: &Page) -> Result<()> {
    for line in page.commands("The controller", 0)? {
        machine.ok(&line)?;
    }
    Ok(())
}

/// Lets a node join: the token by ada, who is an admin, on the controller's machine; the rest as root there.
pub(crate) fn join(controller: &Machine, node: &Machine, page: &Page) -> Result<()> {
    let on_controller = page.commands("A node", 0)?;
    let create = on_controller.first().context("the page says how a token is made")?;
    let create = create.replace("titan01", node.name);
    join_by(controller, node, &create, &page.commands("A node", 1)?)
}

/// The same by lines that are known; in place of the one with a token stands what the first printed.
pub(crate) fn join_by(
    controller: &Machine,
    node: &Machine,
    create: &str,
    on_node: &[String],
) -> Result<()> {
    let said = controller.ok_as("ada", create)?;
    let printed = said.lines().map(str::trim).find(|line| line.starts_with("fleet-agent join"));
    let printed = printed.with_context(|| format!("no line to type in {said:?}"))?;
    node.ok(&PRETENDED.replace("titan01", node.name))?;
    for line in on_node {
        node.ok(if line.contains("--token") { printed } else { line })?;
    }
    let ready = format!("fleet node show {} -o json | grep -q '\"state\": *\"ready\"'", node.name);
    controller.until_as("ada", "the node is ready", &ready)?;
    let gpus = format!("test $(fleet gpu list | grep -c {}:) = {GPUS}", node.name);
    controller.until_as("ada", "its GPUs are known", &gpus).map(drop)
}

/// What `fleet` says as JSON.
pub(crate) fn json(machine: &Machine, user: &str, line: &str) -> Result<Value> {
    let text = machine.ok_as(user, &format!("{line} -o json"))?;
    serde_json::from_str(&text).with_context(|| format!("{line} said {text}"))
}

/// Submits a job as ada; returns its id.
pub(crate) fn submit(machine: &Machine, options: &str, script: &str) -> Result<String> {
    ensure!(!script.contains('\''), "the script stands between single quotes");
    let said = machine.ok_as("ada", &format!("fleet run -d {options} -- sh -c '{script}'"))?;
    job_id(&said)
}

/// The job's id in what `fleet run -d` said.
pub(crate) fn job_id(said: &str) -> Result<String> {
    let id = said.split_whitespace().find(|word| word.starts_with("job-"));
    Ok(id.with_context(|| format!("no id in {said:?}"))?.to_owned())
}

/// Waits until a job is in a state; returns the job.
pub(crate) fn job_in(machine: &Machine, id: &str, state: &str) -> Result<Value> {
    let line = format!("fleet job show {id} -o json");
    let found = format!("{line} | grep -q '\"state\": *\"{state}\"'");
    machine.until_as("ada", &format!("{id} is {state}"), &found)?;
    json(machine, "ada", &format!("fleet job show {id}"))
}

/// Nothing of the agent's package acts on a machine any more: no job, no unit, no cgroup, no mount. The controller
/// may be there.
pub(crate) fn nothing_acts(machine: &Machine) -> Result<()> {
    for (what, line) in [
        (
            "processes",
            "ps -eo args | grep -i '[f]leet' | grep -v '^/usr/bin/[f]leet-controller'; true",
        ),
        (
            "units",
            "systemctl list-units --no-legend --plain --state=active,activating,deactivating,failed 'fleet*' \
             | grep -v '^fleet-controller.service'; true",
        ),
        ("cgroups", "find /sys/fs/cgroup -name 'fleet*' ! -name fleet-controller.service; true"),
        ("mounts", "grep -i fleet /proc/self/mountinfo; true"),
    ] {
        let left = machine.ok(line)?;
        ensure!(left.is_empty(), "{what} that act on: {left}");
    }
    Ok(())
}
