//! `torch.distributed.checkpoint`: rank 0 renames `.metadata` in after every rank has written and flushed its shards.
//!
//! Seen with torch 2.11, sync and async, one and two ranks.

use super::Candidate;

pub(super) fn complete(of: Candidate<'_>) -> bool {
    of.tree.find(".metadata").is_some_and(|marker| marker.size > 0)
        && of.tree.entries.iter().any(|entry| entry.name.ends_with(".distcp"))
}
