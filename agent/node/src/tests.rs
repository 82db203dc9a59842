//! The promises, case by case; [`day`] is a whole day without controllers.
#![allow(clippy::unwrap_used)]

mod day;

use fleet_core::desired::{DESIRED_VERSION, DesiredAllocation, DesiredNode, Order};
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::window::DesiredWindow;

use super::*;
use crate::plan::Action;
use crate::promises::{Stage, Taken, WindowInHand};
use crate::testing::{gpu, order};
use fleet_core::allocation::GIVES_WAY_LEAD;
use fleet_core::id::{AllocationId, LeaseId, ReservationId};
use fleet_core::lease::{Epoch, LeaseHolder};
use fleet_core::name::UserName;
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::window::{Enforcement, EnforcementSwitch, NodeGrant};

const NOON: Timestamp = Timestamp(1_800_000_000_000);

fn at(minutes: u64) -> Timestamp {
    NOON + Millis::minutes(minutes)
}

fn res(name: &str) -> ReservationId {
    ReservationId::parse(&format!("res-{name}")).unwrap()
}

fn alloc(name: &str) -> AllocationId {
    AllocationId::parse(&format!("alloc-{name}-1")).unwrap()
}

fn epoch(index: u64) -> Epoch {
    Epoch { incarnation: 1, index }
}

fn told(name: &str, revision: u64, gpus: &[u32], from: u64, to: u64) -> DesiredWindow {
    DesiredWindow {
        reservation: res(name),
        revision: epoch(revision),
        lease: LeaseId::parse(&format!("lease-{name}")).unwrap(),
        epoch: epoch(1),
        owner: UserName::parse(&format!("of-{name}")).unwrap(),
        gpus: gpus.iter().copied().map(gpu).collect(),
        window: Window { starts_at: at(from), ends_at: at(to) },
        withdrawn: false,
        at_end: None,
        with: Default::default(),
    }
}

fn document(windows: Vec<DesiredWindow>, allocations: Vec<DesiredAllocation>) -> DesiredNode {
    DesiredNode {
        v: DESIRED_VERSION,
        node: NodeName::parse("n1").unwrap(),
        allocations,
        leases: Vec::new(),
        forget: Vec::new(),
        recount: None,
        clear: Vec::new(),
        windows,
        enforce: None,
        rules: None,
        reboot: None,
        no_longer: Default::default(),
        idle: Default::default(),
        release_driver: false,
        probes: Vec::new(),
        removals: Vec::new(),
        numbers: Default::default(),
        forgotten: Default::default(),
    }
}

fn runs(name: &str, ends_at: u64, within: Option<&str>) -> DesiredAllocation {
    DesiredAllocation {
        id: alloc(name),
        epoch: epoch(3),
        lease: None,
        order: Order::Keep,
        defer: None,
        ends_at: Some(at(ends_at)),
        within: within.map(res),
        ask: None,
    }
}

fn row(gpus: &[u32]) -> Row {
    Row { phase: AttemptPhase::Running, ..Row::starting(epoch(3), None, order(gpus)) }
}

fn promises(windows: Vec<DesiredWindow>, allocations: Vec<DesiredAllocation>) -> Promises {
    let mut promises = Promises::default();
    let taken = promises.take(&document(windows, allocations), |_| panic!("nothing is old"));
    assert_ne!(taken, Taken::default());
    promises
}

fn switch(mode: Enforcement) -> EnforcementSwitch {
    let (by, reason) = ("root".to_owned(), "x".to_owned());
    EnforcementSwitch { mode, by, reason, at: NOON }
}

/// Does what the steps say, in the table, and gives their names; nothing more may come of asking again.
fn kept(promises: &mut Promises, table: &mut Table, now: Timestamp) -> Vec<String> {
    let mut said = Vec::new();
    for step in promises.keep(now, table) {
        said.push(match step {
            Step::Stop { id, grace, why, said, .. } => {
                let text = format!("stop {id}: {said}");
                table.note(&Action::Stop { id, grace, why: why.to_string() });
                text
            }
            Step::Overruns { id, .. } => format!("overruns {id}"),
            Step::Ask(id) => format!("ask {id}"),
            Step::Prove { lease, epoch, .. } => {
                table.releases.insert(lease.clone(), (epoch, Release::Proving));
                format!("prove {lease}")
            }
            Step::Opened(id) => format!("open {id}"),
            Step::Closed(id) => format!("close {id}"),
        });
    }
    let again = promises.keep(now, table);
    assert!(again.iter().all(|step| matches!(step, Step::Overruns { .. })), "{again:?}");
    said
}

