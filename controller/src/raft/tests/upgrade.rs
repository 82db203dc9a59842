//! Members of two versions beside each other, and members whose states differ.
//!
//! Until a second version is released the newer member is this program with one cluster version more, and the older one is
//! this program as it is. What they announce, refuse and would stop at is what such builds would.

use std::sync::Mutex;

use super::cluster::{Node, all_at, leader, propose, restart, three_with, until};
use super::*;
use crate::raft::{EXIT_DIVERGED, Fatal};
use fleet_core::Rejection;
use fleet_core::command::{AuditCommand, ClusterCommand};

const OLD: u32 = Versions::RELEASED.max;
const NEW: Versions = Versions::NEXT;

fn check_state() -> Envelope {
    let (core, digest) = ("none".to_owned(), None);
    envelope(5_000, Command::Cluster(ClusterCommand::CheckState { index: 0, core, digest }))
}

async fn raise(nodes: &[Node], version: u32) {
    let at = leader(nodes).await;
    let command = envelope(5_000, Command::Cluster(ClusterCommand::SetVersion { version }));
    nodes[at].raft.propose(command).await.unwrap().reply.unwrap();
}

async fn all_can(nodes: &[Node], version: u32) {
    until("every member said what it can do", || {
        let lead = nodes.iter().find(|n| n.raft.leadership().borrow().is_leader)?;
        lead.raft.version_all_can().filter(|can| *can == version)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_command_waits_until_the_last_member_was_upgraded() {
    let dir = tempfile::tempdir().unwrap();
    // One after the other is upgraded; the cluster works all the time.
    let mut nodes =
        three_with(dir.path(), |config| config.versions = Versions { max: OLD, ..NEW }).await;
    for round in 0..3 {
        propose(&nodes, 10 * round + 1).await;
        all_can(&nodes, OLD).await;
        let at = leader(&nodes).await;
        let before = nodes[at].raft.status().last_log_index;
        let refused = nodes[at].raft.propose(check_state()).await.unwrap().reply.unwrap_err();
        assert!(matches!(refused, Rejection::ClusterVersion { needs: 2, have: 1 }), "{refused}");
        assert_eq!(nodes[at].raft.status().last_log_index, before, "it must not reach the log");

        let old = nodes.iter().position(|n| n.config.versions.max == OLD).unwrap();
        let (mut config, address) = nodes.remove(old).stop().await;
        config.versions = NEW;
        propose(&nodes, 10 * round + 2).await;
        // While it is away nobody knows what it will be when it comes back.
        until("the one that is away is forgotten", || {
            let lead = nodes.iter().find(|n| n.raft.leadership().borrow().is_leader)?;
            lead.raft.version_all_can().is_none().then_some(())
        })
        .await;
        nodes.push(restart((config, address)).await);
    }
    all_can(&nodes, NEW.max).await;
    raise(&nodes, NEW.max).await;
    let at = leader(&nodes).await;
    nodes[at].raft.propose(check_state()).await.unwrap().reply.unwrap();
    propose(&nodes, 99).await;
    all_at(&nodes, 99).await;
    let digests: Vec<_> = nodes.iter().map(|n| n.raft.read(|fsm| fsm.digest())).collect();
    assert!(digests[0] == digests[1] && digests[1] == digests[2]);

    // Back to the old program: it says so and does not start, whether log or snapshot holds the version.
    let (mut config, address) = nodes.remove(0).stop().await;
    config.versions = Versions { max: OLD, ..NEW };
    config.create = false;
    let told: Arc<Mutex<Vec<Fatal>>> = Arc::default();
    let hook = Arc::clone(&told);
    config.fatal = FatalHook::with(move |fatal| hook.lock().unwrap().push(fatal.clone()));
    let text = match start_with(config, 20, 5, 4_096).await {
        Err(refused) => refused.to_string(),
        Ok(raft) => {
            until("it stops", || (!told.lock().unwrap().is_empty()).then_some(())).await;
            raft.shutdown().await;
            told.lock().unwrap()[0].to_string()
        }
    };
    let version = format!("version {}", NEW.max);
    assert!(text.contains(&version) && text.contains("install the newer fleet"), "{text}");
    drop(address);
    for node in nodes {
        node.stop().await;
    }
}

/// A hook that remembers instead of ending the process.
fn remember(told: &Arc<Mutex<Vec<(u64, Fatal)>>>, node: u64) -> FatalHook {
    let told = Arc::clone(told);
    FatalHook::with(move |fatal| told.lock().unwrap().push((node, fatal.clone())))
}

async fn diverge(which: impl Fn(&[Node], usize) -> usize) {
    let dir = tempfile::tempdir().unwrap();
    let told: Arc<Mutex<Vec<(u64, Fatal)>>> = Arc::default();
    let nodes = three_with(dir.path(), |config| config.fatal = remember(&told, config.node)).await;
    propose(&nodes, 1).await;
    propose(&nodes, 2).await;
    all_at(&nodes, 2).await;
    let lead = leader(&nodes).await;
    let bad = which(&nodes, lead);
    // A flipped bit in memory, say: the clock of one replica runs on.
    let node = nodes[bad].raft.node();
    nodes[bad].raft.change_state_for_test(|fsm| {
        let at = fsm.applied();
        fsm.apply(at, &envelope(900_000, Command::Cluster(ClusterCommand::AdvanceTime)));
    });
    // The first takes the digests, the second compares them.
    for round in 0..2 {
        until("a comparison can be proposed", || {
            let check = nodes[lead].raft.next_state_check()?.0;
            let ready = match &check {
                Command::Cluster(ClusterCommand::CheckState { digest, .. }) => {
                    digest.is_some() == (round == 1)
                }
                _ => false,
            };
            ready.then_some(())
        })
        .await;
        let (command, problem) = nodes[lead].raft.next_state_check().unwrap();
        assert_eq!(problem, None);
        // The one that differs may be the one that proposes: it has no answer then.
        drop(nodes[lead].raft.propose(envelope(6_000, command)).await);
    }
    until("it stops", || (!told.lock().unwrap().is_empty()).then_some(())).await;
    let (who, fatal) = told.lock().unwrap()[0].clone();
    assert_eq!(who, node);
    assert!(matches!(fatal, Fatal::Diverged { .. }), "{fatal}");
    assert_eq!(fatal.exit_code(), EXIT_DIVERGED);

    // The others continue without it, and it does not start again with that state.
    let mut rest = nodes;
    let (mut config, address) = rest.remove(bad).stop().await;
    config.create = false;
    let refused = start_with(config, 20, 5, 4_096).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, StartError::Diverged { .. }), "{refused}");
    assert!(refused.to_string().contains("let a new one"), "{refused}");
    drop(address);
    propose(&rest, 3).await;
    all_at(&rest, 3).await;
    for node in rest {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_state_differs_stops_for_good() {
    diverge(|_, lead| (lead + 1) % 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_state_differs_stops_for_good() {
    diverge(|_, lead| lead).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_large_entries_are_purged_too_and_a_new_member_still_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let raft = super::super::start(config(dir.path(), true)).await.unwrap();
    raft.bound_log(20_000);
    for n in 1..=60 {
        let mut large = note(n);
        if let Command::Audit(AuditCommand::RecordRefusals { refusals }) = &mut large.command {
            refusals[0].action = "x".repeat(2_000);
        }
        raft.propose(large).await.unwrap().reply.unwrap();
    }
    // Far fewer entries than make a snapshot by their number.
    until("purged", || raft.status().purged_index.filter(|at| *at > 20)).await;
    until("short", || (raft.log.bytes() <= 20_000 + 10_000).then_some(())).await;
    raft.shutdown().await;
    let digest = raft.read(|fsm| fsm.digest());
    drop(raft);
    let raft = single(dir.path(), false).await.unwrap();
    raft.ensure_linearizable().await.unwrap();
    assert_eq!(raft.read(|fsm| fsm.digest()), digest);
    raft.shutdown().await;
}
