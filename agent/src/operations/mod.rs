//! Looking after this agent: metrics, health, its log, its service manager, a bundle for those who
//! help.
//!
//! `server.rs` makes the [`Operations`] and spawns [`run`]. Root's commands (`fleet-agent log-level`,
//! `fleet-agent debug-bundle`) come in over a Unix socket of their own, in [`client`]. It only looks:
//! nothing here touches a job, a lease or the driver.

pub mod client;
mod inside;
mod job_metrics;
mod metrics;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::desired::DesiredLease;
use fleet_core::health::Condition;
use fleet_core::name::NodeName;
use fleet_core::node::NodeFacts;
use fleet_daemon::http::{self, Endpoints};
use fleet_daemon::metrics::Metric;
use fleet_daemon::process::Process;
use fleet_daemon::progress::{Progress, Pulse, vouch};
use fleet_daemon::reload::Reload;
use fleet_daemon::systemd;
use fleet_proto::transport::{SharedCredentials, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::attempts::Registry;
use crate::config::{self, Config};
use crate::gpu;
use crate::job_use::JobUses;
use crate::outbox::Outbox;
use fleet_image::ImageStore;

/// How long one step of a main loop may take.
const LOOP_LIMIT: Duration = Duration::from_secs(60);
/// A step of the GPU monitor: a start of the driver, and the end of a child that hangs in it.
const MONITOR_LIMIT: Duration = Duration::from_secs(180);
/// Root's socket, in `run_dir`.
const SOCKET: &str = "agent-ops.sock";
/// Root alone.
const SOCKET_MODE: u32 = 0o600;
/// Keys of the configuration that SIGHUP takes over.
const LIVE_KEYS: [&str; 1] = ["log_level"];

/// What the operations look at.
#[derive(Debug, Clone)]
pub struct Sights {
    pub node: NodeName,
    pub cluster: String,
    pub gpus: gpu::Handle,
    pub conditions: watch::Receiver<Vec<Condition>>,
    /// The leases of the last document; `None` before the first.
    pub leases: watch::Receiver<Option<Vec<DesiredLease>>>,
    pub facts: watch::Receiver<NodeFacts>,
    /// When, since boot, the heartbeat was sent that a controller answered last.
    pub heard: watch::Receiver<Duration>,
    pub registry: Registry,
    pub job_uses: JobUses,
    pub outbox: Outbox,
    pub credentials: SharedCredentials,
    pub images: ImageStore,
}

/// What the program knows of itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Operations(Arc<Own>);

#[derive(Debug)]
struct Own {
    config: Config,
    process: Process,
    progress: Progress,
}

impl Operations {
    pub fn new(config: Config, process: Process) -> Self {
        Self(Arc::new(Own { config, process, progress: Progress::default() }))
    }

    /// A main loop begins; see [`Progress::begin`].
    pub fn begin(&self, name: &'static str) -> Pulse {
        self.0.progress.begin(name, LOOP_LIMIT)
    }
}

/// Every metric of the agent.
pub fn metrics() -> Vec<Metric> {
    [&metrics::METRICS[..], &job_metrics::METRICS[..], &fleet_daemon::process_metrics::METRICS[..]]
        .concat()
}

/// Where root's socket is.
pub fn socket_path(config: &Config) -> PathBuf {
    config.run_dir.join(SOCKET)
}

/// Takes the address for monitoring, if one is configured.
pub fn bind(address: Option<SocketAddr>) -> anyhow::Result<Option<std::net::TcpListener>> {
    address.map(|address| http::bind(address).context("monitoring_listen")).transpose()
}

/// Runs until dropped.
pub async fn run(
    operations: Operations,
    sights: Sights,
    monitoring: Option<std::net::TcpListener>,
) {
    let own = Arc::clone(&operations.0);
    let mut tasks = JoinSet::new();
    let gpus = sights.gpus.clone();
    tasks.spawn(vouch(own.progress.begin("GPU monitor", MONITOR_LIMIT), move || {
        let gpus = gpus.clone();
        async move { gpus.comes_round().await }
    }));
    let inside = Arc::new(inside::Agent { own: Arc::clone(&own), sights });
    let endpoints = Endpoints {
        exposition: inside.exposition(),
        inside: inside.clone(),
        progress: own.progress.clone(),
        logging: own.process.logging.clone(),
        for_root: false,
    };
    match UnixListener::bind(&socket_path(&own.config), SOCKET_MODE) {
        Ok(socket) => {
            let endpoints = Endpoints { for_root: true, ..endpoints.clone() };
            tasks.spawn(http::serve(endpoints, socket));
        }
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::error!(error, "root's commands to the running agent are not served");
        }
    }
    if let Some(listener) = monitoring {
        tasks.spawn(http::serve_tcp(endpoints, listener));
    }
    systemd::ready(&inside.status_line());
    let reload =
        Reload { load: Config::load, default_path: config::DEFAULT_PATH, live_keys: &LIVE_KEYS };
    let take = |new: Config| own.process.logging.configure(&new.log_level);
    tokio::join!(
        reload.follow(own.process.clone(), take, || inside.status_line()),
        systemd::watch(own.progress.clone(), || inside.status_line()),
    );
}
