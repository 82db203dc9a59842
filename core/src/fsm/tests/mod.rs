//! Tests of the state machine: given commands, then reply, events and state.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod access;
mod adoption;
mod audit_log;
pub(crate) mod authority;
mod begin;
mod busy;
mod claims;
mod controllers;
mod edit;
mod ending;
mod endurance;
mod eviction;
mod fair_share;
mod giving_way;
mod golden;
mod import;
mod indexing;
mod job_defaults;
mod jobs;
mod limits;
mod no_image;
mod nodes;
mod numbers;
mod probing;
mod projects;
mod properties;
mod reboot;
mod removal;
mod requests;
mod reservations;
mod resume;
mod session;
mod time_limits;
mod varying;
pub(crate) mod windows;
mod world;
