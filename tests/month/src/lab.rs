//! The lab of the month: 64 GPUs on 10 nodes of three models, 40 people in 8 projects.

use fleet_core::gpu::{Architecture, Gpu, Presence};
use fleet_core::name::{GpuUuid, NodeName, ProjectName, UserName};
use fleet_core::node::{MachineIdentity, NodeFacts};

use crate::draw::{Draw, whole};
use crate::span::DAY;

/// One kind of node: the model of its GPUs, their number, how many nodes there are.
const KINDS: [(&str, u32, usize); 3] = [("a100", 8, 3), ("v100", 8, 3), ("titan-x", 4, 4)];
/// How many people each project has.
const PROJECTS: [usize; 8] = [3, 4, 4, 5, 5, 6, 6, 7];
pub(crate) const PEOPLE: usize = 40;
/// So many of them send their first job only after the month has begun.
const NEWCOMERS: usize = 16;
/// So many of them may use the class `urgent`.
const MAY_USE_URGENT: usize = 4;
/// Cores and GiB that a node has for each of its GPUs.
const CORES_PER_GPU: u64 = 8;
const GIB_PER_GPU: u64 = 64;

/// A machine.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) name: NodeName,
    pub(crate) model: &'static str,
    pub(crate) gpus: u32,
}

/// Somebody who sends jobs.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) name: UserName,
    pub(crate) project: usize,
    /// How many jobs they send beside the others.
    pub(crate) busy: u64,
    /// Milliseconds from the beginning to their first job, at the earliest.
    pub(crate) from: u64,
    pub(crate) may_use_urgent: bool,
}

/// The machines and the people.
#[derive(Debug, Clone)]
pub(crate) struct Lab {
    pub(crate) machines: Vec<Machine>,
    pub(crate) people: Vec<Person>,
}

impl Lab {
    pub(crate) fn new(draw: &mut Draw) -> Self {
        let mut machines = Vec::new();
        for (model, gpus, count) in KINDS {
            for nth in 1..=count {
                machines.push(Machine { name: node(&format!("{model}-{nth:02}")), model, gpus });
            }
        }
        let of_project = (0..PROJECTS.len()).flat_map(|at| vec![at; PROJECTS[at]]);
        let mut people: Vec<Person> = of_project
            .enumerate()
            .map(|(at, project)| Person {
                name: user(&format!("person{at:02}")),
                project,
                busy: whole(draw.log_normal(1_000.0, 0.7)),
                from: 0,
                may_use_urgent: false,
            })
            .collect();
        for _ in 0..NEWCOMERS {
            let at = draw.place(people.len());
            people[at].from = draw.between(3 * DAY, 20 * DAY);
        }
        let urgent = draw.place(people.len());
        for nth in 0..MAY_USE_URGENT {
            // From different projects.
            people[(urgent + nth * PEOPLE / MAY_USE_URGENT) % PEOPLE].may_use_urgent = true;
        }
        Self { machines, people }
    }

    pub(crate) fn gpus(&self) -> u32 {
        self.machines.iter().map(|machine| machine.gpus).sum()
    }

    pub(crate) fn weight_of(project: usize) -> u32 {
        u32::try_from(PROJECTS[project]).unwrap_or(1)
    }

    pub(crate) fn projects() -> impl Iterator<Item = (usize, ProjectName)> {
        (0..PROJECTS.len()).map(|at| (at, project(at)))
    }
}

impl Machine {
    /// What its agent reports.
    pub(crate) fn facts(&self) -> NodeFacts {
        let gpus = u64::from(self.gpus);
        let identity = MachineIdentity {
            machine_id: format!("machine of {}", self.name),
            ..Default::default()
        };
        NodeFacts {
            boot_id: "boot-1".to_owned(),
            agent_instance: "agent-1".to_owned(),
            agent_version: "0.1.0".to_owned(),
            kernel: "6.12".to_owned(),
            os: "debian".to_owned(),
            cpu_millis: gpus * CORES_PER_GPU * 1_000,
            memory_bytes: (gpus * GIB_PER_GPU) << 30,
            gpus: (0..self.gpus).map(|index| self.gpu(index)).collect(),
            ..NodeFacts::bare(identity)
        }
    }

    fn gpu(&self, index: u32) -> Gpu {
        let hex: String =
            format!("{}:{index}", self.name).bytes().map(|b| format!("{b:02x}")).collect();
        Gpu {
            uuid: GpuUuid::parse(&format!("GPU-{hex}")).expect("a legal UUID"),
            node: self.name.clone(),
            index,
            minor: index,
            model: self.model.to_owned(),
            product: self.model.to_owned(),
            architecture: Architecture::Volta,
            memory_bytes: 16 << 30,
            pci_bus_id: format!("0000:{index:02x}:00.0"),
            numa_node: None,
            presence: Presence::Present,
            dirty: None,
            driver_index: None,
            here_since: None,
            lost_since: None,
            replaced_by_next: false,
        }
    }
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::parse(name).expect("a legal name")
}

pub(crate) fn user(name: &str) -> UserName {
    UserName::parse(name).expect("a legal name")
}

pub(crate) fn project(at: usize) -> ProjectName {
    ProjectName::parse(&format!("project{at}")).expect("a legal name")
}
