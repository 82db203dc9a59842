//! Making the node what it should be: the one owner of the table of attempts.
//!
//! - What to do is decided by [`fleet_node::plan`] and, while no controller answers, by [`fleet_node::promises`]; both are
//!   pure. [`calendar`] asks the second.
//! - [`recount`]: what is held, for controllers that were restored from a backup. [`driver`]: when the agent releases the
//!   GPU driver.
//!
//! One task. It takes the newest document of the link and what the attempts' tasks tell, plans, acts, and
//! plans again. It rebuilds everything from the disk when the agent starts. It must never block, and
//! nothing is ever stopped because it was not mentioned.

mod calendar;
mod driver;
mod leaving;
mod probes;
mod reboot;
pub mod recount;
mod removals;
mod task;

pub use calendar::CalendarParts;
pub use task::{OwnMachine, Reconciler, ReconcilerParts};
