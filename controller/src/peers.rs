//! Asking the other controllers, beside consensus: how they stand, and for the authority's keys.
//!
//! Used by the API (`fleet controller status`), by the leader's membership loop, by `join`. Every call
//! has a deadline; one that does not answer is a value, not an error.

use std::sync::Arc;
use std::time::Duration;

use fleet_proto::transport::client::Address;
use fleet_proto::transport::limits::USER_ANSWER_BYTES_MAX;
use fleet_proto::transport::{Dialer, SharedCredentials};
use fleet_proto::v1;
use fleet_proto::v1::controllers_client::ControllersClient;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::raft::PeerConnector;

/// How long another controller may take to say how it stands.
const FIGURES_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long the leader may take to record a certificate or a session.
const RECORD_TIMEOUT: Duration = Duration::from_secs(8);
/// How long another controller may take to give the authorities' keys.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);
/// Trailer of a refusal: the caller was removed from the fleet.
pub const REMOVED_TRAILER: &str = "fleet-removed";

/// Channels to other controllers, by mutual TLS.
#[derive(Debug)]
pub struct TlsConnector(pub SharedCredentials);

impl PeerConnector for TlsConnector {
    fn channel(&self, _node: u64, address: &str) -> Result<Channel, String> {
        let address = address.parse::<Address>().map_err(|e| e.to_string())?;
        Ok(Dialer::new(vec![address], self.0.clone()).channel())
    }

    fn generation(&self) -> u64 {
        *self.0.changes().borrow()
    }
}

/// Asks other controllers. Cheap to clone.
#[derive(Clone)]
pub struct Peers(Arc<dyn PeerConnector>);

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Peers")
    }
}

/// Why a controller has no figures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Silent {
    #[error("{0}")]
    Unreachable(String),
    #[error("it says that this controller was removed from the fleet")]
    RemovedMe,
}

impl Peers {
    pub fn new(connector: Arc<dyn PeerConnector>) -> Self {
        Self(connector)
    }

    /// How controller `id` at `address` stands.
    pub async fn figures(&self, id: u64, address: &str) -> Result<v1::ControllerFigures, Silent> {
        let channel = self.0.channel(id, address).map_err(Silent::Unreachable)?;
        let mut client = ControllersClient::new(channel);
        let mut request = tonic::Request::new(v1::GetFiguresRequest::default());
        request.set_timeout(FIGURES_TIMEOUT);
        let asked = tokio::time::timeout(FIGURES_TIMEOUT, client.get_figures(request));
        let figures = match asked.await {
            Ok(Ok(figures)) => figures.into_inner(),
            Ok(Err(status)) if says_removed(&status) => return Err(Silent::RemovedMe),
            Ok(Err(status)) => return Err(Silent::Unreachable(explain(&status))),
            Err(_) => {
                let problem = format!("no answer within {FIGURES_TIMEOUT:?}");
                return Err(Silent::Unreachable(problem));
            }
        };
        if figures.controller_id == id {
            return Ok(figures);
        }
        let problem = format!("controller {} answers at its address", figures.controller_id);
        Err(Silent::Unreachable(problem))
    }
}

impl Peers {
    /// Tells the controller at `address`, whichever it is, of which incarnation this fleet is. Gives its own; 0 where it
    /// does not say.
    pub async fn tell_incarnation(&self, address: &str, incarnation: u64) -> Option<u64> {
        // Any number does: a controller is known by its certificate.
        let channel = self.0.channel(0, address).ok()?;
        let mut client = ControllersClient::new(channel);
        let mut request = tonic::Request::new(v1::GetFiguresRequest { incarnation });
        request.set_timeout(FIGURES_TIMEOUT);
        let told = tokio::time::timeout(FIGURES_TIMEOUT, client.get_figures(request)).await;
        Some(told.ok()?.ok()?.into_inner().incarnation)
    }

    /// The authorities' keys, as that controller holds them.
    pub async fn authority_keys(
        &self,
        id: u64,
        address: &str,
    ) -> Result<Vec<v1::AuthorityKey>, String> {
        let channel = self.0.channel(id, address)?;
        let mut request = tonic::Request::new(v1::GetAuthorityRequest {});
        request.set_timeout(KEYS_TIMEOUT);
        let mut client = ControllersClient::new(channel);
        match tokio::time::timeout(KEYS_TIMEOUT, client.get_authority(request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().keys),
            Ok(Err(status)) => Err(explain(&status)),
            Err(_) => Err(format!("no answer within {KEYS_TIMEOUT:?}")),
        }
    }

    /// What the users' service of that controller is asked with.
    pub fn fleet(&self, id: u64, address: &str) -> Result<FleetClient<Channel>, Status> {
        let channel = self.0.channel(id, address).map_err(Status::unavailable)?;
        Ok(FleetClient::new(channel).max_decoding_message_size(USER_ANSWER_BYTES_MAX))
    }

    /// Has the leader write down that a browser logged in.
    pub async fn begin_session(
        &self,
        id: u64,
        address: &str,
        request: v1::BeginSessionRequest,
    ) -> Result<v1::BeginSessionResponse, Status> {
        let channel = self.0.channel(id, address).map_err(Status::unavailable)?;
        let mut request = tonic::Request::new(request);
        request.set_timeout(RECORD_TIMEOUT);
        let mut client = ControllersClient::new(channel);
        of_leader(client.begin_session(request)).await
    }

    /// Has the leader give a certificate to a user that this controller's machine knows.
    pub async fn vouch_user(
        &self,
        id: u64,
        address: &str,
        request: v1::VouchUserRequest,
    ) -> Result<v1::UserCertificateResponse, Status> {
        let channel = self.0.channel(id, address).map_err(Status::unavailable)?;
        let mut request = tonic::Request::new(request);
        request.set_timeout(RECORD_TIMEOUT);
        let mut client = EnrollmentClient::new(channel);
        of_leader(client.vouch_user(request)).await
    }
}

/// The leader's answer, if it comes in time.
async fn of_leader<T>(
    asked: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    let late = |_| Status::unavailable("the leading controller does not answer in time");
    let answer = tokio::time::timeout(RECORD_TIMEOUT, asked).await.map_err(late)?;
    answer.map(tonic::Response::into_inner)
}

fn says_removed(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && status.metadata().contains_key(REMOVED_TRAILER)
}

/// tonic hides why a connection failed behind "transport error".
fn explain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        text = error.to_string();
        next = error.source();
    }
    text
}
