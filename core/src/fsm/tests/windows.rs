//! Windows in agents' hands: handed out ahead, changed only with their word, settled by what they did alone.

use super::world::{START, World, bad, facts, gpu, job, node, person, plain, res, user};
use crate::actor::Actor;
use crate::allocation::{AttemptEnd, StopWhy};
use crate::calendar;
use crate::command::{
    AccessCommand, ClusterCommand, Command, CreateReservation, GpuCommand, NodeCommand, Report,
    ReservationCommand,
};
use crate::ending::EndPolicy;
use crate::health::Severity;
use crate::id::ReservationId;
use crate::job::JobSpec;
use crate::lease::Epoch;
use crate::name::{GpuUuid, NodeName};
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reservation::{GpuRequest, Reservation, ReservationState, SHARED_WITH_MAX};
use crate::state::Fsm;
use crate::time::{Millis, Timestamp, Window};
use crate::window::{
    DesiredWindow, Enforcement, EnforcementSwitch, HAND_OUT_AHEAD, NodeGrant, WINDOWS_PER_NODE_MAX,
    WindowReport,
};

/// What an agent says that has taken this order and did nothing on its own.
pub(crate) fn answer(told: &DesiredWindow) -> WindowReport {
    WindowReport {
        reservation: told.reservation.clone(),
        revision: told.revision,
        owner: told.owner.clone(),
        gpus: told.gpus.clone(),
        window: told.window,
        withdrawn: told.withdrawn,
        opened_at: None,
        closed_at: None,
        granted: None,
        with: told.with.clone(),
    }
}

/// What the agents that are heard would answer now.
pub(crate) fn window_answers(fsm: &Fsm) -> Vec<(NodeName, Report)> {
    let heard = fsm.nodes().values().filter(|node| node.liveness == Liveness::Ready);
    let told = heard.flat_map(|node| {
        fsm.desired(&node.name, &[]).windows.into_iter().map(|told| (node.name.clone(), told))
    });
    let waits = |told: &DesiredWindow| {
        let given = fsm.reservation(&told.reservation).and_then(|r| r.handed_out.as_ref());
        given.is_some_and(|given| !given.taken)
    };
    told.filter(|(_, told)| waits(told))
        .map(|(node, told)| (node, Report::Window(Box::new(answer(&told)))))
        .collect()
}

fn r<'a>(w: &'a World, name: &str) -> &'a Reservation {
    w.fsm.reservation(&res(name)).unwrap()
}

pub(super) fn told(w: &World, on: &str, name: &str) -> Option<DesiredWindow> {
    w.fsm.desired(&node(on), &[]).windows.into_iter().find(|told| told.reservation == res(name))
}

/// The agent answers to the order it got, and says what it did on its own.
pub(super) fn answers(w: &mut World, on: &str, told: &DesiredWindow, did: [Option<Timestamp>; 2]) {
    let [opened_at, closed_at] = did;
    let report = WindowReport { opened_at, closed_at, ..answer(told) };
    w.report(on, Report::Window(Box::new(report))).unwrap();
}

fn silent(w: &mut World, on: &str) {
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(5));
    let command = Command::Node(NodeCommand::SetLiveness { node: node(on), liveness, silent_for });
    w.give(Actor::controller(), command).unwrap();
}

fn busy(w: &World, on: &str) -> Vec<Window> {
    calendar::busy(&w.fsm, &gpu(on, 0)).iter().map(|busy| busy.window).collect()
}

#[test]
fn a_window_is_handed_out_when_it_is_near_and_opens_under_the_lease_it_was_given() {
    let mut w = World::with(&["titan01"]);
    let far = HAND_OUT_AHEAD + Millis::hours(5);
    w.reserve("ada", "r", 1, far, Millis::hours(1)).unwrap();
    assert_eq!(told(&w, "titan01", "r"), None);
    assert_eq!(w.fsm.next_deadline(), Some(START + Millis::hours(5)));
    w.pass(Millis::hours(5));
    let told = told(&w, "titan01", "r").unwrap();
    assert_eq!(told.window, r(&w, "r").window);
    assert!(r(&w, "r").handed_out.as_ref().unwrap().taken);
    w.pass(HAND_OUT_AHEAD);
    let lease = r(&w, "r").lease.clone().unwrap();
    assert_eq!(lease, told.lease);
    assert_eq!(w.fsm.lease(&lease).unwrap().epoch, told.epoch);
    assert_eq!(told.epoch, told.revision, "nothing was changed since");
}

