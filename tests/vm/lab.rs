//! A fleet on machines, set up as docs/operations.md says: what is typed here stands on that page.

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
    let held = format!("fleet node show {node} -o json | grep -q '\"enforced\": *\"{mode}\"'");
    controller.until_as("ada", &format!("{node} is enforced {mode}"), &held).map(drop)
}

/// How many of the four GPUs' nodes answered with each error: no driver is behind them, so that one that may be opened
/// says ENXIO, and one that may not EPERM.
pub(crate) fn opened(machine: &Machine, user: &str) -> Result<(usize, usize)> {
    let open = "for n in 0 1 2 3; do cat /dev/nvidia$n; done 2>&1; true";
    let said = machine.ok_as(user, open)?;
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    Ok((count("No such device or address"), count("Operation not permitted")))
}

/// Installs the packages that the table names for such a machine; returns what the installation said.
pub(crate) fn install(machine: &Machine, page: &Page, kind: &str) -> Result<String> {
    let line = page.in_table("Install", kind)?;
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
    let said = controller.ok_as("ada", &create)?;
    let join = said.lines().map(str::trim).find(|line| line.starts_with("fleet-agent join"));
    node.ok(&PRETENDED.replace("titan01", node.name))?;
    node.ok(join.with_context(|| format!("no line to type in {said:?}"))?)?;
    for line in page.commands("A node", 1)?.iter().filter(|line| !line.contains("--token")) {
        node.ok(line)?;
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
