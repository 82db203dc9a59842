//! A pruned audit log with the whole of Raft around it: restarts, snapshots, members that come later.

use fleet_core::audit::prune::{KEEP_MIN, Prune};
use fleet_core::command::AuditCommand;
use fleet_core::name::UserName;
use fleet_core::{AuthMethod, Fsm, Who};
use redb::TableDefinition;
use tokio::net::TcpListener;

use super::cluster::{all_at, audit_lines, leader, propose, start_node, three, until};
use super::*;
use crate::audit::Query;

/// An hour after which all records that tests make may be pruned.
const LATE: u64 = 1_000_000 + KEEP_MIN.0;

/// Prunes up to record `through`, as the API does.
async fn prune(raft: &RaftHandle, through: u64) {
    let found = raft.audit().prunable(through).await.unwrap().unwrap();
    let command = Command::Audit(AuditCommand::Prune(Prune {
        through,
        hash: found.hash,
        until: found.until,
    }));
    let name = UserName::parse("root").unwrap();
    let who = Who::User { name, admin: true, groups: [].into() };
    let actor = Actor { who, method: AuthMethod::LocalSocket, serial: None };
    let pruning = Envelope { actor, ..envelope(LATE, command) };
    raft.propose(pruning).await.unwrap().reply.unwrap();
}

/// What the deletion leaves in the end, without waiting for it: the store is stopped.
fn delete(dir: &Path, through: u64) {
    const RECORDS: TableDefinition<'static, u64, &str> = TableDefinition::new("records");
    let db = redb::Database::open(dir.join("audit.redb")).unwrap();
    let write = db.begin_write().unwrap();
    write.open_table(RECORDS).unwrap().retain_in(..=through, |_, _| false).unwrap();
    write.commit().unwrap();
}

async fn seqs(raft: &RaftHandle) -> Vec<u64> {
    let page = raft.audit().query(Query::default()).await.unwrap();
    page.records.iter().map(|record| record.body.seq).collect()
}

/// Its log still holds the entries that made what was pruned, and no snapshot covers them: all are applied again.
#[tokio::test]
async fn a_restart_that_replays_the_whole_log_needs_nothing_that_was_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    for n in 1..=20 {
        raft.propose(command(n)).await.unwrap().reply.unwrap();
    }
    prune(&raft, 15).await;
    let kept: Vec<u64> = (16..=21).collect();
    assert_eq!(seqs(&raft).await, kept);
    let digest = raft.read(Fsm::digest);
    raft.shutdown().await;
    drop(raft);
    delete(dir.path(), 15);
    for _ in 0..2 {
        let again = single(dir.path(), false).await.unwrap();
        again.ensure_linearizable().await.unwrap();
        assert_eq!(again.read(Fsm::digest), digest);
        assert_eq!(seqs(&again).await, kept);
        again.shutdown().await;
    }
}

/// Its snapshot names a record that was pruned since.
#[tokio::test]
async fn a_restart_from_a_snapshot_of_before_the_prune_needs_nothing_that_was_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single_small(dir.path(), true).await.unwrap();
    for n in 1..=200 {
        raft.propose(command(n)).await.unwrap().reply.unwrap();
    }
    until("a snapshot", || raft.status().snapshot_index).await;
    prune(&raft, 200).await;
    let kept = seqs(&raft).await;
    assert_eq!(kept, [201]);
    raft.shutdown().await;
    drop(raft);
    delete(dir.path(), 200);
    let raft = single_small(dir.path(), false).await.unwrap();
    raft.ensure_linearizable().await.unwrap();
    assert_eq!(seqs(&raft).await, kept);
    raft.propose(note(7)).await.unwrap().reply.unwrap();
    assert_eq!(seqs(&raft).await, [201, 202]);
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_prune_and_one_that_joins_gets_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    for n in 1..=60 {
        propose(&nodes, n).await;
    }
    let lead = leader(&nodes).await;
    prune(&nodes[lead].raft, 50).await;
    propose(&nodes, 61).await;
    all_at(&nodes, 61).await;
    let lines = audit_lines(&nodes[lead]).await;
    assert_eq!(lines.len(), 12, "records 51 to 62");
    for node in &nodes {
        assert_eq!(audit_lines(node).await, lines);
    }
    for n in 62..=120 {
        propose(&nodes, n).await;
    }
    let lead = leader(&nodes).await;
    until("purged", || nodes[lead].raft.status().purged_index.filter(|at| *at > 63)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let new =
        RaftConfig { node: 4, members: BTreeMap::new(), ..config(&dir.path().join("4"), true) };
    nodes.push(start_node(new, listener).await);
    nodes[lead].raft.add_learner(4, &nodes[3].address).await.unwrap();
    all_at(&nodes, 120).await;
    assert_eq!(audit_lines(&nodes[3]).await, audit_lines(&nodes[lead]).await);
    assert_eq!(seqs(&nodes[3].raft).await.first(), Some(&51));
    for node in nodes {
        node.stop().await;
    }
}
