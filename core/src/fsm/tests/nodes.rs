//! Nodes: reboots, identities, moved GPUs, operators.

use super::world::{
    World, agent, bad, facts, gpu, job, node, person, plain, res, sticky, training,
};
use crate::actor::{Actor, AuthMethod};
use crate::allocation::AttemptEnd;
use crate::command::{
    AccessCommand, ClusterCommand, Command, CreateJoinToken, GpuCommand, NodeCommand, Report,
    ReservationCommand, TokenCommand,
};
use crate::event::Event;
use crate::gpu::Presence;
use crate::health::{Condition, Severity};
use crate::id::TokenId;
use crate::node::{Liveness, MachineIdentity};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;
use crate::view::{self, NamesAt};
use crate::window::Enforcement;

#[test]
fn a_node_that_takes_no_work_is_not_counted_as_ready() {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    assert_eq!(view::node::ready(&w.fsm), 3);
    let reason = "repair".to_owned();
    let drain = Command::Node(NodeCommand::Drain { node: node("titan01"), reason, deadline: None });
    w.give(person("root"), drain).unwrap();
    assert_eq!(view::node::ready(&w.fsm), 2);
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(1));
    let silent =
        Command::Node(NodeCommand::SetLiveness { node: node("titan02"), liveness, silent_for });
    w.give(Actor::controller(), silent).unwrap();
    assert_eq!(view::node::ready(&w.fsm), 1);
}

#[test]
fn a_new_boot_ends_what_ran_and_frees_its_gpus() {
    let mut w = World::with(&["titan01", "titan02"]);
    w.run("a", training(), "titan01", &[0]);
    w.boot("titan01", "boot-2").unwrap();
    assert_eq!(w.state_of("a"), "queued");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
}

#[test]
fn what_had_not_begun_begins_after_the_boot() {
    let mut w = World::with(&["titan01"]);
    for (name, index) in [("a", 0), ("b", 3)] {
        w.submit("ada", name, plain(1)).unwrap();
        w.place(name, "titan01", &[index]).unwrap();
    }
    let less = Box::new(facts("titan01", 3, "boot-2"));
    w.give(
        agent("titan01"),
        Command::Node(NodeCommand::Register { node: node("titan01"), facts: less }),
    )
    .unwrap();
    assert_eq!(w.state_of("a"), "starting");
    assert_eq!(w.state_of("b"), "failed", "its GPU did not come back");
    let (id, lease) = {
        let a = w.fsm.allocations().values().next().unwrap();
        assert_eq!(a.boot_id, "boot-2");
        (a.id.clone(), a.lease.clone().unwrap())
    };
    assert_eq!(w.fsm.hold(&gpu("titan01", 0)).unwrap().lease, lease);
    w.boot("titan01", "boot-3").unwrap();
    w.start(&id);
    w.boot("titan01", "boot-4").unwrap();
    assert_eq!(w.state_of("a"), "failed", "it ran, and may not be restarted");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
}

#[test]
fn what_its_node_stopped_at_a_shutdown_goes_on_from_its_checkpoint() {
    let mut w = World::with(&["titan01"]);
    let a = w.run("a", training(), "titan01", &[0]);
    w.checkpoint(&a, 1, Millis::secs(1));
    w.end(&a, AttemptEnd::NodeFault { message: "the agent stopped it on this node".to_owned() });
    assert_eq!(w.state_of("a"), "queued");
    let job = w.fsm.job(&job("a")).unwrap();
    assert_eq!(job.restarts_used, 1);
    w.boot("titan01", "boot-2").unwrap();
    let again = w.place("a", "titan01", &[0]).unwrap();
    assert!(w.fsm.allocation(&again).unwrap().resume_from.is_some());
}

#[test]
fn a_gpu_that_did_not_come_back_frees_nothing() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[3]);
    let less = Box::new(facts("titan01", 3, "boot-2"));
    w.give(
        agent("titan01"),
        Command::Node(NodeCommand::Register { node: node("titan01"), facts: less }),
    )
    .unwrap();
    assert_eq!(w.state_of("a"), "queued", "the attempt is over all the same");
    assert!(w.fsm.hold(&gpu("titan01", 3)).is_some());
}

