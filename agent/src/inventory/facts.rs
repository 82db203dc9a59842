//! What the node is: its machine, and its GPUs as the driver shows them.

use std::collections::BTreeMap;

use fleet_core::gpu::{Gpu, GpuLink, short_model};
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::node::{MachineIdentity, NodeFacts};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::Inventory;
use crate::config::Config;
use crate::enroll::Machine;
use crate::gpu::{DriverState, GpuSnapshot, GpuState};

/// Memory kept for the system: this part of all, within these bounds.
const RESERVE_DIVISOR: u64 = 20;
const RESERVE_BYTES: (u64, u64) = (256 << 20, 8 << 30);

/// What does not change while the agent runs.
pub fn machine_facts(config: &Config, machine: &Machine, instance: String) -> NodeFacts {
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    // Unknown memory is none to give: the configuration can say more.
    let total = system.map_or(0, |system| system.total_memory());
    let reserve = (total / RESERVE_DIVISOR).clamp(RESERVE_BYTES.0, RESERVE_BYTES.1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = u64::try_from(cores).unwrap_or(1);
    NodeFacts {
        machine: MachineIdentity {
            machine_id: machine.clone().or_configured(config.machine_id.clone()).machine_id,
            dmi_uuid: machine.dmi_uuid.clone(),
        },
        boot_id: machine.boot_id.clone(),
        agent_instance: instance,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: System::kernel_version().unwrap_or_default(),
        os: System::long_os_version().unwrap_or_default(),
        driver: None,
        cpu_millis: config.cpu_millis.unwrap_or(cores * 1_000),
        memory_bytes: config.memory_bytes.unwrap_or(total.saturating_sub(reserve)),
        gpus: Vec::new(),
        links: Vec::new(),
        gpu_problem: None,
        enforced: None,
        driver_released: false,
    }
}

/// What fleet says of a node whose driver is released, and what to do.
fn released_words(node: &NodeName, stuck: usize) -> String {
    match stuck {
        0 => format!(
            "the driver is released: it can be upgraded; `fleet node uncordon {node}` attaches it again"
        ),
        stuck => format!(
            "the driver is released, but {stuck} stuck nvml-probe process(es) hold it open until {node} reboots"
        ),
    }
}

impl Inventory {
    pub(super) fn facts_of(
        &self,
        snapshot: &GpuSnapshot,
        dirt: &BTreeMap<GpuUuid, String>,
    ) -> NodeFacts {
        let driver_released = snapshot.driver_state == DriverState::Released;
        // Another one may be loaded meanwhile.
        let driver = snapshot.driver.as_ref().filter(|_| !driver_released);
        let driver = driver.and_then(|d| d.driver_version.value().cloned());
        let gpu = |state: &GpuState| {
            let info = &state.info;
            Gpu {
                uuid: info.uuid.clone(),
                node: self.parts.node.clone(),
                index: self.parts.gpus.driver.numbers().of(info),
                driver_index: Some(info.index),
                minor: info.minor,
                model: short_model(&info.product),
                product: info.product.clone(),
                architecture: info.architecture,
                memory_bytes: info.memory_bytes,
                pci_bus_id: info.pci_bus_id.clone(),
                numa_node: info.numa_node.value().copied(),
                presence: state.presence,
                dirty: dirt.get(&info.uuid).cloned(),
                here_since: None,
                lost_since: None,
                replaced_by_next: false,
            }
        };
        let link = |l: &crate::gpu::Link| {
            let (a, b) = (l.a.clone(), l.b.clone());
            GpuLink { a, b, level: l.level, nvlinks: l.nvlinks }
        };
        let problem = match &snapshot.driver_state {
            DriverState::Running => None,
            DriverState::Starting => Some("the first inventory is not complete".to_owned()),
            DriverState::Released => Some(released_words(&self.parts.node, snapshot.stuck_probes)),
            DriverState::Absent { reason }
            | DriverState::Failed { reason }
            | DriverState::NotAnswering { reason } => Some(reason.clone()),
        };
        NodeFacts {
            driver,
            gpus: snapshot.gpus.iter().map(gpu).collect(),
            links: snapshot.links.iter().map(link).collect(),
            gpu_problem: problem,
            enforced: self.parts.gpus.gate.state().borrow().enforced.clone(),
            driver_released,
            ..self.parts.base.clone()
        }
    }
}
