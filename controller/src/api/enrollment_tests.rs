//! Renewing, joining and vouching at a controller of one voter: each caller has shown a certificate of its authority.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fleet_core::command::{AccessCommand, ClusterCommand, NodeCommand, TokenCommand};
use fleet_core::node::NodeFacts;
use fleet_core::time::Millis;
use fleet_proto::transport::keys::OwnKey;
use fleet_proto::transport::peer::CertifiedPeer;
use fleet_proto::transport::{PeerCertificate, SharedCredentials};
use fleet_proto::v1::enrollment_server::Enrollment;
use tonic::Code;

use super::*;
use crate::api::{NewestPlan, Trials};
use crate::callers::{Admins, Callers, People};
use crate::clock::LeaderClock;
use crate::config::Config;
use crate::login_log::LoginLog;
use crate::operations::{self, Operations};
use crate::peers::Peers;
use crate::pki::{AuditSigner, Keyring};
use crate::raft::{self, FatalHook, NoPeers, RaftConfig, Versions};
use crate::refusal_log::RefusalLog;
use crate::sessions::Sessions;
use crate::tunnels::Tunnels;

const PATIENCE: Duration = Duration::from_secs(30);
const PEER: &str = "127.0.0.1:1";

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn actor(who: Who, method: AuthMethod, serial: Option<&str>) -> Actor {
    Actor { who, method, serial: serial.map(str::to_owned) }
}

fn root() -> Actor {
    let (name, groups) = (UserName::parse("root").unwrap(), BTreeSet::new());
    actor(Who::User { name, admin: true, groups }, AuthMethod::LocalSocket, None)
}

fn csr(key: &OwnKey) -> Vec<u8> {
    key.signing_request().unwrap()
}

/// What titan01 says of itself.
fn facts() -> Box<NodeFacts> {
    Box::new(NodeFacts {
        boot_id: "boot-1".to_owned(),
        agent_instance: "a1".to_owned(),
        agent_version: "1".to_owned(),
        kernel: "6".to_owned(),
        os: "Debian".to_owned(),
        cpu_millis: 1_000,
        memory_bytes: 1 << 30,
        gpu_problem: Some("none".to_owned()),
        ..NodeFacts::bare(MachineIdentity { machine_id: "m1".to_owned(), dmi_uuid: String::new() })
    })
}

/// A controller whose log was last written two days ago, and titan01 with a certificate of then.
struct Desk {
    service: EnrollmentService,
    key: OwnKey,
    _dir: tempfile::TempDir,
}

impl Desk {
    async fn after_two_days() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        let context = context(&dir).await;
        let desk = Desk {
            service: EnrollmentService::new(context),
            key: OwnKey::generate().unwrap(),
            _dir: dir,
        };
        let cluster = desk.context().keyring.signing().cluster().clone();
        desk.give(
            Actor::controller(),
            Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 }),
        )
        .await;
        let version = fleet_core::command::CLUSTER_VERSION_MAX;
        desk.give(Actor::controller(), Command::Cluster(ClusterCommand::SetVersion { version }))
            .await;
        desk
    }

    fn context(&self) -> &Context {
        &self.service.0
    }

    /// Two days ago, where the clock does not know better.
    async fn give(&self, actor: Actor, command: Command) {
        let mut envelope = self.context().envelope(actor, None, command);
        envelope.proposed_at = envelope.proposed_at.max(wall() - Millis::days(2));
        self.context().raft.propose(envelope).await.unwrap().reply.unwrap();
    }

    /// A certificate that titan01 got at `at`, on record.
    async fn given(&self, at: Timestamp) -> PeerCertificate {
        let by = self.context().keyring.signing();
        let signing = SigningRequest::parse(&csr(&self.key)).unwrap();
        let issued = by.issue_node(&signing, &node("titan01"), at).unwrap();
        let record = AccessCommand::RecordCertificate {
            serial: issued.serial.clone(),
            holder: CertificateHolder::Node { name: node("titan01") },
            not_after: issued.not_after,
            via: None,
            authority: by.pin().to_string(),
        };
        let joining = actor(Who::Node { name: node("titan01") }, AuthMethod::JoinToken, None);
        self.give(joining, Command::Access(record)).await;
        PeerCertificate::parse(&issued.certificate_der).unwrap()
    }

    /// Its agent links with this certificate.
    async fn links(&self, serial: &str) {
        let who = Who::Node { name: node("titan01") };
        let register =
            Command::Node(NodeCommand::Register { node: node("titan01"), facts: facts() });
        self.give(actor(who, AuthMethod::Certificate, Some(serial)), register).await;
    }

    async fn renew(&self, shown: &PeerCertificate, key: &OwnKey) -> Result<String, Status> {
        let request = asked(shown, v1::RenewRequest { csr_der: csr(key) });
        let answer = self.service.renew(request).await?.into_inner();
        let der = answer.certificate.unwrap().certificate_der;
        Ok(PeerCertificate::parse(&der).unwrap().serial)
    }
}