#[test]
fn the_same_boot_again_changes_nothing() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[0]);
    let before = w.fsm.digest();
    w.boot("titan01", "boot-1").unwrap();
    assert!(w.last.is_empty());
    assert_eq!(w.state_of("a"), "running");
    assert_ne!(w.fsm.digest(), before, "the applied index moved");
}

#[test]
fn another_machine_under_the_same_name_is_refused() {
    let mut w = World::with(&["titan01"]);
    let mut other = facts("titan01", 4, "boot-9");
    other.machine.machine_id = "cloned".to_owned();
    let command =
        Command::Node(NodeCommand::Register { node: node("titan01"), facts: Box::new(other) });
    assert!(matches!(w.give(agent("titan01"), command), Err(Rejection::NodeIdentity { .. })));
}

/// A machine that was copied, disk and all, joins and registers under a new name.
fn clone_of_titan01(dmi_uuid: &str) -> (World, Result<Reply, Rejection>) {
    let mut w = World::with(&["titan01"]);
    let id = TokenId::parse("token-1").unwrap();
    let (names, secret_sha256) = (vec![node("titan02")], "0".repeat(64));
    let token = CreateJoinToken { id: id.clone(), secret_sha256, names, ttl: Millis::hours(1) };
    w.give(person("root"), Command::Token(TokenCommand::ForNodes(token))).unwrap();
    let machine =
        MachineIdentity { machine_id: "id-titan01".to_owned(), dmi_uuid: dmi_uuid.to_owned() };
    let joining = Actor { method: AuthMethod::JoinToken, ..agent("titan02") };
    let redeem = Command::Node(NodeCommand::Join { id, node: node("titan02"), machine });
    let reply = w.give(joining, redeem);
    (w, reply)
}

fn register_clone(w: &mut World) -> Result<Reply, Rejection> {
    let mut facts = facts("titan02", 4, "boot-2");
    facts.machine.machine_id = "id-titan01".to_owned();
    let command =
        Command::Node(NodeCommand::Register { node: node("titan02"), facts: Box::new(facts) });
    w.give(agent("titan02"), command)
}

#[test]
fn a_clone_under_another_name_is_refused_and_told_what_to_do() {
    for dmi_uuid in ["", "of-another-board"] {
        let (mut w, reply) = clone_of_titan01(dmi_uuid);
        let refused = reply.unwrap_err();
        assert_eq!(refused.code(), "machine_id_taken");
        let said = refused.to_string();
        for part in ["node titan01 has", "systemd-machine-id-setup", "fleet node remove titan01"] {
            assert!(said.contains(part), "{said}");
        }
        // One of two clones that joined before either had come: it ends here.
        assert_eq!(register_clone(&mut w).unwrap_err(), refused);
        // The same machine, renamed: the former node goes first.
        let (node, reason) = (node("titan01"), "renamed".to_owned());
        let remove = Command::Access(AccessCommand::RemoveNode { node, reason });
        w.give(person("root"), remove).unwrap();
        register_clone(&mut w).unwrap();
    }
}

#[test]
fn an_agent_speaks_for_its_own_node_only() {
    let mut w = World::with(&["titan01", "titan02"]);
    let command = Command::Node(NodeCommand::Report { node: node("titan01"), reports: vec![] });
    assert!(matches!(w.give(agent("titan02"), command), Err(Rejection::Denied { .. })));
}

#[test]
fn one_gpu_in_two_machines_counts_once() {
    let mut w = World::with(&["titan01"]);
    let mut second = facts("titan02", 4, "boot-1");
    second.gpus[0].uuid = gpu("titan01", 0);
    let command =
        Command::Node(NodeCommand::Register { node: node("titan02"), facts: Box::new(second) });
    w.give(agent("titan02"), command).unwrap();
    assert_eq!(w.fsm.gpu(&gpu("titan01", 0)).unwrap().node, node("titan01"));
    assert_eq!(w.fsm.node(&node("titan02")).unwrap().gpus.len(), 3);
}

