//! Idle reservations: what is on record of them, when they are released, and that silence and doubt release none.

use proptest::prelude::*;

use super::world::{START, World, node, person, plain, res};
use crate::actor::Actor;
use crate::command::{Command, EndingCommand, NodeCommand, Report};
use crate::event::Event;
use crate::idle::{DesiredIdle, IDLE_MAX, IDLE_NOTICE, IdleChange, IdleEvent, IdleRules, IdleSeen};
use crate::job::JobSpec;
use crate::node::Liveness;
use crate::rejection::Rejection;
use crate::reservation::ReservationState;
use crate::time::{Millis, Timestamp};

const HOUR: Millis = Millis::hours(1);
const RELEASE: IdleChange =
    IdleChange { after: None, below_percent: None, release: Some(Millis::hours(4)) };

fn sees(w: &mut World, seen: IdleSeen) {
    w.report("titan01", Report::Idle { reservation: res("r"), seen }).unwrap();
}

fn idle(w: &mut World, for_ms: Millis) {
    sees(w, IdleSeen::Idle { for_ms });
}

fn set(w: &mut World, who: &str, idle: IdleChange) -> Result<(), Rejection> {
    let command = EndingCommand::SetRules { at_end: None, no_show: None, grace: None, idle };
    w.give(person(who), Command::Ending(command)).map(drop)
}

fn liveness(w: &mut World, liveness: Liveness) {
    let silent_for = Millis::secs(20);
    let command = NodeCommand::SetLiveness { node: node("titan01"), liveness, silent_for };
    w.give(Actor::controller(), Command::Node(command)).unwrap();
}

fn state(w: &World) -> ReservationState {
    w.fsm.reservation(&res("r")).unwrap().state.clone()
}

fn since(w: &World) -> Option<Timestamp> {
    w.fsm.reservation(&res("r")).unwrap().usage.idle.map(|idle| idle.since)
}

fn told(w: &World) -> Option<DesiredIdle> {
    w.fsm.desired(&node("titan01"), &[]).idle.get(&res("r")).copied()
}

fn events(w: &World) -> Vec<&IdleEvent> {
    let idle = w.heard.iter().filter_map(|event| match event {
        Event::Idle(event) => Some(event),
        _ => None,
    });
    idle.collect()
}

/// Lets time pass as a leader does: from deadline to deadline, each once.
fn until(w: &mut World, then: Timestamp) {
    for _ in 0..100 {
        let Some(due) = w.fsm.next_deadline().filter(|due| *due <= then) else {
            w.now = then;
            return w.pass(Millis::ZERO);
        };
        w.now = w.now.max(due);
        w.pass(Millis::ZERO);
    }
    panic!("a deadline that is not served: {:?}", w.fsm.next_deadline());
}

/// Ada has titan01 for a day.
fn reserved() -> World {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(24)).unwrap();
    w
}

/// Where idle reservations are released; this one is idle since the beginning, for 3 hours.
fn released_after_four_hours() -> World {
    let mut w = reserved();
    set(&mut w, "root", RELEASE).unwrap();
    w.pass(Millis::hours(3));
    idle(&mut w, Millis::hours(3));
    w
}

/// For the golden log.
pub(super) fn golden_rules() -> (Option<Millis>, Option<Millis>, IdleChange) {
    let idle = IdleChange { below_percent: Some(2), ..RELEASE };
    (Some(HOUR), Some(Millis::minutes(5)), idle)
}

/// For the golden log too.
pub(super) fn golden(w: &mut World) {
    let idle = |minutes| IdleSeen::Idle { for_ms: Millis::minutes(minutes) };
    for seen in [idle(30), IdleSeen::Unknown, IdleSeen::Busy, idle(1)] {
        w.report("titan01", Report::Idle { reservation: res("r5"), seen }).unwrap();
    }
}

