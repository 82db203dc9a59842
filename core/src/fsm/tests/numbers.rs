//! What cards are called while others come and go.

use super::world::{World, agent, facts, gpu, node, person, plain, res};
use crate::command::{Command, GpuCommand, NodeCommand, Report, ReservationCommand};
use crate::event::Event;
use crate::gpu::Presence;
use crate::name::GpuUuid;
use crate::node::NodeFacts;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

/// The node with these cards, as the driver counts them: (card, slot).
fn cards(cards: &[(&str, u32)], boot: &str) -> NodeFacts {
    let mut facts = facts("titan01", u32::try_from(cards.len()).unwrap(), boot);
    for (index, (gpu, (card, slot))) in (0..).zip(facts.gpus.iter_mut().zip(cards)) {
        gpu.uuid = uuid(card);
        gpu.pci_bus_id = format!("0000:{slot:02x}:00.0");
        gpu.driver_index = Some(index);
    }
    facts
}

fn uuid(card: &str) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{card}")).unwrap()
}

/// The node boots with these cards.
fn boot(w: &mut World, there: &[(&str, u32)]) -> Result<Reply, Rejection> {
    w.now = w.now + Millis::minutes(5);
    let boot = format!("boot-{}", w.fsm.applied());
    let facts = Box::new(cards(there, &boot));
    w.give(agent("titan01"), Command::Node(NodeCommand::Register { node: node("titan01"), facts }))
}

/// `0=a 1=b`, with a `-` before those that are lost.
fn names(w: &World) -> String {
    let titan = node("titan01");
    let one = |gpu: &crate::gpu::Gpu| {
        let lost = if gpu.presence == Presence::Lost { "-" } else { "" };
        format!("{}={lost}{}", gpu.index, gpu.uuid.as_str().trim_start_matches("GPU-"))
    };
    w.fsm.gpus_of(&titan).map(one).collect::<Vec<_>>().join(" ")
}

fn forget(w: &mut World, card: &str, replace: bool) -> Result<Reply, Rejection> {
    let (gpu, reason) = (uuid(card), "broken".to_owned());
    w.give(person("root"), Command::Gpu(GpuCommand::Forget { gpu, reason, replace }))
}

fn why_not(w: &mut World, card: &str) -> String {
    forget(w, card, false).unwrap_err().to_string()
}

const THREE: [(&str, u32); 3] = [("a", 1), ("b", 2), ("c", 3)];

fn three() -> World {
    let mut w = World::with(&[]);
    boot(&mut w, &THREE).unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c");
    w
}

#[test]
fn a_card_keeps_its_number_when_another_disappears_at_boot() {
    let mut w = three();
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c");
    let b = w.fsm.gpu(&uuid("b")).unwrap();
    assert_eq!(b.driver_index, Some(0), "what nvidia-smi says there");
    assert_eq!(w.fsm.gpu_named("titan01", 0).unwrap().uuid, uuid("a"));
    boot(&mut w, &THREE).unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c");
}

