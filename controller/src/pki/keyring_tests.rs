//! Authorities on the disk while one is exchanged for another: followed, restarted at each stage, destroyed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fleet_core::authority::{Authorities, Known, Rotation, Stage};
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::SharedCredentials;
use fleet_proto::transport::identity::{is_signed_by, key_pin_of};
use fleet_proto::transport::issued;
use fleet_proto::transport::keys::OwnKey;

use super::*;

const NOW: Timestamp = Timestamp(1_795_000_000_000);

fn id() -> NodeName {
    NodeName::parse("controller-1").unwrap()
}

/// A controller: its folder, and what it serves with.
struct Controller {
    _root: tempfile::TempDir,
    pki: PathBuf,
    keyring: Keyring,
    shared: SharedCredentials,
}

impl Controller {
    fn at(root: tempfile::TempDir) -> Self {
        let pki = root.path().join("pki");
        let keyring = Keyring::load(&pki).unwrap();
        let own = keyring.own_credentials(&id(), NOW).unwrap();
        Self { pki, keyring, shared: SharedCredentials::new(own).unwrap(), _root: root }
    }

    fn first() -> Self {
        let root = tempfile::tempdir().unwrap();
        Authority::create(&root.path().join("pki"), NOW).unwrap();
        Self::at(root)
    }

    fn joined(to: &Controller) -> Self {
        let root = tempfile::tempdir().unwrap();
        Authority::install(&root.path().join("pki"), &to.keyring.to_wire()).unwrap();
        Self::at(root)
    }

    fn follows(&self, state: &Authorities) -> bool {
        let complete = self.keyring.follow(state).unwrap();
        self.keyring.renew_own(&id(), NOW, &self.shared).unwrap();
        complete
    }

    /// What a start of the program finds.
    fn restarted(self) -> Self {
        Self::at(self._root)
    }

    fn keys(&self) -> usize {
        let names = std::fs::read_dir(&self.pki).unwrap().map(|e| e.unwrap().file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("ca") && name.ends_with(".key")).count()
    }

    fn signing(&self) -> String {
        self.keyring.signing().pin().to_string()
    }

    fn signed_by(&self) -> String {
        self.keyring.own().signed_by.unwrap().to_string()
    }
}

fn at(stage: Stage, from: &Known, to: &Known, version: u64) -> Authorities {
    let rotation = Rotation {
        stage,
        from: from.clone(),
        to: to.clone(),
        by: "ada".to_owned(),
        started_at: NOW,
        moving_since: None,
        nodes: BTreeSet::new(),
        skipped: BTreeSet::new(),
        users_skipped: false,
    };
    Authorities { rotation: Some(rotation), version, ..Authorities::default() }
}

