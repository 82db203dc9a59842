//! The controller's TCP listener: TLS in our own accept loop, so that certificates reload and a slow
//! or hostile peer costs nobody else anything.
//!
//! [`TlsListener::start`] gives a stream of connections for tonic's `serve_with_incoming`;
//! [`server_builder`] gives tonic's server with the limits of [`super::limits`] and the
//! [`Gate`] in front. Each accepted connection is shaken hands with in its own
//! task, under a deadline.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::transport::server::Connected;

use super::credentials::SharedCredentials;
use super::denial::Denials;
use super::handshakes::{Handshake, Handshakes, Source};
use super::identity::{CertificateFault, PeerCertificate, Role};
use super::limits::{
    ACCEPT_ERROR_PAUSE, ACCEPT_QUEUE, ANONYMOUS_CONNECTIONS_MAX, ANONYMOUS_LIFETIME,
    ANONYMOUS_PER_SOURCE_MAX, CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX, HANDSHAKE_TIMEOUT,
    HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE_MAX, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL,
    KEEPALIVE_TIMEOUT, PENDING_RESET_STREAMS_MAX, REFUSED_BYTES_MAX, REFUSED_LINGER,
    REVOKED_LINGER, STREAMS_PER_CONNECTION_MAX,
};
use super::peer::{CertifiedPeer, Gate, PeerIdentity};
use super::refusals::Refusals;
use super::slots::{Slot, Slots};
use super::verify::fault_of;

/// A tonic server with every limit set and the gate in front: add services, then
/// `serve_with_incoming_shutdown` with a listener of this module's.
pub fn server_builder(
    gate: Gate,
) -> tonic::transport::Server<tower::layer::util::Stack<Gate, tower::layer::util::Identity>> {
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESET_STREAMS_MAX))
        .layer(gate)
}

/// What a listener allows. The defaults are the limits; tests make them smaller.
#[derive(Debug, Clone)]
pub struct ListenerLimits {
    pub connections: usize,
    pub connections_per_peer: usize,
    pub anonymous_connections: usize,
    pub anonymous_per_source: usize,
    pub anonymous_lifetime: Duration,
    pub handshakes: usize,
    pub handshakes_per_source: usize,
    pub handshake_timeout: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS_MAX,
            connections_per_peer: CONNECTIONS_PER_PEER_MAX,
            anonymous_connections: ANONYMOUS_CONNECTIONS_MAX,
            anonymous_per_source: ANONYMOUS_PER_SOURCE_MAX,
            anonymous_lifetime: ANONYMOUS_LIFETIME,
            handshakes: HANDSHAKES_MAX,
            handshakes_per_source: HANDSHAKES_PER_SOURCE_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
        }
    }
}

/// Whose connections are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PeerKey {
    /// Without a certificate.
    Anonymous(Source),
    /// By identity URI, expired or not.
    Identity(String),
    Uid(u32),
}

/// The TLS listener. Dropping it ends the accept loop and unfinished handshakes; connections handed
/// out stay.
#[derive(Debug)]
pub struct TlsListener {
    address: SocketAddr,
    refusals: Refusals,
    accepted: mpsc::Receiver<PeerStream>,
    _tasks: JoinSet<()>,
}

impl TlsListener {
    /// Serves TLS on a bound socket; `denials` hears of each certificate that is refused. Must be
    /// called on a runtime.
    pub fn start(
        socket: std::net::TcpListener,
        credentials: SharedCredentials,
        denials: Denials,
    ) -> io::Result<TlsListener> {
        Self::start_with(socket, credentials, denials, ListenerLimits::default())
    }

