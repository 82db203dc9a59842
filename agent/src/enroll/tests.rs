//! Joining and renewing against a controller that answers well, badly, or not at all.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleet_proto::transport::client::Dialer;
use fleet_proto::transport::keys::certificate_pem;
use fleet_proto::transport::token::{SECRET_BYTES, SpkiPin, secret_text};
use fleet_proto::transport::{
    Credentials, Denials, Gate, PeerCertificate, PeerIdentity, SharedCredentials, TlsListener,
    identity, server,
};
use fleet_proto::v1::enrollment_server::{Enrollment, EnrollmentServer};
use fleet_proto::v1::{
    Authorities, IssuedCertificate, JoinResponse, RenewRequest, RenewResponse,
    UserCertificateRequest, UserCertificateResponse, VouchUserRequest,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PublicKeyData, SanType,
};
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use super::renewal::{Renewal, is_due, is_elsewhere, pause_after};
use super::*;

const CLUSTER: &str = "fleet-testtest";

/// A small certificate authority.
struct Ca {
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
    params: CertificateParams,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, CLUSTER);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self { der, issuer: Issuer::new(params.clone(), key), params }
    }

    fn pin(&self) -> SpkiPin {
        identity::key_pin_of(&self.der).unwrap()
    }

    /// The name and key of `other`, certified by this one.
    fn vouch(&self, other: &Ca) -> Vec<u8> {
        let certified = other.params.clone().signed_by(other.issuer.key(), &self.issuer);
        certified.unwrap().der().to_vec()
    }

    /// A certificate for `fleet://CLUSTER/<path>`, valid between two offsets from now, in seconds.
    fn issue(&self, key: &impl PublicKeyData, path: &str, valid: (i64, i64)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        let uri = format!("fleet://{CLUSTER}/{path}").as_str().try_into().unwrap();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if path.starts_with("controller") {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let at = |offset: i64| {
            let seconds = (wall_clock().0 / 1000).checked_add_signed(offset).unwrap();
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        (params.not_before, params.not_after) = (at(valid.0), at(valid.1));
        params.signed_by(key, &self.issuer).unwrap().der().to_vec()
    }

    fn controller(&self, valid: (i64, i64)) -> SharedCredentials {
        let key = KeyPair::generate().unwrap();
        let leaf = certificate_pem(&self.issue(&key, "controller/c1", valid));
        let (key, authority) = (key.serialize_pem(), certificate_pem(&self.der));
        let own = Credentials::from_pem(leaf.as_bytes(), key.as_bytes(), authority.as_bytes());
        SharedCredentials::new(own.unwrap()).unwrap()
    }

    fn reply(&self, csr_der: &[u8], path: &str, valid: (i64, i64)) -> IssuedCertificate {
        let request = CertificateSigningRequestParams::from_der(&csr_der.to_vec().into()).unwrap();
        IssuedCertificate {
            certificate_der: self.issue(&request.public_key, path, valid),
            ca_der: self.der.clone(),
            now_unix_ms: wall_clock().0,
            controllers: vec!["10.0.0.1:7443".to_owned(), "no address".to_owned()],
            ..Default::default()
        }
    }
}

type Reply = Result<Option<IssuedCertificate>, Status>;
/// Spoils the good reply to a request.
type Change = Box<dyn Fn(&[u8], IssuedCertificate) -> Option<IssuedCertificate> + Send + Sync>;
type Answer = Arc<dyn Fn(&[u8]) -> Reply + Send + Sync>;

/// What a controller was asked, and what it answers.
#[derive(Clone)]
struct Desk {
    joins: Arc<Mutex<Vec<JoinRequest>>>,
    renewals: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<Answer>>,
}

#[tonic::async_trait]
impl Enrollment for Desk {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        let answer = self.answer.lock().unwrap().clone();
        let reply = answer(&request.csr_der);
        self.joins.lock().unwrap().push(request);
        Ok(Response::new(JoinResponse { certificate: reply? }))
    }

    async fn join_controller(
        &self,
        _: Request<fleet_proto::v1::JoinControllerRequest>,
    ) -> Result<Response<fleet_proto::v1::JoinControllerResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        self.renewals.lock().unwrap().push(PeerIdentity::of(&request)?.to_string());
        let answer = self.answer.lock().unwrap().clone();
        Ok(Response::new(RenewResponse { certificate: answer(&request.into_inner().csr_der)? }))
    }

    async fn user_certificate(
        &self,
        _: Request<UserCertificateRequest>,
    ) -> Result<Response<UserCertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn vouch_user(
        &self,
        _: Request<VouchUserRequest>,
    ) -> Result<Response<UserCertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// A controller that runs until dropped.
