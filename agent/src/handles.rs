//! Handles of other parts that several parts of the agent need together, grouped by purpose.
//!
//! Made once by `server/assembly.rs`, which alone knows all parts. Everybody else takes the group, or the single handle, that it uses.
//! Cheap to clone.

use crate::config::Config;
use crate::gate;
use crate::gpu;
use crate::holders::{self, Observers};
use fleet_user::{AsUser, Users};

/// Who the owner of a job is on this node, and doing things as them.
#[derive(Debug, Clone)]
pub struct Owners {
    pub users: Users,
    pub as_user: AsUser,
}

/// The GPUs of this node: the driver, who may open them, who uses them, and what happens to users without a right to them.
#[derive(Debug, Clone)]
pub struct Gpus {
    pub driver: gpu::Handle,
    pub gate: gate::Handle,
    pub observers: Observers,
    pub holders: holders::Handle,
}

impl Gpus {
    pub fn new(driver: gpu::Handle, gate: gate::Handle, config: &Config) -> Self {
        let observers = Observers::new(gate.clone(), config);
        Self { driver, gate, observers, holders: holders::Handle::default() }
    }
}
