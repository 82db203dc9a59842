//! One voter: durable, readable, restartable.

use std::sync::Mutex;

use fleet_core::command::{AuditCommand, NodeCommand};
use fleet_core::name::NodeName;
use fleet_core::{AuthMethod, Fsm, Who};

use super::*;
use crate::audit::Query;
use crate::fatal::Fatal;
use crate::raft::ProposeError;

#[tokio::test]
async fn what_is_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    for n in 1..=20 {
        raft.propose(command(n)).await.unwrap().reply.unwrap();
    }
    raft.ensure_linearizable().await.unwrap();
    let before = raft.read(|fsm| (fsm.incarnation(), fsm.applied(), fsm.digest()));
    assert_eq!(before.0, 20);
    let records = raft.audit().query(Query::default()).await.unwrap().records;
    assert_eq!(records.len(), 20);
    raft.shutdown().await;
    drop(raft);

    let raft = single(dir.path(), false).await.unwrap();
    raft.ensure_linearizable().await.unwrap();
    assert_eq!(raft.read(|fsm| (fsm.incarnation(), fsm.applied(), fsm.digest())), before);
    assert_eq!(raft.audit().query(Query::default()).await.unwrap().records, records);
    raft.propose(command(21)).await.unwrap().reply.unwrap();
    assert_eq!(raft.incarnation(), 21);
    raft.shutdown().await;
}

/// An entry that the others applied may be missing on the disk of a leader that lost power; going on in the
/// same term it would give that index to another command.
#[tokio::test]
async fn a_leader_that_starts_again_is_elected_anew() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    raft.propose(command(1)).await.unwrap().reply.unwrap();
    let term = raft.leadership().borrow().term;
    raft.shutdown().await;
    drop(raft);
    let raft = single(dir.path(), false).await.unwrap();
    let mut leadership = raft.leadership();
    let leads = leadership.wait_for(|now| now.is_leader);
    let anew = tokio::time::timeout(PATIENCE, leads).await.unwrap().unwrap().term;
    assert!(anew > term, "term {term}, then {anew}");
    raft.shutdown().await;
}

#[tokio::test]
async fn a_restart_from_snapshot_and_purged_log_gives_the_same_state() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single_small(dir.path(), true).await.unwrap();
    for n in 1..=200 {
        raft.propose(command(n)).await.unwrap().reply.unwrap();
    }
    let purged = async {
        while raft.status().purged_index.is_none_or(|at| at < 100) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, purged).await.unwrap();
    let before = raft.read(|fsm| (fsm.incarnation(), fsm.applied(), fsm.digest()));
    raft.shutdown().await;
    drop(raft);
    let raft = single_small(dir.path(), false).await.unwrap();
    raft.ensure_linearizable().await.unwrap();
    assert_eq!(raft.read(|fsm| (fsm.incarnation(), fsm.applied(), fsm.digest())), before);
    let page = raft.audit().query(Query::default()).await.unwrap();
    assert_eq!(page.records.len(), 200, "the audit log keeps what the log has purged");
    raft.shutdown().await;
}

/// The digests of members compare what is stored, and an index is not: each member compares its own with its state.
#[tokio::test]
async fn a_member_with_a_wrong_index_stops_at_its_next_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
    let hook = Arc::clone(&told);
    let fatal = FatalHook::with(move |fatal| hook.lock().unwrap().push(fatal.clone()));
    let raft = super::super::start(RaftConfig { fatal, ..config(dir.path(), true) }).await.unwrap();
    let facts = serde_json::json!({
        "machine": { "machine_id": "m1", "dmi_uuid": "" }, "boot_id": "b1", "agent_instance": "a1",
        "agent_version": "1", "kernel": "6", "os": "Debian", "driver": null, "cpu_millis": 1_000,
        "memory_bytes": 1_u64 << 30, "gpus": [], "links": [],
    });
    let (node, facts) =
        (NodeName::parse("titan01").unwrap(), serde_json::from_value(facts).unwrap());
    let register =
        envelope(1_000, Command::Node(NodeCommand::Register { node: node.clone(), facts }));
    let who = Who::Node { name: node };
    let actor = Actor { who, method: AuthMethod::Internal, serial: None };
    raft.propose(Envelope { actor, ..register }).await.unwrap().reply.unwrap();
    raft.change_state_for_test(|fsm| fsm.plant_derived_of(&Fsm::new()));
    drop(raft.snapshot().await);
    let stops = async {
        while told.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stops).await.unwrap();
    let fatal = told.lock().unwrap()[0].clone();
    assert!(matches!(fatal, Fatal::Diverged { .. }), "{fatal}");
    assert!(fatal.to_string().starts_with("an index in memory: "), "{fatal}");
    raft.shutdown().await;
}

