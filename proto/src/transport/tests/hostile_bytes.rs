//! Hostile bytes for certificates, keys, tokens and messages: refused or read, never a panic.

use fleet_hostile_bytes::{throw_at, throw_text_at};
use prost::Message;

use super::fixture::{Ca, Leaf};
use crate::convert::wish;
use crate::json;
use crate::transport::credentials::Credentials;
use crate::transport::identity::{
    PeerCertificate, is_authority, is_signed_by, key_pin_of, validity_of,
};
use crate::transport::keys::{OwnKey, certificate_pem};
use crate::transport::signature::verify_audit_signature;
use crate::transport::user::{from_line, to_line};
use crate::transport::{Address, Identity, JoinToken, Secret, SpkiPin};
use crate::v1;

#[test]
fn certificates() {
    let ca = Ca::new();
    let (leaf, _) = ca.leaf(&Leaf::node("titan01"));
    let signs = |der: &[u8]| is_signed_by(der, &ca.der).unwrap_or(false);
    assert!(signs(&leaf));
    throw_at(&[leaf.to_vec(), ca.der.to_vec()], |der| {
        drop(PeerCertificate::parse(der));
        drop(key_pin_of(der));
        drop(validity_of(der));
        drop(is_authority(der));
        // What is not signed, around it, may differ.
        let pins = [&leaf, &ca.der].map(|good| key_pin_of(good).ok());
        assert!(!signs(der) || pins.contains(&key_pin_of(der).ok()), "a forged one");
        drop(verify_audit_signature(der, &leaf, b"text", b"signature"));
        drop(verify_audit_signature(&ca.der, der, b"text", b"signature"));
    });
}

#[test]
fn signatures() {
    let ca = Ca::new();
    let (leaf, _) = ca.leaf(&Leaf::of("fleet://fleet-testtest/audit/c1", &[]));
    throw_at(&[[0x30, 0x06, 2, 1, 1, 2, 1, 1]], |signature| {
        assert!(verify_audit_signature(&ca.der, &leaf, b"text", signature).is_err());
    });
}

#[test]
fn files_of_certificates_and_keys() {
    let ca = Ca::new();
    let (leaf, key) = ca.leaf(&Leaf::node("titan01"));
    let (authority, leaf) = (certificate_pem(&ca.der), certificate_pem(&leaf));
    throw_text_at(&[&authority, &leaf, &key], |pem| {
        drop(OwnKey::from_pem(&Secret::new(pem.to_owned())));
        drop(Credentials::from_pem(pem.as_bytes(), key.as_bytes(), authority.as_bytes()));
        drop(Credentials::from_pem(leaf.as_bytes(), pem.as_bytes(), authority.as_bytes()));
        drop(Credentials::from_pem(leaf.as_bytes(), key.as_bytes(), pem.as_bytes()));
    });
}

#[test]
fn tokens_addresses_and_identities() {
    let ca = Ca::new();
    let pin = ca.pin().to_string();
    let good = ["fleet://fleet-a/node/titan01", "fleet.lab.example:7443", "[::1]:7443", &pin];
    throw_text_at(&good, |text| {
        drop(text.parse::<JoinToken>());
        drop(text.parse::<SpkiPin>());
        drop(text.parse::<Address>());
        if let Ok(identity) = text.parse::<Identity>() {
            assert_eq!(identity.to_string(), text);
        }
    });
}

#[test]
fn certificates_as_a_line_of_text() {
    let issued = v1::IssuedCertificate { certificate_der: vec![7; 300], ..Default::default() };
    throw_text_at(&[to_line(&issued)], |line| drop(from_line(line)));
}

/// What users ask for: read from the wire, then checked.
#[test]
fn requests_of_users() {
    let spec = v1::JobSpec {
        argv: vec!["python3".to_owned(), "train.py".to_owned()],
        env: vec![v1::KeyValue { key: "A".to_owned(), value: "1".to_owned() }],
        workdir: "/home/ada".to_owned(),
        image: "host".to_owned(),
        gpus: Some(v1::GpuWish { count: 2, model: "v100".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let submit = v1::SubmitJobRequest { spec: Some(spec.clone()), ..Default::default() };
    let reserve = v1::CreateReservationRequest { gpus: spec.gpus.clone(), ..Default::default() };
    throw_at(&[submit.encode_to_vec(), reserve.encode_to_vec(), spec.encode_to_vec()], |bytes| {
        if let Ok(request) = v1::SubmitJobRequest::decode(bytes)
            && let Some(spec) = &request.spec
        {
            drop(wish::job_spec(spec, Some(1_000)));
        }
        if let Ok(spec) = v1::JobSpec::decode(bytes) {
            drop(wish::job_spec(&spec, None));
        }
        if let Ok(request) = v1::CreateReservationRequest::decode(bytes) {
            drop(wish::gpus(request.gpus.as_ref()));
        }
    });
}

/// What the command line shows and prints as JSON.
#[test]
fn answers_of_controllers() {
    let job = v1::Job { id: "job-a".to_owned(), state: "running".to_owned(), ..Default::default() };
    let node = v1::Node { name: "titan01".to_owned(), ..Default::default() };
    let gpu =
        v1::Gpu { uuid: "GPU-1".to_owned(), node: "titan01".to_owned(), ..Default::default() };
    throw_at(&[job.encode_to_vec(), node.encode_to_vec(), gpu.encode_to_vec()], |bytes| {
        drop(v1::Job::decode(bytes).map(json::job::Job::from));
        drop(v1::Node::decode(bytes).map(json::node::Node::from));
        drop(v1::Gpu::decode(bytes).map(json::gpu::Gpu::from));
        drop(v1::Reservation::decode(bytes).map(json::reservation::Reservation::from));
        drop(v1::Checkpoint::decode(bytes).map(json::checkpoint::Checkpoint::from));
        drop(v1::Explanation::decode(bytes).map(json::story::Story::from));
        drop(v1::Status::decode(bytes).map(json::status::Status::from));
    });
}

/// What agents and controllers send each other, as far as the wire format goes.
#[test]
fn messages_of_agents() {
    let hello = v1::AgentMessage::default().encode_to_vec();
    throw_at(&[hello], |bytes| {
        drop(v1::AgentMessage::decode(bytes));
        drop(v1::ControllerMessage::decode(bytes));
        drop(v1::JoinRequest::decode(bytes));
        drop(v1::RaftRequest::decode(bytes));
        drop(v1::NodeStatus::decode(bytes).map(json::local::NodeStatus::from));
    });
}