fn prove_all(table: &mut Table) {
    for release in table.releases.values_mut() {
        release.1 = Release::Released;
    }
}

#[test]
fn an_older_order_for_a_window_is_ignored_and_an_equal_one_is_the_same() {
    let mut promises = promises(vec![told("a", 5, &[0], 0, 60)], Vec::new());
    let mut old = Vec::new();
    let longer = told("a", 4, &[0], 0, 600);
    assert!(!promises.take(&document(vec![longer], Vec::new()), |id| old.push(id.clone())).windows);
    assert_eq!(old, [res("a")]);
    let same = told("a", 5, &[0], 0, 600);
    assert!(!promises.take(&document(vec![same], Vec::new()), |_| panic!("it is not old")).windows);
    assert_eq!(promises.windows[&res("a")].window.ends_at, at(60));
    // A withdrawal is remembered: the order before it does not bring the window back.
    let gone = DesiredWindow { withdrawn: true, ..told("a", 6, &[0], 0, 60) };
    assert!(promises.take(&document(vec![gone], Vec::new()), |_| panic!("it is not old")).windows);
    promises
        .take(&document(vec![told("a", 5, &[0], 0, 60)], Vec::new()), |id| old.push(id.clone()));
    assert!(promises.windows[&res("a")].withdrawn && old.len() == 2);
    assert!(kept(&mut promises, &mut Table::default(), at(1)).is_empty());
    // What is not named is left alone.
    assert!(!promises.take(&document(Vec::new(), Vec::new()), |_| ()).windows);
    assert_eq!(promises.windows.len(), 1);
}

#[test]
fn a_window_opens_and_closes_on_time_and_its_children_go_with_it() {
    let mut promises = promises(vec![told("a", 1, &[0], 60, 120)], vec![runs("c", 999, Some("a"))]);
    let mut table = Table::default();
    assert!(kept(&mut promises, &mut table, at(59)).is_empty());
    assert_eq!(promises.next_instant(at(59), &table), Some(at(60)));
    assert_eq!(kept(&mut promises, &mut table, at(60)), ["open res-a"]);
    assert_eq!(promises.leases(at(60)).count(), 1);
    table.rows.insert(alloc("c"), row(&[0]));
    assert!(kept(&mut promises, &mut table, at(119)).is_empty());
    assert_eq!(
        kept(&mut promises, &mut table, at(120)),
        ["stop alloc-c-1: its reservation res-a ended", "close res-a"]
    );
    assert_eq!(promises.leases(at(120)).count(), 0);
    table.rows.get_mut(&alloc("c")).unwrap().phase = AttemptPhase::Ended;
    assert_eq!(kept(&mut promises, &mut table, at(121)), ["prove lease-a"]);
    prove_all(&mut table);
    kept(&mut promises, &mut table, at(122));
    let held = &promises.windows[&res("a")];
    assert_eq!(held.stage, Stage::Closed);
    assert_eq!((held.opened_at, held.closed_at), (Some(at(60)), Some(at(120))));
}

#[test]
fn the_owner_of_an_open_window_may_open_its_gpus_and_only_in_its_time() {
    let mut promises = promises(vec![told("a", 5, &[0, 1], 0, 60)], Vec::new());
    assert!(promises.open_to(Some(at(0))).is_empty(), "it was not opened yet");
    kept(&mut promises, &mut Table::default(), at(0));
    let open = promises.open_to(Some(at(59)));
    let gpus: Vec<&GpuUuid> = open.iter().map(|grant| &grant.gpu).collect();
    assert_eq!(gpus, [&gpu(0), &gpu(1)]);
    assert!(open.iter().all(|g| g.owner.as_str() == "of-a" && g.until == Some(at(60))));
    assert!(promises.open_to(Some(at(60))).is_empty(), "tightened first, whatever else ends it");
    assert_eq!(promises.open_to(None).len(), 2, "where nobody knows the time, nobody is shut out");
}