#[test]
fn a_gpu_may_move_once_it_left() {
    let mut w = World::with(&["titan01"]);
    let less = facts("titan01", 3, "boot-1");
    w.report("titan01", Report::Facts { facts: less }).unwrap();
    let mut second = facts("titan02", 1, "boot-1");
    second.gpus[0].uuid = gpu("titan01", 3);
    let command =
        Command::Node(NodeCommand::Register { node: node("titan02"), facts: Box::new(second) });
    w.give(agent("titan02"), command).unwrap();
    assert_eq!(w.fsm.gpu(&gpu("titan01", 3)).unwrap().node, node("titan02"));
    assert!(!w.fsm.node(&node("titan01")).unwrap().gpus.contains(&gpu("titan01", 3)));
}

#[test]
fn a_card_that_is_promised_moves_when_the_promise_is_over() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r1", 4, Millis::hours(24), Millis::hours(1)).unwrap();
    w.report("titan01", Report::Facts { facts: facts("titan01", 3, "boot-1") }).unwrap();
    let mut second = facts("titan02", 1, "boot-1");
    second.gpus[0].uuid = gpu("titan01", 3);
    let command =
        Command::Node(NodeCommand::Register { node: node("titan02"), facts: Box::new(second) });
    w.give(agent("titan02"), command).unwrap();
    let on = |w: &World| w.fsm.gpu(&gpu("titan01", 3)).unwrap().node.to_string();
    assert_eq!(on(&w), "titan01");
    let said: Vec<String> = w.last.iter().map(|event| w.sentence(event)).collect();
    assert!(said.iter().any(|s| s.contains("is promised to res-r1 of ada on titan01")), "{said:?}");
    // Nobody else is promised it meanwhile, on either node.
    let r2 = w.reserve("bob", "r2", 1, Millis::hours(24), Millis::hours(1));
    assert!(r2.is_err(), "{r2:?}");

    w.give(person("ada"), Command::Reservation(ReservationCommand::Release { id: res("r1") }))
        .unwrap();
    assert!(w.fsm.next_deadline().is_some_and(|at| at <= w.now), "{:?}", w.fsm.next_deadline());
    w.pass(Millis::ZERO);
    assert_eq!(on(&w), "titan02");
    assert_eq!(w.fsm.node(&node("titan02")).unwrap().gpus, [gpu("titan01", 3)]);
    assert!(w.fsm.node(&node("titan02")).unwrap().facts.gpus.is_empty());

    // The agent of the first machine remembers the card, and does not get it back for that.
    let mut remembered = facts("titan01", 4, "boot-1");
    remembered.gpus[3].presence = Presence::Lost;
    w.report("titan01", Report::Facts { facts: remembered }).unwrap();
    assert!(w.last.is_empty(), "{:?}", w.last);
    let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(9));
    let silent = NodeCommand::SetLiveness { node: node("titan02"), liveness, silent_for };
    w.give(Actor::controller(), Command::Node(silent)).unwrap();
    w.pass(Millis::minutes(1));
    assert_eq!(on(&w), "titan02");
    w.fsm.check_invariants().unwrap();
}

