//! The handles of all parts of an agent, and what each part gets of them.
//!
//! Only `server` has an [`Assembly`]. Each `of_…` gives one part the handles that it uses, and no others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::desired::{DesiredLease, DesiredNode};
use fleet_core::name::NodeName;
use fleet_daemon::progress::Pulse;
use tokio::sync::{mpsc, watch};

use super::helpers;
use crate::ahead::Contact;
use crate::allocations::{AttemptParts, Programs, Starts};
use crate::attempts::{Registry, allocations_dir, volatile_dir};
use crate::config::Config;
use crate::enroll::Machine;
use crate::fence::Epochs;
use crate::gate;
use crate::gpu::GpuEvent;
use crate::gpu_use::GpuUses;
use crate::handles::{Gpus, Owners};
use crate::health;
use crate::holders::Usages;
use crate::inventory::{InventoryParts, View, machine_facts};
use crate::leases::Floors;
use crate::local::{Ask, LocalParts};
use crate::outbox::Outbox;
use crate::reconcile::{OwnMachine, ReconcilerParts};
use crate::shutdown;
use crate::terminals;
use crate::unit::Launcher;
use crate::vouch::VouchService;
use fleet_image::{ImageError, ImageStore, Limits};
use fleet_user::{AsUser, AsUserConfig, Users, UsersConfig};

/// Random bytes that tell two agents of one name apart.
const INSTANCE_BYTES: usize = 16;

/// The newest document that may be acted upon, and when a heartbeat was sent that a controller answered.
type Seen = (watch::Receiver<Option<DesiredNode>>, watch::Receiver<Duration>);

/// See the module's doc.
pub(super) struct Assembly {
    config: Config,
    node: NodeName,
    machine: Machine,
    floors: Floors,
    launcher: Launcher,
    programs: Arc<Programs>,
    epochs: Epochs,
    shutdown: shutdown::Handle,
    pub(super) owners: Owners,
    pub(super) gpus: Gpus,
    pub(super) images: ImageStore,
    pub(super) health: health::Handle,
    pub(super) terminals: terminals::Handle,
    pub(super) outbox: Outbox,
    pub(super) registry: Registry,
}

impl Assembly {
    pub(super) async fn new(
        config: Config,
        node: NodeName,
        machine: Machine,
        gpus: Gpus,
        floors: Floors,
    ) -> anyhow::Result<Self> {
        let as_user = AsUser::new(AsUserConfig::default());
        let users = Users::new(UsersConfig {
            min_uid: config.min_uid,
            allow_system_users: config.allow_system_users,
            ..UsersConfig::default()
        });
        let programs = helpers(&config)?;
        let launcher = Launcher::choose(&config.cgroup_parent).await?;
        let programs = Programs::new(node.clone(), config.clone(), programs, launcher.clone());
        Ok(Self {
            node,
            machine,
            floors,
            launcher,
            programs: Arc::new(programs),
            images: open_images(&config, &as_user)?,
            owners: Owners { users, as_user },
            gpus,
            epochs: Epochs::start(&config.state_dir)?,
            shutdown: shutdown::Handle::default(),
            health: health::Handle::default(),
            terminals: terminals::Handle::default(),
            outbox: Outbox::default(),
            registry: Registry::new(&allocations_dir(&config)),
            config,
        })
    }

    fn of_attempts(&self) -> AttemptParts {
        AttemptParts {
            boot_id: self.machine.boot_id.clone(),
            owners: self.owners.clone(),
            gpus: self.gpus.clone(),
            images: self.images.clone(),
            programs: Arc::clone(&self.programs),
            epochs: self.epochs.clone(),
            health: self.health.clone(),
            shutdown: self.shutdown.clone(),
            timings: self.config.checkpoints,
            volatile_dir: volatile_dir(&self.config),
            starts: Starts::default(),
        }
    }

    pub(super) fn of_reconciler(
        &self,
        (desired, heard): Seen,
        leases: watch::Sender<Option<Vec<DesiredLease>>>,
        pulse: Pulse,
    ) -> ReconcilerParts {
        ReconcilerParts {
            attempts: Arc::new(self.of_attempts()),
            programs: Arc::clone(&self.programs),
            machine: OwnMachine {
                boot_id: self.machine.boot_id.clone(),
                is_shared: self.config.machine_id.is_some(),
            },
            retention: self.config.retention,
            owners: self.owners.clone(),
            gpus: self.gpus.clone(),
            terminals: self.terminals.clone(),
            shutdown: self.shutdown.clone(),
            epochs: self.epochs.clone(),
            floors: self.floors.clone(),
            registry: self.registry.clone(),
            outbox: self.outbox.clone(),
            desired,
            heard,
            leases,
            pulse,
        }
    }

