//! Who may come in: certificates, accounts, nodes that leave.

use super::world::{World, agent, gpu, job, node, person, plain, res, training, user};
use crate::access::{AccessEvent, CERTIFICATES_PER_HOLDER_MAX, CertificateHolder, Vouching};
use crate::actor::{Actor, AuthMethod};
use crate::allocation::AttemptEnd;
use crate::command::{
    AccessCommand, Command, CreateJoinToken, CreateReservation, NodeCommand, ReservationCommand,
    TokenCommand,
};
use crate::event::Event;
use crate::id::TokenId;
use crate::job::JobSpec;
use crate::name::NodeName;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::GpuRequest;
use crate::time::{Millis, Timestamp, Window};

fn give(w: &mut World, actor: Actor, command: AccessCommand) -> Result<Reply, Rejection> {
    w.give(actor, Command::Access(command))
}

fn of_user(name: &str) -> CertificateHolder {
    CertificateHolder::User { name: user(name) }
}

fn of_node(name: &str) -> CertificateHolder {
    CertificateHolder::Node { name: node(name) }
}

fn record(
    w: &mut World,
    actor: Actor,
    serial: &str,
    holder: CertificateHolder,
    via: Option<NodeName>,
) -> Result<Reply, Rejection> {
    let not_after = w.now + Millis::hours(12);
    let (serial, authority) = (serial.to_owned(), "pin".to_owned());
    let command = AccessCommand::RecordCertificate { serial, holder, not_after, via, authority };
    give(w, actor, command)
}

fn disable(w: &mut World, name: &str, to: Option<&str>) -> Result<Reply, Rejection> {
    let (user, reason) = (user(name), "has left".to_owned());
    let transfer_to = to.map(super::world::user);
    give(w, person("root"), AccessCommand::DisableUser { user, reason, transfer_to })
}

fn code(reply: Result<Reply, Rejection>) -> &'static str {
    reply.map_or_else(|rejection| rejection.code(), |_| "accepted")
}

fn with_serial(mut actor: Actor, serial: &str) -> Actor {
    actor.serial = Some(serial.to_owned());
    actor
}

#[test]
fn everybody_gets_certificates_for_themselves_only() {
    let mut w = World::with(&["titan01", "titan02"]);
    let mut by_certificate = person("ada");
    by_certificate.method = AuthMethod::Certificate;
    let titan01 = || Some(node("titan01"));
    let table = [
        (agent("titan01"), of_node("titan01"), None, "accepted"),
        (agent("titan01"), of_node("titan02"), None, "denied"),
        (agent("titan01"), of_user("ada"), titan01(), "accepted"),
        (agent("titan02"), of_user("ada"), titan01(), "denied"),
        (agent("titan01"), of_user("ada"), None, "denied"),
        (agent("titan09"), of_node("titan09"), None, "not_found"),
        (person("ada"), of_user("ada"), None, "accepted"),
        (person("ada"), of_user("bob"), None, "denied"),
        (person("root"), of_user("bob"), None, "denied"),
        (person("ada"), of_node("titan01"), None, "denied"),
        (by_certificate, of_user("ada"), None, "denied"),
    ];
    for (number, (actor, holder, via, expected)) in table.into_iter().enumerate() {
        let said = code(record(&mut w, actor, &format!("{number:04x}"), holder, via));
        assert_eq!(said, expected, "row {number}");
    }
    assert_eq!(code(record(&mut w, person("ada"), "0000", of_user("ada"), None)), "id_taken");
    assert_eq!(code(record(&mut w, person("ada"), "0x", of_user("ada"), None)), "invalid_field");
}

#[test]
fn nobody_collects_certificates_without_end() {
    let mut w = World::with(&["titan01"]);
    for number in 0..CERTIFICATES_PER_HOLDER_MAX {
        record(&mut w, person("ada"), &format!("{number:x}"), of_user("ada"), None).unwrap();
    }
    let reply = record(&mut w, person("ada"), "aaaa", of_user("ada"), None);
    assert_eq!(code(reply), "limit_reached");
    w.now = w.now + Millis::hours(13);
    record(&mut w, person("ada"), "aaaa", of_user("ada"), None).unwrap();
    assert_eq!(w.fsm.access().issued.len(), 1, "what ran out was swept");
}

