//! `dev agent`: stops, kills or starts the agent of a node of a running `fleet dev` cluster.
//!
//! A signal goes to the process itself. A start is asked of the `fleet dev` that runs, by a file in the cluster's
//! folder: so the agent is its child again, and ends with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use super::cluster::{POLL_INTERVAL, STOP_TIMEOUT};
use super::fault::folder;
use super::processes::cannot;
use super::state::{DevState, Process, Wish};
use super::traces;
use crate::args::AgentArgs;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// Until `fleet dev` has seen an end or a wish: it looks several times a second.
const SEEN_MAX: Duration = Duration::from_secs(10);

pub(in crate::commands) async fn agent(
    context: &Context,
    args: &AgentArgs,
) -> Result<Exit, Failure> {
    let folder = running(context, args.state.as_deref())?;
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
    state.node(node)?;
    let found = state.processes.iter().rev().find(|one| one.role == "agent" && one.name == node);
    found.cloned().ok_or_else(|| {
        let message = format!("`fleet dev` has not started the agent of {node} yet");
        Failure::new(Exit::Conflict, message)
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
    let name = &before.name;
    let pid = ask(folder, Wish::Start, name, || {
        let now = of_node(folder, name)?;
        Ok((now.exited.is_none() && now.pid != before.pid).then_some(now.pid))
    })
    .await?;
    say(&format!("started the agent of {name}, pid {pid}"));
    Ok(Exit::Done)
}

/// Asks the `fleet dev` that runs, and waits until `done` sees that it did so.
pub(super) async fn ask<T>(
    folder: &Path,
    wish: Wish,
    node: &str,
    done: impl Fn() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let file = wish.file(folder, node);
    fs::write(&file, "").map_err(|error| cannot("write", &file, &error))?;
    let deadline = Instant::now() + SEEN_MAX;
    loop {
        if let Some(seen) = done()? {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            // Nobody took it: the next cluster here must not do it.
            wish.taken(folder, node);
            return Err(not_running(folder));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The folder of the cluster that is meant, if its programs run.
pub(super) fn running(context: &Context, named: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = folder(context, named)?;
    // An error about the file tells more than one about the folder.
    DevState::read(&folder)?;
    let folder = fs::canonicalize(&folder).map_err(|error| cannot("find", &folder, &error))?;
    if traces::processes_of(&folder).is_empty() {
        // Another user cannot see which programs root runs.
        return Err(match geteuid().is_root() {
            true => not_running(&folder),
            false => Failure::new(Exit::Denied, "this needs root, like `fleet dev` itself")
                .hint(format!("sudo fleet dev … --state {}", folder.display())),
        });
    }
    Ok(folder)
}

fn not_running(folder: &Path) -> Failure {
    let folder = folder.display();
    Failure::new(Exit::Conflict, format!("no `fleet dev` runs in {folder}"))
        .hint(format!("start it: sudo fleet dev --state {folder}"))
}
