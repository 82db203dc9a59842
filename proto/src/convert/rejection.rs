//! A refusal as a gRPC status and back: the one table of codes.

use std::collections::HashMap;

use fleet_core::Rejection;
use fleet_core::rejection::DateProblem;
use tonic::{Code, Status, metadata::MetadataValue};

/// Trailer that holds the whole refusal as JSON.
pub const REJECTION_TRAILER: &str = "fleet-rejection-bin";
/// Longest refusal in a status, as JSON. A trailer is base64, which is a third longer, and the message stands beside it:
/// together they stay below [`HEADER_BYTES_MAX`](crate::transport::limits::HEADER_BYTES_MAX), or the answer is lost.
const REJECTION_BYTES_MAX: usize = 8 * 1024;
/// Longest message of a status. Every byte of a letter that is not ASCII becomes three.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Trailer that names the node that an answer is about, where no agent of it is connected to the controller.
pub const NODE_AWAY_TRAILER: &str = "fleet-node-away";
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
    let code = code_of(rejection);
    let mut message = rejection.to_string();
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    let mut status = Status::new(code, message);
    // Without the trailer the code and the message still say what happened.
    if let Some(json) = short_json(rejection) {
        let value = MetadataValue::from_bytes(&json);
        status.metadata_mut().insert_bin(REJECTION_TRAILER, value);
    }
    status
}

fn code_of(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::AboveLimit { why } => code_of(why),
        Rejection::InvalidField { .. }
        | Rejection::UnknownUsers { .. }
        | Rejection::LinesRefused { .. } => Code::InvalidArgument,
        Rejection::NotFound { .. } => Code::NotFound,
        Rejection::Denied { .. } | Rejection::NodeIdentity { .. } => Code::PermissionDenied,
        Rejection::TokenRefused { .. } | Rejection::CodeRefused { .. } => Code::Unauthenticated,
        Rejection::MachineIdTaken { .. }
        | Rejection::AlreadyEnded { .. }
        | Rejection::ChangedSince { .. }
        | Rejection::NotChangeable { .. }
        | Rejection::OfferOver { .. }
        | Rejection::NotRunning { .. }
        | Rejection::NoCheckpoints { .. }
        | Rejection::NotRestartable { .. }
        | Rejection::NotRemovable { .. }
        | Rejection::StillObserved { .. }
        | Rejection::NotForgotten { .. }
        | Rejection::AuditNotPruned { .. }
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
        | Rejection::LimitReached { .. }
        | Rejection::DatesRefused { .. } => Code::ResourceExhausted,
    }
}

/// The refusal as JSON that a trailer has room for: of the lines of an import and the dates of a series as many as fit.
fn short_json(rejection: &Rejection) -> Option<Vec<u8>> {
    let fits = |json: &Vec<u8>| json.len() <= REJECTION_BYTES_MAX;
    let json = serde_json::to_vec(rejection).ok()?;
    if fits(&json) {
        return Some(json);
    }
    let (problems, more) = match rejection {
        Rejection::LinesRefused { problems, more } => (problems, more),
        Rejection::DatesRefused { problems, of, more } => {
            return first_dates(problems, *of, *more).filter(fits);
        }
        _ => return None,
    };
    // Lines with a reason of their own come first: thousands have the same one.
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<_> = problems
        .iter()
        .map(|problem| {
            let times = seen.entry(problem.why.to_string()).or_default();
            *times += 1;
            (*times, problem)
        })
        .collect();
    ranked.sort_by_key(|(times, problem)| (*times, problem.line));
    let mut count = ranked.len();
    while count > 0 {
        count /= 2;
        let mut listed: Vec<_> = ranked[..count].iter().map(|(_, one)| (*one).clone()).collect();
        listed.sort_by_key(|problem| problem.line);
        let left_out = u32::try_from(problems.len() - count).unwrap_or(u32::MAX);
        let short =
            Rejection::LinesRefused { problems: listed, more: more.saturating_add(left_out) };
        if let Some(json) = serde_json::to_vec(&short).ok().filter(fits) {
            return Some(json);
        }
    }
    None
}

