//! One authority exchanged for another: which peer trusts which by what the other authority signed, and what ends with it.

use super::fixture::{Ca, Leaf, Server, who_am_i};
use crate::transport::client::dial_pinned;
use crate::transport::identity::{CertificateFault, Identity};
use crate::transport::issued::{self, IssuedFault};
use crate::transport::keys::{OwnKey, certificate_pem};
use crate::transport::server::ListenerLimits;
use crate::transport::{Credentials, DialError, SharedCredentials};
use crate::v1::IssuedCertificate;

/// A controller with a certificate of `signing` that trusts `all`, and shows what is vouched for it.
fn controller(signing: &Ca, all: &[&Ca], vouched: Option<&[u8]>) -> Credentials {
    let (leaf, key) = signing.leaf(&Leaf::controller());
    let mut chain = certificate_pem(&leaf);
    chain.extend(vouched.map(certificate_pem));
    let trusted: String = all.iter().map(|ca| certificate_pem(&ca.der)).collect();
    Credentials::from_pem(chain.as_bytes(), key.as_bytes(), trusted.as_bytes()).unwrap()
}

fn server(credentials: Credentials) -> Server {
    Server::with(SharedCredentials::new(credentials).unwrap(), ListenerLimits::default())
}

#[tokio::test]
async fn who_knows_only_one_authority_believes_the_other_while_it_vouches() {
    let (old, new) = (Ca::new(), Ca::new());
    let vouched = old.vouch(&new);
    let server = server(controller(&new, &[&new, &old], Some(&vouched)));
    for ca in [&old, &new] {
        let node = ca.shared(&Leaf::node("titan01"));
        who_am_i(server.dialer(&node).channel()).await.unwrap();
        // So is a token with its pin, made before or after.
        dial_pinned(&server.address(), ca.pin()).await.unwrap();
    }
    let credentials = server.credentials.current();
    assert_eq!((credentials.signer(), credentials.shows(&vouched)), (Some(new.pin()), true));
    // It is no way in for anybody else's.
    let other = Ca::new();
    dial_pinned(&server.address(), other.pin()).await.unwrap_err();

    server.credentials.replace(controller(&new, &[&new], None)).unwrap();
    let left_behind = server.dialer(&old.shared(&Leaf::node("titan01")));
    who_am_i(left_behind.channel()).await.unwrap_err();
    let error = left_behind.last_error().unwrap();
    let fault = CertificateFault::UntrustedIssuer;
    assert!(matches!(&error, DialError::Certificate { fault: f, .. } if *f == fault), "{error}");
    dial_pinned(&server.address(), old.pin()).await.unwrap_err();
    dial_pinned(&server.address(), new.pin()).await.unwrap();
}

#[tokio::test]
async fn a_connection_ends_when_its_authority_is_given_up() {
    let (old, new) = (Ca::new(), Ca::new());
    let vouched = old.vouch(&new);
    let server = server(controller(&new, &[&new, &old], Some(&vouched)));
    let (behind, moved) = (old.shared(&Leaf::node("titan01")), new.shared(&Leaf::node("titan02")));
    let (behind, moved) = (server.dialer(&behind).channel(), server.dialer(&moved).channel());
    who_am_i(behind.clone()).await.unwrap();
    let (_, first) = who_am_i(moved.clone()).await.unwrap();
    // Another certificate of the same authorities ends nothing.
    server.credentials.replace(controller(&new, &[&new, &old], Some(&vouched))).unwrap();
    who_am_i(behind.clone()).await.unwrap();

    server.credentials.replace(controller(&new, &[&new], None)).unwrap();
    let mut tries = 0;
    while who_am_i(behind.clone()).await.is_ok() {
        tries += 1;
        assert!(tries < 500, "the connection of the old one stays");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (_, still) = who_am_i(moved).await.unwrap();
    assert_eq!(still, first, "the other one stays");
}

#[test]
fn a_reply_of_an_authority_that_is_not_known_needs_one_that_is() {
    let (old, new, other) = (Ca::new(), Ca::new(), Ca::new());
    let key = OwnKey::generate().unwrap();
    let reply = |vouched: &[&Ca], trusted: &[&Ca]| {
        let certificate = new.certify(&Leaf::node("titan01"), &key);
        Some(IssuedCertificate {
            certificate_der: certificate.to_vec(),
            ca_der: new.der.to_vec(),
            trusted_der: trusted.iter().map(|ca| ca.der.to_vec()).collect(),
            vouched_der: vouched.iter().map(|ca| ca.vouch(&new).to_vec()).collect(),
            ..Default::default()
        })
    };
    let anybody = |_: &Identity| true;
    let accept = |reply, pin| issued::accept(reply, &key, &[pin], "titan01", anybody);
    let accepted = accept(reply(&[&old], &[&new, &old]), old.pin()).unwrap();
    let trusted: Vec<_> = accepted.credentials.authorities().iter().map(|a| a.to_vec()).collect();
    assert_eq!(trusted, [new.der.to_vec(), old.der.to_vec()], "both, the one that signed first");
    assert_eq!(accepted.credentials.signer(), Some(new.pin()));
    accept(reply(&[], &[&new]), new.pin()).unwrap();
    for bad in [
        reply(&[], &[&new, &old]),
        reply(&[&other], &[&new, &old]),
        reply(&[&old], &[&new]),
        reply(&[&other], &[&new, &other]),
    ] {
        let fault = accept(bad, old.pin()).unwrap_err();
        let refused = matches!(fault, IssuedFault::OtherAuthority | IssuedFault::Certificate(_));
        assert!(refused, "{fault}");
    }
}
