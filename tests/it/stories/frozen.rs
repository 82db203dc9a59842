//! Processes that stand still, as on a machine that is suspended, or whose virtual machine is paused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use fleet_tests::lab::Lab;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Stopped processes. They continue when this is dropped at the latest: else the test could not end them.
pub(super) struct Frozen {
    /// Parents before their children.
    pids: Vec<Pid>,
}

impl Frozen {
    /// Only the agent of a node: what it is to report stays on the node.
    pub(super) fn agent(lab: &Lab, node: &str) -> Result<Self> {
        Self::of(vec![lab.pid("agent", node)?])
    }

    /// The agent of a node, its shims, and all that these started, the jobs among it.
    pub(super) fn node(lab: &Lab, node: &str) -> Result<Self> {
        let state = lab.dev_file()?.node(node)?.state_dir.clone();
        let mut pids = vec![lab.pid("agent", node)?];
        pids.extend(shims_below(&state)?);
        ensure!(pids.len() > 1, "{node} has no shim");
        let mut known: BTreeSet<Pid> = pids.iter().copied().collect();
        let mut at = 0;
        while let Some(pid) = pids.get(at).copied() {
            let new = children(pid).into_iter().filter(|child| known.insert(*child));
            pids.extend(new.collect::<Vec<_>>());
            at += 1;
        }
        Self::of(pids)
    }

    fn of(pids: Vec<Pid>) -> Result<Self> {
        let frozen = Self { pids };
        // The agent first: it must not see the rest stand still.
        for pid in &frozen.pids {
            kill(*pid, Signal::SIGSTOP)?;
        }
        Ok(frozen)
    }

    /// The processes that stand still.
    pub(super) fn pids(&self) -> &[Pid] {
        &self.pids
    }

    /// Lets the processes continue, the jobs before their shims: the worst of all orders.
    pub(super) fn go_on(&self) {
        for pid in self.pids.iter().rev() {
            // One that has ended needs no signal.
            kill(*pid, Signal::SIGCONT).ok();
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// The shims of a node, which keep their files below its state folder.
fn shims_below(state: &Path) -> Result<Vec<Pid>> {
    let state = state.to_string_lossy().into_owned();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let program = command.split('\0').next().unwrap_or_default();
        if program.ends_with("fleet-shim") && command.contains(&state) {
            pids.push(Pid::from_raw(pid));
        }
    }
    Ok(pids)
}

fn children(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let text: Vec<String> = lists.filter_map(std::result::Result::ok).collect();
    text.iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|word| word.parse().ok())
        .map(Pid::from_raw)
        .collect()
}
