//! Well-meant connections: identity, the gate, reload, expiry, revocation, several addresses.

use std::collections::BTreeSet;
use std::time::Duration;

use rustls::AlertDescription;
use tonic::{Code, Request};

use super::fixture::{CLUSTER, Ca, Leaf, Server, wait_until, who_am_i};
use crate::transport::client::dial_pinned;
use crate::transport::identity::CertificateFault;
use crate::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use crate::transport::{Address, DialError, Dialer};
use crate::v1::enrollment_client::EnrollmentClient;
use crate::v1::{JoinRequest, RenewRequest, UserCertificateRequest};

#[tokio::test]
async fn a_handler_sees_identity_and_serial() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let (who, serial) = who_am_i(server.dialer(&node).channel()).await.unwrap();
    assert!(who.starts_with(&format!("fleet://{CLUSTER}/node/titan01 at 127.0.0.1:")), "{who}");
    assert_eq!(serial, node.current().leaf().serial);
}

#[tokio::test]
async fn without_a_certificate_a_peer_can_only_join() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let dialed = dial_pinned(&server.address(), ca.pin()).await.unwrap();
    assert_eq!(dialed.controller.identity.to_string(), format!("fleet://{CLUSTER}/controller/c1"));
    let mut client = EnrollmentClient::new(dialed.channel);
    let reply = client.join(JoinRequest::default()).await.unwrap().into_inner();
    let who = reply.certificate.unwrap().identity;
    assert!(who.starts_with("a peer without a certificate"), "{who}");
    let refused = client.renew(RenewRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let refused = client.user_certificate(UserCertificateRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let denied = |action: &str| ("anonymous".to_owned(), action.to_owned(), "no_certificate");
    assert_eq!(server.denied(), [denied("renew"), denied("user_certificate")]);
}

#[tokio::test]
async fn with_an_expired_certificate_a_node_can_only_renew() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let expired = ca.shared(&Leaf::node("titan01").valid(-7200, -3600));
    let mut client = EnrollmentClient::new(server.dialer(&expired).channel());
    let reply = client.renew(RenewRequest::default()).await.unwrap().into_inner();
    let who = reply.certificate.unwrap().identity;
    assert!(who.contains("node/titan01") && who.ends_with("expired certificate"), "{who}");
    let refused = client.user_certificate(UserCertificateRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert!(refused.message().contains("renewed"), "{refused}");
    let refused = client.join(JoinRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let denied =
        |action: &str| ("node:titan01".to_owned(), action.to_owned(), "certificate_expired");
    assert_eq!(server.denied(), [denied("user_certificate"), denied("join")]);
}

#[tokio::test]
async fn a_foreign_client_is_refused_in_the_handshake_and_told_why() {
    let (ca, other) = (Ca::new(), Ca::new());
    let server = Server::start(&ca);
    // It trusts the server's CA but was certified by another.
    let (der, key) = other.leaf(&Leaf::node("titan01"));
    let pem = crate::transport::keys::certificate_pem;
    let foreign = crate::transport::Credentials::from_pem(
        pem(&der).as_bytes(),
        key.as_bytes(),
        pem(&ca.der).as_bytes(),
    );
    let foreign = crate::transport::SharedCredentials::new(foreign.unwrap()).unwrap();
    let dialer = server.dialer(&foreign);
    who_am_i(dialer.channel()).await.unwrap_err();
    assert_eq!(alert(&dialer), Some(AlertDescription::UnknownCA), "{dialer:?}");
    server.refused("certificate", 1).await;
    let denied = ("anonymous".to_owned(), "connect".to_owned(), "certificate_untrusted");
    assert_eq!(server.denied(), [denied]);

    let stranger = other.shared(&Leaf::node("titan01"));
    let dialer = server.dialer(&stranger);
    who_am_i(dialer.channel()).await.unwrap_err();
    let error = dialer.last_error().unwrap();
    let fault = CertificateFault::UntrustedIssuer;
    assert!(matches!(&error, DialError::Certificate { fault: f, .. } if *f == fault), "{error}");
}

#[tokio::test]
async fn new_certificates_are_used_without_breaking_connections() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let dialer = server.dialer(&node);
    let (old, changes) = (dialer.channel(), node.changes());
    let (_, first) = who_am_i(old.clone()).await.unwrap();

    let before = dial_pinned(&server.address(), ca.pin()).await.unwrap().controller.serial;
    server.credentials.replace(ca.credentials(&Leaf::controller())).unwrap();
    node.replace(ca.credentials(&Leaf::node("titan01"))).unwrap();
    assert!(changes.has_changed().unwrap());

    let after = dial_pinned(&server.address(), ca.pin()).await.unwrap().controller.serial;
    assert_ne!(after, before, "the server shows its new certificate");
    let (_, kept) = who_am_i(old).await.unwrap();
    assert_eq!(kept, first, "the old connection stays");
    let (_, second) = who_am_i(dialer.channel()).await.unwrap();
    assert_eq!(second, node.current().leaf().serial, "a new one uses the new certificate");
    assert_ne!(second, first);
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01").valid(-600, 4));
    let channel = server.dialer(&node).channel();
    who_am_i(channel.clone()).await.unwrap();
    let mut refused = None;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        refused = who_am_i(channel.clone()).await.err();
        if refused.as_ref().is_some_and(|status| status.message().contains("renewed")) {
            break;
        }
    }
    // Cut, connected again, and then good for renewal only.
    assert_eq!(refused.unwrap().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn revocation_acts_on_connections_that_exist() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let dialer = server.dialer(&node);
    let channel = dialer.channel();
    who_am_i(channel.clone()).await.unwrap();
    let identity = node.current().leaf().identity.to_string();
    server.credentials.revocations().replace(BTreeSet::from([identity]));
    // Refused on the connection that exists, or that one has ended already.
    let status = who_am_i(channel).await.unwrap_err();
    let refused = status.code() == Code::Unauthenticated && status.message().contains("revoked");
    let ended = alert(&dialer) == Some(AlertDescription::CertificateRevoked);
    assert!(refused || ended, "{status}");
    if refused {
        let denied = ("node:titan01", "user_certificate", "certificate_revoked");
        let denied = (denied.0.to_owned(), denied.1.to_owned(), denied.2);
        assert_eq!(server.denied(), [denied]);
    }
    who_am_i(dialer.channel()).await.unwrap_err();
    assert_eq!(alert(&dialer), Some(AlertDescription::CertificateRevoked), "{dialer:?}");
}

/// The alert by which the controller refused us.
fn alert(dialer: &Dialer) -> Option<AlertDescription> {
    match dialer.last_error() {
        Some(DialError::Refused { alert, .. }) => Some(alert),
        Some(_) | None => None,
    }
}

/// An address nobody listens on.
fn dead_address() -> Address {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().to_string().parse().unwrap()
}

#[tokio::test]
async fn the_next_address_is_tried_and_the_working_one_remembered() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let addresses =
        vec![dead_address(), "no-such-host.invalid:1".parse().unwrap(), server.address()];
    let dialer = Dialer::new(addresses, node.clone());
    who_am_i(dialer.channel()).await.unwrap();
    assert!(dialer.last_error().is_none());

    let dead = Dialer::new(vec![dead_address()], node.clone());
    who_am_i(dead.channel()).await.unwrap_err();
    let error = dead.last_error().unwrap();
    assert!(matches!(error, DialError::Connect { .. }), "{error}");

    let none = Dialer::new(vec![], node.clone());
    who_am_i(none.channel()).await.unwrap_err();
    assert!(matches!(none.last_error(), Some(DialError::NoAddress)));

    let each = dialer.channels();
    assert_eq!(each.len(), 3);
    who_am_i(each[2].1.clone()).await.unwrap();
    who_am_i(each[0].1.clone()).await.unwrap_err();
}

#[tokio::test]
async fn a_channel_connects_again_when_the_controller_comes_back() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let second = Server::start(&ca);
    let dialer = Dialer::new(vec![server.address(), second.address()], node);
    let channel = dialer.channel();
    who_am_i(channel.clone()).await.unwrap();
    drop(server);
    let mut found = Err(tonic::Status::unknown("not asked"));
    for _ in 0..50 {
        found = who_am_i(channel.clone()).await;
        if found.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    found.unwrap();
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_by_size() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let mut client = EnrollmentClient::new(server.dialer(&node).channel());
    let csr_der = vec![0; ENROLL_MESSAGE_BYTES_MAX];
    let status = client.renew(Request::new(RenewRequest { csr_der })).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert!(status.message().contains(&ENROLL_MESSAGE_BYTES_MAX.to_string()), "{status}");
    client.renew(RenewRequest { csr_der: vec![0; 1000] }).await.unwrap();
    wait_until("no refusal at the door", || server.refusals.counts().is_empty()).await;
}
