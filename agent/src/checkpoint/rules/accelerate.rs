//! `Accelerator.save_state`: no marker; each rank writes `random_states_RANK.pkl` last. The directory must keep still.
//!
//! Seen with 1.15.

use super::Candidate;

pub(super) fn complete(of: Candidate<'_>) -> bool {
    of.tree.find("random_states_0.pkl").is_some_and(|last| last.size > 0)
        && of.tree.entries.len() > 1
}
