//! GPUs: what a node reported of each, and the words for their state.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{GpuUuid, NodeName};
use crate::time::Timestamp;

/// Most GPUs one node may report.
pub const GPUS_PER_NODE_MAX: usize = 64;
/// Former names of cards that are kept, of the whole fleet; the oldest go first.
pub const FORMER_NAMES_KEPT: usize = 4_096;

/// A GPU's generation, as far as health tables differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    Maxwell,
    Pascal,
    Volta,
    Turing,
    Ampere,
    Hopper,
    Other,
}

/// One device, named by its UUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub uuid: GpuUuid,
    pub node: NodeName,
    /// The number in its name (`titan01:3`). The fleet gives it and the card keeps it; what an agent reports here is
    /// what the controllers said last.
    pub index: u32,
    /// NVML's index as last reported: it can change at a reboot. Missing where the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_index: Option<u32>,
    /// Minor number of `/dev/nvidiaN`.
    pub minor: u32,
    /// Short model as people ask for it: `v100`, `titan-x`.
    pub model: String,
    /// Product name as NVML prints it.
    pub product: String,
    pub architecture: Architecture,
    pub memory_bytes: u64,
    pub pci_bus_id: String,
    pub numa_node: Option<u32>,
    /// What the agent last saw of it.
    pub presence: Presence,
    /// Memory or processes that no lease explains: not placeable.
    pub dirty: Option<String>,
    /// Since when this node has it, and since when it is lost: which card came into which slot afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Timestamp>,
    /// An admin announced that the next card in its slot takes its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced_by_next: bool,
}

impl Gpu {
    /// What people call it.
    pub fn name(&self) -> GpuName {
        GpuName { node: self.node.clone(), index: self.index }
    }
}

/// What people call a GPU: `titan01:3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuName {
    pub node: NodeName,
    pub index: u32,
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.index)
    }
}

/// A name that a card had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerName {
    pub name: GpuName,
    /// When it got another one, or left the inventory.
    pub until: Timestamp,
    /// An admin forgot it: reports of it as lost do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
}

/// Whether the agent sees the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Present,
    /// It was in the inventory and answers no more.
    Lost,
    /// The driver does not answer, so nobody knows.
    Unknown,
}

/// How close two GPUs of a node are, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLevel {
    NvLink,
    /// One PCIe switch.
    SingleSwitch,
    /// Several PCIe switches.
    MultiSwitch,
    /// One PCIe host bridge.
    HostBridge,
    /// One NUMA node.
    NumaNode,
    /// Across sockets.
    System,
}

/// One measured distance between two GPUs of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLink {
    pub a: GpuUuid,
    pub b: GpuUuid,
    pub level: LinkLevel,
    /// NVLinks between the two; 0 where there is none, or the node reports none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nvlinks: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The short model people ask for, from NVML's product name: `Tesla V100-SXM2-16GB` is `v100`.
/// An unknown product becomes its lower-case words joined by `-`.
pub fn short_model(product: &str) -> String {
    let lower = product.to_ascii_lowercase();
    const KNOWN: [(&str, &str); 12] = [
        ("titan xp", "titan-xp"),
        ("titan x", "titan-x"),
        ("titan v", "titan-v"),
        ("v100", "v100"),
        ("p100", "p100"),
        ("a100", "a100"),
        ("h100", "h100"),
        ("h200", "h200"),
        ("a40", "a40"),
        ("l40", "l40"),
        ("t4", "t4"),
        ("k80", "k80"),
    ];
    if let Some((_, short)) = KNOWN.iter().find(|(needle, _)| {
        lower
            .match_indices(needle)
            .any(|(at, _)| !lower[at + needle.len()..].starts_with(|c: char| c.is_ascii_digit()))
    }) {
        return (*short).to_owned();
    }
    lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| {
            !word.is_empty() && *word != "nvidia" && *word != "geforce" && *word != "tesla"
        })
        .collect::<Vec<_>>()
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::short_model;

    #[test]
    fn models_are_what_people_type() {
        let cases = [
            ("Tesla V100-SXM2-16GB", "v100"),
            ("GeForce GTX TITAN X", "titan-x"),
            ("NVIDIA TITAN X (Pascal)", "titan-x"),
            ("NVIDIA TITAN Xp", "titan-xp"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA A4000", "a4000"),
            ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ];
        for (product, short) in cases {
            assert_eq!(short_model(product), short, "{product}");
        }
    }
}
