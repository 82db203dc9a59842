//! Notices a replica whose state is not that of the others, and stops it for good.
//!
//! From time to time a `CheckState` goes through the log. Each replica takes the digest of its state right
//! after that entry, beside apply, and tells the leader. The next `CheckState` carries the digest that most of
//! them had; a replica that had another one stops, leader or not, and does not start again with that state.
//! States are compared between controllers with the same core only: during an upgrade nothing is.

use std::collections::BTreeMap;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::Fsm;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::member_report::{CORE, MemberReport, StateCheck};
use crate::blocking::blocking;
use crate::disk::{Disk, read_all, replace_file};

/// There once this controller's state was found to differ.
pub(crate) const MARKER_FILE: &str = "diverged";
const MARKER_VERSION: u32 = 1;
const MARKER_BYTES_MAX: u64 = 64 << 10;
/// What is hashed at once.
const DIGEST_BLOCK_BYTES: usize = 64 << 10;

/// The content of [`MARKER_FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    v: u32,
    index: u64,
    own: String,
    others: String,
}

/// The digest this replica took last.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnCheck(Arc<Mutex<Option<StateCheck>>>);

impl OwnCheck {
    pub(crate) fn newest(&self) -> Option<StateCheck> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the digest of `fsm`, as it is after entry `index`, off the async threads.
    pub(crate) fn take(&self, fsm: Fsm, index: u64) {
        let own = self.clone();
        tokio::spawn(blocking(move || {
            let check = StateCheck { index, digest: digest(&fsm) };
            *own.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(check);
        }));
    }
}

/// The digest that replicas compare, in hex: [`Fsm::digest`], without the state's bytes in memory.
fn digest(fsm: &Fsm) -> String {
    let mut hash = BufWriter::with_capacity(DIGEST_BLOCK_BYTES, Hash(Sha256::new()));
    // Neither can fail: plain data with text keys, and a writer that takes everything.
    let written = serde_json::to_writer(&mut hash, &fsm.document()).map_err(io::Error::from);
    match written.and_then(|()| hash.into_inner().map_err(io::IntoInnerError::into_error)) {
        Ok(Hash(hash)) => hex::encode(hash.finalize()),
        Err(_) => hex::encode(fsm.digest()),
    }
}

struct Hash(Sha256);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What most of those say whose states can be compared with ours. `None` if there is nothing to compare, or
/// no majority.
pub(crate) fn agreed<'a>(
    own: &StateCheck,
    others: impl Iterator<Item = &'a MemberReport>,
) -> Option<Result<String, BTreeMap<String, usize>>> {
    let mut digests = BTreeMap::from([(own.digest.clone(), 1)]);
    for about in others.filter(|about| about.core == CORE) {
        if let Some(check) = about.check.as_ref().filter(|check| check.index == own.index) {
            *digests.entry(check.digest.clone()).or_default() += 1;
        }
    }
    let all: usize = digests.values().sum();
    if all < 2 {
        return None;
    }
    let most =
        digests.iter().find(|(_, count)| **count * 2 > all).map(|(digest, _)| digest.clone());
    Some(most.ok_or(digests))
}

/// Notes on disk that this state must not be used again.
pub(crate) fn mark(disk: &dyn Disk, own: &StateCheck, others: &str) -> io::Result<()> {
    let marker = Marker {
        v: MARKER_VERSION,
        index: own.index,
        own: own.digest.clone(),
        others: others.to_owned(),
    };
    replace_file(disk, MARKER_FILE, &serde_json::to_vec(&marker)?)
}

/// The marker's file, if there is one, and the entry at which the state differed.
pub(crate) fn marked(disk: &dyn Disk) -> io::Result<Option<(PathBuf, u64)>> {
    let file = match disk.open(MARKER_FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = read_all(&*file, MARKER_BYTES_MAX)?;
    let index = serde_json::from_slice::<Marker>(&bytes).map_or(0, |marker| marker.index);
    Ok(Some((disk.path().join(MARKER_FILE), index)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn about(core: &str, index: u64, digest: &str) -> MemberReport {
        let check = Some(StateCheck { index, digest: digest.to_owned() });
        MemberReport {
            cluster_version: 2,
            core: core.to_owned(),
            free_bytes: None,
            check,
            look: None,
        }
    }

    #[test]
    fn the_digest_is_that_of_the_state() {
        assert_eq!(digest(&Fsm::new()), hex::encode(Fsm::new().digest()));
    }

    #[test]
    fn a_majority_of_comparable_states_decides() {
        let own = StateCheck { index: 7, digest: "x".to_owned() };
        let of = |others: &[MemberReport]| agreed(&own, others.iter());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[about(CORE, 7, "x")]), Some(Ok("x".to_owned())));
        assert_eq!(of(&[about(CORE, 7, "x"), about(CORE, 7, "y")]), Some(Ok("x".to_owned())));
        // The leader itself may be the one that differs.
        assert_eq!(of(&[about(CORE, 7, "y"), about(CORE, 7, "y")]), Some(Ok("y".to_owned())));
        assert!(matches!(of(&[about(CORE, 7, "y")]), Some(Err(_))), "one against one");
        // Another core or another entry says nothing.
        assert_eq!(of(&[about("other", 7, "y"), about(CORE, 6, "y")]), None);
    }
}
