//! Three voters over loopback: replication, a new leader, a follower far behind, foreign peers.

use fleet_proto::v1;
use fleet_proto::v1::raft_client::RaftClient;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;

use super::*;
use crate::audit::Query;
use crate::raft::called::called;
use crate::raft::service::PeerCheck;
use crate::raft::start::longest_election_ms;
use crate::raft::{ELECTION_MS, ProposeError, ReadError};

/// One controller: its folder, its handle and the server its peers reach.
pub(super) struct Node {
    pub(super) config: RaftConfig,
    pub(super) address: String,
    pub(super) raft: RaftHandle,
    server: Server,
}

/// A server whose connections end with it, as they do when a process dies.
pub(super) struct Server {
    task: JoinHandle<()>,
    stop: tokio::sync::oneshot::Sender<()>,
}

pub(super) fn anybody() -> PeerCheck {
    Arc::new(|_, _| Ok(()))
}

pub(super) fn serve(raft: &RaftHandle, listener: TcpListener, check: PeerCheck) -> Server {
    let service = raft.service(check).into_server();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        let incoming = TcpListenerStream::new(listener);
        let stopped = async { drop(stopped.await) };
        server.serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
    });
    Server { task, stop }
}

impl Server {
    pub(super) async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

pub(super) async fn start_node(config: RaftConfig, listener: TcpListener) -> Node {
    let address = listener.local_addr().unwrap().to_string();
    // Small, so that snapshots and purges happen within a test.
    let raft = start_with(config.clone(), 20, 5, 4_096).await.unwrap();
    let server = serve(&raft, listener, anybody());
    Node { config, address, raft, server }
}

impl Node {
    /// Stops it as a crash would look to the others, but closes its stores.
    pub(super) async fn stop(self) -> (RaftConfig, String) {
        self.raft.shutdown().await;
        self.server.stop().await;
        (self.config, self.address)
    }
}

pub(super) async fn restart((mut config, address): (RaftConfig, String)) -> Node {
    config.create = false;
    let listener = TcpListener::bind(&address).await.unwrap();
    start_node(config, listener).await
}

pub(super) async fn three(dir: &Path) -> Vec<Node> {
    three_with(dir, |_| {}).await
}

/// The same, with a change to the configuration of each.
pub(super) async fn three_with(dir: &Path, change: impl Fn(&mut RaftConfig)) -> Vec<Node> {
    let mut listeners = Vec::new();
    let mut members = BTreeMap::new();
    for id in 1..=3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        members.insert(id, listener.local_addr().unwrap().to_string());
        listeners.push(listener);
    }
    let mut nodes = Vec::new();
    for (id, listener) in (1..).zip(listeners) {
        let mut config = RaftConfig {
            node: id,
            members: members.clone(),
            ..config(&dir.join(id.to_string()), true)
        };
        change(&mut config);
        nodes.push(start_node(config, listener).await);
    }
    nodes
}

pub(super) async fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let probing = async {
        loop {
            if let Some(found) = probe() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, probing).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Index in `nodes` of the one that leads and that a majority follows.
pub(super) async fn leader(nodes: &[Node]) -> usize {
    until("a leader", || nodes.iter().position(|node| node.raft.leadership().borrow().is_leader))
        .await
}

/// Proposes at whichever node leads, as a client would.
pub(super) async fn propose(nodes: &[Node], n: u64) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let at = leader(nodes).await;
        match nodes[at].raft.propose(command(n)).await {
            Ok(applied) => return drop(applied.reply.unwrap()),
            Err(ProposeError::NotLeader { .. } | ProposeError::NoQuorum)
                if tokio::time::Instant::now() < deadline => {}
            // The command is the same each time: once more does no harm.
            Err(ProposeError::OutcomeUnknown) if tokio::time::Instant::now() < deadline => {}
            Err(other) => panic!("{other}"),
        }
    }
}

pub(super) async fn all_at(nodes: &[Node], incarnation: u64) {
    for node in nodes {
        until("replicated", || (node.raft.incarnation() == incarnation).then_some(())).await;
    }
    let applied = nodes.iter().map(|n| n.raft.status().last_log_index).max().unwrap();
    for node in nodes {
        until("applied", || (*node.raft.applied().borrow() >= applied).then_some(())).await;
    }
}

