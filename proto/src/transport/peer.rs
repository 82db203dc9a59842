//! Who is at the other end of a connection, and the gate that lets nobody in without a certificate.
//!
//! The listeners attach a [`PeerIdentity`] to each connection; tonic puts it into the extensions of
//! each request. [`Gate`] is the outermost layer of every server and denies by default.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use fleet_core::name::{NodeName, UserName};
use futures::future::{Either, Ready, ready};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Status};

use super::denial::Denials;
use super::identity::{CertificateFault, PeerCertificate, Role};

/// The call a peer without a certificate may make.
pub const JOIN_PATH: &str = "/fleet.v1.Enrollment/Join";
/// The call a new controller makes without a certificate.
pub const JOIN_CONTROLLER_PATH: &str = "/fleet.v1.Enrollment/JoinController";
/// The call a node with an expired certificate may make.
pub const RENEW_PATH: &str = "/fleet.v1.Enrollment/Renew";

/// A peer that showed a certificate of this fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertifiedPeer {
    pub address: SocketAddr,
    pub certificate: PeerCertificate,
}

/// Who calls, as proven by TLS or by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerIdentity {
    /// TLS without a certificate: may join, nothing else.
    Anonymous { address: SocketAddr },
    /// TLS with a valid certificate.
    Certified(Arc<CertifiedPeer>),
    /// TLS with a node's expired certificate: may renew it, nothing else.
    Expired(Arc<CertifiedPeer>),
    /// A Unix socket; the kernel vouches for the ids. The pid is for logs only: it can be reused.
    Local { uid: u32, gid: u32, pid: Option<i32> },
}

impl PeerIdentity {
    /// The peer of a request. A request without one did not come through our listeners.
    pub fn of<T>(request: &Request<T>) -> Result<PeerIdentity, Status> {
        let found = request.extensions().get::<PeerIdentity>().cloned();
        found.ok_or_else(|| Status::unauthenticated("the peer of this connection is unknown"))
    }

    /// The role in a valid certificate.
    pub fn role(&self) -> Option<&Role> {
        match self {
            PeerIdentity::Certified(peer) => Some(&peer.certificate.identity.role),
            PeerIdentity::Anonymous { .. }
            | PeerIdentity::Expired(_)
            | PeerIdentity::Local { .. } => None,
        }
    }

    /// The serial of the certificate shown, valid or expired.
    pub fn serial(&self) -> Option<&str> {
        match self {
            PeerIdentity::Certified(peer) | PeerIdentity::Expired(peer) => {
                Some(&peer.certificate.serial)
            }
            PeerIdentity::Anonymous { .. } | PeerIdentity::Local { .. } => None,
        }
    }

    /// The certificate shown, valid or expired.
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        match self {
            PeerIdentity::Certified(peer) | PeerIdentity::Expired(peer) => Some(&peer.certificate),
            PeerIdentity::Anonymous { .. } | PeerIdentity::Local { .. } => None,
        }
    }

    /// `user:ada`, `node:titan01`, `uid:1000`, `anonymous`: what the audit log calls this peer.
    pub fn principal(&self) -> String {
        match self {
            PeerIdentity::Anonymous { .. } => "anonymous".to_owned(),
            PeerIdentity::Local { uid, .. } => format!("uid:{uid}"),
            PeerIdentity::Certified(peer) | PeerIdentity::Expired(peer) => {
                let role = &peer.certificate.identity.role;
                format!("{}:{}", role.kind(), role.name())
            }
        }
    }

    /// The node whose agent this is, or a refusal.
    pub fn require_node(&self) -> Result<&NodeName, Status> {
        match self.role() {
            Some(Role::Node(name)) => Ok(name),
            _ => Err(self.denied("an agent's certificate")),
        }
    }

    /// The controller that this is, or a refusal.
    pub fn require_controller(&self) -> Result<&NodeName, Status> {
        match self.role() {
            Some(Role::Controller(name)) => Ok(name),
            _ => Err(self.denied("a controller's certificate")),
        }
    }

    /// The user that this certificate belongs to, or a refusal. A local peer is not answered here:
    /// its uid must be resolved to a name by the caller.
    pub fn require_user(&self) -> Result<&UserName, Status> {
        match self.role() {
            Some(Role::User(name)) => Ok(name),
            _ => Err(self.denied("a user's certificate")),
        }
    }

    fn denied(&self, needs: &str) -> Status {
        Status::permission_denied(format!("this needs {needs}; you are {self}"))
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerIdentity::Anonymous { address } => {
                write!(f, "a peer without a certificate at {address}")
            }
            PeerIdentity::Certified(peer) => {
                write!(f, "{} at {}", peer.certificate.identity, peer.address)
            }
            PeerIdentity::Expired(peer) => {
                let identity = &peer.certificate.identity;
                write!(f, "{identity} at {} with an expired certificate", peer.address)
            }
            PeerIdentity::Local { uid, .. } => write!(f, "uid {uid} on this machine"),
        }
    }
}

