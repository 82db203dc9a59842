//! After a restore: nodes report what the backup does not know, the fleet takes it over, and nothing is given twice.

use super::world::{World, agent, bad, ended, facts, gpu, job, node, person, plain, res, training};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{
    ClusterCommand, Command, GpuCommand, JobCommand, NodeCommand, Report, ReservationCommand,
};
use crate::desired::{Order, StartOrder};
use crate::event::Event;
use crate::health::Severity;
use crate::holdings::{FoundAttempt, HeldReservation};
use crate::id::{AllocationId, ClusterId};
use crate::job::JobSpec;
use crate::lease::LeaseHolder;
use crate::reservation::ReservationState;
use crate::state::Fsm;
use crate::time::Millis;

/// What the node's agent would tell of an attempt that `fsm` knows.
pub(super) fn found(fsm: &Fsm, id: &AllocationId) -> FoundAttempt {
    let a = fsm.allocation(id).unwrap();
    let of = fsm.job(&a.job).unwrap();
    let order = StartOrder {
        job: a.job.clone(),
        attempt: a.attempt,
        restarts_used: of.restarts_used,
        owner: a.owner.clone(),
        spec: of.spec.clone(),
        gpus: a.gpus.clone(),
        cpu_millis: a.cpu_millis,
        memory_bytes: a.memory_bytes,
        resume_from: a.resume_from.clone(),
        marker: of.marker.clone(),
        resume: None,
    };
    let (allocation, epoch, lease) = (id.clone(), a.epoch, a.lease.clone());
    FoundAttempt { allocation, epoch, lease, order, accepted_at: a.placed_at, end: None }
}

/// The cluster starts again from the state `backup`.
pub(super) fn restore(w: &mut World, backup: Fsm) {
    w.fsm = backup;
    w.index = w.fsm.applied();
    let cluster = ClusterId::parse("fleet-test").unwrap();
    let incarnation = w.fsm.incarnation() + 1;
    w.give(Actor::controller(), Command::Cluster(ClusterCommand::Init { cluster, incarnation }))
        .unwrap();
}

/// The node's agent tells everything.
pub(super) fn recount(
    w: &mut World,
    on: &str,
    all: Vec<FoundAttempt>,
    reservations: Vec<HeldReservation>,
) {
    let allocations = all.iter().map(|one| one.allocation.clone()).collect();
    let found = all.into_iter().map(|one| Report::Found(Box::new(one)));
    let reports = found.chain([Report::Holdings { allocations, reservations }]).collect();
    w.give(agent(on), Command::Node(NodeCommand::Report { node: node(on), reports })).unwrap();
}

#[test]
fn nothing_is_ordered_or_placed_before_a_node_was_heard() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.submit("bob", "queued", plain(1)).unwrap();
    let backup = w.fsm.clone();
    let since = w.now;
    w.pass(Millis::hours(5));
    restore(&mut w, backup);
    for on in ["titan01", "titan02"] {
        let desired = w.fsm.desired(&node(on), std::slice::from_ref(&a));
        assert_eq!(desired.recount, Some(since));
        assert!(desired.allocations.is_empty() && desired.forget.is_empty());
    }
    w.submit("eve", "new", plain(1)).unwrap();
    assert_eq!(w.schedule(), 0);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    let waiting = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!(waiting.state, ReservationState::Scheduled, "promised, and not given yet");

    recount(&mut w, "titan02", Vec::new(), Vec::new());
    assert_eq!(w.schedule(), 1, "a job from after the restore runs nowhere else");
    assert_eq!(w.state_of("new"), "starting");
    assert_eq!(w.state_of("queued"), "queued", "it may run on titan01");
    let plan = crate::scheduler::plan(&w.fsm);
    assert!(plan.waiting[&job("queued")].reason.to_string().contains("titan01"), "{plan:?}");

    let mut kept = w.fsm.clone();
    kept.check_invariants().unwrap();
    let told = found(&kept, &a);
    recount(&mut w, "titan01", vec![told], Vec::new());
    assert_eq!(w.state_of("a"), "running");
    let desired = w.fsm.desired(&node("titan01"), &[a]);
    assert!(matches!(desired.allocations[0].order, Order::Keep) && desired.recount.is_none());
    assert_eq!(w.schedule(), 1);
    kept = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(kept.digest(), w.fsm.digest());
}