#[test]
fn no_agent_is_handed_more_than_it_holds_and_the_next_follow_when_some_are_over() {
    let mut w = World::with(&["titan01"]);
    for n in 0..=WINDOWS_PER_NODE_MAX as u64 {
        let from = Millis::minutes(10 + n * 2);
        w.reserve("ada", &format!("r{n}"), 4, from, Millis::minutes(2)).unwrap();
    }
    let last = format!("r{WINDOWS_PER_NODE_MAX}");
    assert_eq!(told(&w, "titan01", &last), None);
    assert_eq!(w.fsm.desired(&node("titan01"), &[]).windows.len(), WINDOWS_PER_NODE_MAX);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r7") }))
        .unwrap();
    w.pass(Millis::secs(1));
    assert!(told(&w, "titan01", &last).is_some());
}

#[test]
fn a_cancelled_window_counts_as_given_until_its_agent_confirms() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(2)).unwrap();
    let window = r(&w, "r").window;
    w.agents_answer = false;
    let release = || Command::Reservation(ReservationCommand::Release { id: res("r") });
    w.give(person("ada"), release()).unwrap();
    assert!(w.said().iter().any(|s| s.contains("counts as given")), "{:?}", w.said());
    w.give(person("ada"), release()).unwrap();
    assert!(w.last.is_empty(), "asked twice, told once");
    assert_eq!(
        (&r(&w, "r").state, busy(&w, "titan01")),
        (&ReservationState::Scheduled, vec![window])
    );
    let refused = w.reserve("bob", "s", 1, Millis::hours(1), Millis::hours(1));
    assert!(matches!(refused, Err(Rejection::GpusHeld { .. })));
    let extended = Command::Reservation(ReservationCommand::Extend {
        id: res("r"),
        ends_at: START + Millis::hours(9),
    });
    assert!(matches!(w.give(person("ada"), extended), Err(Rejection::AlreadyEnded { .. })));
    w.submit("bob", "b", JobSpec { time_limit: Millis::hours(2), ..plain(1) }).unwrap();
    assert_eq!(w.schedule(), 0, "it would run into the window");
    // Its time comes and still no word: it is the agent's, nobody else's.
    w.pass(Millis::hours(1));
    assert_eq!(r(&w, "r").state, ReservationState::Scheduled);
    assert_eq!(w.schedule(), 0);
    let told = told(&w, "titan01", "r").unwrap();
    assert!(told.withdrawn);
    let stale = DesiredWindow { revision: Epoch::default(), ..told.clone() };
    answers(&mut w, "titan01", &stale, [None; 2]);
    assert_eq!(r(&w, "r").state, ReservationState::Scheduled, "that was an older order");
    answers(&mut w, "titan01", &told, [None; 2]);
    assert_eq!(r(&w, "r").state, ReservationState::Cancelled);
    assert!(busy(&w, "titan01").is_empty());
    assert_eq!(w.schedule(), 1);
}

#[test]
fn a_shortened_window_is_others_only_once_its_agent_confirms() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.agents_answer = false;
    let ends_at = START + Millis::hours(4);
    w.give(
        person("ada"),
        Command::Reservation(ReservationCommand::Extend { id: res("r"), ends_at }),
    )
    .unwrap();
    assert_eq!(busy(&w, "titan01")[0].ends_at, START + Millis::hours(8));
    let refused = w.reserve("bob", "s", 1, Millis::hours(5), Millis::hours(1));
    assert!(matches!(refused, Err(Rejection::GpusHeld { .. })));
    let told = told(&w, "titan01", "r").unwrap();
    assert_eq!(told.window.ends_at, ends_at);
    answers(&mut w, "titan01", &told, [None; 2]);
    w.reserve("bob", "s", 1, Millis::hours(5), Millis::hours(1)).unwrap();
}

#[test]
fn given_back_on_a_silent_node_it_is_still_the_nodes_until_its_end() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.agents_answer = false;
    silent(&mut w, "titan01");
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(r(&w, "r").state, ReservationState::Ending);
    assert_eq!(busy(&w, "titan01")[0].ends_at, START + Millis::hours(8));
    let refused = w.reserve("bob", "s", 1, Millis::hours(5), Millis::hours(1));
    assert!(matches!(refused, Err(Rejection::GpusHeld { .. })));
    w.boot("titan01", "boot-1").unwrap();
    let told = told(&w, "titan01", "r").unwrap();
    assert!(told.withdrawn && told.revision > told.epoch);
    answers(&mut w, "titan01", &told, [None; 2]);
    w.release("titan01");
    assert_eq!(r(&w, "r").state, ReservationState::Ended);
}

