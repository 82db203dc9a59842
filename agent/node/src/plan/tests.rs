//! The plan, case by case, and that it settles: after doing what it says it says nothing more.
#![allow(clippy::unwrap_used)]

use fleet_core::desired::DESIRED_VERSION;
use fleet_core::id::ReservationId;
use fleet_core::name::{NodeName, UserName};

use super::*;
use crate::testing::{gpu, order};

fn id(text: &str) -> AllocationId {
    AllocationId::parse(text).unwrap()
}

fn lease(text: &str) -> LeaseId {
    LeaseId::parse(text).unwrap()
}

fn epoch(index: u64) -> Epoch {
    Epoch { incarnation: 1, index }
}

fn row(phase: AttemptPhase, index: u64, gpus: &[u32]) -> Row {
    Row { phase, ..Row::starting(epoch(index), Some(lease("lease-1")), order(gpus)) }
}

fn table(rows: &[(&str, Row)]) -> Table {
    let rows = rows.iter().map(|(name, row)| (id(name), row.clone())).collect();
    Table { rows, ..Table::default() }
}

fn wanted(name: &str, index: u64, order: Order) -> DesiredAllocation {
    let lease = Some(lease("lease-1"));
    DesiredAllocation {
        id: id(name),
        epoch: epoch(index),
        lease,
        order,
        defer: None,
        ends_at: None,
        within: None,
        ask: None,
    }
}

fn started(name: &str, index: u64, gpus: &[u32]) -> DesiredAllocation {
    wanted(name, index, Order::Start(Box::new(order(gpus))))
}

fn stopped(name: &str, index: u64, grace: u64) -> DesiredAllocation {
    wanted(name, index, Order::Stop { grace: Millis(grace), why: "w".to_owned() })
}

