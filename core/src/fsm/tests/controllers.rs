//! Controllers: admitted by token, each id once, never fewer than one.

use super::world::{World, agent, person};
use crate::actor::{Actor, AuthMethod};
use crate::command::{
    AdmitController, ClusterCommand, Command, ControllerCommand, CreateControllerToken,
    TokenCommand,
};
use crate::controller::CONTROLLERS_MAX;
use crate::id::{ClusterId, TokenId};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

pub(super) fn first(address: &str) -> AdmitController {
    let (address, key_sha256) = (address.to_owned(), String::new());
    AdmitController { id: 1, address, token: None, key_sha256 }
}

/// A controller that shows a token.
pub(super) fn joining() -> Actor {
    Actor { method: AuthMethod::JoinToken, ..Actor::controller() }
}

fn token(w: &mut World, name: &str) -> TokenId {
    let id = TokenId::parse(&format!("token-{name}")).unwrap();
    let (secret_sha256, ttl) = ("a".repeat(64), Millis::hours(1));
    let wish = CreateControllerToken { id: id.clone(), secret_sha256, ttl };
    w.give(person("root"), Command::Token(TokenCommand::ForController(wish))).unwrap();
    id
}

fn wish(id: u64, token: &TokenId, key: char) -> AdmitController {
    let address = format!("10.0.0.{id}:7443");
    let key_sha256 = key.to_string().repeat(64);
    AdmitController { id, address, token: Some(token.clone()), key_sha256 }
}

fn join(w: &mut World, id: u64, token: &TokenId, key: char) -> Result<Reply, Rejection> {
    w.give(joining(), Command::Controller(ControllerCommand::Admit(wish(id, token, key))))
}

fn begun() -> World {
    let mut w = World::with(&["titan01"]);
    w.give(
        Actor::controller(),
        Command::Controller(ControllerCommand::Admit(first("10.0.0.1:7443"))),
    )
    .unwrap();
    w
}

#[test]
fn a_token_admits_one_controller_and_answers_its_retry_with_the_same_id() {
    let mut w = begun();
    let t = token(&mut w, "1");
    assert_eq!(join(&mut w, 2, &t, 'b').unwrap(), Reply::ControllerAdmitted { id: 2 });
    // The answer was lost: the edge has drawn the next id meanwhile.
    assert_eq!(join(&mut w, 3, &t, 'b').unwrap(), Reply::ControllerAdmitted { id: 2 });
    let other = join(&mut w, 3, &t, 'c').unwrap_err();
    assert!(matches!(other, Rejection::TokenRefused { .. }), "{other}");
    assert_eq!(w.fsm.roster().members().len(), 2);
    w.pass(Millis::hours(2));
    assert!(join(&mut w, 3, &t, 'b').is_err(), "expired");
}

#[test]
fn an_id_is_never_given_again() {
    let mut w = begun();
    let (a, b, c) = (token(&mut w, "1"), token(&mut w, "2"), token(&mut w, "3"));
    join(&mut w, 2, &a, 'b').unwrap();
    let taken = join(&mut w, 2, &b, 'c').unwrap_err();
    assert!(matches!(taken, Rejection::IdTaken { .. }), "{taken}");
    w.give(person("root"), Command::Controller(ControllerCommand::Remove { id: 2 })).unwrap();
    assert!(w.fsm.roster().was_removed(2) && !w.fsm.roster().was_removed(3));
    assert_eq!(w.fsm.roster().next_id(), 3);
    assert!(join(&mut w, 2, &b, 'c').is_err(), "the id of a removed one");
    let again = join(&mut w, 3, &a, 'b').unwrap_err();
    assert!(again.to_string().contains("removed"), "its own token does not bring it back: {again}");
    assert_eq!(join(&mut w, 3, &c, 'b').unwrap(), Reply::ControllerAdmitted { id: 3 });
}

