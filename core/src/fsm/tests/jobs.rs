//! Jobs: ends, restarts, cancels, fencing.

use super::world::{World, ended, gpu, job, node, person, plain, res, training};
use crate::actor::Actor;
use crate::allocation::{AttemptEnd, EndReport};
use crate::command::{Command, JobCommand, NodeCommand, Report, ReservationCommand};
use crate::event::Event;
use crate::health::{HealthTracker, Severity, Shortage, Signal};
use crate::image::ImageUsed;
use crate::job::{JobSpec, JobState};
use crate::lease::Epoch;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::scheduler;
use crate::time::Millis;

#[test]
fn want_of_memory_is_told_with_the_limit_and_the_option() {
    let exited = AttemptEnd::Exited { code: 7 };
    for (end, memory_kill, told) in [
        (
            AttemptEnd::OutOfMemory,
            false,
            "it used more than its 1 GiB of host memory; raise it with --memory",
        ),
        (
            exited.clone(),
            true,
            "exit code 7; one of its processes was killed for lack of memory (limit 1 GiB; raise it with --memory)",
        ),
        (exited, false, "exit code 7"),
    ] {
        let mut w = World::with(&["titan01"]);
        let id = w.run("a", training(), "titan01", &[0]);
        let epoch = w.fsm.allocation(&id).unwrap().epoch;
        let report = EndReport { memory_kill, ..ended(end, false) };
        w.report("titan01", Report::Ended { allocation: id, epoch, report }).unwrap();
        assert_eq!(w.fsm.job(&job("a")).unwrap().outcome.as_ref().unwrap().reason, told);
    }
}

/// A user who reads only the file would take it for all of the output.
#[test]
fn an_output_file_that_is_not_whole_is_told_with_the_end() {
    for (problem, told) in [
        (None, "exit code 3".to_owned()),
        (
            Some("/home/ada/x.log: no space left on device"),
            "exit code 3; its output file is not whole: /home/ada/x.log: no space left on device"
                .to_owned(),
        ),
        (
            Some("/home/\n/x.log: full"),
            "exit code 3; its output file is not whole, see its log".to_owned(),
        ),
    ] {
        let mut w = World::with(&["titan01"]);
        let id = w.run("a", training(), "titan01", &[0]);
        let epoch = w.fsm.allocation(&id).unwrap().epoch;
        let output_problem = problem.map(ToOwned::to_owned);
        let end = ended(AttemptEnd::Exited { code: 3 }, false);
        let report = EndReport { output_problem, ..end };
        w.report("titan01", Report::Ended { allocation: id, epoch, report }).unwrap();
        assert_eq!(w.fsm.job(&job("a")).unwrap().outcome.as_ref().unwrap().reason, told);
        let story = w.said();
        assert!(story.iter().any(|line| line.ends_with(&told)), "{story:?}");
    }
}

#[test]
fn how_an_attempt_ends_decides_what_becomes_of_the_job() {
    let cases = [
        (AttemptEnd::Exited { code: 0 }, "completed", Some(0)),
        (AttemptEnd::Exited { code: 3 }, "failed", Some(3)),
        (AttemptEnd::Signaled { signal: 11 }, "failed", Some(139)),
        (AttemptEnd::OutOfMemory, "failed", Some(137)),
        (AttemptEnd::CannotStart { message: "no such program".to_owned() }, "failed", Some(125)),
    ];
    for (end, state, code) in cases {
        let mut w = World::with(&["titan01"]);
        let a = w.run("a", training(), "titan01", &[0]);
        w.end(&a, end.clone());
        let j = w.fsm.job(&job("a")).unwrap();
        assert_eq!(
            (j.state.word(), j.outcome.as_ref().unwrap().exit_code),
            (state, code),
            "{end:?}"
        );
    }
}

#[test]
fn a_job_has_the_times_of_its_program_however_late_they_are_reported() {
    let began = |w: &World, name: &str| w.fsm.job(&job(name)).unwrap().started_at.unwrap();
    let over = |w: &World, name: &str| w.fsm.job(&job(name)).unwrap().ended_at.unwrap();
    let mut w = World::with(&["titan01"]);
    let cases = [
        // Its agent was away for an hour after it.
        ("late", Millis::minutes(1), Millis::minutes(61), Millis::minutes(1)),
        // The node's clock is ahead of the fleet's, and behind it.
        ("ahead", Millis::days(1), Millis::minutes(2), Millis::minutes(2)),
    ];
    for (index, (name, written, reported, counts)) in (0..).zip(cases) {
        let a = w.run(name, plain(1), "titan01", &[index]);
        let (start, epoch) = (began(&w, name), w.fsm.allocation(&a).unwrap().epoch);
        w.pass(reported);
        let end = ended(AttemptEnd::Exited { code: 0 }, false);
        let report = EndReport { ended_at: start + written, ..end };
        w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
        assert_eq!(over(&w, name), start + counts, "{name}");
    }
    let a = w.run("behind", plain(1), "titan01", &[2]);
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(over(&w, "behind"), began(&w, "behind"), "an end cannot be before its start");
}