#[test]
fn a_job_that_may_run_unseen_is_in_nobodys_way() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.submit("bob", "queued", plain(4)).unwrap();
    let backup = w.fsm.clone();
    w.pass(Millis::hours(5));
    restore(&mut w, backup);
    recount(&mut w, "titan02", Vec::new(), Vec::new());
    let owner = super::world::user("eve");
    assert_eq!(crate::scheduler::could_start_now(&w.fsm, &owner, &plain(4)), Ok(()));
    w.submit("eve", "new", plain(4)).unwrap();
    let why = crate::scheduler::explain(&w.fsm, &job("new")).unwrap();
    assert_eq!(why.reason, None, "it starts, as the plan says");
    assert_eq!(w.schedule(), 1);
    assert_eq!(w.state_of("new"), "starting");
}

#[test]
fn a_job_that_began_after_the_backup_goes_on_where_it_is() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.submit("ada", "known", plain(2)).unwrap();
    let backup = w.fsm.clone();
    let known = w.place("known", "titan01", &[0, 1]).unwrap();
    w.start(&known);
    let unknown = w.run("unknown", training(), "titan01", &[2]);
    let told: Vec<_> = [&known, &unknown].map(|id| found(&w.fsm, id)).into();
    restore(&mut w, backup);
    recount(&mut w, "titan02", Vec::new(), Vec::new());
    assert_eq!(w.schedule(), 0, "not on titan02 as well");
    recount(&mut w, "titan01", told.clone(), Vec::new());
    assert_eq!(w.fsm.restored().unwrap().adopted, 2);
    for (id, one) in [(&known, &told[0]), (&unknown, &told[1])] {
        let a = w.fsm.allocation(id).unwrap();
        assert_eq!((a.epoch, &a.lease), (one.epoch, &one.lease), "the grant it has");
        w.start(id);
    }
    assert_eq!((w.state_of("known"), w.state_of("unknown")), ("running", "running"));
    // Its GPUs are held: nobody else gets them.
    w.submit("bob", "b", JobSpec { name: "b".to_owned(), ..plain(4) }).unwrap();
    assert_eq!(w.schedule(), 1);
    let b = w.fsm.job(&job("b")).unwrap().place().cloned().unwrap();
    assert_eq!(b.node, node("titan02"));
    // Said twice it changes nothing.
    recount(&mut w, "titan01", told, Vec::new());
    assert!(w.last.is_empty(), "{:?}", w.last);
    // A job that only the node vouches for stays on it.
    assert_eq!(w.fsm.job(&job("unknown")).unwrap().spec.gpus.node, Some(node("titan01")));
    w.end(&unknown, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("unknown"), "completed");
    w.release("titan01");
    assert!(w.fsm.hold(&gpu("titan01", 2)).is_none());
}

#[test]
fn an_answer_to_an_order_from_after_the_backup_is_none_to_a_new_order() {
    let mut w = World::with(&["titan01"]);
    let id = w.run("a", training(), "titan01", &[0]);
    let backup = w.fsm.clone();
    let told = vec![found(&w.fsm, &id)];
    let drain = || {
        let (reason, deadline) = ("disk".to_owned(), None);
        Command::Node(NodeCommand::Drain { node: node("titan01"), reason, deadline })
    };
    let order = |w: &World| w.fsm.allocation(&id).unwrap().deferral.as_ref().unwrap().order;
    w.give(person("root"), drain()).unwrap();
    let lost = order(&w);
    restore(&mut w, backup);
    recount(&mut w, "titan01", told, Vec::new());
    w.give(person("root"), drain()).unwrap();
    assert_ne!(order(&w), lost);
    let (allocation, checkpoint_seq) = (id.clone(), 0);
    w.report("titan01", Report::DeferralTaken { allocation, order: lost, checkpoint_seq }).unwrap();
    w.checkpoint(&id, 1, Millis::ZERO);
    assert_eq!(w.state_of("a"), "running", "it was saved before the node had the new order");
    w.take_deferral(&id, 1);
    w.checkpoint(&id, 2, Millis::ZERO);
    assert_eq!(w.state_of("a"), "stopping");
}