#[test]
fn an_operators_word_frees_a_gpu_and_is_kept() {
    let mut w = World::with(&["titan01"]);
    w.run("a", plain(1), "titan01", &[0]);
    let command = |reason: &str| {
        Command::Gpu(GpuCommand::DeclareFree { gpu: gpu("titan01", 0), reason: reason.to_owned() })
    };
    assert!(matches!(w.give(person("ada"), command("x")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(person("root"), command(" ")), Err(Rejection::InvalidField { .. })));
    w.give(person("root"), command("the machine is switched off")).unwrap();
    assert!(w.last.iter().any(|e| matches!(e, Event::GpuDeclaredFree { .. })));
    let word =
        |e: &&Event| matches!(e, Event::GpusReleased { declared_by: Some(by), .. } if by == "root");
    let released = w.sentence(w.last.iter().find(word).unwrap());
    assert!(released.ends_with("declared free by root, not proven empty"), "{released}");
    assert!(w.fsm.hold(&gpu("titan01", 0)).is_none());
    assert_eq!(w.state_of("a"), "failed");
}

#[test]
fn what_stays_of_a_fault_goes_by_an_admins_word_once_the_node_did_it() {
    let mut w = World::with(&["titan01"]);
    let clear = |reason: &str| {
        Command::Gpu(GpuCommand::Clear { gpu: gpu("titan01", 0), reason: reason.to_owned() })
    };
    w.give(person("root"), clear("")).unwrap();
    assert!(w.last.is_empty(), "nothing to clear is no change: {:?}", w.last);
    w.conditions("titan01", vec![sticky("titan01", 0)]);
    assert!(matches!(w.give(person("ada"), clear("x")), Err(Rejection::Denied { .. })));
    assert!(matches!(w.give(person("root"), clear("\n")), Err(Rejection::InvalidField { .. })));
    w.give(person("root"), clear("reseated")).unwrap();
    let ordered = Event::GpuClearOrdered {
        node: node("titan01"),
        gpu: gpu("titan01", 0),
        by: "root".to_owned(),
        reason: "reseated".to_owned(),
        kinds: vec!["xid_62".to_owned()],
    };
    assert_eq!(w.last, [ordered]);
    // Told once more it is the same order, and it stays until the node's report shows the effect.
    w.give(person("root"), clear("again")).unwrap();
    assert!(w.last.is_empty());
    let told = |w: &World| w.fsm.desired(&node("titan01"), &[]).clear;
    assert_eq!(told(&w).len(), 1);
    w.conditions("titan01", vec![sticky("titan01", 0), bad("titan01", 1, Severity::Notice)]);
    assert_eq!(told(&w).len(), 1);
    w.conditions("titan01", vec![bad("titan01", 1, Severity::Notice)]);
    assert!(told(&w).is_empty());
    assert!(w.last.iter().any(|e| matches!(e, Event::ConditionCleared { .. })), "{:?}", w.last);
    w.submit("ada", "a", plain(4)).unwrap();
    assert_eq!(w.schedule(), 1, "the GPU takes work again");
}

#[test]
fn a_later_fault_of_the_same_kind_is_not_cleared_unseen() {
    let mut w = World::with(&["titan01"]);
    let mut fault = sticky("titan01", 0);
    w.conditions("titan01", vec![fault.clone()]);
    let command = Command::Gpu(GpuCommand::Clear { gpu: gpu("titan01", 0), reason: String::new() });
    w.give(person("root"), command.clone()).unwrap();
    fault.since = fault.since + Millis::secs(1);
    w.conditions("titan01", vec![fault]);
    assert!(w.fsm.desired(&node("titan01"), &[]).clear.is_empty());
    w.give(person("root"), command).unwrap();
    assert_eq!(w.fsm.desired(&node("titan01"), &[]).clear.len(), 1);
}

#[test]
fn what_is_still_observed_cannot_be_cleared() {
    let mut w = World::with(&["titan01"]);
    let command =
        || Command::Gpu(GpuCommand::Clear { gpu: gpu("titan01", 0), reason: String::new() });
    let refused = |w: &mut World| match w.give(person("root"), command()) {
        Err(Rejection::StillObserved { what, why }) => format!("{what}: {why}"),
        other => panic!("{other:?}"),
    };
    w.conditions("titan01", vec![bad("titan01", 0, Severity::Degraded)]);
    let why = refused(&mut w);
    assert_eq!(why, "titan01:0: it is still so (page retirement pending on titan01:0)");
    w.conditions("titan01", vec![sticky("titan01", 0)]);
    for (presence, said) in [(Presence::Lost, "gone"), (Presence::Unknown, "not answer")] {
        let mut facts = facts("titan01", 4, "boot-1");
        facts.gpus[0].presence = presence;
        w.report("titan01", Report::Facts { facts }).unwrap();
        assert!(refused(&mut w).contains(said));
    }
    w.report("titan01", Report::Facts { facts: facts("titan01", 4, "boot-1") }).unwrap();
    let silent_for = Millis::secs(12);
    let (node, liveness) = (node("titan01"), Liveness::Suspect);
    let silence = Command::Node(NodeCommand::SetLiveness { node, liveness, silent_for });
    w.give(crate::Actor::controller(), silence).unwrap();
    assert!(refused(&mut w).contains("silent"));
    let command = Command::Gpu(GpuCommand::Clear { gpu: gpu("titan09", 0), reason: String::new() });
    assert!(matches!(w.give(person("root"), command), Err(Rejection::NotFound { .. })));
}

#[test]
fn closed_nodes_take_nothing_new() {
    let mut w = World::with(&["titan01"]);
    let reason = "maintenance".to_owned();
    w.give(person("root"), Command::Node(NodeCommand::Cordon { node: node("titan01"), reason }))
        .unwrap();
    w.submit("ada", "a", plain(1)).unwrap();
    assert_eq!(w.schedule(), 0);
    assert!(w.place("a", "titan01", &[0]).is_err());
    w.give(person("root"), Command::Node(NodeCommand::Uncordon { node: node("titan01") })).unwrap();
    assert_eq!(w.schedule(), 1);
}

#[test]
fn how_a_node_holds_people_to_reservations_is_an_admins_word() {
    let mut w = World::with(&["titan01"]);
    let wanted = |w: &World| w.fsm.desired(&node("titan01"), &[]).enforce;
    assert_eq!(wanted(&w), Some(Enforcement::Off), "a node nobody gave an order only observes");
    let order = |mode| Command::Node(NodeCommand::Enforce { node: node("titan01"), mode });
    let denied = w.give(person("ada"), order(Enforcement::On));
    assert!(matches!(denied, Err(Rejection::Denied { .. })), "{denied:?}");
    w.give(person("root"), order(Enforcement::On)).unwrap();
    assert_eq!(wanted(&w), Some(Enforcement::On));
    let ordered = w.fsm.node(&node("titan01")).unwrap().enforce.clone().unwrap();
    assert_eq!(ordered.by, "root");
    w.pass(Millis::minutes(1));
    w.give(person("root"), order(Enforcement::On)).unwrap();
    assert_eq!(w.fsm.node(&node("titan01")).unwrap().enforce.as_ref(), Some(&ordered));
    let again = crate::state::Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.desired(&node("titan01"), &[]).enforce, Some(Enforcement::On));
    w.give(person("root"), order(Enforcement::Off)).unwrap();
    assert_eq!(wanted(&w), Some(Enforcement::Off));
    let unknown =
        Command::Node(NodeCommand::Enforce { node: node("titan09"), mode: Enforcement::Off });
    assert!(matches!(w.give(person("root"), unknown), Err(Rejection::NotFound { .. })));
}

