//! The snapshot: the whole state as versioned JSON. It holds the last time seen, without which
//! replicas would differ after a restart.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Fsm;

/// Version that this build writes.
pub const SNAPSHOT_VERSION: u32 = 1;
/// Names what this build stores: a digest of the recorded log and of the state it gives. Before 0.1 version 1 may still
/// change, so each store carries it, and a build with another one refuses the store.
pub const FORMAT: &str = include_str!("../../testdata/format").trim_ascii();

/// A store of another build, before 0.1. Said behind the name of what is stored; who says it adds what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "is of format {found}, and this build of fleet reads format {FORMAT}. Before 0.1 each build reads its own format only"
)]
pub struct OtherFormat {
    found: String,
}

/// Whether a store of that format can be read; one that names none is older than formats are.
pub fn check_format(found: Option<&str>) -> Result<(), OtherFormat> {
    match found.filter(|format| !format.is_empty()) {
        Some(FORMAT) => Ok(()),
        found => Err(OtherFormat { found: found.unwrap_or("none").to_owned() }),
    }
}

/// Why bytes are not a snapshot that this build can take.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("decode the snapshot")]
    Decode(#[source] serde_json::Error),
    #[error("the snapshot has version {found}; this build reads up to {SNAPSHOT_VERSION}")]
    TooNew { found: u32 },
    #[error("the snapshot {0}")]
    OtherFormat(#[from] OtherFormat),
    #[error("the snapshot breaks an invariant: {0}")]
    Broken(super::Violation),
}

#[derive(Deserialize)]
struct Version {
    v: u32,
    #[serde(default)]
    format: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Document<F> {
    v: u32,
    format: Cow<'static, str>,
    fsm: F,
}

impl Fsm {
    /// The whole state, for storing.
    pub fn to_snapshot(&self) -> Vec<u8> {
        // Plain data with text keys cannot fail to serialise; an empty snapshot is refused on load.
        serde_json::to_vec(&self.document()).unwrap_or_default()
    }

    /// What [`Self::to_snapshot`] makes bytes of, as JSON: for who wants to stream it.
    pub fn document(&self) -> impl Serialize {
        Document { v: SNAPSHOT_VERSION, format: Cow::Borrowed(FORMAT), fsm: self }
    }

    /// Takes a stored state back, after checking that it is whole.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Fsm, SnapshotError> {
        let version: Version = serde_json::from_slice(bytes).map_err(SnapshotError::Decode)?;
        if version.v > SNAPSHOT_VERSION {
            return Err(SnapshotError::TooNew { found: version.v });
        }
        check_format(version.format.as_deref())?;
        let document: Document<Fsm> =
            serde_json::from_slice(bytes).map_err(SnapshotError::Decode)?;
        let mut fsm = document.fsm;
        fsm.bind_all_jobs();
        fsm.check_invariants().map_err(SnapshotError::Broken)?;
        fsm.plan_inputs = fsm.applied;
        fsm.settle_index();
        Ok(fsm)
    }

    /// A digest that two replicas must agree on at the same log index.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_snapshot()).into()
    }
}
