//! fleet-node: what one node decides. Pure.
//!
//! Nothing here does I/O, reads a clock or starts a thread: what is wanted, what is there and the time come in, what is to
//! be done goes out. The agent's reconcile task owns the state and carries the decisions out.
//!
//! - [`plan`]: what to do so that the node becomes what its controller wants. [`table`]: what it knows of its attempts.
//! - [`promises`]: the calendar in this node's hands, kept while no controller answers; [`running`] and [`over`] say what
//!   becomes of windows before and after their end. [`clock`]: the fleet's time without the fleet. [`grant`]: who may open
//!   a GPU, and until when.
//! - [`epochs`]: which orders are out of date. [`due`]: which warnings people get. [`last_saves`]: which jobs a shutdown
//!   waits for. [`retention`]: which records go. [`measured`]: who used which GPU how much. [`minutes`]: the same for each
//!   minute.
//! - [`idle`]: which windows compute nothing. [`idle_due`]: who reads of that.
//!
//! Nothing here looks at health: a node that is cut off never evicts, and it stops only what runs into time that was
//! promised to somebody else.

pub mod clock;
pub mod due;
pub mod epochs;
pub mod grant;
pub mod idle;
pub mod idle_due;
pub mod last_saves;
pub mod measured;
pub mod minutes;
pub mod over;
pub mod plan;
pub mod promises;
pub mod retention;
pub mod running;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use clock::FleetClock;
pub use grant::Grant;
pub use last_saves::LastSaves;
pub use over::Over;
pub use promises::{Promises, Refused, Step};
pub use retention::Retention;
pub use running::{After, Loss, Running};
pub use table::{AttemptPhase, Release, Row, Table};

#[cfg(test)]
mod tests;
