//! Reboots that wait until their node is empty.

use super::world::{World, agent, node, person, res, training};
use crate::actor::Actor;
use crate::allocation::AttemptEnd;
use crate::command::{Command, NodeCommand, RebootCommand, Report, ReservationCommand};
use crate::event::Event;
use crate::reboot::DesiredReboot;
use crate::rejection::Rejection;
use crate::time::Millis;

fn ask(w: &mut World, reason: &str) {
    let reason = reason.to_owned();
    let ask = RebootCommand::Ask { node: node("titan01"), reason };
    w.give(person("root"), Command::Reboot(ask)).unwrap();
}

fn cancel(w: &mut World) {
    let cancel = RebootCommand::Cancel { node: node("titan01") };
    w.give(person("root"), Command::Reboot(cancel)).unwrap();
}

fn ordered(w: &World) -> Option<DesiredReboot> {
    w.fsm.desired(&node("titan01"), &[]).reboot
}

fn closed(w: &World) -> (bool, bool) {
    let node = w.fsm.node(&node("titan01")).unwrap();
    (node.cordon.is_some(), node.drain.is_some())
}

fn waits_for(w: &World) -> Vec<String> {
    w.fsm.reboot_waits_for(w.fsm.node(&node("titan01")).unwrap())
}

#[test]
fn it_waits_for_jobs_people_and_proof_and_the_next_boot_opens_the_node_again() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.reserve("ada", "r", 3, Millis::ZERO, Millis::hours(1)).unwrap();
    let on = w.fsm.reservation(&res("r")).unwrap().node.clone();
    assert_eq!(on, node("titan01"), "the fixture");
    let a = w.run("a", training(), "titan01", &[3]);
    ask(&mut w, "new kernel");
    assert!(w.last.iter().any(|e| matches!(e, Event::NodeRebootAsked { .. })));
    assert_eq!((closed(&w), ordered(&w)), ((true, true), None));
    assert_eq!(waits_for(&w), ["job-a", "res-r"]);
    let again = w.fsm.node(&node("titan01")).unwrap().reboot.clone();
    ask(&mut w, "and once more");
    assert!(w.last.is_empty(), "the same wish");
    assert_eq!(w.fsm.node(&node("titan01")).unwrap().reboot, again);
    // The drain asks it to go at its next checkpoint, and it does.
    w.take_deferral(&a, 0);
    w.checkpoint(&a, 1, Millis::secs(1));
    w.end(&a, AttemptEnd::Signaled { signal: 15 });
    assert_eq!(waits_for(&w), ["res-r"]);
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    assert_eq!(waits_for(&w), ["GPUs that are not proven empty yet"]);
    w.release("titan01");
    let order = DesiredReboot { since: again.unwrap().since, boot_id: "boot-1".to_owned() };
    assert_eq!(ordered(&w), Some(order.clone()));
    w.report("titan01", Report::Reboot { since: order.since, problem: None }).unwrap();
    assert_eq!(w.last, [Event::NodeRebootBegun { node: node("titan01") }]);
    w.boot("titan01", "boot-2").unwrap();
    assert!(w.last.contains(&Event::NodeRebootDone { node: node("titan01") }));
    assert_eq!((closed(&w), ordered(&w)), ((false, false), None));
}

#[test]
fn what_an_admin_closed_on_their_own_stays_closed() {
    let reason = || "mine".to_owned();
    let cordon = || Command::Node(NodeCommand::Cordon { node: node("titan01"), reason: reason() });
    let drain = || {
        Command::Node(NodeCommand::Drain {
            node: node("titan01"),
            reason: reason(),
            deadline: None,
        })
    };
    // Before and after the wish.
    for (first, then, left) in [
        (Some(cordon()), None, (true, false)),
        (Some(drain()), None, (true, true)),
        (None, Some(cordon()), (true, false)),
        (None, Some(drain()), (true, true)),
        (None, None, (false, false)),
    ] {
        for by_boot in [true, false] {
            let mut w = World::with(&["titan01"]);
            first.iter().for_each(|c| drop(w.give(person("root"), c.clone()).unwrap()));
            ask(&mut w, "");
            then.iter().for_each(|c| drop(w.give(person("root"), c.clone()).unwrap()));
            assert_eq!(closed(&w), (true, true));
            match by_boot {
                true => drop(w.boot("titan01", "boot-2").unwrap()),
                false => cancel(&mut w),
            }
            assert_eq!(closed(&w), left);
            assert!(w.fsm.node(&node("titan01")).unwrap().reboot.is_none());
        }
    }
}

