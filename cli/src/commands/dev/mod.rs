//! `dev`: a small cluster of real processes on this machine, and faults for its pretended GPUs, its agents and
//! its network.
//!
//! [`cluster`] starts, watches and stops; [`kept`] says what an earlier start left; [`processes`] alone knows how controllers and agents are
//! configured and called; [`relay`] is the
//! network between agents and controllers; [`traces`] removes what a killed part would leave behind.

mod agent;
mod cluster;
mod controllers;
mod fault;
mod kept;
mod processes;
mod relay;
mod state;
mod traces;

pub(super) use agent::agent;
pub(super) use cluster::run;
pub(super) use fault::fault;

use super::Context;

/// Whether the settings are those of a `fleet dev` cluster, or of a node of one.
pub(super) fn is_meant(context: &Context) -> bool {
    let config = context.named_config();
    let folders = config.iter().flat_map(|config| config.ancestors().skip(1).take(2));
    folders.into_iter().any(|folder| folder.join(state::DEV_FILE).is_file())
}
