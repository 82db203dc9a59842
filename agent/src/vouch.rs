//! Vouches for the users of this node: a user who is logged in here gets a short-lived certificate of the fleet.
//!
//! Served on the agent's Unix socket, beside what the agent knows of its node. The kernel says which uid
//! asks, the name service which account that is, and the controllers decide what this node's word is
//! worth. The private key stays with the user; this service passes on a signing request, never a name
//! that the caller chose.

use std::sync::Arc;
use std::time::Duration;

use fleet_proto::convert::rejection::NO_QUORUM_TRAILER;
use fleet_proto::transport::limits::{CALL_TIMEOUT, ENROLL_MESSAGE_BYTES_MAX};
use fleet_proto::transport::{Dialer, PeerIdentity, Slots};
use fleet_proto::v1;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use fleet_proto::v1::enrollment_server::{Enrollment, EnrollmentServer};
use nix::unistd::Uid;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use crate::enroll::leader;
use fleet_user::{UserError, Users};

/// How long the name service may take for an account.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Accounts looked up at a time: a name service that hangs takes no more threads than this.
const LOOKUPS_MAX: usize = 4;
/// Requests passed on at a time; others wait.
const REQUESTS_MAX: usize = 8;
/// Requests of one user, and of all, that are under way or wait.
const WAITING_PER_USER_MAX: usize = 16;
const WAITING_MAX: usize = 64;
/// How long the controllers may take. The caller waits longer, so that it still gets the reason.
const CONTROLLERS_MAX: Duration = Duration::from_secs(7);

/// The service.
#[derive(Debug, Clone)]
pub struct VouchService {
    dialer: Dialer,
    users: Users,
    lookups: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    waiting: Arc<Slots<u32>>,
}

impl VouchService {
    /// Passes requests on over connections of its own.
    pub fn new(dialer: &Dialer, users: Users) -> Self {
        let (lookups, requests) = (Semaphore::new(LOOKUPS_MAX), Semaphore::new(REQUESTS_MAX));
        Self {
            dialer: dialer.sibling(),
            users,
            lookups: Arc::new(lookups),
            requests: Arc::new(requests),
            waiting: Slots::new(WAITING_PER_USER_MAX, WAITING_MAX),
        }
    }

    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> EnrollmentServer<VouchService> {
        EnrollmentServer::new(self).max_decoding_message_size(ENROLL_MESSAGE_BYTES_MAX)
    }

    /// The account of a uid, if it is a person's. Root is one: somebody became it by `sudo`.
    async fn account(&self, uid: u32) -> Result<String, Status> {
        let busy = || Status::unavailable("the name service of this node does not answer");
        let slot = self.lookups.clone().try_acquire_owned().map_err(|_| busy())?;
        let looking = tokio::task::spawn_blocking(move || {
            let found = nix::unistd::User::from_uid(Uid::from_raw(uid));
            drop(slot);
            found
        });
        let found = timeout(LOOKUP_MAX, looking)
            .await
            .map_err(|_| busy())?
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::unavailable(format!("look up uid {uid}: {error}")))?;
        let unknown =
            || Status::permission_denied(format!("uid {uid} has no account on this node"));
        let name = found.ok_or_else(unknown)?.name;
        if uid == 0 {
            return Ok(name);
        }
        // The other way round too: that name must be this uid, and no system account.
        match self.users.resolve(&name, Some(uid)).await {
            Ok(user) => Ok(user.name),
            Err(UserError::SystemUser { name, uid, .. }) => Err(Status::permission_denied(
                format!("{name} (uid {uid}) is a system account; this node vouches for people"),
            )),
            Err(
                error @ (UserError::TimedOut { .. }
                | UserError::TooManyStuck { .. }
                | UserError::Service { .. }),
            ) => Err(Status::unavailable(error.to_string())),
            Err(
                error @ (UserError::BadName { .. }
                | UserError::Unknown { .. }
                | UserError::UidMismatch { .. }),
            ) => Err(Status::permission_denied(error.to_string())),
        }
    }

    async fn pass_on(
        &self,
        message: v1::VouchUserRequest,
    ) -> Result<v1::UserCertificateResponse, Status> {
        let gone = |_| Status::unavailable("the agent is stopping");
        let _one = self.requests.acquire().await.map_err(gone)?;
        let answer = leader::ask(&self.dialer, |channel| {
            let mut request = Request::new(message.clone());
            request.set_timeout(CALL_TIMEOUT);
            async move { EnrollmentClient::new(channel).vouch_user(request).await }
        });
        match answer.await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.explain(status)),
        }
    }

    /// tonic hides behind "transport error" why nobody was reached.
    fn explain(&self, status: Status) -> Status {
        let unreached = status.code() == Code::Unavailable
            && !status.metadata().contains_key(NO_QUORUM_TRAILER);
        match self.dialer.last_error().filter(|_| unreached) {
            Some(error) => {
                Status::unavailable(format!("this node's agent cannot reach a controller: {error}"))
            }
            None => status,
        }
    }
}

/// What is asked of controllers only.
fn elsewhere() -> Status {
    Status::failed_precondition("this is an agent's socket; ask a controller")
}

#[tonic::async_trait]
impl Enrollment for VouchService {
    async fn join(
        &self,
        _: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        Err(elsewhere())
    }

    async fn join_controller(
        &self,
        _: Request<v1::JoinControllerRequest>,
    ) -> Result<Response<v1::JoinControllerResponse>, Status> {
        Err(elsewhere())
    }

    async fn renew(
        &self,
        _: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        Err(elsewhere())
    }

    async fn vouch_user(
        &self,
        _: Request<v1::VouchUserRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        Err(elsewhere())
    }

    async fn user_certificate(
        &self,
        request: Request<v1::UserCertificateRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        let PeerIdentity::Local { uid, .. } = PeerIdentity::of(&request)? else {
            return Err(Status::permission_denied("this is for users who are logged in here"));
        };
        let busy = || Status::resource_exhausted("too many requests at once; try again");
        let _slot = self.waiting.take(uid).ok_or_else(busy)?;
        let user = self.account(uid).await?;
        let message = v1::VouchUserRequest { user, csr_der: request.into_inner().csr_der };
        let answer = timeout(CONTROLLERS_MAX, self.pass_on(message)).await;
        let late = |_| Status::unavailable("no controller answers this node's agent in time");
        answer.map_err(late)?.map(Response::new)
    }
}
