//! Releasing GPUs: a lease that is over is given back only when its GPUs are proven empty.
//!
//! - [`mod@prove`]: one task per lease that ends; it asks the driver and `/proc` until both say "nobody", ends
//!   what is left of the lease's own attempts by their cgroups, and leaves people's processes to
//!   [`crate::holders`].
//! - [`holders`]: who has a GPU open; `proc_link` is how it looks at what they have open. [`floors`]: how much memory an idle GPU shows.
//!
//! A GPU that is lost or does not answer is never released here: nothing about it is proven.

mod floors;
mod holders;
mod proc_link;
mod prove;

pub use floors::Floors;
pub use holders::{Foreign, Observer, Process};
pub use prove::{Proof, prove};
