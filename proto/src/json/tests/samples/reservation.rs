//! Reservations in each of their states.

use super::{at, gpu_ref, pb};

/// What follows if it is approved.
pub(crate) fn approval_effect() -> pb::ApprovalEffect {
    pb::ApprovalEffect {
        place: Some(pb::ReservationPlace {
            node: "titan01".to_owned(),
            gpus: vec![gpu_ref(0), gpu_ref(3)],
            starts_at_unix_ms: at(60),
            ends_at_unix_ms: at(300),
        }),
        waits_for: String::new(),
        gpus_like_it: 8,
        left_free: 3,
        owner_has: 1,
    }
}

/// One that is above a limit, as somebody sees it who may approve it.
pub(crate) fn requested() -> pb::Reservation {
    pb::Reservation {
        id: "res-7qm2hx".to_owned(),
        state: "requested".to_owned(),
        waiting_place: 0,
        reason: "waits for approval".to_owned(),
        approval: Some(pb::ReservationApproval {
            reason: "the deadline on Friday".to_owned(),
            above: "at most 1 at once (limit of students), this is 2".to_owned(),
            given_by: String::new(),
        }),
        ..waiting()
    }
}

/// One whose place its owner has to accept.
pub(crate) fn offered() -> pb::Reservation {
    pb::Reservation {
        id: "res-5wd8qn".to_owned(),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0), gpu_ref(3)],
        starts_at_unix_ms: at(60),
        ends_at_unix_ms: at(300),
        state: "offered".to_owned(),
        waits_for: String::new(),
        offer: Some(pb::ReservationOffer {
            until_unix_ms: at(60),
            next_unix_ms: 0,
            declined: 1,
            most: 3,
        }),
        ..waiting()
    }
}

pub(crate) fn waiting() -> pb::Reservation {
    pb::Reservation {
        id: "res-4kx2mt".to_owned(),
        node: String::new(),
        gpus: Vec::new(),
        starts_at_unix_ms: 0,
        ends_at_unix_ms: 0,
        state: "waiting".to_owned(),
        unconfirmed: String::new(),
        next: None,
        leaves_first: Vec::new(),
        waiting_place: 1,
        earliest_start_unix_ms: at(0),
        latest_start_unix_ms: at(720),
        waits_for: "2 v100 GPUs for 4h".to_owned(),
        idle_since_unix_ms: 0,
        idle_release_unix_ms: 0,
        ..active()
    }
}

/// An active reservation that was made longer.
pub(crate) fn active() -> pb::Reservation {
    pb::Reservation {
        id: "res-9d2fwm".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0), gpu_ref(3)],
        starts_at_unix_ms: at(0),
        ends_at_unix_ms: at(480),
        state: "active".to_owned(),
        note: "figures for the paper".to_owned(),
        reason: String::new(),
        created_at_unix_ms: at(0),
        unconfirmed:
            "titan01 has not confirmed the new end; without a controller the old one holds"
                .to_owned(),
        at_end: "extend-if-free".to_owned(),
        with: vec!["bob".to_owned(), "eve".to_owned()],
        import: String::new(),
        revision: 3,
        next: None,
        series: "ser-7h2kqd".to_owned(),
        series_rule: "every week on Mon, Wed at 10:00 Europe/Berlin for 8h, 12 times".to_owned(),
        leaves_first: vec![pb::JobThatLeaves {
            job: "train-7".to_owned(),
            owner: "eve".to_owned(),
            by_unix_ms: at(0),
        }],
        waiting_place: 0,
        earliest_start_unix_ms: 0,
        latest_start_unix_ms: 0,
        waits_for: String::new(),
        approval: None,
        offer: None,
        idle_since_unix_ms: at(0),
        idle_release_unix_ms: at(300),
    }
}
