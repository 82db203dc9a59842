//! Certificates: joining with a token, renewing, and short ones for local users.

use fleet_core::command::{AdmitController, Command};
use fleet_core::controller::Controller;
use fleet_core::id::TokenId;
use fleet_core::name::NodeName;
use fleet_core::node::MachineIdentity;
use fleet_core::{Actor, AuthMethod, Rejection, Reply, Who};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::transport::PeerIdentity;
use fleet_proto::transport::client::Address;
use fleet_proto::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use fleet_proto::v1;
use fleet_proto::v1::enrollment_server::{Enrollment, EnrollmentServer};
use tonic::{Request, Response, Status};

use super::Context;
use super::propose::propose_status;
use crate::clock::wall;
use crate::pki::renewal::check_renewal;
use crate::pki::{SigningRequest, USER_LIFE, token};

/// Numbers tried for a new controller while others join at the same time.
const NUMBER_DRAWS_MAX: usize = 4;

/// The service over its context.
#[derive(Debug, Clone)]
pub struct EnrollmentService(Context);

impl EnrollmentService {
    pub fn new(context: Context) -> Self {
        Self(context)
    }

    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> EnrollmentServer<EnrollmentService> {
        EnrollmentServer::new(self).max_decoding_message_size(ENROLL_MESSAGE_BYTES_MAX)
    }

    /// Puts the admission into the log; gives the controller's number.
    async fn admit(
        &self,
        token: TokenId,
        address: String,
        signing: &SigningRequest,
    ) -> Result<u64, Status> {
        let key_sha256 = hex::encode(signing.key_pin().as_bytes());
        let actor = Actor { method: AuthMethod::JoinToken, ..Actor::controller() };
        let mut refused = Status::internal("no number was free");
        for _ in 0..NUMBER_DRAWS_MAX {
            let wish = AdmitController {
                id: self.0.raft.read(|fsm| fsm.roster().next_id()),
                address: address.clone(),
                token: Some(token.clone()),
                key_sha256: key_sha256.clone(),
            };
            let command = Command::AdmitController(wish);
            let envelope = self.0.envelope(actor.clone(), None, command);
            let applied = self.0.raft.propose(envelope).await.map_err(|e| propose_status(&e))?;
            match applied.reply {
                Ok(Reply::ControllerAdmitted { id }) => return Ok(id),
                Ok(other) => return Err(super::writes::unexpected(&other)),
                // Another one was faster.
                Err(taken @ Rejection::IdTaken { .. }) => refused = to_status(&taken),
                Err(rejection) => {
                    self.0.refusals.note("join:controller", "join_controller", rejection.code());
                    return Err(to_status(&rejection));
                }
            }
        }
        Err(refused)
    }

    fn controllers(&self) -> Vec<String> {
        self.0.addresses()
    }
}

