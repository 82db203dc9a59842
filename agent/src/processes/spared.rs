//! Whose processes are never ended, and who passes the gate without a lease. Pure.

use std::collections::BTreeSet;

use super::observer::Process;

/// Whose processes are never ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spared {
    /// Root, and the system's users below this number.
    pub below: u32,
    /// Those that pass the gate anyway.
    pub uids: BTreeSet<u32>,
    pub gids: BTreeSet<u32>,
}

impl Spared {
    /// By who started it, as the gate does.
    #[must_use]
    pub fn covers(&self, process: &Process) -> bool {
        process.real_uid < self.below || self.passes_gate(process)
    }

    /// Whether the gate lets it pass without a lease. The system's users it keeps out, though nobody ends their processes.
    #[must_use]
    pub fn passes_gate(&self, process: &Process) -> bool {
        process.real_uid == 0
            || self.uids.contains(&process.real_uid)
            || self.gids.contains(&process.real_gid)
    }
}
