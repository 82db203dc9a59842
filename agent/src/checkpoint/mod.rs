//! Seeing a job's checkpoints, without trusting the job to be careful and without ever touching its files as root.
//!
//! - [`observer`]: one per allocation; numbers complete checkpoints 1, 2, 3… and never twice. Started by the reconcile loop
//!   before the job, resumed after an agent restart.
//! - [`watch`]: the half that runs as the user, in the as-user helper: inotify, a slow scan, the settle rule.
//! - [`rules`]: what counts as a checkpoint; pure. [`openfd`]: is a file still open for writing.
//! - [`whole`]: is it whole, by headers and sizes. [`tree`], [`list`]: what is in it now, and what was in it when it counted.
//! - [`journal`]: the numbers on disk.
//! - [`keep`]: the last whole one, kept beside. [`idle`]: copying only while nobody else wants the disk.
//! - [`helper`]: which of these the helper is asked for.
//! - [`resume`]: what the next attempt takes, and what is moved aside for it or copied into its own directory.
//! - [`removal`]: what fleet wrote beside the checkpoints goes, long after the end.
//! - [`marker`]: can this node read what another node's attempt has saved. [`request`], [`signal`]: asking for
//!   one early.
//!
//! This module must never decide to stop a job: it reports, the reconcile loop decides.

pub mod helper;
mod idle;
mod journal;
mod keep;
pub mod list;
pub mod marker;
pub mod observer;
mod openfd;
mod removal;
pub mod request;
pub mod resume;
pub mod rules;
mod signal;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod watch;
pub mod whole;

pub use marker::{ResumeCheck, new_marker_token, verify_marker, verify_resume, write_marker};
pub use observer::{
    CheckpointSeen, Handle, NotifyError, ObserverConfig, ObserverError, Source, start,
};
pub use request::{RequestFile, request_checkpoint, withdraw_request};
pub use signal::ask_by_signal;
pub use watch::{OriginFate, ResumedFrom, Timings};
