//! A certificate authority that also makes bad certificates, and a server to try them on.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use rustls::pki_types::CertificateDer;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use crate::transport::credentials::{Credentials, SharedCredentials};
use crate::transport::keys::{OwnKey, certificate_pem};
use crate::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use crate::transport::server::{ListenerLimits, TlsListener, server_builder};
use crate::transport::token::SpkiPin;
use crate::transport::{Address, Denial, Denials, Dialer, Gate, PeerIdentity, identity};
use crate::v1::enrollment_client::EnrollmentClient;
use crate::v1::enrollment_server::{Enrollment, EnrollmentServer};
use crate::v1::{
    IssuedCertificate, JoinControllerRequest, JoinControllerResponse, JoinRequest, JoinResponse,
    RenewRequest, RenewResponse, UserCertificateRequest, UserCertificateResponse, VouchUserRequest,
};

pub(super) const CLUSTER: &str = "fleet-testtest";

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// What to put into a leaf, right or wrong.
#[derive(Clone)]
pub(super) struct Leaf {
    pub uris: Vec<String>,
    /// Seconds from now.
    pub valid: (i64, i64),
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    pub is_ca: bool,
}

impl Leaf {
    pub(super) fn node(name: &str) -> Self {
        Self::of(&format!("fleet://{CLUSTER}/node/{name}"), &[ExtendedKeyUsagePurpose::ClientAuth])
    }

    pub(super) fn controller() -> Self {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Self::of(&format!("fleet://{CLUSTER}/controller/c1"), &both)
    }

    pub(super) fn of(uri: &str, usages: &[ExtendedKeyUsagePurpose]) -> Self {
        let usages = usages.to_vec();
        Self { uris: vec![uri.to_owned()], valid: (-600, 3600), usages, is_ca: false }
    }

    pub(super) fn valid(mut self, from: i64, until: i64) -> Self {
        self.valid = (from, until);
        self
    }
}

/// A certificate authority and its PEM texts.
pub(super) struct Ca {
    pub der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    params: CertificateParams,
}

impl Ca {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, CLUSTER);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { der, issuer: Issuer::new(params.clone(), key), params }
    }

    /// The name and key of `other`, certified by this one.
    pub(super) fn vouch(&self, other: &Ca) -> CertificateDer<'static> {
        let certified = other.params.clone().signed_by(other.issuer.key(), &self.issuer);
        certified.unwrap().der().clone()
    }

    pub(super) fn pin(&self) -> SpkiPin {
        identity::key_pin_of(&self.der).unwrap()
    }

    /// DER of the leaf and PEM of its new key.
    pub(super) fn leaf(&self, leaf: &Leaf) -> (CertificateDer<'static>, String) {
        let key = KeyPair::generate().unwrap();
        (self.certify_key(leaf, &key), key.serialize_pem())
    }

    /// DER of a leaf for this key.
    pub(super) fn certify(&self, leaf: &Leaf, key: &OwnKey) -> CertificateDer<'static> {
        self.certify_key(leaf, &KeyPair::from_pem(key.to_pem().expose()).unwrap())
    }

    fn certify_key(&self, leaf: &Leaf, key: &KeyPair) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uri = |uri: &String| SanType::URI(uri.as_str().try_into().unwrap());
        params.subject_alt_names = leaf.uris.iter().map(uri).collect();
        let at = |offset: i64| {
            let seconds = now().checked_add_signed(offset).unwrap();
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        params.not_before = at(leaf.valid.0);
        params.not_after = at(leaf.valid.1);
        params.extended_key_usages = leaf.usages.clone();
        params.is_ca =
            if leaf.is_ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        params.signed_by(key, &self.issuer).unwrap().der().clone()
    }

    pub(super) fn credentials(&self, leaf: &Leaf) -> Credentials {
        let (der, key) = self.leaf(leaf);
        let authority = certificate_pem(&self.der);
        let chain = certificate_pem(&der);
        Credentials::from_pem(chain.as_bytes(), key.as_bytes(), authority.as_bytes()).unwrap()
    }

    pub(super) fn shared(&self, leaf: &Leaf) -> SharedCredentials {
        SharedCredentials::new(self.credentials(leaf)).unwrap()
    }
}

