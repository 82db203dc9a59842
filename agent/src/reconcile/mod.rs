//! Making the node what it should be: the one owner of the table of attempts.
//!
//! - [`plan`]: pure, what to do. [`recount`]: what is held,
//!   for controllers that were restored from a backup. [`calendar`]: the windows in this node's hands.
//!   [`driver`]: when the agent releases the GPU driver.
//!
//! One task. It takes the newest document of the link and what the attempts' tasks tell, plans, acts, and
//! plans again. It rebuilds everything from the disk when the agent starts. It must never block, and
//! nothing is ever stopped because it was not mentioned.

mod calendar;
mod driver;
mod leaving;
pub mod plan;
mod probes;
mod reboot;
pub mod recount;
mod removals;
mod retention;
mod task;

pub use calendar::CalendarParts;
pub use task::{Reconciler, ReconcilerParts};

#[cfg(test)]
pub(crate) fn fixture_order() -> fleet_core::desired::StartOrder {
    plan::fixture::order(&[])
}
