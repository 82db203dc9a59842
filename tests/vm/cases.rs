//! All cases there are, by name.

use anyhow::Result;
use fleet_tests::steps::Steps;

use crate::image::Debian;
use crate::site::Site;
use crate::smoke;

/// One story on machines of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// A line for whoever reads the log.
    pub(crate) about: &'static str,
    pub(crate) debian: Debian,
    pub(crate) run: fn(&Site, &mut Steps) -> Result<()>,
}

pub(crate) const CASES: &[Case] = &[Case {
    name: "smoke",
    about: "Debian 12: from the packages to a job, people held to reservations, an agent that goes away under a job, no trace in the end",
    debian: Debian::BOOKWORM,
    run: smoke::run,
}];