#[test]
fn two_controllers_never_share_an_address_and_the_old_one_is_named() {
    let mut w = begun();
    let (a, b) = (token(&mut w, "1"), token(&mut w, "2"));
    join(&mut w, 2, &a, 'b').unwrap();
    let mut wiped = wish(3, &b, 'c');
    wiped.address = "10.0.0.2:7443".to_owned();
    let refused =
        w.give(joining(), Command::Controller(ControllerCommand::Admit(wiped))).unwrap_err();
    assert!(refused.to_string().contains("fleet controller remove 2"), "{refused}");
}

#[test]
fn the_last_controller_stays_and_there_is_an_upper_bound() {
    let mut w = begun();
    let last = w
        .give(person("root"), Command::Controller(ControllerCommand::Remove { id: 1 }))
        .unwrap_err();
    assert!(matches!(last, Rejection::BreaksQuorum { .. }), "{last}");
    let unknown = w
        .give(person("root"), Command::Controller(ControllerCommand::Remove { id: 9 }))
        .unwrap_err();
    assert!(matches!(unknown, Rejection::NotFound { .. }), "{unknown}");
    for id in 2..=CONTROLLERS_MAX as u64 {
        let t = token(&mut w, &format!("{id}"));
        join(&mut w, id, &t, 'b').unwrap();
    }
    let t = token(&mut w, "more");
    let many = join(&mut w, CONTROLLERS_MAX as u64 + 1, &t, 'b').unwrap_err();
    assert!(matches!(many, Rejection::LimitReached { .. }), "{many}");
}

#[test]
fn only_admins_make_tokens_and_only_tokens_admit() {
    let mut w = begun();
    let t = token(&mut w, "1");
    let denied = |w: &mut World, actor: Actor, command: Command| {
        let refused = w.give(actor, command).unwrap_err();
        assert!(matches!(refused, Rejection::Denied { .. }), "{refused}");
    };
    denied(&mut w, person("ada"), Command::Controller(ControllerCommand::Remove { id: 1 }));
    denied(
        &mut w,
        agent("titan01"),
        Command::Controller(ControllerCommand::Admit(wish(2, &t, 'b'))),
    );
    denied(&mut w, person("root"), Command::Controller(ControllerCommand::Admit(wish(2, &t, 'b'))));
    // A second "first" one.
    denied(
        &mut w,
        Actor::controller(),
        Command::Controller(ControllerCommand::Admit(first("10.0.0.9:7443"))),
    );
    let mut young = World::with(&["titan01"]);
    let early = token(&mut young, "1");
    let refused = join(&mut young, 1, &early, 'b').unwrap_err();
    assert!(matches!(refused, Rejection::NotNow { .. }), "before the first one: {refused}");
    let unknown = TokenId::parse("token-none").unwrap();
    let refused = join(&mut w, 2, &unknown, 'b').unwrap_err();
    assert!(matches!(refused, Rejection::TokenRefused { .. }), "{refused}");
}

#[test]
fn a_restored_cluster_begins_with_one_controller_and_no_old_id() {
    let mut w = begun();
    let t = token(&mut w, "1");
    join(&mut w, 2, &t, 'b').unwrap();
    let cluster = w.fsm.cluster().cloned().unwrap_or(ClusterId::parse("fleet-test").unwrap());
    let incarnation = w.fsm.incarnation() + 1;
    w.give(Actor::controller(), Command::Cluster(ClusterCommand::Init { cluster, incarnation }))
        .unwrap();
    assert!(w.fsm.roster().members().is_empty() && w.fsm.roster().was_removed(1));
    let id = w.fsm.roster().next_id();
    let restored = AdmitController { id, ..first("10.0.0.1:7443") };
    w.give(Actor::controller(), Command::Controller(ControllerCommand::Admit(restored))).unwrap();
    assert_eq!(id, 3);
    assert!(w.fsm.roster().was_removed(1) && w.fsm.roster().was_removed(2));
}
