//! Who passes the gate, as it was last: kept on the disk, so that it is in force again at boot before anybody can log
//! in. Written by the gate's task, read by it and by `fleet-agent gate load`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Timestamp;
use fleet_core::window::Enforcement;
use serde::{Deserialize, Serialize};

use super::exempt::Names;
use super::kernel::Pass;
use crate::state_file::{self, StateFileError};
use fleet_user::Subordinates;

const FILE: &str = "gate.json";
const VERSION: u32 = 1;

/// One user and one GPU, with all that it takes to say so to a kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    pub owner: UserName,
    pub uid: u32,
    pub gpu: GpuUuid,
    pub minor: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    v: u32,
    /// By an admin.
    pub ordered: Enforcement,
    /// The same, as far as root on the node lets it.
    pub wanted: Enforcement,
    pub rules: BTreeSet<Rule>,
    #[serde(default)]
    pub exempt_uids: BTreeSet<u32>,
    #[serde(default)]
    pub exempt_gids: BTreeSet<u32>,
    /// Whose numbers these are.
    #[serde(default)]
    pub exempt_names: Names,
    #[serde(default)]
    pub subordinates: Subordinates,
}

impl Default for Rules {
    /// A fresh node only observes.
    fn default() -> Self {
        Self {
            v: VERSION,
            ordered: Enforcement::Off,
            wanted: Enforcement::Off,
            rules: BTreeSet::new(),
            exempt_uids: BTreeSet::new(),
            exempt_gids: BTreeSet::new(),
            exempt_names: Names::default(),
            subordinates: Subordinates::default(),
        }
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

impl Rules {
    /// As they were left; those of a fresh node where there are none.
    pub fn load(state_dir: &Path) -> Result<Self, StateFileError> {
        Ok(state_file::read(&path(state_dir), VERSION)?.unwrap_or_default())
    }

    /// On the disk when it returns. Blocks.
    pub fn store(&self, state_dir: &Path) -> Result<(), StateFileError> {
        state_file::replace(&path(state_dir), self)
    }

    /// Who passes. `at` leaves out what is over by then.
    #[must_use]
    pub fn passes(&self, at: Option<Timestamp>) -> BTreeSet<Pass> {
        let over = |rule: &Rule| rule.until.zip(at).is_some_and(|(until, at)| until <= at);
        let users = self.rules.iter().filter(|rule| !over(rule));
        let users = users.map(|rule| Pass::user(rule.uid, rule.minor));
        users
            .chain(self.exempt_uids.iter().map(|uid| Pass::exempt_user(*uid)))
            .chain(self.exempt_gids.iter().map(|gid| Pass::exempt_group(*gid)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(uid: u32, until: Option<u64>) -> Rule {
        Rule {
            owner: UserName::parse("ada").unwrap(),
            uid,
            gpu: GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000001").unwrap(),
            minor: 1,
            until: until.map(Timestamp),
        }
    }

    #[test]
    fn a_fresh_node_observes_and_what_was_stored_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = Rules::load(dir.path()).unwrap();
        assert_eq!(fresh.wanted, Enforcement::Off);
        assert!(fresh.passes(None).is_empty());
        let mut rules = Rules { ordered: Enforcement::On, wanted: Enforcement::Warn, ..fresh };
        rules.rules.insert(rule(1000, Some(5)));
        rules.exempt_gids.insert(27);
        rules.store(dir.path()).unwrap();
        assert_eq!(Rules::load(dir.path()).unwrap(), rules);
    }

    #[test]
    fn at_boot_nobody_passes_whose_time_was_over_before() {
        let mut rules = Rules::default();
        rules.rules.extend([rule(1000, Some(5)), rule(1001, Some(7)), rule(1002, None)]);
        let found = rules.passes(Some(Timestamp(5)));
        assert_eq!(found, BTreeSet::from([Pass::user(1001, 1), Pass::user(1002, 1)]));
        assert_eq!(rules.passes(None).len(), 3, "where nobody knows the time, nobody is shut out");
    }
}
