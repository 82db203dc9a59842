//! `torch.distributed.checkpoint`: `__RANK_N.distcp` of each rank, none empty. The metadata is a pickle and is not read.

use super::super::tree::Tree;

/// Whether this is one: its metadata was renamed in after every rank's shards were on the disk.
pub(super) fn is_one(tree: &Tree) -> bool {
    tree.has(".metadata") && tree.entries.iter().any(|entry| rank(&entry.name).is_some())
}

/// The rank of a shard at the top of the directory.
fn rank(name: &str) -> Option<u32> {
    let (rank, number) = name.strip_prefix("__")?.strip_suffix(".distcp")?.split_once('_')?;
    number.parse::<u32>().ok()?;
    rank.parse().ok()
}

/// What is wrong with the shards, if something is: ranks count from 0 without a gap.
pub(super) fn missing_rank(tree: &Tree) -> Option<String> {
    if !tree.has(".metadata") {
        return None;
    }
    let mut ranks: Vec<u32> = tree.entries.iter().filter_map(|entry| rank(&entry.name)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let gap = (0..).zip(&ranks).find(|(expected, rank)| expected != *rank);
    gap.map(|(expected, _)| format!("no shard of rank {expected} (__{expected}_0.distcp) is there"))
}