#[test]
fn a_revoked_node_is_shut_out_with_all_it_vouched_for() {
    let mut w = World::with(&["titan01", "titan02"]);
    record(&mut w, agent("titan01"), "01", of_node("titan01"), None).unwrap();
    record(&mut w, agent("titan01"), "02", of_user("ada"), Some(node("titan01"))).unwrap();
    record(&mut w, agent("titan02"), "03", of_user("ada"), Some(node("titan02"))).unwrap();
    w.run("a", training(), "titan01", &[0]);
    let before = w.fsm.access().version;
    let revoke =
        || AccessCommand::RevokeNode { node: node("titan01"), reason: "stolen".to_owned() };
    assert_eq!(code(give(&mut w, person("ada"), revoke())), "denied");
    give(&mut w, person("root"), revoke()).unwrap();
    let access = w.fsm.access();
    assert!(access.version > before);
    let revoked: Vec<&str> = access.revoked.keys().map(String::as_str).collect();
    assert_eq!(revoked, ["01", "02"]);
    assert_eq!(w.state_of("a"), "running", "nothing that runs is touched");
    let report = Command::Node(NodeCommand::Report { node: node("titan01"), reports: vec![] });
    assert_eq!(code(w.give(with_serial(agent("titan01"), "01"), report)), "denied");
    // Remembered for as long as the certificate could be renewed after its end, then forgotten.
    w.now = w.now + Millis::days(29);
    record(&mut w, person("ada"), "04", of_user("ada"), None).unwrap();
    assert_eq!(w.fsm.access().revoked.len(), 2);
    w.now = w.now + Millis::days(2);
    record(&mut w, person("ada"), "05", of_user("ada"), None).unwrap();
    assert_eq!(w.fsm.access().revoked.len(), 0);
}

#[test]
fn a_user_can_end_their_own_certificates_and_get_new_ones() {
    let mut w = World::with(&["titan01"]);
    record(&mut w, person("ada"), "01", of_user("ada"), None).unwrap();
    let revoke =
        |name: &str| AccessCommand::RevokeUser { user: user(name), reason: "lost".to_owned() };
    assert_eq!(code(give(&mut w, person("bob"), revoke("ada"))), "denied");
    assert_eq!(code(give(&mut w, person("root"), revoke("adda"))), "not_found");
    give(&mut w, person("ada"), revoke("ada")).unwrap();
    assert!(w.fsm.access().revoked.contains_key("01"));
    record(&mut w, person("ada"), "02", of_user("ada"), None).unwrap();
}

#[test]
fn the_newest_certificate_of_a_node_outlives_its_time() {
    let mut w = World::with(&["titan01"]);
    record(&mut w, agent("titan01"), "01", of_node("titan01"), None).unwrap();
    record(&mut w, agent("titan01"), "02", of_node("titan01"), None).unwrap();
    w.now = w.now + Millis::days(3);
    record(&mut w, person("ada"), "03", of_user("ada"), None).unwrap();
    assert_eq!(w.fsm.access().newest_of(&node("titan01")), Some("02"));
    assert!(!w.fsm.access().issued.contains_key("01"));
}

#[test]
fn only_the_last_certificate_of_a_node_is_renewed_after_its_end() {
    let mut w = World::with(&["titan01"]);
    let titan01 = node("titan01");
    record(&mut w, agent("titan01"), "01", of_node("titan01"), None).unwrap();
    w.now = w.now + Millis::hours(6);
    record(&mut w, agent("titan01"), "02", of_node("titan01"), None).unwrap();
    let ends = w.fsm.access().newest_ends(&titan01).unwrap();
    let may = |w: &World, serial, at| w.fsm.access().may_renew_expired(&titan01, serial, at);
    assert!(may(&w, "02", ends));
    assert!(!may(&w, "01", ends - Millis::hours(6)), "an older one");
    assert!(may(&w, "03", ends + Millis::hours(1)), "given out after the backup was made");
    let (node, reason) = (titan01.clone(), "stolen".to_owned());
    give(&mut w, person("root"), AccessCommand::RevokeNode { node, reason }).unwrap();
    assert!(!may(&w, "01", ends - Millis::hours(6)), "one that was forgotten before");
    assert!(!may(&w, "03", ends + Millis::hours(1)));
}

/// A fleet at this cluster version, and titan01, which asked with 01 for 02 once that had ended.
fn renewed_at() -> (World, Timestamp) {
    let mut w = World::with(&["titan01"]);
    record(&mut w, agent("titan01"), "01", of_node("titan01"), None).unwrap();
    let ended = w.fsm.access().newest_ends(&node("titan01")).unwrap();
    w.now = w.now + Millis::days(3);
    record(&mut w, with_serial(agent("titan01"), "01"), "02", of_node("titan01"), None).unwrap();
    (w, ended)
}

