//! Whose orders the state folder remembers: what was learned from another fleet's controllers is dropped once this node
//! has joined another one.
//!
//! The highest term and the epochs of one fleet say nothing about another's: a new fleet counts from the beginning, and
//! would be ignored for ever. Called once by `server`, before anything of it is read. The calendar carries its fleet's
//! id itself (`ahead/store.rs`). What the node decided on its own (root's switch, images, faults of GPUs) stays, and so
//! do attempts that still run: what is on a GPU keeps it from being used, no matter which fleet ordered that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fleet_core::id::ClusterId;
use serde::{Deserialize, Serialize};

use crate::fence::{epochs, standing};
use crate::gpu_use;
use crate::state_file::{self, StateFileError};

const FILE: &str = "fleet.json";
const VERSION: u32 = 1;
/// What only means something within one fleet.
const OF_ONE_FLEET: [&str; 2] = [standing::FILE, epochs::FILE];

/// Why the state of a fleet that was left cannot be dropped.
#[derive(Debug, thiserror::Error)]
pub enum MovedError {
    #[error(transparent)]
    State(#[from] StateFileError),
    #[error("remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u32,
    cluster: ClusterId,
}

/// Makes sure that what is in `state_dir` is of `cluster`. Where nothing says of which fleet it is, it is taken for this
/// one's.
pub fn settle(state_dir: &Path, cluster: &ClusterId) -> Result<(), MovedError> {
    let marker = state_dir.join(FILE);
    let known: Option<Stored> = state_file::read(&marker, VERSION)?;
    if known.as_ref().is_some_and(|known| known.cluster == *cluster) {
        return Ok(());
    }
    if let Some(Stored { cluster: left, .. }) = known {
        tracing::info!(%left, joined = %cluster, "what the fleet that this node left has ordered counts no more");
        // Before the new mark: cut short, it is done again.
        for name in OF_ONE_FLEET {
            remove(state_dir.join(name), |path| fs::remove_file(path))?;
        }
        // The holders in there are of the fleet that was left.
        for folder in [gpu_use::FOLDER, gpu_use::MINUTES_FOLDER] {
            remove(state_dir.join(folder), |path| fs::remove_dir_all(path))?;
        }
    }
    Ok(state_file::replace(&marker, &Stored { v: VERSION, cluster: cluster.clone() })?)
}

fn remove(path: PathBuf, how: impl Fn(&Path) -> io::Result<()>) -> Result<(), MovedError> {
    match how(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MovedError::Remove { path, source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fence::{Fence, Standing};

    fn cluster(name: &str) -> ClusterId {
        ClusterId::parse(&format!("fleet-{name}")).unwrap()
    }

    fn at(incarnation: u64, term: u64) -> Standing {
        Standing { incarnation, term, applied_index: 1 }
    }

    #[test]
    fn a_node_that_joined_another_fleet_obeys_it_from_its_first_document_on() {
        let dir = tempfile::tempdir().unwrap();
        let join = |name: &str| settle(dir.path(), &cluster(name)).unwrap();
        let admits = |standing| Fence::open(dir.path()).unwrap().admit(standing).unwrap();
        let epochs = dir.path().join(epochs::FILE);
        // Written by a version that did not say whose it is.
        assert!(admits(at(7, 40)));
        join("first");
        assert!(!admits(at(1, 1)), "of the same fleet it is an old one");
        fs::write(&epochs, "").unwrap();
        let used = dir.path().join(gpu_use::MINUTES_FOLDER);
        fs::create_dir(&used).unwrap();
        fs::write(used.join("5.json"), "").unwrap();
        join("first");
        assert!(epochs.exists() && used.exists() && !admits(at(7, 39)));
        join("second");
        assert!(!epochs.exists() && !used.exists() && admits(at(1, 1)));
        join("second");
        assert!(!admits(at(1, 0)), "and is held to what that one said");
    }

    #[test]
    fn what_cannot_be_dropped_is_told_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        settle(dir.path(), &cluster("first")).unwrap();
        let stuck = dir.path().join(standing::FILE);
        fs::create_dir(&stuck).unwrap();
        let told = settle(dir.path(), &cluster("second")).unwrap_err().to_string();
        assert!(told.contains(standing::FILE), "{told}");
        fs::remove_dir(&stuck).unwrap();
        fs::write(&stuck, "{").unwrap();
        settle(dir.path(), &cluster("second")).unwrap();
        assert!(!stuck.exists());
    }
}