#[test]
fn a_gpu_is_free_only_after_the_agent_released_that_very_epoch() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let lease = w.fsm.allocation(&a).unwrap().lease.clone().unwrap();
    let epoch = w.fsm.lease(&lease).unwrap().epoch;
    w.end(&a, AttemptEnd::Exited { code: 0 });
    w.submit("bob", "b", plain(1)).unwrap();
    assert!(matches!(w.place("b", "titan01", &[0]), Err(Rejection::PlanStale { .. })));
    let old = Epoch { incarnation: 1, index: epoch.index - 1 };
    w.report("titan01", Report::Released { lease: lease.clone(), epoch: old }).unwrap();
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_some());
    w.report("titan01", Report::Released { lease, epoch }).unwrap();
    assert!(w.place("b", "titan01", &[0]).is_ok());
}

#[test]
fn reports_of_an_old_epoch_or_another_node_change_nothing() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.submit("ada", "a", plain(1)).unwrap();
    let a = w.place("a", "titan01", &[0]).unwrap();
    let epoch = w.fsm.allocation(&a).unwrap().epoch;
    let old = Epoch { incarnation: 1, index: epoch.index - 1 };
    for (on, epoch) in [("titan01", old), ("titan02", epoch)] {
        let started = Report::Started { allocation: a.clone(), epoch, at: w.now, image: None };
        w.report(on, started).unwrap();
        assert_eq!(w.state_of("a"), "starting", "{on}");
    }
    w.start(&a);
    let report = ended(AttemptEnd::Exited { code: 0 }, false);
    w.report(
        "titan01",
        Report::Ended { allocation: a.clone(), epoch: old, report: report.clone() },
    )
    .unwrap();
    w.report("titan02", Report::Ended { allocation: a.clone(), epoch, report: report.clone() })
        .unwrap();
    assert_eq!(w.state_of("a"), "running");
    w.report("titan01", Report::Ended { allocation: a.clone(), epoch, report: report.clone() })
        .unwrap();
    assert_eq!(w.state_of("a"), "completed");
    // Said twice is as good as once.
    w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
    assert!(w.last.is_empty());
}

#[test]
fn cancelling_is_idempotent_until_the_job_is_over() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    for _ in 0..2 {
        w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    }
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(w.state_of("a"), "cancelled");
    let again = w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") }));
    assert!(matches!(again, Err(Rejection::AlreadyEnded { .. })));
    let stranger = w.give(person("eve"), Command::Job(JobCommand::Cancel { id: job("a") }));
    assert!(matches!(stranger, Err(Rejection::Denied { .. })));
}

#[test]
fn a_cancelled_job_does_not_come_back_after_a_fault_of_its_node() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.give(person("ada"), Command::Job(JobCommand::Cancel { id: job("a") })).unwrap();
    w.end(&a, AttemptEnd::NodeFault { message: "shim lost".to_owned() });
    assert_eq!(w.state_of("a"), "cancelled");
}

#[test]
fn the_time_limit_counts_from_the_start_of_the_attempt() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    w.now = w.now + Millis::hours(5);
    let a = w.place("a", "titan01", &[0]).unwrap();
    w.start(&a);
    w.pass(Millis::minutes(59));
    assert_eq!(w.state_of("a"), "running");
    w.pass(Millis::minutes(1));
    assert_eq!(w.state_of("a"), "stopping");
    w.end(&a, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("a"), "timed_out");
}

