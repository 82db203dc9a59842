//! Each kind of bad certificate, and the reason it is refused for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::id::ClusterId;
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::fixture::{CLUSTER, Ca, Leaf, now};
use crate::transport::identity::CertificateFault as Fault;
use crate::transport::verify::{ClientCheck, PinCheck, ServerCheck, Standing};
use crate::transport::{PeerCertificate, Revocations, crypto_provider};

fn cluster() -> ClusterId {
    ClusterId::parse(CLUSTER).unwrap()
}

fn roots(ca: &Ca) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der.clone()).unwrap();
    Arc::new(roots)
}

fn time() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now()))
}

fn client_check(ca: &Ca, revocations: Revocations) -> ClientCheck {
    ClientCheck::new(cluster(), roots(ca), revocations, crypto_provider()).unwrap()
}

/// The name of a fault's variant.
fn kind(fault: &Fault) -> String {
    let text = format!("{fault:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

/// Leaves that are bad for every reader.
fn bad_leaves(good: &Leaf) -> Vec<(&'static str, Leaf, &'static str)> {
    let change = |edit: &dyn Fn(&mut Leaf)| {
        let mut leaf = good.clone();
        edit(&mut leaf);
        leaf
    };
    let uri = good.uris[0].clone();
    let second = uri.replace(CLUSTER, "fleet-second");
    vec![
        ("no SAN", change(&|l| l.uris.clear()), "NoIdentity"),
        ("two URI SANs", change(&|l| l.uris.push(second.clone())), "ManyIdentities"),
        ("the same URI twice", change(&|l| l.uris.push(uri.clone())), "ManyIdentities"),
        ("no fleet URI", change(&|l| l.uris[0] = "https://example.org".into()), "BadIdentity"),
        (
            "unknown role",
            change(&|l| l.uris[0] = format!("fleet://{CLUSTER}/root/x")),
            "BadIdentity",
        ),
        (
            "escape in name",
            change(&|l| l.uris[0] = format!("fleet://{CLUSTER}/node/a\x1b")),
            "BadIdentity",
        ),
        ("other cluster", change(&|l| l.uris[0] = second.clone()), "OtherCluster"),
        ("long expired", change(&|l| l.valid = (-90 * 86_400, -31 * 86_400)), "Expired"),
        ("not yet valid", change(&|l| l.valid = (3600, 7200)), "NotYetValid"),
        ("CA:TRUE", change(&|l| l.is_ca = true), "IsAuthority"),
        ("no usage", change(&|l| l.usages.clear()), "WrongUsage"),
        ("other usage", change(&|l| l.usages = vec![CodeSigning]), "WrongUsage"),
    ]
}

#[test]
fn a_bad_client_certificate_is_refused_for_the_right_reason() {
    let (ca, other) = (Ca::new(), Ca::new());
    let check = client_check(&ca, Revocations::default());
    let verdict = |issuer: &Ca, leaf: &Leaf| check.check(&issuer.leaf(leaf).0, &[], time());

    let (peer, standing) = verdict(&ca, &Leaf::node("titan01")).unwrap();
    assert_eq!(standing, Standing::Valid);
    assert_eq!(peer.identity.to_string(), format!("fleet://{CLUSTER}/node/titan01"));
    assert!(verdict(&ca, &Leaf::controller()).is_ok());

    let mut table = bad_leaves(&Leaf::node("titan01"));
    let audit = Leaf::of(&format!("fleet://{CLUSTER}/audit/c1"), &[ClientAuth]);
    table.push(("server only", Leaf::of(&Leaf::node("a").uris[0], &[ServerAuth]), "WrongUsage"));
    table.push(("audit signer", audit, "WrongRole"));
    for (what, leaf, expected) in table {
        let fault = verdict(&ca, &leaf).unwrap_err();
        assert_eq!(kind(&fault), expected, "{what}: {fault}");
    }
    let fault = verdict(&other, &Leaf::node("titan01")).unwrap_err();
    assert_eq!(fault, Fault::UntrustedIssuer, "another CA of the same name");
    let fault = verdict(&other, &Leaf::node("titan01").valid(-7200, -3600)).unwrap_err();
    assert_eq!(fault, Fault::UntrustedIssuer, "another CA, expired");
}

#[test]
fn a_bad_server_certificate_is_refused_for_the_right_reason() {
    let (ca, other) = (Ca::new(), Ca::new());
    let known = ServerCheck::new(cluster(), roots(&ca), crypto_provider());
    let pinned = PinCheck::new(ca.pin(), crypto_provider());
    let verdicts = |leaf: &Leaf| -> [Result<PeerCertificate, Fault>; 2] {
        let (leaf, _) = ca.leaf(leaf);
        let chain = [ca.der.clone()];
        [known.check(&leaf, &chain, time()), pinned.check(&leaf, &chain, time())]
    };
    for verdict in verdicts(&Leaf::controller()) {
        verdict.unwrap();
    }
    let mut table = bad_leaves(&Leaf::controller());
    table.push(("expired a minute ago", Leaf::controller().valid(-600, -60), "Expired"));
    table.push(("a node's", Leaf::node("titan01"), "WrongRole"));
    let node = Leaf::of(&Leaf::node("titan01").uris[0], &[ServerAuth]);
    table.push(("a node's, marked for servers", node, "WrongRole"));
    let client = Leaf::of(&Leaf::controller().uris[0], &[ClientAuth]);
    table.push(("client only", client, "WrongUsage"));
    for (what, leaf, expected) in table {
        let [known, pinned] = verdicts(&leaf);
        assert_eq!(kind(&known.unwrap_err()), expected, "{what}, known CA");
        if expected == "OtherCluster" {
            // A joining node learns the cluster here; the pin stands for it.
            pinned.unwrap();
        } else {
            assert_eq!(kind(&pinned.unwrap_err()), expected, "{what}, pinned CA");
        }
    }
    let (leaf, _) = other.leaf(&Leaf::controller());
    let chain = [other.der.clone()];
    assert_eq!(known.check(&leaf, &chain, time()), Err(Fault::UntrustedIssuer));
}

#[test]
fn the_pinned_ca_must_be_in_the_chain_and_have_signed_the_leaf() {
    let (ca, other) = (Ca::new(), Ca::new());
    let check = PinCheck::new(ca.pin(), crypto_provider());
    let (own, _) = ca.leaf(&Leaf::controller());
    let (foreign, _) = other.leaf(&Leaf::controller());
    let verdict = |leaf: &CertificateDer<'_>, chain: &[&Ca]| {
        let chain: Vec<_> = chain.iter().map(|ca| ca.der.clone()).collect();
        check.check(leaf, &chain, time())
    };
    verdict(&own, &[&ca]).unwrap();
    verdict(&own, &[&other, &ca]).unwrap();
    for (leaf, chain) in [(&own, vec![]), (&own, vec![&other]), (&foreign, vec![&other])] {
        let fault = verdict(leaf, &chain).unwrap_err();
        assert!(matches!(fault, Fault::PinMismatch { .. }), "{fault}");
    }
    // The pinned certificate is public: showing it proves nothing.
    let fault = verdict(&foreign, &[&ca]).unwrap_err();
    assert_eq!(fault, Fault::UntrustedIssuer);
    let fault = verdict(&own, &[&other, &other, &other, &ca]).unwrap_err();
    assert_eq!(kind(&fault), "BadChain");
}

#[test]
fn only_a_nodes_expired_certificate_still_serves_for_renewal() {
    let ca = Ca::new();
    let check = client_check(&ca, Revocations::default());
    let verdict = |leaf: &Leaf| check.check(&ca.leaf(leaf).0, &[], time());
    let day = 86_400;
    let (_, standing) = verdict(&Leaf::node("a").valid(-30 * day, -29 * day)).unwrap();
    assert_eq!(standing, Standing::Expired);
    let user = Leaf::of(&format!("fleet://{CLUSTER}/user/ada"), &[ClientAuth]).valid(-600, -5);
    for leaf in [user, Leaf::controller().valid(-600, -5)] {
        let fault = verdict(&leaf).unwrap_err();
        assert_eq!(kind(&fault), "Expired", "{fault}");
    }
}

#[test]
fn a_revoked_serial_or_identity_is_refused() {
    let ca = Ca::new();
    let revocations = Revocations::default();
    let check = client_check(&ca, revocations.clone());
    let (leaf, _) = ca.leaf(&Leaf::node("titan01"));
    let (expired, _) = ca.leaf(&Leaf::node("titan01").valid(-600, -5));
    let (peer, _) = check.check(&leaf, &[], time()).unwrap();
    revocations.replace(BTreeSet::from([peer.serial.clone()]));
    assert_eq!(check.check(&leaf, &[], time()), Err(Fault::Revoked));
    assert!(check.check(&expired, &[], time()).is_ok());
    revocations.replace(BTreeSet::from([peer.identity.to_string()]));
    assert_eq!(check.check(&expired, &[], time()), Err(Fault::Revoked));
    revocations.replace(BTreeSet::new());
    assert!(check.check(&leaf, &[], time()).is_ok());
}

#[test]
fn every_cut_and_flip_of_a_certificate_is_refused_or_changes_nothing() {
    let ca = Ca::new();
    let check = client_check(&ca, Revocations::default());
    let (good, _) = ca.leaf(&Leaf::node("titan01"));
    let (whole, _) = check.check(&good, &[], time()).unwrap();
    for cut in 0..good.len() {
        assert!(check.check(&CertificateDer::from(&good[..cut]), &[], time()).is_err(), "{cut}");
    }
    for index in 0..good.len() {
        let mut bytes = good.to_vec();
        bytes[index] ^= 0x01;
        if let Ok((found, _)) = check.check(&CertificateDer::from(bytes), &[], time()) {
            assert_eq!(found, whole, "flipped at {index}");
        }
    }
    let huge = CertificateDer::from(vec![0x30; 1 << 20]);
    assert_eq!(kind(&check.check(&huge, &[], time()).unwrap_err()), "Unreadable");
}