#[test]
fn nothing_new_is_put_into_the_hands_of_a_silent_agent() {
    let mut w = World::with(&["titan01"]);
    silent(&mut w, "titan01");
    w.reserve("ada", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(r(&w, "r").handed_out, None);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(r(&w, "r").state, ReservationState::Cancelled, "nobody has it: nobody is asked");
    w.reserve("ada", "s", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    w.boot("titan01", "boot-1").unwrap();
    assert!(r(&w, "s").handed_out.as_ref().unwrap().taken);
}

#[test]
fn a_window_on_a_broken_gpu_moves_only_after_its_agent_let_go_of_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(1)).unwrap();
    let promised = r(&w, "r").node.to_string();
    w.conditions(&promised, vec![bad(&promised, 0, Severity::Degraded)]);
    w.agents_answer = false;
    w.pass(Millis::hours(1));
    assert_eq!((r(&w, "r").node.as_str(), r(&w, "r").lease.clone()), (promised.as_str(), None));
    let order = told(&w, &promised, "r").unwrap();
    assert!(order.withdrawn);
    answers(&mut w, &promised, &order, [None; 2]);
    assert_eq!(r(&w, "r").state, ReservationState::Active);
    assert_ne!(r(&w, "r").node.as_str(), promised);
    assert!(told(&w, &promised, "r").is_none());
    let other = r(&w, "r").node.to_string();
    assert!(told(&w, &other, "r").unwrap().revision > order.revision);
}

#[test]
fn a_silent_node_keeps_its_windows_whatever_its_gpus_are_like() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(1)).unwrap();
    let promised = r(&w, "r").node.to_string();
    silent(&mut w, &promised);
    w.pass(Millis::hours(1));
    assert_eq!(r(&w, "r").node.as_str(), promised, "its agent opens it by itself");
    assert_eq!(r(&w, "r").state, ReservationState::Active);
}

/// A day without controllers, three windows on the same GPUs, and a job that was in the way of the first.
fn a_day_away() -> (World, [DesiredWindow; 3], crate::id::AllocationId) {
    let mut w = World::with(&["titan01"]);
    let all: [u32; 4] = [0, 1, 2, 3];
    let a = w.run("a", JobSpec { time_limit: Millis::hours(1), ..plain(4) }, "titan01", &all);
    for (name, from, to) in [("r1", 2, 4), ("r2", 5, 7), ("r3", 20, 30)] {
        w.reserve("bob", name, 4, Millis::hours(from), Millis::hours(to - from)).unwrap();
    }
    let told = ["r1", "r2", "r3"].map(|name| told(&w, "titan01", name).unwrap());
    w.agents_answer = false;
    (w, told, a)
}

/// What the agent says when it is back: in the order in which it happened.
fn tells_of_the_day(w: &mut World, told: &[DesiredWindow; 3], a: &crate::id::AllocationId) {
    let at = |hours| Some(START + Millis::hours(hours));
    let epoch = w.fsm.allocation(a).map_or(Epoch::default(), |a| a.epoch);
    let why = StopWhy::TimeLimit;
    let stopped = Report::StoppedAlone { allocation: a.clone(), epoch, why, at: w.now };
    w.report("titan01", stopped).unwrap();
    if w.fsm.allocation(a).is_some() {
        w.end(a, AttemptEnd::Signaled { signal: 15 });
    }
    w.release("titan01");
    for (told, did) in told.iter().zip([[at(2), at(4)], [at(5), at(7)], [at(20), None]]) {
        answers(w, "titan01", told, did);
    }
    w.release("titan01");
}

