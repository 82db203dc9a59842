//! `fleet-agent doctor`: what is wrong with this node or will soon be, whether or not the agent runs.
//!
//! Called by `main`, on behalf of `fleet doctor`. [`facts`] gathers, each fact within a limit; [`judge`] is pure and says
//! what it means and what to do. It changes nothing, and never enters the driver.

mod facts;
mod judge;
mod packages;

use std::path::Path;

use fleet_daemon::doctor::{self, Check, machine};

use crate::config::Config;

/// Everything that this doctor checks belongs to this part of the fleet.
pub(crate) const PART: &str = "node";

/// Prints the findings.
pub async fn run(path: &Path) -> anyhow::Result<()> {
    let findings = match Config::load(path) {
        Ok(config) => judge::all(&facts::gather(config).await),
        Err(error) => {
            let check = Check { part: PART, name: "agent" };
            vec![machine::configuration(check, "fleet-agent", &error)]
        }
    };
    doctor::print(&findings)
}
