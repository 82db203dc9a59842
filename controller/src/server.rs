//! The composition root: builds every part of a controller, runs it, and takes it down in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::command::{AdmitController, ClusterCommand, Command, ControllerCommand};
use fleet_core::{Actor, Rejection};
use fleet_daemon::process::Process;
use fleet_daemon::systemd;
use fleet_proto::transport::files::{self, MODE_PRIVATE};
use fleet_proto::transport::server::server_builder;
use fleet_proto::transport::{Denial, Denials, Gate, SharedCredentials, TlsListener, UnixListener};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{
    AgentsService, Context, ControllersService, EnrollmentService, FleetService, NewestPlan,
    Trials, peer_check,
};
use crate::backup::{self, BackupService};
use crate::callers::{Admins, Callers, People};
use crate::clock::{LeaderClock, wall};
use crate::config::Config;
use crate::figures::Figures;
use crate::identity::ControllerIdentity;
use crate::leader::{self, Leader};
use crate::login_log::LoginLog;
use crate::mail::Mail;
use crate::operations::{self, Operations};
use crate::owner;
use crate::peers::{Peers, TlsConnector};
use crate::pki::follow;
use crate::pki::renewal::keep_own_certificate;
use crate::pki::{AuditSigner, Authority, Keyring, PkiError};
use crate::raft::{self, FatalHook, PeerConnector, RaftConfig, RaftHandle, Versions};
use crate::refusal_log::RefusalLog;
use crate::removal;
use crate::self_check;
use crate::sessions::Sessions;
use crate::superseded::{self, Superseded};
use crate::tunnels::Tunnels;
use crate::web;

