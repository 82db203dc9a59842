//! A refusal as a gRPC status and back: the one table of codes.

use fleet_core::Rejection;
use tonic::{Code, Status, metadata::MetadataValue};

/// Trailer that holds the whole refusal as JSON.
pub const REJECTION_TRAILER: &str = "fleet-rejection-bin";
/// Trailer that names the leading controller's address, when another one was asked.
pub const LEADER_TRAILER: &str = "fleet-leader";

/// Trailer that says that there is no leader, or none that a majority follows: no address is better.
pub const NO_QUORUM_TRAILER: &str = "fleet-no-quorum";

/// Trailer that says that the request changed nothing and never will. Without it a change that got no answer may have
/// been written down.
pub const NOT_TAKEN_TRAILER: &str = "fleet-not-taken";

/// Marks a status whose request was surely not taken.
pub fn not_taken(mut status: Status) -> Status {
    status.metadata_mut().insert(NOT_TAKEN_TRAILER, MetadataValue::from_static("1"));
    status
}

/// Whether the controller that was asked says so.
pub fn is_not_taken(status: &Status) -> bool {
    status.metadata().contains_key(NOT_TAKEN_TRAILER)
}

/// The status of a refusal.
pub fn to_status(rejection: &Rejection) -> Status {
    let code = match rejection {
        Rejection::InvalidField { .. }
        | Rejection::UnknownUsers { .. }
        | Rejection::LinesRefused { .. } => Code::InvalidArgument,
        Rejection::NotFound { .. } => Code::NotFound,
        Rejection::Denied { .. } | Rejection::NodeIdentity { .. } => Code::PermissionDenied,
        Rejection::TokenRefused { .. } => Code::Unauthenticated,
        Rejection::MachineIdTaken { .. }
        | Rejection::AlreadyEnded { .. }
        | Rejection::NotRunning { .. }
        | Rejection::NoCheckpoints { .. }
        | Rejection::NotRestartable { .. }
        | Rejection::NotRemovable { .. }
        | Rejection::StillObserved { .. }
        | Rejection::NotForgotten { .. }
        | Rejection::PlanStale { .. }
        | Rejection::ClusterVersion { .. }
        | Rejection::BreaksQuorum { .. }
        | Rejection::Authority { .. }
        | Rejection::WrongCluster { .. }
        | Rejection::InUse { .. }
        | Rejection::RequestTooOld { .. }
        | Rejection::RequestForgotten { .. } => Code::FailedPrecondition,
        Rejection::IdTaken { .. } | Rejection::RequestReused { .. } => Code::AlreadyExists,
        Rejection::GpusHeld { .. }
        | Rejection::NeverFits { .. }
        | Rejection::NotNow { .. }
        | Rejection::LimitReached { .. } => Code::ResourceExhausted,
    };
    let mut status = Status::new(code, rejection.to_string());
    if let Ok(json) = serde_json::to_vec(rejection) {
        let value = MetadataValue::from_bytes(&json);
        status.metadata_mut().insert_bin(REJECTION_TRAILER, value);
    }
    status
}

/// The refusal in a status, if it holds one that this build understands.
pub fn from_status(status: &Status) -> Option<Rejection> {
    let bytes = status.metadata().get_bin(REJECTION_TRAILER)?.to_bytes().ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The address of the leading controller, where a status of one that does not lead names it.
pub fn leader_named(status: &Status) -> Option<&str> {
    status.metadata().get(LEADER_TRAILER)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_the_wire() {
        let rejection = Rejection::field("gpus.count", "must be 1 to 64");
        let status = to_status(&rejection);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(from_status(&status), Some(rejection));
        assert_eq!(from_status(&Status::unavailable("no")), None);
    }
}
