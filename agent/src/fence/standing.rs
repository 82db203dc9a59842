//! The highest order of the controllers' documents that this node has seen; anything below is ignored.
//!
//! Incarnation and term are on the disk before a document of theirs is acted upon. The index within them
//! is kept in memory: a leader sends its documents in order over one connection.

use std::path::{Path, PathBuf};

use fleet_proto::v1;
use serde::{Deserialize, Serialize};

use crate::state_file::{self, StateFileError};

/// In the state folder.
pub(crate) const FILE: &str = "leader.json";
const VERSION: u32 = 1;

/// Where a document stands among all that were ever sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    pub incarnation: u64,
    pub term: u64,
    pub applied_index: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u32,
    incarnation: u64,
    term: u64,
    /// Absent in a fleet that was never restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<Signed>,
}

/// A restored fleet's word that it is at this incarnation: shown to each controller, so that one of before the
/// restore hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signed {
    incarnation: u64,
    #[serde(with = "hex::serde")]
    signer_der: Vec<u8>,
    #[serde(with = "hex::serde")]
    signature: Vec<u8>,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Fence {
    path: PathBuf,
    highest: Standing,
    signed: Option<Signed>,
}

impl Fence {
    /// Reads what was stored below `state_dir`.
    pub fn open(state_dir: &Path) -> Result<Self, StateFileError> {
        let path = state_dir.join(FILE);
        let Some(Stored { incarnation, term, signed, .. }) = state_file::read(&path, VERSION)?
        else {
            return Ok(Self { path, highest: Standing::default(), signed: None });
        };
        Ok(Self { path, highest: Standing { incarnation, term, applied_index: 0 }, signed })
    }

    /// Whether a document may be acted upon. What it teaches is durable when this returns.
    pub fn admit(&mut self, document: Standing) -> Result<bool, StateFileError> {
        if document < self.highest {
            return Ok(false);
        }
        let rank = |s: &Standing| (s.incarnation, s.term);
        if rank(&document) > rank(&self.highest) {
            self.store(document, &self.signed)?;
        }
        self.highest = document;
        Ok(true)
    }

    /// Keeps the proof of the fleet's incarnation, unless it is of an earlier one.
    pub fn learn(&mut self, told: &v1::SignedIncarnation) -> Result<(), StateFileError> {
        // Each signature is another one; what is on the disk is as good.
        let is_known = self.signed.as_ref().is_some_and(|known| {
            let same = known.incarnation == told.incarnation && known.signer_der == told.signer_der;
            same || known.incarnation > told.incarnation
        });
        if is_known || told.incarnation < self.highest.incarnation {
            return Ok(());
        }
        let (signer_der, signature) = (told.signer_der.clone(), told.signature.clone());
        let signed = Some(Signed { incarnation: told.incarnation, signer_der, signature });
        self.store(self.highest, &signed)?;
        self.signed = signed;
        Ok(())
    }

    /// What a controller is shown.
    pub fn signed(&self) -> Option<v1::SignedIncarnation> {
        let Signed { incarnation, signer_der, signature } = self.signed.clone()?;
        Some(v1::SignedIncarnation { incarnation, signer_der, signature })
    }

    fn store(&self, standing: Standing, signed: &Option<Signed>) -> Result<(), StateFileError> {
        let Standing { incarnation, term, .. } = standing;
        let signed = signed.clone();
        state_file::replace(&self.path, &Stored { v: VERSION, incarnation, term, signed })
    }

    /// The highest seen.
    pub fn highest(&self) -> Standing {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(incarnation: u64, term: u64, applied_index: u64) -> Standing {
        Standing { incarnation, term, applied_index }
    }

    #[test]
    fn what_is_lower_is_ignored_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        assert!(fence.admit(at(1, 3, 10)).unwrap());
        assert!(fence.admit(at(1, 3, 10)).unwrap(), "the same document again");
        assert!(!fence.admit(at(1, 3, 9)).unwrap());
        assert!(!fence.admit(at(1, 2, 99)).unwrap());
        assert!(fence.admit(at(2, 1, 1)).unwrap(), "a restored cluster starts again");
        let mut again = Fence::open(dir.path()).unwrap();
        assert!(!again.admit(at(1, 9, 99)).unwrap());
        assert!(again.admit(at(2, 1, 0)).unwrap());
    }

    #[test]
    fn the_proof_of_the_incarnation_is_kept_and_never_replaced_by_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        assert_eq!(fence.signed(), None);
        let word = |incarnation| v1::SignedIncarnation {
            incarnation,
            signer_der: vec![1, 2],
            signature: vec![3],
        };
        assert!(fence.admit(at(2, 1, 1)).unwrap());
        fence.learn(&word(2)).unwrap();
        fence.learn(&word(1)).unwrap();
        assert!(fence.admit(at(2, 2, 1)).unwrap());
        let again = Fence::open(dir.path()).unwrap();
        assert_eq!(again.signed(), Some(word(2)));
        assert_eq!(again.highest(), Standing { applied_index: 0, ..at(2, 2, 0) });
    }

    #[test]
    fn a_term_that_cannot_be_stored_is_not_admitted() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(fence.admit(at(1, 1, 1)).is_err());
        assert_eq!(fence.highest(), Standing::default());
    }
}
