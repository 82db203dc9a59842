//! kill -9 in the middle of writing: nothing that was acknowledged is lost.
//!
//! The test starts this test binary again as a child that runs only [`the_writer_of_the_crash_test`]
//! in the given folder, reads what it acknowledges from its output, and kills it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use fleet_core::audit::verify::Verifier;

use super::*;
use crate::audit::{AuditStore, Query};

const DIR: &str = "FLEET_TEST_CRASH_DIR";
const FIRST: &str = "FLEET_TEST_CRASH_FIRST";
/// Kills in one run of the test.
const CYCLES: u64 = 8;
/// Writers at a time, so that groups form.
const WRITERS: u64 = 8;

fn spawn(dir: &Path, first: u64) -> Child {
    Process::new(std::env::current_exe().unwrap())
        .args(["raft::tests::crash::the_writer_of_the_crash_test", "--exact", "--nocapture"])
        .env(DIR, dir)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Run by the test below; on its own it writes a little and checks that it was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_of_the_crash_test() {
    let own = tempfile::tempdir().unwrap();
    let dir = std::env::var_os(DIR).map_or(own.path().to_owned(), Into::into);
    let as_child = std::env::var(FIRST).ok();
    let first: u64 = as_child.as_deref().map_or(1, |text| text.parse().unwrap());
    let raft = single_small(&dir, true).await.unwrap();
    let next = Arc::new(AtomicU64::new(first));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (raft, next, endless) = (raft.clone(), Arc::clone(&next), as_child.is_some());
        writers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if !endless && n > 40 {
                    return;
                }
                let applied = raft.propose(note(n)).await.unwrap();
                applied.reply.unwrap();
                if endless {
                    let line = format!("ack {n} {}\n", applied.log_index);
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            }
        });
    }
    while let Some(joined) = writers.join_next().await {
        joined.unwrap();
    }
    let written = raft.audit().query(Query::default()).await.unwrap().records.len();
    assert_eq!(written, 40);
    raft.shutdown().await;
}

/// Everything in the audit log, oldest first: number of the note and its log index.
async fn notes(audit: &AuditStore) -> BTreeMap<u64, u64> {
    let mut notes = BTreeMap::new();
    let mut from_seq = None;
    loop {
        let page = audit.query(Query { from_seq, ..Query::default() }).await.unwrap();
        for record in &page.records {
            let text = serde_json::to_string(&record.body.events).unwrap();
            let n = text.split("\"count\":").nth(1).unwrap();
            let n = n.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
            let twice = notes.insert(n, record.body.log_index);
            assert_eq!(twice, None, "note {n} was applied twice");
        }
        match page.next {
            Some(next) => from_seq = Some(next),
            None => return notes,
        }
    }
}

#[tokio::test]
async fn kill_9_while_writing_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    // The lock file is all that a fresh folder may contain when the first child starts.
    let mut acknowledged = BTreeMap::new();
    let mut first = 1;
    for cycle in 0..CYCLES {
        let mut child = spawn(dir.path(), first);
        let output = BufReader::new(child.stdout.take().unwrap());
        // A different moment each time, across snapshots, purges and new segments.
        let wanted = 30 + cycle * 37 % 150;
        let mut seen = 0;
        let mut lines = output.lines();
        while let Some(Ok(line)) = lines.next() {
            let Some((n, index)) = line.split_once("ack ").and_then(|(_, ack)| ack.split_once(' '))
            else {
                continue;
            };
            acknowledged.insert(n.parse::<u64>().unwrap(), index.parse::<u64>().unwrap());
            seen += 1;
            if seen == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= wanted, "the child stopped by itself in cycle {cycle}");
        first = acknowledged.keys().max().unwrap() + 1_000;
    }

    let raft = single_small(dir.path(), false).await.unwrap();
    raft.ensure_linearizable().await.unwrap();
    let found = notes(raft.audit()).await;
    for (n, index) in &acknowledged {
        assert_eq!(found.get(n), Some(index), "note {n} was acknowledged");
    }
    // The chain is whole across all the kills.
    let mut verifier = Verifier::new();
    let mut from_seq = None;
    loop {
        let page = raft.audit().query(Query { from_seq, ..Query::default() }).await.unwrap();
        page.records.iter().for_each(|record| verifier.line(&record.line).unwrap());
        match page.next {
            Some(next) => from_seq = Some(next),
            None => break,
        }
    }
    raft.shutdown().await;
}
