//! The promises on the disk: `ahead.json`, replaced whole and flushed before anything in it is confirmed.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fleet_core::id::ClusterId;
use fleet_node::Promises;
use fleet_node::clock::Anchor;
use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE};
use serde::{Deserialize, Serialize};

const FILE: &str = "ahead.json";
const VERSION: u32 = 1;
/// Largest file that is read back: several times as many windows as a node may hold.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why the stored calendar cannot be used. Nothing is repaired silently.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} is damaged; move it away, and what is not on it comes from the controllers again", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} was written by a newer version of fleet (v{found})", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("the thread that stores the calendar died: {0}")]
    Thread(String),
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored<B> {
    v: u32,
    /// Whose windows these are: another fleet's mean nothing.
    cluster: ClusterId,
    /// What the time was when this was written.
    time: Option<Anchor>,
    /// The file has called it so since its first version.
    #[serde(rename = "book")]
    promises: B,
}

/// Where the promises are kept.
#[derive(Debug, Clone)]
pub struct Shelf {
    path: PathBuf,
    cluster: ClusterId,
}

impl Shelf {
    /// For a member of that fleet.
    pub fn new(state_dir: &Path, cluster: ClusterId) -> Self {
        Self { path: state_dir.join(FILE), cluster }
    }

    /// What was stored; nothing where there is none, or where it is another fleet's.
    pub fn load(&self) -> Result<(Promises, Option<Anchor>), ShelfError> {
        let path = self.path.clone();
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|f| f.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Promises::default(), None));
            }
            Err(source) => return Err(ShelfError::Read { path, source }),
        }
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ShelfError::TooLarge { path });
        }
        let damaged = |source| ShelfError::Damaged { path: self.path.clone(), source };
        let Version { v } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if v > VERSION {
            return Err(ShelfError::Newer { path, found: v });
        }
        let Stored { cluster, time, promises, .. } =
            serde_json::from_slice(&bytes).map_err(damaged)?;
        if cluster != self.cluster {
            tracing::info!(%cluster, "the calendar of the fleet that this node left is dropped");
            return Ok((Promises::default(), None));
        }
        Ok((promises, time))
    }

    /// Returns when the promises are on the disk. Blocks.
    pub fn store(&self, promises: &Promises, time: Option<Anchor>) -> Result<(), ShelfError> {
        let stored = Stored { v: VERSION, cluster: self.cluster.clone(), time, promises };
        let bytes = serde_json::to_vec(&stored)
            .map_err(|source| ShelfError::Damaged { path: self.path.clone(), source })?;
        Ok(files::write_atomic(&self.path, &bytes, MODE_PRIVATE)?)
    }
}
