//! All cases there are, by name.

use anyhow::Result;
use fleet_tests::steps::Steps;

use crate::image::Debian;
use crate::site::Site;
use crate::{containers, legacy, people, power, smoke, unflushed, zombie};

/// One story on machines of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// A line for a person who reads the log.
    pub(crate) about: &'static str,
    pub(crate) debian: Debian,
    pub(crate) run: fn(&Site, &mut Steps) -> Result<()>,
}

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "smoke",
        about: "Debian 12: from the packages to a job by the words of the page, people held to reservations, an agent that goes away under a job, a purge",
        debian: Debian::BOOKWORM,
        run: smoke::run,
    },
    Case {
        name: "hybrid",
        about: "Debian 12 with v1 controllers beside cgroup2: the same",
        debian: Debian::BOOKWORM_HYBRID,
        run: smoke::run,
    },
    Case {
        name: "legacy",
        about: "Debian 12 with cgroup v1 alone: the same, where no kernel keeps anybody out and the agent warns and stops",
        debian: Debian::BOOKWORM_LEGACY,
        run: legacy::run,
    },
    Case { name: "trixie", about: "Debian 13: the same", debian: Debian::TRIXIE, run: smoke::run },
    Case {
        name: "people",
        about: "Debian 12, three machines: observe, import, adopt, enforce; two users over sshd; a hostile user; the package removed",
        debian: Debian::BOOKWORM,
        run: people::run,
    },
    Case {
        name: "people-hybrid",
        about: "Debian 12 with v1 controllers beside cgroup2: the same people",
        debian: Debian::BOOKWORM_HYBRID,
        run: people::run,
    },
    Case {
        name: "people-trixie",
        about: "Debian 13: the same people",
        debian: Debian::TRIXIE,
        run: people::run,
    },
    Case {
        name: "containers",
        about: "dockerd's and Podman's: held to reservations as who asked for them is",
        debian: Debian::BOOKWORM_CONTAINERS,
        run: containers::run,
    },
    Case {
        name: "power",
        about: "Debian 12, three machines: power cuts of a node under a job and of the controller under writes, reboots, the gate at boot, restores",
        debian: Debian::BOOKWORM,
        run: power::run,
    },
    Case {
        name: "zombie",
        about: "Debian 12, two machines with one NFS export: a node cut off during a save, and one frozen, under jobs with --stop-after",
        debian: Debian::BOOKWORM_NFS,
        run: zombie::run,
    },
    Case {
        name: "unflushed",
        about: "Debian 12, two machines: a power cut under a job that never flushes its checkpoints",
        debian: Debian::BOOKWORM_NFS,
        run: unflushed::run,
    },
];
