//! What the as-user helper does with checkpoints: the part of `fleet-agent as-user` that `fleet-user` does not know.
//!
//! It runs in a child that has become the job's owner, never in the agent.

use std::io::Write;

use fleet_user::op::{CheckpointOp, OpError, Reply, answer};

use super::{removal, resume, watch};

/// Does one operation and writes the answer.
///
/// # Errors
///
/// The answer could not be written: the agent has gone.
pub fn perform(op: CheckpointOp, mut output: &mut dyn Write) -> std::io::Result<()> {
    match op {
        CheckpointOp::Watch(request) => watch::serve(&request, &mut output),
        CheckpointOp::Resume(request) => answer(&mut output, &resume::prepare(&request)),
        CheckpointOp::PutBack { dir, job, attempt } => {
            answer(&mut output, &resume::put_back(&dir, &job, attempt))
        }
        CheckpointOp::RemoveJobFiles { dir, job, marker } => {
            answer(&mut output, &removal::remove_files(&dir, &job, &marker))
        }
        CheckpointOp::Inspect { dir, job, path } => {
            let facts = watch::complete::inspect(&dir, &job, &path);
            answer(&mut output, &Ok::<Reply, OpError>(Reply::Facts(Box::new(facts))))
        }
    }
}
