//! What the agent and its NVML child say to each other: one JSON object a line, `{"v":1,…}`.
//!
//! Both ends are the same binary, but after an upgrade the child of the old one may live on, so
//! the lines carry a version and unknown fields are ignored.

use fleet_core::name::GpuUuid;
use serde::{Deserialize, Serialize};

use super::report::{DriverInfo, GpuInfo, Link, Telemetry};

pub(crate) const WIRE_VERSION: u32 = 1;
/// Longest line accepted from the child: 4,096 processes on a GPU fit.
pub(crate) const LINE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireLine<T> {
    pub(crate) v: u32,
    #[serde(flatten)]
    pub(crate) body: T,
}

impl<T> WireLine<T> {
    pub(crate) fn new(body: T) -> Self {
        Self { v: WIRE_VERSION, body }
    }
}

/// Agent to child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Measure every GPU; ends with [`Message::Done`] of the same number.
    Sample { id: u64 },
}

/// Child to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// A step begins that enters the driver; with an index, on that GPU only. The agent's deadline
    /// runs from here, and blames that GPU.
    Begin {
        index: Option<u32>,
        what: String,
    },
    /// There is no driver to ask. The child ends.
    Absent {
        reason: String,
    },
    /// The driver is there and does not work. The child ends.
    Failed {
        reason: String,
    },
    Driver {
        info: DriverInfo,
        count: u32,
    },
    Gpu {
        info: GpuInfo,
    },
    GpuFailed {
        index: u32,
        /// Off the bus, as against not permitted or not understood.
        lost: bool,
        reason: String,
    },
    Links {
        links: Vec<Link>,
    },
    /// The inventory is complete, events are waited for, requests are read.
    Ready,
    Sample {
        uuid: GpuUuid,
        telemetry: Telemetry,
    },
    SampleLost {
        uuid: GpuUuid,
        reason: String,
    },
    Done {
        id: u64,
    },
    /// An XID; without a code the driver did not say which.
    Xid {
        uuid: GpuUuid,
        code: Option<u64>,
    },
    DoubleBitEcc {
        uuid: GpuUuid,
    },
    /// No events come any more; the agent starts a new child.
    EventsFailed {
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use fleet_hostile_bytes::throw_at;

    use super::*;

    #[test]
    fn hostile_lines_of_the_driver_process() {
        let good = [
            r#"{"v":1,"sample":{"id":7}}"#,
            r#"{"v":1,"begin":{"index":0,"what":"memory"}}"#,
            r#"{"v":1,"absent":{"reason":"no driver"}}"#,
        ];
        throw_at(&good, |bytes| {
            serde_json::from_slice::<WireLine<Message>>(bytes).is_ok()
                | serde_json::from_slice::<WireLine<Request>>(bytes).is_ok()
        });
    }
}
