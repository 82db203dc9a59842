//! Orbax: everything is written in `STEP.orbax-checkpoint-tmp`, then that directory is renamed. Inner directories are
//! renamed as well, but only the outer one has `_CHECKPOINT_METADATA`.
//!
//! Seen with CheckpointManager and AsyncCheckpointer.

use super::Candidate;

/// End of the name while it is written.
pub(super) const UNFINISHED: &str = ".orbax-checkpoint-tmp";

pub(super) fn complete(of: Candidate<'_>) -> bool {
    let inside = |name: &str| of.tree.entries.iter().any(|entry| entry.name.contains(name));
    !of.path.contains(UNFINISHED) && of.tree.has("_CHECKPOINT_METADATA") && !inside(UNFINISHED)
}
