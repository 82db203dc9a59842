//! The composition root: builds every part of an agent, runs it, and takes it down. Jobs keep running.

mod assembly;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::id::ClusterId;
use fleet_daemon::process::Process;
use fleet_daemon::systemd;
use fleet_proto::transport::SharedCredentials;
use fleet_proto::transport::client::Dialer;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ahead::{Contact, Shelf};
use crate::attempts::Registry;
use crate::config::Config;
use crate::enroll::renewal::Renewal;
use crate::enroll::store::{IdentityFolder, IdentityRecord};
use crate::enroll::{Machine, identity_folder, moved};
use crate::fence::Fence;
use crate::gate;
use crate::gpu::{self, GpuInfo, Monitor, Numbers};
use crate::gpu_use::GpuUses;
use crate::handles::Gpus;
use crate::health;
use crate::inventory::Inventory;
use crate::job_use::{JobUses, Watcher};
use crate::leases::Floors;
use crate::link::{Link, LinkParts};
use crate::local::{self, ASKS_MAX, Ask, SOCKET_FILE};
use crate::operations::{self, Operations, Sights};
use crate::reconcile::{CalendarParts, Reconciler};
use crate::shutdown;
use crate::state_dir::take_state_dir;
use crate::stop_all::remove_parent;
use crate::terminals;
use crate::tunnel::{Tunnels, Wakes};
use crate::vouch::VouchService;

use assembly::Assembly;

/// Names of the shim's program and of the containers' init.
const SHIM: &str = "fleet-shim";
const INIT: &str = "fleet-init";
/// Where packages put them: nobody types their names.
const SHIM_DIR: &str = "/usr/lib/fleet";

/// Serves until `stop`.
pub async fn serve(config: Config, process: Process) -> anyhow::Result<()> {
    let (stop, reload) = (process.signals.stop.clone(), process.signals.reload.clone());
    let _held = take_state_dir(&config)?;
    let monitoring = operations::bind(config.monitoring_listen)?;
    let operations = Operations::new(config.clone(), process);
    let folder = IdentityFolder::new(&identity_folder(&config.state_dir));
    let (identity, dialer) = membership(&config, &folder)?;
    let (machine, floors) = (Machine::read(), Floors::open(&config.state_dir)?);
    let (gpus, events, _monitor) = Monitor::spawn(monitor_config(&config, floors.known()));
    let (gate, gate_ends) = gate::Handle::new();
    let gpus = Gpus::new(gpus, gate, &config);
    let (calendar, asks) = open_calendar(&config, identity.cluster.clone(), &machine)?;
    let parts = Assembly::new(config.clone(), identity.node.clone(), machine, gpus, floors).await?;
    let (outbox, registry) = (parts.outbox.clone(), parts.registry.clone());
    let (desired, desired_seen) = watch::channel(None);
    let (heard, heard_seen) = watch::channel(Duration::ZERO);
    let (leases, leases_seen) = watch::channel(None);
    let line = calendar.line.clone();
    let seen = (desired_seen, heard_seen.clone());
    let reconciler = parts.of_reconciler(seen, leases, operations.begin("reconcile"));
    let reconciler = Reconciler::rebuild(reconciler, calendar)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(reconciler.run());
    tasks.spawn(shutdown::run(parts.of_shutdown()));
    let gate = parts.of_gate(gate_ends, operations.begin("gate"));
    tasks.spawn(gate::task::Task::new(gate)?.run());
    let terminals = parts.of_terminals(&line, operations.begin("terminals"));
    tasks.spawn(terminals::task::Task::open(terminals)?.run());
    let pulse = operations.begin("health");
    tasks.spawn(health::run(parts.of_health(events, desired.subscribe(), pulse)));
    let gpu_uses =
        GpuUses::open(&config.state_dir, &identity.node, config.gpu.use_interval, line.clone());
    let inventory = parts.of_inventory(leases_seen.clone(), gpu_uses.clone())?;
    let view = Inventory::start(inventory, operations.begin("inventory")).await;
    let vouching = VouchService::new(&dialer, parts.owners.users.clone());
    let local = parts.of_local(view.clone(), asks, vouching);
    tasks.spawn(local::serve(local, config.run_dir.join(SOCKET_FILE)));
    let sights = Sights {
        node: identity.node.clone(),
        cluster: identity.cluster.to_string(),
        gpus: parts.gpus.driver.clone(),
        conditions: parts.health.conditions(),
        leases: leases_seen,
        facts: view.facts.clone(),
        heard: heard_seen,
        registry: registry.clone(),
        job_uses: watch_jobs(&mut tasks, &registry),
        outbox: outbox.clone(),
        credentials: dialer.credentials().clone(),
        images: parts.images.clone(),
    };
    let attempts = registry.clone();
    let (authorities, authorities_told) = watch::channel(None);
    let link = Link::new(LinkParts {
        authorities,
        job_uses: sights.job_uses.clone(),
        node: identity.node.clone(),
        fence: Fence::open(&config.state_dir)?,
        tunnels: Tunnels::new(registry.clone(), Wakes::start()?, dialer.clone())
            .with_images(sights.images.clone())
            .with_gpu_uses(gpu_uses.clone()),
        dialer: dialer.clone(),
        outbox,
        view,
        registry,
        desired,
        heard,
        pulse: operations.begin("link"),
        addresses: config.controllers.is_empty().then(|| folder.clone()),
        line,
        elsewhere: parts.terminals.elsewhere().clone(),
    });
    tasks.spawn(link.run());
    let renewal = Renewal::new(folder, &dialer).following(authorities_told);
    tasks.spawn(take_up_certificates(reload, renewal.reload()));
    tasks.spawn(renewal.run());
    tracing::info!(node = %identity.node, cluster = %identity.cluster, "agent runs");
    tasks.spawn(operations::run(operations, sights, monitoring));
    let waited = wait(&mut tasks, stop).await;
    gpu_uses.stop();
    waited?;
    remove_group(&config, &attempts).await
}

