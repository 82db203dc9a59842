//! Seven stories of a training that is interrupted. Each names in advance the checkpoint from which the next attempt
//! resumes, and judges the program's own log of every step: that it loaded this one, that the next step is the first,
//! that no earlier one is computed again, and no more of them twice than were done after that checkpoint. Then it
//! judges the weights.
//!
//! Weights alone would prove nothing: this training ends with the same ones wherever it begins again. So each story
//! happens to two of them, and the second ignores the checkpoint it is given: the same judgment must refuse it.
//! `tests/src/story.rs` is the judge, `training.rs` leads the two.

mod crowd;
mod faults;
mod frozen;
mod full;
mod silence;
mod training;