#[test]
fn a_job_that_a_node_brings_along_waits_for_all_nodes_before_it_is_tried_again() {
    let mut w = World::with(&["titan01", "titan02"]);
    let backup = w.fsm.clone();
    w.pass(Millis::minutes(5));
    let first = w.run("a", training(), "titan01", &[0]);
    let mut over = found(&w.fsm, &first);
    over.end = Some(ended(AttemptEnd::NodeFault { message: "gone".to_owned() }, false));
    w.end(&first, AttemptEnd::NodeFault { message: "gone".to_owned() });
    let second = w.place("a", "titan02", &[0]).unwrap();
    w.start(&second);
    let goes_on = found(&w.fsm, &second);
    restore(&mut w, backup);
    recount(&mut w, "titan01", vec![over], Vec::new());
    assert_eq!(w.state_of("a"), "queued", "as its first attempt ended");
    assert_eq!(w.schedule(), 0, "its second one may run on titan02");
    recount(&mut w, "titan02", vec![goes_on], Vec::new());
    assert_eq!(w.schedule(), 0);
    assert_eq!(w.fsm.job(&job("a")).unwrap().allocation(), Some(&second));
}

#[test]
fn a_release_from_after_the_backup_waits_for_the_end_of_what_ran() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let mut over = found(&w.fsm, &a);
    over.end = Some(ended(AttemptEnd::Exited { code: 0 }, false));
    let (lease, epoch) = (over.lease.clone().unwrap(), over.epoch);
    let backup = w.fsm.clone();
    restore(&mut w, backup);
    // The agent's first words on a connection are what it had to say before it was asked.
    w.report("titan01", Report::Released { lease: lease.clone(), epoch }).unwrap();
    assert!(w.fsm.lease(&lease).is_some() && w.fsm.allocation(&a).is_some());
    recount(&mut w, "titan01", vec![over], Vec::new());
    assert!(w.fsm.lease(&lease).is_some(), "it says so again");
    w.report("titan01", Report::Released { lease: lease.clone(), epoch }).unwrap();
    assert!(w.fsm.lease(&lease).is_none());
}

#[test]
fn a_job_that_seemed_to_be_over_goes_on_where_a_later_attempt_runs() {
    let mut w = World::with(&["titan01", "titan02"]);
    let first = w.run("a", plain(1), "titan01", &[0]);
    w.submit("ada", "b", plain(1)).unwrap();
    let backup = w.fsm.clone();
    // Both run on titan02 later, a as its second attempt.
    let again = w.place("b", "titan02", &[1]).unwrap();
    w.start(&again);
    let mut second = found(&w.fsm, &again);
    let other = second.clone();
    second.order.job = job("a");
    (second.order.attempt, second.allocation) = (2, AllocationId::of_attempt(&job("a"), 2));
    second.lease = Some(crate::id::LeaseId::parse("lease-1-99-0").unwrap());
    second.order.gpus = vec![gpu("titan02", 2)];
    restore(&mut w, backup);
    let mut over = found(&w.fsm, &first);
    over.end = Some(ended(AttemptEnd::Exited { code: 9 }, false));
    recount(&mut w, "titan01", vec![over], Vec::new());
    w.give(super::world::person("ada"), Command::Job(JobCommand::Cancel { id: job("b") })).unwrap();
    assert_eq!((w.state_of("a"), w.state_of("b")), ("failed", "cancelled"));
    recount(&mut w, "titan02", vec![other, second.clone()], Vec::new());
    assert_eq!((w.state_of("a"), w.state_of("b")), ("starting", "stopping"));
    assert_eq!(w.fsm.job(&job("a")).unwrap().allocation(), Some(&second.allocation));
    let desired = w.fsm.desired(&node("titan02"), std::slice::from_ref(&again));
    let stops = |one: &crate::desired::DesiredAllocation| matches!(one.order, Order::Stop { .. });
    assert!(desired.allocations.iter().any(|one| one.id == again && stops(one)), "{desired:?}");
    assert!(desired.allocations.iter().any(|one| one.id == second.allocation && !stops(one)));
}