    /// The same with other limits.
    pub fn start_with(
        socket: std::net::TcpListener,
        credentials: SharedCredentials,
        denials: Denials,
        limits: ListenerLimits,
    ) -> io::Result<TlsListener> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let socket = TcpListener::from_std(socket)?;
        let (accepted_tx, accepted) = mpsc::channel(ACCEPT_QUEUE);
        let refusals = Refusals::default();
        let accept = Arc::new(Accept {
            credentials,
            handshakes: Handshakes::new(limits.handshakes_per_source, limits.handshakes),
            peers: Slots::new(limits.connections_per_peer, limits.connections),
            anonymous: Slots::new(limits.anonymous_per_source, limits.anonymous_connections),
            limits,
            refusals: refusals.clone(),
            denials,
            accepted: accepted_tx,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept.run(socket));
        Ok(Self { address, refusals, accepted, _tasks: tasks })
    }

    /// Where it listens, port resolved.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Refused connections by kind.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }
}

impl Stream for TlsListener {
    type Item = Result<PeerStream, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.accepted.poll_recv(context).map(|stream| stream.map(Ok))
    }
}

/// The state of the accept loop.
struct Accept {
    credentials: SharedCredentials,
    limits: ListenerLimits,
    handshakes: Arc<Handshakes>,
    peers: Arc<Slots<PeerKey>>,
    anonymous: Arc<Slots<PeerKey>>,
    refusals: Refusals,
    denials: Denials,
    accepted: mpsc::Sender<PeerStream>,
}

impl Accept {
    async fn run(self: Arc<Self>, socket: TcpListener) {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = socket.accept() => match accepted {
                    Ok((stream, address)) => {
                        let place = self.handshakes.begin(address.ip().into());
                        tasks.spawn(self.clone().take_up(stream, address, place));
                    }
                    Err(error) => {
                        self.refusals.note("accept_failed", &"this machine", &error);
                        tokio::time::sleep(ACCEPT_ERROR_PAUSE).await;
                    }
                },
                Some(finished) = tasks.join_next() => {
                    if let Err(error) = finished {
                        tracing::error!(%error, "handshake task ended abnormally");
                    }
                }
            }
        }
    }

    /// From TCP accept until the connection is handed out or refused.
    async fn take_up(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        mut place: Handshake,
    ) {
        // Before the configuration is read: a change in between is not missed.
        let generations = self.credentials.changes();
        let shaken = tokio::select! {
            shaken = self.shake_hands(stream, address) => shaken,
            () = place.gives_way() => {
                let reason = "too many unfinished TLS handshakes";
                return self.refusals.note("too_many_handshakes", &address, &reason);
            }
        };
        match shaken {
            Shaken::Done(stream) => {
                drop(place);
                self.hand_out(*stream, address, generations).await;
            }
            // It has its place until it is closed: refused ones are counted too.
            Shaken::Refused(stream) => tokio::select! {
                () = close_heard(stream) => {}
                () = place.gives_way() => {}
            },
            Shaken::Late => {}
        }
    }

    async fn shake_hands(&self, stream: TcpStream, address: SocketAddr) -> Shaken {
        // Latency of small messages; a failure costs only that.
        drop(stream.set_nodelay(true));
        let acceptor = TlsAcceptor::from(self.credentials.server_config());
        let limit = self.limits.handshake_timeout;
        match timeout(limit, acceptor.accept(stream).into_fallible()).await {
            Ok(Ok(stream)) => Shaken::Done(Box::new(stream)),
            Ok(Err((error, stream))) => {
                match refused_for(&error) {
                    Some((kind, reason)) => self.refusals.note(kind, &address, &reason),
                    None => self.refusals.hung_up(&address, &error),
                }
                if let Some(fault) = certificate_fault(&error) {
                    self.denials.of_certificate(&fault);
                }
                Shaken::Refused(stream)
            }
            Err(_) => {
                let reason = format!("no TLS handshake within {limit:?}");
                self.refusals.note("handshake_timeout", &address, &reason);
                Shaken::Late
            }
        }
    }

    /// The handshake is done: the connection goes to the server, unless its peer has too many.
    async fn hand_out(
        &self,
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        generations: watch::Receiver<u64>,
    ) {
        let (peer, lifetime) = match identify(&stream, address) {
            Ok(found) => found,
            Err(fault) => {
                self.denials.of_certificate(&fault);
                return self.refusals.note("certificate", &address, &fault);
            }
        };
        let lifetime = lifetime.unwrap_or(self.limits.anonymous_lifetime);
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let shown: Vec<_> = shown.iter().map(|one| one.clone().into_owned()).collect();
        let Some(slot) = self.place_of(&peer, address.ip().into()) else {
            return self.refusals.note("too_many_connections", &peer, &"too many connections");
        };
        let io = PeerIo::Tls(Box::new(stream));
        let watch = Watch::new(lifetime, &self.credentials, generations, shown);
        let stream = PeerStream::new(io, peer, Some(watch), slot);
        // The receiver is gone only when the listener was dropped.
        drop(timeout(self.limits.handshake_timeout, self.accepted.send(stream)).await);
    }

    /// A place for a connection of `peer`, which shows from where nodes and controllers come.
    fn place_of(&self, peer: &PeerIdentity, source: Source) -> Option<Slot<PeerKey>> {
        match peer {
            PeerIdentity::Certified(certified) | PeerIdentity::Expired(certified) => {
                let identity = &certified.certificate.identity;
                if matches!(identity.role, Role::Node(_) | Role::Controller(_)) {
                    self.handshakes.proved(source);
                }
                self.peers.take(PeerKey::Identity(identity.to_string()))
            }
            PeerIdentity::Anonymous { .. } | PeerIdentity::Local { .. } => {
                self.anonymous.take(PeerKey::Anonymous(source))
            }
        }
    }
}

