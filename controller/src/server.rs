//! The composition root: builds every part of a controller, runs it, and takes it down in order.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::Actor;
use fleet_core::command::Command;
use fleet_core::name::NodeName;
use fleet_proto::transport::client::Address;
use fleet_proto::transport::server::server_builder;
use fleet_proto::transport::{
    Dialer, Gate, PeerIdentity, SharedCredentials, TlsListener, UnixListener,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use crate::api::{
    Admins, AgentsService, Callers, Context, EnrollmentService, FleetService, RefusalLog,
};
use crate::clock::{LeaderClock, wall};
use crate::config::Config;
use crate::leader;
use crate::pki::renewal::keep_own_certificate;
use crate::pki::{AuditSigner, Authority};
use crate::raft::{self, FatalHook, PeerCheck, PeerConnector, RaftConfig, RaftHandle};
use crate::sessions::Sessions;
use crate::tunnels::Tunnels;

/// Who this controller is, written once at `init`.
const IDENTITY_FILE: &str = "controller.json";
/// The first controller's node id in Raft.
const FIRST_NODE: u64 = 1;
/// Everybody on this machine may connect; the kernel says who it is.
const SOCKET_MODE: u32 = 0o666;
/// How long open requests may take to finish at a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the first leader may take to be there.
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(20);

/// Channels to other controllers, by mutual TLS.
#[derive(Debug)]
struct TlsConnector(SharedCredentials);

impl PeerConnector for TlsConnector {
    fn channel(&self, _node: u64, address: &str) -> Result<Channel, String> {
        let address = address.parse::<Address>().map_err(|e| e.to_string())?;
        Ok(Dialer::new(vec![address], self.0.clone()).channel())
    }
}

/// A cluster that is being made has nobody to talk to.
#[derive(Debug)]
struct NoPeers;

impl PeerConnector for NoPeers {
    fn channel(&self, node: u64, _address: &str) -> Result<Channel, String> {
        Err(format!("controller {node} cannot be there yet"))
    }
}

/// Lets only controller `from` speak for controller `from`.
fn peer_check() -> PeerCheck {
    Arc::new(|extensions, from| {
        let peer = extensions.get::<PeerIdentity>();
        let name = match peer {
            Some(peer) => peer.require_controller()?,
            None => return Err(Status::unauthenticated("the peer of this connection is unknown")),
        };
        if name.as_str() == controller_name(from) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("{name} cannot speak for controller {from}")))
    })
}

/// The name in a controller's certificate.
fn controller_name(node: u64) -> String {
    format!("controller-{node}")
}

/// The content of [`IDENTITY_FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct ControllerIdentity {
    v: u32,
    cluster: String,
    node: u64,
}

impl ControllerIdentity {
    fn name(&self) -> anyhow::Result<NodeName> {
        Ok(NodeName::parse(&controller_name(self.node))?)
    }