pub(super) async fn audit_lines(node: &Node) -> Vec<String> {
    let page = node.raft.audit().query(Query::default()).await.unwrap();
    page.records.into_iter().map(|record| record.line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_majority_acknowledged_survives_the_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    for n in 1..=10 {
        propose(&nodes, n).await;
    }
    all_at(&nodes, 10).await;
    let digests: Vec<_> = nodes.iter().map(|n| n.raft.read(|fsm| fsm.digest())).collect();
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0], digests[2]);

    let old = leader(&nodes).await;
    let follower = (old + 1) % 3;
    let refused = nodes[follower].raft.propose(command(99)).await.unwrap_err();
    let ProposeError::NotLeader { leader: Some(named) } = refused else { panic!("{refused}") };
    assert_eq!(named.address, nodes[old].address);
    // A follower may answer by itself, and knows how old that is.
    let age = until("the follower knew", || nodes[follower].raft.age()).await;
    assert!(age < PATIENCE, "{age:?}");
    assert!(nodes[old].raft.age().is_some_and(|age| age < PATIENCE));
    let read = nodes[follower].raft.ensure_linearizable().await;
    assert!(matches!(read, Err(ReadError::NotLeader { .. })), "{read:?}");

    let stopped = nodes.remove(old).stop().await;
    propose(&nodes, 11).await;
    let now = leader(&nodes).await;
    nodes[now].raft.ensure_linearizable().await.unwrap();
    assert_eq!(nodes[now].raft.incarnation(), 11);

    // The old leader comes back and catches up; all hold the same audit log.
    nodes.push(restart(stopped).await);
    propose(&nodes, 12).await;
    all_at(&nodes, 12).await;
    let lines = audit_lines(&nodes[0]).await;
    assert_eq!(lines.len(), 12);
    assert_eq!(audit_lines(&nodes[1]).await, lines);
    assert_eq!(audit_lines(&nodes[2]).await, lines);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_left_alone_names_no_dead_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    propose(&nodes, 1).await;
    all_at(&nodes, 1).await;
    let lead = leader(&nodes).await;
    let alone = nodes.remove((lead + 1) % 3);
    for node in nodes {
        node.stop().await;
    }
    let patience = PATIENCE;
    let told = tokio::time::timeout(patience, async {
        loop {
            match alone.raft.propose(command(2)).await.unwrap_err() {
                // As long as the leader may only be slow.
                ProposeError::NotLeader { .. } => {
                    tokio::time::sleep(Duration::from_millis(50)).await
                }
                other => break other,
            }
        }
    });
    assert_eq!(told.await.unwrap(), ProposeError::NoQuorum);
    assert_eq!(alone.raft.ensure_linearizable().await, Err(ReadError::NoQuorum));
    alone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_alone_acknowledges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    propose(&nodes, 1).await;
    let alone = leader(&nodes).await;
    let alone = nodes.remove(alone);
    for node in nodes {
        node.stop().await;
    }
    let timeout = Duration::from_secs(3);
    let refused = alone.raft.propose_within(command(2), timeout).await.unwrap_err();
    assert!(
        matches!(refused, ProposeError::NoQuorum | ProposeError::OutcomeUnknown),
        "{refused:?}"
    );
    assert_eq!(alone.raft.incarnation(), 1);
    let read = alone.raft.ensure_linearizable().await;
    assert!(read.is_err(), "a leader without a majority must not vouch for its state");
    // It leads as far as it knows, and must know that nobody follows: it may have been removed meanwhile.
    assert!(alone.raft.leadership().borrow().is_leader);
    let silent = |raft: &crate::raft::RaftHandle| {
        raft.leader_silence().filter(|s| *s > Duration::from_secs(1))
    };
    until("it notices that nobody follows", || silent(&alone.raft)).await;
    alone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_entries_were_purged_gets_snapshot_and_audit_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    propose(&nodes, 1).await;
    all_at(&nodes, 1).await;
    let away = (leader(&nodes).await + 1) % 3;
    let stopped = nodes.remove(away).stop().await;
    for n in 2..=120 {
        propose(&nodes, n).await;
    }
    let lead = leader(&nodes).await;
    until("purged", || nodes[lead].raft.status().purged_index.filter(|at| *at > 60)).await;
    nodes.push(restart(stopped).await);
    propose(&nodes, 121).await;
    all_at(&nodes, 121).await;
    until("the snapshot", || nodes[2].raft.status().snapshot_index.filter(|at| *at > 60)).await;
    let lines = audit_lines(&nodes[2]).await;
    assert_eq!(lines.len(), 121, "it must also have the records of the entries it never saw");
    assert_eq!(audit_lines(&nodes[0]).await, lines);

    // And it starts again from what it was given.
    let stopped = nodes.remove(2).stop().await;
    nodes.push(restart(stopped).await);
    all_at(&nodes, 121).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_controller_joins_after_the_whole_log_was_purged_and_leadership_moves() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three(dir.path()).await;
    for n in 1..=60 {
        propose(&nodes, n).await;
    }
    let lead = leader(&nodes).await;
    until("purged", || nodes[lead].raft.status().purged_index).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let new =
        RaftConfig { node: 4, members: BTreeMap::new(), ..config(&dir.path().join("4"), true) };
    nodes.push(start_node(new, listener).await);
    nodes[lead].raft.add_learner(4, &nodes[3].address).await.unwrap();
    until("caught up", || {
        let matched = nodes[lead].raft.progress().get(&4).and_then(|p| p.matched);
        matched.filter(|at| *at >= nodes[lead].raft.status().last_log_index)
    })
    .await;
    nodes[lead].raft.set_voters([1, 2, 3, 4].into()).await.unwrap();
    propose(&nodes, 61).await;
    all_at(&nodes, 61).await;
    // The figures follow the state a moment later.
    until("four voters", || (nodes[3].raft.status().voters.len() == 4).then_some(())).await;
    assert_eq!(audit_lines(&nodes[3]).await.len(), 61);

    let lead = leader(&nodes).await;
    let target = nodes[(lead + 1) % 4].raft.node();
    nodes[lead].raft.transfer_leadership(target).await.unwrap();
    until("leadership moved", || {
        nodes.iter().find(|n| n.raft.leadership().borrow().is_leader && n.raft.node() == target)
    })
    .await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_controller_rests_and_stays_of_use_until_others_join() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let members = if id == 1 { BTreeMap::from([(1, address)]) } else { BTreeMap::new() };
        let config =
            RaftConfig { node: id, members, ..config(&dir.path().join(id.to_string()), true) };
        nodes.push(start_node(config, listener).await);
    }
    until("it leads", || nodes[0].raft.leadership().borrow().is_leader.then_some(())).await;
    let raft = nodes[0].raft.clone();
    let resting = tokio::spawn(async move { raft.rest_while_alone().await });
    until("its clock is parked", || nodes[0].raft.is_parked().then_some(())).await;
    // Longer than any lease: it still writes and reads.
    let lease = Duration::from_millis(longest_election_ms(ELECTION_MS));
    let began = tokio::time::Instant::now();
    let mut n = 0;
    while began.elapsed() < lease * 2 {
        n += 1;
        propose(&nodes[..1], n).await;
        nodes[0].raft.ensure_linearizable().await.unwrap();
        tokio::time::sleep(lease / 4).await;
    }
    assert!(nodes[0].raft.is_parked());
    for node in &nodes[1..] {
        nodes[0].raft.add_learner(node.raft.node(), &node.address).await.unwrap();
    }
    nodes[0].raft.set_voters([1, 2, 3].into()).await.unwrap();
    // Others need its heartbeats.
    until("its clock runs again", || (!nodes[0].raft.is_parked()).then_some(())).await;
    propose(&nodes, n + 1).await;
    all_at(&nodes, n + 1).await;
    // And the others notice when it is gone.
    resting.abort();
    nodes.remove(0).stop().await;
    leader(&nodes).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn messages_of_another_cluster_for_another_node_or_in_anothers_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let raft = single(dir.path(), true).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let check: PeerCheck = Arc::new(|_, from| match from {
        2 => Ok(()),
        _ => Err(tonic::Status::permission_denied("not who it claims to be")),
    });
    let server = serve(&raft, listener, check);
    let mut client = RaftClient::connect(format!("http://{address}")).await.unwrap();
    let mut ask = async |cluster: &str, from, to, payload: &str| {
        let request = v1::RaftRequest {
            cluster_id: called(cluster),
            from,
            to,
            payload: payload.as_bytes().to_vec(),
        };
        client.audit_head(request).await.map(|_| ()).map_err(|status| status.code())
    };
    use tonic::Code;
    assert_eq!(ask(CLUSTER, 2, 1, "null").await, Ok(()));
    assert_eq!(ask("fleet-other", 2, 1, "null").await, Err(Code::FailedPrecondition));
    assert_eq!(ask(CLUSTER, 2, 3, "null").await, Err(Code::FailedPrecondition));
    assert_eq!(ask(CLUSTER, 1, 1, "null").await, Err(Code::FailedPrecondition));
    assert_eq!(ask(CLUSTER, 3, 1, "null").await, Err(Code::PermissionDenied));
    assert_eq!(ask(CLUSTER, 2, 1, "{").await, Err(Code::InvalidArgument));
    // The service checks a stream of entries message by message.
    for (cluster, from, refused) in [
        ("fleet-other", 2, Code::FailedPrecondition),
        (CLUSTER, 3, Code::PermissionDenied),
        (CLUSTER, 2, Code::InvalidArgument),
    ] {
        let (cluster_id, payload) = (called(cluster), b"{".to_vec());
        let message = v1::RaftRequest { cluster_id, from, to: 1, payload };
        let opened = client.append_stream(futures::stream::iter([message.clone(), message])).await;
        let mut answers = opened.unwrap().into_inner();
        assert_eq!(answers.message().await.unwrap_err().code(), refused);
    }
    drop(client);
    server.stop().await;
    raft.shutdown().await;
}