#[test]
fn what_a_node_did_alone_is_taken_over_whether_it_speaks_before_time_is_advanced_or_after() {
    for time_first in [false, true] {
        let (mut w, told, a) = a_day_away();
        w.now = START + Millis::hours(24);
        if time_first {
            w.pass(Millis::ZERO);
        }
        w.heard.clear();
        tells_of_the_day(&mut w, &told, &a);
        w.pass(Millis::ZERO);
        w.release("titan01");
        let states = ["r1", "r2", "r3"].map(|name| r(&w, name).state.clone());
        let (ended, active) = (ReservationState::Ended, ReservationState::Active);
        assert_eq!(states, [ended.clone(), ended, active], "time first: {time_first}");
        for name in ["r1", "r2"] {
            let reason = r(&w, name).reason.clone().unwrap();
            assert!(reason.contains("served it on its own"), "{name}: {reason}");
            let of = |e: &&crate::event::Event| e.objects().contains(&res(name).to_string());
            let story: Vec<String> = w.heard.iter().filter(of).map(|e| w.sentence(e)).collect();
            assert!(story.iter().any(|s| s.contains("opened it on its own")), "{story:?}");
            assert!(story.iter().any(|s| s.contains("closed it on its own")), "{story:?}");
        }
        let served = w.heard.iter().filter_map(|event| match event {
            crate::event::Event::ServedByNode(stay) => Some((stay.of(), stay.from, stay.until)),
            _ => None,
        });
        let at = |hours| START + Millis::hours(hours);
        let day = [("res-r1", at(2), at(4)), ("res-r2", at(5), at(7))];
        assert_eq!(served.collect::<Vec<_>>(), day, "time first: {time_first}");
        assert_eq!(w.state_of("a"), "timed_out");
        // Said again with every connection: nothing more comes of it.
        let before = w.fsm.clone();
        tells_of_the_day(&mut w, &told, &a);
        assert_eq!(w.fsm.audit_head(), before.audit_head());
        assert_eq!(w.fsm.holds, before.holds);
    }
}

#[test]
fn a_child_that_the_node_stopped_at_the_windows_end_timed_out_with_it() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(2)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    let desired = w.fsm.desired(&node("titan01"), &[]);
    assert_eq!(desired.allocations[0].within, Some(res("r")));
    assert_eq!(desired.allocations[0].ends_at, w.fsm.allocation(&a).unwrap().time_limit_at);
    let order = told(&w, "titan01", "r").unwrap();
    w.now = START + Millis::hours(3);
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    let why = StopWhy::ReservationEnded;
    let stopped = |epoch| Report::StoppedAlone {
        allocation: a.clone(),
        epoch,
        why: why.clone(),
        at: START + Millis::hours(2),
    };
    w.report("titan01", stopped(Epoch::default())).unwrap();
    assert_eq!(w.state_of("a"), "running", "another grant's");
    w.report("titan01", stopped(epoch)).unwrap();
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    answers(&mut w, "titan01", &order, [None, Some(START + Millis::hours(2))]);
    assert_eq!(r(&w, "r").state, ReservationState::Ending);
    w.release("titan01");
    assert_eq!((&r(&w, "r").state, w.state_of("a")), (&ReservationState::Ended, "timed_out"));
}

#[test]
fn no_node_stops_a_job_for_its_health_and_gets_away_with_it() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    let why = StopWhy::NodeFault { cause: "xid".to_owned() };
    let stopped = Report::StoppedAlone { allocation: a.clone(), epoch, why, at: w.now };
    w.report("titan01", stopped).unwrap();
    assert_eq!(w.fsm.allocation(&a).unwrap().stop, None);
}

pub(super) fn grant(id: &str, from: Millis, length: Millis) -> WindowReport {
    let starts_at = START + from;
    WindowReport {
        reservation: res(id),
        revision: Epoch::default(),
        owner: user("eve"),
        gpus: vec![gpu("titan01", 1)],
        window: Window { starts_at, ends_at: starts_at + length },
        withdrawn: false,
        opened_at: Some(starts_at),
        closed_at: None,
        granted: Some(NodeGrant { by: "root".to_owned(), reason: "paper due".to_owned() }),
        with: Default::default(),
    }
}

#[test]
fn roots_grant_becomes_a_reservation_and_is_on_record() {
    let mut w = World::with(&["titan01"]);
    w.now = START + Millis::hours(1);
    let report = grant("g", Millis::minutes(30), Millis::hours(4));
    w.report("titan01", Report::Window(Box::new(report.clone()))).unwrap();
    assert!(w.said().iter().any(|s| s.contains("granted to eve") && s.contains("paper due")));
    assert_eq!(r(&w, "g").state, ReservationState::Active);
    assert_eq!(r(&w, "g").window.ends_at, START + Millis::minutes(270));
    let audit = w.fsm.audit_head().0;
    w.report("titan01", Report::Window(Box::new(report))).unwrap();
    assert_eq!(w.fsm.audit_head().0, audit, "said again, nothing happens");
    w.pass(Millis::hours(4));
    w.release("titan01");
    assert_eq!(r(&w, "g").state, ReservationState::Ended);
}

