//! What controllers tell each other beside consensus: what they can do, how their disk is, what their state
//! looks like, whether they could lead. In the leader's memory only.
//!
//! A member says it with each answer to the leader (`service`), the leader keeps the newest (`network`).
//! A member that says nothing is older than this code: it runs cluster version 1.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::fitness::Look;

/// What was said longer ago is not known any more.
const FRESH: Duration = Duration::from_secs(10);
/// That a controller could lead must have been said within this time: leadership goes to it on its word.
const WELL_SAID_MAX: Duration = Duration::from_secs(5);
/// The sources of the core this controller was built with.
pub(crate) const CORE: &str = env!("FLEET_CORE");

/// A state's digest after an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateCheck {
    /// The entry after which it was taken.
    pub(crate) index: u64,
    pub(crate) digest: String,
}

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    /// The highest cluster version it can run at.
    pub(crate) cluster_version: u32,
    #[serde(default)]
    pub(crate) core: String,
    /// Free space on its disk; absent where it cannot be asked.
    #[serde(default)]
    pub(crate) free_bytes: Option<u64>,
    /// Its newest digest.
    #[serde(default)]
    pub(crate) check: Option<StateCheck>,
    /// Absent where it has not looked just now.
    #[serde(default)]
    pub(crate) look: Option<Look>,
}

impl MemberReport {
    /// Reads what came with an answer.
    fn read(bytes: &[u8]) -> MemberReport {
        serde_json::from_slice(bytes).unwrap_or(MemberReport {
            cluster_version: 1,
            core: String::new(),
            free_bytes: None,
            check: None,
            look: None,
        })
    }
}

/// The newest that each other controller said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members(Arc<Mutex<BTreeMap<u64, Said>>>);

#[derive(Debug)]
struct Said {
    at: Instant,
    /// As it came: with most answers it is what it was.
    bytes: Vec<u8>,
    about: MemberReport,
}

impl Members {
    /// `node` said `bytes` with an answer.
    pub(crate) fn heard(&self, node: u64, bytes: Vec<u8>) {
        let at = Instant::now();
        match self.lock().entry(node) {
            Entry::Occupied(mut said) if said.get().bytes == bytes => said.get_mut().at = at,
            said => {
                let about = MemberReport::read(&bytes);
                said.insert_entry(Said { at, bytes, about });
            }
        }
    }

    /// What `node` said a moment ago.
    pub(crate) fn of(&self, node: u64) -> Option<MemberReport> {
        self.lock().get(&node).filter(|said| said.is_fresh()).map(|said| said.about.clone())
    }

    /// Free space on the disk of `node`, as it said a moment ago.
    pub(crate) fn free_bytes(&self, node: u64) -> Option<u64> {
        self.lock().get(&node).filter(|said| said.is_fresh())?.about.free_bytes
    }

    /// How `node` found itself, as it said a moment ago: not longer than [`WELL_SAID_MAX`].
    pub(crate) fn look(&self, node: u64) -> Option<Look> {
        let all = self.lock();
        let said = all.get(&node).filter(|said| said.at.elapsed() <= WELL_SAID_MAX)?;
        said.about.look.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Said>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}