fn settled(current: &Known, retired: &Known, version: u64) -> Authorities {
    let current = Known { vouched: String::new(), ..current.clone() };
    let retired = vec![retired.pin.clone()];
    Authorities { current: Some(current), rotation: None, retired, version }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn two_controllers_go_from_one_authority_to_the_other() {
    let first = Controller::first();
    let second = Controller::joined(&first);
    let old = first.signing();
    assert!(first.follows(&Authorities::default()), "nothing was ever exchanged");
    let (from, to) = first.keyring.begin(NOW).unwrap();
    assert_eq!((from.pin.clone(), first.signing()), (old.clone(), old.clone()), "nothing changes");

    let spreading = at(Stage::Spreading, &from, &to, 1);
    assert!(first.follows(&spreading));
    assert!(!second.follows(&spreading), "the key is missing");
    assert_eq!(second.keyring.own().ready.len(), 1);
    assert!(second.keyring.trusts(to.pin.parse().unwrap()), "trusted all the same");
    second.keyring.take(&first.keyring.to_wire(), &spreading).unwrap();
    assert!(second.follows(&spreading));
    assert_eq!((second.keyring.own().ready.len(), second.signed_by()), (2, old.clone()));
    let second = second.restarted();
    assert_eq!(second.signing(), old);
    assert!(second.follows(&spreading));

    let moving = at(Stage::Moving, &from, &to, 2);
    for one in [&first, &second] {
        assert!(one.follows(&moving));
        assert_eq!((one.signing(), one.signed_by()), (to.pin.clone(), to.pin.clone()));
        let own = one.shared.current();
        assert_eq!(own.authorities().len(), 2);
    }
    // Before a restarted controller has heard of the state, it keeps signing as before.
    let second = second.restarted();
    assert_eq!(second.signing(), to.pin);
    assert!(second.follows(&moving));

    let over = settled(&to, &from, 3);
    for one in [&first, &second] {
        assert_eq!(one.keys(), 2);
        assert!(one.follows(&over));
        assert_eq!((one.keys(), one.shared.current().authorities().len()), (1, 1));
        assert!(!one.keyring.trusts(old.parse().unwrap()));
        let retired: Vec<_> =
            std::fs::read_dir(&one.pki).unwrap().map(|e| e.unwrap().path()).collect();
        let retired = retired.iter().find(|path| path.to_string_lossy().contains("/retired-"));
        assert_eq!(text(retired.unwrap()), from.certificate, "for exports signed under it");
    }
    let second = second.restarted();
    assert_eq!((second.signing(), second.keyring.to_wire().len()), (to.pin, 1));
    assert!(second.follows(&over));
}

#[test]
fn what_is_issued_while_both_are_trusted_is_believed_by_who_knows_the_old_one() {
    let controller = Controller::first();
    let old = controller.keyring.signing();
    let (from, to) = controller.keyring.begin(NOW).unwrap();
    controller.follows(&at(Stage::Moving, &from, &to, 1));
    let key = OwnKey::generate().unwrap();
    let request = SigningRequest::parse(&key.signing_request().unwrap()).unwrap();
    let by = controller.keyring.signing();
    let issued = by.issue_node(&request, &NodeName::parse("titan01").unwrap(), NOW).unwrap();
    let reply = controller.keyring.reply(&issued, &by, NOW, Vec::new());
    let accepted = issued::accept(Some(reply), &key, &[old.pin()], "titan01", |_| true).unwrap();
    assert_eq!(accepted.credentials.signer(), Some(by.pin()));
    assert_eq!(accepted.credentials.authorities().len(), 2);
    // The way back: the old one signs again, and is believed by who knows the new one only.
    controller.follows(&at(Stage::Moving, &to, &from, 2));
    assert_eq!(controller.signing(), old.pin().to_string());
    let issued = old.issue_node(&request, &NodeName::parse("titan01").unwrap(), NOW).unwrap();
    let reply = controller.keyring.reply(&issued, &old, NOW, Vec::new());
    issued::accept(Some(reply), &key, &[by.pin()], "titan01", |_| true).unwrap();
}

#[test]
fn one_that_was_given_up_leaves_nothing_behind() {
    let controller = Controller::first();
    let (from, to) = controller.keyring.begin(NOW).unwrap();
    controller.follows(&at(Stage::Spreading, &from, &to, 1));
    assert_eq!(controller.keys(), 2);
    assert!(controller.follows(&settled(&from, &to, 2)));
    assert_eq!((controller.keys(), controller.signing()), (1, from.pin.clone()));
    assert_eq!(text(&controller.pki.join("ca.crt")), from.certificate);
    // The log refused it: nobody ever heard of it.
    let (_, to) = controller.keyring.begin(NOW).unwrap();
    controller.keyring.discard(&to.pin).unwrap();
    assert_eq!(controller.keys(), 1);
}

#[test]
fn keys_of_authorities_that_nobody_decided_on_are_not_taken() {
    let (own, other) = (Controller::first(), Controller::first());
    let (from, to) = own.keyring.begin(NOW).unwrap();
    let state = at(Stage::Spreading, &from, &to, 1);
    own.keyring.take(&other.keyring.to_wire(), &state).unwrap();
    assert_eq!(own.keys(), 2, "its own two");
    let mut broken = other.keyring.to_wire();
    broken[0].key_pem = "no key".to_owned();
    own.keyring.take(&broken, &state).unwrap_err();
}

#[test]
fn audit_exports_are_signed_under_the_authority_that_signs() {
    let controller = Controller::first();
    let old = controller.keyring.signing();
    let signer = AuditSigner::load_or_create(&old, &controller.pki, &id(), NOW).unwrap();
    let (from, to) = controller.keyring.begin(NOW).unwrap();
    controller.follows(&at(Stage::Moving, &from, &to, 1));
    let new = controller.keyring.signing();
    let before = signer.sign(b"tail").unwrap();
    signer.renew(&new, &controller.pki, &id(), NOW).unwrap();
    let after = signer.sign(b"tail").unwrap();
    let of = |by: &Authority, signed: &AuditSignature| {
        is_signed_by(&signed.certificate_der, by.certificate_der()).unwrap()
    };
    assert!(of(&old, &before) && !of(&new, &before) && of(&new, &after));
    signer.renew(&new, &controller.pki, &id(), NOW).unwrap();
    assert_eq!(signer.sign(b"x").unwrap().certificate_der, after.certificate_der, "kept");
    assert_eq!(key_pin_of(new.certificate_der()), Ok(new.pin()));
}