#[test]
fn a_grant_gives_way_to_what_was_promised_meanwhile() {
    let mut w = World::with(&["titan01"]);
    w.reserve("bob", "soon", 4, Millis::hours(2), Millis::hours(1)).unwrap();
    let report = grant("g", Millis::ZERO, Millis::hours(4));
    w.report("titan01", Report::Window(Box::new(report))).unwrap();
    assert_eq!(r(&w, "g").window.ends_at, START + Millis::hours(2));
    assert_eq!(told(&w, "titan01", "g").unwrap().window.ends_at, START + Millis::hours(2));
    // And where somebody holds the GPU already, the node gets the order to release the window.
    w.pass(Millis::hours(2));
    w.release("titan01");
    w.agents_answer = false;
    let report = grant("h", Millis::hours(2), Millis::hours(1));
    w.report("titan01", Report::Window(Box::new(report))).unwrap();
    assert_eq!(r(&w, "h").state, ReservationState::Ended);
    let order = told(&w, "titan01", "h").unwrap();
    assert!(order.withdrawn);
    answers(&mut w, "titan01", &order, [None; 2]);
    assert!(told(&w, "titan01", "h").is_none());
}

#[test]
fn a_grant_that_is_over_is_only_put_on_record() {
    let mut w = World::with(&["titan01"]);
    w.now = START + Millis::hours(9);
    let over = WindowReport {
        closed_at: Some(START + Millis::hours(4)),
        ..grant("g", Millis::ZERO, Millis::hours(4))
    };
    w.report("titan01", Report::Window(Box::new(over))).unwrap();
    assert_eq!(r(&w, "g").state, ReservationState::Ended);
    assert!(w.fsm.leases().is_empty() && told(&w, "titan01", "g").is_none());
    let foreign = WindowReport {
        gpus: vec![GpuUuid::parse("GPU-f").unwrap()],
        ..grant("x", Millis::ZERO, Millis::hours(1))
    };
    w.report("titan01", Report::Window(Box::new(foreign))).unwrap();
    assert!(w.fsm.reservation(&res("x")).is_none(), "not a GPU of that node");
    let long = grant("y", Millis::ZERO, Millis::days(61));
    assert!(w.report("titan01", Report::Window(Box::new(long))).is_err());
}

/// The controllers come back from a backup of an hour before.
#[test]
fn after_a_restore_the_agents_word_counts() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "longer", 1, Millis::hours(3), Millis::hours(1)).unwrap();
    w.reserve("ada", "gone", 1, Millis::hours(3), Millis::hours(1)).unwrap();
    let (backup, index) = (w.fsm.clone(), w.index);
    let ends_at = START + Millis::hours(6);
    w.give(
        person("ada"),
        Command::Reservation(ReservationCommand::Extend { id: res("longer"), ends_at }),
    )
    .unwrap();
    let withdrawn =
        |w: &World| DesiredWindow { withdrawn: true, ..told(w, "titan01", "gone").unwrap() };
    w.agents_answer = false;
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("gone") }))
        .unwrap();
    let gone = withdrawn(&w);
    w.reserve("bob", "new", 2, Millis::hours(3), Millis::hours(1)).unwrap();
    let (longer, new) =
        (told(&w, "titan01", "longer").unwrap(), told(&w, "titan01", "new").unwrap());
    (w.fsm, w.index) = (backup, index);
    let cluster = crate::id::ClusterId::parse("fleet-test").unwrap();
    w.give(Actor::controller(), Command::Cluster(ClusterCommand::Init { cluster, incarnation: 2 }))
        .unwrap();
    for told in [longer, gone, new] {
        answers(&mut w, "titan01", &told, [None; 2]);
    }
    counted(&mut w, "titan01");
    assert_eq!(r(&w, "longer").window.ends_at, ends_at);
    assert_eq!(r(&w, "gone").state, ReservationState::Cancelled);
    assert_eq!((r(&w, "new").owner.clone(), r(&w, "new").gpus.len()), (user("bob"), 2));
    let order = told(&w, "titan01", "new").unwrap();
    assert_eq!(order.revision.incarnation, 2);
}

