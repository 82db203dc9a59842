//! How the GPUs of the node are connected: PCIe levels and NVLinks.

use std::collections::BTreeMap;

use fleet_core::gpu::LinkLevel;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;

use super::nvml::Card;
use super::{Out, raw};
use crate::gpu::report::Link;

/// NVML_NVLINK_MAX_LINKS.
const NVLINKS_MAX: u32 = 18;

/// A GPU's active NVLinks: how many to each other GPU, by its PCI address, and how many to a switch.
#[derive(Debug, Default)]
struct Ends {
    peers: BTreeMap<String, u32>,
    switch: u32,
}

/// Every pair once. A pair whose level the driver does not tell counts as the farthest.
pub(super) fn links(nvml: &'static Nvml, cards: &[Card], out: &Out) -> Vec<Link> {
    let ends: Vec<Ends> = cards
        .iter()
        .map(|card| {
            out.begin(Some(card.info.index), "NVLinks");
            nvlinks(card)
        })
        .collect();
    let mut links = Vec::new();
    for (at, a) in cards.iter().enumerate() {
        out.begin(Some(a.info.index), "topology");
        for (b, other) in cards.iter().zip(&ends).skip(at + 1) {
            let direct = ends[at].peers.get(&b.info.pci_bus_id).copied().unwrap_or(0);
            let nvlinks = direct + ends[at].switch.min(other.switch);
            let level = if nvlinks > 0 { LinkLevel::NvLink } else { pcie_level(nvml, a, b) };
            let (a, b) = (a.info.uuid.clone(), b.info.uuid.clone());
            links.push(Link { a, b, level, nvlinks });
        }
    }
    links
}

fn nvlinks(card: &Card) -> Ends {
    let mut ends = Ends::default();
    for number in 0..NVLINKS_MAX {
        let link = card.device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {}
            Ok(false) => continue,
            // No NVLink at all, or no more of them.
            Err(_) => break,
        }
        if raw::leads_to_switch(&card.device, number).unwrap_or(false) {
            ends.switch += 1;
        } else if let Ok(remote) = link.remote_pci_info() {
            *ends.peers.entry(remote.bus_id).or_default() += 1;
        }
    }
    ends
}

fn pcie_level(nvml: &'static Nvml, a: &Card, b: &Card) -> LinkLevel {
    // The wrapper takes the other device by value; a fresh handle is the same device.
    let other = nvml.device_by_index(b.info.index);
    match other.and_then(|other| a.device.topology_common_ancestor(other)) {
        Ok(TopologyLevel::Internal | TopologyLevel::Single) => LinkLevel::SingleSwitch,
        Ok(TopologyLevel::Multiple) => LinkLevel::MultiSwitch,
        Ok(TopologyLevel::HostBridge) => LinkLevel::HostBridge,
        Ok(TopologyLevel::Node) => LinkLevel::NumaNode,
        Ok(TopologyLevel::System) | Err(_) => LinkLevel::System,
    }
}