#[test]
fn roots_switch_only_lowers_what_was_ordered() {
    use Enforcement::{Off, On, Warn};
    for (order, switch, found) in
        [(On, On, On), (On, Warn, Warn), (Warn, On, Warn), (Off, On, Off), (On, Off, Off)]
    {
        assert_eq!(order.at_most(switch), found, "{order:?} {switch:?}");
    }
}

#[test]
fn the_clock_goes_back_only_by_an_operators_word() {
    let mut w = World::with(&["titan01"]);
    let right = w.now;
    w.now = w.now + Millis::days(3_650);
    w.submit("ada", "a", plain(1)).unwrap();
    w.now = right;
    w.submit("ada", "b", plain(1)).unwrap();
    assert_eq!(w.fsm.now(), right + Millis::days(3_650));
    w.give(person("root"), Command::Cluster(ClusterCommand::ResetClock { to: right })).unwrap();
    assert_eq!(w.fsm.now(), right);
    assert!(w.fsm.job(&job("b")).is_some());
}

#[test]
fn a_story_says_by_when_a_drain_ends_what_is_left() {
    let mut w = World::with(&["titan01"]);
    let mut told = |deadline| {
        let (node, reason) = (node("titan01"), "driver".to_owned());
        w.give(person("root"), Command::Node(NodeCommand::Drain { node, reason, deadline }))
            .unwrap();
        let (now, drained) = (w.now, w.last.first().unwrap().clone());
        assert_eq!(drained.objects(), ["titan01"]);
        drained.told(now, &NamesAt::now(&w.fsm))
    };
    let begins = "titan01 is to be emptied, by root: driver";
    assert_eq!(told(None), begins);
    let now = super::world::START;
    assert_eq!(told(Some(now)), format!("{begins}; what runs there is stopped at once"));
    let later = Some(now + Millis::minutes(90));
    assert_eq!(told(later), format!("{begins}; what still runs in 1h 30m is stopped"));
}

