//! Stays: who had which GPUs from when to when, as the events say that end them.

use std::collections::BTreeMap;

use super::adoption::{found, recount, restore};
use super::windows::{answers, told};
use super::world::{START, World, bad, ended, gpu, job, node, person, plain, res, training, user};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{
    Command, Envelope, GpuCommand, NodeCommand, ProjectCommand, Report, ReservationCommand,
};
use crate::event::Event;
use crate::health::Severity;
use crate::id::LeaseId;
use crate::job::JobSpec;
use crate::lease::Epoch;
use crate::name::ProjectName;
use crate::node::Liveness;
use crate::reservation::ReservationState;
use crate::state::Fsm;
use crate::stay::Stay;
use crate::time::{Millis, Timestamp, Window};
use crate::usage::{Question, Usage, UsageBy, stay_ended_by};

/// What ended since somebody cleared `heard`.
fn over(w: &World) -> Vec<Stay> {
    w.heard.iter().filter_map(stay_ended_by).cloned().collect()
}

/// Minutes since the world began.
fn minutes(stay: &Stay) -> (u64, u64) {
    let of = |at: Timestamp| at.since(START).0 / 60_000;
    (of(stay.from), of(stay.until))
}

fn the_one(w: &World) -> Stay {
    let mut all = over(w);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn release(w: &mut World, name: &str) {
    let id = res(name);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id })).unwrap();
}

fn extend(w: &mut World, name: &str, minutes: u64) {
    let ends_at = START + Millis::minutes(minutes);
    let extend = ReservationCommand::Extend { id: res(name), ends_at };
    w.give(person("ada"), Command::Reservation(extend)).unwrap();
}

#[test]
fn a_job_holds_its_gpus_from_its_place_until_they_are_proven_empty() {
    let mut w = World::with(&["titan01"]);
    w.pass(Millis::minutes(5));
    let a = w.run("a", plain(2), "titan01", &[0, 1]);
    w.pass(Millis::minutes(10));
    let open: Vec<Stay> = w.fsm.open_stays(w.now).collect();
    assert_eq!(minutes(&open[0]), (5, 15));
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.pass(Millis::minutes(3));
    assert!(over(&w).is_empty(), "it ended, and its GPUs are not proven empty");
    w.release("titan01");
    let stay = the_one(&w);
    assert_eq!(minutes(&stay), (5, 18));
    assert_eq!((stay.models["v100"], stay.lost, stay.within.clone()), (2, None, None));
    assert_eq!(stay.account.class, Some(crate::name::ClassName::normal()));
    assert_eq!((stay.of(), stay.owner.as_str()), ("job-a", "ada"));
    // The node says it again.
    let (lease, epoch) = first_release(&w);
    w.report("titan01", Report::Released { lease, epoch }).unwrap();
    assert_eq!(over(&w).len(), 1);
    assert_eq!(w.fsm.open_stays(w.now).count(), 0);
}

fn first_release(w: &World) -> (LeaseId, Epoch) {
    let placed = w.heard.iter().find_map(|event| match event {
        Event::JobPlaced { epoch, .. } => Some(*epoch),
        _ => None,
    });
    let released = w.heard.iter().find_map(|event| match event {
        Event::GpusReleased { lease, .. } => Some(lease.clone()),
        _ => None,
    });
    (released.unwrap(), placed.unwrap())
}

#[test]
fn a_job_in_a_reservation_counts_for_the_reservation() {
    let mut w = World::with(&["titan01"]);
    let vision = ProjectName::parse("vision").unwrap();
    let mut first = crate::project::ProjectChange::default();
    first.people.add_members = [user("ada")].into();
    let create = ProjectCommand::Create { name: vision.clone(), first };
    w.give(person("root"), Command::Project(create)).unwrap();
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(1)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), project: vision, ..plain(1) })
        .unwrap();
    assert_eq!(w.schedule(), 1);
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    w.pass(Millis::minutes(20));
    release(&mut w, "r");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.pass(Millis::minutes(1));
    w.release("titan01");
    let all = over(&w);
    let [inside, whole] = &all[..] else { panic!("{all:?}") };
    assert_eq!((inside.of(), inside.within.clone()), ("job-a", Some(res("r"))));
    assert_eq!((whole.of(), minutes(whole)), ("res-r", (0, 21)));
    assert_eq!((inside.account.clone(), minutes(inside)), (whole.account.clone(), (0, 21)));
}