const GIVES_WAY: &str =
    "stop alloc-j-1: its time is over: reservation res-a of of-a begins on its GPUs";

#[test]
fn a_job_past_its_time_runs_on_until_somebody_else_was_promised_its_gpus() {
    let grace = order(&[0]).spec.stop_grace;
    let early = at(60) - grace;
    // (when the attempt's own time is over, when the node tells it to stop)
    for (ends, told_at) in [(30, early), (59, early), (60, at(60))] {
        let mut promises = promises(vec![told("a", 1, &[0], 60, 120)], vec![runs("j", ends, None)]);
        let mut table = Table::default();
        table.rows.insert(alloc("j"), row(&[0]));
        table.rows.insert(alloc("other"), row(&[1]));
        assert!(kept(&mut promises, &mut table, told_at - Millis(1)).is_empty(), "{ends}");
        assert_eq!(promises.next_instant(told_at - Millis(1), &table), Some(told_at));
        assert_eq!(kept(&mut promises, &mut table, told_at), [GIVES_WAY]);
        assert!(kept(&mut promises, &mut table, at(60)).is_empty(), "it is still there");
        table.rows.get_mut(&alloc("j")).unwrap().phase = AttemptPhase::Ended;
        assert_eq!(kept(&mut promises, &mut table, at(61)), ["open res-a"]);
        assert!(table.rows[&alloc("other")].stop_grace.is_none(), "in nobody's way");
    }
}

#[test]
fn a_job_that_must_leave_is_asked_once_for_a_checkpoint_before() {
    let grace = order(&[0]).spec.stop_grace;
    let leaves = at(60) - grace;
    let mut promises = promises(vec![told("a", 1, &[0], 60, 120)], vec![runs("j", 30, None)]);
    let mut table = Table::default();
    let mut saves = row(&[0]);
    saves.order.as_mut().unwrap().spec.checkpoint = Some(Default::default());
    table.rows.insert(alloc("j"), saves);
    let before = leaves - GIVES_WAY_LEAD - Millis(1);
    assert!(kept(&mut promises, &mut table, before).is_empty());
    assert_eq!(promises.next_instant(before, &table), Some(before + Millis(1)));
    assert_eq!(kept(&mut promises, &mut table, before + Millis(1)), ["ask alloc-j-1"]);
    assert!(promises.attempts[&alloc("j")].asked);
    assert_eq!(promises.next_instant(before + Millis(1), &table), Some(leaves));
    assert_eq!(kept(&mut promises, &mut table, leaves), [GIVES_WAY]);
}

#[test]
fn one_window_follows_another_at_the_same_moment() {
    let windows = vec![told("b", 1, &[0], 60, 90), told("a", 1, &[0], 0, 60)];
    let mut promises = promises(windows, vec![runs("c", 999, Some("a"))]);
    let mut table = Table::default();
    kept(&mut promises, &mut table, at(0));
    table.rows.insert(alloc("c"), row(&[0]));
    let said = kept(&mut promises, &mut table, at(60));
    assert_eq!(said, ["stop alloc-c-1: its reservation res-a ended", "close res-a"]);
    table.rows.get_mut(&alloc("c")).unwrap().phase = AttemptPhase::Ended;
    assert_eq!(kept(&mut promises, &mut table, at(61)), ["prove lease-a", "open res-b"]);
    prove_all(&mut table);
    let late = kept(&mut promises, &mut table, at(90));
    assert_eq!(late, ["close res-b", "prove lease-b"]);
}

#[test]
fn the_switch_keeps_the_node_from_stopping_anything() {
    for mode in [Enforcement::Warn, Enforcement::Off] {
        let windows = vec![told("a", 1, &[0], 0, 60), told("b", 1, &[1], 60, 90)];
        let mut promises = promises(windows, vec![runs("c", 999, Some("a")), runs("j", 50, None)]);
        promises.set_switch(switch(mode));
        let mut table = Table::default();
        kept(&mut promises, &mut table, at(0));
        table.rows.insert(alloc("c"), row(&[0]));
        table.rows.insert(alloc("j"), row(&[1]));
        let said = kept(&mut promises, &mut table, at(61));
        assert_eq!(said, ["overruns alloc-c-1", "overruns alloc-j-1"]);
        assert!(table.rows.values().all(|row| row.stop_grace.is_none()));
        promises.set_switch(switch(Enforcement::On));
        let said = kept(&mut promises, &mut table, at(62));
        assert_eq!(said.iter().filter(|text| text.starts_with("stop")).count(), 2, "{said:?}");
    }
}

