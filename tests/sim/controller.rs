//! One controller: production's consensus, state, API and leader's loops on a simulated disk and network.
//!
//! Everything above the disk, the sockets and the clock is the product's own: openraft with its log store,
//! snapshots and audit database, the gRPC services, the loops of the leader. What is not: TLS (identities
//! come with the connection), the certificate authority, and `server.rs`, which puts the parts together
//! over sockets as this file does over [`Net`](crate::net::Net).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fleet_controller::api::{
    AgentsService, Context, ControllersService, FleetService, NewestPlan, Trials, peer_check,
};
use fleet_controller::backup::BackupService;
use fleet_controller::callers::{Admins, Callers, People};
use fleet_controller::clock::{LeaderClock, wall};
use fleet_controller::config::Config;
use fleet_controller::figures::Figures;
use fleet_controller::leader::{self, Leader};
use fleet_controller::login_log::LoginLog;
use fleet_controller::mail::Mail;
use fleet_controller::operations::{Operations, Parts};
use fleet_controller::peers::Peers;
use fleet_controller::raft::{
    self, Fatal, FatalHook, Foundation, Pace, PeerConnector, RaftConfig, RaftHandle, Versions,
};
use fleet_controller::refusal_log::RefusalLog;
use fleet_controller::removal;
use fleet_controller::sessions::Sessions;
use fleet_controller::tunnels::Tunnels;
use fleet_core::command::CLUSTER_VERSION_MAX;
use fleet_core::command::{
    AdmitController, ClusterCommand, Command, ControllerCommand, ENVELOPE_VERSION,
};
use fleet_core::name::UserName;
use fleet_core::{Actor, Envelope};
use fleet_daemon::logging::{self, Logging};
use fleet_daemon::process::{Process, Signals};
use fleet_proto::transport::server::server_builder;
use fleet_proto::transport::{Denials, Gate};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::bugs::{self, Bug};
use crate::disk::SimDisk;
use crate::net::HostId;
use crate::run::Kind;
use crate::scene::{Scene, controller_name, controller_role};

/// Small, so that snapshots, purges and new segments happen in every run.
const SNAPSHOT_EVERY: u64 = 60;
const ENTRIES_KEPT: u64 = 15;
const SEGMENT_BYTES: u64 = 24 << 10;
/// Patient enough for the slow disks and links that seeds draw.
const ELECTION_MS: u64 = 600;
/// The same where a message takes a fifth of a second.
const WEEK_ELECTION_MS: u64 = 6_000;
const WEEK_SNAPSHOT_EVERY: u64 = 500;
/// How often one that waits looks whether it was admitted.
const ADMITTED_POLL: Duration = Duration::from_millis(300);
/// How often the one with the bug that believes the wall clock looks at it.
const BELIEVE_EVERY: Duration = Duration::from_millis(500);

/// One controller's machine: what is left of it when its process is not there.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Which controller it is: another one after the fleet was restored from a backup.
    id: AtomicU64,
    pub(crate) host: HostId,
    pub(crate) disk: SimDisk,
    /// The voter of the new cluster; empty for one that joins it.
    first: BTreeMap<u64, String>,
    /// It has its store: from now on an empty disk is refused.
    created: AtomicBool,
    /// Address of the controller that admitted it.
    through: Mutex<Option<String>>,
    handle: Mutex<Option<RaftHandle>>,
    /// Why the process ended by itself.
    ended: Mutex<Option<Ended>>,
}

/// How a process ended by itself.
#[derive(Debug, Clone)]
pub(crate) enum Ended {
    /// The disk did not do what was asked.
    Disk(String),
    /// The others said that it was removed.
    Removed,
    /// Anything else: never right.
    Other(String),
}

