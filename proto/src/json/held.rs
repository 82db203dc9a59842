//! Defines the JSON of the GPUs of one machine that the caller holds.

use serde::Serialize;

use super::Document;
use super::values::{Time, time};
use crate::v1 as pb;

/// A GPU that the caller holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldGpu {
    /// As people say it, `titan01:3`.
    pub gpu: String,
    /// The UUID that NVIDIA's driver gives it.
    pub uuid: String,
    /// The reservation by which it is held.
    pub reservation: String,
    /// When that ends; null: not known.
    pub ends_at: Option<Time>,
}

/// All of them, in the order of their numbers.
pub fn held(here: &pb::HeldHere) -> Vec<HeldGpu> {
    let one = |gpu: &pb::HeldGpu| HeldGpu {
        gpu: format!("{}:{}", here.node, gpu.index),
        uuid: gpu.uuid.clone(),
        reservation: gpu.reservation.clone(),
        ends_at: time(gpu.ends_at_unix_ms),
    };
    here.gpus.iter().map(one).collect()
}

impl Document for HeldGpu {
    const SCHEMA: &'static str = "fleet.held_gpu/v1";
    const LIST_SCHEMA: &'static str = "fleet.held_gpus/v1";
    const FIELDS: &'static [&'static str] = &["gpu", "uuid", "reservation", "ends_at"];
}
