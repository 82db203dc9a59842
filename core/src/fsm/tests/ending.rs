//! How windows end: those in use are extended, those nobody came for are released, and who may say otherwise.

use super::world::{START, World, gpu, job, node, person, plain, res, user};
use crate::actor::Actor;
use crate::command::{
    AccessCommand, Command, EndingCommand, LimitsCommand, NodeCommand, Report, ReservationCommand,
};
use crate::ending::{
    EXTEND_LEAD, EXTEND_STEP, EndPolicy, GpuHolder, HOLDERS_MAX, HolderStep, NO_SHOW_DEFAULT,
    NoLonger, ReservationRules, WindowUse,
};
use crate::event::Event;
use crate::job::JobSpec;
use crate::limits::ReservationLimits;
use crate::name::GroupName;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reservation::{RESERVATION_LENGTH_MAX, ReservationState};
use crate::time::{Millis, Timestamp};

const HOUR: Millis = Millis::hours(1);
const NOBODY: WindowUse = WindowUse::Nobody { since_ms: Millis::ZERO };

fn state(w: &World) -> ReservationState {
    w.fsm.reservation(&res("r")).unwrap().state.clone()
}

fn ends_at(w: &World) -> Timestamp {
    w.fsm.reservation(&res("r")).unwrap().window.ends_at
}

fn sees(w: &mut World, seen: WindowUse, came: bool) {
    w.report("titan01", Report::Use { reservation: res("r"), seen, came }).unwrap();
}

/// Goes from deadline to deadline, as a leader does.
fn until(w: &mut World, then: Timestamp) {
    for _ in 0..1_000 {
        match w.fsm.next_deadline().filter(|due| *due <= then) {
            Some(due) => w.now = w.now.max(due),
            None => {
                w.now = then;
                return w.pass(Millis::ZERO);
            }
        }
        w.pass(Millis::ZERO);
    }
    panic!("a deadline that is not served: {:?}", w.fsm.next_deadline());
}

fn rules(w: &mut World, who: &str, command: EndingCommand) -> Result<(), Rejection> {
    w.give(person(who), Command::Ending(command)).map(drop)
}

fn set(at_end: Option<EndPolicy>, no_show: Option<Millis>) -> EndingCommand {
    EndingCommand::SetRules { at_end, no_show, grace: None, idle: Default::default() }
}

/// Ada has all of titan01 for an hour, and works there.
fn in_use() -> World {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, HOUR).unwrap();
    sees(&mut w, WindowUse::Used, true);
    w
}

#[test]
fn a_window_in_use_goes_on_in_steps_until_its_user_has_gone() {
    let mut w = in_use();
    let end = START + HOUR;
    assert_eq!(w.fsm.next_deadline(), Some(end - EXTEND_LEAD));
    until(&mut w, end + EXTEND_STEP + EXTEND_STEP);
    assert_eq!(state(&w), ReservationState::Active);
    assert_eq!(ends_at(&w), end + EXTEND_STEP + EXTEND_STEP + EXTEND_STEP);
    let went_on = w.heard.iter().filter(|e| matches!(e, Event::ReservationWentOn { .. }));
    assert_eq!(went_on.count(), 3);
    sees(&mut w, NOBODY, true);
    let last = ends_at(&w);
    until(&mut w, last);
    assert_eq!(state(&w), ReservationState::Ending, "nobody works there any more");
    // The leader slept for long: the new end of the window is in the future all the same.
    let mut w = in_use();
    w.pass(Millis::hours(30));
    assert!(ends_at(&w) > w.now && ends_at(&w).since(w.now) <= EXTEND_STEP);
}

#[test]
fn it_goes_on_to_the_next_promise_and_no_further() {
    let mut w = in_use();
    let next = HOUR + Millis::minutes(20);
    w.reserve("bob", "next", 1, next, HOUR).unwrap();
    until(&mut w, START + HOUR + Millis::minutes(18));
    assert_eq!(ends_at(&w), START + next, "the rest of the time before bob's");
    until(&mut w, START + next);
    assert_eq!(state(&w), ReservationState::Ending);
    w.release("titan01");
    let bobs = w.fsm.reservation(&res("next")).unwrap();
    assert_eq!(bobs.state, ReservationState::Active);
}

#[test]
fn no_window_goes_on_for_ever_or_where_it_may_not() {
    let mut w = in_use();
    w.now = START + RESERVATION_LENGTH_MAX;
    w.pass(Millis::ZERO);
    w.pass(EXTEND_STEP);
    assert_eq!(state(&w), ReservationState::Ending);
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "x".to_owned(),
        deadline: None,
    });
    let mut w = in_use();
    w.give(person("root"), drain).unwrap();
    until(&mut w, START + HOUR);
    assert_eq!(state(&w), ReservationState::Ending, "its node is to be emptied");
}

