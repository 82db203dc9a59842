//! Defines the JSON of a stay: somebody had a GPU for a while.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// Somebody had a GPU for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuStay {
    /// What the GPU was called then, `titan01:3`; null: not known.
    pub gpu: Option<String>,
    /// The job or the reservation that had it.
    pub holder: String,
    /// Whose it was; null: not known any more.
    pub owner: Option<String>,
    /// Since when; null: from before what was looked through.
    pub from: Option<Time>,
    /// Until when it was not proven empty; null: it has it still.
    pub until: Option<Time>,
    /// How it ended; null: it has not, or that is not known.
    pub end: Option<String>,
}

impl From<pb::GpuStay> for GpuStay {
    fn from(stay: pb::GpuStay) -> Self {
        Self {
            gpu: text(&stay.node).map(|node| format!("{node}:{}", stay.index)),
            holder: stay.holder,
            owner: text(&stay.owner),
            from: time(stay.from_unix_ms),
            until: time(stay.until_unix_ms),
            end: text(&stay.end),
        }
    }
}

impl Document for GpuStay {
    const SCHEMA: &'static str = "fleet.gpu_stay/v1";
    const LIST_SCHEMA: &'static str = "fleet.gpu_stays/v1";
    const FIELDS: &'static [&'static str] = &["gpu", "holder", "owner", "from", "until", "end"];
}
