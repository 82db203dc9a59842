//! Which cluster versions this program can run at.

use fleet_core::command::{CLUSTER_VERSION_MAX, ClusterCommand, Command};

/// What a program of one release knows.
#[derive(Debug, Clone, Copy)]
pub struct Versions {
    /// The highest cluster version that it can run at.
    pub max: u32,
    /// The cluster version from which on a command may be proposed.
    pub needed_by: fn(&Command) -> u32,
}

impl Versions {
    /// Those of this build.
    pub const BUILT: Versions =
        if cfg!(feature = "next-version") { Versions::NEXT } else { Versions::RELEASED };
    pub(super) const RELEASED: Versions =
        Versions { max: CLUSTER_VERSION_MAX, needed_by: Command::since_version };
    /// As the release after this one may have them: only tests of upgrades know them.
    pub(super) const NEXT: Versions =
        Versions { max: CLUSTER_VERSION_MAX + 1, needed_by: needed_by_next };
}

fn needed_by_next(command: &Command) -> u32 {
    let is_new = matches!(command, Command::Cluster(ClusterCommand::CheckState { .. }));
    if is_new { CLUSTER_VERSION_MAX + 1 } else { command.since_version() }
}