/// The refusal of a series with the first of its refused dates: half as many until they fit.
fn first_dates(problems: &[DateProblem], of: u32, more: u32) -> Option<Vec<u8>> {
    let mut count = problems.len();
    loop {
        count /= 2;
        let left_out = u32::try_from(problems.len() - count).unwrap_or(u32::MAX);
        let listed = problems.get(..count)?.to_vec();
        let more = more.saturating_add(left_out);
        let short = Rejection::DatesRefused { problems: listed, of, more };
        let json = serde_json::to_vec(&short).ok()?;
        if json.len() <= REJECTION_BYTES_MAX || count == 0 {
            return Some(json);
        }
    }
}

/// Says in a status which node's agent is not connected.
pub fn node_away(node: &str, mut status: Status) -> Status {
    if let Ok(node) = node.parse() {
        status.metadata_mut().insert(NODE_AWAY_TRAILER, node);
    }
    status
}

/// The node whose agent is not connected to the controller that was asked.
pub fn node_away_in(status: &Status) -> Option<&str> {
    status.metadata().get(NODE_AWAY_TRAILER)?.to_str().ok()
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
    #![allow(clippy::unwrap_used)]

    use fleet_core::rejection::LineProblem;
    use fleet_core::time::{Timestamp, Window};

    use super::*;

    #[test]
    fn a_refusal_of_many_lines_fits_into_an_answer() {
        let rare = "the user is not known";
        let why = |line: u32| match line {
            8_000 => Rejection::field("owner", rare),
            _ => Rejection::field("starts_at", "at most 365d ahead"),
        };
        let problem = |line| LineProblem { line, why: why(line), taken_by: None };
        let all = Rejection::LinesRefused { problems: (0..10_000).map(problem).collect(), more: 0 };
        let status = to_status(&all);
        let json = status.metadata().get_bin(REJECTION_TRAILER).unwrap().to_bytes().unwrap();
        assert!(json.len() <= REJECTION_BYTES_MAX, "{}", json.len());
        let Some(Rejection::LinesRefused { problems, more }) = from_status(&status) else {
            panic!("{status:?}")
        };
        assert_eq!(problems.len() + more as usize, 10_000);
        assert!(problems.len() > 40, "{}", problems.len());
        assert!(problems.is_sorted_by_key(|problem| problem.line));
        assert!(problems.iter().any(|problem| problem.line == 8_000), "a reason is missing");
        assert_eq!(from_status(&status).unwrap().to_string(), all.to_string());
    }

    #[test]
    fn a_refusal_of_many_dates_fits_into_an_answer() {
        let problem = |day: u64| DateProblem {
            window: Window { starts_at: Timestamp(day), ends_at: Timestamp(day + 1) },
            why: Rejection::field("starts_at", "at most 30d ahead (limit of students)"),
        };
        let problems: Vec<DateProblem> = (0..366).map(problem).collect();
        let all = Rejection::DatesRefused { problems: problems.clone(), of: 366, more: 0 };
        let Some(Rejection::DatesRefused { problems: listed, more, .. }) =
            from_status(&to_status(&all))
        else {
            panic!("the refusal is lost")
        };
        assert_eq!(listed.len() + more as usize, 366);
        assert!(listed.len() > 30 && problems.starts_with(&listed), "{}", listed.len());
    }

    #[test]
    fn a_refusal_that_has_no_room_keeps_its_code() {
        let many = Rejection::InUse { what: "a".into(), by: vec!["ä".repeat(100); 1_000] };
        let status = to_status(&many);
        assert_eq!((status.code(), from_status(&status)), (Code::FailedPrecondition, None));
        assert!(status.message().len() <= MESSAGE_BYTES_MAX && !status.message().is_empty());
    }

    #[test]
    fn a_refusal_survives_the_wire() {
        let rejection = Rejection::field("gpus.count", "must be 1 to 64");
        let status = to_status(&rejection);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(from_status(&status), Some(rejection));
        assert_eq!(from_status(&Status::unavailable("no")), None);
    }
}
