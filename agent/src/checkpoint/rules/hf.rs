//! Hugging Face's Trainer: `checkpoint-STEP/`, filled in place; rank 0 writes `trainer_state.json` last.
//!
//! Other ranks' `rng_state_R.pth` have no order to it, so the directory must also keep still. Rotation deletes file by
//! file, `trainer_state.json` in the middle. Seen with 5.17, one and two ranks; 4.40 writes the same names.

use super::Candidate;

pub(super) fn complete(of: Candidate<'_>) -> bool {
    of.tree.find("trainer_state.json").is_some_and(|marker| marker.size > 0)
        // The trainer's last word at the end of a run goes into the output directory itself.
        && of.tree.entries.iter().any(|entry| !entry.name.ends_with(".json"))
        // With several ranks each writes its own; how many there are nobody says, but it is more than one.
        && (!of.tree.has("rng_state_0.pth") || of.tree.has("rng_state_1.pth"))
}
