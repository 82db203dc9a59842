//! `fleet-shim`: one small process per allocation that owns it from the first process to the last.
//!
//! The agent writes a directory (`order.json`, the OCI bundle) and starts `fleet-shim DIR`; from then on the shim needs
//! nobody. It makes the control group, attaches and verifies the device filter, runs the OCI runtime, keeps the logs,
//! serves the job's notify socket and the agent's `shim.sock`, and in the end writes `exit.json`. An agent that dies
//! changes nothing.
//!
//! The shim is single-threaded (it forks), has one `poll` loop ([`server`]) and must never block on the job, on a client,
//! or on a network file system: this crate has neither tokio nor tonic. The agent's side of `shim.sock` is
//! `fleet_agent::shim_client`. The program `fleet-init`, the first process in a container, is in this crate too.
//!
//! Start reading at [`order`] (the files), then [`server`] (the loop), then [`start`].

mod child;
mod clock;
mod control;
mod exec;
mod files;
#[cfg(test)]
mod hostile;
mod init;
mod lifecycle;
pub mod log;
mod mounts;
mod notify;
pub mod order;
pub mod protocol;
mod say;
mod server;
mod start;
mod stdio;
mod sys;
mod tee;

use std::path::Path;

pub use mounts::HOST_CONTROL_PATHS;
pub use server::main;

/// Where the container's init appears inside.
#[must_use]
pub fn init_path_in_container() -> &'static str {
    init::PATH_IN_CONTAINER
}

/// What the container runs: its init, which goes to `dir` and starts `argv`.
#[must_use]
pub fn init_arguments(dir: Option<&Path>, argv: &[String]) -> Vec<String> {
    init::arguments(dir, argv)
}

/// Where the job finds its notify socket: `FLEET_NOTIFY_SOCKET`.
#[must_use]
pub fn notify_path_in_container() -> &'static str {
    notify::PATH_IN_CONTAINER
}
