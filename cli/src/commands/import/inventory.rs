//! The GPUs and nodes that lines of a sheet name, as the fleet knows them.

use std::collections::{BTreeMap, BTreeSet};

use fleet_proto::json::gpu::Gpu;
use fleet_proto::v1::{GpuWish, ListGpusRequest};

use crate::client::Client;
use crate::commands::gpu;
use crate::errors::Failure;
use crate::spreadsheet::{Column, SheetLine, Which};

/// Nodes that a refusal names.
const NODES_SHOWN: usize = 8;

/// All GPUs of the fleet, by node and number.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    by_node: BTreeMap<String, BTreeMap<u32, String>>,
    uuids: BTreeSet<String>,
}

impl Inventory {
    /// Asks once for all lines; not at all where none of them names a node or a GPU.
    pub(super) async fn of<'a>(
        client: &Client,
        mut lines: impl Iterator<Item = &'a SheetLine>,
    ) -> Result<Self, Failure> {
        let names =
            |line: &SheetLine| !line.node.is_empty() || !matches!(line.gpus, Which::Some(_));
        if !lines.any(names) {
            return Ok(Self::default());
        }
        Ok(Self::from(gpu::fetch(client, ListGpusRequest::default()).await?))
    }

    /// What a line asks for; else the column that is wrong, and why.
    pub(super) fn wish(&self, line: &SheetLine) -> Result<GpuWish, (Column, String)> {
        let (mut wish, node) = (GpuWish::default(), &line.node);
        if !node.is_empty() {
            wish.node = self.node(node).map_err(|why| (Column::Node, why))?.0.clone();
        }
        match &line.gpus {
            Which::Some(some) => {
                wish.count = some.count;
                wish.model = some.model.clone().unwrap_or_default();
            }
            Which::These(names) => {
                let uuids = names.iter().map(|name| self.gpu(name));
                wish.uuids = uuids.collect::<Result<_, _>>().map_err(|why| (Column::Gpu, why))?;
            }
            Which::All(node) => {
                let (_, gpus) = self.node(node).map_err(|why| (Column::Node, why))?;
                wish.uuids = gpus.values().cloned().collect();
            }
        }
        if !wish.uuids.is_empty() {
            wish.count = u32::try_from(wish.uuids.len()).unwrap_or(u32::MAX);
        }
        Ok(wish)
    }

    /// Sheets write Titan01, too.
    fn node(&self, name: &str) -> Result<(&String, &BTreeMap<u32, String>), String> {
        if let Some(found) = self.by_node.get_key_value(name) {
            return Ok(found);
        }
        let mut alike = self.by_node.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        match (alike.next(), alike.next()) {
            (Some(found), None) => Ok(found),
            _ => {
                let known: Vec<&str> = self.by_node.keys().map(String::as_str).collect();
                let shown = known.get(..NODES_SHOWN).unwrap_or(&known).join(", ");
                let more = if known.len() > NODES_SHOWN { ", ..." } else { "" };
                Err(format!("no node {name:?} has GPUs; there are {shown}{more} (fleet node list)"))
            }
        }
    }

    fn gpu(&self, name: &str) -> Result<String, String> {
        if self.uuids.contains(name) {
            return Ok(name.to_owned());
        }
        let Some((node, index)) = name.rsplit_once(':') else {
            return Err(format!("no GPU {name:?} (fleet gpu list)"));
        };
        let (node, gpus) = self.node(node)?;
        let found = index.parse().ok().and_then(|index: u32| gpus.get(&index));
        found.cloned().ok_or_else(|| {
            let there: Vec<String> = gpus.keys().map(ToString::to_string).collect();
            format!("{node} has no GPU {index}; it has {}", there.join(", "))
        })
    }
}

impl From<Vec<Gpu>> for Inventory {
    fn from(gpus: Vec<Gpu>) -> Self {
        let mut inventory = Self::default();
        for gpu in gpus {
            inventory.uuids.insert(gpu.uuid.clone());
            inventory.by_node.entry(gpu.node).or_default().insert(gpu.index, gpu.uuid);
        }
        inventory
    }
}