/// Answers each call with who it thinks calls.
pub(super) struct WhoAmI;

fn answer<T>(request: &Request<T>) -> Result<Option<IssuedCertificate>, Status> {
    let peer = PeerIdentity::of(request)?;
    let serial = peer.serial().unwrap_or_default().to_owned();
    Ok(Some(IssuedCertificate { identity: peer.to_string(), serial, ..Default::default() }))
}

#[tonic::async_trait]
impl Enrollment for WhoAmI {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Ok(Response::new(JoinResponse { certificate: answer(&request)? }))
    }

    async fn join_controller(
        &self,
        request: Request<JoinControllerRequest>,
    ) -> Result<Response<JoinControllerResponse>, Status> {
        let certificate = answer(&request)?;
        Ok(Response::new(JoinControllerResponse { controller_id: 0, certificate }))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        Ok(Response::new(RenewResponse { certificate: answer(&request)? }))
    }

    async fn user_certificate(
        &self,
        request: Request<UserCertificateRequest>,
    ) -> Result<Response<UserCertificateResponse>, Status> {
        Ok(Response::new(UserCertificateResponse { certificate: answer(&request)? }))
    }

    async fn vouch_user(
        &self,
        _: Request<VouchUserRequest>,
    ) -> Result<Response<UserCertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

pub(super) fn service() -> EnrollmentServer<WhoAmI> {
    EnrollmentServer::new(WhoAmI).max_decoding_message_size(ENROLL_MESSAGE_BYTES_MAX)
}

/// A running controller of the cluster.
pub(super) struct Server {
    pub address: SocketAddr,
    pub credentials: SharedCredentials,
    pub refusals: crate::transport::refusals::Refusals,
    /// What the controller's books would say.
    pub denied: Arc<Mutex<Vec<Denial>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) fn start(ca: &Ca) -> Self {
        Self::with(ca.shared(&Leaf::controller()), ListenerLimits::default())
    }

    pub(super) fn with(credentials: SharedCredentials, limits: ListenerLimits) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let denied = Arc::new(Mutex::new(Vec::new()));
        let books = Arc::clone(&denied);
        let denials = Denials::to(move |denial| books.lock().unwrap().push(denial));
        let listener =
            TlsListener::start_with(socket, credentials.clone(), denials.clone(), limits).unwrap();
        let (address, refusals) = (listener.local_addr(), listener.refusals());
        let gate = Gate::new(credentials.revocations().clone(), denials);
        let router = server_builder(gate).add_service(service());
        let task = tokio::spawn(async move { router.serve_with_incoming(listener).await.unwrap() });
        Self { address, credentials, refusals, denied, task }
    }

    pub(super) fn address(&self) -> Address {
        self.address.to_string().parse().unwrap()
    }

    pub(super) fn dialer(&self, credentials: &SharedCredentials) -> Dialer {
        Dialer::new(vec![self.address()], credentials.clone())
    }

    /// What was reported of refusals so far: who, what, why.
    pub(super) fn denied(&self) -> Vec<(String, String, &'static str)> {
        let denied = self.denied.lock().unwrap();
        denied.iter().map(|d| (d.principal.clone(), d.action.clone(), d.code)).collect()
    }

    /// Waits until so many refusals of a kind were counted.
    pub(super) async fn refused(&self, kind: &str, count: u64) {
        wait_until(&format!("{count} refusals of kind {kind}"), || {
            self.refusals.count(kind) >= count
        })
        .await;
        assert_eq!(self.refusals.count(kind), count, "{:?}", self.refusals.counts());
    }
}

/// Polls a condition, 5 s at most.
pub(super) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited without result for {what}");
}

/// Asks the server who we are, by the call every certified peer may make.
pub(super) async fn who_am_i(
    channel: tonic::transport::Channel,
) -> Result<(String, String), Status> {
    let mut request = Request::new(UserCertificateRequest::default());
    request.set_timeout(Duration::from_secs(5));
    let reply = EnrollmentClient::new(channel).user_certificate(request).await?;
    let certificate = reply.into_inner().certificate.unwrap();
    Ok((certificate.identity, certificate.serial))
}