fn may_renew(w: &World, serial: &str, at: Timestamp) -> bool {
    w.fsm.access().may_renew_expired(&node("titan01"), serial, at)
}

fn link_with(w: &mut World, serial: &str) {
    let facts = Box::new(super::world::facts("titan01", 4, "boot-1"));
    let register = Command::Node(NodeCommand::Register { node: node("titan01"), facts });
    w.give(with_serial(agent("titan01"), serial), register).unwrap();
}

#[test]
fn a_renewal_is_repeated_until_what_it_gave_was_shown() {
    let (mut w, ended) = renewed_at();
    assert!(may_renew(&w, "01", ended), "the answer was lost");
    assert!(!may_renew(&w, "00", ended - Millis::hours(6)), "one from before that");
    // Lost again, and long ago when it is asked next: what ran out was swept.
    record(&mut w, with_serial(agent("titan01"), "01"), "03", of_node("titan01"), None).unwrap();
    w.now = w.now + Millis::days(3);
    record(&mut w, person("ada"), "0a", of_user("ada"), None).unwrap();
    assert!(!w.fsm.access().issued.contains_key("01"));
    assert!(may_renew(&w, "01", ended) && may_renew(&w, "03", ended));
    assert!(!may_renew(&w, "02", ended), "one that was lost on its way");
    let taken = crate::state::Fsm::from_snapshot(&w.fsm.to_snapshot()).unwrap();
    assert!(taken.access().may_renew_expired(&node("titan01"), "01", ended));
    link_with(&mut w, "01");
    assert!(may_renew(&w, "01", ended), "the new one was not shown");
    link_with(&mut w, "03");
    assert!(!may_renew(&w, "01", ended), "a copy of it");
    assert!(may_renew(&w, "03", ended));
    record(&mut w, with_serial(agent("titan01"), "03"), "04", of_node("titan01"), None).unwrap();
    assert!(may_renew(&w, "03", ended) && !may_renew(&w, "01", ended));
}

#[test]
fn who_was_shut_out_or_joined_again_renews_with_nothing_older() {
    let revoke = |w: &mut World| {
        let (node, reason) = (node("titan01"), "stolen".to_owned());
        give(w, person("root"), AccessCommand::RevokeNode { node, reason }).unwrap();
    };
    let (mut w, ended) = renewed_at();
    revoke(&mut w);
    assert!(!may_renew(&w, "01", ended) && !may_renew(&w, "02", ended));
    let joining = || Actor { method: AuthMethod::JoinToken, serial: None, ..agent("titan01") };
    record(&mut w, joining(), "03", of_node("titan01"), None).unwrap();
    assert!(!may_renew(&w, "01", ended) && !may_renew(&w, "02", ended));
    let (mut w, ended) = renewed_at();
    record(&mut w, joining(), "03", of_node("titan01"), None).unwrap();
    assert!(!may_renew(&w, "01", ended));
}

#[test]
fn a_token_does_not_let_a_node_back_in_that_was_shut_out() {
    let mut w = World::with(&["titan01", "titan02"]);
    let id = TokenId::parse("token-1").unwrap();
    let (names, secret_sha256) = (vec![node("titan01"), node("titan02")], "0".repeat(64));
    let ttl = Millis::hours(1);
    let token = CreateJoinToken { id: id.clone(), secret_sha256, names, ttl };
    w.give(person("root"), Command::Token(TokenCommand::ForNodes(token))).unwrap();
    let redeem = |w: &mut World, name: &str| {
        let actor = Actor { method: AuthMethod::JoinToken, ..agent(name) };
        let machine = super::world::facts(name, 4, "boot-1").machine;
        let command =
            Command::Node(NodeCommand::Join { id: id.clone(), node: node(name), machine });
        code(w.give(actor, command))
    };
    assert_eq!(redeem(&mut w, "titan01"), "accepted");
    assert_eq!(redeem(&mut w, "titan01"), "accepted");
    let (titan01, reason) = (node("titan01"), "stolen".to_owned());
    give(&mut w, person("root"), AccessCommand::RevokeNode { node: titan01, reason }).unwrap();
    assert_eq!(redeem(&mut w, "titan01"), "token_refused");
    assert_eq!(redeem(&mut w, "titan02"), "accepted");
}