#[tonic::async_trait]
impl Enrollment for EnrollmentService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let request = request.into_inner();
        let field = |field: &str, e: String| to_status(&Rejection::field(field, e));
        let name = NodeName::parse(&request.name).map_err(|e| field("name", e.to_string()))?;
        let id = TokenId::parse(&request.token_id).map_err(|e| field("token_id", e.to_string()))?;
        let machine = MachineIdentity {
            machine_id: request.machine_id.clone(),
            dmi_uuid: request.dmi_uuid.clone(),
        };
        self.0.newest().await?;
        let record = self.0.raft.read(|fsm| fsm.tokens().get(&id).cloned());
        let refused = || {
            self.0.refusals.note(&format!("join:{name}"), "join", "token_refused");
            Status::unauthenticated(
                "the join token is wrong or used up; an admin makes a new one with `fleet node token create`",
            )
        };
        let record = record.ok_or_else(refused)?;
        token::verify_secret(&record, &request.secret, &name, &machine, self.0.clock.now())
            .map_err(|error| {
                drop(refused());
                error.to_status()
            })?;
        let signing = SigningRequest::parse(&request.csr_der).map_err(|e| e.to_status())?;
        let actor = Actor {
            who: Who::Node { name: name.clone() },
            method: AuthMethod::JoinToken,
            serial: None,
        };
        let command = Command::RedeemJoinToken { id, node: name.clone(), machine };
        let envelope = self.0.envelope(actor, None, command);
        let applied = self.0.raft.propose(envelope).await.map_err(|e| propose_status(&e))?;
        applied.reply.map_err(|rejection| to_status(&rejection))?;
        let issued =
            self.0.authority.issue_node(&signing, &name, wall()).map_err(|e| e.to_status())?;
        tracing::info!(node = %name, serial = issued.serial, "node joined");
        let certificate = issued.to_wire(&self.0.authority, wall(), self.controllers());
        Ok(Response::new(v1::JoinResponse { certificate: Some(certificate) }))
    }

    async fn join_controller(
        &self,
        request: Request<v1::JoinControllerRequest>,
    ) -> Result<Response<v1::JoinControllerResponse>, Status> {
        let request = request.into_inner();
        let field = |field: &str, e: String| to_status(&Rejection::field(field, e));
        let id = TokenId::parse(&request.token_id).map_err(|e| field("token_id", e.to_string()))?;
        let address: Address =
            request.address.parse().map_err(|e| field("address", format!("{e}")))?;
        let signing = SigningRequest::parse(&request.csr_der).map_err(|e| e.to_status())?;
        self.0.newest().await?;
        let known = self.0.raft.read(|f| f.roster().token(&id).map(|t| t.secret_sha256.clone()));
        if !known.is_some_and(|hash| token::is_secret_of(&request.secret, &hash)) {
            self.0.refusals.note("join:controller", "join_controller", "token_refused");
            return Err(Status::unauthenticated(
                "the join token is wrong, used up, or not for a controller; an admin makes one with `fleet controller add`",
            ));
        }
        let number = self.admit(id, address.to_string(), &signing).await?;
        let name = NodeName::parse(&Controller::name(number))
            .map_err(|e| Status::internal(e.to_string()))?;
        let issued = self
            .0
            .authority
            .issue_controller(&signing, &name, wall())
            .map_err(|e| e.to_status())?;
        tracing::info!(controller = number, serial = issued.serial, "controller admitted");
        let certificate = issued.to_wire(&self.0.authority, wall(), self.controllers());
        let certificate = Some(certificate);
        Ok(Response::new(v1::JoinControllerResponse { controller_id: number, certificate }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let peer = PeerIdentity::of(&request)?;
        let signing =
            SigningRequest::parse(&request.get_ref().csr_der).map_err(|e| e.to_status())?;
        let name = check_renewal(&peer, &signing, &self.0.revocations, wall())
            .map_err(|e| e.to_status())?;
        let issued =
            self.0.authority.issue_node(&signing, &name, wall()).map_err(|e| e.to_status())?;
        let certificate = issued.to_wire(&self.0.authority, wall(), self.controllers());
        Ok(Response::new(v1::RenewResponse { certificate: Some(certificate) }))
    }

    async fn user_certificate(
        &self,
        request: Request<v1::UserCertificateRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        let caller = self.0.callers.user(&request).await?;
        if caller.actor.method != AuthMethod::LocalSocket {
            return Err(Status::permission_denied(
                "user certificates are given out on the controller's own socket",
            ));
        }
        let signing =
            SigningRequest::parse(&request.get_ref().csr_der).map_err(|e| e.to_status())?;
        let issued = self
            .0
            .authority
            .issue_user(&signing, &caller.name, USER_LIFE, wall())
            .map_err(|e| e.to_status())?;
        let certificate = issued.to_wire(&self.0.authority, wall(), self.controllers());
        Ok(Response::new(v1::UserCertificateResponse { certificate: Some(certificate) }))
    }
}