struct Controller {
    ca: Arc<Ca>,
    address: Address,
    desk: Desk,
    task: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const GOOD: (i64, i64) = (-600, 86_400);

impl Controller {
    fn start() -> Self {
        Self::with(Arc::new(Ca::new()), GOOD)
    }

    /// Its own certificate is valid between these offsets; it answers with titan01's.
    fn with(ca: Arc<Ca>, valid: (i64, i64)) -> Self {
        let credentials = ca.controller(valid);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = TlsListener::start(socket, credentials, Denials::default()).unwrap();
        let address = listener.local_addr().to_string().parse().unwrap();
        let issuer = ca.clone();
        let answer: Answer = Arc::new(move |csr| Ok(Some(issuer.reply(csr, "node/titan01", GOOD))));
        let desk = Desk {
            joins: Arc::default(),
            renewals: Arc::default(),
            answer: Arc::new(Mutex::new(answer)),
        };
        let service = EnrollmentServer::new(desk.clone());
        let router = server::server_builder(Gate::default()).add_service(service);
        let task = tokio::spawn(async move { router.serve_with_incoming(listener).await.unwrap() });
        Self { ca, address, desk, task }
    }

    fn answer(&self, answer: impl Fn(&[u8]) -> Reply + Send + Sync + 'static) {
        *self.desk.answer.lock().unwrap() = Arc::new(answer);
    }

    fn joins(&self) -> Vec<JoinRequest> {
        self.desk.joins.lock().unwrap().clone()
    }

    fn options(&self, folder: &Path) -> JoinOptions {
        let id = fleet_core::id::TokenId::parse("token-abc").unwrap();
        JoinOptions {
            address: self.address.clone(),
            token: JoinToken { id, secret: secret_text(&[7; SECRET_BYTES]), pin: self.ca.pin() },
            name: NodeName::parse("titan01").unwrap(),
            machine: Machine {
                machine_id: "m1".into(),
                dmi_uuid: "d1".into(),
                boot_id: "b1".into(),
            },
            folder: IdentityFolder::new(&identity_folder(folder)),
            replace: false,
        }
    }
}

fn csr_pin(request: &JoinRequest) -> Vec<u8> {
    let der = request.csr_der.clone().into();
    CertificateSigningRequestParams::from_der(&der).unwrap().public_key.der_bytes().to_vec()
}

#[tokio::test]
async fn a_node_joins_once_and_says_so_the_second_time() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let options = controller.options(state.path());
    let joined = join(&options).await.unwrap();
    assert_eq!(joined.to_string(), "joined fleet-testtest as titan01");
    let asked = controller.joins();
    assert_eq!(asked[0].secret, options.token.secret.expose());
    assert_eq!((asked[0].machine_id.as_str(), asked[0].dmi_uuid.as_str()), ("m1", "d1"));

    let folder = state.path().join("identity");
    let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("agent.key"), mode("agent.crt"), mode("ca.crt")), (0o600, 0o644, 0o644));
    let mut left: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["agent.crt", "agent.key", "ca.crt", "identity.json"]);

    let (record, credentials) = options.folder.load().unwrap();
    assert_eq!(record.controllers, [controller.address.to_string(), "10.0.0.1:7443".into()]);
    assert_eq!(options.folder.addresses(&record).unwrap().len(), 2);
    assert_eq!(credentials.leaf().identity, joined.identity);

    let again = join(&options).await.unwrap();
    assert!(again.already);
    assert_eq!(
        again.to_string(),
        "already joined to fleet-testtest as titan01; nothing changed. If it was removed or revoked there, type the same with --replace"
    );
    assert_eq!(controller.joins().len(), 1, "nothing was asked the second time");
}

#[tokio::test]
async fn a_member_does_not_change_fleets_by_accident() {
    let (controller, other) = (Controller::start(), Controller::start());
    let state = tempfile::tempdir().unwrap();
    join(&controller.options(state.path())).await.unwrap();
    let mut renamed = controller.options(state.path());
    renamed.name = NodeName::parse("titan02").unwrap();
    for options in [&renamed, &other.options(state.path())] {
        let error = join(options).await.unwrap_err();
        assert!(matches!(error, JoinError::OtherMembership { .. }), "{error}");
    }
    assert!(other.joins().is_empty());
    let mut moved = other.options(state.path());
    moved.replace = true;
    assert!(!join(&moved).await.unwrap().already);
    assert_eq!(moved.folder.authority_pins().unwrap(), [other.ca.pin()]);
    moved.folder.load().unwrap();
}

