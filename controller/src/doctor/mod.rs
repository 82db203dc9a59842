//! `fleet-controller doctor`: what is wrong with this machine as a controller or will soon be, whether or not it runs.
//!
//! Called by `main`, on behalf of `fleet doctor`. [`facts`] gathers, each fact within a limit; [`judge`] is pure and says
//! what it means and what to do. It opens no store and changes nothing. What the controllers say of each other
//! (quorum, versions, the fleet's time) `fleet doctor` asks them itself.

mod facts;
mod judge;

use std::path::Path;

use fleet_daemon::doctor::{self, Check, machine};

use crate::config::Config;

/// All these checks belong to this part of the fleet.
pub(crate) const PART: &str = "controller";

/// Prints the findings.
pub async fn run(path: &Path) -> anyhow::Result<()> {
    let findings = match Config::load(path) {
        Ok(config) => judge::all(&facts::gather(&config).await),
        Err(error) => {
            let check = Check { part: PART, name: "controller" };
            vec![machine::configuration(check, "fleet-controller", &error)]
        }
    };
    doctor::print(&findings)
}
