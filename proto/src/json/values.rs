//! Holds the small values that the JSON is made of: unknown is null, never an empty text or a zero.

use std::fmt;

use fleet_core::health::{ConditionStatus, Severity};
use fleet_core::word::Word;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::v1 as pb;

/// An instant, in milliseconds since 1970 UTC; RFC 3339 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub u64);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

/// As in JSON.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rfc3339(self.0))
    }
}

/// RFC 3339 in UTC; always with milliseconds, so that sorting the text sorts the times.
fn rfc3339(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| unix_ms.to_string(), |at| format!("{at:.3}"))
}

/// `None` for the 0 that stands for "not known" on the wire.
pub fn time(unix_ms: u64) -> Option<Time> {
    (unix_ms != 0).then_some(Time(unix_ms))
}

/// `None` for the empty text that stands for "not known" on the wire.
pub fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// `None` for the 0 that stands for "not known" on the wire.
pub fn size(bytes: u64) -> Option<u64> {
    (bytes != 0).then_some(bytes)
}

/// A GPU as other things refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuRef {
    /// The UUID that NVIDIA's driver gives it.
    pub uuid: String,
    /// Its node; null where that is not known.
    pub node: Option<String>,
    /// Its number on its node, from 0; null where the node is not known.
    pub index: Option<u32>,
    /// Its model as fleet calls it, `v100`; null where it is not known.
    pub model: Option<String>,
}

impl From<pb::GpuRef> for GpuRef {
    fn from(gpu: pb::GpuRef) -> Self {
        // Without a node the index means nothing.
        let index = (!gpu.node.is_empty()).then_some(gpu.index);
        Self { uuid: gpu.uuid, node: text(&gpu.node), index, model: text(&gpu.model) }
    }
}

/// `titan01:0,1`, as people say it.
pub fn gpu_names(gpus: &[GpuRef]) -> String {
    let mut shown: Vec<(String, Vec<String>)> = Vec::new();
    for gpu in gpus {
        let (node, index) = match (&gpu.node, gpu.index) {
            (Some(node), Some(index)) => (node.clone(), index.to_string()),
            _ => (String::new(), gpu.uuid.clone()),
        };
        match shown.last_mut() {
            Some((last, numbers)) if *last == node => numbers.push(index),
            _ => shown.push((node, vec![index])),
        }
    }
    let parts: Vec<String> = shown
        .into_iter()
        .map(|(node, numbers)| match node.as_str() {
            "" => numbers.join(","),
            node => format!("{node}:{}", numbers.join(",")),
        })
        .collect();
    parts.join(" ")
}

/// A state by its word. A word that this version does not know, of a newer controller, is kept as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated<T> {
    word: String,
    known: Option<T>,
}

impl<T: Word> From<String> for Stated<T> {
    fn from(word: String) -> Self {
        Self { known: T::from_word(&word), word }
    }
}

impl<T: Word> Stated<T> {
    /// The state; `None` for one of a newer version.
    pub fn known(&self) -> Option<T> {
        self.known
    }

    /// Whether it is this state.
    pub fn is(&self, state: T) -> bool {
        self.known == Some(state)
    }

    /// The word, also of a state that is not known here.
    pub fn word(&self) -> &str {
        &self.word
    }
}

impl<T> std::fmt::Display for Stated<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.word)
    }
}

impl<T> Serialize for Stated<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.word)
    }
}

/// `None` for the empty word that stands for "not known" on the wire.
pub fn stated<T: Word>(word: String) -> Option<Stated<T>> {
    (!word.is_empty()).then(|| Stated::from(word))
}

/// A health fact about a node or a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// What it is about, `EccUncorrected`.
    pub kind: String,
    /// `true`, `false`, `unknown`.
    pub status: Stated<ConditionStatus>,
    /// `notice`, `degraded`, `fatal`; null where none was given.
    pub severity: Option<Stated<Severity>>,
    /// Why it has this status, in one word; null where none was given.
    pub reason: Option<String>,
    /// The same as a sentence; null where there is none.
    pub message: Option<String>,
    /// Since when it has this status; null: not known.
    pub since: Option<Time>,
    /// The GPU it is about; null: the node itself.
    pub gpu_uuid: Option<String>,
    /// It stays until it is cleared.
    pub sticky: bool,
    /// No sample lifts it, and an admin may clear it.
    pub clearable: bool,
}

impl From<pb::Condition> for Condition {
    fn from(condition: pb::Condition) -> Self {
        Self {
            severity: stated(condition.severity),
            reason: text(&condition.reason),
            message: text(&condition.message),
            since: time(condition.since_unix_ms),
            gpu_uuid: text(&condition.gpu_uuid),
            sticky: condition.sticky,
            clearable: condition.clearable || condition.sticky,
            kind: condition.kind,
            status: condition.status.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(rfc3339(1_795_253_467_000), "2026-11-21T09:31:07.000Z");
        assert_eq!(rfc3339(1_795_253_467_005), "2026-11-21T09:31:07.005Z");
        // Far beyond every calendar: shown, not a panic.
        assert_eq!(rfc3339(u64::MAX), u64::MAX.to_string());
    }
}