#[test]
fn what_was_told_once_can_be_cleared_and_told_again() {
    let mut w = World::with(&["titan01"]);
    let kind = "xid_13".to_owned();
    let mut xid = Condition { kind, ..bad("titan01", 0, Severity::Notice) };
    xid.reason = "XID 13: a program's fault".to_owned();
    w.conditions("titan01", vec![xid.clone()]);
    w.conditions("titan01", vec![xid.clone()]);
    assert!(w.said().is_empty(), "{:?}", w.said());
    // A second one of the kind: somebody else may have the GPU by now.
    xid.reason.push_str(", 2 times in a day");
    w.conditions("titan01", vec![xid]);
    let said = w.said();
    assert!(said.len() == 1 && said[0].contains("2 times in a day"), "{said:?}");
    let command =
        Command::Gpu(GpuCommand::Clear { gpu: gpu("titan01", 0), reason: "looked at".to_owned() });
    w.give(person("root"), command).unwrap();
    assert_eq!(w.fsm.desired(&node("titan01"), &[]).clear.len(), 1);
    // What is only measured says nothing again.
    let measured = |reason: &str| {
        let reason = reason.to_owned();
        Condition { reason, ..bad("titan01", 1, Severity::Notice) }
    };
    w.conditions("titan01", vec![measured("88 degrees")]);
    w.conditions("titan01", vec![measured("89 degrees")]);
    assert!(w.said().is_empty(), "{:?}", w.said());
}

#[test]
fn nobody_joins_with_a_token_that_was_withdrawn() {
    let mut w = World::with(&["titan01"]);
    let id = TokenId::parse("token-1").unwrap();
    let (names, secret_sha256) = (vec![node("titan02")], "0".repeat(64));
    let token = CreateJoinToken { id: id.clone(), secret_sha256, names, ttl: Millis::hours(1) };
    w.give(person("root"), Command::Token(TokenCommand::ForNodes(token))).unwrap();
    let withdraw = || Command::Token(TokenCommand::Withdraw { token: id.clone() });
    assert!(matches!(w.give(person("ada"), withdraw()), Err(Rejection::Denied { .. })));
    w.give(person("root"), withdraw()).unwrap();
    assert_eq!(w.said(), ["token withdrawn by root"]);
    assert!(matches!(w.give(person("root"), withdraw()), Err(Rejection::NotFound { .. })));
    let machine = MachineIdentity { machine_id: "m".to_owned(), dmi_uuid: String::new() };
    let joining = Actor { method: AuthMethod::JoinToken, ..agent("titan02") };
    let redeem =
        Command::Node(NodeCommand::Join { id: id.clone(), node: node("titan02"), machine });
    assert!(matches!(w.give(joining, redeem), Err(Rejection::TokenRefused { .. })));
}