#[test]
fn a_boot_after_the_backup_does_not_undo_what_had_ended_before_it() {
    let mut w = World::with(&["titan01"]);
    let (a, b) = (w.run("a", plain(1), "titan01", &[0]), w.run("b", training(), "titan01", &[1]));
    let mut over = found(&w.fsm, &a);
    over.end = Some(ended(AttemptEnd::Exited { code: 0 }, false));
    let backup = w.fsm.clone();
    restore(&mut w, backup);
    w.boot("titan01", "another-boot").unwrap();
    assert_eq!((w.state_of("a"), w.state_of("b")), ("running", "running"), "nobody was asked yet");
    recount(&mut w, "titan01", vec![over], Vec::new());
    assert_eq!((w.state_of("a"), w.state_of("b")), ("completed", "queued"));
    assert!(w.fsm.allocation(&b).is_none());
    w.release("titan01");
    assert_eq!(w.fsm.leases().len(), 0);
}

#[test]
fn what_ended_after_the_backup_ends_as_it_did() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    let b = w.run("b", training(), "titan01", &[1]);
    let backup = w.fsm.clone();
    let mut told: Vec<_> = [&a, &b].map(|id| found(&w.fsm, id)).into();
    told[0].end = Some(ended(AttemptEnd::Exited { code: 0 }, false));
    let c = w.run("c", training(), "titan01", &[2]);
    let mut third = found(&w.fsm, &c);
    third.end = Some(ended(AttemptEnd::Exited { code: 3 }, false));
    restore(&mut w, backup);
    told.remove(1);
    told.push(third);
    recount(&mut w, "titan01", told, Vec::new());
    assert_eq!(w.state_of("a"), "completed");
    assert_eq!(w.fsm.job(&job("c")).unwrap().outcome.as_ref().unwrap().exit_code, Some(3));
    // Of b the node has no record: it is not there. It may be tried again, as after a fault of the node.
    assert_eq!(w.state_of("b"), "queued");
    // The GPUs are free when the node has proven them empty, not before.
    assert!(w.fsm.hold(&gpu("titan01", 2)).is_some());
    w.release("titan01");
    assert!(w.fsm.leases().is_empty());
}

#[test]
fn a_later_attempt_elsewhere_takes_the_place_of_the_one_the_backup_knows() {
    let mut w = World::with(&["titan01", "titan02"]);
    let first = w.run("a", training(), "titan01", &[0]);
    let backup = w.fsm.clone();
    w.end(&first, AttemptEnd::NodeFault { message: "shim".to_owned() });
    w.release("titan01");
    let second = w.place("a", "titan02", &[0]).unwrap();
    w.start(&second);
    let told = found(&w.fsm, &second);
    restore(&mut w, backup);
    recount(&mut w, "titan02", vec![told], Vec::new());
    let a = w.fsm.job(&job("a")).unwrap();
    assert_eq!((a.allocation(), a.attempt.number), (Some(&second), 2));
    // titan01 has only the end of the first; it changes nothing any more.
    recount(&mut w, "titan01", Vec::new(), Vec::new());
    w.release("titan01");
    assert_eq!(w.fsm.leases().len(), 1);
    assert_eq!(w.fsm.job(&job("a")).unwrap().allocation(), Some(&second));
}

#[test]
fn a_gpu_that_was_given_on_after_the_backup_belongs_to_the_later_grant() {
    let mut w = World::with(&["titan01"]);
    let old = w.run("old", plain(1), "titan01", &[0]);
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(8)).unwrap();
    let reserved = w.fsm.reservation(&res("r")).unwrap().gpus.clone();
    let backup = w.fsm.clone();
    w.end(&old, AttemptEnd::Exited { code: 0 });
    w.give(
        super::world::person("ada"),
        Command::Reservation(ReservationCommand::Release { id: res("r") }),
    )
    .unwrap();
    w.release("titan01");
    w.submit("bob", "next", plain(3)).unwrap();
    let indices: Vec<u32> =
        (0..4).filter(|i| *i == 0 || reserved.contains(&gpu("titan01", *i))).collect();
    let next = w.place("next", "titan01", &indices).unwrap();
    w.start(&next);
    let told = found(&w.fsm, &next);
    restore(&mut w, backup);
    recount(&mut w, "titan01", vec![told], Vec::new());
    for index in indices {
        let hold = w.fsm.hold(&gpu("titan01", index)).unwrap();
        let lease = w.fsm.lease(&hold.lease).unwrap();
        assert_eq!(lease.holder, LeaseHolder::Allocation(next.clone()));
    }
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Ended);
    assert_eq!(w.state_of("old"), "failed", "nobody said how it ended");
}

