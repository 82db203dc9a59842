//! Keeps orders that are out of date from this node: whose documents count, and under which epochs GPUs were granted.
//!
//! - [`standing`]: the highest incarnation, term and index of a controller's document. The link asks before it takes one.
//! - [`epochs`]: the highest epoch per GPU and allocation. An attempt asks before it starts.
//!
//! Both are on the disk before anything is done under them, and neither ever goes back, unless the node joins another
//! fleet (`enroll/moved.rs`).

pub(crate) mod epochs;
pub(crate) mod standing;

pub use epochs::{EpochError, EpochStore, Epochs, Storage};
pub use standing::{Fence, Standing};