#[test]
fn what_a_nodes_word_is_worth_is_the_fleets_decision() {
    let mut w = World::with(&["titan01"]);
    let vouch = |vouching| AccessCommand::SetVouching { node: node("titan01"), vouching };
    let via = || Some(node("titan01"));
    record(&mut w, agent("titan01"), "01", of_user("root"), via()).unwrap();
    record(&mut w, person("root"), "02", of_user("root"), None).unwrap();
    assert!(!w.fsm.access().admin_through("01"));
    assert!(w.fsm.access().admin_through("02"));
    assert!(!w.fsm.access().admin_through("03"), "nobody knows who stands behind it");
    give(&mut w, person("root"), vouch(Vouching::Admins)).unwrap();
    assert!(w.fsm.access().admin_through("01"));
    give(&mut w, person("root"), vouch(Vouching::Off)).unwrap();
    assert!(w.fsm.access().revoked.contains_key("01"), "its word is worth nothing any more");
    assert!(w.fsm.access().issued.contains_key("02"));
    assert_eq!(code(record(&mut w, agent("titan01"), "03", of_user("ada"), via())), "denied");
    assert_eq!(code(give(&mut w, person("ada"), vouch(Vouching::Admins))), "denied");
}

#[test]
fn a_node_leaves_only_when_nothing_is_on_it() {
    let mut w = World::with(&["titan01", "titan02"]);
    record(&mut w, agent("titan01"), "01", of_node("titan01"), None).unwrap();
    w.run("a", plain(1), "titan01", &[0]);
    let remove = || AccessCommand::RemoveNode { node: node("titan01"), reason: "sold".to_owned() };
    let reply = give(&mut w, person("root"), remove());
    let said = reply.unwrap_err().to_string();
    assert!(said.contains("alloc-a-1"), "{said}");
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.end(&id, AttemptEnd::Exited { code: 0 });
    assert_eq!(
        code(give(&mut w, person("root"), remove())),
        "in_use",
        "its GPU is not proven empty"
    );
    w.release("titan01");
    assert_eq!(code(give(&mut w, person("ada"), remove())), "denied");
    give(&mut w, person("root"), remove()).unwrap();
    assert!(w.fsm.node(&node("titan01")).is_none());
    assert!(w.fsm.gpu(&gpu("titan01", 0)).is_none());
    // Its agent may still speak for a moment; that must not bring it back.
    let facts = Box::new(super::world::facts("titan01", 4, "boot-1"));
    let again = Command::Node(NodeCommand::Register { node: node("titan01"), facts });
    assert_eq!(code(w.give(with_serial(agent("titan01"), "01"), again)), "denied");
    assert_eq!(code(give(&mut w, person("root"), remove())), "not_found");
}

#[test]
fn a_closed_account_keeps_nothing_but_what_runs() {
    let mut w = World::with(&["titan01", "titan02"]);
    record(&mut w, person("ada"), "01", of_user("ada"), None).unwrap();
    w.reserve("ada", "soon", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    w.reserve("ada", "idle", 1, Millis::ZERO, Millis::hours(1)).unwrap();
    let idle_on = w.fsm.reservation(&res("idle")).unwrap().node.to_string();
    let other = if idle_on == "titan01" { "titan02" } else { "titan01" };
    w.run("saves", training(), other, &[0]);
    w.run("plain", plain(1), other, &[1]);
    w.submit("ada", "waits", plain(4)).unwrap();
    let running: Vec<_> = ["saves", "plain"]
        .map(|name| w.fsm.job(&job(name)).unwrap().allocation().cloned().unwrap())
        .into();
    disable(&mut w, "ada", None).unwrap();
    assert!(w.fsm.access().revoked.contains_key("01"));
    assert_eq!(w.state_of("waits"), "cancelled");
    assert_eq!((w.state_of("saves"), w.state_of("plain")), ("running", "running"));
    let state = |w: &World, id: &str| format!("{:?}", w.fsm.reservation(&res(id)).unwrap().state);
    assert_eq!((state(&w, "soon"), state(&w, "idle")), ("Cancelled".into(), "Ending".into()));
    // The job stops only at a checkpoint that is later than the one it had when it got the order.
    w.take_deferral(&running[0], 4);
    w.checkpoint(&running[0], 5, Millis::secs(1));
    assert_eq!(w.state_of("saves"), "stopping");
    w.end(&running[0], AttemptEnd::Signaled { signal: 15 });
    assert_eq!(w.state_of("saves"), "cancelled");
    w.end(&running[1], AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("plain"), "completed");
    for denied in [
        w.submit("ada", "more", plain(1)),
        w.reserve("ada", "more", 1, Millis::ZERO, Millis::hours(1)),
        record(&mut w, person("ada"), "02", of_user("ada"), None),
        record(&mut w, agent("titan01"), "03", of_user("ada"), Some(node("titan01"))),
    ] {
        assert_eq!(code(denied), "denied");
    }
    give(&mut w, person("root"), AccessCommand::EnableUser { user: user("ada") }).unwrap();
    w.submit("ada", "more", plain(1)).unwrap();
}

#[test]
fn a_reservation_of_a_closed_account_lasts_as_long_as_its_jobs() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 2, Millis::ZERO, Millis::hours(8)).unwrap();
    w.submit("ada", "a", JobSpec { reservation: Some(res("r")), ..training() }).unwrap();
    w.schedule();
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    w.start(&id);
    disable(&mut w, "ada", Some("bob")).unwrap();
    assert!(w.fsm.reservation(&res("r")).unwrap().is_open());
    assert_eq!(w.state_of("a"), "running");
    w.end(&id, AttemptEnd::Exited { code: 0 });
    assert_eq!(w.state_of("a"), "completed");
    w.release("titan01");
    assert!(!w.fsm.reservation(&res("r")).unwrap().is_open());
}

