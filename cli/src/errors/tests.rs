#![allow(clippy::unwrap_used)]

use fleet_core::Timestamp;
use fleet_core::name::{GpuUuid, NodeName, UserName};
use tonic::metadata::{MetadataMap, MetadataValue};

use super::*;

fn berlin() -> Clock {
    Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin")
}

fn status_with(code: Code, rejection: &Rejection) -> Status {
    let mut trailers = MetadataMap::new();
    let json = serde_json::to_vec(rejection).unwrap();
    trailers.insert_bin(REJECTION_TRAILER, MetadataValue::from_bytes(&json));
    Status::with_metadata(code, "for programs", trailers)
}

fn held() -> Rejection {
    let uuid = |text| GpuUuid::parse(text).unwrap();
    Rejection::GpusHeld {
        wanted: "2 v100".to_owned(),
        holdings: vec![Holding {
            gpu: uuid("GPU-0a"),
            node: NodeName::parse("titan01").unwrap(),
            index: 3,
            owner: UserName::parse("bea").unwrap(),
            holder: "res-9d2fwm".to_owned(),
            until: Some(Timestamp(1_795_284_000_000)),
        }],
        next: Some(Slot {
            starts_at: Timestamp(1_795_284_000_000),
            node: NodeName::parse("titan01").unwrap(),
            gpus: vec![uuid("GPU-0a"), uuid("GPU-0b")],
        }),
    }
}

#[test]
fn a_refusal_says_who_holds_what_and_what_comes_next() {
    let failure = Failure::of_status(&status_with(Code::ResourceExhausted, &held()), &berlin());
    assert_eq!(failure.exit, Exit::NoCapacity);
    assert_eq!(failure.message, "not free at that time: 2 v100");
    assert_eq!(
        failure.details,
        [
            "titan01:3  bea (res-9d2fwm) until Sat 2026-11-21 19:00 CET",
            "next free: 2 GPUs on titan01 from Sat 2026-11-21 19:00 CET"
        ]
    );
    assert_eq!(failure.next_slot().unwrap().node.as_str(), "titan01");
    assert!(!failure.unanswered);
}

#[test]
fn who_holds_a_whole_node_is_one_line() {
    let Rejection::GpusHeld { wanted, holdings, next } = held() else {
        panic!("that is what it is")
    };
    let of = |index: u32, owner: &str| Holding {
        index,
        owner: UserName::parse(owner).unwrap(),
        ..holdings[0].clone()
    };
    let mut all: Vec<Holding> = [0, 1, 2].map(|index| of(index, "bea")).to_vec();
    all.extend((3..40).map(|index| of(index, &format!("user{index}"))));
    let held = Rejection::GpusHeld { wanted, holdings: all, next };
    let details = Failure::of_rejection(held, &berlin()).details;
    assert_eq!(details[0], "titan01:0,1,2  bea (res-9d2fwm) until Sat 2026-11-21 19:00 CET");
    assert_eq!(details.len(), HOLDINGS_SHOWN_MAX + 2);
    assert_eq!(details[HOLDINGS_SHOWN_MAX], "and 18 GPUs more");
}

#[test]
fn each_refusal_has_its_exit_code() {
    let text = |s: &str| s.to_owned();
    for (rejection, exit) in [
        (Rejection::field("ends_at", "is before the start"), Exit::Usage),
        (Rejection::not_found("job", "job-zzzzzz"), Exit::NotFound),
        (Rejection::Denied { needs: text("an admin") }, Exit::Denied),
        (Rejection::AlreadyEnded { id: text("job-a"), state: text("failed") }, Exit::Conflict),
        (held(), Exit::NoCapacity),
        (Rejection::NeverFits { why: text("no node has 9 GPUs") }, Exit::NoCapacity),
        (Rejection::NotNow { why: text("nothing is free") }, Exit::NoCapacity),
        (Rejection::RequestReused { id: text("x") }, Exit::Conflict),
        (Rejection::UnknownUsers { users: Vec::new() }, Exit::Usage),
        (Rejection::NotForgotten { what: text("a:0"), why: vec![text("b")] }, Exit::Conflict),
        (Rejection::AuditNotPruned { why: text("too young") }, Exit::Conflict),
        (Rejection::StillObserved { what: text("a:0"), why: text("hot") }, Exit::Conflict),
        (Rejection::ClusterVersion { needs: 2, have: 1 }, Exit::Failed),
    ] {
        let failure = Failure::of_status(&status_with(Code::Internal, &rejection), &berlin());
        assert_eq!(failure.exit, exit, "{rejection}");
    }
}

#[test]
fn a_status_without_a_refusal_goes_by_its_code() {
    for (code, exit) in [
        (Code::InvalidArgument, Exit::Usage),
        (Code::NotFound, Exit::NotFound),
        (Code::PermissionDenied, Exit::Denied),
        (Code::FailedPrecondition, Exit::Conflict),
        (Code::ResourceExhausted, Exit::NoCapacity),
        (Code::Unavailable, Exit::Unreachable),
        (Code::DeadlineExceeded, Exit::Unreachable),
        (Code::Internal, Exit::Failed),
    ] {
        let failure = Failure::of_status(&Status::new(code, "words"), &berlin());
        assert_eq!((failure.exit, failure.message.as_str()), (exit, "words"), "{code:?}");
    }
}

#[test]
fn a_trailer_that_is_no_refusal_is_not_believed() {
    let mut trailers = MetadataMap::new();
    trailers.insert_bin(REJECTION_TRAILER, MetadataValue::from_bytes(b"{\"future\":1}"));
    let status = Status::with_metadata(Code::NotFound, "there is no such thing", trailers);
    let failure = Failure::of_status(&status, &berlin());
    assert_eq!(
        (failure.exit, failure.message.as_str()),
        (Exit::NotFound, "there is no such thing")
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
    assert_eq!(closed.exit, Exit::Done);
    let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
    assert_eq!(full.exit, Exit::Failed);
}

#[test]
fn a_limit_in_bytes_says_how_many_letters_that_is() {
    let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
    let hint = |problem: &str| {
        let rejection =
            Rejection::InvalidField { field: "name".to_owned(), problem: problem.to_owned() };
        Failure::of_rejection(rejection, &clock).hint
    };
    for problem in ["1 to 64 bytes without control characters", "at most 512 bytes"] {
        assert!(hint(problem).unwrap().contains("21 of them are 63 bytes"), "{problem}");
    }
    assert_eq!(hint("arguments and environment take 300000 bytes, at most 262144"), None);
    assert_eq!(hint("at most 60d"), None);
}