#[test]
fn a_job_on_a_silent_node_says_so_beside_what_was_known() {
    let mut w = World::with(&["titan01", "titan02"]);
    let spec = training();
    w.run("a", spec, "titan01", &[0]);
    let reason = |w: &World| {
        let plan = crate::scheduler::plan(&w.fsm);
        let reason = crate::view::job::job(&w.fsm, &plan, w.fsm.job(&job("a")).unwrap(), None);
        reason.map(|reason| reason.text(&NamesAt::now(&w.fsm)))
    };
    assert_eq!(reason(&w), None, "nothing is to be said of a job that runs");
    let silent = |w: &mut World, liveness| {
        let (node, silent_for) = (node("titan01"), Millis::secs(90));
        let command = Command::Node(NodeCommand::SetLiveness { node, liveness, silent_for });
        w.give(crate::Actor::controller(), command).unwrap();
    };
    silent(&mut w, Liveness::Suspect);
    assert_eq!(reason(&w).unwrap(), "titan01 is silent");
    silent(&mut w, Liveness::Unreachable);
    assert_eq!(
        reason(&w).unwrap(),
        "titan01 is unreachable: it is not known whether the job still runs"
    );
    let drain = Command::Node(NodeCommand::Drain {
        node: node("titan01"),
        reason: "new fans".to_owned(),
        deadline: None,
    });
    w.give(person("root"), drain).unwrap();
    let told = reason(&w).unwrap();
    let begins = "titan01 is unreachable: it is not known whether the job still runs; ";
    assert!(told.starts_with(begins) && told.contains("is being drained"), "{told}");
    silent(&mut w, Liveness::Ready);
    assert!(!reason(&w).unwrap().contains("unreachable"));
}

#[test]
fn the_driver_of_a_drained_node_is_let_go_of_which_is_no_fault_of_its_gpus() {
    let mut w = World::with(&["titan01"]);
    let ordered = |w: &World| w.fsm.desired(&node("titan01"), &[]).release_driver;
    let drain = || {
        let reason = "new driver".to_owned();
        Command::Node(NodeCommand::Drain { node: node("titan01"), reason, deadline: None })
    };
    let said = World::said;
    assert!(!ordered(&w));
    w.give(person("root"), drain()).unwrap();
    assert!(ordered(&w), "its agent knows best when nothing is left");
    let mut released = facts("titan01", 4, "boot-1");
    released.driver_released = true;
    for gpu in &mut released.gpus {
        gpu.presence = Presence::Unknown;
    }
    w.report("titan01", Report::Facts { facts: released.clone() }).unwrap();
    let once = "titan01: nothing is left there: its GPU driver is released and can be upgraded";
    assert_eq!(said(&w), [once]);
    w.report("titan01", Report::Facts { facts: released }).unwrap();
    assert!(said(&w).is_empty());
    let clear = Command::Gpu(GpuCommand::Clear { gpu: gpu("titan01", 0), reason: String::new() });
    let refused = w.give(person("root"), clear).unwrap_err().to_string();
    assert!(refused.contains("uncordon its node first"), "{refused}");
    let known = w.fsm.node(&node("titan01")).unwrap();
    assert!(w.fsm.reboot_waits_for(known).is_empty(), "it may reboot all the same");
    w.give(person("root"), Command::Node(NodeCommand::Uncordon { node: node("titan01") })).unwrap();
    assert!(!ordered(&w));
    w.submit("ada", "a", plain(3)).unwrap();
    assert_eq!(w.schedule(), 0, "nobody knows yet how they are");
    let mut back = facts("titan01", 4, "boot-1");
    back.gpus[3].presence = Presence::Lost;
    w.report("titan01", Report::Facts { facts: back }).unwrap();
    let lost = format!("titan01: {} is lost", gpu("titan01", 3));
    assert_eq!(said(&w), ["titan01: its GPU driver is taken up again".to_owned(), lost]);
    assert_eq!(w.schedule(), 1);
}
