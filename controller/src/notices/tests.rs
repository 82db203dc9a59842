//! Who hears what of each event; what one mail holds; what waits; and deliveries against a real mail server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod delivered;
mod heard;
mod piled;

use std::collections::BTreeMap;

use fleet_core::audit::{AUDIT_VERSION, AuditBody, GENESIS};
use fleet_core::gpu::GpuName;
use fleet_core::id::{JobId, ReservationId};
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::notice::NoticeKind;
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::view::Names;
use fleet_core::{Actor, AuthMethod, Event, Who};
use jiff::tz::TimeZone;

use super::events::{self, JobKnown, Notice, To, World};
use super::letters::Site;

/// Mon 2026-11-30 08:00 UTC.
const NOW: Timestamp = Timestamp(1_796_025_600_000);

fn user(name: &str) -> UserName {
    UserName::parse(name).unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn res(name: &str) -> ReservationId {
    ReservationId::parse(&format!("res-{name}")).unwrap()
}

fn job(name: &str) -> JobId {
    JobId::parse(&format!("job-{name}")).unwrap()
}

fn gpu(index: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-{index:012}")).unwrap()
}

fn person(name: &str) -> Actor {
    let who = Who::User { name: user(name), admin: false, groups: Default::default() };
    Actor { who, method: AuthMethod::LocalSocket, serial: None }
}

fn agent() -> Actor {
    let who = Who::Node { name: node("titan01") };
    Actor { who, method: AuthMethod::Certificate, serial: None }
}

fn record(actor: Actor, action: &str, events: Vec<Event>) -> AuditBody {
    AuditBody {
        v: AUDIT_VERSION,
        seq: 7,
        log_index: 70,
        at: NOW,
        actor,
        action: action.to_owned(),
        request: None,
        allowed_by: None,
        refused: None,
        objects: Vec::new(),
        events,
        prev: GENESIS.to_owned(),
    }
}

/// Reservation `a` is ada's and shared with bob, from now for 8 hours; job `train` is ada's.
struct Known {
    queued_at: Timestamp,
}

impl World for Known {
    fn users_of(&self, id: &ReservationId) -> Vec<UserName> {
        if *id == res("a") { vec![user("ada"), user("bob")] } else { Vec::new() }
    }

    fn owner_of(&self, id: &ReservationId) -> Option<UserName> {
        (*id == res("a")).then(|| user("ada"))
    }

    fn window_of(&self, _: &ReservationId) -> Option<Window> {
        Some(eight_hours())
    }

    fn job(&self, id: &JobId) -> Option<JobKnown> {
        let known =
            JobKnown { owner: user("ada"), name: "train".to_owned(), queued_at: self.queued_at };
        (*id == job("train")).then_some(known)
    }
}

impl Names for Known {
    fn gpu(&self, uuid: &GpuUuid) -> Option<GpuName> {
        let known: BTreeMap<GpuUuid, u32> = (0..4).map(|index| (gpu(index), index)).collect();
        known.get(uuid).map(|index| GpuName { node: node("titan01"), index: *index })
    }
}

fn eight_hours() -> Window {
    Window { starts_at: NOW, ends_at: NOW + Millis::hours(8) }
}

/// Who hears what of a record, of a job that was queued an hour ago.
fn heard_of(actor: Actor, action: &str, events: Vec<Event>) -> Vec<(To, Notice)> {
    let known = Known { queued_at: Timestamp(NOW.0 - Millis::hours(1).0) };
    events::notices(&record(actor, action, events), &known, &known)
}

/// The names and the sentence of the only notice; nothing where there is none.
fn told(actor: Actor, action: &str, event: Event) -> Option<(String, String)> {
    let mut all = heard_of(actor, action, vec![event]);
    assert!(all.len() <= 1, "{all:?}");
    all.pop().map(|(to, notice)| (names(&to), notice.sentence))
}

fn names(to: &To) -> String {
    match to {
        To::Admins => "admins".to_owned(),
        To::Approvers(but) => format!("approvers but {}", names(&To::People(but.clone()))),
        To::People(people) => people.iter().map(UserName::as_str).collect::<Vec<_>>().join(","),
    }
}

fn site() -> Site {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    Site { cluster: "fleet-test".to_owned(), zone, page: Some("https://gpus.lab".to_owned()) }
}

fn notice(seq: u64, minutes: u64, about: &str) -> Notice {
    Notice {
        seq,
        log_index: seq * 10,
        at: NOW + Millis::minutes(minutes),
        kind: NoticeKind::Reservation,
        about: about.to_owned(),
        sentence: format!("{about}: news {seq}"),
        window: None,
        offered_until: None,
        held: None,
    }
}