#[test]
fn what_has_not_begun_can_be_given_to_somebody_else() {
    let mut w = World::with(&["titan01"]);
    w.reserve("ada", "r", 1, Millis::hours(2), Millis::hours(1)).unwrap();
    assert_eq!(code(disable(&mut w, "ada", Some("ada"))), "invalid_field");
    disable(&mut w, "eve", None).unwrap();
    assert_eq!(code(disable(&mut w, "ada", Some("eve"))), "denied");
    assert_eq!(code(disable(&mut w, "root", None)), "invalid_field", "not one's own");
    disable(&mut w, "ada", Some("bob")).unwrap();
    assert_eq!(w.fsm.reservation(&res("r")).unwrap().owner, user("bob"));
    let moved = |e: &Event| matches!(e, Event::Access(AccessEvent::ReservationTransferred { .. }));
    assert!(w.last.iter().any(moved));
}

#[test]
fn the_node_hears_whose_a_reservation_is_that_was_given_to_somebody_else() {
    let mut w = World::with(&["titan01"]);
    let starts_at = w.now + Millis::hours(2);
    let wish = CreateReservation {
        with: [user("bob"), user("eve")].into(),
        ..CreateReservation::plain(
            res("r"),
            user("ada"),
            GpuRequest { count: 1, ..GpuRequest::default() },
            Window { starts_at, ends_at: starts_at + Millis::hours(1) },
        )
    };
    w.give(person("root"), Command::Reservation(ReservationCommand::Create(wish))).unwrap();
    w.agents_answer = false;
    let told = |w: &World| w.fsm.desired(&node("titan01"), &[]).windows[0].clone();
    let (before, given) =
        (told(&w), |w: &World| w.fsm.reservation(&res("r")).unwrap().handed_out.clone().unwrap());
    assert!(given(&w).taken, "the fixture");
    disable(&mut w, "ada", Some("bob")).unwrap();
    let after = told(&w);
    assert_eq!((after.owner.clone(), after.with.clone()), (user("bob"), [user("eve")].into()));
    assert!(after.revision > before.revision, "an agent takes only what is newer");
    assert!(!given(&w).taken, "and confirms it");
    assert_eq!((after.lease, after.window), (before.lease, before.window));
}

#[test]
fn a_deferral_of_a_closed_account_ends_when_it_is_opened_again() {
    let mut w = World::with(&["titan01"]);
    w.run("a", training(), "titan01", &[0]);
    disable(&mut w, "ada", None).unwrap();
    let id = w.fsm.job(&job("a")).unwrap().allocation().cloned().unwrap();
    assert!(w.fsm.allocation(&id).unwrap().deferral.is_some());
    give(&mut w, person("root"), AccessCommand::EnableUser { user: user("ada") }).unwrap();
    assert!(w.fsm.allocation(&id).unwrap().deferral.is_none());
}
