//! `dev agent`: stops, kills or starts the agent of a node of a running `fleet dev` cluster.
//!
//! A signal goes to the process itself. A start is asked of the `fleet dev` that runs, by a file in the cluster's
//! folder: so the agent is its child again, and ends with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster::{POLL_INTERVAL, STOP_TIMEOUT};
use super::fault::folder;
use super::processes::cannot;
use super::state::{DevState, Process};
use super::traces;
use crate::args::AgentArgs;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// Until `fleet dev` has seen an end or a wish: it looks several times a second.
const SEEN_MAX: Duration = Duration::from_secs(10);

/// The file by which `fleet dev` is asked to start a node's agent.
pub(super) fn wish(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("start-{node}"))
}

pub(in crate::commands) async fn agent(
    context: &Context,
    args: &AgentArgs,
) -> Result<Exit, Failure> {
    let folder = folder(context, args.state.as_deref())?;
    let folder = fs::canonicalize(&folder).map_err(|error| cannot("find", &folder, &error))?;
    let before = of_node(&folder, &args.node)?;
    let runs = pid_of(&folder, &before);
    match (args.start, runs) {
        (true, Some(pid)) => {
            let message = format!("the agent of {} runs already, with pid {pid}", args.node);
            Err(Failure::new(Exit::Conflict, message))
        }
        (true, None) => start(&folder, &before).await,
        (false, None) => {
            let message = format!("the agent of {} does not run", args.node);
            let hint = format!("start it: fleet dev agent --node {} --start", args.node);
            Err(Failure::new(Exit::Conflict, message).hint(hint))
        }
        (false, Some(pid)) => end(&folder, &before, pid, args.kill).await,
    }
}

/// The process of a node's agent, as `dev.json` has it now.
fn of_node(folder: &Path, node: &str) -> Result<Process, Failure> {
    let state = DevState::read(folder)?;
    let found = state.processes.iter().rev().find(|one| one.role == "agent" && one.name == node);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = state.nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("there is no node {node:?} in this cluster");
        Failure::new(Exit::NotFound, message).hint(format!("there are {}", names.join(", ")))
    })
}

/// Its pid, as long as that is a program of this cluster: a number in an old file may be somebody else's by now.
fn pid_of(folder: &Path, process: &Process) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?);
    traces::processes_of(folder).contains(&pid).then_some(pid)
}

async fn end(folder: &Path, process: &Process, pid: Pid, hard: bool) -> Result<Exit, Failure> {
    let (signal, word) =
        if hard { (Signal::SIGKILL, "killed") } else { (Signal::SIGTERM, "stopped") };
    let failed = |error: nix::Error| cannot("signal the agent of", folder, &error.into());
    kill(pid, signal).map_err(failed)?;
    let deadline = Instant::now() + STOP_TIMEOUT + SEEN_MAX;
    while of_node(folder, &process.name)?.exited.is_none() {
        if Instant::now() > deadline {
            let message = format!("the agent of {} does not end", process.name);
            return Err(Failure::new(Exit::Timeout, message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    say(&format!(
        "{word} the agent of {0}; start it: fleet dev agent --node {0} --start",
        process.name
    ));
    Ok(Exit::Done)
}

async fn start(folder: &Path, before: &Process) -> Result<Exit, Failure> {
    let wish = wish(folder, &before.name);
    fs::write(&wish, "").map_err(|error| cannot("write", &wish, &error))?;
    let deadline = Instant::now() + SEEN_MAX;
    loop {
        let now = of_node(folder, &before.name)?;
        if now.exited.is_none() && now.pid != before.pid {
            say(&format!("started the agent of {}, pid {}", now.name, now.pid));
            return Ok(Exit::Done);
        }
        if Instant::now() > deadline {
            // Nobody took it: it must not start an agent of the next cluster here.
            fs::remove_file(&wish).ok();
            let message = format!("no `fleet dev` runs in {}", folder.display());
            return Err(Failure::new(Exit::Failed, message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