#[test]
fn a_node_that_cannot_read_the_checkpoint_is_not_tried_again() {
    let mut w = World::with(&["titan01", "titan02"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.end(&a, AttemptEnd::CannotResume { message: "no marker beside /ck/1.pt".to_owned() });
    let j = w.fsm.job(&job("a")).unwrap();
    assert_eq!((j.state, j.restarts_used), (JobState::Queued, 0));
    assert!(j.excluded_nodes.contains_key(&node("titan01")));
    assert!(w.place("a", "titan01", &[1]).is_err());
    assert!(w.place("a", "titan02", &[1]).is_ok());
}

/// A lab's only node could not read the checkpoint when the job came there.
fn shut_out_of_the_only_node() -> World {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.end(&a, AttemptEnd::CannotResume { message: "no marker beside /ck/1.pt".to_owned() });
    assert!(w.place("a", "titan01", &[1]).is_err());
    w
}

fn lifted(w: &World) -> bool {
    w.last.iter().any(|event| matches!(event, Event::ExclusionLifted { .. }))
}

#[test]
fn a_node_that_booted_anew_is_tried_again() {
    let mut w = shut_out_of_the_only_node();
    w.boot("titan01", "boot-1").unwrap();
    assert!(!lifted(&w), "its agent started again, nothing else");
    assert!(w.place("a", "titan01", &[1]).is_err());
    w.boot("titan01", "boot-2").unwrap();
    assert!(lifted(&w));
    let a = w.place("a", "titan01", &[1]).unwrap();
    // It fares no better: not again in this boot.
    w.end(&a, AttemptEnd::CannotResume { message: "no marker beside /ck/1.pt".to_owned() });
    assert!(w.place("a", "titan01", &[2]).is_err());
}

#[test]
fn a_node_that_an_operator_uncordons_is_tried_again() {
    for cordoned in [true, false] {
        let mut w = shut_out_of_the_only_node();
        let node = node("titan01");
        if cordoned {
            let (node, reason) = (node.clone(), "to mount the disk".to_owned());
            w.give(person("root"), Command::Node(NodeCommand::Cordon { node, reason })).unwrap();
        }
        w.give(person("root"), Command::Node(NodeCommand::Uncordon { node })).unwrap();
        assert!(lifted(&w));
        w.place("a", "titan01", &[1]).unwrap();
    }
}

#[test]
fn silence_loses_nothing_unless_the_job_asked_for_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    let asked = JobSpec {
        stop_after: Some(Millis::minutes(10)),
        time_limit: Millis::hours(48),
        ..training()
    };
    let a = w.run("a", asked, "titan01", &[0]);
    w.run("b", JobSpec { time_limit: Millis::hours(48), ..training() }, "titan01", &[1]);
    let command = Command::Node(NodeCommand::SetLiveness {
        node: node("titan01"),
        liveness: Liveness::Unreachable,
        silent_for: Millis::minutes(1),
    });
    w.give(Actor::controller(), command).unwrap();
    w.pass(Millis::minutes(9) + Millis::secs(30));
    assert_eq!((w.state_of("a"), w.state_of("b")), ("running", "running"), "grace and margin");
    w.pass(Millis::minutes(1));
    assert_eq!((w.state_of("a"), w.state_of("b")), ("queued", "running"));
    w.pass(Millis::hours(24));
    assert_eq!(w.state_of("b"), "running");
    // The attempt is lost, its GPU is not free: nobody knows what the node does.
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_some());
    let desired = w.fsm.desired(&node("titan01"), std::slice::from_ref(&a));
    assert!(desired.allocations.iter().any(|d| d.id == a));
    assert!(desired.forget.is_empty());
}

#[test]
fn desired_names_only_what_is_to_be_done() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    w.end(&a, AttemptEnd::Exited { code: 0 });
    let held = [a.clone(), crate::id::AllocationId::parse("alloc-unknown-1").unwrap()];
    let desired = w.fsm.desired(&node("titan01"), &held);
    assert!(desired.forget.is_empty(), "its GPUs are not released");
    w.release("titan01");
    let desired = w.fsm.desired(&node("titan01"), &held);
    assert_eq!(desired.forget, [a], "what this state never made is left alone");
}

#[test]
fn a_slow_start_does_not_push_a_job_into_somebodys_reservation() {
    let mut w = World::with(&["titan01"]);
    w.reserve("bob", "r", 4, Millis::hours(2), Millis::hours(1)).unwrap();
    w.submit("ada", "a", plain(1)).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    // An image that took 90 minutes to unpack.
    w.now = w.now + Millis::minutes(90);
    w.start(&a);
    w.pass(Millis::minutes(29));
    assert_eq!(w.state_of("a"), "running");
    w.pass(Millis::minutes(1));
    assert_eq!(w.state_of("a"), "stopping");
}

