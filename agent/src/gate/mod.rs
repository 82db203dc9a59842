//! The gate: holds people who ssh in to their reservations, in the kernel.
//!
//! - [`kernel`]: the program on the root of the cgroup2 tree and its maps; `program`: how it is assembled.
//!   `subuids`: whose numbers in containers without root are whose. `exempt`: who passes without a lease. [`rules`]: who passes, as it is kept on the disk for the next boot. [`task`]: keeps the kernel and the disk at what
//!   the reconcile task wants. [`command`]: `fleet-agent gate load`, `show` and `remove`.
//!
//! The reconcile task says who holds what now ([`Handle::want`]); an attempt waits until its owner passes
//! ([`Handle::admits`]). The gate is about open(2) only: who has a GPU open keeps it. It never decides who holds a
//! lease, never waits for a name service before it tightens, and outlives the agent: an agent that ends, or is killed,
//! leaves it in force as it is. If the kernel cannot hold it, the agent says so, and what it does instead
//! has a name ([`Fallback`](fleet_core::window::Fallback)): it warns the users it sees and ends their processes.

pub mod command;
mod exempt;
pub mod kernel;
mod program;
pub mod rules;
mod subuids;
pub mod task;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::name::{GpuUuid, UserName};
use fleet_core::window::{Enforced, Enforcement};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use fleet_node::Grant;
use fleet_user::Subordinates;

/// How long an attempt waits until its owner passes. Not needed if the kernel knows jobs by their control group.
const ADMIT_MAX: Duration = Duration::from_secs(5);
/// How often, and how many times, a group of containers that systemd is making is looked for.
const CONTAINERS_LOOK_EVERY: Duration = Duration::from_millis(100);
const CONTAINERS_LOOKS_MAX: u32 = 100;

/// What the reconcile task wants of the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// By an admin; none before a controller said so, and then it stays as it was.
    pub ordered: Option<Enforcement>,
    /// By root on this node.
    pub ceiling: Enforcement,
    pub grants: BTreeSet<Grant>,
}

/// How the gate is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateState {
    /// None before the first turn.
    pub enforced: Option<Enforced>,
    /// Who passes where.
    pub admitted: BTreeSet<(UserName, GpuUuid)>,
    /// The numbers of those who pass somewhere by a lease.
    pub holders: BTreeSet<u32>,
    /// How often somebody was denied, or would have been, since the agent started.
    pub denials: u64,
    /// Who passes without a lease, by number; none before the name service was asked.
    pub exempt: Option<Exempt>,
    /// Whose containers' numbers are whose.
    pub subordinates: Arc<Subordinates>,
    /// Uids whose group of containers the kernel has. `None` if the gate does not use these groups, or there is no gate.
    pub containers: Option<BTreeSet<u32>>,
}

/// Uids and gids that pass everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exempt {
    pub uids: BTreeSet<u32>,
    pub gids: BTreeSet<u32>,
}

impl GateState {
    /// Whether this user may open these GPUs.
    fn admits(&self, owner: &UserName, gpus: &[GpuUuid]) -> bool {
        let Some(enforced) = &self.enforced else { return false };
        let passes = |gpu: &GpuUuid| self.admitted.contains(&(owner.clone(), gpu.clone()));
        enforced.mode != Enforcement::On || gpus.iter().all(passes)
    }
}

/// What others hold of the gate. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    wanted: watch::Sender<Option<Wanted>>,
    state: watch::Receiver<GateState>,
    look: Arc<Notify>,
}

/// The task's side of it.
#[derive(Debug)]
pub struct Ends {
    wanted: watch::Receiver<Option<Wanted>>,
    state: watch::Sender<GateState>,
    look: Arc<Notify>,
}

impl Handle {
    /// And the ends for the task.
    #[must_use]
    pub fn new() -> (Self, Ends) {
        let (wanted, wanted_seen) = watch::channel(None);
        let (state, state_seen) = watch::channel(GateState::default());
        let look = Arc::new(Notify::new());
        let ends = Ends { wanted: wanted_seen, state, look: Arc::clone(&look) };
        (Self { wanted, state: state_seen, look }, ends)
    }

    /// Says what is wanted now.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|known| {
            let new = known.as_ref() != Some(&wanted);
            if new {
                *known = Some(wanted);
            }
            new
        });
    }

    /// How it is, and notice of each change.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<GateState> {
        self.state.clone()
    }

    /// Waits until this user may open these GPUs; if that takes too long, says so and lets the caller continue.
    pub async fn admits(&self, owner: &UserName, gpus: &[GpuUuid]) {
        let mut state = self.state.clone();
        let there = state.wait_for(|state| state.admits(owner, gpus));
        if !gpus.is_empty() && timeout(ADMIT_MAX, there).await.is_err() {
            tracing::warn!(%owner, "the gate does not let the owner of a job pass yet");
        }
    }

    /// Waits until the kernel knows this user's group of containers, which is just being made. Says whether it does, or
    /// need not.
    pub async fn knows_containers(&self, uid: u32) -> bool {
        let mut state = self.state.clone();
        let known =
            |state: &GateState| state.containers.as_ref().is_none_or(|all| all.contains(&uid));
        for _ in 0..CONTAINERS_LOOKS_MAX {
            self.look.notify_one();
            if let Ok(Ok(_)) = timeout(CONTAINERS_LOOK_EVERY, state.wait_for(known)).await {
                return true;
            }
        }
        false
    }
}