#[test]
fn what_was_given_longer_after_it_had_been_closed_goes_on() {
    let mut promises = promises(vec![told("a", 1, &[0], 0, 60)], Vec::new());
    let mut table = Table::default();
    kept(&mut promises, &mut table, at(0));
    kept(&mut promises, &mut table, at(60));
    prove_all(&mut table);
    kept(&mut promises, &mut table, at(61));
    assert!(promises.take(&document(vec![told("a", 2, &[0], 0, 180)], Vec::new()), |_| ()).windows);
    assert_eq!(promises.windows[&res("a")].closed_at, None);
    table.releases.clear();
    assert_eq!(kept(&mut promises, &mut table, at(70)), ["open res-a"]);
    assert_eq!(kept(&mut promises, &mut table, at(180)), ["close res-a", "prove lease-a"]);
}

/// A reservation that its owner moves: the controllers take the window back first, and then give the new one.
#[test]
fn a_window_that_was_taken_back_and_is_given_again_opens_at_its_new_time_on_its_new_gpus() {
    for opened in [false, true] {
        let mut promises = promises(vec![told("a", 5, &[0], 0, 60)], Vec::new());
        let mut table = Table::default();
        if opened {
            assert_eq!(kept(&mut promises, &mut table, at(0)), ["open res-a"]);
        }
        let back = DesiredWindow { withdrawn: true, ..told("a", 6, &[0], 0, 60) };
        assert!(promises.take(&document(vec![back], Vec::new()), |_| panic!("not old")).windows);
        assert!(promises.open_to(Some(at(10))).is_empty());
        assert!(promises.follow(&[], at(10)), "a controller answers");
        assert_eq!(held(&promises, "a").stage, Stage::Closed);
        // Not later than before, so that the end alone does not open it again.
        let lease = LeaseId::parse("lease-a2").unwrap();
        let new = DesiredWindow { lease, ..told("a", 7, &[1], 20, 50) };
        assert!(promises.take(&document(vec![new], Vec::new()), |_| panic!("not old")).windows);
        let now = held(&promises, "a");
        assert_eq!((now.stage, now.opened_at, now.closed_at), (Stage::Waiting, None, None));
        assert!(promises.open_to(Some(at(19))).is_empty());
        assert_eq!(kept(&mut promises, &mut table, at(20)), ["open res-a"]);
        let gpus: Vec<GpuUuid> =
            promises.open_to(Some(at(21))).into_iter().map(|g| g.gpu).collect();
        assert_eq!(gpus, [gpu(1)]);
    }
}

#[test]
fn a_window_that_passed_while_the_node_was_off_is_neither_opened_nor_proven() {
    let mut promises = promises(vec![told("a", 1, &[0], 0, 60)], Vec::new());
    assert!(kept(&mut promises, &mut Table::default(), at(61)).is_empty());
    let held = &promises.windows[&res("a")];
    assert_eq!((held.stage, held.opened_at, held.closed_at), (Stage::Closed, None, None));
}

#[test]
fn an_order_from_before_the_window_does_not_start_in_it() {
    let mut promises = promises(vec![told("a", 1, &[0, 1], 0, 60)], Vec::new());
    kept(&mut promises, &mut Table::default(), at(1));
    assert_eq!(promises.closed_to(&[gpu(1)], None, at(2)), Some(&res("a")));
    assert_eq!(promises.closed_to(&[gpu(1)], Some(&res("a")), at(2)), None, "its own job");
    assert_eq!(promises.closed_to(&[gpu(2)], None, at(2)), None);
    assert_eq!(promises.closed_to(&[gpu(1)], None, at(60)), None, "its time is over");
}

