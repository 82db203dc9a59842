//! Keeps the log short by size, not only by number of entries: few large commands must not fill the disk.
//!
//! openraft makes a snapshot every so many entries and keeps some for followers that lag. Where the entries
//! outgrow a bound before that, this asks for a snapshot, and then for the purge of all it holds. A follower
//! that lagged behind gets the snapshot. One task, ended with consensus.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use super::handle::RaftHandle;

/// Pause after something was asked for: a snapshot takes its time.
const PAUSE: Duration = Duration::from_millis(200);

impl RaftHandle {
    /// From now on the log's entries take about `bytes_max` bytes at most.
    pub(super) fn bound_log(&self, bytes_max: usize) {
        let (raft, log, view) = (self.raft.clone(), self.log.clone(), Arc::clone(&self.view));
        tokio::spawn(async move {
            let mut metrics = raft.metrics();
            while metrics.changed().await.is_ok() {
                if log.bytes() <= bytes_max {
                    continue;
                }
                let (applied, snapshot, purged) = {
                    let m = metrics.borrow_watched();
                    let index = |id: &Option<super::types::LogId>| id.map_or(0, |id| id.index);
                    (index(&m.last_applied), index(&m.snapshot), index(&m.purged))
                };
                let asked = if snapshot > purged {
                    raft.trigger().purge_log(snapshot).await
                } else if applied > snapshot {
                    view.snapshots.ask();
                    raft.trigger().snapshot().await
                } else {
                    Ok(())
                };
                if asked.is_err() {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
}
