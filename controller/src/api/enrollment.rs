//! Certificates: joining with a token, renewing, and short ones for users.
//!
//! A certificate is recorded in the log before it is handed out, so that revoking its holder finds
//! it. Every refusal is counted for the audit log.

use fleet_core::access::CertificateHolder;
use fleet_core::command::{
    AccessCommand, AdmitController, Command, ControllerCommand, NodeCommand,
};
use fleet_core::controller::Controller;
use fleet_core::id::TokenId;
use fleet_core::name::{NodeName, UserName};
use fleet_core::node::MachineIdentity;
use fleet_core::state::check_format;
use fleet_core::{Actor, AuthMethod, Rejection, Reply, Timestamp, Who};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::transport::client::Address;
use fleet_proto::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use fleet_proto::transport::{PeerIdentity, Role};
use fleet_proto::v1;
use fleet_proto::v1::enrollment_server::{Enrollment, EnrollmentServer};
use tonic::{Request, Response, Status};

use super::issuing::Issuing;
use super::propose::propose_status;
use super::{Context, controllers};
use crate::clock::wall;
use crate::pki::renewal::{RenewalRefused, check_renewal};
use crate::pki::{Authority, Issued, SigningRequest, USER_LIFE, token};

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
            let command = Command::Controller(ControllerCommand::Admit(wish));
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

    /// Records the certificate, and only then gives it away.
    async fn hand_out(
        &self,
        actor: Actor,
        holder: CertificateHolder,
        via: Option<NodeName>,
        (issued, by): (&Issued, &Authority),
    ) -> Result<v1::IssuedCertificate, Status> {
        let command = Command::Access(AccessCommand::RecordCertificate {
            serial: issued.serial.clone(),
            holder,
            not_after: issued.not_after,
            via,
            authority: by.pin().to_string(),
        });
        self.0.change(&actor, None, command).await?;
        Ok(self.0.keyring.reply(issued, by, wall(), self.controllers()))
    }

    /// A controller that does not lead has the one that does record what it vouches for: its users
    /// need no other way in. `None` where this one leads.
    async fn by_leader(
        &self,
        user: &UserName,
        csr_der: &[u8],
    ) -> Option<Result<v1::UserCertificateResponse, Status>> {
        let leader = match self.0.leader_elsewhere()? {
            Ok(leader) => leader,
            Err(nobody) => return Some(Err(nobody)),
        };
        let request = v1::VouchUserRequest { user: user.to_string(), csr_der: csr_der.to_vec() };
        Some(self.0.peers.vouch_user(leader.node, &leader.address, request).await)
    }

    fn signing_request(&self, principal: &str, der: &[u8]) -> Result<SigningRequest, Status> {
        SigningRequest::parse(der).map_err(|error| {
            self.0.refusals.note(principal, "signing_request", "invalid_field");
            error.to_status()
        })
    }

    async fn join_checked(
        &self,
        request: &v1::JoinRequest,
        name: &NodeName,
        id: TokenId,
    ) -> Result<v1::IssuedCertificate, Status> {
        let machine = MachineIdentity {
            machine_id: request.machine_id.clone(),
            dmi_uuid: request.dmi_uuid.clone(),
        };
        let principal = format!("join:{name}");
        self.0.newest().await?;
        let record = self.0.raft.read(|fsm| fsm.tokens().get(&id).cloned());
        let refused = |code: &str| self.0.refusals.note(&principal, "join", code);
        let record = record.ok_or_else(|| {
            refused("token_refused");
            Status::unauthenticated(
                "the join token is wrong or used up; an admin makes a new one with `fleet node token create`",
            )
        })?;
        token::verify_secret(&record, &request.secret, name, &machine, self.0.clock.now())
            .map_err(|error| {
                refused("token_refused");
                error.to_status()
            })?;
        let signing = self.signing_request(&principal, &request.csr_der)?;
        let actor = Actor {
            who: Who::Node { name: name.clone() },
            method: AuthMethod::JoinToken,
            serial: None,
        };
        // Before the token is used up.
        let now = self.0.issuing()?.now;
        let command = Command::Node(NodeCommand::Join { id, node: name.clone(), machine });
        let envelope = self.0.envelope(actor.clone(), None, command);
        let applied = self.0.raft.propose(envelope).await.map_err(|e| propose_status(&e))?;
        applied.reply.map_err(|rejection| {
            refused(rejection.code());
            to_status(&rejection)
        })?;
        let by = self.0.keyring.signing();
        let issued = by.issue_node(&signing, name, now).map_err(|e| e.to_status())?;
        let holder = CertificateHolder::Node { name: name.clone() };
        let certificate = self.hand_out(actor, holder, None, (&issued, &by)).await?;
        tracing::info!(node = %name, serial = issued.serial, "node joined");
        Ok(certificate)
    }

    /// The node that may have a new certificate: one the fleet knows, and with an expired one only the
    /// newest it was given.
    async fn renewable(
        &self,
        peer: &PeerIdentity,
        signing: &SigningRequest,
    ) -> Result<NodeName, Status> {
        let refused = |refusal: RenewalRefused| {
            self.0.refusals.note(&peer.principal(), "renew", refusal.code());
            refusal.to_status()
        };
        let name = check_renewal(peer, signing, &self.0.revocations, wall()).map_err(refused)?;
        self.0.newest().await?;
        let (known, last) = self.0.raft.read(|fsm| {
            let access = fsm.access();
            let last = peer.certificate().is_some_and(|shown| {
                let ends = Timestamp(shown.not_after.saturating_mul(1_000));
                access.may_renew_expired(&name, &shown.serial, ends)
            });
            (fsm.node(&name).is_some() || access.newest_of(&name).is_some(), last)
        });
        if !known {
            return Err(refused(RenewalRefused::NotAMember));
        }
        if matches!(peer, PeerIdentity::Expired(_)) && !last {
            return Err(refused(RenewalRefused::NotTheNewest));
        }
        Ok(name)
    }
}

