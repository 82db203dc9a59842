//! fleet-core: the domain, the replicated state machine and the scheduler. Pure.
//!
//! Nothing here does I/O, reads a clock, draws randomness or starts a thread: time and ids come in
//! with each command, a refusal is a value, and the same log gives the same bytes on every replica.
//! Start reading at [`Fsm::apply`], and at [`state::Fsm`] for what there is; [`command::Command`] lists what can be asked,
//! [`event::Event`] what can happen, [`rejection::Rejection`] why not.

pub mod access;
pub mod actor;
pub mod allocation;
pub mod approval;
pub mod audit;
pub mod authority;
pub mod backup;
pub mod calendar;
pub mod checkpoint;
pub mod class;
pub mod command;
pub mod controller;
pub mod desired;
pub mod ending;
pub mod event;
pub mod fair_share;
pub mod feed;
pub mod fsm;
pub mod gpu;
pub mod gpu_use;
pub mod health;
pub mod hold;
pub mod holdings;
#[cfg(test)]
mod hostile;
pub mod id;
pub mod idle;
pub mod image;
pub mod job;
pub mod lease;
pub mod limits;
pub mod name;
pub mod node;
pub mod notice;
pub mod offer;
pub mod people;
pub mod preemption;
pub mod project;
pub mod reason;
pub mod reboot;
pub mod rejection;
pub mod reply;
pub mod reservation;
pub mod risk;
pub mod scheduler;
pub mod state;
pub mod stay;
mod stored;
pub mod time;
pub mod usage;
pub mod view;
pub mod waitlist;
pub mod window;
pub mod word;

pub use actor::{Actor, AuthMethod, Who};
pub use audit::AuditRecord;
pub use command::{Command, Envelope};
pub use event::Event;
pub use fsm::Outcome;
pub use lease::Epoch;
pub use rejection::Rejection;
pub use reply::Reply;
pub use state::Fsm;
pub use time::{Millis, Timestamp, Window};
