//! Notices by mail: who sets what, and how far the leader came.

use super::world::{World, agent, person, user};
use crate::actor::Actor;
use crate::command::{Command, NoticeCommand};
use crate::event::Event;
use crate::notice::{ADDRESS_BYTES_MAX, MailTo, NoticeChange, NoticeKind, Told};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::Fsm;
use crate::time::Millis;

/// For the recorded log: what people want by mail, and what they heard.
pub(super) fn recorded(w: &mut World) {
    let (off, ada) = ([NoticeKind::Job].into(), user("ada"));
    let change = NoticeChange { off, ..to("ada@lab.example") };
    let set = NoticeCommand::Set { user: ada.clone(), change };
    give(w, person("ada"), set).unwrap();
    let until = w.fsm.audit_head().0;
    let told = Told { until, waiting: [(ada, until - 1)].into() };
    give(w, Actor::controller(), NoticeCommand::Told(told)).unwrap();
}

fn give(w: &mut World, actor: Actor, command: NoticeCommand) -> Result<Reply, Rejection> {
    w.give(actor, Command::Notice(command))
}

fn set(w: &mut World, actor: Actor, of: &str, change: NoticeChange) -> &'static str {
    code(give(w, actor, NoticeCommand::Set { user: user(of), change }))
}

fn code(reply: Result<Reply, Rejection>) -> &'static str {
    reply.map_or_else(|rejection| rejection.code(), |_| "accepted")
}

fn to(address: &str) -> NoticeChange {
    let mail_to = Some(MailTo::Address { address: address.to_owned() });
    NoticeChange { mail_to, ..NoticeChange::default() }
}

fn switched(on: &[NoticeKind], off: &[NoticeKind]) -> NoticeChange {
    let (on, off) = (on.iter().copied().collect(), off.iter().copied().collect());
    NoticeChange { mail_to: None, on, off }
}

/// The sentences of the events so far about notices.
fn said(w: &World) -> Vec<String> {
    let all = w.heard.iter();
    let of = all.filter_map(|event| match event {
        Event::Notice(event) => Some(event.to_string()),
        _ => None,
    });
    of.collect()
}

#[test]
fn people_set_their_own_and_admins_those_of_people_they_know() {
    let mut w = World::with(&["titan01"]);
    assert_eq!(set(&mut w, person("ada"), "ada", to("ada@lab.example")), "accepted");
    assert_eq!(set(&mut w, person("bob"), "ada", to("bob@lab.example")), "denied");
    for actor in [agent("titan01"), Actor::controller()] {
        assert_eq!(set(&mut w, actor, "ada", to("x@lab.example")), "denied");
    }
    assert_eq!(set(&mut w, person("root"), "nobody-knows", to("x@lab.example")), "not_found");
    let job = [NoticeKind::Job];
    assert_eq!(set(&mut w, person("ada"), "ada", switched(&[], &job)), "accepted");
    let ada = w.fsm.notices().of(&user("ada"));
    assert_eq!(ada.mail_to, MailTo::Address { address: "ada@lab.example".to_owned() });
    assert_eq!(ada.off, job.into());
    let before = w.fsm.audit_head().0;
    assert_eq!(set(&mut w, person("ada"), "ada", switched(&[], &job)), "accepted");
    assert_eq!(w.fsm.audit_head().0, before, "what changes nothing is on no record");
    let back = NoticeChange { mail_to: Some(MailTo::Default), ..switched(&job, &[]) };
    assert_eq!(set(&mut w, person("ada"), "ada", back), "accepted");
    assert!(w.fsm.notices().is_untouched(), "only people who want something else are kept");
    assert_eq!(
        said(&w),
        [
            "ada set the mail of ada: to ada@lab.example, all kinds; it was: to the default address, all kinds",
            "ada set the mail of ada: to ada@lab.example, without job; it was: to ada@lab.example, all kinds",
            "ada set the mail of ada: to the default address, all kinds; it was: to ada@lab.example, without job",
        ]
    );
}

#[test]
fn an_address_is_short_and_plain() {
    let mut w = World::with(&["titan01"]);
    let long = |bytes: usize| format!("{}@x", "a".repeat(bytes - 2));
    assert_eq!(set(&mut w, person("ada"), "ada", to(&long(ADDRESS_BYTES_MAX))), "accepted");
    let wrong = [String::new(), long(ADDRESS_BYTES_MAX + 1), "a@x\r\nBcc: all@x".to_owned()];
    for address in wrong {
        assert_eq!(set(&mut w, person("ada"), "ada", to(&address)), "invalid_field", "{address:?}");
    }
    let both = [NoticeKind::Job];
    assert_eq!(set(&mut w, person("ada"), "ada", switched(&both, &both)), "invalid_field");
}

#[test]
fn what_people_heard_never_goes_back_and_never_beyond_the_records() {
    let mut w = World::with(&["titan01"]);
    for name in ["r1", "r2"] {
        w.reserve("ada", name, 1, Millis::ZERO, Millis::hours(1)).unwrap();
    }
    let newest = w.fsm.audit_head().0;
    assert!(newest > 2, "{newest}");
    let mut tell = |until: u64, waiting: &[(&str, u64)]| {
        let waiting = waiting.iter().map(|(name, at)| (user(name), *at)).collect();
        code(give(&mut w, Actor::controller(), NoticeCommand::Told(Told { until, waiting })))
    };
    assert_eq!(tell(newest + 1, &[]), "invalid_field");
    assert_eq!(tell(2, &[("ada", 1)]), "accepted");
    assert_eq!(tell(1, &[]), "invalid_field");
    assert_eq!(tell(newest, &[("ada", 0)]), "invalid_field", "ada heard of 1");
    assert_eq!(tell(newest, &[("bob", 1)]), "invalid_field", "bob heard of 2");
    assert_eq!(tell(newest, &[("bob", newest)]), "invalid_field", "bob waits for nothing");
    assert_eq!(tell(newest, &[("ada", 1), ("bob", 2)]), "accepted");
    let told = w.fsm.notices().told();
    let of = |name: &str| told.of(&user(name));
    assert_eq!((of("ada"), of("bob"), of("eve"), told.by_all()), (1, 2, newest, 1));
    assert_eq!(w.fsm.audit_head().0, newest, "it makes no record of its own");
    let again = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.notices(), w.fsm.notices());
    let told = Told { until: newest, ..Told::default() };
    assert_eq!(code(give(&mut w, person("root"), NoticeCommand::Told(told))), "denied");
}
