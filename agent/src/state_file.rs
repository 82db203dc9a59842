//! A small JSON file with a version in the agent's state folder: read whole or refused, replaced durably.
//!
//! Used for what the agent must know again after a restart and learns rarely. A file that is damaged or
//! newer than this build is an error, never silently replaced by an empty one: the caller decides what to do.

use std::path::{Path, PathBuf};

use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not valid", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} was written by a newer version of fleet (v{found})", path.display())]
    Newer { path: PathBuf, found: u32 },
}

/// Any of the files, for its version.
#[derive(Debug, Deserialize)]
struct Version {
    v: u32,
}

/// `None` where there is no file yet. `version` is the newest that the caller knows.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    version: u32,
) -> Result<Option<T>, StateFileError> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = files::read_limited(path)?;
    let damaged = |source| StateFileError::Damaged { path: path.to_owned(), source };
    let Version { v } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if v > version {
        return Err(StateFileError::Newer { path: path.to_owned(), found: v });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// On the disk when it returns.
pub(crate) fn replace<T: Serialize>(path: &Path, value: &T) -> Result<(), StateFileError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| StateFileError::Damaged { path: path.to_owned(), source })?;
    Ok(files::write_atomic(path, &bytes, MODE_PRIVATE)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_newer_or_damaged_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        assert!(read::<serde_json::Value>(&path, 1).unwrap().is_none());
        replace(&path, &serde_json::json!({ "v": 1, "x": 5 })).unwrap();
        assert_eq!(read::<serde_json::Value>(&path, 1).unwrap().unwrap()["x"], 5);
        replace(&path, &serde_json::json!({ "v": 2 })).unwrap();
        let newer = read::<serde_json::Value>(&path, 1).unwrap_err();
        assert!(matches!(newer, StateFileError::Newer { found: 2, .. }), "{newer}");
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(read::<serde_json::Value>(&path, 1), Err(StateFileError::Damaged { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{");
    }
}