#[test]
fn an_idle_reservation_is_on_record_once_until_it_is_busy_again() {
    let mut w = reserved();
    w.pass(Millis::hours(2));
    idle(&mut w, HOUR);
    assert_eq!(since(&w), Some(START + HOUR));
    assert_eq!(
        w.said(),
        ["reservation of ada is idle: its GPUs on titan01 computed nothing for 1h"]
    );
    // A report that arrives again, after a restart of the agent too.
    w.pass(HOUR);
    idle(&mut w, HOUR);
    assert_eq!((since(&w), w.last.len()), (Some(START + HOUR), 0));
    sees(&mut w, IdleSeen::Unknown);
    assert_eq!((since(&w), w.last.len()), (None, 0), "unknown is never idle");
    idle(&mut w, HOUR);
    assert_eq!((since(&w), w.last.len()), (Some(START + HOUR + HOUR), 0));
    sees(&mut w, IdleSeen::Busy);
    assert_eq!((since(&w), w.said()), (None, vec!["its GPUs on titan01 compute again".to_owned()]));
    sees(&mut w, IdleSeen::Busy);
    assert!(w.last.is_empty());
    idle(&mut w, HOUR);
    assert_eq!(events(&w).len(), 3);
    until(&mut w, START + Millis::hours(20));
    assert_eq!(state(&w), ReservationState::Active, "nobody wants releases");
    assert_eq!(told(&w), None);
}

#[test]
fn nobody_is_idle_before_the_reservation_began_or_on_another_node() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.pass(HOUR);
    w.reserve("ada", "r", 4, Millis::ZERO, Millis::hours(24)).unwrap();
    w.pass(HOUR);
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().node, node("titan01"));
    let seen = IdleSeen::Idle { for_ms: HOUR };
    w.report("titan02", Report::Idle { reservation: res("r"), seen }).unwrap();
    assert_eq!(since(&w), None);
    idle(&mut w, Millis::hours(5));
    assert_eq!(since(&w), Some(START + HOUR));
    set(&mut w, "root", IdleChange { after: Some(Millis::ZERO), ..IdleChange::default() }).unwrap();
    assert_eq!(since(&w), None, "reservations are not watched any more");
    idle(&mut w, Millis::hours(5));
    assert_eq!(since(&w), None);
}

#[test]
fn it_is_released_when_it_is_due_and_its_node_says_again_that_it_is_idle() {
    let mut w = released_after_four_hours();
    let due = START + Millis::hours(4);
    assert_eq!(told(&w), Some(DesiredIdle { release_at: due, confirm: false }));
    assert_eq!(w.fsm.next_deadline(), Some(due));
    idle(&mut w, Millis::hours(3));
    until(&mut w, due - Millis(1));
    assert_eq!(told(&w).map(|told| told.confirm), Some(false));
    until(&mut w, due + HOUR);
    assert_eq!(state(&w), ReservationState::Active, "its node has not answered");
    assert_eq!(told(&w), Some(DesiredIdle { release_at: due, confirm: true }));
    idle(&mut w, Millis::hours(5));
    assert_eq!(state(&w), ReservationState::Ending);
    assert!(
        w.said()
            .iter()
            .any(|said| { said == "released: its GPUs on titan01 computed nothing for 4h" })
    );
    assert_eq!((told(&w), since(&w)), (None, None));
    w.release("titan01");
    let r = w.fsm.reservation(&res("r")).unwrap();
    assert_eq!((r.reason.as_deref(), r.released_at), (Some("idle for 4h"), Some(w.now)));
    assert_eq!(r.changed.as_ref().unwrap().by, "fleet");
    let IdleEvent::Released { since, after, .. } = events(&w)[1] else {
        panic!("{:?}", events(&w))
    };
    assert_eq!((*since, *after), (START, Millis::hours(4)));
}

#[test]
fn jobs_that_compute_nothing_keep_no_reservation() {
    let mut w = reserved();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    w.schedule();
    set(&mut w, "root", RELEASE).unwrap();
    w.pass(Millis::hours(5));
    idle(&mut w, Millis::hours(5));
    w.pass(IDLE_NOTICE);
    idle(&mut w, Millis::hours(5));
    assert_eq!((state(&w), w.state_of("a")), (ReservationState::Ending, "stopping"));
}