#[test]
fn a_window_that_its_node_opened_and_ended_while_it_was_away_has_the_nodes_own_times() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(1)).unwrap();
    let order = told(&w, "titan01", "r").unwrap();
    // Nobody leads for hours: no time passes in the log.
    w.now = START + Millis::hours(5);
    let did = [60, 120].map(|at| Some(START + Millis::minutes(at)));
    answers(&mut w, "titan01", &order, did);
    w.release("titan01");
    assert_eq!(minutes(&the_one(&w)), (60, 120));
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Ended);
}

#[test]
fn a_window_that_was_opened_alone_and_lasts_is_one_stay() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::hours(1), Millis::hours(6)).unwrap();
    let order = told(&w, "titan01", "r").unwrap();
    w.now = START + Millis::hours(3);
    answers(&mut w, "titan01", &order, [Some(START + Millis::minutes(61)), None]);
    w.pass(Millis::ZERO);
    let open: Vec<Stay> = w.fsm.open_stays(w.now).collect();
    assert_eq!(open.iter().map(minutes).collect::<Vec<_>>(), [(61, 180)]);
    w.pass(Millis::minutes(10));
    release(&mut w, "r");
    w.release("titan01");
    assert_eq!(minutes(&the_one(&w)), (61, 190));
}

#[test]
fn a_reservation_that_is_extended_and_shortened_while_it_runs_is_one_stay() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(1)).unwrap();
    w.pass(Millis::minutes(30));
    extend(&mut w, "r", 180);
    w.pass(Millis::minutes(60));
    extend(&mut w, "r", 100);
    // It has started: its GPUs stay.
    let more = crate::command::ReservationChange {
        gpus: Some(crate::reservation::GpuRequest { count: 3, ..Default::default() }),
        ..Default::default()
    };
    let edit = ReservationCommand::Edit { id: res("r"), change: more, seen: None };
    w.give(person("ada"), Command::Reservation(edit)).unwrap_err();
    w.pass(Millis::minutes(10));
    w.release("titan01");
    let stay = the_one(&w);
    assert_eq!((minutes(&stay), stay.models["v100"]), ((0, 100), 2));
}

#[test]
fn a_window_that_continues_after_its_node_ended_it_counts_to_the_release() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(1)).unwrap();
    let order = told(&w, "titan01", "r").unwrap();
    w.pass(Millis::minutes(30));
    // Its node does not hear of this, and ends it as it was.
    w.agents_answer = false;
    extend(&mut w, "r", 180);
    w.pass(Millis::minutes(60));
    answers(&mut w, "titan01", &order, [None, Some(START + Millis::minutes(60))]);
    w.agents_answer = true;
    w.pass(Millis::minutes(90));
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Ending);
    w.release("titan01");
    assert_eq!(minutes(&the_one(&w)), (0, 180));
}

#[test]
fn an_end_that_was_heard_late_counts_unless_the_gpus_were_not_empty() {
    for (stuck, until) in [(0, 10), (30, 340)] {
        let mut w = World::with(&["titan01"]);
        let a = w.run("a", plain(1), "titan01", &[0]);
        let epoch = w.fsm.allocation(&a).unwrap().epoch;
        w.pass(Millis::minutes(10));
        let mut report = ended(AttemptEnd::Exited { code: 0 }, false);
        report.ended_at = w.now;
        w.pass(Millis::minutes(300));
        w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
        w.pass(Millis::minutes(stuck));
        w.release("titan01");
        assert_eq!(minutes(&the_one(&w)), (0, until), "empty {stuck} minutes later");
    }
}

