//! Images on nodes.

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::values::{Time, text, time};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

/// Digits of a digest that people need.
const DIGITS_SHOWN: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Image {
    pub(crate) node: String,
    /// Names in registries, files.
    pub(crate) names: Vec<String>,
    /// Of what its name in a registry means; of those from files, none.
    pub(crate) digest: Option<String>,
    /// Digest of its configuration.
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    pub(crate) last_used: Option<Time>,
    pub(crate) in_use: bool,
    /// Jobs.
    pub(crate) used_by: Vec<String>,
}

impl Image {
    pub(crate) fn of(node: &str, image: pb::NodeImage) -> Self {
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
    pub(crate) fn digest(&self) -> &str {
        self.digest.as_deref().unwrap_or(&self.id)
    }

    pub(crate) fn name(&self) -> String {
        match self.names[..] {
            [] => self.digest().to_owned(),
            _ => self.names.join(", "),
        }
    }

    fn users(&self) -> String {
        match (self.in_use, &self.used_by[..]) {
            (true, []) => "being prepared".to_owned(),
            (_, jobs) => jobs.join(", "),
        }
    }
}

fn short(digest: &str) -> String {
    digest.trim_start_matches("sha256:").chars().take(DIGITS_SHOWN).collect()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

impl Row for Image {
    const SCHEMA: &'static str = "fleet.image/v1";
    const LIST_SCHEMA: &'static str = "fleet.images/v1";
    const FIELDS: &'static [&'static str] =
        &["node", "names", "digest", "id", "size_bytes", "last_used", "in_use", "used_by"];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |i: &Self, _| i.node.clone()),
            Column::new("IMAGE", |i: &Self, _| or_dash(i.names.join(", "))),
            Column::new("DIGEST", |i: &Self, _| short(i.digest())),
            Column::new("SIZE", |i: &Self, _| Bytes(i.size_bytes).to_string()).right(),
            Column::new("USED", |i: &Self, clock| match i.in_use {
                true => "now".to_owned(),
                false => {
                    i.last_used.map_or("-".to_owned(), |at| format!("{} ago", clock.ago(at.0)))
                }
            })
            .right(),
            Column::new("IN USE BY", |i: &Self, _| or_dash(i.users())),
            Column::new("FULL DIGEST", |i: &Self, _| i.digest().to_owned()).wide(),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![("Node", self.node.clone())];
        lines.extend((!self.names.is_empty()).then(|| ("Image", self.names.join(", "))));
        lines.extend(self.digest.clone().map(|digest| ("Digest", digest)));
        lines.push(("Id", self.id.clone()));
        lines.push(("Size", Bytes(self.size_bytes).to_string()));
        lines.extend(self.last_used.map(|at| ("Last used", clock.minute(at.0))));
        lines.extend(self.in_use.then(|| ("In use by", self.users())));
        lines
    }
}