#[test]
fn with_a_controller_the_book_follows_its_leases() {
    let mut promises = promises(vec![told("a", 1, &[0], 0, 60)], Vec::new());
    let lease = |ending| fleet_core::desired::DesiredLease {
        id: LeaseId::parse("lease-a").unwrap(),
        epoch: epoch(1),
        gpus: vec![gpu(0)],
        owner: UserName::parse("of-a").unwrap(),
        holder: LeaseHolder::Reservation(res("a")),
        ending,
        with: Default::default(),
    };
    assert!(!promises.follow(&[], at(1)), "the controller says when it begins");
    assert!(promises.follow(&[lease(false)], at(1)));
    assert_eq!(promises.windows[&res("a")].opened_at, None, "not on its own");
    assert!(!promises.follow(&[lease(false)], at(61)), "nor ends it before the controller does");
    assert!(promises.follow(&[lease(true)], at(62)));
    assert_eq!(promises.windows[&res("a")].stage, Stage::Closed);
}

#[test]
fn root_grants_what_is_nobodys_and_takes_it_back() {
    let mut promises = promises(vec![told("a", 1, &[0], 60, 120)], Vec::new());
    let mut table = Table::default();
    table.rows.insert(alloc("j"), row(&[2]));
    let grant = |promises: &mut Promises, id: &str, gpus: &[u32], minutes: u64| {
        let gpus = gpus.iter().copied().map(gpu).collect();
        let grant = NodeGrant { by: "root".to_owned(), reason: "x".to_owned() };
        let window = Window { starts_at: at(0), ends_at: at(minutes) };
        promises.grant(res(id), UserName::parse("eve").unwrap(), gpus, window, grant, &table)
    };
    assert!(matches!(grant(&mut promises, "g", &[0], 61), Err(Refused::Promised { .. })));
    assert!(matches!(grant(&mut promises, "g", &[2], 5), Err(Refused::InUse { .. })));
    assert_eq!(grant(&mut promises, "g", &[0], 0), Err(Refused::Length));
    assert_eq!(grant(&mut promises, "g", &[0], 60 * 24 * 8), Err(Refused::Length));
    grant(&mut promises, "g", &[0, 1], 60).unwrap();
    assert!(matches!(grant(&mut promises, "h", &[1], 5), Err(Refused::Promised { .. })));
    let report = promises.windows[&res("g")].report(&res("g"));
    assert_eq!((report.revision, report.opened_at), (Epoch::default(), Some(at(0))));
    promises.revoke(&res("g"), at(10)).unwrap();
    let mut table = Table::default();
    assert_eq!(kept(&mut promises, &mut table, at(10)), ["close res-g", "prove lease-g"]);
    assert!(matches!(promises.revoke(&res("g"), at(11)), Err(Refused::NoGrant { .. })));
    assert!(matches!(promises.revoke(&res("a"), at(11)), Err(Refused::NoGrant { .. })));
    // Taken over by the controllers it is a reservation like any other.
    grant(&mut promises, "i", &[3], 60).unwrap();
    assert!(
        promises
            .take(&document(vec![told("i", 9, &[3], 0, 60)], Vec::new()), |_| panic!("old"))
            .windows
    );
    assert!(matches!(promises.revoke(&res("i"), at(12)), Err(Refused::TakenOver { .. })));
}

#[test]
fn only_what_is_over_and_on_record_is_forgotten() {
    let windows = vec![told("a", 1, &[0], 0, 60), told("b", 1, &[1], 0, 90_000)];
    let mut promises = promises(windows, vec![runs("j", 5, None)]);
    let mut table = Table::default();
    table.rows.insert(alloc("j"), row(&[3]));
    kept(&mut promises, &mut table, at(0));
    kept(&mut promises, &mut table, at(61));
    prove_all(&mut table);
    kept(&mut promises, &mut table, at(62));
    let day = at(60 + 24 * 60);
    assert!(promises.tidy(day, &table, |_| false).is_empty());
    assert!(promises.tidy(day - Millis(1), &table, |_| true).is_empty());
    assert_eq!(promises.tidy(day, &table, |_| true), [res("a")]);
    assert!(
        promises.attempts.contains_key(&alloc("j")) && promises.windows.contains_key(&res("b"))
    );
    assert!(promises.tidy(day, &Table::default(), |_| true).is_empty());
    assert!(promises.attempts.is_empty());
}

fn held(promises: &Promises, name: &str) -> WindowInHand {
    promises.windows[&res(name)].clone()
}