/// Back to `backup`, an hour before; the node is asked what it holds.
pub(super) fn restored(w: &mut World, backup: (Fsm, u64)) {
    restored_as(w, backup, 2);
}

fn restored_as(w: &mut World, backup: (Fsm, u64), incarnation: u64) {
    (w.fsm, w.index) = backup;
    let cluster = crate::id::ClusterId::parse("fleet-test").unwrap();
    w.give(Actor::controller(), Command::Cluster(ClusterCommand::Init { cluster, incarnation }))
        .unwrap();
    w.agents_answer = false;
}

fn counted(w: &mut World, on: &str) {
    let (allocations, reservations) = (Vec::new(), Vec::new());
    w.report(on, Report::Holdings { allocations, reservations }).unwrap();
}

#[test]
fn what_was_handed_out_after_the_backup_is_asked_for_before_it_is_handed_out_again() {
    let mut w = World::with(&["titan01"]);
    let ahead = HAND_OUT_AHEAD + Millis::hours(1);
    for (name, gpus) in [("longer", 1), ("gone", 2)] {
        w.reserve("ada", name, gpus, ahead, Millis::hours(1)).unwrap();
    }
    let backup = (w.fsm.clone(), w.index);
    w.pass(Millis::hours(2));
    let ends_at = START + ahead + Millis::hours(3);
    w.give(
        person("ada"),
        Command::Reservation(ReservationCommand::Extend { id: res("longer"), ends_at }),
    )
    .unwrap();
    w.agents_answer = false;
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("gone") }))
        .unwrap();
    let held = ["longer", "gone"].map(|name| told(&w, "titan01", name).unwrap());
    restored(&mut w, backup);
    w.pass(Millis::ZERO);
    assert_eq!(r(&w, "longer").handed_out, None, "the node was not asked yet");
    for told in held {
        answers(&mut w, "titan01", &told, [None; 2]);
    }
    counted(&mut w, "titan01");
    assert_eq!(r(&w, "gone").state, ReservationState::Cancelled);
    let told = told(&w, "titan01", "longer").unwrap();
    assert_eq!((told.window.ends_at, told.revision.incarnation), (ends_at, 2));
}