    pub(super) fn of_shutdown(&self) -> shutdown::Parts {
        let (handle, outbox) = (self.shutdown.clone(), self.outbox.clone());
        shutdown::Parts { handle, outbox, wait: self.config.checkpoint_wait }
    }

    pub(super) fn of_gate(&self, ends: gate::Ends, pulse: Pulse) -> gate::task::TaskParts {
        gate::task::TaskParts {
            state_dir: self.config.state_dir.clone(),
            config: self.config.enforce.clone(),
            jobs: self.config.cgroup_parent.clone(),
            users: self.owners.users.clone(),
            gpus: self.gpus.driver.clone(),
            denied: self.terminals.denied().clone(),
            ends,
            pulse,
        }
    }

    pub(super) fn of_terminals(
        &self,
        line: &Contact,
        pulse: Pulse,
    ) -> terminals::task::TaskParts<'_> {
        terminals::task::TaskParts {
            node: self.node.clone(),
            state_dir: &self.config.state_dir,
            jobs: self.config.cgroup_parent.clone(),
            mail_program: self.config.mail_program.clone(),
            users: self.owners.users.clone(),
            gpus: self.gpus.driver.clone(),
            gate: self.gpus.gate.clone(),
            handle: self.terminals.clone(),
            line: line.clone(),
            conditions: self.health.conditions(),
            pulse,
        }
    }

    pub(super) fn of_health(
        &self,
        events: mpsc::Receiver<GpuEvent>,
        desired: watch::Receiver<Option<DesiredNode>>,
        pulse: Pulse,
    ) -> health::Parts {
        health::Parts {
            state_dir: self.config.state_dir.clone(),
            boot_id: self.machine.boot_id.clone(),
            gpus: self.gpus.driver.clone(),
            events,
            desired,
            outbox: self.outbox.clone(),
            handle: self.health.clone(),
            pulse,
        }
    }

    pub(super) fn of_inventory(
        &self,
        leases: watch::Receiver<Option<Vec<DesiredLease>>>,
        gpu_uses: GpuUses,
    ) -> anyhow::Result<InventoryParts> {
        Ok(InventoryParts {
            node: self.node.clone(),
            gpus: self.gpus.clone(),
            users: self.owners.users.clone(),
            denied: self.terminals.denied().clone(),
            foreign: self.config.enforce.foreign,
            floors: self.floors.clone(),
            usages: Usages::open(&self.config.state_dir)?,
            gpu_uses,
            idle: self.terminals.idle().clone(),
            registry: self.registry.clone(),
            outbox: self.outbox.clone(),
            leases,
            base: machine_facts(&self.config, &self.machine, instance()?),
        })
    }

    pub(super) fn of_local(
        &self,
        view: View,
        asks: mpsc::Sender<Ask>,
        vouching: VouchService,
    ) -> LocalParts {
        LocalParts {
            node: self.node.clone(),
            users: self.owners.users.clone(),
            gpus: self.gpus.driver.clone(),
            gate: self.gpus.gate.clone(),
            terminals: self.terminals.clone(),
            launcher: self.launcher.clone(),
            device_dir: self.config.gpu.device_dir.clone(),
            holds_one_group: self.config.enforce.cgroup.is_some(),
            view,
            asks,
            vouching,
        }
    }
}

fn open_images(config: &Config, as_user: &AsUser) -> Result<ImageStore, ImageError> {
    let folder = config.state_dir.join("images");
    let limits = Limits::of_store(&config.state_dir, config.images.store_bytes_max);
    let (allocations, registries) = (allocations_dir(config), config.images.clone());
    let store = ImageStore::open(&folder, &allocations, limits, registries, as_user.clone())?;
    let tidied = store.clone();
    // What it does is done in steps of which each may be the last; nobody waits for it.
    let thread = std::thread::Builder::new().name("fleet-tidy".to_owned());
    if let Err(error) = thread.spawn(move || tidied.tidy_up()) {
        tracing::warn!(%error, "images are not tidied up");
    }
    Ok(store)
}

fn instance() -> anyhow::Result<String> {
    let mut bytes = [0; INSTANCE_BYTES];
    getrandom::fill(&mut bytes).context("random bytes")?;
    Ok(hex::encode(bytes))
}
