//! The exchange of the certificate authority: its order, who has to move first, the ways back.

use std::collections::BTreeSet;

use super::controllers::first;
use super::world::{World, agent, node, person, user};
use crate::access::CertificateHolder;
use crate::actor::{Actor, AuthMethod};
use crate::authority::{Known, NODES_PER_COMMAND_MAX, Stage};
use crate::command::{
    AccessCommand, AdmitController, AuthorityCommand, Command, ControllerCommand,
    CreateControllerToken, TokenCommand,
};
use crate::id::TokenId;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::state::Fsm;
use crate::time::Millis;

fn known(pin: &str) -> Known {
    let pem = |what: &str| format!("-----{what} of {pin}-----");
    Known { pin: pin.to_owned(), certificate: pem("certificate"), vouched: pem("vouched") }
}

fn start(from: &str, to: &str) -> AuthorityCommand {
    AuthorityCommand::StartRotation { from: known(from), to: known(to) }
}

fn moving(ids: &[u64]) -> AuthorityCommand {
    AuthorityCommand::BeginMoving { controllers: ids.iter().copied().collect() }
}

fn finish(ids: &[u64]) -> AuthorityCommand {
    AuthorityCommand::FinishRotation { controllers: ids.iter().copied().collect() }
}

fn nodes(names: &[&str]) -> BTreeSet<crate::name::NodeName> {
    names.iter().map(|name| node(name)).collect()
}

fn moved(names: &[&str]) -> AuthorityCommand {
    AuthorityCommand::NoteMoved { nodes: nodes(names) }
}

fn skip(names: &[&str], users: bool) -> AuthorityCommand {
    AuthorityCommand::SkipInRotation { nodes: nodes(names), users }
}

/// For the golden files; nobody has a certificate that is waited for.
pub(super) fn a_whole_rotation_and_half_a_one() -> Vec<(Actor, AuthorityCommand)> {
    let (root, fleet) = (|| person("root"), Actor::controller);
    vec![
        (root(), start("pin-1", "pin-2")),
        (fleet(), moving(&[1])),
        (fleet(), moved(&["titan02"])),
        (root(), skip(&[], true)),
        (fleet(), finish(&[1])),
        (root(), start("pin-2", "pin-3")),
        (root(), AuthorityCommand::AbortRotation),
        (root(), start("pin-2", "pin-4")),
        (fleet(), moving(&[1])),
    ]
}

fn give(w: &mut World, actor: Actor, command: AuthorityCommand) -> Result<Reply, Rejection> {
    w.give(actor, Command::Authority(command))
}

fn by_root(w: &mut World, command: AuthorityCommand) -> Result<Reply, Rejection> {
    give(w, person("root"), command)
}

fn by_fleet(w: &mut World, command: AuthorityCommand) -> Result<Reply, Rejection> {
    give(w, Actor::controller(), command)
}

fn certify(
    w: &mut World,
    holder: CertificateHolder,
    serial: &str,
    pin: &str,
) -> Result<Reply, Rejection> {
    let actor = match &holder {
        CertificateHolder::Node { name } => agent(name.as_str()),
        CertificateHolder::User { name } => person(name.as_str()),
    };
    let not_after = w.now + Millis::hours(12);
    let (serial, authority) = (serial.to_owned(), pin.to_owned());
    let command =
        AccessCommand::RecordCertificate { serial, holder, not_after, via: None, authority };
    w.give(actor, Command::Access(command))
}

fn of_node(name: &str) -> CertificateHolder {
    CertificateHolder::Node { name: node(name) }
}

/// Two nodes and a user with certificates of the first authority, one controller.
fn begun() -> World {
    let mut w = World::with(&["titan01", "titan02"]);
    w.give(
        Actor::controller(),
        Command::Controller(ControllerCommand::Admit(first("10.0.0.1:7443"))),
    )
    .unwrap();
    certify(&mut w, of_node("titan01"), "01", "one").unwrap();
    certify(&mut w, of_node("titan02"), "02", "one").unwrap();
    certify(&mut w, CertificateHolder::User { name: user("ada") }, "0a", "one").unwrap();
    w
}

fn signing(w: &World) -> &str {
    w.fsm.authorities().signing().map_or("the first", |known| known.pin.as_str())
}

fn second_controller(w: &mut World) {
    let token = TokenId::parse("token-c").unwrap();
    let (id, secret_sha256, ttl) = (token.clone(), "a".repeat(64), Millis::hours(1));
    let wish = CreateControllerToken { id, secret_sha256, ttl };
    w.give(person("root"), Command::Token(TokenCommand::ForController(wish))).unwrap();
    let (address, key_sha256) = ("10.0.0.2:7443".to_owned(), "b".repeat(64));
    let wish = AdmitController { id: 2, address, token: Some(token), key_sha256 };
    w.give(super::controllers::joining(), Command::Controller(ControllerCommand::Admit(wish)))
        .unwrap();
}