/// An empty group of ours would be all that is left on a machine where nothing of fleet runs.
async fn remove_group(config: &Config, attempts: &Registry) -> anyhow::Result<()> {
    if attempts.has_live() {
        return Ok(());
    }
    let parent = config.cgroup_parent.clone();
    tokio::task::spawn_blocking(move || remove_parent(&parent)).await.context("remove the cgroup")
}

/// Begins to watch what running attempts use.
fn watch_jobs(tasks: &mut JoinSet<()>, registry: &Registry) -> JobUses {
    let (watcher, uses) = Watcher::new(registry.clone());
    tasks.spawn(watcher.run());
    uses
}

/// Who this node is to its fleet, and the way to the controllers. What the state folder has of another fleet is dropped.
fn membership(
    config: &Config,
    folder: &IdentityFolder,
) -> anyhow::Result<(IdentityRecord, Dialer)> {
    let (identity, credentials) = folder.load()?;
    if let Some(name) = config.name.as_ref().filter(|name| **name != identity.node) {
        anyhow::bail!("the configuration names this node {name}, it joined as {}", identity.node);
    }
    moved::settle(&config.state_dir, &identity.cluster)?;
    let addresses = match config.controllers.as_slice() {
        [] => folder.addresses(&identity)?,
        said => said.to_vec(),
    };
    Ok((identity, Dialer::new(addresses, SharedCredentials::new(credentials)?)))
}

/// The calendar as it was left, and the way to ask about it.
fn open_calendar(
    config: &Config,
    cluster: ClusterId,
    machine: &Machine,
) -> anyhow::Result<(CalendarParts, mpsc::Sender<Ask>)> {
    let shelf = Shelf::new(&config.state_dir, cluster);
    let (promises, time) = shelf.load()?;
    let line = Contact::new(time, &machine.boot_id);
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    Ok((CalendarParts { promises, shelf, line, asks: asked }, asks))
}

/// Until the stop; a part that ends by itself takes the agent with it, and the service manager starts
/// both again.
async fn wait(tasks: &mut JoinSet<()>, stop: CancellationToken) -> anyhow::Result<()> {
    tokio::select! {
        () = stop.cancelled() => {
            systemd::stopping();
            tracing::info!("agent stops; jobs keep running");
            tasks.shutdown().await;
            Ok(())
        }
        Some(ended) = tasks.join_next() => {
            ended.context("a part of the agent failed")?;
            anyhow::bail!("a part of the agent ended");
        }
    }
}

fn monitor_config(config: &Config, known: Vec<GpuInfo>) -> gpu::Config {
    gpu::Config {
        library: config.gpu.nvml_library.clone(),
        environment: config.gpu.environment.clone(),
        sample_interval: config.gpu.sample_interval,
        known,
        numbers: Numbers::open(&config.state_dir),
        ..gpu::Config::default()
    }
}

/// The shim, and the init of containers.
pub(crate) fn helpers(config: &Config) -> anyhow::Result<(PathBuf, PathBuf)> {
    Ok((program(config, SHIM)?, program(config, INIT)?))
}

/// The shim's program, or the containers' init beside it: as configured, or beside this one.
fn program(config: &Config, name: &str) -> anyhow::Result<PathBuf> {
    let path = match &config.shim {
        Some(shim) if name == SHIM => shim.clone(),
        Some(shim) => shim.with_file_name(name),
        None => {
            let beside =
                std::env::current_exe().context("where this program is")?.with_file_name(name);
            if beside.is_file() { beside } else { Path::new(SHIM_DIR).join(name) }
        }
    };
    if !path.is_file() {
        anyhow::bail!("{} is not there; set runtime.shim", path.display());
    }
    Ok(path)
}

/// A reload: what was put into the identity folder is taken up without a restart.
async fn take_up_certificates(mut reload: watch::Receiver<u64>, renewal: Arc<Notify>) {
    while reload.changed().await.is_ok() {
        renewal.notify_one();
    }
    // Nobody can ask any more; that ends nothing.
    std::future::pending().await
}