#[test]
fn a_job_under_its_owners_reservation_is_found_under_it() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    let backup = w.fsm.clone();
    let a = w.run("a", plain(2), "titan01", &[0, 1]);
    let told = found(&w.fsm, &a);
    let parent = w.fsm.lease(told.lease.as_ref().unwrap()).unwrap().parent.clone();
    restore(&mut w, backup);
    recount(&mut w, "titan01", vec![told.clone()], Vec::new());
    let lease = w.fsm.lease(told.lease.as_ref().unwrap()).unwrap();
    assert!(parent.is_some() && lease.parent == parent);
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Active);
}

#[test]
fn a_reservation_made_after_the_backup_is_told_as_lost() {
    let mut w = World::with(&["titan01"]);
    let backup = w.fsm.clone();
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(8)).unwrap();
    let made = w.fsm.reservation(&res("r")).unwrap().clone();
    restore(&mut w, backup);
    let held = HeldReservation { id: made.id, owner: made.owner, gpus: made.gpus };
    recount(&mut w, "titan01", Vec::new(), vec![held]);
    let lost = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!(lost.state, ReservationState::Cancelled);
    assert!(lost.reason.as_ref().unwrap().contains("reserve again"));
    assert!(w.last.iter().any(|e| matches!(e, Event::ReservationLost { .. })), "{:?}", w.said());
    assert_eq!(w.fsm.restored().unwrap().reservations_lost, 1);
}

#[test]
fn a_reservation_that_is_due_waits_for_its_node() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::hours(1), Millis::hours(8)).unwrap();
    let backup = w.fsm.clone();
    restore(&mut w, backup);
    w.pass(Millis::hours(2));
    let waiting = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!(waiting.state, ReservationState::Scheduled);
    assert!(waiting.reason.as_ref().unwrap().contains("restore"));
    recount(&mut w, "titan01", Vec::new(), Vec::new());
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Active);
}

/// Its own node has been asked, and is broken: the one it moves to has not, and may run something.
#[test]
fn a_reservation_that_moves_to_a_node_that_was_not_asked_waits_for_that() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::hours(24 * 8), Millis::hours(8)).unwrap();
    let promised = w.fsm.reservation(&res("r")).unwrap().node.to_string();
    w.conditions(&promised, vec![bad(&promised, 0, Severity::Degraded)]);
    let backup = w.fsm.clone();
    restore(&mut w, backup);
    w.pass(Millis::hours(24 * 8));
    recount(&mut w, &promised, Vec::new(), Vec::new());
    let r = w.fsm.reservation(&res("r")).unwrap();
    assert_ne!(r.node.as_str(), promised);
    assert_eq!((&r.state, &r.lease), (&ReservationState::Scheduled, &None));
    let other = r.node.to_string();
    assert!(r.reason.as_ref().unwrap().contains(&other), "{:?}", r.reason);
    recount(&mut w, &other, Vec::new(), Vec::new());
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Active);
}

/// Fleet knows nothing of the other node yet, and a reservation there would wait for its report.
#[test]
fn a_node_that_was_asked_goes_before_one_that_was_not() {
    for asked in ["titan01", "titan02"] {
        let mut w = World::with(&["titan01", "titan02"]);
        let backup = w.fsm.clone();
        restore(&mut w, backup);
        recount(&mut w, asked, Vec::new(), Vec::new());
        w.reserve("ada", "r", 2, Millis::hours(2), Millis::hours(8)).unwrap();
        assert_eq!(w.fsm.reservation(&res("r")).unwrap().node.as_str(), asked);
        // The other is better than none.
        w.reserve("ada", "whole", 4, Millis::hours(2), Millis::hours(8)).unwrap();
        assert_ne!(w.fsm.reservation(&res("whole")).unwrap().node.as_str(), asked);
    }
}