#[test]
fn a_lost_attempt_holds_its_gpus_until_the_end_that_its_node_tells() {
    let mut w = World::with(&["titan01"]);
    let stop_after = Some(Millis::minutes(10));
    let a = w.run("a", JobSpec { stop_after, ..plain(1) }, "titan01", &[0]);
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(1));
    let silent = NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for };
    w.give(Actor::controller(), Command::Node(silent)).unwrap();
    w.pass(Millis::minutes(300));
    assert!(w.fsm.allocation(&a).is_none(), "it is lost");
    let mut report = ended(AttemptEnd::Signaled { signal: 15 }, false);
    report.ended_at = START + Millis::minutes(12);
    // Said twice, as after a connection that broke.
    for _ in 0..2 {
        let (allocation, report) = (a.clone(), report.clone());
        w.report("titan01", Report::Ended { allocation, epoch, report }).unwrap();
    }
    w.release("titan01");
    assert_eq!(minutes(&the_one(&w)), (0, 12));
}

#[test]
fn a_window_that_its_silent_node_ended_has_the_nodes_time_although_it_was_released_meanwhile() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, Millis::minutes(60)).unwrap();
    w.pass(Millis::minutes(1));
    let order = told(&w, "titan01", "r").unwrap();
    w.agents_answer = false;
    w.pass(Millis::minutes(49));
    release(&mut w, "r");
    w.pass(Millis::minutes(250));
    answers(&mut w, "titan01", &order, [None, Some(START + Millis::minutes(60))]);
    w.release("titan01");
    assert_eq!(minutes(&the_one(&w)), (0, 60));
}

#[test]
fn what_a_node_says_after_the_end_of_what_it_opened_is_no_second_stay() {
    // The lease was for all of it; the node opens it again after a reboot, and says so once its GPUs are empty.
    for opened in [[Some(20), None], [Some(20), Some(40)]] {
        let mut w = World::with(&["titan01"]);
        w.reserve("ada", "r", 2, Millis::ZERO, Millis::minutes(60)).unwrap();
        let order = told(&w, "titan01", "r").unwrap();
        w.pass(Millis::minutes(10));
        w.agents_answer = false;
        w.pass(Millis::minutes(60));
        w.release("titan01");
        assert_eq!(w.fsm.reservation(&res("r")).unwrap().state, ReservationState::Ended);
        for at in opened.into_iter().flatten() {
            let at = Some(START + Millis::minutes(at));
            answers(&mut w, "titan01", &order, [at, Some(START + Millis::minutes(60))]);
        }
        assert_eq!(minutes(&the_one(&w)), (0, 70));
    }
    // Said while the lease lasted, and again, with another time, when it was over.
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::minutes(60)).unwrap();
    let order = told(&w, "titan01", "r").unwrap();
    w.pass(Millis::minutes(27));
    answers(&mut w, "titan01", &order, [Some(START + Millis::minutes(27)), None]);
    w.pass(Millis::minutes(73));
    w.release("titan01");
    answers(&mut w, "titan01", &order, [Some(START + Millis::minutes(50)), None]);
    assert_eq!(minutes(&the_one(&w)), (0, 100));
}

#[test]
fn what_a_fault_destroyed_is_lost_back_to_the_last_checkpoint() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.pass(Millis::minutes(30));
    w.checkpoint(&a, 1, Millis::ZERO);
    w.pass(Millis::minutes(20));
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Fatal)]);
    w.end(&a, AttemptEnd::NodeFault { message: "GPU lost".to_owned() });
    w.pass(Millis::minutes(5));
    w.release("titan01");
    let at = |minutes| START + Millis::minutes(minutes);
    let lost = Window { starts_at: at(30), ends_at: at(50) };
    assert_eq!((the_one(&w).lost, minutes(&the_one(&w))), (Some(lost), (0, 55)));
    // A failure of its own destroyed nothing of somebody else's doing.
    w.heard.clear();
    let b = w.run("b", plain(1), "titan02", &[0]);
    w.pass(Millis::minutes(20));
    w.end(&b, AttemptEnd::Exited { code: 1 });
    w.release("titan02");
    assert_eq!(the_one(&w).lost, None);
}

