//! Asking the fleet in the name of a session: here, and where another controller leads, there.

use fleet_proto::convert::freshness::allow_stale;
use fleet_proto::convert::rejection::leader_named;
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::Web;
use crate::callers::{SESSION_METADATA, Session};
use crate::random;

/// How long another controller may take.
const LEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);
/// Randomness in a request's id where the page gave none.
const ID_BYTES: usize = 16;

/// Asks by a method of the users' service; the one that leads answers. Gives the message of the answer.
macro_rules! ask {
    ($web:expr, $session:expr, $message:expr, $method:ident) => {
        $crate::web::ask::ask_whole!($web, $session, $message, $method)
            .map(tonic::Response::into_inner)
    };
}

/// The same, with the headers of the answer.
macro_rules! ask_whole {
    ($web:expr, $session:expr, $message:expr, $method:ident) => {{
        use fleet_proto::v1::fleet_server::Fleet as _;
        let (web, session, message) = (&*$web, $session, $message);
        match web.fleet.$method($crate::web::ask::here(session, message.clone())).await {
            Err(status) => match web.leader(&status) {
                Some(mut leader) => match $crate::web::ask::there(session, message) {
                    Ok(request) => leader.$method(request).await,
                    Err(status) => Err(status),
                },
                None => Err(status),
            },
            done => done,
        }
    }};
}

/// Looks by a method of the users' service: where nobody leads, at what this controller knows, which may be old.
macro_rules! look {
    ($web:expr, $session:expr, $message:expr, $method:ident) => {{
        use fleet_proto::v1::fleet_server::Fleet as _;
        let (web, session, message) = (&*$web, $session, $message);
        match $crate::web::ask::ask_whole!(web, session, message.clone(), $method) {
            Err(status) if $crate::web::ask::has_no_leader(&status) => {
                web.fleet.$method($crate::web::ask::here_and_old(session, message)).await
            }
            answered => answered,
        }
    }};
}

pub(super) use {ask, ask_whole, look};

impl Web {
    /// The controller that a status of one that does not lead names.
    pub(super) fn leader(&self, status: &Status) -> Option<FleetClient<Channel>> {
        let address = leader_named(status)?;
        let members = self.context.raft.members();
        let known = members.voters.iter().find(|(_, known)| known.as_str() == address);
        self.context.peers.fleet(*known?.0, address).ok()
    }
}

/// Whether nobody leads, or the one that does cannot be reached.
pub(super) fn has_no_leader(status: &Status) -> bool {
    use Code::{Cancelled, DeadlineExceeded, Unavailable, Unknown};
    matches!(status.code(), Unavailable | DeadlineExceeded | Unknown | Cancelled)
}

/// A request of our own page.
pub(super) fn here<T>(session: &Session, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(session.clone());
    request
}

pub(super) fn here_and_old<T>(session: &Session, message: T) -> Request<T> {
    let mut request = here(session, message);
    allow_stale(&mut request);
    request
}

/// The same for another controller, which looks the session up itself.
pub(super) fn there<T>(session: &Session, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    let id = session.0.parse().map_err(|_| Status::internal("a session's id is no header"))?;
    request.metadata_mut().insert(SESSION_METADATA, id);
    request.set_timeout(LEADER_TIMEOUT);
    Ok(request)
}

impl Web {
    /// What makes a change happen once, however often it is sent. `made_at_ms` is the fleet's time as the page had it.
    pub(super) fn meta(&self, id: Option<String>, made_at_ms: Option<u64>) -> v1::RequestMeta {
        let drawn = || random::hex::<ID_BYTES>().unwrap_or_default();
        let request_id = id.unwrap_or_else(drawn);
        let made_at_unix_ms = made_at_ms.unwrap_or_else(|| self.context.clock.now().0);
        v1::RequestMeta { request_id, made_at_unix_ms }
    }
}
