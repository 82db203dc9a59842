//! The calendar in this node's hands: what was handed out ahead, kept while no controller answers.
//!
//! - [`book`]: pure, which windows there are and what is to be done about them when. [`clock`]: pure, the
//!   fleet's time without the fleet. [`line`]: whether a controller answers. [`store`]: the book on the disk.
//!   `over`, `running`: pure, what becomes of windows at their end.
//!   [`local`]: the socket on this node, for `fleet status`, `fleet-agent grant` and `enforce`.
//!
//! The reconcile task owns the book and carries its steps out. While a controller answers, the controller
//! leads and the book only follows. Nothing here looks at health: a node that is cut off never evicts, and
//! it stops only what runs into time that was promised to somebody else.

pub mod book;
pub mod clock;
mod line;
mod local;
mod over;
mod running;
mod store;

pub use book::{Book, Refused, Step};
pub use clock::FleetClock;
pub use line::Line;
pub use local::{ASKS_MAX, SOCKET_FILE};
pub use local::{Answer, Ask, GrantWish, LocalParts, Seen, SeenAttempt, serve};
pub use running::{After, Loss, Running};
pub use store::{Shelf, ShelfError};

#[cfg(test)]
mod tests;
