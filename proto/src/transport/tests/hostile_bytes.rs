//! Hostile bytes for certificates, keys, tokens and messages: refused or read, never a panic.

use fleet_hostile_bytes::{throw_at, throw_text_at};
use prost::Message;
use rcgen::{KeyPair, SigningKey as _};

use super::fixture::{Ca, Leaf};
use crate::convert::wish;
use crate::json;
use crate::transport::credentials::Credentials;
use crate::transport::identity::{
    PeerCertificate, is_authority, is_signed_by, key_pin_of, parse_x509, validity_of,
};
use crate::transport::keys::{OwnKey, certificate_pem};
use crate::transport::signature::verify_audit_signature;
use crate::transport::user::{from_line, to_line};
use crate::transport::{Address, Identity, JoinToken, Secret, SpkiPin};
use crate::v1;

/// Whether these bytes are this message, with nothing that it would not write again.
fn is_whole<M: Message + Default>(bytes: &[u8]) -> bool {
    M::decode(bytes).is_ok_and(|message| message.encode_to_vec() == bytes)
}

/// The part of a certificate that its signature covers.
fn signed_part(der: &[u8]) -> Option<Vec<u8>> {
    parse_x509(der).ok().map(|certificate| certificate.tbs_certificate.as_ref().to_vec())
}

#[test]
fn certificates() {
    let ca = Ca::new();
    let (leaf, _) = ca.leaf(&Leaf::node("titan01"));
    let signs = |der: &[u8]| is_signed_by(der, &ca.der).unwrap_or(false);
    let good = [&leaf, &ca.der].map(|der| signed_part(der));
    // Another name that fits, in the same place.
    let at = leaf.windows(7).position(|part| part == b"titan01").unwrap();
    let mut forged = leaf.to_vec();
    forged[at + 6] = b'2';
    assert!(PeerCertificate::parse(&forged).is_ok() && !signs(&forged));
    throw_at(&[leaf.to_vec(), ca.der.to_vec()], |der| {
        let peer = PeerCertificate::parse(der).is_ok();
        let authority = is_authority(der).unwrap_or(false);
        let read = key_pin_of(der).is_ok() & validity_of(der).is_ok();
        // Names, validity, usages and key are in the signed part. Bytes around it may differ, as the signature's padding: nobody
        // identifies a certificate by them.
        assert!(!signs(der) || good.contains(&signed_part(der)), "a forged one");
        drop(verify_audit_signature(der, &leaf, b"text", b"signature"));
        drop(verify_audit_signature(&ca.der, der, b"text", b"signature"));
        signs(der) && read && (peer || authority)
    });
}

#[test]
fn signatures() {
    let ca = Ca::new();
    let (leaf, key) = ca.leaf(&Leaf::of("fleet://fleet-testtest/audit/c1", &[]));
    let good = KeyPair::from_pem(&key).unwrap().sign(b"text").unwrap();
    throw_at(&[&good], |signature| {
        let verifies = verify_audit_signature(&ca.der, &leaf, b"text", signature).is_ok();
        assert_eq!(verifies, signature == good, "a forged one");
        assert!(verify_audit_signature(&ca.der, &leaf, b"another text", signature).is_err());
        verifies
    });
}

#[test]
fn files_of_certificates_and_keys() {
    let ca = Ca::new();
    let (leaf, key) = ca.leaf(&Leaf::node("titan01"));
    let (authority, leaf) = (certificate_pem(&ca.der), certificate_pem(&leaf));
    throw_text_at(&[&authority, &leaf, &key], |pem| {
        let own = OwnKey::from_pem(&Secret::new(pem.to_owned())).is_ok();
        let load = |leaf: &str, key: &str, authority: &str| {
            Credentials::from_pem(leaf.as_bytes(), key.as_bytes(), authority.as_bytes()).is_ok()
        };
        let loaded =
            [load(pem, &key, &authority), load(&leaf, pem, &authority), load(&leaf, &key, pem)];
        own && loaded[1] || loaded[0] || loaded[2]
    });
}