impl Seat {
    pub(crate) fn new(id: u64, host: HostId, disk: SimDisk, first: BTreeMap<u64, String>) -> Seat {
        Seat {
            id: AtomicU64::new(id),
            host,
            disk,
            first,
            created: AtomicBool::new(false),
            through: Mutex::default(),
            handle: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> String {
        controller_name(self.id())
    }

    /// Another controller is on this machine from now on, with a store already or with an empty disk.
    pub(crate) fn become_anew(&self, id: u64, created: bool) {
        self.id.store(id, Ordering::Relaxed);
        self.created.store(created, Ordering::Relaxed);
        self.through.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.take_ended();
    }

    pub(crate) fn joins_through(&self, address: String) {
        *self.through.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    pub(crate) fn joined_through(&self) -> Option<String> {
        self.through.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The cluster it makes on its empty disk, if it is the first.
    fn members(&self) -> BTreeMap<u64, String> {
        if self.first.contains_key(&self.id()) { self.first.clone() } else { BTreeMap::new() }
    }

    fn slot(&self) -> MutexGuard<'_, Option<RaftHandle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its consensus, while it runs.
    pub(crate) fn raft(&self) -> Option<RaftHandle> {
        self.slot().clone()
    }

    pub(crate) fn forget_handle(&self) {
        self.slot().take();
    }

    pub(crate) fn take_ended(&self) -> Option<Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn end(&self, why: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        // A process that has ended writes nothing any more.
        self.disk.unmount();
    }
}

/// Address of a controller: its host's number.
pub(crate) fn address(host: HostId) -> String {
    format!("c{host}.sim:7443")
}

/// The host behind an address.
pub(crate) fn host_of(address: &str) -> Option<HostId> {
    address.strip_prefix('c')?.split_once('.')?.0.parse().ok()
}

struct Connector {
    scene: Arc<Scene>,
    seat: Arc<Seat>,
}

impl PeerConnector for Connector {
    fn channel(&self, node: u64, address: &str) -> Result<Channel, String> {
        let to = host_of(address).ok_or_else(|| format!("{node} has no address {address}"))?;
        let identity = self.scene.identity(controller_role(self.seat.id()));
        Ok(self.scene.net.channel(self.seat.host, to, identity))
    }
}

/// The process: until its host drops it.
pub(crate) async fn run(scene: Arc<Scene>, seat: Arc<Seat>) {
    let disk = seat.disk.mount();
    let hook = {
        let seat = Arc::clone(&seat);
        FatalHook::with(move |fatal| {
            seat.end(match fatal {
                Fatal::Store { .. } => Ended::Disk(fatal.to_string()),
                _ => Ended::Other(fatal.to_string()),
            });
        })
    };
    let pace = {
        let disk = seat.disk.clone();
        Pace::with(move || disk.pause())
    };
    let config = RaftConfig {
        cluster: scene.cluster().to_string(),
        node: seat.id(),
        dir: "/sim".into(),
        create: !seat.created.load(Ordering::Relaxed),
        members: seat.members(),
        connector: Arc::new(Connector { scene: Arc::clone(&scene), seat: Arc::clone(&seat) }),
        versions: Versions::BUILT,
        fatal: hook,
    };
    let (snapshot_every, election_ms) = match scene.kind {
        Kind::Usual | Kind::Long => (SNAPSHOT_EVERY, ELECTION_MS),
        Kind::Week => (WEEK_SNAPSHOT_EVERY, WEEK_ELECTION_MS),
    };
    let foundation = Foundation {
        disk,
        pace,
        apply: bugs::apply(&scene, seat.id()),
        snapshot_every,
        entries_kept: ENTRIES_KEPT,
        segment_bytes: SEGMENT_BYTES,
        election_ms,
    };
    let raft = match raft::start_on(config, foundation).await {
        Ok(raft) => raft,
        Err(error) => {
            let text = with_sources(&error);
            seat.end(match error.exit_code() {
                raft::EXIT_STORE_FAILED => Ended::Disk(text),
                _ if seat.disk.trouble().fails || seat.disk.trouble().full => Ended::Disk(text),
                _ => Ended::Other(text),
            });
            return;
        }
    };
    *seat.slot() = Some(raft.clone());
    let created = seat.created.swap(true, Ordering::Relaxed);
    if !created && !seat.members().is_empty() {
        make_cluster(&scene, &seat, &raft).await;
    }
    serve(scene, seat, raft).await;
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

async fn serve(scene: Arc<Scene>, seat: Arc<Seat>, raft: RaftHandle) {
    let sessions = Sessions::default();
    let root = UserName::parse("root").expect("a legal name");
    let (refusals, logins) = (RefusalLog::default(), LoginLog::default());
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let peers =
        Peers::new(Arc::new(Connector { scene: Arc::clone(&scene), seat: Arc::clone(&seat) }));
    let keyring = scene.pki.keyring.clone();
    let (process, config) = process(&scene);
    let operations = Operations::new(Parts {
        config,
        process,
        credentials: scene.pki.credentials.clone(),
        raft: raft.clone(),
        clock: clock.clone(),
        keyring: keyring.clone(),
        sessions: sessions.clone(),
        refusals: refusals.clone(),
        mail: Mail::default().status,
    });
    let callers = Callers::new(
        Admins { names: vec![root], group: "no-such-group".to_owned() },
        People { min_uid: 1_000, allow_system_users: false },
        raft.clone(),
        clock.clone(),
        logins.clone(),
        refusals.clone(),
    );
    let leader = Leader {
        clock: clock.clone(),
        sessions: sessions.clone(),
        operations: operations.clone(),
        figures: Figures { raft: raft.clone(), keyring: keyring.clone(), peers: peers.clone() },
        refusals: refusals.clone(),
        logins: logins.clone(),
        mail: Mail::default(),
        callers: callers.clone(),
        advertise: Arc::new(vec![address(seat.host).parse().expect("a legal address")]),
    };
    let context = Context {
        web: None,
        mail: Mail::default(),
        clock,
        tunnels: Tunnels::new(sessions.clone()),
        sessions,
        plan: NewestPlan::default(),
        trials: Trials::default(),
        callers,
        keyring,
        signer: Arc::clone(&scene.pki.signer),
        revocations: scene.pki.credentials.revocations().clone(),
        advertise: Arc::clone(&leader.advertise),
        peers: peers.clone(),
        refusals: refusals.clone(),
        pki_dir: scene.pki.folder.as_path().into(),
        superseded: fleet_controller::superseded::Notice::default(),
        operations,
        logins,
        raft: raft.clone(),
    };
    tokio::spawn(leader::run(leader, CancellationToken::new()));
    tokio::spawn(tell_leadership(Arc::clone(&scene), Arc::clone(&seat), raft.clone()));
    if scene.bug == Some(Bug::WallClockBelieved) {
        let clock = context.clock.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(BELIEVE_EVERY).await;
                clock.set(wall());
            }
        });
    }
    let removed = {
        let (raft, seat) = (raft.clone(), Arc::clone(&seat));
        async move {
            // Production's is admitted before it starts.
            while seat.joined_through().is_none() && raft.members().voters.is_empty() {
                tokio::time::sleep(ADMITTED_POLL).await;
            }
            removal::noticed(raft, peers, seat.joined_through()).await;
        }
    };
    let incoming = ReceiverStream::new(scene.net.listen(seat.host));
    let revocations = scene.pki.credentials.revocations().clone();
    let served = server_builder(Gate::new(revocations, Denials::default()))
        .add_service(AgentsService::new(context.clone()).into_server())
        .add_service(ControllersService::new(context.clone()).into_server())
        .add_service(BackupService::new(context.clone()).into_server())
        .add_service(raft.service(peer_check(raft.clone(), refusals)).into_server())
        .add_service(FleetService::new(context).into_server())
        .serve_with_incoming(incoming.map(Ok::<_, std::io::Error>));
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                seat.end(Ended::Other(format!("the server ended: {error}")));
            }
        }
        () = removed => seat.end(Ended::Removed),
    }
}

