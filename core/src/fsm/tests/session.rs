//! Browsers log in and out.

use super::world::{World, agent, node, person, user};
use crate::access::{
    AccessEvent, CERTIFICATES_PER_HOLDER_MAX, CertificateHolder, LOGIN_CODE_LIFE, SESSION_LIFE,
    Vouching,
};
use crate::actor::{Actor, AuthMethod};
use crate::command::{AccessCommand, ClusterCommand, Command};
use crate::event::Event;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

fn give(w: &mut World, actor: Actor, command: AccessCommand) -> Result<Reply, Rejection> {
    w.give(actor, Command::Access(command))
}

/// A SHA-256 that differs from others by two digits.
fn hash(digits: &str) -> String {
    digits.repeat(32)
}

fn offer(w: &mut World, actor: Actor, name: &str, code: &str) -> Result<Reply, Rejection> {
    give(w, actor, AccessCommand::OfferLogin { user: user(name), sha256: hash(code) })
}

fn begin(w: &mut World, code: &str, session: &str) -> Result<Reply, Rejection> {
    let (sha256, session) = (hash(code), hash(session));
    give(w, Actor::controller(), AccessCommand::BeginSession { sha256, session })
}

fn code(reply: Result<Reply, Rejection>) -> &'static str {
    reply.map_or_else(|rejection| rejection.code(), |_| "accepted")
}

fn is_logged_in(w: &World, session: &str) -> bool {
    w.fsm.access().session(&hash(session), w.now).is_some()
}

/// ada's browser is logged in by session 5e.
fn logged_in() -> World {
    let mut w = World::with(&["titan01"]);
    offer(&mut w, person("ada"), "ada", "c0").unwrap();
    begin(&mut w, "c0", "5e").unwrap();
    w
}

#[test]
fn a_code_logs_in_once_and_for_as_long_as_a_certificate() {
    let mut w = logged_in();
    assert_eq!(w.fsm.access().session(&hash("5e"), w.now), Some(&user("ada")));
    assert_eq!(code(begin(&mut w, "c0", "5f")), "code_refused", "it was used");
    assert_eq!(code(begin(&mut w, "c9", "5f")), "code_refused", "nobody asked for it");
    w.now = w.now + SESSION_LIFE;
    assert!(!is_logged_in(&w, "5e"));
}

#[test]
fn a_code_is_good_for_a_minute_and_the_last_one_counts() {
    let mut w = World::with(&["titan01"]);
    offer(&mut w, person("ada"), "ada", "c0").unwrap();
    offer(&mut w, person("ada"), "ada", "c1").unwrap();
    assert_eq!(code(begin(&mut w, "c0", "5e")), "code_refused", "she asked for another one");
    w.now = w.now + LOGIN_CODE_LIFE;
    assert_eq!(code(begin(&mut w, "c1", "5e")), "code_refused", "it is too old");
    // What ran out is swept when somebody asks for one.
    offer(&mut w, person("bob"), "bob", "c2").unwrap();
    assert_eq!(w.fsm.access().login_codes.len(), 1);
}

#[test]
fn only_a_user_at_a_terminal_gets_a_code_and_only_a_controller_begins_a_session() {
    let mut w = logged_in();
    assert_eq!(code(offer(&mut w, person("bob"), "ada", "c1")), "denied");
    assert_eq!(code(offer(&mut w, person("root"), "ada", "c1")), "denied");
    assert_eq!(code(offer(&mut w, agent("titan01"), "ada", "c1")), "denied");
    let mut by_session = person("ada");
    by_session.method = AuthMethod::Session;
    by_session.serial = Some(hash("5e"));
    assert_eq!(code(offer(&mut w, by_session, "ada", "c1")), "denied", "it would never run out");
    offer(&mut w, person("ada"), "ada", "c1").unwrap();
    let (sha256, session) = (hash("c1"), hash("5f"));
    let by_ada = AccessCommand::BeginSession { sha256, session };
    assert_eq!(code(give(&mut w, person("ada"), by_ada)), "denied");
    for [code_digits, session] in [["c1", "x!"], ["c1", "5"]] {
        assert_eq!(code(begin(&mut w, code_digits, session)), "invalid_field");
    }
    assert_eq!(code(begin(&mut w, "c1", "5e")), "id_taken");
}

