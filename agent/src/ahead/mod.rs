//! What this node knows of the fleet's time, and where it keeps the calendar in its hands.
//!
//! - [`Contact`]: whether a controller answers, and what time it is. [`Shelf`]: the promises on the disk.
//! - What windows there are, and what is done about them when, is pure: [`fleet_node::promises`].
//!   What this node's users and root see of it is in [`crate::local`].
//!
//! The reconcile task owns the promises and carries their steps out. While a controller answers, the controller leads and
//! the promises only follow.

mod contact;
mod store;

pub use contact::Contact;
pub use store::{Shelf, ShelfError};

#[cfg(test)]
mod tests;
