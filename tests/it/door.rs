//! The controller's door, as somebody sees it who stands outside: its address, its socket, and certificates made with
//! its own authority, which a test can have because it reads the controller's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use fleet_controller::pki::{Authority, SigningRequest};
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_proto::transport::keys::{OwnKey, certificate_pem};
use fleet_proto::transport::{Address, Credentials, Dialer, SharedCredentials, unix};
use fleet_proto::v1;
use fleet_proto::v1::agents_client::AgentsClient;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_tests::lab::Lab;
use fleet_tests::wait::SOON;
use tonic::Status;
use tonic::transport::Channel;

/// How long a user's certificate lasts here.
const USER_LIFE: Duration = Duration::from_secs(3_600);

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// One for all: a channel lives on the one it was made on.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().expect("a runtime can be made"))
}

pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()
        .block_on(async { tokio::time::timeout(SOON, future).await.context("no answer in time")? })
}

/// Where the controller listens, and who signs there.
pub(crate) struct Door {
    pub(crate) address: Address,
    pub(crate) socket: PathBuf,
    /// The folder with the authority's key.
    pub(crate) pki: PathBuf,
    pub(crate) authority: Authority,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Whose<'a> {
    Node(&'a str),
    User(&'a str),
    Controller(&'a str),
}

impl Door {
    pub(crate) fn of(lab: &Lab) -> Result<Self> {
        let config: toml::Table =
            fs::read_to_string(&lab.dev_file()?.process("controller", "1")?.config)?.parse()?;
        let text = |key: &str| config.get(key).and_then(toml::Value::as_str).context("a key");
        let pki = Path::new(text("data_dir")?).join("pki");
        Ok(Self {
            address: text("listen")?.parse()?,
            socket: text("socket")?.into(),
            authority: Authority::load(&pki)?,
            pki,
        })
    }

    /// Somebody with a certificate by `authority`, made at `at`, who trusts this fleet.
    pub(crate) fn peer(
        &self,
        authority: &Authority,
        whose: Whose<'_>,
        at: Timestamp,
    ) -> Result<Dialer> {
        let key = OwnKey::generate()?;
        let request = SigningRequest::parse(&key.signing_request()?)?;
        let issued = match whose {
            Whose::Node(name) => authority.issue_node(&request, &NodeName::parse(name)?, at)?,
            Whose::Controller(name) => {
                authority.issue_controller(&request, &NodeName::parse(name)?, at)?
            }
            Whose::User(name) => {
                authority.issue_user(&request, &UserName::parse(name)?, USER_LIFE, at)?
            }
        };
        self.with(&key, &issued.certificate_der)
    }

    /// A user with a certificate of this authority who trusts what `other` does, and goes there.
    pub(crate) fn papers_for(&self, other: &Door, name: &str) -> Result<Dialer> {
        let key = OwnKey::generate()?;
        let request = SigningRequest::parse(&key.signing_request()?)?;
        let issued =
            self.authority.issue_user(&request, &UserName::parse(name)?, USER_LIFE, now())?;
        other.with(&key, &issued.certificate_der)
    }

    /// Somebody with this certificate.
    pub(crate) fn with(&self, key: &OwnKey, certificate: &[u8]) -> Result<Dialer> {
        let credentials = Credentials::from_pem(
            certificate_pem(certificate).as_bytes(),
            key.to_pem().expose().as_bytes(),
            self.authority.certificate_pem().as_bytes(),
        )?;
        Ok(Dialer::new(vec![self.address.clone()], SharedCredentials::new(credentials)?))
    }

    /// A certificate for a local user, by the controller's socket: on record, unlike those above.
    pub(crate) fn vouched(&self, key: &OwnKey) -> Result<v1::IssuedCertificate> {
        let csr_der = key.signing_request()?;
        block_on(async {
            let mut api = EnrollmentClient::new(unix::channel(&self.socket));
            let answer = api.user_certificate(v1::UserCertificateRequest { csr_der }).await?;
            answer.into_inner().certificate.context("no certificate")
        })
    }
}

/// Made where tasks can run; it connects at the first call.
pub(crate) fn channel(dialer: &Dialer) -> Channel {
    let _inside = runtime().enter();
    dialer.channel()
}

/// What every user may ask.
pub(crate) async fn status(channel: Channel) -> Result<v1::Status, Status> {
    let answer = FleetClient::new(channel).get_status(v1::GetStatusRequest {}).await;
    answer.map(tonic::Response::into_inner)
}

/// What every agent may ask.
pub(crate) async fn link(channel: Channel) -> Result<(), Status> {
    let (_sender, receiver) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    AgentsClient::new(channel).sync(stream).await.map(drop)
}