#[tokio::test]
async fn a_clone_is_told_what_to_do() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let name = |text: &str| NodeName::parse(text).unwrap();
    let (node, holder) = (name("titan01"), name("titan09"));
    let taken = fleet_core::Rejection::MachineIdTaken { node, holder };
    controller.answer(move |_| Err(fleet_proto::convert::rejection::to_status(&taken)));
    let error = join(&controller.options(state.path())).await.unwrap_err();
    assert!(matches!(error, JoinError::MachineRefused { .. }), "{error}");
    let said = error.to_string();
    assert!(said.starts_with("this machine cannot join as titan01: node titan09 has"), "{said}");
}

#[tokio::test]
async fn a_machine_without_an_id_does_not_join() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let mut options = controller.options(state.path());
    for none in ["", "uninitialized"] {
        options.machine.machine_id = none.to_owned();
        let error = join(&options).await.unwrap_err();
        assert!(matches!(error, JoinError::NoMachineId), "{error}");
        assert!(error.to_string().contains("`systemd-machine-id-setup`"), "{error}");
    }
    assert_eq!(controller.joins().len(), 0, "its token is good for the next try");
    let lost = options.machine.clone();
    options.machine = lost.clone().or_configured(Some("m1".to_owned()));
    join(&options).await.unwrap();
    assert_eq!(controller.joins()[0].machine_id, "m1");
    options.machine = lost.or_configured(None);
    assert!(join(&options).await.unwrap().already, "a member hears that it is one");
}

#[tokio::test]
async fn a_join_whose_answer_was_lost_goes_on_with_the_same_key() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    controller.answer(|_| Err(Status::unavailable("the leader is gone")));
    let options = controller.options(state.path());
    let error = join(&options).await.unwrap_err();
    assert!(matches!(error, JoinError::Broken { .. }), "{error}");
    assert!(error.to_string().contains("harmless"), "{error}");
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", GOOD))));
    join(&options).await.unwrap();
    let asked = controller.joins();
    assert_eq!(csr_pin(&asked[0]), csr_pin(&asked[1]));
    options.folder.load().unwrap();
}

#[tokio::test]
async fn an_expired_membership_is_made_anew() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", (-600, -5)))));
    let options = controller.options(state.path());
    join(&options).await.unwrap();
    options.folder.load().unwrap();
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", GOOD))));
    assert!(!join(&options).await.unwrap().already);
    assert!(join(&options).await.unwrap().already);
}

#[tokio::test]
async fn the_secret_is_not_sent_to_a_controller_with_another_key() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let mut options = controller.options(state.path());
    options.token.pin = Ca::new().pin();
    let error = join(&options).await.unwrap_err();
    assert!(matches!(error, JoinError::Dial(PinnedDialError::WrongPin { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("another fleet") && text.contains("man in the middle"), "{text}");
    assert!(controller.joins().is_empty());
    assert!(options.folder.record().unwrap().is_none());
}

#[tokio::test]
async fn a_wrong_clock_is_named() {
    let ca = Arc::new(Ca::new());
    for valid in [(-7200, -3600), (3600, 7200)] {
        let controller = Controller::with(ca.clone(), valid);
        let state = tempfile::tempdir().unwrap();
        let error = join(&controller.options(state.path())).await.unwrap_err();
        assert!(matches!(error, JoinError::Dial(PinnedDialError::Clock { .. })), "{error}");
        assert!(error.to_string().contains("NTP"), "{error}");
        assert!(controller.joins().is_empty());
    }
    let controller = Controller::with(ca.clone(), GOOD);
    controller.answer(move |csr| {
        let reply = ca.reply(csr, "node/titan01", GOOD);
        Ok(Some(IssuedCertificate { now_unix_ms: wall_clock().0 - 300_000, ..reply }))
    });
    let state = tempfile::tempdir().unwrap();
    let joined = join(&controller.options(state.path())).await.unwrap();
    assert!((300..310).contains(&joined.clock_ahead_seconds), "{joined:?}");
    assert!(joined.to_string().contains("s ahead of the controller's, check NTP"), "{joined}");
}

#[tokio::test]
async fn refusals_say_what_to_do_and_store_nothing() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let options = controller.options(state.path());
    let kind = |error: &JoinError| {
        let text = format!("{error:?}");
        text.split([' ', '(']).next().unwrap().to_owned()
    };
    for (status, expected) in [
        (Status::unauthenticated("the join token is unknown"), "TokenRefused"),
        (Status::already_exists("titan01 is in use"), "NameRefused"),
        (Status::permission_denied("titan01 is not allowed"), "NameRefused"),
        (Status::resource_exhausted("too many nodes"), "Refused"),
        (Status::deadline_exceeded("slow"), "NoAnswer"),
    ] {
        let answer = status.clone();
        controller.answer(move |_| Err(answer.clone()));
        let error = join(&options).await.unwrap_err();
        assert_eq!(kind(&error), expected, "{error}");
        if expected != "NoAnswer" {
            assert!(error.to_string().contains(status.message()), "{error}");
        }
        assert!(!format!("{error:?}").contains(options.token.secret.expose()));
    }
    assert!(options.folder.record().unwrap().is_none());
}

#[tokio::test]
async fn an_unreachable_controller_is_named() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let mut options = controller.options(state.path());
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    options.address = dead.to_string().parse().unwrap();
    let error = join(&options).await.unwrap_err();
    assert!(matches!(error, JoinError::Dial(PinnedDialError::Unreachable(_))), "{error}");
    assert!(error.to_string().contains(&dead.to_string()), "{error}");
}

