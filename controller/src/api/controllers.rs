//! What controllers ask each other beside consensus: the authority's keys, and how they stand.
//!
//! Only for controllers by certificate, and never for one that was removed. The keys leave through
//! here and nowhere else.

use fleet_core::controller::Controller;
use fleet_proto::transport::PeerIdentity;
use fleet_proto::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use fleet_proto::v1;
use fleet_proto::v1::controllers_server::{Controllers, ControllersServer};
use http::Extensions;
use tonic::{Code, Request, Response, Status};

use super::{Context, RefusalLog};
use crate::peers::REMOVED_TRAILER;
use crate::raft::{PeerCheck, RaftHandle};

/// The service over its context.
#[derive(Debug, Clone)]
pub struct ControllersService(Context);

impl ControllersService {
    pub fn new(context: Context) -> Self {
        Self(context)
    }

    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> ControllersServer<ControllersService> {
        ControllersServer::new(self).max_decoding_message_size(ENROLL_MESSAGE_BYTES_MAX)
    }
}

/// The number in the certificate of a controller that was not removed.
fn controller(raft: &RaftHandle, extensions: &Extensions) -> Result<u64, Status> {
    let peer = extensions
        .get::<PeerIdentity>()
        .ok_or_else(|| Status::unauthenticated("the peer of this connection is unknown"))?;
    let name = peer.require_controller()?.as_str();
    let id = name.strip_prefix("controller-").and_then(|id| id.parse::<u64>().ok());
    let id = id.filter(|id| Controller::name(*id) == name).ok_or_else(|| {
        Status::permission_denied(format!("{name} is not the name of a controller"))
    })?;
    // Until consensus has let it go it is needed, for its own removal too.
    if raft.read(|fsm| fsm.roster().was_removed(id)) && !raft.members().contains(id) {
        let mut status =
            Status::permission_denied(format!("controller {id} was removed from this fleet"));
        status.metadata_mut().insert(REMOVED_TRAILER, "1".parse().map_err(|_| internal())?);
        return Err(status);
    }
    Ok(id)
}

fn internal() -> Status {
    Status::internal("a constant is not a header value")
}

/// [`controller`], and on the roster: one whose word counts for others too. A refusal is on record.
pub(super) fn member(
    raft: &RaftHandle,
    refusals: &RefusalLog,
    extensions: &Extensions,
) -> Result<u64, Status> {
    let on_roster = |id: u64| {
        if raft.read(|fsm| fsm.roster().members().contains_key(&id)) {
            return Ok(id);
        }
        Err(Status::permission_denied(format!("controller {id} is not on the roster")))
    };
    let found = controller(raft, extensions).and_then(on_roster);
    found.inspect_err(|status| note(refusals, extensions, status))
}

fn note(refusals: &RefusalLog, extensions: &Extensions, status: &Status) {
    if status.code() == Code::PermissionDenied {
        let peer = extensions.get::<PeerIdentity>().map(PeerIdentity::principal);
        let peer = peer.unwrap_or_else(|| "unknown".to_owned());
        refusals.note(&peer, "speak_as_controller", "denied");
    }
}

/// Lets only controller `from` speak for controller `from`, and nobody who was removed.
pub fn peer_check(raft: RaftHandle, refusals: RefusalLog) -> PeerCheck {
    std::sync::Arc::new(move |extensions, from| {
        let speaks_for = |id: u64| {
            if id == from {
                return Ok(());
            }
            Err(Status::permission_denied(format!(
                "controller {id} cannot speak for controller {from}"
            )))
        };
        let found = controller(&raft, extensions).and_then(speaks_for);
        found.inspect_err(|status| note(&refusals, extensions, status))
    })
}

#[tonic::async_trait]
impl Controllers for ControllersService {
    async fn get_authority(
        &self,
        request: Request<v1::GetAuthorityRequest>,
    ) -> Result<Response<v1::Authority>, Status> {
        let extensions = request.extensions();
        let id = controller(&self.0.raft, extensions)
            .inspect_err(|status| note(&self.0.refusals, extensions, status))?;
        if !self.0.raft.read(|fsm| fsm.roster().members().contains_key(&id)) {
            let problem = format!("controller {id} is not known here yet; try again");
            return Err(Status::unavailable(problem));
        }
        tracing::info!(controller = id, "a controller fetches the authority's keys");
        Ok(Response::new(v1::Authority { keys: self.0.keyring.to_wire() }))
    }

    async fn get_figures(
        &self,
        request: Request<v1::GetFiguresRequest>,
    ) -> Result<Response<v1::ControllerFigures>, Status> {
        let extensions = request.extensions();
        let id = controller(&self.0.raft, extensions)
            .inspect_err(|status| note(&self.0.refusals, extensions, status))?;
        let (theirs, own) = (request.get_ref().incarnation, self.0.raft.incarnation());
        // One that has just joined knows nothing yet: every number would be higher.
        if own > 0 && theirs > own {
            self.0.superseded.tell(theirs, format!("controller {id}"));
        }
        Ok(Response::new(self.0.figures().own()))
    }

    async fn begin_session(
        &self,
        request: Request<v1::BeginSessionRequest>,
    ) -> Result<Response<v1::BeginSessionResponse>, Status> {
        member(&self.0.raft, &self.0.refusals, request.extensions())?;
        let v1::BeginSessionRequest { code_sha256, session } = request.into_inner();
        Ok(Response::new(self.0.begin_session_here(code_sha256, session).await?))
    }
}
