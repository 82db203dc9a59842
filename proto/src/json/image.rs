//! Defines the JSON of an image that a node has.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// An image on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Image {
    /// The node that has it.
    pub node: String,
    /// Names in registries, files.
    pub names: Vec<String>,
    /// Of what its name in a registry means; of those from files, none.
    pub digest: Option<String>,
    /// Digest of its configuration.
    pub id: String,
    /// Its size on the disk, in bytes.
    pub size_bytes: u64,
    /// When a job used it last; null: not known.
    pub last_used: Option<Time>,
    /// Whether something uses it now, be it that it is only being prepared.
    pub in_use: bool,
    /// The jobs that use it now.
    pub used_by: Vec<String>,
}

impl Image {
    /// This image of this node.
    pub fn of(node: &str, image: pb::NodeImage) -> Self {
        Self {
            node: node.to_owned(),
            names: image.names,
            digest: text(&image.digest),
            id: image.id,
            size_bytes: image.size_bytes,
            last_used: time(image.used_at_unix_ms),
            in_use: image.in_use,
            used_by: image.used_by,
        }
    }

    /// What `image rm` takes and job show calls *Image digest*.
    pub fn digest(&self) -> &str {
        self.digest.as_deref().unwrap_or(&self.id)
    }

    /// Its names, else its digest.
    pub fn name(&self) -> String {
        match self.names[..] {
            [] => self.digest().to_owned(),
            _ => self.names.join(", "),
        }
    }
}

impl Document for Image {
    const SCHEMA: &'static str = "fleet.image/v1";
    const LIST_SCHEMA: &'static str = "fleet.images/v1";
    const FIELDS: &'static [&'static str] =
        &["node", "names", "digest", "id", "size_bytes", "last_used", "in_use", "used_by"];
}