/// What became of a handshake.
enum Shaken {
    Done(Box<TlsStream<TcpStream>>),
    /// The peer is still to hear why.
    Refused(TcpStream),
    Late,
}

/// Closes a refused connection so that the peer hears the TLS alert: closing with unread bytes would
/// reset the connection and could take the alert with it.
async fn close_heard(mut stream: TcpStream) {
    let lingering = async {
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        let mut read = 0;
        while read < REFUSED_BYTES_MAX {
            match stream.read(&mut rest).await? {
                0 => break,
                count => read += count,
            }
        }
        io::Result::Ok(())
    };
    // Whatever goes wrong here: the peer was refused before.
    drop(timeout(REFUSED_LINGER, lingering).await);
}

/// Who a finished handshake proved the peer to be, and how long the connection may live; `None`
/// means: as long as anonymous peers.
fn identify(
    stream: &TlsStream<TcpStream>,
    address: SocketAddr,
) -> Result<(PeerIdentity, Option<Duration>), CertificateFault> {
    let chain: &[CertificateDer<'_>] = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let Some(leaf) = chain.first() else {
        return Ok((PeerIdentity::Anonymous { address }, None));
    };
    // The chain, the cluster and the role were checked in the handshake.
    let certificate = PeerCertificate::parse(leaf)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let left = certificate.not_after.saturating_sub(now);
    let peer = Arc::new(CertifiedPeer { address, certificate });
    if left == 0 {
        return Ok((PeerIdentity::Expired(peer), None));
    }
    Ok((PeerIdentity::Certified(peer), Some(Duration::from_secs(left))))
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

/// What was wrong with the certificate, if that is what was wrong.
fn certificate_fault(error: &io::Error) -> Option<CertificateFault> {
    let tls = tls_error(error)?;
    matches!(tls, rustls::Error::InvalidCertificate(_)).then(|| fault_of(tls.clone()))
}

/// Kind and reason of a handshake that failed; `None` if the connection ended by itself.
fn refused_for(error: &io::Error) -> Option<(&'static str, String)> {
    if let Some(fault) = certificate_fault(error) {
        return Some(("certificate", fault.to_string()));
    }
    match tls_error(error)? {
        rustls::Error::InvalidMessage(_) => {
            Some(("not_tls", "the peer does not speak TLS".to_owned()))
        }
        tls => Some(("tls", tls.to_string())),
    }
}

/// The two kinds of connection.
#[derive(Debug)]
pub(super) enum PeerIo {
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// One connection with its peer. It ends by itself when the peer's certificate expires, and soon
/// after it is revoked or its authority is trusted no more, whatever streams are open on it.
#[derive(Debug)]
pub struct PeerStream {
    io: PeerIo,
    peer: PeerIdentity,
    watch: Option<Watch>,
    _slot: Slot<PeerKey>,
}

/// When a connection ends: with its certificate, or soon after that was revoked or its authority given up.
pub(super) struct Watch {
    ends: Pin<Box<Sleep>>,
    why: &'static str,
    lists: WatchStream<Arc<BTreeSet<String>>>,
    /// Each time the own credentials change, and with them who is trusted.
    generations: WatchStream<u64>,
    credentials: SharedCredentials,
    /// The chain that the peer has shown; empty for one without a certificate.
    shown: Vec<CertificateDer<'static>>,
    refused: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("refused", &self.refused).finish_non_exhaustive()
    }
}

impl Watch {
    fn new(
        lifetime: Duration,
        credentials: &SharedCredentials,
        generations: watch::Receiver<u64>,
        shown: Vec<CertificateDer<'static>>,
    ) -> Self {
        Self {
            ends: Box::pin(sleep(lifetime)),
            why: "the time of this connection's peer is over",
            lists: credentials.revocations().changes(),
            generations: WatchStream::from_changes(generations),
            credentials: credentials.clone(),
            shown,
            refused: false,
        }
    }

    /// Whether the chain that was shown would not be let in any more.
    fn is_trusted_no_more(&self) -> bool {
        let Some((leaf, rest)) = self.shown.split_first() else { return false };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let check = self.credentials.client_check();
        check.check(leaf, rest, UnixTime::since_unix_epoch(now)).is_err()
    }

    fn refuse(&mut self, why: &'static str) {
        if !std::mem::replace(&mut self.refused, true) {
            self.why = why;
            let at = self.ends.deadline().min(Instant::now() + REVOKED_LINGER);
            self.ends.as_mut().reset(at);
        }
    }

    /// Why the connection must end now, if it must; otherwise wakes the task again when it may.
    fn poll_end(&mut self, peer: &PeerIdentity, context: &mut Context<'_>) -> Option<&'static str> {
        while let Poll::Ready(Some(_)) = Pin::new(&mut self.lists).poll_next(context) {
            let revocations = self.credentials.revocations();
            let refused = |certificate| revocations.check(certificate).is_err();
            if peer.certificate().is_some_and(refused) {
                self.refuse("the certificate of this connection's peer was revoked");
            }
        }
        while let Poll::Ready(Some(_)) = Pin::new(&mut self.generations).poll_next(context) {
            if self.is_trusted_no_more() {
                self.refuse("the authority of this connection's peer is trusted no more");
            }
        }
        self.ends.as_mut().poll(context).is_ready().then_some(self.why)
    }
}

impl PeerStream {
    pub(super) fn new(
        io: PeerIo,
        peer: PeerIdentity,
        watch: Option<Watch>,
        slot: Slot<PeerKey>,
    ) -> Self {
        Self { io, peer, watch, _slot: slot }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = PeerIdentity;

    fn connect_info(&self) -> PeerIdentity {
        self.peer.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { peer, watch, .. } = &mut *self;
        if let Some(reason) = watch.as_mut().and_then(|watch| watch.poll_end(peer, context)) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)));
        }
        match &mut self.io {
            PeerIo::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            PeerIo::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            PeerIo::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            PeerIo::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            PeerIo::Tls(stream) => Pin::new(stream).poll_flush(context),
            PeerIo::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            PeerIo::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            PeerIo::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
