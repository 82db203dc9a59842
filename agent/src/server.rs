//! The composition root: builds every part of an agent, runs it, and takes it down. Jobs keep running.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::id::ClusterId;
use fleet_core::name::NodeName;
use fleet_daemon::process::Process;
use fleet_daemon::systemd;
use fleet_proto::transport::SharedCredentials;
use fleet_proto::transport::client::Dialer;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ahead::{Contact, Shelf};
use crate::attempts::{Registry, allocations_dir};
use crate::config::Config;
use crate::enroll::renewal::Renewal;
use crate::enroll::store::{IdentityFolder, IdentityRecord};
use crate::enroll::{Machine, identity_folder, moved};
use crate::fence::{Epochs, Fence};
use crate::gate;
use crate::gpu::{self, GpuInfo, Monitor, Numbers};
use crate::health;
use crate::holders::Usages;
use crate::inventory::{Inventory, machine_facts};
use crate::leases::Floors;
use crate::link::{Link, LinkParts};
use crate::local::{self, ASKS_MAX, Ask, LocalParts, SOCKET_FILE};
use crate::node::{NodeContext, Parts};
use crate::operations::{self, Operations, Sights};
use crate::outbox::Outbox;
use crate::reconcile::{CalendarParts, Reconciler, ReconcilerParts};
use crate::shutdown;
use crate::state_dir::take_state_dir;
use crate::stop_all::remove_parent;
use crate::terminals;
use crate::tunnel::{Tunnels, Wakes};
use crate::unit::Launcher;
use crate::vouch::VouchService;
use fleet_image::{ImageError, ImageStore, Limits};
use fleet_user::{AsUser, AsUserConfig, Users, UsersConfig};

/// Random bytes that tell two agents of one name apart.
const INSTANCE_BYTES: usize = 16;
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
    let node = make_node(&config, identity.node.clone(), &machine, gpus.clone(), gate).await?;
    let (outbox, registry) = (Outbox::default(), Registry::new(&allocations_dir(&config)));
    let (desired, desired_seen) = watch::channel(None);
    let (heard, heard_seen) = watch::channel(Duration::ZERO);
    let (leases, leases_seen) = watch::channel(None);
    let (calendar, asks) = open_calendar(&config, identity.cluster.clone(), &machine)?;
    let line = calendar.line.clone();
    let reconciler = Reconciler::rebuild(ReconcilerParts {
        node: node.clone(),
        floors: floors.clone(),
        registry: registry.clone(),
        outbox: outbox.clone(),
        desired: desired_seen,
        heard: heard_seen.clone(),
        leases,
        pulse: operations.begin("reconcile"),
        calendar,
    })?;
    let mut tasks = JoinSet::new();
    tasks.spawn(reconciler.run());
    tasks.spawn(shutdown::run(shutdown_parts(&node, &outbox)));
    tasks.spawn(make_gate(&node, gate_ends, &operations)?.run());
    tasks.spawn(make_terminals(&node, &line, &operations)?.run());
    let (conditions, conditions_seen) = (node.conditions.clone(), node.conditions.subscribe());
    tasks.spawn(health::run(health::Parts {
        state_dir: config.state_dir.clone(),
        boot_id: machine.boot_id.clone(),
        gpus: gpus.clone(),
        events,
        desired: desired.subscribe(),
        outbox: outbox.clone(),
        looks: Arc::clone(&node.looks),
        seen: conditions,
        pulse: operations.begin("health"),
    }));
    let base = machine_facts(&node, &machine, instance()?);
    let pulse = operations.begin("inventory");
    let (inbox, leases) = (outbox.clone(), leases_seen.clone());
    let seen = (floors, Usages::open(&config.state_dir)?);
    let view =
        Inventory::start(node.clone(), seen, registry.clone(), inbox, leases, base, pulse).await;
    let (vouching, images) = (VouchService::new(&dialer, node.users.clone()), node.images.clone());
    let parts = LocalParts { node: node.clone(), view: view.clone(), asks, vouching };
    tasks.spawn(local::serve(parts, config.run_dir.join(SOCKET_FILE)));
    let sights = Sights {
        node: identity.node.clone(),
        cluster: identity.cluster.to_string(),
        gpus,
        conditions: conditions_seen,
        leases: leases_seen,
        facts: view.facts.clone(),
        heard: heard_seen,
        registry: registry.clone(),
        outbox: outbox.clone(),
        credentials: dialer.credentials().clone(),
        images,
    };
    let attempts = registry.clone();
    let (authorities, authorities_told) = watch::channel(None);
    let link = Link::new(LinkParts {
        authorities,
        node: identity.node.clone(),
        fence: Fence::open(&config.state_dir)?,
        tunnels: Tunnels::new(registry.clone(), Wakes::start()?, dialer.clone())
            .with_images(sights.images.clone()),
        dialer: dialer.clone(),
        outbox,
        view,
        registry,
        desired,
        heard,
        pulse: operations.begin("link"),
        addresses: config.controllers.is_empty().then(|| folder.clone()),
        line,
        elsewhere: node.terminals.elsewhere().clone(),
    });
    tasks.spawn(link.run());
    let renewal = Renewal::new(folder, &dialer).following(authorities_told);
    tasks.spawn(take_up_certificates(reload, renewal.reload()));
    tasks.spawn(renewal.run());
    tracing::info!(node = %identity.node, cluster = %identity.cluster, "agent runs");
    tasks.spawn(operations::run(operations, sights, monitoring));
    wait(&mut tasks, stop).await?;
    if attempts.has_live() {
        return Ok(());
    }
    // An empty group of ours would be all that is left on a machine where nothing of fleet runs.
    let parent = config.cgroup_parent.clone();
    tokio::task::spawn_blocking(move || remove_parent(&parent)).await.context("remove the cgroup")
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