#[test]
fn what_is_promised_while_a_job_is_prepared_does_not_wait_for_the_preparation() {
    /// Whether bob releases his reservation, and whether its node has said that it released it too.
    #[derive(Clone, Copy, PartialEq)]
    enum Back {
        No,
        Taken,
        Untaken,
    }
    let limit_left = |back: Back, minutes: u64| {
        let mut w = World::with(&["titan01"]);
        w.submit("ada", "a", plain(1)).unwrap();
        let a = w.place("a", "titan01", &[0]).unwrap();
        w.now = w.now + Millis::minutes(10);
        // Of its neighbours, which is nothing to it.
        w.reserve("eve", "n", 3, Millis::minutes(15), Millis::minutes(45)).unwrap();
        // The job's hour is counted from here.
        w.reserve("bob", "r", 4, Millis::minutes(61), Millis::hours(1)).unwrap();
        w.reserve("bob", "later", 4, Millis::hours(5), Millis::hours(1)).unwrap();
        w.agents_answer = back != Back::Untaken;
        if back != Back::No {
            w.give(
                person("bob"),
                Command::Reservation(ReservationCommand::Release { id: res("r") }),
            )
            .unwrap();
        }
        w.now = w.now + Millis::minutes(minutes);
        w.start(&a);
        let limit = w.fsm.allocation(&a).unwrap().time_limit_at.unwrap();
        (limit.since(w.now), w.said().remove(0))
    };
    let runs = |how: &str| format!("alloc-a-1 runs{how}");
    let whole = (Millis::hours(1), runs(""));
    let cut = runs(", for 40m 30s at most: its GPUs are promised after that");
    assert_eq!(limit_left(Back::No, 20), (Millis::secs(41 * 60 - 30), cut), "with its stop");
    let late = runs(", too late: its GPUs are promised to somebody by now");
    assert_eq!(limit_left(Back::No, 90), (Millis::ZERO, late));
    assert_eq!(limit_left(Back::Taken, 20), whole, "nobody is waiting");
    assert_eq!(limit_left(Back::Untaken, 20), whole, "nobody will come");
    assert_eq!(limit_left(Back::No, 130), whole, "its time is over, and time was not told");
}

#[test]
fn a_start_that_is_told_with_its_end_came_not_too_late() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    let a = w.place("a", "titan01", &[0]).unwrap();
    w.reserve("bob", "r", 4, Millis::minutes(61), Millis::hours(1)).unwrap();
    let (at, epoch) = (w.now, w.fsm.allocation(&a).unwrap().epoch);
    w.now = w.now + Millis::minutes(90);
    let report = EndReport { started_at: Some(at), ..ended(AttemptEnd::Exited { code: 0 }, false) };
    w.report("titan01", Report::Ended { allocation: a, epoch, report }).unwrap();
    assert_eq!(w.said().remove(0), "alloc-a-1 runs");
    assert_eq!(w.state_of("a"), "completed");
}

#[test]
fn a_job_in_a_reservation_gives_way_to_no_later_one() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "own", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("own")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.reserve("bob", "next", 4, Millis::hours(8), Millis::hours(1)).unwrap();
    w.now = w.now + Millis::secs(8 * 3_600 - 60);
    w.start(&a);
    let limit = w.fsm.allocation(&a).unwrap().time_limit_at;
    assert_eq!(limit, Some(w.now + Millis::hours(1)), "its own reservation's end stops it");

    // Without GPUs it is no child of the reservation's lease, and no GPU of it is promised to anybody.
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "own", 4, Millis::ZERO, Millis::minutes(30)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("own")), ..plain(0) }).unwrap();
    w.schedule();
    w.start(&w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap());
    assert_eq!(w.said(), ["alloc-a-1 runs"]);
}

#[test]
fn interrupted_work_leaves_the_ailing_node() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.conditions("titan01", vec![super::world::bad("titan01", 0, Severity::Degraded)]);
    w.submit("ada", "a", plain(1)).unwrap();
    w.schedule();
    let place = w.fsm.job(&job("a")).unwrap().place().cloned().unwrap();
    assert_eq!(place.node, node("titan02"), "titan01 will be reset before long");
}

#[test]
fn a_job_that_no_node_can_start_fails_and_does_not_wait_for_ever() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    for _ in 0..crate::job::START_FAULTS_MAX {
        assert_eq!(w.schedule(), 1);
        start_fails(&mut w);
        w.pass(Millis::minutes(11));
    }
    assert_eq!(w.state_of("a"), "failed");
    assert!(w.fsm.job(&job("a")).unwrap().outcome.as_ref().unwrap().reason.contains("no shim"));
}

/// The attempt of "a" ends before it has run.
fn start_fails(w: &mut World) {
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&a, AttemptEnd::NodeFault { message: "no shim".to_owned() });
    w.release("titan01");
}