#[tonic::async_trait]
impl Enrollment for EnrollmentService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let request = request.into_inner();
        let field = |field: &str, e: String| {
            self.0.refusals.note("join", "join", "invalid_field");
            to_status(&Rejection::field(field, e))
        };
        let name = NodeName::parse(&request.name).map_err(|e| field("name", e.to_string()))?;
        let id = TokenId::parse(&request.token_id).map_err(|e| field("token_id", e.to_string()))?;
        let certificate = self.join_checked(&request, &name, id).await?;
        Ok(Response::new(v1::JoinResponse { certificate: Some(certificate) }))
    }

    async fn join_controller(
        &self,
        request: Request<v1::JoinControllerRequest>,
    ) -> Result<Response<v1::JoinControllerResponse>, Status> {
        let request = request.into_inner();
        let field = |field: &str, e: String| {
            self.0.refusals.note("join:controller", "join_controller", "invalid_field");
            to_status(&Rejection::field(field, e))
        };
        let id = TokenId::parse(&request.token_id).map_err(|e| field("token_id", e.to_string()))?;
        let address: Address =
            request.address.parse().map_err(|e| field("address", format!("{e}")))?;
        check_format(Some(&request.format)).map_err(|other| {
            Status::failed_precondition(format!(
                "the store of the controller that joins {other}: install the same build on all controllers"
            ))
        })?;
        let signing = self.signing_request("join:controller", &request.csr_der)?;
        self.0.newest().await?;
        let known = self.0.raft.read(|f| f.roster().token(&id).map(|t| t.secret_sha256.clone()));
        if !known.is_some_and(|hash| token::is_secret_of(&request.secret, &hash)) {
            self.0.refusals.note("join:controller", "join_controller", "token_refused");
            return Err(Status::unauthenticated(
                "the join token is wrong, used up, or not for a controller; an admin makes one with `fleet controller add`",
            ));
        }
        let now = self.0.issuing()?.now;
        let number = self.admit(id, address.to_string(), &signing).await?;
        let name = NodeName::parse(&Controller::name(number))
            .map_err(|e| Status::internal(e.to_string()))?;
        let by = self.0.keyring.signing();
        let issued = by.issue_controller(&signing, &name, now).map_err(|e| e.to_status())?;
        tracing::info!(controller = number, serial = issued.serial, "controller admitted");
        let certificate = self.0.keyring.reply(&issued, &by, wall(), self.controllers());
        let certificate = Some(certificate);
        Ok(Response::new(v1::JoinControllerResponse { controller_id: number, certificate }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let peer = PeerIdentity::of(&request)?;
        let signing = self.signing_request(&peer.principal(), &request.get_ref().csr_der)?;
        let name = self.renewable(&peer, &signing).await?;
        let by = self.0.keyring.signing();
        let Issuing { from, now } = self.0.issuing()?;
        let issued = by.issue_node_from(&signing, &name, from, now).map_err(|e| e.to_status())?;
        let actor = Actor {
            who: Who::Node { name: name.clone() },
            method: AuthMethod::Certificate,
            serial: peer.serial().map(str::to_owned),
        };
        let certificate =
            self.hand_out(actor, CertificateHolder::Node { name }, None, (&issued, &by)).await?;
        Ok(Response::new(v1::RenewResponse { certificate: Some(certificate) }))
    }

    async fn user_certificate(
        &self,
        request: Request<v1::UserCertificateRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        let caller = self.0.callers.user(&request).await?;
        if caller.actor.method != AuthMethod::LocalSocket {
            self.0.refusals.note(&caller.actor.principal(), "user_certificate", "denied");
            return Err(Status::permission_denied(
                "user certificates are given out on the sockets of controllers and agents",
            ));
        }
        let principal = caller.actor.principal();
        let csr_der = &request.get_ref().csr_der;
        let signing = self.signing_request(&principal, csr_der)?;
        if let Some(answer) = self.by_leader(&caller.name, csr_der).await {
            return answer.map(Response::new);
        }
        let (by, now) = (self.0.keyring.signing(), self.0.issuing()?.now);
        let issued =
            by.issue_user(&signing, &caller.name, USER_LIFE, now).map_err(|e| e.to_status())?;
        let holder = CertificateHolder::User { name: caller.name };
        let certificate = self.hand_out(caller.actor, holder, None, (&issued, &by)).await?;
        Ok(Response::new(v1::UserCertificateResponse { certificate: Some(certificate) }))
    }

    async fn vouch_user(
        &self,
        request: Request<v1::VouchUserRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        let peer = PeerIdentity::of(&request)?;
        let asked = request.get_ref();
        let name = UserName::parse(&asked.user)
            .map_err(|e| to_status(&Rejection::field("user", e.to_string())))?;
        let (who, via) = match peer.role() {
            Some(Role::Node(node)) => (Who::Node { name: node.clone() }, Some(node.clone())),
            Some(Role::Controller(_)) => {
                controllers::member(&self.0.raft, &self.0.refusals, request.extensions())?;
                (Who::Controller, None)
            }
            Some(_) | None => {
                self.0.refusals.note(&peer.principal(), "vouch_user", "denied");
                return Err(Status::permission_denied(
                    "only nodes and controllers vouch for users",
                ));
            }
        };
        let serial = peer.serial().map(str::to_owned);
        let actor = Actor { who, method: AuthMethod::Certificate, serial };
        let signing = self.signing_request(&actor.principal(), &asked.csr_der)?;
        let (by, now) = (self.0.keyring.signing(), self.0.issuing()?.now);
        let issued = by.issue_user(&signing, &name, USER_LIFE, now).map_err(|e| e.to_status())?;
        let certificate =
            self.hand_out(actor, CertificateHolder::User { name }, via, (&issued, &by)).await?;
        Ok(Response::new(v1::UserCertificateResponse { certificate: Some(certificate) }))
    }
}

#[cfg(test)]
#[path = "enrollment_tests.rs"]
mod tests;