#[test]
fn its_node_is_told_of_a_window_that_will_not_go_on_whoever_works_in_it() {
    let told = |w: &World| w.fsm.desired(&node("titan01"), &[]).no_longer.remove(&res("r"));
    let ends = |w: &mut World| {
        let end = ends_at(w);
        until(w, end);
        state(w) == ReservationState::Ending
    };
    let mut w = in_use();
    assert_eq!((told(&w), ends(&mut w)), (None, false));

    // It lasts for the job in it.
    let mut w = in_use();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    assert_eq!(w.schedule(), 1);
    let (user, reason) = (user("ada"), "has left".to_owned());
    let disable = AccessCommand::DisableUser { user, reason, transfer_to: None };
    w.give(person("root"), Command::Access(disable)).unwrap();
    assert_eq!((told(&w), ends(&mut w)), (Some(NoLonger::AccountClosed), true));

    let mut w = in_use();
    let longest = START + RESERVATION_LENGTH_MAX;
    let whole = Command::Reservation(ReservationCommand::Extend { id: res("r"), ends_at: longest });
    w.give(person("ada"), whole).unwrap();
    assert_eq!((told(&w), ends(&mut w)), (Some(NoLonger::Longest), true));

    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::ZERO, HOUR).unwrap();
    w.reserve("ada", "next", 1, HOUR, HOUR).unwrap();
    sees(&mut w, WindowUse::Used, true);
    assert_eq!(told(&w), None, "nothing is limited");
    let limits = ReservationLimits { gpus: Some(1), length: None, ahead: None };
    let group = GroupName::parse("students").unwrap();
    w.give(person("root"), Command::Limits(LimitsCommand::Set { group, limits })).unwrap();
    assert_eq!(told(&w), Some(NoLonger::OwnNext));
    let own = EndingCommand::SetAtEnd { id: res("r"), at_end: EndPolicy::Stop };
    rules(&mut w, "ada", own).unwrap();
    assert_eq!(told(&w), None, "by its policy it ends anyway");
    let own = EndingCommand::SetAtEnd { id: res("r"), at_end: EndPolicy::ExtendIfFree };
    rules(&mut w, "ada", own).unwrap();
    assert_eq!((told(&w), ends(&mut w)), (Some(NoLonger::OwnNext), true));
}

#[test]
fn a_silent_nodes_user_is_believed_to_be_there() {
    let mut w = in_use();
    let liveness = Liveness::Unreachable;
    let silent_for = Millis::minutes(1);
    let silent =
        Command::Node(NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for });
    w.give(Actor::controller(), silent).unwrap();
    until(&mut w, START + HOUR);
    assert_eq!(state(&w), ReservationState::Active);
    // A boot ends everybody's work there.
    w.boot("titan01", "boot-2").unwrap();
    let end = ends_at(&w);
    until(&mut w, end);
    assert_eq!(state(&w), ReservationState::Ending);
}

#[test]
fn stop_and_warn_end_on_time_and_the_reservations_own_word_counts_most() {
    for policy in [EndPolicy::Stop, EndPolicy::Warn] {
        let mut w = in_use();
        rules(&mut w, "root", set(Some(policy), None)).unwrap();
        until(&mut w, START + HOUR);
        assert_eq!(state(&w), ReservationState::Ending, "{policy:?}");
        let mut w = in_use();
        rules(&mut w, "root", set(Some(policy), None)).unwrap();
        let own = EndingCommand::SetAtEnd { id: res("r"), at_end: EndPolicy::ExtendIfFree };
        rules(&mut w, "ada", own).unwrap();
        let told = w.fsm.desired(&node("titan01"), &[]).windows.remove(0);
        assert_eq!(told.at_end, Some(EndPolicy::ExtendIfFree), "its node must know");
        until(&mut w, START + HOUR);
        assert_eq!(state(&w), ReservationState::Active, "{policy:?}");
    }
}

#[test]
fn a_jobs_own_limit_ends_it_and_it_keeps_no_window_open() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.schedule();
    let a = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&a);
    sees(&mut w, WindowUse::Others, true);
    until(&mut w, START + Millis::hours(8));
    assert_eq!((state(&w), w.state_of("a")), (ReservationState::Ending, "stopping"));
}

#[test]
fn a_window_nobody_came_for_is_given_back() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    w.pass(Millis::hours(2));
    assert_eq!(state(&w), ReservationState::Active, "its node has not said that nobody is there");
    // It watched for a while, but not longer than the window is open.
    sees(&mut w, WindowUse::Nobody { since_ms: Millis::minutes(10) }, false);
    let due = w.now - Millis::minutes(10) + NO_SHOW_DEFAULT;
    assert_eq!(w.fsm.next_deadline(), Some(due));
    until(&mut w, due);
    assert_eq!(state(&w), ReservationState::Ending);
    assert!(w.heard.iter().any(|e| matches!(e, Event::ReservationNotUsed { .. })));
    w.release("titan01");
    let reason = w.fsm.reservation(&res("r")).unwrap().reason.clone();
    assert_eq!(reason.as_deref(), Some("nobody came for 30m"));
}

