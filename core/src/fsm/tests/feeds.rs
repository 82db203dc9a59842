//! Calendar feeds: who creates one, how many, and what ends them.

use super::world::{World, agent, node, person, user};
use crate::access::{AccessEvent, CertificateHolder, SESSION_LIFE, Vouching};
use crate::actor::{Actor, AuthMethod};
use crate::command::{AccessCommand, ClusterCommand, Command, CreateFeed};
use crate::event::Event;
use crate::feed::{FEEDS_PER_USER_MAX, FeedScope};
use crate::id::FeedId;
use crate::name::ProjectName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::Fsm;

fn give(w: &mut World, actor: Actor, command: AccessCommand) -> Result<Reply, Rejection> {
    w.give(actor, Command::Access(command))
}

fn id(name: &str) -> FeedId {
    FeedId::parse(&format!("feed-{name}")).unwrap()
}

/// A feed of that user whose hash follows from its name.
fn wish(name: &str, of: &str, scope: FeedScope) -> CreateFeed {
    let sha256 = format!("{:0>64}", hex::encode(name));
    CreateFeed { id: id(name), sha256, user: user(of), scope }
}

fn create(w: &mut World, actor: Actor, wish: CreateFeed) -> &'static str {
    code(give(w, actor, AccessCommand::CreateFeed(wish)))
}

fn remove(w: &mut World, actor: Actor, name: &str) -> &'static str {
    code(give(w, actor, AccessCommand::RemoveFeed { feed: id(name) }))
}

fn code(reply: Result<Reply, Rejection>) -> &'static str {
    reply.map_or_else(|rejection| rejection.code(), |_| "accepted")
}

fn known(w: &World) -> Vec<&str> {
    w.fsm.access().feeds.keys().map(FeedId::suffix).collect()
}

/// ada has feeds a and b, bob has feed c.
fn subscribed() -> World {
    let mut w = World::with(&["titan01"]);
    for (name, of) in [("a", "ada"), ("b", "ada"), ("c", "bob")] {
        assert_eq!(create(&mut w, person(of), wish(name, of, FeedScope::Mine)), "accepted");
    }
    w
}

#[test]
fn a_user_at_a_terminal_creates_feeds_for_nobody_else() {
    let mut w = subscribed();
    let d = || wish("d", "ada", FeedScope::Mine);
    for actor in [person("bob"), person("root"), agent("titan01"), Actor::controller()] {
        assert_eq!(create(&mut w, actor, d()), "denied");
    }
    let mut by_session = person("ada");
    by_session.method = AuthMethod::Session;
    assert_eq!(create(&mut w, by_session, d()), "denied", "a feed outlives a session");
    let mut same_id = d();
    same_id.id = id("a");
    assert_eq!(create(&mut w, person("ada"), same_id), "id_taken");
    let mut same_secret = d();
    same_secret.sha256 = wish("c", "bob", FeedScope::Mine).sha256;
    assert_eq!(create(&mut w, person("ada"), same_secret), "id_taken");
    let mut no_hash = d();
    no_hash.sha256 = "c0".to_owned();
    assert_eq!(create(&mut w, person("ada"), no_hash), "invalid_field");
    assert_eq!(known(&w), ["a", "b", "c"]);
    assert_eq!(w.fsm.access().feeds[&id("c")].user, user("bob"));
}

#[test]
fn a_feed_is_of_a_node_or_a_project_that_exists() {
    let mut w = subscribed();
    let project = |name: &str| FeedScope::Project { name: ProjectName::parse(name).unwrap() };
    let node = |name: &str| FeedScope::Node { name: node(name) };
    for (name, scope, answer) in [
        ("d", node("titan01"), "accepted"),
        ("e", node("titan09"), "not_found"),
        ("f", project("default"), "accepted"),
        ("g", project("nosuch"), "not_found"),
    ] {
        assert_eq!(create(&mut w, person("ada"), wish(name, "ada", scope)), answer, "{name}");
    }
}

