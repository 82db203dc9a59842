//! A snapshot on its way to a member: broken off after any part, damaged in any part, or whole. Until it is
//! whole nothing of it counts; the audit records that came before stay, and are what they must be.

use fleet_core::Fsm;
use fleet_proto::v1;
use fleet_proto::v1::raft_client::RaftClient;
use fleet_proto::v1::snapshot_part::Part;
use openraft::vote::RaftLeaderId;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tonic::Code;

use super::cluster::{anybody, serve, until};
use super::*;
use crate::audit::Query;
use crate::raft::called::called;
use crate::raft::types::{LogId, Membership, SnapshotMeta, StoredMembership, Vote};

const SENDER: u64 = 2;
const TERM: u64 = 5;
const INDEX: u64 = 40;

/// A state with its audit records, as the leader would send them.
struct Sent {
    fsm: Fsm,
    parts: Vec<Part>,
}

fn sent() -> Sent {
    let mut fsm = Fsm::new();
    let mut lines = Vec::new();
    for n in 1..=INDEX {
        let record = fsm.apply(n, &command(n)).audit.unwrap();
        lines.push(record.line + "\n");
    }
    let state = fsm.to_snapshot();
    let last = LogId::new(RaftLeaderId::new(TERM, SENDER), INDEX);
    let nodes = [(SENDER, openraft::BasicNode::new("127.0.0.1:1"))];
    let membership = Membership::new(vec![[SENDER].into()], BTreeMap::from(nodes)).unwrap();
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(last), membership),
    };
    let begin = v1::SnapshotBegin {
        cluster_id: called(CLUSTER),
        from: SENDER,
        to: 1,
        vote: serde_json::to_vec(&Vote::new_committed(TERM, SENDER)).unwrap(),
        meta: serde_json::to_vec(&meta).unwrap(),
        state_bytes: state.len() as u64,
        state_sha256: hex::encode(Sha256::digest(&state)),
        ..v1::SnapshotBegin::default()
    };
    let mut parts = vec![Part::Begin(begin)];
    parts.extend(lines.chunks(10).map(|lines| Part::AuditLines(lines.concat().into_bytes())));
    parts.extend(state.chunks(300).map(|piece| Part::State(piece.to_vec())));
    Sent { fsm, parts }
}

/// A member that waits to be brought up.
async fn receiver(dir: &Path, create: bool) -> RaftHandle {
    let config = RaftConfig { members: BTreeMap::new(), ..config(dir, create) };
    let_go(dir).await;
    super::super::start(config).await.unwrap()
}

async fn send(
    client: &mut RaftClient<tonic::transport::Channel>,
    parts: &[Part],
    broken_off: bool,
) -> Result<(), Code> {
    let parts: Vec<_> =
        parts.iter().map(|part| v1::SnapshotPart { part: Some(part.clone()) }).collect();
    let call = if broken_off {
        // The connection breaks: what was sent is there, and no end comes.
        let (sender, receiver) = tokio::sync::mpsc::channel(parts.len().max(1));
        for part in parts {
            sender.send(part).await.unwrap();
        }
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let call = client.install_snapshot(stream);
        let broken = tokio::time::timeout(Duration::from_millis(300), call).await;
        drop(sender);
        return match broken {
            Ok(Err(status)) => Err(status.code()),
            Ok(Ok(_)) => Ok(()),
            Err(_) => Err(Code::Cancelled),
        };
    } else {
        client.install_snapshot(tokio_stream::iter(parts))
    };
    tokio::time::timeout(PATIENCE, call).await.unwrap().map(|_| ()).map_err(|s| s.code())
}

async fn records(raft: &RaftHandle) -> Vec<String> {
    let page = raft.audit().query(Query::default()).await.unwrap();
    page.records.into_iter().map(|record| record.line + "\n").collect()
}

fn lines(parts: &[Part]) -> String {
    let audit = parts.iter().filter_map(|part| match part {
        Part::AuditLines(lines) => Some(String::from_utf8(lines.clone()).unwrap()),
        Part::Begin(_) | Part::State(_) => None,
    });
    audit.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_broken_off_anywhere_changes_no_state_and_the_whole_one_is_installed() {
    let dir = tempfile::tempdir().unwrap();
    let Sent { fsm, parts } = sent();
    let mut raft = receiver(dir.path(), true).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut server = serve(&raft, listener, anybody());
    let mut client = RaftClient::connect(address.clone()).await.unwrap();
    let untouched = |raft: &RaftHandle| {
        assert_eq!(raft.read(Fsm::applied), 0);
        assert_eq!(raft.status().snapshot_index, None);
        assert!(!dir.path().join("snapshot").exists());
    };

    for k in 0..parts.len() {
        assert!(send(&mut client, &parts[..k], k % 2 == 0).await.is_err(), "{k} parts");
        untouched(&raft);
        // What is stored of the audit log is the beginning of what was sent, each record whole.
        assert!(lines(&parts).starts_with(&records(&raft).await.concat()), "{k} parts");
    }
    // Killed and started between two tries, it takes the whole one.
    drop(client);
    server.stop().await;
    raft.shutdown().await;
    drop(raft);
    raft = receiver(dir.path(), false).await;
    untouched(&raft);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    server = serve(&raft, listener, anybody());
    client = RaftClient::connect(address).await.unwrap();
    assert_eq!(send(&mut client, &parts, false).await, Ok(()));
    until("installed", || (raft.read(Fsm::applied) == INDEX).then_some(())).await;
    assert_eq!(raft.read(Fsm::digest), fsm.digest());
    assert_eq!(records(&raft).await.concat(), lines(&parts));
    drop(client);
    server.stop().await;
    raft.shutdown().await;
    drop(raft);
    let raft = receiver(dir.path(), false).await;
    assert_eq!(raft.read(Fsm::digest), fsm.digest());
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_damaged_in_any_part_is_refused_and_changes_no_state() {
    let dir = tempfile::tempdir().unwrap();
    let Sent { parts, .. } = sent();
    let raft = receiver(dir.path(), true).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = serve(&raft, listener, anybody());
    let mut client = RaftClient::connect(address).await.unwrap();
    for (at, part) in parts.iter().enumerate().skip(1) {
        let mut damaged = parts.clone();
        let (bytes, expected) = match &mut damaged[at] {
            Part::AuditLines(bytes) => (bytes, Code::InvalidArgument),
            Part::State(bytes) => (bytes, Code::DataLoss),
            Part::Begin(_) => panic!("it begins twice"),
        };
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x01;
        let answer = send(&mut client, &damaged, false).await;
        assert_eq!(answer, Err(expected), "part {at}: {part:.20?}");
        assert_eq!(raft.read(Fsm::applied), 0);
        assert!(!dir.path().join("snapshot").exists());
        assert!(lines(&parts).starts_with(&records(&raft).await.concat()), "part {at}");
    }
    drop(client);
    server.stop().await;
    raft.shutdown().await;
}
