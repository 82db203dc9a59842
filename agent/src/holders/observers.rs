//! Makes observers of processes with what the gate knows at that moment: who is exempt, and whose numbers are whose.
//!
//! One of these goes to each part that looks at processes again and again: the inventory, the proof that a GPU is empty,
//! attempts before they start, and reboots. An [`Observer`] itself is for one look.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::Config;
use crate::gate;
use crate::processes::{Observer, Spared};
use crate::unit::group_path;

/// See the module's doc. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Observers {
    gate: gate::Handle,
    baseline: Arc<[String]>,
    /// The group of all jobs.
    jobs: PathBuf,
    /// Users below this number are the system's.
    people_from: u32,
}

impl Observers {
    #[must_use]
    pub fn new(gate: gate::Handle, config: &Config) -> Self {
        Self {
            gate,
            baseline: config.gpu.baseline_processes.as_slice().into(),
            jobs: group_path(&config.cgroup_parent),
            people_from: config.people_from(),
        }
    }

    /// Whose processes are never ended; none before the name service has said who is exempt.
    #[must_use]
    pub fn spared(&self) -> Option<Spared> {
        let exempt = self.gate.state().borrow().exempt.clone()?;
        Some(Spared { below: self.people_from, uids: exempt.uids, gids: exempt.gids })
    }

    /// Who looks at the processes here, with what is known of them now.
    #[must_use]
    pub fn now(&self) -> Observer {
        let subordinates = Arc::clone(&self.gate.state().borrow().subordinates);
        // While the exempt users are not known, nobody counts as exempt.
        let nobody = || Spared { below: self.people_from, ..Spared::default() };
        let trusted = self.spared().unwrap_or_else(nobody);
        Observer {
            baseline: Arc::clone(&self.baseline),
            subordinates,
            trusted,
            jobs: self.jobs.clone(),
        }
    }
}