#[test]
fn nobody_collects_feeds_without_end() {
    let mut w = World::with(&["titan01"]);
    for number in 0..=FEEDS_PER_USER_MAX {
        let answer =
            create(&mut w, person("ada"), wish(&number.to_string(), "ada", FeedScope::Mine));
        let full = number == FEEDS_PER_USER_MAX;
        assert_eq!(answer, if full { "limit_reached" } else { "accepted" }, "{number}");
    }
    assert_eq!(create(&mut w, person("bob"), wish("b", "bob", FeedScope::Mine)), "accepted");
    assert_eq!(remove(&mut w, person("ada"), "0"), "accepted");
    assert_eq!(create(&mut w, person("ada"), wish("again", "ada", FeedScope::Mine)), "accepted");
}

#[test]
fn its_user_or_an_admin_removes_a_feed() {
    let mut w = subscribed();
    assert_eq!(remove(&mut w, person("bob"), "a"), "denied");
    assert_eq!(remove(&mut w, person("ada"), "a"), "accepted");
    assert_eq!(remove(&mut w, person("root"), "c"), "accepted");
    assert_eq!(remove(&mut w, person("ada"), "a"), "not_found");
    assert_eq!(known(&w), ["b"]);
    let said = w.heard.iter().filter_map(|event| match event {
        Event::Access(event @ AccessEvent::FeedsEnded { .. }) => Some(event.to_string()),
        _ => None,
    });
    let said: Vec<String> = said.collect();
    assert_eq!(said[0], "calendar feeds of ada ended by ada: feed-a");
    assert_eq!(said[1], "calendar feeds of bob ended by root: feed-c");
}

#[test]
fn the_feeds_of_a_user_who_is_revoked_or_disabled_end() {
    let revoke = AccessCommand::RevokeUser { user: user("ada"), reason: "lost".to_owned() };
    let (name, reason) = (user("ada"), "has left".to_owned());
    let disable = AccessCommand::DisableUser { user: name, reason, transfer_to: None };
    for command in [revoke, disable] {
        let mut w = subscribed();
        // A user without any certificate too.
        w.fsm.seen(&user("ada"));
        give(&mut w, person("root"), command).unwrap();
        assert_eq!(known(&w), ["c"]);
    }
    let mut w = subscribed();
    let (name, reason) = (user("ada"), "has left".to_owned());
    let disable = AccessCommand::DisableUser { user: name, reason, transfer_to: None };
    give(&mut w, person("root"), disable).unwrap();
    assert_eq!(create(&mut w, person("ada"), wish("d", "ada", FeedScope::Mine)), "denied");
}

#[test]
fn a_feed_ends_with_the_word_of_the_node_that_vouched() {
    let mut w = subscribed();
    let (holder, not_after) = (CertificateHolder::User { name: user("ada") }, w.now + SESSION_LIFE);
    let (serial, via, authority) = ("0b".to_owned(), Some(node("titan01")), "pin".to_owned());
    let record = AccessCommand::RecordCertificate { serial, holder, not_after, via, authority };
    give(&mut w, agent("titan01"), record).unwrap();
    let mut ada = person("ada");
    (ada.method, ada.serial) = (AuthMethod::Certificate, Some("0b".to_owned()));
    assert_eq!(create(&mut w, ada, wish("d", "ada", FeedScope::Mine)), "accepted");
    let off = AccessCommand::SetVouching { node: node("titan01"), vouching: Vouching::Off };
    give(&mut w, person("root"), off).unwrap();
    assert_eq!(known(&w), ["a", "b", "c"], "only that one had the word of a node behind it");
}

#[test]
fn a_snapshot_has_the_feeds_and_a_restored_fleet_has_none() {
    let mut w = subscribed();
    let again = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.access().feeds, w.fsm.access().feeds);
    let cluster = w.fsm.cluster().unwrap().clone();
    let init = ClusterCommand::Init { cluster, incarnation: w.fsm.incarnation() + 1 };
    w.give(Actor::controller(), Command::Cluster(init)).unwrap();
    assert!(known(&w).is_empty(), "nobody knows whether they had been removed");
}