#[tokio::test]
async fn a_reply_that_is_not_ours_is_refused_and_not_stored() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let options = controller.options(state.path());
    let other = Arc::new(Ca::new());
    let ca = || controller.ca.clone();
    let stranger = KeyPair::generate().unwrap();
    let stolen = controller.ca.issue(&stranger, "node/titan01", GOOD);
    let answers: Vec<(&str, Change)> = vec![
        ("no certificate", Box::new(|_, _| None)),
        ("pinned", {
            let other = other.clone();
            Box::new(move |csr, _| Some(other.reply(csr, "node/titan01", GOOD)))
        }),
        ("not issued by", {
            let (other, ca) = (other.clone(), ca());
            Box::new(move |csr, _| {
                let reply = other.reply(csr, "node/titan01", GOOD);
                Some(IssuedCertificate { ca_der: ca.der.clone(), ..reply })
            })
        }),
        ("node/titan02", {
            let ca = ca();
            Box::new(move |csr, _| Some(ca.reply(csr, "node/titan02", GOOD)))
        }),
        ("user/titan01", {
            let ca = ca();
            Box::new(move |csr, _| Some(ca.reply(csr, "user/titan01", GOOD)))
        }),
        (
            "another key",
            Box::new(move |_, good| {
                Some(IssuedCertificate { certificate_der: stolen.clone(), ..good })
            }),
        ),
        (
            "cannot be read",
            Box::new(|_, good| Some(IssuedCertificate { certificate_der: vec![1, 2, 3], ..good })),
        ),
        ("cannot be read", Box::new(|_, good| Some(IssuedCertificate { ca_der: vec![], ..good }))),
    ];
    for (expected, change) in answers {
        let issuer = ca();
        controller.answer(move |csr| Ok(change(csr, issuer.reply(csr, "node/titan01", GOOD))));
        let error = join(&options).await.unwrap_err();
        assert!(matches!(error, JoinError::Reply(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error} should mention {expected:?}");
        assert!(options.folder.record().unwrap().is_none());
    }
}

#[tokio::test]
async fn damaged_identity_files_are_named() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let options = controller.options(state.path());
    assert!(matches!(options.folder.load(), Err(StoreError::NotJoined)));
    join(&options).await.unwrap();
    let folder = options.folder.path();
    let spoil = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let error = options.folder.load().unwrap_err().to_string();
        std::fs::write(&path, before).unwrap();
        error
    };
    assert!(spoil("identity.json", b"{").contains("identity.json"));
    assert!(spoil("identity.json", br#"{"v":2}"#).contains("newer version"));
    assert!(spoil("identity.json", br#"{"v":1}"#).contains("missing field"));
    assert!(spoil("identity.json", &[b' '; 70_000]).contains("larger than"));
    for name in ["agent.crt", "agent.key", "ca.crt"] {
        let error = spoil(name, b"junk");
        assert!(error.contains("fleet-agent join"), "{name}: {error}");
    }
    let stranger = KeyPair::generate().unwrap().serialize_pem();
    assert!(spoil("agent.key", stranger.as_bytes()).contains("do not belong together"));
    options.folder.load().unwrap();
    let key = folder.join("agent.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = options.folder.load().unwrap_err().to_string();
    assert!(error.contains("may be read by others"), "{error}");
}

/// A joined node whose certificate is valid between these offsets, and its renewal.
async fn joined(controller: &Controller, state: &Path, valid: (i64, i64)) -> (Renewal, Dialer) {
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", valid))));
    let options = controller.options(state);
    join(&options).await.unwrap();
    let (_, credentials) = options.folder.load().unwrap();
    let shared = SharedCredentials::new(credentials).unwrap();
    let dialer = Dialer::new(vec![controller.address.clone()], shared);
    let pauses = (Duration::from_millis(20), Duration::from_millis(20));
    (Renewal::new(options.folder, &dialer).with_pauses(pauses.0, pauses.1), dialer)
}

#[tokio::test]
async fn a_node_renews_at_half_life_until_it_succeeds() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), (-7200, 3600)).await;
    let not_after = || dialer.credentials().current().leaf().not_after;
    let first = not_after();
    controller.answer(|_| Err(Status::unavailable("no leader")));
    let task = tokio::spawn(renewal.run());
    let renewals = || controller.desk.renewals.lock().unwrap().clone();
    wait_until("two failures", || renewals().len() >= 2).await;
    assert_eq!(not_after(), first, "the old one stays in use");
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", GOOD))));
    wait_until("a new certificate", || not_after() != first).await;
    task.abort();
    let folder = IdentityFolder::new(&identity_folder(state.path()));
    let (_, stored) = folder.load().unwrap();
    assert_eq!(stored.leaf(), dialer.credentials().current().leaf());
    assert!(renewals()[0].contains("node/titan01 at"), "{:?}", renewals());
}

#[tokio::test]
async fn what_a_join_put_into_the_folder_is_taken_up() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), GOOD).await;
    let first = dialer.credentials().current().leaf().serial.clone();
    let mut again = controller.options(state.path());
    again.replace = true;
    join(&again).await.unwrap();
    let reload = renewal.reload();
    let task = tokio::spawn(renewal.run());
    reload.notify_one();
    let serial = || dialer.credentials().current().leaf().serial.clone();
    wait_until("the new certificate is in use", || serial() != first).await;
    task.abort();
    let (_, stored) = again.folder.load().unwrap();
    assert_eq!(stored.leaf(), dialer.credentials().current().leaf());
}

