//! Shows images on nodes.

use fleet_proto::json::image::Image;

use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::Clock;

/// Digits of a digest that people need.
const DIGITS_SHOWN: usize = 12;

fn users(image: &Image) -> String {
    match (image.in_use, &image.used_by[..]) {
        (true, []) => "being prepared".to_owned(),
        (_, jobs) => jobs.join(", "),
    }
}

fn short(digest: &str) -> String {
    digest.trim_start_matches("sha256:").chars().take(DIGITS_SHOWN).collect()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

impl Row for Image {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("NODE", |i: &Self, _| i.node.clone()),
            Column::new("IMAGE", |i: &Self, _| or_dash(i.names.join(", "))).clip(),
            Column::new("DIGEST", |i: &Self, _| short(i.digest())).rank(2),
            Column::new("SIZE", |i: &Self, _| Bytes(i.size_bytes).to_string()).right(),
            Column::new("USED", |i: &Self, clock| match i.in_use {
                true => "now".to_owned(),
                false => {
                    i.last_used.map_or("-".to_owned(), |at| format!("{} ago", clock.ago(at.0)))
                }
            })
            .right(),
            Column::new("IN USE BY", |i: &Self, _| or_dash(users(i))).clip().rank(1),
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
        lines.extend(self.in_use.then(|| ("In use by", users(self))));
        lines
    }
}