#[test]
fn one_cause_on_the_only_node_pauses_longer_each_time_and_counts_once_in_ten_minutes() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", plain(1)).unwrap();
    let mut pauses = Vec::new();
    for _ in 0..5 {
        assert_eq!(w.schedule(), 1);
        start_fails(&mut w);
        let until = w.fsm.paused_until(&job("a")).unwrap_or(w.now);
        pauses.push(until.since(w.now).0 / 1_000);
        w.pass(until.since(w.now));
    }
    assert_eq!(pauses, [0, 10, 20, 40, 80]);
    let counted = |w: &World| w.fsm.job(&job("a")).unwrap().start_faults;
    assert_eq!((counted(&w), w.state_of("a")), (1, "queued"));
    w.pass(Millis::minutes(10));
    assert_eq!(w.schedule(), 1);
    start_fails(&mut w);
    assert_eq!((counted(&w), w.fsm.paused_until(&job("a"))), (2, None));
    // Another cause is another fault.
    assert_eq!(w.schedule(), 1);
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&a, AttemptEnd::NodeFault { message: "no runtime".to_owned() });
    assert_eq!((counted(&w), w.fsm.paused_until(&job("a"))), (3, None));
}

#[test]
fn a_node_without_room_is_ruled_out_for_no_longer_than_that() {
    let mut w = World::with(&["titan01", "titan02"]);
    let mut tracker = HealthTracker::new("boot-1");
    let of = vec![(Shortage::Disk, "the disk is full".to_owned())];
    tracker.observe(w.now, &Signal::Short { of });
    w.submit("ada", "a", plain(1)).unwrap();
    assert_eq!(w.schedule(), 1);
    let on = w.fsm.allocations().values().next().unwrap().node.to_string();
    for name in ["titan01", "titan02"] {
        w.report(name, Report::Conditions { conditions: tracker.conditions() }).unwrap();
    }
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&a, AttemptEnd::NodeFault { message: "the disk is full".to_owned() });
    w.release(&on);
    assert_eq!(w.schedule(), 0);
    assert!(w.fsm.job(&job("a")).unwrap().excluded_nodes.is_empty());
    w.report(&on, Report::Conditions { conditions: Vec::new() }).unwrap();
    assert_eq!(w.schedule(), 1, "where there is room again");
}

#[test]
fn a_node_that_can_begin_nothing_keeps_what_runs_and_gets_nothing_new() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", plain(1), "titan01", &[0]);
    let mut tracker = HealthTracker::new("boot-1");
    let short = |of: &[Shortage]| Signal::Short {
        of: of.iter().map(|shortage| (*shortage, "the disk is full".to_owned())).collect(),
    };
    for shortage in Shortage::ALL {
        tracker.observe(w.now, &short(&[shortage]));
        let conditions = tracker.conditions();
        assert_eq!(conditions.len(), 1, "only the last one holds");
        w.report("titan01", Report::Conditions { conditions }).unwrap();
        assert!(w.fsm.allocation(&a).unwrap().causes.is_empty(), "what runs is as good as before");
        let name = format!("b-{}", shortage.kind().replace('_', "-"));
        w.submit("ada", &name, plain(0)).unwrap();
        assert_eq!(w.schedule(), 0);
        let waiting = scheduler::plan(&w.fsm).waiting;
        let why = waiting[&job(&name)].reason.to_string();
        assert!(why.contains("closed to new work: the disk is full"), "{why}");
    }
    tracker.observe(w.now, &short(&[]));
    w.report("titan01", Report::Conditions { conditions: tracker.conditions() }).unwrap();
    assert!(w.schedule() > 0);
}

#[test]
fn a_job_is_told_which_image_its_name_meant() {
    let spec = |image: &str| JobSpec { image: image.to_owned(), ..plain(0) };
    let image =
        ImageUsed { digest: format!("sha256:{}", "0a".repeat(32)), note: Some("old".to_owned()) };
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", spec("python:3.12")).unwrap();
    let a = w.place("a", "titan01", &[]).unwrap();
    let (epoch, at) = (w.fsm.allocation(&a).unwrap().epoch, w.now);
    let started = |image| Report::Started { allocation: a.clone(), epoch, at, image: Some(image) };
    let long = ImageUsed { note: Some("x".repeat(100_000)), ..image.clone() };
    assert!(w.report("titan01", started(long)).is_err());
    w.report("titan01", started(image.clone())).unwrap();
    assert_eq!(w.fsm.job(&job("a")).unwrap().image.as_ref(), Some(&image));
    assert!(w.submit("ada", "b", spec("Python")).is_err());
}
