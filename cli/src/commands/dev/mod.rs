//! `dev`: a small cluster of real processes on this machine, and faults for its pretended GPUs and its agents.
//!
//! [`cluster`] starts, watches and stops; [`kept`] says what an earlier start left; [`processes`] alone knows how controllers and agents are
//! configured and called; [`traces`] removes what a killed part would leave behind.

mod agent;
mod cluster;
mod controllers;
mod fault;
mod kept;
mod processes;
mod state;
mod traces;

pub(super) use agent::agent;
pub(super) use cluster::run;
pub(super) use fault::fault;