/// What holds people to their reservations.
fn make_gate(
    node: &NodeContext,
    ends: gate::Ends,
    operations: &Operations,
) -> anyhow::Result<gate::task::Task> {
    Ok(gate::task::Task::new(gate::task::TaskParts {
        state_dir: node.config.state_dir.clone(),
        config: node.config.enforce.clone(),
        jobs: node.config.cgroup_parent.clone(),
        users: node.users.clone(),
        gpus: node.gpus.clone(),
        denied: node.terminals.denied().clone(),
        ends,
        pulse: operations.begin("gate"),
    })?)
}

/// What holds a planned shutdown up.
fn shutdown_parts(node: &NodeContext, outbox: &Outbox) -> shutdown::Parts {
    let (handle, outbox) = (node.shutdown.clone(), outbox.clone());
    shutdown::Parts { handle, outbox, wait: node.config.checkpoint_wait }
}

/// What people read on their terminals.
fn make_terminals(
    node: &NodeContext,
    line: &Contact,
    operations: &Operations,
) -> anyhow::Result<terminals::task::Task> {
    Ok(terminals::task::Task::open(terminals::task::TaskParts {
        node: node.name.clone(),
        state_dir: &node.config.state_dir,
        jobs: node.config.cgroup_parent.clone(),
        mail_program: node.config.mail_program.clone(),
        users: node.users.clone(),
        gpus: node.gpus.clone(),
        gate: node.gate.clone(),
        handle: node.terminals.clone(),
        line: line.clone(),
        conditions: node.conditions.subscribe(),
        pulse: operations.begin("terminals"),
    })?)
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

/// What attempts need of this node.
async fn make_node(
    config: &Config,
    name: NodeName,
    machine: &Machine,
    gpus: gpu::Handle,
    gate: gate::Handle,
) -> anyhow::Result<Arc<NodeContext>> {
    let as_user = AsUser::new(AsUserConfig::default());
    let (shim, init) = helpers(config)?;
    Ok(Arc::new(NodeContext::new(Parts {
        name,
        boot_id: machine.boot_id.clone(),
        shim,
        init,
        launcher: Launcher::choose(&config.cgroup_parent).await?,
        users: Users::new(UsersConfig {
            min_uid: config.min_uid,
            allow_system_users: config.allow_system_users,
            ..UsersConfig::default()
        }),
        images: open_images(config, &as_user)?,
        as_user,
        gpus,
        gate,
        epochs: Epochs::start(&config.state_dir)?,
        config: config.clone(),
    })))
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

fn instance() -> anyhow::Result<String> {
    let mut bytes = [0; INSTANCE_BYTES];
    getrandom::fill(&mut bytes).context("random bytes")?;
    Ok(hex::encode(bytes))
}