/// Two memberships in one folder would keep the node out of both.
#[tokio::test]
async fn an_agent_puts_nothing_into_the_folder_of_another_membership() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), (-7200, 3600)).await;
    let before = dialer.credentials().current().leaf().identity.clone();
    let mut other = controller.options(state.path());
    (other.name, other.replace) = (NodeName::parse("titan02").unwrap(), true);
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan02", GOOD))));
    let joined = join(&other).await.unwrap().to_string();
    assert!(joined.contains("it was titan01 of") && joined.contains("restart"), "{joined}");
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", GOOD))));
    let (looks, run) = (Duration::from_millis(200), renewal.run());
    assert!(tokio::time::timeout(looks, run).await.is_err(), "it runs until dropped");
    assert_eq!(*controller.desk.renewals.lock().unwrap(), [""; 0], "though it is due");
    let address = controller.address.clone();
    let refused = other.folder.store_addresses(&before, &[address]).unwrap_err().to_string();
    assert!(refused.contains("node/titan02"), "{refused}");
    let (record, _) = other.folder.load().unwrap();
    assert_eq!(record.controllers.len(), 2, "untouched");
}

/// A controller with another clock must not be asked over and over: a node has so many certificates and no more.
#[tokio::test]
async fn a_certificate_that_is_due_when_it_comes_is_renewed_once_in_a_while() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), (-7200, 3600)).await;
    let renewal = renewal.with_pauses(Duration::from_secs(3600), Duration::from_millis(1));
    let first = dialer.credentials().current().leaf().clone();
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", (-7100, 3600)))));
    let mut task = tokio::spawn(renewal.run());
    wait_until("it is renewed", || *dialer.credentials().current().leaf() != first).await;
    let looks = Duration::from_millis(200);
    assert!(tokio::time::timeout(looks, &mut task).await.is_err(), "it runs until dropped");
    task.abort();
    assert_eq!(controller.desk.renewals.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_expired_certificate_is_renewed() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), (-7200, -3600)).await;
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan01", GOOD))));
    let leaf = renewal.renew().await.unwrap();
    assert_eq!(dialer.credentials().current().leaf(), &leaf);
    let asked = controller.desk.renewals.lock().unwrap().clone();
    assert!(asked[0].ends_with("with an expired certificate"), "{asked:?}");
}