#[test]
fn a_cancelled_one_is_not_ordered_and_its_jobs_stay() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    ask(&mut w, "");
    cancel(&mut w);
    let said = Event::NodeRebootCancelled { node: node("titan01"), by: "root".to_owned() };
    assert!(w.last.contains(&said));
    assert!(w.fsm.allocation(&a).unwrap().deferral.is_none());
    cancel(&mut w);
    assert!(w.last.is_empty(), "twice is once");
    ask(&mut w, "");
    w.give(person("root"), Command::Node(NodeCommand::Uncordon { node: node("titan01") })).unwrap();
    assert!(w.last.contains(&said), "an open node never gets empty");
}

#[test]
fn a_node_that_cannot_says_why_and_tries_again_when_it_is_asked_again() {
    let mut w = World::with(&["titan01"]);
    ask(&mut w, "");
    let since = ordered(&w).unwrap().since;
    let no = |since| Report::Reboot { since, problem: Some("no systemd".to_owned()) };
    w.report("titan01", no(since - Millis::secs(1))).unwrap();
    assert!(w.last.is_empty(), "of another wish");
    for said in [1, 0] {
        w.report("titan01", no(since)).unwrap();
        assert_eq!(w.last.len(), said);
    }
    let wish = w.fsm.node(&node("titan01")).unwrap().reboot.clone().unwrap();
    assert_eq!(wish.problem(), Some("no systemd"));
    w.pass(Millis::minutes(1));
    ask(&mut w, "");
    assert!(ordered(&w).unwrap().since > since);
    cancel(&mut w);
    assert_eq!(closed(&w), (false, false), "what the first one closed is open again");
}

#[test]
fn one_that_began_and_never_came_is_said_and_can_be_asked_for_again() {
    let mut w = World::with(&["titan01"]);
    ask(&mut w, "");
    let since = ordered(&w).unwrap().since;
    w.report("titan01", Report::Reboot { since, problem: None }).unwrap();
    let why = || "it has not gone down".to_owned();
    w.report("titan01", Report::Reboot { since, problem: Some(why()) }).unwrap();
    assert_eq!(w.last, [Event::NodeRebootFailed { node: node("titan01"), why: why() }]);
    w.pass(Millis::minutes(1));
    ask(&mut w, "");
    assert!(ordered(&w).unwrap().since > since);
    // Nor does a problem end the wish: the agent continues by itself once the problem is gone.
    let since = ordered(&w).unwrap().since;
    w.report("titan01", Report::Reboot { since, problem: Some(why()) }).unwrap();
    w.report("titan01", Report::Reboot { since, problem: None }).unwrap();
    assert_eq!(w.last, [Event::NodeRebootBegun { node: node("titan01") }]);
}

#[test]
fn only_admins_ask_and_only_where_everybody_knows_what_that_is() {
    let mut w = World::with(&["titan01"]);
    let ask = |name: &str| {
        Command::Reboot(RebootCommand::Ask { node: node(name), reason: String::new() })
    };
    assert!(matches!(w.give(person("ada"), ask("titan01")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(agent("titan01"), ask("titan01")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(Actor::controller(), ask("titan01")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(person("root"), ask("titan09")), Err(Rejection::NotFound { .. })));
}

#[test]
fn what_an_agent_said_of_its_order_is_not_shown_while_it_has_none() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::hours(1), Millis::hours(1)).unwrap();
    ask(&mut w, "");
    let since = ordered(&w).unwrap().since;
    let why = "its GPUs are in use by python3".to_owned();
    w.report("titan01", Report::Reboot { since, problem: Some(why.clone()) }).unwrap();
    let problem =
        |w: &World| w.fsm.reboot_problem(w.fsm.node(&node("titan01")).unwrap()).map(str::to_owned);
    assert_eq!(problem(&w), Some(why.clone()));
    w.pass(Millis::hours(1));
    assert_eq!((waits_for(&w), problem(&w)), (vec!["res-r".to_owned()], None));
    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r") }))
        .unwrap();
    w.release("titan01");
    assert_eq!((waits_for(&w), problem(&w)), (vec![], Some(why)));
}
