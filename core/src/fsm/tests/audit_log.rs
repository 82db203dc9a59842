//! Pruning the audit log: what may leave, and what stays on record of it.

use super::world::{World, agent, person};
use crate::actor::Actor;
use crate::audit::prune::{KEEP_MIN, Prune, Pruned};
use crate::command::{AuditCommand, Command};
use crate::event::Event;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::Fsm;
use crate::time::{Millis, Timestamp};

/// A fleet with some records, and a prune of the first three of them, which its time allows.
fn old_fleet() -> (World, Prune) {
    let mut w = World::with(&["titan01", "titan02", "titan03"]);
    let until = w.now;
    w.pass(KEEP_MIN);
    (w, Prune { through: 3, hash: "0a".repeat(32), until })
}

fn prune(w: &mut World, who: Actor, prune: &Prune) -> Result<Reply, Rejection> {
    w.give(who, Command::Audit(AuditCommand::Prune(prune.clone())))
}

#[test]
fn the_record_of_a_prune_is_the_anchor_of_what_stays() {
    let (mut w, asked) = old_fleet();
    let before = w.fsm.audit_head().0;
    let envelope = w.envelope(person("root"), Command::Audit(AuditCommand::Prune(asked.clone())));
    let anchor = w.apply(envelope).audit.unwrap();
    let pruned = Pruned {
        through: 3,
        hash: asked.hash.clone(),
        until: asked.until,
        records: 3,
        at: w.now,
        by: "root".to_owned(),
    };
    assert_eq!(Pruned::of(&anchor.body), Some(pruned.clone()));
    assert_eq!(w.fsm.audit_pruned(), Some(&pruned));
    assert_eq!(w.fsm.audit_head().0, before + 1, "numbers continue");
    let said =
        format!("root pruned 3 audit records, up to record 3; that record had hash {}", asked.hash);
    assert_eq!(w.said(), [said]);
    let again = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.audit_pruned(), Some(&pruned));

    // The next one counts from there; what left before changes nothing, and is no refusal.
    let next = Prune { through: 4, ..asked.clone() };
    prune(&mut w, person("root"), &next).unwrap();
    assert_eq!(w.fsm.audit_pruned().map(|p| (p.through, p.records)), Some((4, 1)));
    for old in [next, asked] {
        prune(&mut w, person("root"), &old).unwrap();
        assert!(w.last.is_empty());
    }
}

#[test]
fn a_young_record_stays() {
    let (mut w, asked) = old_fleet();
    let young = Prune { until: Timestamp(asked.until.0 + 3 * 3_600_000), ..asked.clone() };
    let said = prune(&mut w, person("root"), &young).unwrap_err().to_string();
    let reason = "the newest of these records is 29d 21h old, and each record is kept for 30d";
    assert_eq!(said, format!("no audit record was pruned: {reason}"));
    assert_eq!(w.fsm.audit_pruned(), None);
    // The fleet's time counts, to the millisecond.
    let at = |ms| w.fsm.check_prune(&asked, Timestamp((asked.until + KEEP_MIN).0 - ms));
    assert_eq!(at(0), Ok(3));
    assert!(at(1).is_err());
    w.pass(Millis::hours(3));
    prune(&mut w, person("root"), &young).unwrap();
}

#[test]
fn a_record_that_does_not_exist_or_has_another_hash_is_not_pruned() {
    let (mut w, asked) = old_fleet();
    let (newest, hash) = w.fsm.audit_head();
    let hash = hash.unwrap().to_owned();
    let refused = |w: &mut World, prune: Prune, why: &str| {
        let said = self::prune(w, person("root"), &prune).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert!(w.last.is_empty() && w.fsm.audit_pruned().is_none());
    };
    let beyond = Prune { through: newest + 1, ..asked.clone() };
    refused(&mut w, beyond, "the audit log has no record");
    refused(&mut w, Prune { hash: "0A".repeat(32), ..asked.clone() }, "64 hexadecimal digits");
    refused(&mut w, Prune { through: newest, ..asked.clone() }, "another hash");
    // The newest may go too, if it is old enough: the anchor follows it.
    prune(&mut w, person("root"), &Prune { through: newest, hash, ..asked }).unwrap();
    assert_eq!(w.fsm.audit_pruned().map(Pruned::first_kept), Some(w.fsm.audit_head().0));
}

#[test]
fn only_admins_prune() {
    let (mut w, asked) = old_fleet();
    for who in [person("ada"), agent("titan01"), Actor::controller()] {
        let refused = prune(&mut w, who, &asked).unwrap_err();
        assert_eq!(refused.code(), "denied");
    }
    assert_eq!(w.fsm.audit_pruned(), None);
    let event = Event::AuditPruned {
        through: 1,
        hash: String::new(),
        until: Timestamp(0),
        records: 1,
        by: String::new(),
    };
    assert!(event.objects().is_empty(), "it is about no object");
}