#[test]
fn a_card_takes_its_number_along_when_the_buses_are_counted_anew() {
    let mut w = three();
    boot(&mut w, &[("b", 1), ("c", 2)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c");
}

#[test]
fn a_new_card_takes_a_number_that_nobody_has() {
    let mut w = three();
    boot(&mut w, &[("d", 0), ("a", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c 3=d");
    boot(&mut w, &[("d", 0), ("b", 2), ("c", 3)]).unwrap();
    boot(&mut w, &[("d", 0), ("b", 2), ("c", 3), ("e", 9)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c 3=d 4=e");
}

#[test]
fn the_card_in_its_slot_takes_the_number_of_a_forgotten_one() {
    let mut w = three();
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c 3=f");
    let before = w.fsm.now();
    w.pass(Millis::hours(1));
    forget(&mut w, "a", false).unwrap();
    assert_eq!(names(&w), "0=f 1=b 2=c");
    assert_eq!(
        w.said(),
        [
            "titan01:0 was forgotten by root: broken",
            "the card that was titan01:3 is titan01:0 from now on"
        ]
    );
    let name = |card: &str, at| w.fsm.gpu_name_at(&uuid(card), at).unwrap().to_string();
    assert_eq!([name("a", before), name("f", before)], ["titan01:0", "titan01:3"]);
    assert_eq!(name("f", w.fsm.now()), "titan01:0");
    assert_eq!(w.fsm.gpu_name(&uuid("a")), None);
}

#[test]
fn a_forgotten_card_stays_forgotten_until_it_is_there_again() {
    let mut w = three();
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    forget(&mut w, "a", false).unwrap();
    assert_eq!(names(&w), "1=b 2=c");
    // Its agent still counts it among the lost.
    let mut facts = cards(&THREE, &w.fsm.node(&node("titan01")).unwrap().facts.boot_id.clone());
    facts.gpus[0].presence = Presence::Lost;
    w.report("titan01", Report::Facts { facts: facts.clone() }).unwrap();
    assert_eq!(names(&w), "1=b 2=c");
    let told = w.fsm.desired(&node("titan01"), &[]);
    assert!(told.forgotten.contains(&uuid("a")));
    assert_eq!(told.numbers.into_values().collect::<Vec<_>>(), [1, 2]);
    facts.gpus[0].presence = Presence::Present;
    w.report("titan01", Report::Facts { facts }).unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c");
    assert!(w.fsm.desired(&node("titan01"), &[]).forgotten.is_empty());
}

#[test]
fn an_announced_replacement_takes_the_number_when_it_is_found() {
    let mut w = three();
    forget(&mut w, "a", true).unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c");
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c", "another machine has its card out for a week");
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=f 1=b 2=c");
}

#[test]
fn a_card_that_is_back_was_not_replaced() {
    let mut w = three();
    forget(&mut w, "a", true).unwrap();
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    boot(&mut w, &THREE).unwrap();
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c 3=f");
}

#[test]
fn what_is_there_or_held_is_not_forgotten() {
    let mut w = three();
    assert_eq!(why_not(&mut w, "a"), "titan01:0 cannot be forgotten: it is in its machine");
    let command =
        Command::Gpu(GpuCommand::Forget { gpu: uuid("a"), reason: " ".to_owned(), replace: true });
    assert!(w.give(person("root"), command.clone()).unwrap_err().to_string().starts_with("reason"));
    assert!(matches!(w.give(person("ada"), command), Err(Rejection::Denied { .. })));
    let mut spec = plain(1);
    spec.gpus.uuids = vec![uuid("a")];
    w.submit("ada", "j", spec).unwrap();
    assert_eq!(w.schedule(), 1);
    let id = w.fsm.allocations().keys().next().unwrap().clone();
    w.start(&id);
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    let held = why_not(&mut w, "a");
    assert!(held.starts_with("titan01:0 cannot be forgotten: job job-j of ada holds it"), "{held}");
    assert_eq!(names(&w), "0=-a 1=b 2=c");
}

/// One GPU of the node in two hours.
fn reserve(w: &mut World, name: &str, card: Option<&str>, hours: u64) -> Result<Reply, Rejection> {
    let (starts_at, owner) = (w.now + Millis::hours(hours), "ada");
    let wish = crate::command::CreateReservation::plain(
        res(name),
        super::world::user(owner),
        crate::reservation::GpuRequest {
            count: 1,
            uuids: card.map(uuid).into_iter().collect(),
            ..Default::default()
        },
        crate::time::Window { starts_at, ends_at: starts_at + Millis::hours(1) },
    );
    w.give(person(owner), Command::Reservation(ReservationCommand::Create(wish)))
}

#[test]
fn promises_of_a_forgotten_card_go_to_the_one_in_its_slot_or_elsewhere() {
    let mut w = three();
    // Far ahead, so that no agent has them in its hands.
    for (name, card, hours) in [("r1", Some("a"), 500), ("r2", None, 500), ("r3", Some("a"), 600)] {
        reserve(&mut w, name, card, hours).unwrap();
    }
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    let why = why_not(&mut w, "a");
    assert_eq!(
        why,
        "titan01:0 cannot be forgotten: reservation res-r1 of ada names it; reservation res-r3 of ada names it"
    );
    assert!(w.fsm.reservation(&res("r1")).unwrap().gpus == [uuid("a")], "nothing was moved");
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    forget(&mut w, "a", false).unwrap();
    for name in ["r1", "r3"] {
        let r = w.fsm.reservation(&res(name)).unwrap();
        assert_eq!((r.gpus[0].clone(), r.wish.uuids[0].clone()), (uuid("f"), uuid("f")));
    }
    boot(&mut w, &[("f", 1), ("c", 3)]).unwrap();
    forget(&mut w, "b", false).unwrap();
    assert_eq!(w.fsm.reservation(&res("r2")).unwrap().gpus, [uuid("c")], "any GPU was wished");
}

#[test]
fn a_node_that_joins_with_two_cards_of_one_number_or_slot_is_refused() {
    let mut w = World::with(&[]);
    let join = |w: &mut World, change: fn(&mut NodeFacts)| {
        let mut facts = cards(&THREE, "boot-1");
        change(&mut facts);
        let facts = Box::new(facts);
        let command = Command::Node(NodeCommand::Register { node: node("titan01"), facts });
        w.give(agent("titan01"), command).map_err(|refusal| refusal.to_string())
    };
    let number = join(&mut w, |facts| facts.gpus[2].driver_index = Some(1)).unwrap_err();
    assert!(number.contains("two GPUs with the number 1: GPU-b and GPU-c"), "{number}");
    let slot = |facts: &mut NodeFacts| facts.gpus[2].pci_bus_id = "0000:01:00.0".to_owned();
    let slot = join(&mut w, slot).unwrap_err();
    assert!(slot.contains("two GPUs with the PCI address 0000:01:00.0: GPU-a and GPU-c"), "{slot}");
    join(&mut w, |_| ()).unwrap();
}

#[test]
fn a_card_that_moves_to_another_machine_leaves_its_number_there() {
    let mut w = three();
    w.boot("titan02", "boot-1").unwrap();
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    let before = w.fsm.now();
    w.pass(Millis::hours(1));
    let mut there = facts("titan02", 4, "boot-1");
    there.gpus[3].uuid = uuid("a");
    w.report("titan02", Report::Facts { facts: there }).unwrap();
    let a = uuid("a");
    assert_eq!(w.fsm.gpu_name(&a).unwrap().to_string(), "titan02:4");
    assert_eq!(w.fsm.gpu_name_at(&a, before).unwrap().to_string(), "titan01:0");
    assert_eq!(w.fsm.gpu(&gpu("titan02", 3)).unwrap().presence, Presence::Lost);
    assert_eq!(names(&w), "1=b 2=c");
    assert!(w.heard.iter().any(|event| matches!(event, Event::GpuRenamed { .. })));
}

#[test]
fn a_card_that_was_there_before_is_no_successor_whatever_its_address() {
    for replace in [false, true] {
        let mut w = three();
        reserve(&mut w, "r1", None, 500).unwrap();
        if replace {
            forget(&mut w, "a", true).unwrap();
        }
        // The first card is out, and the buses are counted again: the next one has its address.
        boot(&mut w, &[("b", 1), ("c", 2)]).unwrap();
        assert_eq!(names(&w), "0=-a 1=b 2=c");
        if !replace {
            forget(&mut w, "a", false).unwrap();
            assert_eq!(names(&w), "1=b 2=c");
        }
        boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
        assert_eq!(names(&w), "0=f 1=b 2=c", "announced: {replace}");
    }
}

#[test]
fn a_boot_with_the_old_card_in_its_slot_calls_a_replacement_off() {
    let mut w = three();
    forget(&mut w, "a", true).unwrap();
    boot(&mut w, &THREE).unwrap();
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c 3=f");
}

#[test]
fn what_a_forgotten_card_was_like_is_not_taken_again() {
    let mut w = three();
    let gone = |uuid: GpuUuid| {
        let subject = crate::health::Subject::Gpu(uuid);
        let kind = "gpu_lost".to_owned();
        let bad = super::world::bad("titan01", 0, crate::health::Severity::Fatal);
        crate::health::Condition { subject, kind, sticky: true, ..bad }
    };
    boot(&mut w, &[("b", 2), ("c", 3)]).unwrap();
    w.conditions("titan01", vec![gone(uuid("a"))]);
    forget(&mut w, "a", false).unwrap();
    assert!(w.said().iter().any(|said| said.contains("gpu_lost is over")), "{:?}", w.said());
    // Its agent has not heard of it yet.
    w.conditions("titan01", vec![gone(uuid("a")), gone(uuid("b"))]);
    let conditions = &w.fsm.node(&node("titan01")).unwrap().conditions;
    assert_eq!(conditions.len(), 1, "{conditions:?}");
}

#[test]
fn the_names_of_a_removed_node_are_remembered_and_its_cards_welcome() {
    let mut w = three();
    let before = w.fsm.now();
    w.pass(Millis::hours(1));
    let (node, reason) = (node("titan01"), "moved".to_owned());
    let command = crate::command::AccessCommand::RemoveNode { node, reason };
    w.give(person("root"), Command::Access(command)).unwrap();
    assert_eq!(w.fsm.gpu_name_at(&uuid("b"), before).unwrap().to_string(), "titan01:1");
    let mut facts = cards(&THREE, "boot-9");
    facts.gpus[1].presence = Presence::Unknown;
    let facts = Box::new(facts);
    w.give(
        agent("titan01"),
        Command::Node(NodeCommand::Register { node: super::world::node("titan01"), facts }),
    )
    .unwrap();
    assert_eq!(names(&w), "0=a 1=b 2=c");
}

#[test]
fn a_job_that_names_both_cards_stands_in_the_way() {
    let mut w = three();
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    let mut spec = plain(2);
    spec.gpus.uuids = vec![uuid("a"), uuid("f")];
    w.submit("ada", "j", spec).unwrap();
    assert_eq!(
        why_not(&mut w, "a"),
        "titan01:0 cannot be forgotten: job job-j of ada waits for it"
    );
}

#[test]
fn a_replacement_is_made_once_nothing_holds_the_old_card_any_more() {
    let mut w = three();
    let mut spec = plain(1);
    spec.gpus.uuids = vec![uuid("a")];
    w.submit("ada", "j", spec).unwrap();
    assert_eq!(w.schedule(), 1);
    let id = w.fsm.allocations().keys().next().unwrap().clone();
    w.start(&id);
    forget(&mut w, "a", true).unwrap();
    boot(&mut w, &[("f", 1), ("b", 2), ("c", 3)]).unwrap();
    assert_eq!(names(&w), "0=-a 1=b 2=c 3=f", "its lease is not proven empty");
    w.release("titan01");
    assert_eq!(names(&w), "0=f 1=b 2=c");
}