/// Exists while a cluster is being made. An authority without this file lost its store: `init` must not run again.
const UNFINISHED_FILE: &str = "init.unfinished";
/// The first controller's node id in Raft.
const FIRST_NODE: u64 = 1;
/// Everybody on this machine may connect; the kernel says who it is.
const SOCKET_MODE: u32 = 0o666;
/// How long open requests may take to finish at a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the first leader may take to be there.
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes a new cluster of one controller: its authority, its keys, its empty store.
pub async fn init(config: &Config) -> anyhow::Result<()> {
    owner::check(&config.data_dir, "init")?;
    if ControllerIdentity::find(&config.data_dir)?.is_some() {
        let path = ControllerIdentity::path(&config.data_dir);
        anyhow::bail!("{} is there already: this controller has a cluster", path.display());
    }
    files::create_private_folder(&config.data_dir)?;
    let unfinished = config.data_dir.join(UNFINISHED_FILE);
    let authority = match Authority::load(&config.pki_dir()) {
        // An init that was cut short continues with the authority it made.
        Ok(authority) if unfinished.exists() => authority,
        Ok(authority) => anyhow::bail!(
            "{} holds the keys of {}, but the controller's store is gone. With other controllers left: remove this one (`fleet controller remove`) and join with an empty data_dir; else bring the whole folder back from a backup",
            config.pki_dir().display(),
            authority.cluster()
        ),
        Err(PkiError::NotInitialised { .. }) => {
            files::write_atomic(&unfinished, b"", MODE_PRIVATE)?;
            Authority::create(&config.pki_dir(), wall())?
        }
        Err(error) => return Err(error.into()),
    };
    let identity = ControllerIdentity::new(authority.cluster().to_string(), FIRST_NODE);
    let address = config.advertise.first().map(ToString::to_string).unwrap_or_default();
    let raft = raft::start(RaftConfig {
        cluster: identity.cluster.clone(),
        node: identity.node,
        dir: config.data_dir.join("raft"),
        create: true,
        members: BTreeMap::from([(identity.node, address.clone())]),
        connector: Arc::new(raft::NoPeers),
        versions: Versions::BUILT,
        fatal: FatalHook::exit_process(),
    })
    .await?;
    wait_for_leader(&raft).await?;
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let (id, token, key_sha256) = (identity.node, None, String::new());
    for command in [
        Command::Cluster(ClusterCommand::Init {
            cluster: authority.cluster().clone(),
            incarnation: 1,
        }),
        Command::Cluster(ClusterCommand::SetVersion { version: Versions::BUILT.max }),
        Command::Controller(ControllerCommand::Admit(AdmitController {
            id,
            address,
            token,
            key_sha256,
        })),
    ] {
        let envelope = fleet_core::Envelope {
            v: fleet_core::command::ENVELOPE_VERSION,
            actor: Actor::controller(),
            proposed_at: clock.now(),
            request: None,
            command,
        };
        let applied = raft.propose(envelope).await?;
        match applied.reply {
            // An init that was cut short was as far as this.
            Ok(_) | Err(Rejection::Denied { .. }) => {}
            Err(rejection) => anyhow::bail!("{rejection}"),
        }
    }
    raft.shutdown().await;
    identity.store(&config.data_dir)?;
    // What stays of it means nothing beside the identity.
    drop(std::fs::remove_file(&unfinished));
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
pub async fn serve(config: Config, process: Process) -> anyhow::Result<()> {
    owner::check(&config.data_dir, "run")?;
    let stop = process.signals.stop.clone();
    if let Some(mail) = &config.mail {
        mail.check_files().context("[mail]")?;
    }
    let identity = ControllerIdentity::load(&config.data_dir)?;
    if let Some(superseded) = Superseded::find(&config.data_dir)? {
        return Err(superseded.into());
    }
    let name = identity.name()?;
    let keyring = keys_of(&identity, &config)?;
    let pki_dir = config.pki_dir();
    let credentials = SharedCredentials::new(keyring.own_credentials(&name, wall())?)?;
    let socket = std::net::TcpListener::bind(config.listen)
        .with_context(|| format!("listen on {}", config.listen))?;
    let monitoring = operations::bind(config.monitoring_listen)?;
    let page = web::bind(config.web.as_ref(), &keyring)?;
    let connector: Arc<dyn PeerConnector> = Arc::new(TlsConnector(credentials.clone()));
    let store = RaftConfig {
        cluster: identity.cluster.clone(),
        node: identity.node,
        dir: config.data_dir.join("raft"),
        create: false,
        members: BTreeMap::new(),
        connector: Arc::clone(&connector),
        versions: Versions::BUILT,
        fatal: FatalHook::exit_process(),
    };
    let raft = raft::start_at_pace(store, config.election_timeout_ms).await?;
    // As far as the state here knows by now; the rest as it comes.
    keyring.follow(&raft.read(|fsm| fsm.authorities().clone()))?;
    keyring.renew_own(&name, wall(), &credentials)?;
    let signing = keyring.signing();
    let signer = Arc::new(AuditSigner::load_or_create(&signing, &pki_dir, &name, wall())?);
    let figures =
        Figures { raft: raft.clone(), keyring: keyring.clone(), peers: Peers::new(connector) };
    let (context, leader) =
        assemble(&config, process, figures, Arc::clone(&signer), credentials.clone());
    let (clock, peers) = (context.clock.clone(), context.peers.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(self_check::run(raft.clone(), clock, peers.clone(), socket.local_addr()?));
    tasks.spawn(leader::run(leader, stop.clone()));
    let keep = backup::Keep {
        dir: config.backup_dir.clone(),
        count: config.backup_keep,
        hour: config.backup_hour,
    };
    tasks.spawn(backup::keep(keep, raft.clone(), config.pki_dir(), stop.clone()));
    tasks.spawn(follow::revocations(raft.clone(), credentials.revocations().clone()));
    tasks.spawn(keep_own_certificate(keyring.clone(), name.clone(), credentials.clone()));
    tasks.spawn(follow::authorities(follow::Following {
        raft: raft.clone(),
        keyring,
        peers,
        id: name,
        credentials: credentials.clone(),
        signer,
        folder: pki_dir,
    }));
    let mut pages = JoinSet::new();
    pages.spawn(web::run(page, context.clone(), stop.clone()));
    let (superseded, others) = (context.superseded.clone(), context.peers.clone());
    let removed = removal::noticed(raft.clone(), others.clone(), identity.joined_through.clone());
    let serving = serve_both(&config, context, credentials, socket, monitoring, stop.clone());
    tokio::pin!(serving);
    let ended = tokio::select! {
        served = &mut serving => {
            stop.cancel();
            return finish(tasks, pages, &raft, served).await;
        }
        () = removed => {
            anyhow::Error::new(Removed { id: identity.node, cluster: identity.cluster.clone() })
        }
        superseded = superseded.told() => {
            superseded::pass_on(&raft, &others, superseded.incarnation).await;
            if let Err(error) = superseded.store(&config.data_dir) {
                tracing::error!("cannot store that this controller was replaced, so it will find out again at its next start: {error:#}");
            }
            superseded.into()
        }
    };
    stop.cancel();
    // What is open may finish; nobody relies on it any more.
    drop(serving.await);
    finish(tasks, pages, &raft, Err(ended)).await
}

/// What the services share, and what the leader's loops work with.
fn assemble(
    config: &Config,
    process: Process,
    figures: Figures,
    signer: Arc<AuditSigner>,
    credentials: SharedCredentials,
) -> (Context, Leader) {
    let sessions = Sessions::default();
    let (refusals, logins) = (RefusalLog::default(), LoginLog::default());
    let admins = Admins { names: config.admins.clone(), group: config.admin_group.clone() };
    let (min_uid, allow_system_users) = (config.min_uid, config.allow_system_users);
    let people = People { min_uid, allow_system_users };
    let Figures { raft, keyring, peers } = figures.clone();
    let revocations = credentials.revocations().clone();
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let mail = Mail { settings: config.mail.clone().map(Arc::new), ..Mail::default() };
    let callers =
        Callers::new(admins, people, raft.clone(), clock.clone(), logins.clone(), refusals.clone());
    let operations = Operations::new(operations::Parts {
        config: config.clone(),
        process,
        credentials,
        raft: raft.clone(),
        clock: clock.clone(),
        keyring: keyring.clone(),
        sessions: sessions.clone(),
        refusals: refusals.clone(),
        mail: mail.status.clone(),
    });
    let leader = Leader {
        clock: clock.clone(),
        sessions: sessions.clone(),
        operations: operations.clone(),
        figures,
        refusals: refusals.clone(),
        logins: logins.clone(),
        mail: mail.clone(),
        callers: callers.clone(),
        advertise: Arc::new(config.advertise.clone()),
    };
    let context = Context {
        clock,
        tunnels: Tunnels::new(sessions.clone()),
        sessions,
        plan: NewestPlan::default(),
        trials: Trials::default(),
        callers,
        mail,
        keyring,
        signer,
        revocations,
        advertise: Arc::clone(&leader.advertise),
        peers,
        refusals,
        logins,
        pki_dir: config.pki_dir().into(),
        superseded: superseded::Notice::default(),
        operations,
        raft,
        web: config.web.as_ref().map(|web| web.address.clone()),
    };
    (context, leader)
}

/// The authority's keys, which must be those of this controller's cluster.
fn keys_of(identity: &ControllerIdentity, config: &Config) -> anyhow::Result<Keyring> {
    let keyring = Keyring::load(&config.pki_dir())?;
    if keyring.signing().cluster().as_str() != identity.cluster {
        anyhow::bail!(
            "the keys in {} belong to cluster {}, the store to {}",
            config.pki_dir().display(),
            keyring.signing().cluster(),
            identity.cluster
        );
    }
    Ok(keyring)
}

/// Takes down what runs beside the listeners, after `stop`. Open requests of browsers finish before consensus ends.
async fn finish(
    mut tasks: JoinSet<()>,
    mut pages: JoinSet<()>,
    raft: &RaftHandle,
    served: anyhow::Result<()>,
) -> anyhow::Result<()> {
    while pages.join_next().await.is_some() {}
    tasks.shutdown().await;
    raft.shutdown().await;
    served
}

/// This controller is a member no more; starting it again would not help.
#[derive(Debug, thiserror::Error)]
#[error(
    "controller {id} was removed from {cluster}; to use this machine again, join with an empty data_dir"
)]
pub struct Removed {
    id: u64,
    cluster: String,
}

