//! What people see of the state: each state is an enum with its word, each reason is data.
//!
//! The controller's API, its metrics and the stories ask here; the command line knows the same enums by their words. So
//! a new state does not compile until every place that shows it says how. [`text`] makes the sentences about states,
//! reasons and events; what a refusal says is in [`crate::rejection`]. Nothing here changes the state or decides by it.

pub mod attention;
pub mod gpu;
pub mod job;
mod names;
pub mod node;
pub mod reservation;
pub mod share;
pub mod text;
pub mod user;

pub use gpu::{GpuReason, GpuState};
pub use job::{JobReason, Pause};
pub use names::{Names, NamesAt};
pub use node::NodeState;
pub use reservation::{ReservationShown, Unconfirmed};
pub use user::UserState;