/// A request over a connection on which this was shown.
fn asked<T>(shown: &PeerCertificate, message: T) -> Request<T> {
    let expired = shown.not_after < wall().0 / 1_000;
    let peer = CertifiedPeer { address: PEER.parse().unwrap(), certificate: shown.clone() };
    let peer = Arc::new(peer);
    let mut request = Request::new(message);
    let who = if expired { PeerIdentity::Expired(peer) } else { PeerIdentity::Certified(peer) };
    request.extensions_mut().insert(who);
    request
}

/// What the services share, over a store of one voter without entries.
async fn context(dir: &tempfile::TempDir) -> Context {
    let file = dir.path().join("controller.toml");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(&file, format!("data_dir = {data:?}\nlisten = \"127.0.0.1:7443\"\n")).unwrap();
    let config = Config::load(&file).unwrap();
    let pki = config.pki_dir();
    let authority = Authority::create(&pki, wall()).unwrap();
    let raft = raft::start(RaftConfig {
        cluster: authority.cluster().to_string(),
        node: 1,
        dir: data.join("raft"),
        create: true,
        members: BTreeMap::from([(1, "127.0.0.1:7443".to_owned())]),
        connector: Arc::new(NoPeers),
        versions: Versions::BUILT,
        fatal: FatalHook::with(|fatal| panic!("the process would have ended: {fatal}")),
    })
    .await
    .unwrap();
    let mut leadership = raft.leadership();
    let leads = leadership.wait_for(|l| l.is_leader);
    tokio::time::timeout(PATIENCE, leads).await.unwrap().unwrap();
    let keyring = Keyring::load(&pki).unwrap();
    let own = keyring.own_credentials(&node("controller-1"), wall()).unwrap();
    let credentials = SharedCredentials::new(own).unwrap();
    let id = node("controller-1");
    let signer = AuditSigner::load_or_create(&keyring.signing(), &pki, &id, wall()).unwrap();
    let (sessions, refusals, logins) =
        (Sessions::default(), RefusalLog::default(), LoginLog::default());
    let admins = Admins { names: config.admins.clone(), group: config.admin_group.clone() };
    let people = People { min_uid: config.min_uid, allow_system_users: config.allow_system_users };
    let signals = fleet_daemon::process::Signals {
        stop: tokio_util::sync::CancellationToken::new(),
        reload: tokio::sync::watch::channel(0).1,
    };
    let logging = fleet_daemon::logging::init("warn");
    let process = fleet_daemon::process::Process { config_path: file, logging, signals };
    let clock = raft.read(|fsm| LeaderClock::starting_at(fsm.now(), fsm.nodes().len()));
    let (revocations, advertise) = (credentials.revocations().clone(), Arc::new(Vec::new()));
    let operations = Operations::new(operations::Parts {
        config,
        process,
        credentials,
        raft: raft.clone(),
        clock: clock.clone(),
        keyring: keyring.clone(),
        sessions: sessions.clone(),
        refusals: refusals.clone(),
        mail: crate::mail::MailStatus::default(),
    });
    Context {
        web: None,
        mail: crate::mail::Mail::default(),
        clock: clock.clone(),
        tunnels: Tunnels::new(sessions.clone()),
        sessions,
        plan: NewestPlan::default(),
        trials: Trials::default(),
        superseded: crate::superseded::Notice::default(),
        callers: Callers::new(
            admins,
            people,
            raft.clone(),
            clock,
            logins.clone(),
            refusals.clone(),
        ),
        keyring,
        signer: Arc::new(signer),
        revocations,
        advertise,
        peers: Peers::new(Arc::new(NoPeers)),
        refusals,
        logins,
        pki_dir: pki.into(),
        operations,
        raft,
    }
}