/// Serves the network and the Unix socket until `stop`, then lets open requests finish.
async fn serve_both(
    config: &Config,
    context: Context,
    credentials: SharedCredentials,
    socket: std::net::TcpListener,
    monitoring: Option<std::net::TcpListener>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let refusals = context.refusals.clone();
    let denials = Denials::to(move |Denial { principal, action, code }| {
        refusals.note(&principal, &action, code);
    });
    let gate = || Gate::new(credentials.revocations().clone(), denials.clone());
    let network = TlsListener::start(socket, credentials.clone(), denials.clone())?;
    let local = UnixListener::bind(&config.socket, SOCKET_MODE)?;
    context.operations.count_refusals("network", network.refusals());
    context.operations.count_refusals("socket", local.refusals());
    let looking_after =
        operations::run(context.operations.clone(), context.callers.clone(), monitoring);
    let raft = context.raft.clone();
    let over_network = server_builder(gate())
        .add_service(EnrollmentService::new(context.clone()).into_server())
        .add_service(AgentsService::new(context.clone()).into_server())
        .add_service(ControllersService::new(context.clone()).into_server())
        .add_service(
            context
                .raft
                .service(peer_check(context.raft.clone(), context.refusals.clone()))
                .into_server(),
        )
        .add_service(FleetService::new(context.clone()).into_server())
        .serve_with_incoming_shutdown(network, stop.clone().cancelled_owned());
    let over_socket = server_builder(gate())
        .add_service(EnrollmentService::new(context.clone()).into_server())
        .add_service(BackupService::new(context.clone()).into_server())
        .add_service(FleetService::new(context).into_server())
        .serve_with_incoming_shutdown(local, stop.clone().cancelled_owned());
    tracing::info!(listen = %config.listen, socket = %config.socket.display(), "controller serves");
    let both = async { tokio::try_join!(over_network, over_socket) };
    tokio::pin!(both);
    tokio::select! {
        biased;
        () = stop.cancelled() => {
            systemd::stopping();
            raft.end_streams();
            // Streams of agents and attached users never finish by themselves.
            if let Ok(result) = tokio::time::timeout(DRAIN_TIMEOUT, &mut both).await {
                result.context("serve")?;
            }
        }
        result = &mut both => { result.context("serve")?; }
        () = looking_after => {}
    }
    Ok(())
}
