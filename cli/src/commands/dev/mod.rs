//! `dev`: a small cluster of real processes on this machine, and faults for its pretended GPUs.
//!
//! [`cluster`] starts, watches and stops; [`processes`] alone knows how controllers and agents are
//! configured and called; [`traces`] removes what a killed part would leave behind.

mod cluster;
mod controllers;
mod fault;
mod processes;
mod state;
mod traces;

pub(super) use cluster::run;
pub(super) use fault::fault;