#[test]
fn its_users_have_time_to_read_of_a_release() {
    let at = |w: &World| told(w).map(|told| told.release_at);
    // It was idle for longer than it may be, and its node was not heard.
    let mut w = reserved();
    set(&mut w, "root", RELEASE).unwrap();
    w.pass(Millis::hours(6));
    idle(&mut w, Millis::hours(6));
    assert_eq!(at(&w), Some(w.now + IDLE_NOTICE));
    // An admin makes the time shorter, or wants releases at all.
    let mut w = reserved();
    w.pass(Millis::hours(6));
    idle(&mut w, Millis::hours(6));
    w.pass(HOUR);
    assert_eq!(at(&w), None);
    set(&mut w, "root", RELEASE).unwrap();
    let due = w.now + IDLE_NOTICE;
    assert_eq!((at(&w), w.fsm.next_deadline()), (Some(due), Some(due)));
    until(&mut w, due);
    set(&mut w, "root", IdleChange { release: Some(Millis::hours(24)), ..RELEASE }).unwrap();
    idle(&mut w, Millis::hours(8));
    assert_eq!((state(&w), at(&w)), (ReservationState::Active, Some(START + Millis::hours(24))));
    // The clock is set back.
    let mut w = released_after_four_hours();
    w.pass(HOUR);
    let reset = Command::Cluster(crate::command::ClusterCommand::ResetClock { to: START });
    w.give(person("root"), reset).unwrap();
    assert_eq!((since(&w), at(&w)), (Some(START), Some(START + Millis::hours(4))));
}

#[test]
fn silence_doubt_and_use_release_nothing() {
    type Change = fn(&mut World);
    let busy: Change = |w| sees(w, IdleSeen::Busy);
    let unknown: Change = |w| sees(w, IdleSeen::Unknown);
    let silent: Change = |w| liveness(w, Liveness::Suspect);
    let heard_again: Change = |w| {
        liveness(w, Liveness::Unreachable);
        liveness(w, Liveness::Ready);
    };
    let connects_again: Change = |w| drop(w.boot("titan01", "boot-1").unwrap());
    let never: Change = |w| {
        set(w, "root", IdleChange { release: Some(Millis::ZERO), ..RELEASE }).unwrap();
    };
    let changes = [busy, unknown, silent, heard_again, connects_again, never];
    for (n, change) in changes.iter().enumerate() {
        for asked in [false, true] {
            let mut w = released_after_four_hours();
            if asked {
                until(&mut w, START + Millis::hours(4));
                assert!(told(&w).unwrap().confirm);
            }
            change(&mut w);
            until(&mut w, START + Millis::hours(12));
            assert_eq!(state(&w), ReservationState::Active, "case {n}");
            assert_eq!(told(&w), None, "case {n}");
        }
    }
}

#[test]
fn rules_that_contradict_each_other_are_refused() {
    let mut w = reserved();
    let none = IdleChange::default();
    let refused = |w: &mut World, change: IdleChange| match set(w, "root", change) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("{change:?} is taken"),
    };
    assert!(matches!(set(&mut w, "bob", RELEASE), Err(Rejection::Denied { .. })));
    let late = refused(&mut w, IdleChange { after: Some(IDLE_MAX + HOUR), ..none });
    assert!(late.contains("idle_after") && late.contains("at most 7d"), "{late}");
    for percent in [0, 101] {
        let why = refused(&mut w, IdleChange { below_percent: Some(percent), ..none });
        assert!(why.contains("a percentage from 1 to 100"), "{why}");
    }
    let soon = refused(&mut w, IdleChange { release: Some(HOUR), ..none });
    assert!(soon.contains("1h must be longer than 1h"), "{soon}");
    let unseen = refused(&mut w, IdleChange { after: Some(Millis::ZERO), ..RELEASE });
    assert!(unseen.contains("never too, where no reservation"), "{unseen}");
    assert!(w.fsm.reservation_rules().is_default());
    set(&mut w, "root", IdleChange { below_percent: Some(5), ..RELEASE }).unwrap();
    let rules = IdleRules { below_percent: 5, release: Millis::hours(4), ..IdleRules::default() };
    assert_eq!(w.fsm.desired(&node("titan01"), &[]).rules.unwrap().idle, rules);
    let said = w.said().concat();
    assert!(said.contains("idle after 1h below 5 %, released if idle for 4h; they"), "{said}");
    assert!(said.contains("below 1 %, never released for it"), "{said}");
}

