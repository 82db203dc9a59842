//! The calendar in this node's hands: what was handed out ahead, kept while no controller answers.
//!
//! - [`promises`]: pure, which windows there are and what is to be done about them when. [`clock`]: pure, the
//!   fleet's time without the fleet. [`contact`]: whether a controller answers. [`store`]: the promises on the disk.
//!   `over`, `running`: pure, what becomes of windows at their end.
//!   What this node's users and root see of it is in [`crate::local`].
//!
//! The reconcile task owns the promises and carries its steps out. While a controller answers, the controller
//! leads and the promises only follow. Nothing here looks at health: a node that is cut off never evicts, and
//! it stops only what runs into time that was promised to somebody else.

pub mod clock;
mod contact;
mod over;
pub mod promises;
mod running;
mod store;

pub use clock::FleetClock;
pub use contact::Contact;
pub use promises::{Promises, Refused, Step};
pub use running::{After, Loss, Running};
pub use store::{Shelf, ShelfError};

#[cfg(test)]
mod tests;
