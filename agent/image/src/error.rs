//! Why an image cannot be used. Users read these, so each names the file, blob or entry.

pub(crate) mod registry;

use std::path::PathBuf;

use self::registry::RegistryError;
use super::daemon::DaemonError;
use super::text::readable;
use fleet_user::AsUserError;

/// What is wrong with one entry of a layer or archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its path is absolute")]
    Absolute,
    #[error("its path goes up by '..' and out of the image")]
    GoesUp,
    #[error("its path is empty or holds a NUL byte")]
    BadName,
    #[error("its path is longer than {max} bytes, or a part of it longer than 255")]
    PathTooLong { max: usize },
    #[error("it is deeper than {max} directories")]
    TooDeep { max: usize },
    #[error("its path goes through {0:?}, which is not a directory")]
    NotADirectory(String),
    #[error("its path goes through more than {max} symbolic links, or round in circles")]
    TooManyLinks { max: usize },
    #[error("the links and whiteouts of its layer lead through more than {max} names")]
    TooManySteps { max: u64 },
    #[error("it is a hard link to {target}, which {why}")]
    HardLink { target: String, why: &'static str },
    #[error("it is a device node")]
    Device,
    #[error("its type {kind:?} is not supported")]
    UnknownType { kind: char },
    #[error("it is a whiteout of {0:?}")]
    BadWhiteout(String),
    #[error("its header says {header} bytes and its PAX record {pax}")]
    SizeMismatch { header: u64, pax: u64 },
    #[error("its PAX records are malformed: {why}")]
    BadPax { why: String },
    #[error("its size of {size} bytes is over the limit of {max} for one file")]
    FileTooLarge { size: u64, max: u64 },
    #[error("with it the image has more than {max} bytes")]
    ImageTooLarge { max: u64 },
    #[error("with it the image has more than {max} entries")]
    TooManyEntries { max: u64 },
    #[error("with it the names of the layer's directories have more than {max} bytes")]
    TooManyNames { max: u64 },
    #[error("its extended attributes are over the limit of {max} of at most {bytes_max} bytes")]
    Xattrs { max: usize, bytes_max: usize },
    #[error("its owner {0} is no valid id")]
    BadOwner(u64),
    #[error("its header cannot be read: {why}")]
    BadHeader { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("image file cannot be read")]
    Source(#[from] AsUserError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("read image {path}")]
    Read {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not an image: {why}")]
    NotAnImage { path: String, why: String },
    #[error("{document} of the image: {why}")]
    BadDocument { document: String, why: String },
    #[error("the archive holds several images; name one of: {}", tags.join(", "))]
    Ambiguous { tags: Vec<String> },
    #[error("the archive holds no image {tag:?}; it holds: {}", tags.join(", "))]
    NoSuchTag { tag: String, tags: Vec<String> },
    #[error("the image is for {found}, this node is {wanted}")]
    WrongPlatform { found: String, wanted: String },
    #[error("blob {name} has digest {found}, but should have {expected}")]
    DigestMismatch { name: String, expected: String, found: String },
    #[error("blob {name} has {found} bytes, but should have {expected}")]
    SizeMismatch { name: String, expected: u64, found: u64 },
    #[error("entry {entry:?} of {layer} is refused: {why}")]
    Refused { layer: String, entry: String, why: Refusal },
    #[error("{what} is over the limit of {max}")]
    OverLimit { what: String, max: u64 },
    #[error("{name} expands more than {max}-fold: a decompression bomb")]
    Bomb { name: String, max: u64 },
    #[error("the disk of {} has less than {min} bytes free", path.display())]
    DiskFull { path: PathBuf, min: u64 },
    #[error(
        "the image has {} or more, and the image store of this node may have {} (images.store_bytes_max in its agent.toml)",
        readable(*needs), readable(*limit)
    )]
    StoreTooSmall { needs: u64, limit: u64 },
    #[error(
        "the image store of this node is full: it may have {} (images.store_bytes_max in its agent.toml), {} of that are in use, and the image needs {} more",
        readable(*limit), readable(*in_use), readable(*needs)
    )]
    StoreFull { needs: u64, in_use: u64, limit: u64 },
    #[error("{what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("entry {entry:?} of {layer} could not be written")]
    Write {
        layer: String,
        entry: String,
        #[source]
        source: std::io::Error,
    },
    #[error("image \"host\" is the node's own file system and is not unpacked")]
    Host,
    #[error("another job has been unpacking the same image for {waited_s} s")]
    Busy { waited_s: u64 },
    #[error("the unpacking thread died")]
    ThreadDied,
}

impl ImageError {
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }

    pub(super) fn document(document: &str, why: impl ToString) -> Self {
        Self::BadDocument { document: document.to_owned(), why: why.to_string() }
    }
}