#[derive(Debug, Clone)]
enum Step {
    Sees(IdleSeen),
    Silent,
    Heard,
    Connects { rebooted: bool },
    Rules(Option<u64>),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..400_u64).prop_map(|n| Step::Sees(IdleSeen::Idle { for_ms: Millis::minutes(n) })),
        1 => Just(Step::Sees(IdleSeen::Busy)),
        1 => Just(Step::Sees(IdleSeen::Unknown)),
        1 => Just(Step::Silent),
        1 => Just(Step::Heard),
        1 => any::<bool>().prop_map(|rebooted| Step::Connects { rebooted }),
        1 => prop::option::of(61..300_u64).prop_map(Step::Rules),
        6 => (0..200_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Only the word of a node that is heard releases, after its users could read when.
    #[test]
    fn whatever_happens_a_release_follows_a_warning_and_a_fresh_word(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut w = reserved();
        set(&mut w, "root", RELEASE).unwrap();
        // Since when the node says, without a break, that it is idle, and since when the agent knows of this release.
        let (mut idle_from, mut known): (Option<Timestamp>, Option<(Timestamp, Timestamp)>) = (None, None);
        let mut boots = 1;
        for step in steps {
            let heard = w.heard.len();
            match &step {
                Step::Sees(seen) => {
                    sees(&mut w, *seen);
                    match seen {
                        IdleSeen::Idle { .. } => { idle_from.get_or_insert(w.now); }
                        IdleSeen::Busy | IdleSeen::Unknown => idle_from = None,
                    }
                }
                Step::Silent => { liveness(&mut w, Liveness::Suspect); idle_from = None; }
                Step::Heard => liveness(&mut w, Liveness::Ready),
                Step::Connects { rebooted } => {
                    boots += usize::from(*rebooted);
                    w.boot("titan01", &format!("boot-{boots}")).unwrap();
                    idle_from = None;
                }
                Step::Rules(minutes) => {
                    let release = Some(minutes.map_or(Millis::ZERO, Millis::minutes));
                    set(&mut w, "root", IdleChange { release, ..RELEASE }).unwrap();
                }
                Step::Pass(minutes) => {
                    let then = w.now + Millis::minutes(*minutes);
                    until(&mut w, then);
                }
            }
            let released = w.heard[heard..].iter().any(|e| {
                matches!(e, Event::Idle(IdleEvent::Released { .. }))
            });
            if released {
                prop_assert!(matches!(step, Step::Sees(IdleSeen::Idle { .. })), "{step:?}");
                prop_assert!(idle_from.is_some(), "not idle by its node's word");
                let (at, since) = known.unwrap();
                prop_assert!(at <= w.now, "before the time that its users read");
                // The rules of this test leave a minute at least between idle and a release.
                prop_assert!(w.now.since(since) >= Millis::minutes(1), "without a warning");
            }
            if state(&w) != ReservationState::Active {
                break;
            }
            known = match (told(&w), known) {
                (Some(told), Some((at, since))) if told.release_at == at => Some((at, since)),
                (Some(told), _) => Some((told.release_at, w.now)),
                (None, _) => None,
            };
        }
    }
}

#[test]
fn a_step_of_the_clock_releases_nothing() {
    let mut w = released_after_four_hours();
    // The clock of a new leader is an hour ahead; the node counts by its own.
    let then = w.now + Millis::hours(2);
    until(&mut w, then);
    assert!(told(&w).unwrap().confirm);
    idle(&mut w, Millis::hours(3));
    assert_eq!(state(&w), ReservationState::Active);
    assert_eq!(since(&w), Some(w.now - Millis::hours(3)));
    assert_eq!(told(&w).unwrap(), DesiredIdle { release_at: w.now + HOUR, confirm: false });
}

#[test]
fn a_job_that_comes_calls_the_release_off() {
    let mut w = released_after_four_hours();
    let then = w.now + Millis::hours(2);
    until(&mut w, then);
    assert!(told(&w).unwrap().confirm);
    w.submit("ada", "j", JobSpec { reservation: Some(res("r")), ..plain(1) }).unwrap();
    assert_eq!(w.schedule(), 1);
    // What the node measured before it heard of the job.
    idle(&mut w, Millis::hours(5));
    assert_eq!(state(&w), ReservationState::Active);
    assert_eq!(told(&w).unwrap(), DesiredIdle { release_at: w.now + IDLE_NOTICE, confirm: false });
}