/// Nobody looks after a simulated process: it has no signals, no file, and no log but where `FLEET_LOG` asks for one.
fn process(scene: &Scene) -> (Process, Config) {
    static LOGGING: OnceLock<Logging> = OnceLock::new();
    let logging = LOGGING.get_or_init(|| logging::init("off")).clone();
    let config_path = scene.folder.join("controller.toml");
    std::fs::write(&config_path, "").expect("a file in memory");
    let config = Config::load(&config_path).expect("the defaults");
    let (_, reload) = watch::channel(0);
    let signals = Signals { stop: CancellationToken::new(), reload };
    (Process { config_path, logging, signals }, config)
}

/// Makes the cluster's first entries before anybody is served, as `init` does.
async fn make_cluster(scene: &Scene, seat: &Seat, raft: &RaftHandle) {
    let mut leadership = raft.leadership();
    if leadership.wait_for(|l| l.is_leader).await.is_err() {
        return;
    }
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let (id, address) = (seat.id(), address(seat.host));
    for command in [
        Command::Cluster(ClusterCommand::Init { cluster: scene.cluster(), incarnation: 1 }),
        Command::Cluster(ClusterCommand::SetVersion { version: CLUSTER_VERSION_MAX }),
        Command::Controller(ControllerCommand::Admit(AdmitController {
            id,
            address,
            token: None,
            key_sha256: String::new(),
        })),
    ] {
        let envelope = Envelope {
            v: ENVELOPE_VERSION,
            actor: Actor::controller(),
            proposed_at: clock.now(),
            request: None,
            command,
        };
        if let Err(error) = raft.propose(envelope).await {
            seat.end(Ended::Other(format!("the cluster could not be made: {error}")));
        }
    }
}

async fn tell_leadership(scene: Arc<Scene>, seat: Arc<Seat>, raft: RaftHandle) {
    let mut leadership = raft.leadership();
    loop {
        let now = *leadership.borrow_and_update();
        if now.is_leader {
            scene.say(&seat.name(), &format!("leads term {}", now.term));
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}