/// Certificates that are refused although they are valid: serials, and whole identities by URI.
/// Shared and replaced as a whole; checked at the handshake and again at each request, and each
/// open connection hears of a new list.
#[derive(Debug, Clone)]
pub struct Revocations(Arc<watch::Sender<Arc<BTreeSet<String>>>>);

impl Default for Revocations {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl Revocations {
    /// Replaces the list: hexadecimal serials and identity URIs.
    pub fn replace(&self, revoked: BTreeSet<String>) {
        self.0.send_replace(Arc::new(revoked));
    }

    /// The list, and every new one from now on.
    pub(super) fn changes(&self) -> WatchStream<Arc<BTreeSet<String>>> {
        WatchStream::new(self.0.subscribe())
    }

    /// Refuses a revoked certificate.
    pub fn check(&self, peer: &PeerCertificate) -> Result<(), CertificateFault> {
        let revoked = self.0.borrow().clone();
        if revoked.is_empty()
            || !(revoked.contains(&peer.serial) || revoked.contains(&peer.identity.to_string()))
        {
            return Ok(());
        }
        Err(CertificateFault::Revoked)
    }
}

/// A tower layer, outermost on each server: peers without a valid certificate reach only enrolment.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    revocations: Revocations,
    denials: Denials,
}

/// Why the gate stays shut: for the peer, and in one word for the audit log.
struct Shut {
    said: String,
    code: &'static str,
}

impl Gate {
    /// `denials` hears of each request that is turned away.
    pub fn new(revocations: Revocations, denials: Denials) -> Self {
        Self { revocations, denials }
    }

    fn admit(&self, peer: Option<&PeerIdentity>, path: &str) -> Result<(), Status> {
        self.check(peer, path).map_err(|shut| {
            self.denials.of_call(peer, path, shut.code);
            Status::unauthenticated(shut.said)
        })
    }

    fn check(&self, peer: Option<&PeerIdentity>, path: &str) -> Result<(), Shut> {
        let shut = |code, said: &str| Err(Shut { said: said.to_owned(), code });
        match peer {
            None => shut("peer_unknown", "the peer of this connection is unknown"),
            Some(PeerIdentity::Local { .. }) => Ok(()),
            Some(PeerIdentity::Anonymous { .. })
                if path == JOIN_PATH || path == JOIN_CONTROLLER_PATH =>
            {
                Ok(())
            }
            Some(PeerIdentity::Anonymous { .. }) => shut(
                "no_certificate",
                "this needs a certificate of this fleet; without one a peer can only join",
            ),
            Some(PeerIdentity::Expired(peer)) if path == RENEW_PATH => {
                self.revocations.check(&peer.certificate).map_err(refused)
            }
            Some(PeerIdentity::Expired(_)) => {
                shut("certificate_expired", "your certificate has expired; it can only be renewed")
            }
            Some(PeerIdentity::Certified(peer)) => {
                self.revocations.check(&peer.certificate).map_err(refused)
            }
        }
    }
}

fn refused(fault: CertificateFault) -> Shut {
    Shut { said: fault.to_string(), code: fault.code() }
}

impl<S> tower::Layer<S> for Gate {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { gate: self.clone(), inner }
    }
}

/// The service [`Gate`] makes.
#[derive(Debug, Clone)]
pub struct GateService<S> {
    gate: Gate,
    inner: S,
}

impl<S, B, R> tower::Service<http::Request<B>> for GateService<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<R>>,
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let peer = request.extensions().get::<PeerIdentity>();
        match self.gate.admit(peer, request.uri().path()) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}
