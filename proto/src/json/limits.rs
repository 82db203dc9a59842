//! Defines the JSON of how much people may reserve, by group.

use serde::Serialize;

use super::Document;
use crate::v1 as pb;

/// How much the members of a group may reserve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReservationLimits {
    /// A Unix group; `*`: everybody who is in no group with limits.
    pub group: String,
    /// How many GPUs at once, 0: none at all; null: as many as there are.
    pub gpus: Option<u32>,
    /// How long a reservation may be, in milliseconds; null: as long as any.
    pub length_ms: Option<u64>,
    /// How far ahead it may start, in milliseconds; null: as far as any.
    pub ahead_ms: Option<u64>,
}

impl From<pb::ReservationLimits> for ReservationLimits {
    fn from(limits: pb::ReservationLimits) -> Self {
        let pb::ReservationLimits { group, gpus, length_ms, ahead_ms } = limits;
        Self { group, gpus, length_ms, ahead_ms }
    }
}

/// Who may approve reservations above a limit, beside admins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approvers {
    /// By their names.
    pub members: Vec<String>,
    /// Unix groups whose members may, too.
    pub groups: Vec<String>,
}

impl From<pb::Approvers> for Approvers {
    fn from(approvers: pb::Approvers) -> Self {
        Self { members: approvers.members, groups: approvers.groups }
    }
}

impl Document for Approvers {
    const SCHEMA: &'static str = "fleet.approvers/v1";
    const LIST_SCHEMA: &'static str = "fleet.approvers_list/v1";
    const FIELDS: &'static [&'static str] = &["members", "groups"];
}

impl Document for ReservationLimits {
    const SCHEMA: &'static str = "fleet.reservation_limits/v1";
    const LIST_SCHEMA: &'static str = "fleet.reservation_limits_list/v1";
    const FIELDS: &'static [&'static str] = &["group", "gpus", "length_ms", "ahead_ms"];
}
