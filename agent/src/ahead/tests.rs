//! The calendar on the disk.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fleet_core::allocation::StopWhy;
use fleet_core::id::{AllocationId, ClusterId, ReservationId};
use fleet_core::lease::Epoch;
use fleet_core::name::UserName;
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::window::{Enforcement, EnforcementSwitch, NodeGrant};
use fleet_node::promises::Promise;
use fleet_node::testing::gpu;
use fleet_node::{FleetClock, Promises, Table};

use super::{Shelf, ShelfError};

const NOON: Timestamp = Timestamp(1_800_000_000_000);

/// With something of everything.
fn promises() -> Promises {
    let mut promises = Promises::default();
    let (by, reason) = ("root".to_owned(), "x".to_owned());
    let grant = NodeGrant { by: by.clone(), reason: reason.clone() };
    let (id, owner) = (ReservationId::parse("res-a").unwrap(), UserName::parse("ada").unwrap());
    let window = Window { starts_at: NOON, ends_at: NOON + Millis::hours(1) };
    promises.grant(id, owner, vec![gpu(0)], window, grant, &Table::default()).unwrap();
    promises.set_switch(EnforcementSwitch { mode: Enforcement::Warn, by, reason, at: NOON });
    let promise = Promise {
        epoch: Epoch { incarnation: 1, index: 2 },
        ends_at: None,
        within: Some(ReservationId::parse("res-a").unwrap()),
        stopped: Some((StopWhy::TimeLimit, NOON)),
        asked: false,
    };
    promises.attempts.insert(AllocationId::parse("alloc-k-1").unwrap(), promise);
    promises
}

#[test]
fn the_promises_are_read_back_as_they_were_stored_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(dir.path(), ClusterId::parse("fleet-one").unwrap());
    assert_eq!(shelf.load().unwrap(), (Promises::default(), None), "there is nothing yet");
    let mut clock = FleetClock::resume(None, "b");
    clock.told(Duration::ZERO, Duration::ZERO, NOON);
    let (promises, time) = (promises(), clock.anchor(Duration::from_secs(9)));
    assert!(time.is_some());
    shelf.store(&promises, time.clone()).unwrap();
    assert_eq!(shelf.load().unwrap(), (promises, time));
    let other = Shelf::new(dir.path(), ClusterId::parse("fleet-two").unwrap());
    assert_eq!(other.load().unwrap(), (Promises::default(), None), "a node that changed fleets");
    let path = dir.path().join("ahead.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"v\":1", "\"v\":2", 1)).unwrap();
    assert!(matches!(shelf.load(), Err(ShelfError::Newer { found: 2, .. })));
    for cut in [1, text.len() / 2, text.len() - 1] {
        std::fs::write(&path, &text[..cut]).unwrap();
        assert!(matches!(shelf.load(), Err(ShelfError::Damaged { .. })), "cut at {cut}");
    }
}