#[test]
fn an_attempt_that_was_found_after_a_restore_counts_from_its_own_beginning() {
    let mut w = World::with(&["titan01"]);
    let before = w.run("before", plain(1), "titan01", &[0]);
    let backup = w.fsm.clone();
    w.pass(Millis::minutes(10));
    w.end(&before, AttemptEnd::Exited { code: 0 });
    w.release("titan01");
    w.pass(Millis::minutes(10));
    let after = w.run("after", plain(1), "titan01", &[0]);
    let known = found(&w.fsm, &after);
    w.pass(Millis::hours(1));
    let now = w.now;
    restore(&mut w, backup);
    w.now = now;
    w.heard.clear();
    recount(&mut w, "titan01", vec![known], Vec::new());
    // The node started the other one then, so this one had ended.
    assert_eq!((the_one(&w).of(), minutes(&the_one(&w))), ("job-before", (0, 20)));
    let open: Vec<Stay> = w.fsm.open_stays(w.now).collect();
    assert_eq!(open.iter().map(minutes).collect::<Vec<_>>(), [(20, 80)]);
}

#[test]
fn gpus_that_an_admin_declares_free_were_held_until_then() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(1), "titan01", &[0]);
    w.pass(Millis::minutes(7));
    let free = GpuCommand::DeclareFree { gpu: gpu("titan01", 0), reason: "off".to_owned() };
    w.give(person("root"), Command::Gpu(free)).unwrap();
    assert_eq!(minutes(&the_one(&w)), (0, 7));
}

/// Adds up what the leases of a state say of the time since the entry before, entry by entry. It knows nothing of stays.
#[derive(Default)]
struct Recount {
    held: BTreeMap<String, u64>,
    in_jobs: BTreeMap<String, u64>,
}

impl Recount {
    fn pass(&mut self, fsm: &Fsm, length: Millis) {
        for lease in fsm.leases().values() {
            let to = if lease.parent.is_some() { &mut self.in_jobs } else { &mut self.held };
            *to.entry(lease.owner.to_string()).or_default() += length.0 * lease.gpus.len() as u64;
        }
        // Windows that a node opened alone, on GPUs that are not proven empty yet.
        for r in fsm.reservations().filter(|r| r.lease.is_none()) {
            let scheduled = r.state == ReservationState::Scheduled;
            let Some(given) = r.handed_out.as_ref().filter(|_| scheduled) else { continue };
            if given.opened_at.is_some() && given.closed_at < given.opened_at {
                let left = r.window.ends_at.since(fsm.now().max(r.window.starts_at));
                let early = r.window.starts_at.since(fsm.now());
                let counted = left.0.min(length.0.saturating_sub(early.0));
                *self.held.entry(r.owner.to_string()).or_default() += counted * r.gpus.len() as u64;
            }
        }
    }
}

/// The stays of a log, those that ended and those that last, come to what its leases say.
pub(super) fn the_stays_are_what_the_leases_say(log: &[(u64, Envelope)]) {
    let mut fsm = Fsm::new();
    let (mut counted, mut stays) = (Recount::default(), Vec::new());
    for (index, envelope) in log {
        let mut later = fsm.clone();
        let outcome = later.apply(*index, envelope);
        counted.pass(&fsm, later.now().since(fsm.now()));
        fsm = later;
        stays.extend(outcome.events.iter().filter_map(stay_ended_by).cloned());
    }
    stays.extend(fsm.open_stays(fsm.now()));
    let window = Window { starts_at: START, ends_at: fsm.now() };
    let mut usage = Usage::of(Question { window, by: UsageBy::User, owner: None });
    stays.iter().for_each(|stay| usage.add(stay));
    let (rows, _) = usage.rows();
    let of = |sums: BTreeMap<String, u64>| -> BTreeMap<String, u64> {
        sums.into_iter().filter(|(_, sum)| *sum > 0).collect()
    };
    let held = rows.iter().map(|(who, sums)| (who.clone(), sums.held())).collect();
    let in_jobs = rows.iter().map(|(who, sums)| (who.clone(), sums.in_jobs)).collect();
    assert_eq!(of(held), of(counted.held), "{stays:#?}");
    assert_eq!(of(in_jobs), of(counted.in_jobs), "{stays:#?}");
}