#[test]
fn tokens_addresses_and_identities() {
    let ca = Ca::new();
    let pin = ca.pin().to_string();
    let good = ["fleet://fleet-a/node/titan01", "fleet.lab.example:7443", "[::1]:7443", &pin];
    throw_text_at(&good, |text| {
        let identity = text.parse::<Identity>().ok().map(|identity| identity.to_string());
        assert!(identity.as_ref().is_none_or(|identity| identity == text), "{identity:?}");
        text.parse::<JoinToken>().is_ok()
            | text.parse::<SpkiPin>().is_ok()
            | text.parse::<Address>().is_ok()
            | identity.is_some()
    });
}

#[test]
fn certificates_as_a_line_of_text() {
    let issued = v1::IssuedCertificate { certificate_der: vec![7; 300], ..Default::default() };
    throw_text_at(&[to_line(&issued)], |line| from_line(line).is_some());
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
        let submitted = v1::SubmitJobRequest::decode(bytes).ok().and_then(|request| request.spec);
        let submitted = submitted.is_some_and(|spec| wish::job_spec(&spec, Some(1_000)).is_ok());
        let wished = v1::JobSpec::decode(bytes);
        let wished = wished.is_ok_and(|spec| wish::job_spec(&spec, None).is_ok());
        let reserved = v1::CreateReservationRequest::decode(bytes);
        let reserved = reserved.is_ok_and(|request| wish::gpus(request.gpus.as_ref()).is_ok());
        submitted | wished | reserved
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
        is_whole::<v1::Job>(bytes) | is_whole::<v1::Node>(bytes) | is_whole::<v1::Gpu>(bytes)
    });
}

/// What agents and controllers send each other, as far as the wire format goes.
#[test]
fn messages_of_agents() {
    let allocation = "alloc-4k7wq2-1".to_owned();
    let process = v1::MeasuredProcess { pid: 7, name: "python3".to_owned(), ..Default::default() };
    let heartbeat = v1::AgentHeartbeat {
        sent_boottime_ms: 5,
        gpus: vec![v1::MeasuredGpu {
            uuid: "GPU-1".to_owned(),
            utilization_percent: Some(3),
            processes: vec![process],
            ..Default::default()
        }],
        allocations: vec![allocation.clone()],
        jobs: vec![v1::MeasuredJob {
            allocation: allocation.clone(),
            r#use: Some(v1::JobUse { cpu_usec: Some(9), ..Default::default() }),
        }],
        ..Default::default()
    };
    let heartbeat =
        v1::AgentMessage { message: Some(v1::agent_message::Message::Heartbeat(heartbeat)) };
    let ordered = |message| v1::ControllerMessage { message: Some(message) }.encode_to_vec();
    let desired = ordered(v1::controller_message::Message::Desired(v1::Desired {
        incarnation: 1,
        term: 2,
        applied_index: 3,
        desired_json: b"{\"jobs\":[]}".to_vec(),
    }));
    let output = v1::TunnelOutput { tail_lines: 10, follow: true, ..Default::default() };
    let tunnel = ordered(v1::controller_message::Message::OpenTunnel(v1::OpenTunnel {
        tunnel_id: "tunnel-1".to_owned(),
        allocation,
        purpose: Some(v1::open_tunnel::Purpose::Output(output)),
    }));
    throw_at(&[heartbeat.encode_to_vec(), desired, tunnel], |bytes| {
        drop(v1::JoinRequest::decode(bytes));
        drop(v1::RaftRequest::decode(bytes));
        drop(v1::NodeStatus::decode(bytes).map(json::local::NodeStatus::from));
        let sent = v1::AgentMessage::decode(bytes).ok().and_then(|message| message.message);
        let got = v1::ControllerMessage::decode(bytes).ok().and_then(|message| message.message);
        let known = sent.is_some() | got.is_some();
        known && is_whole::<v1::AgentMessage>(bytes) | is_whole::<v1::ControllerMessage>(bytes)
    });
}