#[tokio::test]
async fn a_renewal_that_fails_changes_nothing_and_says_why() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), GOOD).await;
    let before = std::fs::read(state.path().join("identity/agent.crt")).unwrap();
    let ca = controller.ca.clone();
    controller.answer(move |csr| Ok(Some(ca.reply(csr, "node/titan02", GOOD))));
    let error = renewal.renew().await.unwrap_err().to_string();
    assert!(error.contains("titan02"), "{error}");
    controller.answer(|_| Err(Status::unauthenticated("node titan01 was removed")));
    let error = renewal.renew().await.unwrap_err().to_string();
    assert!(error.contains("was removed"), "{error}");
    let address = controller.address.to_string();
    drop(controller);
    let mut error = renewal.renew().await.unwrap_err().to_string();
    for _ in 0..50 {
        // The aborted server's socket closes a moment later.
        if error.contains("cannot connect") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        error = renewal.renew().await.unwrap_err().to_string();
    }
    assert!(error.contains(&address), "{error}");
    assert_eq!(std::fs::read(state.path().join("identity/agent.crt")).unwrap(), before);
    assert!(dialer.last_error().is_none(), "the link's own record is untouched");
}

/// Controllers say which authorities there are; a node whose own are others renews, without being due.
#[tokio::test]
async fn a_node_follows_the_fleet_to_another_authority() {
    let (controller, state) = (Controller::start(), tempfile::tempdir().unwrap());
    let (renewal, dialer) = joined(&controller, state.path(), GOOD).await;
    let folder = IdentityFolder::new(&identity_folder(state.path()));
    let (tell, told) = tokio::sync::watch::channel(None);
    let pauses = (Duration::from_secs(3600), Duration::from_millis(10));
    let task = tokio::spawn(renewal.with_pauses(pauses.0, pauses.1).following(told).run());
    let (old, new) = (controller.ca.clone(), Arc::new(Ca::new()));
    let authorities = |signing: SpkiPin, trusted: &[SpkiPin]| {
        let trusted = trusted.iter().map(ToString::to_string).collect();
        Authorities { signing: signing.to_string(), trusted, spread_ms: 5 }
    };
    // While the old one signs there is nothing to do, though another one is trusted too.
    let both = [new.pin(), old.pin()];
    tell.send_replace(Some(authorities(old.pin(), &both)));
    let (signs, vouches) = (new.clone(), old.clone());
    controller.answer(move |csr| {
        let mut reply = signs.reply(csr, "node/titan01", GOOD);
        reply.trusted_der = vec![signs.der.clone(), vouches.der.clone()];
        reply.vouched_der = vec![vouches.vouch(&signs)];
        Ok(Some(reply))
    });
    let elsewhere = |told: &Authorities| is_elsewhere(&dialer.credentials().current(), told);
    assert!(!elsewhere(&authorities(old.pin(), &both)));
    tell.send_replace(Some(authorities(new.pin(), &both)));
    wait_until("it has moved", || folder.authority_pins().unwrap() == both).await;
    wait_until("it is in use", || !elsewhere(&authorities(new.pin(), &both))).await;
    task.abort();
    assert_eq!(controller.desk.renewals.lock().unwrap().len(), 1, "asked once, and not before");
    // Once the old one is given up it is not trusted here for longer than needed.
    assert!(elsewhere(&authorities(new.pin(), &[new.pin()])));
}

#[test]
fn renewal_is_due_between_half_and_six_tenths_of_life() {
    let ca = Ca::new();
    let der = ca.issue(&KeyPair::generate().unwrap(), "node/titan01", (0, 1000));
    let leaf = PeerCertificate::parse(&der).unwrap();
    let at = |offset: u64| is_due(&leaf, leaf.not_before + offset);
    assert!(!at(0) && !at(499));
    assert!(at(600) && at(999) && at(5000));
    assert!(is_due(&leaf, leaf.not_before - 1), "the clock was set back");
}

#[test]
fn pauses_double_up_to_a_limit() {
    let first = Duration::from_secs(30);
    let pauses: Vec<u64> = [1, 2, 3, 5, 6, 100, u32::MAX]
        .iter()
        .map(|failures| pause_after(*failures, first).as_secs())
        .collect();
    assert_eq!(pauses, [30, 60, 120, 480, 900, 900, 900]);
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited without result for {what}");
}