#[test]
fn everybody_moves_and_then_the_old_one_is_nothing() {
    let mut w = begun();
    assert!(w.fsm.authorities().is_untouched());
    by_root(&mut w, start("one", "two")).unwrap();
    assert_eq!(signing(&w), "one");
    let trusted: Vec<&str> =
        w.fsm.authorities().trusted().iter().map(|known| known.pin.as_str()).collect();
    assert_eq!(trusted, ["one", "two"], "both, and the one that signs first");
    by_fleet(&mut w, moving(&[1])).unwrap();
    assert_eq!(signing(&w), "two");
    let waiting = w.fsm.waiting_in_rotation();
    assert_eq!((waiting.nodes.len(), waiting.user_certificates), (2, 1));
    certify(&mut w, of_node("titan01"), "11", "two").unwrap();
    by_fleet(&mut w, moved(&["titan01"])).unwrap();
    let refused = by_fleet(&mut w, finish(&[1])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the authority one is in use: titan02, 1 certificates of users"
    );
    certify(&mut w, of_node("titan02"), "12", "two").unwrap();
    by_fleet(&mut w, moved(&["titan01", "titan02"])).unwrap();
    assert!(by_fleet(&mut w, finish(&[1])).is_err(), "the user's is still good");
    w.pass(Millis::hours(13));
    by_fleet(&mut w, finish(&[1])).unwrap();
    let all = w.fsm.authorities();
    assert_eq!((signing(&w), all.trusted().len(), all.rotation.is_none()), ("two", 1, true));
    assert_eq!(all.retired, ["one"]);
    assert!(w.fsm.access().issued.values().all(|issued| issued.authority == "two"));
    // A certificate of the old one that was signed a moment ago is not handed out any more.
    let late = certify(&mut w, of_node("titan01"), "13", "one").unwrap_err();
    assert!(matches!(late, Rejection::Authority { .. }), "{late}");
    // It cannot come back, and the next exchange begins with the one there is.
    assert!(by_root(&mut w, start("two", "one")).is_err());
    assert!(by_root(&mut w, start("one", "three")).is_err());
    by_root(&mut w, start("two", "three")).unwrap();
}

#[test]
fn nothing_is_signed_before_every_controller_has_the_key() {
    let mut w = begun();
    second_controller(&mut w);
    by_root(&mut w, start("one", "two")).unwrap();
    let refused = by_fleet(&mut w, moving(&[1])).unwrap_err();
    assert!(refused.to_string().contains("not ready: 2"), "{refused}");
    assert_eq!(signing(&w), "one");
    by_fleet(&mut w, moving(&[1, 2])).unwrap();
    by_fleet(&mut w, moved(&["titan01", "titan02"])).unwrap();
    by_root(&mut w, skip(&[], true)).unwrap();
    assert!(by_fleet(&mut w, finish(&[1])).is_err(), "controller 2 has an old certificate");
    by_fleet(&mut w, finish(&[1, 2])).unwrap();
}

#[test]
fn a_node_that_got_an_old_certificate_again_has_not_moved() {
    let mut w = begun();
    by_root(&mut w, start("one", "two")).unwrap();
    by_fleet(&mut w, moving(&[1])).unwrap();
    by_fleet(&mut w, moved(&["titan01", "titan02"])).unwrap();
    assert!(w.fsm.waiting_in_rotation().nodes.is_empty());
    certify(&mut w, of_node("titan01"), "21", "one").unwrap();
    assert_eq!(w.fsm.waiting_in_rotation().nodes, [node("titan01")]);
}

#[test]
fn a_node_that_joins_meanwhile_is_not_waited_for() {
    let mut w = begun();
    let mut joining = agent("titan03");
    joining.method = AuthMethod::JoinToken;
    let joins = |w: &mut World, serial: &str, pin: &str| {
        let holder = of_node("titan03");
        let (serial, not_after) = (serial.to_owned(), w.now + Millis::hours(12));
        let (via, authority) = (None, pin.to_owned());
        let command =
            AccessCommand::RecordCertificate { serial, holder, not_after, via, authority };
        w.give(joining.clone(), Command::Access(command)).unwrap();
        w.fsm.waiting_in_rotation().nodes.contains(&node("titan03"))
    };
    by_root(&mut w, start("one", "two")).unwrap();
    assert!(joins(&mut w, "31", "one"), "by the old one it still has to move");
    by_fleet(&mut w, moving(&[1])).unwrap();
    assert!(!joins(&mut w, "32", "two"));
}

