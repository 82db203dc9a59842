//! An image that is here, and the layers that show it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tracing::warn;

use crate::beneath::Root;
use crate::manifest::ImageConfig;
use crate::overlay;
use crate::pins::Pin;

/// An image that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `sha256:…` of the configuration.
    pub digest: String,
    pub config: ImageConfig,
    /// Lowest first.
    pub layers: Vec<Layer>,
    /// `sha256:…` of what its name in a registry means, or its id in dockerd.
    pub manifest: Option<String>,
    /// A note for the user who asked for the image.
    pub note: Option<String>,
    /// Its record in the store.
    pub(crate) record: PathBuf,
    /// It is not removed as long as somebody has this.
    pub(crate) pin: Arc<Pin>,
}

/// One unpacked layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its root directory.
    pub dir: PathBuf,
    /// Whether it also holds the content of all layers below it: made where overlayfs could not be mounted.
    pub whole: bool,
}

/// The directories that show an image of these layers, the lowest first: nothing below a whole one is needed.
pub(crate) fn needed(layers: &[Layer]) -> Vec<&Path> {
    let first = layers.iter().rposition(|layer| layer.whole).unwrap_or(0);
    layers.iter().skip(first).map(|layer| &*layer.dir).collect()
}

/// What these layers show together. `at` is an empty directory, and is one again when this returns.
pub(crate) fn view_of(layers: &[Layer], at: &Path) -> std::io::Result<Root> {
    match needed(layers)[..] {
        [] => Root::open(at),
        [only] => Root::open(only),
        ref several => overlay::open_view(several, None, at).map_err(std::io::Error::other),
    }
}

/// Notes that the image of this record is used.
pub(crate) fn used_now(record: &Path) {
    let file = File::options().append(true).open(record);
    if let Err(error) = file.and_then(|file| file.set_modified(SystemTime::now())) {
        warn!(%error, path = %record.display(), "it is not noted that an image is used");
    }
}
