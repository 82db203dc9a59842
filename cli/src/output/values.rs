//! The small values rows are made of: unknown is null, never an empty text or a zero.

use fleet_proto::v1 as pb;
use serde::{Serialize, Serializer};

use crate::times::rfc3339;

/// An instant: RFC 3339 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) u64);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

/// `None` for the 0 that stands for "not known" on the wire.
pub(crate) fn time(unix_ms: u64) -> Option<Time> {
    (unix_ms != 0).then_some(Time(unix_ms))
}

/// `None` for the empty text that stands for "not known" on the wire.
pub(crate) fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// `None` for the 0 that stands for "not known" on the wire.
pub(crate) fn size(bytes: u64) -> Option<u64> {
    (bytes != 0).then_some(bytes)
}

/// A GPU as other things refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GpuRef {
    pub(crate) uuid: String,
    pub(crate) node: Option<String>,
    pub(crate) index: Option<u32>,
    pub(crate) model: Option<String>,
}

impl From<pb::GpuRef> for GpuRef {
    fn from(gpu: pb::GpuRef) -> Self {
        // Without a node the index means nothing.
        let index = (!gpu.node.is_empty()).then_some(gpu.index);
        Self { uuid: gpu.uuid, node: text(&gpu.node), index, model: text(&gpu.model) }
    }
}

/// `titan01:0,1`, as people say it.
pub(crate) fn gpu_names(gpus: &[GpuRef]) -> String {
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

/// A health fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Condition {
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) severity: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) since: Option<Time>,
    pub(crate) gpu_uuid: Option<String>,
    /// It stays until it is cleared.
    pub(crate) sticky: bool,
    /// No sample lifts it, and an admin may clear it.
    pub(crate) clearable: bool,
}

impl From<pb::Condition> for Condition {
    fn from(condition: pb::Condition) -> Self {
        Self {
            severity: text(&condition.severity),
            reason: text(&condition.reason),
            message: text(&condition.message),
            since: time(condition.since_unix_ms),
            gpu_uuid: text(&condition.gpu_uuid),
            sticky: condition.sticky,
            clearable: condition.clearable || condition.sticky,
            kind: condition.kind,
            status: condition.status,
        }
    }
}

/// `EccUncorrected: true (fatal): two errors in …`.
pub(crate) fn condition_line(condition: &Condition) -> String {
    let mut line = format!("{}: {}", condition.kind, condition.status);
    if let Some(severity) = &condition.severity {
        line.push_str(&format!(" ({severity})"));
    }
    for part in [&condition.reason, &condition.message].into_iter().flatten() {
        line.push_str(&format!(": {part}"));
    }
    if condition.sticky {
        line.push_str("; stays until cleared");
    } else if condition.clearable {
        line.push_str("; goes a day after the last, or when cleared");
    }
    line
}

/// `-` for what is not known or not there.
pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