fn node(allocations: Vec<DesiredAllocation>) -> DesiredNode {
    DesiredNode {
        v: DESIRED_VERSION,
        node: NodeName::parse("n1").unwrap(),
        allocations,
        leases: Vec::new(),
        forget: Vec::new(),
        recount: None,
        clear: Vec::new(),
        windows: Vec::new(),
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

fn held(name: &str, index: u64, gpus: &[u32], holder: LeaseHolder, ending: bool) -> DesiredLease {
    DesiredLease {
        id: lease(name),
        epoch: epoch(index),
        gpus: gpus.iter().copied().map(gpu).collect(),
        owner: UserName::parse("ada").unwrap(),
        holder,
        ending,
        with: Default::default(),
    }
}

/// A reservation's lease of ada, shared with bob.
fn shared(name: &str, gpus: &[u32], holder: &LeaseHolder, ending: bool) -> DesiredLease {
    DesiredLease { with: names(&["bob"]), ..held(name, 2, gpus, holder.clone(), ending) }
}

fn names(of: &[&str]) -> BTreeSet<UserName> {
    of.iter().map(|name| UserName::parse(name).unwrap()).collect()
}

/// The names of the actions, and that doing them leaves nothing to do.
fn settled(desired: &DesiredNode, table: &mut Table) -> Vec<String> {
    let actions = plan(desired, table);
    for action in &actions {
        table.note(action);
    }
    // What was replaced is started by the next plan.
    if !actions.iter().any(|a| matches!(a, Action::Replace { .. })) {
        assert_eq!(plan(desired, table), [], "the plan does not settle");
    }
    let word = |action: &Action| {
        format!("{action:?}").split([' ', '{']).next().unwrap_or_default().to_owned()
    };
    actions.iter().map(word).collect()
}

#[test]
fn what_is_absent_is_left_alone() {
    let mut table = table(&[("alloc-a-1", row(AttemptPhase::Running, 3, &[0]))]);
    assert!(settled(&node(Vec::new()), &mut table).is_empty());
    assert!(table.rows[&id("alloc-a-1")].is_live());
}

#[test]
fn each_order_against_each_phase() {
    use AttemptPhase::{Ended, Running, Starting};
    let start = || started("alloc-a-1", 3, &[0]);
    let keep = || wanted("alloc-a-1", 3, Order::Keep);
    let stop = || stopped("alloc-a-1", 3, 500);
    let cases: [(DesiredAllocation, Option<AttemptPhase>, &[&str]); 12] = [
        (start(), None, &["Start"]),
        (start(), Some(Starting), &[]),
        (start(), Some(Running), &[]),
        (start(), Some(Ended), &[]),
        (keep(), None, &["SayLost"]),
        (keep(), Some(Starting), &[]),
        (keep(), Some(Running), &[]),
        (keep(), Some(Ended), &[]),
        (stop(), None, &["SayNeverStarted"]),
        (stop(), Some(Starting), &["Stop"]),
        (stop(), Some(Running), &["Stop"]),
        (stop(), Some(Ended), &[]),
    ];
    for (desired, phase, expected) in cases {
        let mut table = match phase {
            Some(phase) => table(&[("alloc-a-1", row(phase, 3, &[0]))]),
            None => Table::default(),
        };
        let shown = format!("{:?} on {phase:?}", desired.order);
        assert_eq!(settled(&node(vec![desired]), &mut table), expected, "{shown}");
    }
}

#[test]
fn a_stop_is_repeated_only_to_shorten_the_grace() {
    let mut table = table(&[("alloc-a-1", row(AttemptPhase::Running, 3, &[]))]);
    assert_eq!(settled(&node(vec![stopped("alloc-a-1", 3, 500)]), &mut table), ["Stop"]);
    assert!(settled(&node(vec![stopped("alloc-a-1", 3, 900)]), &mut table).is_empty());
    assert_eq!(settled(&node(vec![stopped("alloc-a-1", 3, 0)]), &mut table), ["Stop"]);
}

#[test]
fn an_order_of_an_earlier_grant_does_nothing_to_a_later_one() {
    let mut table = table(&[("alloc-a-1", row(AttemptPhase::Running, 7, &[0]))]);
    for old in [started("alloc-a-1", 6, &[0]), stopped("alloc-a-1", 6, 0)] {
        assert!(settled(&node(vec![old]), &mut table).is_empty());
    }
}

#[test]
fn the_same_work_granted_anew_goes_on_and_other_work_makes_room() {
    let mut running = table(&[("alloc-a-1", row(AttemptPhase::Running, 3, &[0]))]);
    assert_eq!(settled(&node(vec![started("alloc-a-1", 9, &[0])]), &mut running), ["Adopt"]);
    assert_eq!(running.rows[&id("alloc-a-1")].epoch, epoch(9));
    let mut other = table(&[("alloc-a-1", row(AttemptPhase::Running, 3, &[0]))]);
    let desired = node(vec![started("alloc-a-1", 9, &[1])]);
    assert_eq!(settled(&desired, &mut other), ["Supersede"]);
    other.rows.get_mut(&id("alloc-a-1")).unwrap().phase = AttemptPhase::Ended;
    assert_eq!(settled(&desired, &mut other), ["Replace"]);
    assert_eq!(settled(&desired, &mut other), ["Start"]);
}

#[test]
fn a_gpu_that_an_attempt_still_has_is_waited_for() {
    let mut table = table(&[("alloc-a-1", row(AttemptPhase::Running, 3, &[0]))]);
    let desired = node(vec![started("alloc-b-1", 4, &[0, 1]), started("alloc-c-1", 4, &[2])]);
    assert_eq!(settled(&desired, &mut table), ["Start"]);
    assert!(table.rows.contains_key(&id("alloc-c-1")));
    table.rows.get_mut(&id("alloc-a-1")).unwrap().phase = AttemptPhase::Ended;
    assert_eq!(settled(&desired, &mut table), ["Start"]);
}

#[test]
fn two_starts_of_one_document_on_one_gpu_are_planned_by_turns() {
    // A controller never does this; if it did, the epochs would refuse the second.
    let desired = node(vec![started("alloc-a-1", 3, &[0]), started("alloc-b-1", 3, &[0])]);
    let actions = plan(&desired, &Table::default());
    let mut table = Table::default();
    table.note(&actions[0]);
    assert!(plan(&desired, &table).is_empty());
}

#[test]
fn an_order_that_was_refused_for_good_is_not_tried_again() {
    let mut table = Table::default();
    table.refused.insert(id("alloc-a-1"), epoch(3));
    assert!(settled(&node(vec![started("alloc-a-1", 3, &[])]), &mut table).is_empty());
    assert_eq!(settled(&node(vec![started("alloc-a-1", 4, &[])]), &mut table), ["Start"]);
}

#[test]
fn a_deferral_is_answered_once_with_the_number_at_that_moment() {
    let running = Row { checkpoint_seq: 4, ..row(AttemptPhase::Running, 3, &[0]) };
    let mut table = table(&[("alloc-a-1", running)]);
    let mut desired = node(vec![wanted("alloc-a-1", 3, Order::Keep)]);
    desired.allocations[0].defer = Some(2);
    let answer = Action::AnswerDeferral { id: id("alloc-a-1"), order: 2, checkpoint_seq: 4 };
    assert_eq!(plan(&desired, &table), [answer]);
    assert_eq!(settled(&desired, &mut table), ["AnswerDeferral"]);
    desired.allocations[0].defer = Some(3);
    assert_eq!(settled(&desired, &mut table), ["AnswerDeferral"]);
}

#[test]
fn a_deferral_that_is_over_is_called_off_once() {
    let running = Row { deferral: Some(2), ..row(AttemptPhase::Running, 3, &[0]) };
    let mut table = table(&[("alloc-a-1", running)]);
    let mut desired = node(vec![wanted("alloc-a-1", 3, Order::Keep)]);
    assert_eq!(settled(&desired, &mut table), ["CallOffDeferral"]);
    assert!(settled(&desired, &mut table).is_empty());
    desired.allocations[0].defer = Some(3);
    assert_eq!(settled(&desired, &mut table), ["AnswerDeferral"]);
}

#[test]
fn a_person_asks_a_running_attempt_once_for_each_number() {
    let mut table = table(&[("alloc-a-1", row(AttemptPhase::Starting, 3, &[0]))]);
    let mut desired = node(vec![wanted("alloc-a-1", 3, Order::Keep)]);
    desired.allocations[0].ask = Some(1);
    assert!(settled(&desired, &mut table).is_empty(), "nobody is there to hear it");
    if let Some(row) = table.rows.get_mut(&id("alloc-a-1")) {
        row.phase = AttemptPhase::Running;
    }
    assert_eq!(settled(&desired, &mut table), ["AskCheckpoint"]);
    assert!(settled(&desired, &mut table).is_empty());
    desired.allocations[0].ask = Some(2);
    assert_eq!(settled(&desired, &mut table), ["AskCheckpoint"]);
}

#[test]
fn only_what_has_ended_is_forgotten() {
    let rows = [
        ("alloc-a-1", row(AttemptPhase::Ended, 3, &[])),
        ("alloc-b-1", row(AttemptPhase::Running, 3, &[])),
    ];
    let mut table = table(&rows);
    let mut desired = node(Vec::new());
    desired.forget = vec![id("alloc-a-1"), id("alloc-b-1"), id("alloc-c-1")];
    assert_eq!(settled(&desired, &mut table), ["Forget"]);
    assert!(table.rows.contains_key(&id("alloc-b-1")));
}

#[test]
fn a_lease_is_proven_empty_once_its_attempt_has_ended_or_it_is_ending() {
    let holder = || LeaseHolder::Allocation(id("alloc-a-1"));
    let reserved = || LeaseHolder::Reservation(ReservationId::parse("res-a").unwrap());
    let cases = [
        (holder(), false, AttemptPhase::Running, false),
        (holder(), true, AttemptPhase::Running, false),
        (holder(), false, AttemptPhase::Ended, true),
        (holder(), true, AttemptPhase::Ended, true),
        (reserved(), false, AttemptPhase::Ended, false),
        (reserved(), true, AttemptPhase::Running, false),
        (reserved(), true, AttemptPhase::Ended, true),
    ];
    for (holder, ending, phase, proven) in cases {
        let shown = format!("{holder:?} ending {ending} with {phase:?}");
        let mut table = table(&[("alloc-a-1", row(phase, 3, &[0]))]);
        let mut desired = node(Vec::new());
        desired.leases = vec![held("lease-9", 3, &[0], holder, ending)];
        let expected: &[&str] = if proven { &["Prove"] } else { &[] };
        assert_eq!(settled(&desired, &mut table), expected, "{shown}");
    }
}

/// Found by the simulation: the release of a window was refused while a job was believed to be in it, and
/// never said again.
#[test]
fn a_release_that_was_not_taken_is_waited_for_once_nothing_is_under_the_lease() {
    let reservation = LeaseHolder::Reservation(ReservationId::parse("res-r").unwrap());
    let child = || held("lease-2", 5, &[0], LeaseHolder::Allocation(id("alloc-a-1")), true);
    let mut table = Table::default();
    table.releases.insert(lease("lease-1"), (epoch(4), Release::Released));
    let mut desired = node(vec![]);
    for (ending, children, waited) in
        [(false, vec![], 0), (true, vec![child()], 0), (true, vec![], 1)]
    {
        desired.leases = vec![held("lease-1", 4, &[0, 1], reservation.clone(), ending)];
        desired.leases.extend(children);
        assert_eq!(waited_for(&desired, &table).count(), waited);
    }
    table.releases.insert(lease("lease-1"), (epoch(4), Release::Proving));
    assert_eq!(waited_for(&desired, &table).count(), 0);
    table.releases.insert(lease("lease-1"), (epoch(3), Release::Released));
    assert_eq!(waited_for(&desired, &table).count(), 0, "of another grant");
}

#[test]
fn within_a_reservation_its_users_own_programs_are_no_obstacle_to_an_end() {
    let holder = LeaseHolder::Allocation(id("alloc-a-1"));
    let reserved = LeaseHolder::Reservation(ReservationId::parse("res-a").unwrap());
    for (ending, expected) in [(false, vec!["ada", "bob"]), (true, vec![])] {
        let mut desired = node(Vec::new());
        desired.leases = vec![
            shared("lease-1", &[0, 1], &reserved, ending),
            held("lease-9", 3, &[0], holder.clone(), true),
        ];
        let proven =
            plan(&desired, &Table::default()).into_iter().find_map(|action| match action {
                Action::Prove { lease: of, reserved_for, .. } if of == lease("lease-9") => {
                    Some(reserved_for)
                }
                _ => None,
            });
        assert_eq!(proven, Some(names(&expected)), "ending {ending}");
    }
}

/// Also of a job that names no reservation and was put into its owner's.
#[test]
fn within_a_reservation_its_users_own_programs_are_no_obstacle_to_a_start() {
    let reservation = ReservationId::parse("res-a").unwrap();
    let reserved = LeaseHolder::Reservation(reservation.clone());
    let other = LeaseHolder::Reservation(ReservationId::parse("res-b").unwrap());
    for (within, ending, expected) in [
        (Some(&reservation), false, vec!["ada", "bob"]),
        (Some(&reservation), true, vec![]),
        (None, false, vec![]),
    ] {
        let job = DesiredAllocation { within: within.cloned(), ..started("alloc-a-1", 5, &[0]) };
        assert_eq!(order(&[0]).spec.reservation, None);
        let mut desired = node(vec![job]);
        desired.leases = vec![
            shared("lease-2", &[0], &reserved, ending),
            DesiredLease {
                owner: UserName::parse("eve").unwrap(),
                ..held("lease-3", 2, &[1], other.clone(), false)
            },
        ];
        let began = plan(&desired, &Table::default()).into_iter().find_map(|action| match action {
            Action::Start { reserved_for, .. } => Some(reserved_for),
            _ => None,
        });
        assert_eq!(began, Some(names(&expected)), "{within:?}, ending {ending}");
    }
}

#[test]
fn a_release_is_remembered_until_the_controller_drops_the_lease() {
    let mut table = Table::default();
    let mut desired = node(Vec::new());
    let holder = LeaseHolder::Allocation(id("alloc-a-1"));
    desired.leases = vec![held("lease-9", 3, &[0], holder, true)];
    assert_eq!(settled(&desired, &mut table), ["Prove"]);
    assert!(settled(&desired, &mut table).is_empty());
    desired.leases.clear();
    assert_eq!(settled(&desired, &mut table), ["DropRelease"]);
    assert!(table.releases.is_empty());
}