#[test]
fn a_session_is_worth_no_more_than_what_it_was_begun_with() {
    let mut w = World::with(&["titan01"]);
    let (holder, not_after) = (CertificateHolder::User { name: user("ada") }, w.now + SESSION_LIFE);
    let (serial, via, authority) = ("0b".to_owned(), Some(node("titan01")), "pin".to_owned());
    let record = AccessCommand::RecordCertificate { serial, holder, not_after, via, authority };
    give(&mut w, agent("titan01"), record).unwrap();
    let mut ada = person("ada");
    (ada.method, ada.serial) = (AuthMethod::Certificate, Some("0b".to_owned()));
    offer(&mut w, ada.clone(), "ada", "c0").unwrap();
    begin(&mut w, "c0", "5e").unwrap();
    assert!(is_logged_in(&w, "5e") && !w.fsm.access().admin_through(&hash("5e")));
    offer(&mut w, ada.clone(), "ada", "c1").unwrap();
    let off = AccessCommand::SetVouching { node: node("titan01"), vouching: Vouching::Off };
    give(&mut w, person("root"), off).unwrap();
    assert!(!is_logged_in(&w, "5e"), "its node may not vouch any more");
    assert_eq!(code(begin(&mut w, "c1", "5f")), "code_refused");
    assert_eq!(code(offer(&mut w, ada, "ada", "c2")), "denied", "her certificate went too");
}

#[test]
fn who_is_revoked_or_disabled_is_logged_out_and_has_no_code() {
    let revoke = AccessCommand::RevokeUser { user: user("ada"), reason: "lost".to_owned() };
    let (name, reason) = (user("ada"), "has left".to_owned());
    let disable = AccessCommand::DisableUser { user: name, reason, transfer_to: None };
    for command in [revoke, disable] {
        let mut w = logged_in();
        offer(&mut w, person("ada"), "ada", "c1").unwrap();
        let before = w.fsm.access().version;
        give(&mut w, person("root"), command).unwrap();
        assert!(!is_logged_in(&w, "5e"));
        assert!(w.fsm.access().version > before, "who keeps a page open hears of it");
        assert_eq!(code(begin(&mut w, "c1", "5f")), "code_refused");
    }
}

#[test]
fn a_user_logs_out_one_browser_or_all_and_nobody_elses() {
    let mut w = logged_in();
    offer(&mut w, person("ada"), "ada", "c1").unwrap();
    begin(&mut w, "c1", "5f").unwrap();
    offer(&mut w, person("bob"), "bob", "c2").unwrap();
    begin(&mut w, "c2", "60").unwrap();
    let end = |name: &str, session: Option<&str>| {
        let (user, session) = (user(name), session.map(hash));
        AccessCommand::EndSessions { user, session }
    };
    assert_eq!(code(give(&mut w, person("bob"), end("ada", Some("5e")))), "denied");
    give(&mut w, person("bob"), end("bob", Some("5e"))).unwrap();
    assert!(is_logged_in(&w, "5e"), "it is not bob's");
    give(&mut w, person("ada"), end("ada", Some("5e"))).unwrap();
    assert!(!is_logged_in(&w, "5e") && is_logged_in(&w, "5f") && is_logged_in(&w, "60"));
    give(&mut w, person("ada"), end("ada", None)).unwrap();
    assert!(!is_logged_in(&w, "5f") && is_logged_in(&w, "60"));
    let ended = w.heard.iter().rev().find_map(|event| match event {
        Event::Access(AccessEvent::SessionsEnded { sessions, .. }) => Some(sessions.clone()),
        _ => None,
    });
    assert_eq!(ended, Some(vec![hash("5f")]));
    // Nothing to end is fine.
    give(&mut w, person("ada"), end("ada", None)).unwrap();
}

#[test]
fn a_restored_fleet_has_no_sessions() {
    let mut w = logged_in();
    offer(&mut w, person("ada"), "ada", "c1").unwrap();
    let cluster = w.fsm.cluster().unwrap().clone();
    let init = ClusterCommand::Init { cluster, incarnation: w.fsm.incarnation() + 1 };
    w.give(Actor::controller(), Command::Cluster(init)).unwrap();
    assert!(!is_logged_in(&w, "5e"), "nobody knows whether it had been ended");
    assert_eq!(code(begin(&mut w, "c1", "5f")), "code_refused");
}

#[test]
fn nobody_collects_sessions_without_end() {
    let mut w = World::with(&["titan01"]);
    for number in 0..=CERTIFICATES_PER_HOLDER_MAX {
        offer(&mut w, person("ada"), "ada", "c0").unwrap();
        let reply = begin(&mut w, "c0", &format!("{number:02x}"));
        let full = number == CERTIFICATES_PER_HOLDER_MAX;
        assert_eq!(code(reply), if full { "limit_reached" } else { "accepted" });
        w.now = w.now + Millis::secs(1);
    }
    w.now = w.now + SESSION_LIFE;
    offer(&mut w, person("ada"), "ada", "c0").unwrap();
    begin(&mut w, "c0", "ff").unwrap();
    assert_eq!(w.fsm.access().issued.len(), 1, "what ran out was swept");
}