#[test]
fn who_is_away_is_named_before_it_is_locked_out() {
    let mut w = begun();
    by_root(&mut w, start("one", "two")).unwrap();
    by_fleet(&mut w, moving(&[1])).unwrap();
    by_fleet(&mut w, moved(&["titan01"])).unwrap();
    assert!(matches!(by_root(&mut w, skip(&["titan09"], true)), Err(Rejection::NotFound { .. })));
    assert!(by_root(&mut w, skip(&["titan01"], false)).is_err(), "it has moved");
    assert_eq!(w.fsm.waiting_in_rotation().user_certificates, 1, "a refusal skips nobody");
    by_root(&mut w, skip(&["titan02"], true)).unwrap();
    by_root(&mut w, skip(&["titan02"], true)).unwrap();
    assert!(w.fsm.waiting_in_rotation().is_over());
    let envelope = w.envelope(Actor::controller(), Command::Authority(finish(&[1])));
    let last = w.apply(envelope).audit.unwrap().line;
    assert!(last.contains("rotation_finished") && last.contains("titan02"), "{last}");
    assert_eq!(w.fsm.access().newest_of(&node("titan02")), None, "nothing to renew with");
}

#[test]
fn a_node_whose_certificate_is_good_for_nothing_is_not_waited_for() {
    let mut w = begun();
    by_root(&mut w, start("one", "two")).unwrap();
    by_fleet(&mut w, moving(&[1])).unwrap();
    w.pass(Millis::days(31));
    assert!(w.fsm.waiting_in_rotation().is_over());
}

#[test]
fn there_is_a_way_back_from_everywhere() {
    let mut w = begun();
    assert!(by_root(&mut w, AuthorityCommand::AbortRotation).is_err(), "nothing to give up");
    by_root(&mut w, start("one", "two")).unwrap();
    assert!(by_root(&mut w, start("one", "three")).is_err(), "one at a time");
    by_root(&mut w, AuthorityCommand::AbortRotation).unwrap();
    assert_eq!((signing(&w), w.fsm.authorities().trusted().len()), ("one", 1));
    assert_eq!(w.fsm.authorities().retired, ["two"]);
    // Once the new one has signed, the way back is an exchange as well.
    by_root(&mut w, start("one", "three")).unwrap();
    by_fleet(&mut w, moving(&[1])).unwrap();
    by_fleet(&mut w, moved(&["titan01"])).unwrap();
    by_root(&mut w, AuthorityCommand::AbortRotation).unwrap();
    let rotation = w.fsm.authorities().rotation.clone().unwrap();
    assert_eq!((signing(&w), rotation.stage), ("one", Stage::Moving));
    assert_eq!(rotation.from.pin, "three");
    assert_eq!(w.fsm.waiting_in_rotation().nodes.len(), 2, "who moved has to come back");
    by_fleet(&mut w, moved(&["titan01", "titan02"])).unwrap();
    by_fleet(&mut w, finish(&[1])).unwrap();
    assert_eq!(signing(&w), "one");
}

#[test]
fn who_may_and_what_is_refused() {
    let mut w = begun();
    let denied = |reply: Result<Reply, Rejection>| {
        assert!(matches!(reply, Err(Rejection::Denied { .. })), "{reply:?}");
    };
    let mut user = person("ada");
    user.method = AuthMethod::LocalSocket;
    denied(give(&mut w, user, start("one", "two")));
    denied(by_fleet(&mut w, start("one", "two")));
    for wrong in [
        AuthorityCommand::StartRotation { from: known("one"), to: known("one") },
        AuthorityCommand::StartRotation { from: known(""), to: known("two") },
        AuthorityCommand::StartRotation { from: known("one"), to: known("t w o") },
        AuthorityCommand::StartRotation {
            from: known("one"),
            to: Known { certificate: "x".repeat(20_000), ..known("two") },
        },
    ] {
        let reply = by_root(&mut w, wrong);
        assert!(matches!(reply, Err(Rejection::InvalidField { .. })), "{reply:?}");
    }
    assert!(w.fsm.authorities().is_untouched(), "a refusal changes nothing");
    by_root(&mut w, start("one", "two")).unwrap();
    denied(by_root(&mut w, moving(&[1])));
    assert!(by_fleet(&mut w, moved(&["titan01"])).is_err(), "the old one still signs");
    assert!(by_fleet(&mut w, finish(&[1])).is_err());
    by_fleet(&mut w, moving(&[1])).unwrap();
    denied(by_root(&mut w, finish(&[1])));
    let many: Vec<String> = (0..=NODES_PER_COMMAND_MAX).map(|n| format!("n{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(by_fleet(&mut w, moved(&many)), Err(Rejection::LimitReached { .. })));
}

#[test]
fn it_is_in_the_snapshot_once_there_was_an_exchange() {
    let mut w = begun();
    let untouched = String::from_utf8(w.fsm.to_snapshot()).unwrap();
    assert!(!untouched.contains("authorities"));
    by_root(&mut w, start("one", "two")).unwrap();
    by_fleet(&mut w, moving(&[1])).unwrap();
    let again = Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert_eq!(again.authorities(), w.fsm.authorities());
}