/// All controllers were off for longer than the agents' certificates last. Who could say what time it is has to be
/// let in first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_renews_while_nobody_knows_what_time_it_is() {
    let desk = Desk::after_two_days().await;
    let old = desk.given(wall() - Millis::days(2)).await;
    desk.links(&old.serial).await;
    let token = token::mint_token(
        desk.context().keyring.signing().pin(),
        vec![node("titan02")],
        Millis::days(1),
    )
    .unwrap();
    desk.give(root(), Command::Token(TokenCommand::ForNodes(token.command.clone()))).await;
    let context = desk.context();
    context.raft.read(|fsm| context.clock.settle(fsm.now(), &[], fsm.nodes().len()));
    assert!(context.clock.is_unconfirmed());

    let renewed = desk.renew(&old, &desk.key).await.unwrap();
    let newest =
        |fsm: &fleet_core::Fsm| fsm.access().newest_of(&node("titan01")).map(str::to_owned);
    assert_eq!(context.raft.read(newest), Some(renewed));
    assert!(context.clock.is_unconfirmed(), "the fleet's time has not moved");
    assert!(context.raft.read(fleet_core::Fsm::now) < wall() - Millis::days(1));

    // What goes by the fleet's time waits: a user's certificates are counted by it, a token ends by it.
    let valid = desk.given(wall()).await;
    let vouch = v1::VouchUserRequest { user: "ada".to_owned(), csr_der: csr(&desk.key) };
    let vouched = desk.service.vouch_user(asked(&valid, vouch)).await.unwrap_err();
    assert_eq!(vouched.code(), Code::Unavailable, "{vouched:?}");
    let secret = token.text.expose().parse::<fleet_proto::transport::JoinToken>().unwrap().secret;
    let join = v1::JoinRequest {
        token_id: token.command.id.to_string(),
        secret: secret.expose().to_owned(),
        name: "titan02".to_owned(),
        csr_der: csr(&desk.key),
        machine_id: "m2".to_owned(),
        ..Default::default()
    };
    let joined = desk.service.join(Request::new(join)).await.unwrap_err();
    assert_eq!(joined.code(), Code::Unavailable, "{joined:?}");
    context.raft.shutdown().await;
}

/// The answer to a renewal may be lost after it was recorded. The certificate that asked may ask again, no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_answer_was_lost_can_be_repeated() {
    let desk = Desk::after_two_days().await;
    let older = desk.given(wall() - Millis::days(3)).await;
    let old = desk.given(wall() - Millis::days(2)).await;
    desk.links(&old.serial).await;
    desk.context().clock.set(wall());
    let is_refused = |answer: Result<String, Status>| {
        answer.is_err_and(|status| status.code() == Code::Unauthenticated)
    };

    let lost = desk.renew(&old, &desk.key).await.unwrap();
    let arrived = desk.renew(&old, &desk.key).await.unwrap();
    assert_ne!(lost, arrived);
    let other_key = OwnKey::generate().unwrap();
    assert!(is_refused(desk.renew(&old, &other_key).await), "for another key");
    assert!(is_refused(desk.renew(&older, &desk.key).await), "one from before");

    desk.links(&arrived).await;
    assert!(is_refused(desk.renew(&old, &desk.key).await), "the new one is in use");
    desk.context().raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_node_does_not_repeat_its_renewal() {
    let desk = Desk::after_two_days().await;
    let old = desk.given(wall() - Millis::days(2)).await;
    desk.links(&old.serial).await;
    desk.context().clock.set(wall());
    desk.renew(&old, &desk.key).await.unwrap();
    let (node, reason) = (node("titan01"), "stolen".to_owned());
    desk.give(root(), Command::Access(AccessCommand::RevokeNode { node, reason })).await;
    let refused = desk.renew(&old, &desk.key).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    desk.context().raft.shutdown().await;
}