/// A node may tell only of itself, only what it can have been granted, and only while it is asked.
#[test]
fn what_a_node_cannot_have_been_granted_is_not_believed() {
    let mut w = World::with(&["titan01", "titan02"]);
    let backup = w.fsm.clone();
    let a = w.run("a", plain(1), "titan01", &[0]);
    let good = found(&w.fsm, &a);
    restore(&mut w, backup);
    let before = w.fsm.jobs().len();
    let mut bad = Vec::new();
    for change in 0..6 {
        let mut one = good.clone();
        match change {
            0 => one.order.gpus = vec![gpu("titan02", 0)],
            1 => one.lease = None,
            2 => one.order.attempt = 0,
            3 => one.epoch.incarnation = w.fsm.incarnation(),
            4 => one.order.job = job("other"),
            _ => one.order.spec.argv = Vec::new(),
        }
        bad.push(Report::Found(Box::new(one)));
    }
    w.give(
        agent("titan01"),
        Command::Node(NodeCommand::Report { node: node("titan01"), reports: bad }),
    )
    .unwrap();
    assert_eq!((w.fsm.jobs().len(), w.fsm.leases().len()), (before, 0));
    recount(&mut w, "titan01", Vec::new(), Vec::new());
    recount(&mut w, "titan01", vec![good], Vec::new());
    assert_eq!(w.fsm.jobs().len(), before, "it is not asked any more");
}

/// Joined after the backup: the restored fleet does not know it, but must ask it too.
#[test]
fn a_node_that_joined_after_the_backup_is_asked_too() {
    let mut w = World::with(&["titan01"]);
    let backup = w.fsm.clone();
    w.boot("titan02", "boot-1").unwrap();
    let a = w.run("a", plain(1), "titan02", &[0]);
    let told = found(&w.fsm, &a);
    restore(&mut w, backup);
    let facts = Box::new(facts("titan02", 4, "boot-1"));
    w.give(agent("titan02"), Command::Node(NodeCommand::Register { node: node("titan02"), facts }))
        .unwrap();
    assert!(w.fsm.uncounted().any(|name| *name == node("titan02")));
    recount(&mut w, "titan02", vec![told], Vec::new());
    assert_eq!(w.fsm.allocation(&a).unwrap().node, node("titan02"));
}

/// A machine that is off for good would hold up everything else.
#[test]
fn an_operator_vouches_for_a_node_that_never_answers() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.run("a", training(), "titan01", &[0]);
    w.submit("bob", "queued", plain(1)).unwrap();
    let backup = w.fsm.clone();
    restore(&mut w, backup);
    recount(&mut w, "titan02", Vec::new(), Vec::new());
    let free = |w: &mut World, index| {
        let (gpu, reason) = (gpu("titan01", index), "scrapped".to_owned());
        w.give(super::world::person("root"), Command::Gpu(GpuCommand::DeclareFree { gpu, reason }))
            .unwrap();
    };
    free(&mut w, 1);
    assert_eq!(w.fsm.uncounted().count(), 1, "it may still answer");
    let (node, liveness) = (node("titan01"), crate::node::Liveness::Unreachable);
    let silent_for = Millis::minutes(2);
    w.give(
        Actor::controller(),
        Command::Node(NodeCommand::SetLiveness { node, liveness, silent_for }),
    )
    .unwrap();
    free(&mut w, 1);
    assert_eq!(w.fsm.uncounted().count(), 1, "something is held there");
    free(&mut w, 0);
    assert_eq!(w.fsm.uncounted().count(), 0);
    assert_eq!(w.schedule(), 2, "the queued one, and the one that was lost");
}

#[test]
fn what_ran_before_a_restore_gives_way_to_no_reservation_that_waits_to_begin() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "own", 1, Millis::hours(1), Millis::hours(8)).unwrap();
    let backup = w.fsm.clone();
    w.pass(Millis::hours(1));
    w.submit("ada", "a", JobSpec { reservation: Some(res("own")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    let told = found(&w.fsm, &a);
    restore(&mut w, backup);
    // Said before the node is counted, and so before it is known that the reservation had begun.
    w.report("titan01", Report::Found(Box::new(told))).unwrap();
    w.start(&a);
    let limit = w.fsm.allocation(&a).unwrap().time_limit_at;
    assert_eq!(limit, Some(w.now + Millis::hours(1)), "it is in no one's way");
}