#[test]
fn silence_doubt_and_anybody_who_came_keep_a_window() {
    type Change = fn(&mut World);
    let silent: Change = |w| {
        let (liveness, silent_for) = (Liveness::Suspect, Millis::secs(20));
        let command =
            Command::Node(NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for });
        w.give(Actor::controller(), command).unwrap();
        let (liveness, silent_for) = (Liveness::Ready, Millis::ZERO);
        let command =
            Command::Node(NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for });
        w.give(Actor::controller(), command).unwrap();
    };
    let anew: Change = |w| drop(w.boot("titan01", "boot-1").unwrap());
    let unclear: Change = |w| sees(w, WindowUse::Unclear, false);
    let came: Change = |w| {
        sees(w, WindowUse::Used, true);
        sees(w, NOBODY, true);
    };
    let came_unseen: Change = |w| sees(w, NOBODY, true);
    let a_job: Change = |w| {
        w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
        assert_eq!(w.schedule(), 1);
    };
    let never: Change = |w| rules(w, "root", set(None, Some(Millis::ZERO))).unwrap();
    for (n, change) in [silent, anew, unclear, came, came_unseen, a_job, never].iter().enumerate() {
        let mut w = World::with(&["titan01"]);
        w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
        sees(&mut w, NOBODY, false);
        w.pass(Millis::minutes(10));
        change(&mut w);
        let later = w.now + Millis::hours(5);
        until(&mut w, later);
        assert_eq!(state(&w), ReservationState::Active, "case {n}");
    }
}

#[test]
fn another_nodes_word_is_nothing() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(8)).unwrap();
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().node, node("titan01"));
    let report = Report::Use { reservation: res("r"), seen: NOBODY, came: false };
    w.report("titan02", report).unwrap();
    w.pass(Millis::hours(2));
    assert_eq!(state(&w), ReservationState::Active);
}

#[test]
fn only_admins_set_the_rules_and_within_bounds() {
    let mut w = in_use();
    assert!(matches!(rules(&mut w, "bob", set(None, Some(HOUR))), Err(Rejection::Denied { .. })));
    let own = |who: &str, w: &mut World| {
        rules(w, who, EndingCommand::SetAtEnd { id: res("r"), at_end: EndPolicy::Warn })
    };
    assert!(matches!(own("bob", &mut w), Err(Rejection::Denied { .. })));
    own("ada", &mut w).unwrap();
    assert!(rules(&mut w, "root", set(None, Some(Millis::days(8)))).is_err());
    let grace = Some(HOUR + HOUR);
    let long =
        EndingCommand::SetRules { at_end: None, no_show: None, grace, idle: Default::default() };
    assert!(rules(&mut w, "root", long).is_err());
    assert!(w.fsm.reservation_rules().is_default());
    rules(&mut w, "root", set(Some(EndPolicy::Stop), Some(HOUR))).unwrap();
    assert!(matches!(w.last[..], [Event::ReservationRulesSet { .. }]), "{:?}", w.said());
    let kept = ReservationRules { at_end: EndPolicy::Stop, no_show: HOUR, ..Default::default() };
    assert_eq!(*w.fsm.reservation_rules(), kept);
    assert_eq!(w.fsm.desired(&node("titan01"), &[]).rules, Some(kept));
    rules(&mut w, "root", set(None, None)).unwrap();
    assert!(w.last.is_empty(), "nothing changed");
}

#[test]
fn holders_are_on_record_for_their_node_only_and_within_bounds() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 4, Millis::ZERO, HOUR).unwrap();
    let holder = |on: &str, command: &str| GpuHolder {
        gpu: gpu(on, 0),
        pid: 4711,
        uid: 1000,
        user: "eve".to_owned(),
        command: command.to_owned(),
    };
    let told =
        |holders| Report::Holders { reservation: Some(res("r")), step: HolderStep::Asked, holders };
    w.report("titan01", told(vec![holder("titan01", "python"), holder("titan02", "x")])).unwrap();
    let [Event::HoldersSeen { holders, reservation: Some(_), .. }] = &w.last[..] else {
        panic!("{:?}", w.last)
    };
    assert_eq!(holders.len(), 1);
    let said = w.said().remove(0);
    assert!(said.contains("python (pid 4711) of eve") && said.contains("asked to end"), "{said}");
    assert!(w.last[0].objects().contains(&res("r").to_string()));
    w.report("titan02", told(vec![holder("titan02", "x")])).unwrap();
    assert!(matches!(&w.last[..], [Event::HoldersSeen { reservation: None, .. }]));
    assert!(w.report("titan01", told(vec![holder("titan01", "\u{1b}[2J")])).is_err());
    assert!(w.report("titan01", told(vec![holder("titan01", "x"); HOLDERS_MAX + 1])).is_err());
}