    fn load(data_dir: &Path) -> anyhow::Result<Self> {
        let path = data_dir.join(IDENTITY_FILE);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("read {} (has `fleet-controller init` been run?)", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
    }
}

/// Makes a new cluster of one controller: its authority, its keys, its empty store.
pub async fn init(config: &Config) -> anyhow::Result<()> {
    let path = config.data_dir.join(IDENTITY_FILE);
    if path.exists() {
        anyhow::bail!("{} is there already: this controller has a cluster", path.display());
    }
    fleet_proto::transport::files::create_private_folder(&config.data_dir)?;
    let authority = match Authority::load(&config.pki_dir()) {
        // An init that was cut short goes on with the authority it made.
        Ok(authority) => authority,
        Err(crate::pki::PkiError::NotInitialised { .. }) => {
            Authority::create(&config.pki_dir(), wall())?
        }
        Err(error) => return Err(error.into()),
    };
    let identity =
        ControllerIdentity { v: 1, cluster: authority.cluster().to_string(), node: FIRST_NODE };
    let address = config.advertise.first().map(ToString::to_string).unwrap_or_default();
    let raft = raft::start(RaftConfig {
        cluster: identity.cluster.clone(),
        node: identity.node,
        dir: config.data_dir.join("raft"),
        create: true,
        members: BTreeMap::from([(identity.node, address)]),
        connector: Arc::new(NoPeers),
        fatal: FatalHook::exit_process(),
    })
    .await?;
    wait_for_leader(&raft).await?;
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let command = Command::InitCluster { cluster: authority.cluster().clone(), incarnation: 1 };
    let envelope = fleet_core::Envelope {
        v: fleet_core::command::ENVELOPE_VERSION,
        actor: Actor::controller(),
        proposed_at: clock.now(),
        request: None,
        command,
    };
    let applied = raft.propose(envelope).await?;
    applied.reply.map_err(|rejection| anyhow::anyhow!("{rejection}"))?;
    raft.shutdown().await;
    let text = serde_json::to_vec_pretty(&identity)?;
    fleet_proto::transport::files::write_atomic(&path, &text, 0o600)?;
    Ok(())
}

async fn wait_for_leader(raft: &RaftHandle) -> anyhow::Result<()> {
    let mut leadership = raft.leadership();
    tokio::time::timeout(FIRST_LEADER_TIMEOUT, leadership.wait_for(|l| l.is_leader))
        .await
        .context("wait for this controller to lead")??;
    Ok(())
}

/// Serves until `stop`.
pub async fn serve(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let identity = ControllerIdentity::load(&config.data_dir)?;
    let name = identity.name()?;
    let authority = Arc::new(Authority::load(&config.pki_dir())?);
    if authority.cluster().as_str() != identity.cluster {
        anyhow::bail!(
            "the keys in {} belong to cluster {}, the store to {}",
            config.pki_dir().display(),
            authority.cluster(),
            identity.cluster
        );
    }
    let pki_dir = config.pki_dir();
    let credentials =
        SharedCredentials::new(authority.own_credentials(&pki_dir, &name, wall())?)?;
    let signer = Arc::new(AuditSigner::load_or_create(&authority, &pki_dir, &name, wall())?);
    let socket = std::net::TcpListener::bind(config.listen)
        .with_context(|| format!("listen on {}", config.listen))?;
    let raft = raft::start(RaftConfig {
        cluster: identity.cluster.clone(),
        node: identity.node,
        dir: config.data_dir.join("raft"),
        create: false,
        members: BTreeMap::new(),
        connector: Arc::new(TlsConnector(credentials.clone())),
        fatal: FatalHook::exit_process(),
    })
    .await?;
    let sessions = Sessions::default();
    let (plan, newest_plan) = watch::channel(Arc::default());
    let context = Context {
        clock: raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len())),
        tunnels: Tunnels::new(sessions.clone()),
        sessions,
        plan: newest_plan,
        callers: Callers::new(Admins {
            names: config.admins.clone(),
            group: config.admin_group.clone(),
        }),
        authority: Arc::clone(&authority),
        signer,
        revocations: credentials.revocations().clone(),
        advertise: Arc::new(config.advertise.clone()),
        refusals: RefusalLog::default(),
        raft: raft.clone(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(leader::run(context.clone(), plan, stop.clone()));
    let renewing = credentials.clone();
    tasks.spawn(async move { keep_own_certificate(authority, pki_dir, name, renewing).await });
    let served = serve_both(&config, context, credentials, socket, stop).await;
    tasks.shutdown().await;
    raft.shutdown().await;
    served
}

/// Serves the network and the Unix socket until `stop`, then lets open requests finish.
async fn serve_both(
    config: &Config,
    context: Context,
    credentials: SharedCredentials,
    socket: std::net::TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let gate = || Gate::new(credentials.revocations().clone());
    let network = TlsListener::start(socket, credentials.clone())?;
    let local = UnixListener::bind(&config.socket, SOCKET_MODE)?;
    let over_network = server_builder(gate())
        .add_service(EnrollmentService::new(context.clone()).into_server())
        .add_service(AgentsService::new(context.clone()).into_server())
        .add_service(context.raft.service(peer_check()).into_server())
        .add_service(FleetService::new(context.clone()).into_server())
        .serve_with_incoming_shutdown(network, stop.clone().cancelled_owned());
    let over_socket = server_builder(gate())
        .add_service(EnrollmentService::new(context.clone()).into_server())
        .add_service(FleetService::new(context).into_server())
        .serve_with_incoming_shutdown(local, stop.clone().cancelled_owned());
    tracing::info!(listen = %config.listen, socket = %config.socket.display(), "controller serves");
    ready();
    let both = async { tokio::try_join!(over_network, over_socket) };
    tokio::pin!(both);
    tokio::select! {
        result = &mut both => { result.context("serve")?; }
        () = stop.cancelled() => {
            // Streams of agents and attached users never finish by themselves.
            if let Ok(result) = tokio::time::timeout(DRAIN_TIMEOUT, &mut both).await {
                result.context("serve")?;
            }
        }
    }
    Ok(())
}

/// Tells systemd, where there is one.
fn ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(%error, "systemd was not told");
    }
}
