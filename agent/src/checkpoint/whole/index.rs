//! JSON files: they parse, and an index of shards (`model.safetensors.index.json`) names only shards that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use fleet_core::checkpoint::Content;
use serde::Deserialize;

use super::super::tree::Tree;
use super::{Problem, READ_BYTES_MAX, open, read_at};

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// A longer one is not read, so it says nothing.
pub(super) fn check_json(file: &mut File, size: u64) -> Result<Content, Problem> {
    if size > READ_BYTES_MAX {
        return Ok(Content::Unchecked);
    }
    let text = read_at(file, 0, size)?;
    match serde_json::from_slice::<serde::de::IgnoredAny>(&text) {
        Ok(_) => Ok(Content::Unchecked),
        // Python writes NaN and Infinity, which JSON does not know: such a file is not cut.
        Err(error) if error.is_eof() => Err(Problem::Torn("the JSON in it is cut".to_owned())),
        Err(_) => Ok(Content::Unchecked),
    }
}

/// The first shard that an index names and that is not there.
pub(super) fn missing_shard(top: &Path, tree: &Tree) -> Option<String> {
    let indexes = tree.entries.iter().filter(|entry| entry.name.ends_with(".index.json"));
    for index in indexes.filter(|entry| entry.size <= READ_BYTES_MAX) {
        let text =
            open(&top.join(&index.name)).and_then(|mut file| read_at(&mut file, 0, index.size));
        let Ok(text) = text else { continue };
        let Ok(Index { weight_map }) = serde_json::from_slice(&text) else { continue };
        let folder = index.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let shards: BTreeSet<String> = weight_map.into_values().collect();
        let path = |shard: &str| match folder {
            "" => shard.to_owned(),
            folder => format!("{folder}/{shard}"),
        };
        if let Some(missing) = shards.into_iter().find(|shard| !tree.has(&path(shard))) {
            return Some(format!("{} names {missing:?}, which is not there", index.name));
        }
    }
    None
}