#[tokio::test]
async fn an_empty_folder_is_refused_unless_it_is_to_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let refused = single(dir.path(), false).await.unwrap_err();
    assert!(matches!(refused, StartError::Journal(super::super::JournalError::Empty { .. })));
    assert_eq!(refused.exit_code(), crate::raft::EXIT_STORE_REFUSED);
}

#[tokio::test]
async fn too_large_a_command_and_too_full_a_disk_are_refused_before_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    raft.propose(command(1)).await.unwrap().reply.unwrap();
    let last = raft.status().last_log_index;
    let mut huge = note(2);
    if let Command::Audit(AuditCommand::RecordRefusals { refusals }) = &mut huge.command {
        refusals[0].action = "x".repeat(super::super::handle::ENTRY_BYTES_MAX);
    }
    let refused = raft.propose(huge).await.unwrap_err();
    assert!(matches!(refused, ProposeError::TooLarge { .. }), "{refused}");
    let refused = raft.check_space(u64::MAX).unwrap_err();
    assert!(matches!(refused, ProposeError::DiskNearlyFull { .. }), "{refused}");
    raft.check_space(1).unwrap();
    assert_eq!(raft.status().last_log_index, last);
    raft.shutdown().await;
    let stopped = raft.propose(command(3)).await.unwrap_err();
    assert!(matches!(stopped, ProposeError::Fatal(_)), "{stopped}");
}

#[tokio::test]
async fn an_entry_this_build_does_not_know_stops_the_node_and_is_not_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    raft.propose(command(1)).await.unwrap().reply.unwrap();
    raft.propose(command(2)).await.unwrap().reply.unwrap();
    raft.shutdown().await;
    drop(raft);
    // As a newer fleet would have written it: another command under a right checksum.
    let file = dir.path().join("log-0000000000000001.seg");
    rewrite_last_command(&file, b"\"init\"", b"\"inti\"");
    let refused = single(dir.path(), false).await.unwrap_err();
    assert!(matches!(refused, StartError::Consensus(_)), "{refused}");
    assert!(refused.to_string().contains("`inti`"), "{refused}");
}

/// Replaces the last occurrence of `from` and makes the checksums of its frame right again.
fn rewrite_last_command(file: &Path, from: &[u8], to: &[u8]) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = (0..bytes.len() - from.len()).rfind(|at| bytes[*at..].starts_with(from)).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    let start = (0..at).rfind(|start| bytes[*start..].starts_with(b"FLR")).unwrap();
    let len = u32::from_le_bytes(bytes[start + 24..start + 28].try_into().unwrap()) as usize;
    let payload = crc32fast::hash(&bytes[start + 40..start + 40 + len]);
    bytes[start + 32..start + 36].copy_from_slice(&payload.to_le_bytes());
    let header = crc32fast::hash(&bytes[start..start + 36]);
    bytes[start + 36..start + 40].copy_from_slice(&header.to_le_bytes());
    // The frames behind name the old checksum: they held nothing but the closing state.
    bytes.truncate(start + 40 + len);
    std::fs::write(file, bytes).unwrap();
}