#[test]
fn what_was_moved_after_the_backup_is_where_its_newest_order_is() {
    for moved_first in [false, true] {
        let mut w = World::with(&["titan01", "titan02"]);
        let starts_at = w.now + Millis::hours(1);
        let wish = CreateReservation {
            note: "camera ready".to_owned(),
            at_end: Some(EndPolicy::Stop),
            ..CreateReservation::plain(
                res("r"),
                user("ada"),
                GpuRequest { count: 4, ..GpuRequest::default() },
                Window { starts_at, ends_at: starts_at + Millis::hours(2) },
            )
        };
        w.give(person("ada"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
        let first = r(&w, "r").clone();
        let (old, window) = (r(&w, "r").node.to_string(), r(&w, "r").window);
        let backup = (w.fsm.clone(), w.index);
        w.conditions(&old, vec![bad(&old, 0, Severity::Degraded)]);
        w.pass(Millis::hours(1));
        let new = r(&w, "r").node.to_string();
        assert_ne!(old, new);
        let moved = told(&w, &new, "r").unwrap();
        let given = backup.0.reservation(&res("r")).unwrap().handed_out.clone().unwrap();
        let left = DesiredWindow {
            withdrawn: true,
            revision: Epoch { index: moved.revision.index - 1, ..given.revision },
            gpus: backup.0.reservation(&res("r")).unwrap().gpus.clone(),
            ..moved.clone()
        };
        restored(&mut w, backup);
        let mut words = [(old.clone(), left), (new.clone(), moved.clone())];
        if moved_first {
            words.reverse();
        }
        for (on, told) in &words {
            answers(&mut w, on, told, [None; 2]);
        }
        for on in [&old, &new] {
            counted(&mut w, on);
        }
        let now = r(&w, "r");
        assert_eq!((now.node.as_str(), now.window.ends_at), (new.as_str(), window.ends_at));
        assert_eq!((&now.note, now.at_end, &now.wish), (&first.note, first.at_end, &first.wish));
        assert_eq!(now.created_at, first.created_at);
        assert_eq!((&now.state, &now.gpus), (&ReservationState::Active, &moved.gpus), "{now:?}");
        // Nobody draws somebody else's reservation to itself later.
        let revision = Epoch { incarnation: 2, index: w.index };
        let stolen = DesiredWindow { revision, gpus: vec![gpu(&old, 0)], ..moved.clone() };
        answers(&mut w, &old, &stolen, [None; 2]);
        assert_eq!(r(&w, "r").node.as_str(), new);
    }
}

#[test]
fn what_was_shared_after_the_backup_still_is_but_not_with_closed_accounts() {
    let mut w = World::with(&["titan01"]);
    let reason = "left".to_owned();
    let close = AccessCommand::DisableUser { user: user("mal"), reason, transfer_to: None };
    w.give(person("root"), Command::Access(close)).unwrap();
    let backup = (w.fsm.clone(), w.index);
    w.reserve("ada", "new", 1, Millis::hours(1), Millis::hours(1)).unwrap();
    let order = told(&w, "titan01", "new").unwrap();
    let shared = DesiredWindow { with: ["bob", "mal"].map(user).into(), ..order };
    restored(&mut w, backup.clone());
    answers(&mut w, "titan01", &shared, [None; 2]);
    counted(&mut w, "titan01");
    assert_eq!(r(&w, "new").with, [user("bob")].into());
    assert_eq!(told(&w, "titan01", "new").unwrap().with, [user("bob")].into());

    // A newer order for one that the backup knows without them.
    let known = DesiredWindow {
        revision: Epoch { index: w.index, ..told(&w, "titan01", "new").unwrap().revision },
        with: [user("eve")].into(),
        ..told(&w, "titan01", "new").unwrap()
    };
    let backup = (w.fsm.clone(), w.index);
    restored_as(&mut w, backup, 3);
    answers(&mut w, "titan01", &known, [None; 2]);
    counted(&mut w, "titan01");
    assert_eq!(r(&w, "new").with, [user("eve")].into());

    let many = (0..=SHARED_WITH_MAX).map(|n| user(&format!("u{n}"))).collect();
    let report = WindowReport { with: many, ..grant("g", Millis::ZERO, Millis::hours(1)) };
    assert!(w.report("titan01", Report::Window(Box::new(report))).is_err());
}

#[test]
fn an_order_that_no_log_gave_is_not_believed() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::hours(1), Millis::hours(2)).unwrap();
    let mut told = told(&w, "titan01", "r").unwrap();
    told.revision = Epoch { incarnation: u64::MAX, index: u64::MAX };
    told.withdrawn = true;
    answers(&mut w, "titan01", &told, [None; 2]);
    assert_eq!(r(&w, "r").state, ReservationState::Scheduled);
}

#[test]
fn the_switch_is_on_record_once() {
    let mut w = World::with(&["titan01"]);
    let switch = EnforcementSwitch {
        mode: Enforcement::Off,
        by: "root".to_owned(),
        reason: "nobody can be asked".to_owned(),
        at: START,
    };
    w.report("titan01", Report::Enforcement(switch.clone())).unwrap();
    assert!(w.said()[0].contains("set to off by root: nobody can be asked"), "{:?}", w.said());
    w.report("titan01", Report::Enforcement(switch)).unwrap();
    assert!(w.said().is_empty());
}

#[test]
fn a_machine_that_is_vouched_to_be_off_opens_nothing() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(2)).unwrap();
    w.agents_answer = false;
    silent(&mut w, "titan01");
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert!(r(&w, "r").is_unconfirmed());
    let reason = "scrapped".to_owned();
    w.give(
        person("root"),
        Command::Gpu(GpuCommand::DeclareFree { gpu: gpu("titan01", 0), reason }),
    )
    .unwrap();
    assert_eq!(r(&w, "r").state, ReservationState::Cancelled);
}

#[test]
fn a_reboot_leaves_windows_in_hand() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(2)).unwrap();
    let before = told(&w, "titan01", "r");
    let command = Command::Node(NodeCommand::Register {
        node: node("titan01"),
        facts: Box::new(facts("titan01", 4, "boot-2")),
    });
    w.give(super::world::agent("titan01"), command).unwrap();
    assert_eq!(told(&w, "titan01", "r"), before);
    let id: ReservationId = res("r");
    assert_eq!(w.fsm.reservation(&id).unwrap().state, ReservationState::Active);
}
