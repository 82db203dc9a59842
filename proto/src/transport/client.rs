//! The client's side: channels to controllers over mutual TLS, several addresses, deadlines.
//!
//! The agent's link, the CLI and controllers among themselves use [`Dialer`]; a joining node uses
//! [`dial_pinned`]. The server is known by its certificate's role and cluster, never by its host
//! name.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::credentials::{CredentialError, SharedCredentials, pinned_client_config};
use super::identity::{CertificateFault, PeerCertificate};
use super::limits::{
    ADDRESSES_MAX, CONNECT_ALL_TIMEOUT, CONNECT_TIMEOUT, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL,
    KEEPALIVE_TIMEOUT,
};
use super::token::SpkiPin;
use super::verify::fault_of;

/// Name put into the TLS client's configuration. It is neither sent (SNI is off) nor checked.
const SERVER_NAME: &str = "controller.fleet.internal";
/// Longest address accepted, in bytes.
const ADDRESS_BYTES_MAX: usize = 261;

/// A controller's address: `host:port`, `[::1]:port`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(String);

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: expected HOST:PORT, like fleet.lab:7443 or [fd00::1]:7443")]
pub struct AddressError {
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError { text: text.chars().take(ADDRESS_BYTES_MAX).collect() };
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port: u16 = port.parse().map_err(|_| bad())?;
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let legal = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            }
        };
        if port == 0 || !legal || text.len() > ADDRESS_BYTES_MAX {
            return Err(bad());
        }
        Ok(Self(text.to_owned()))
    }
}

impl Address {
    /// The name or number before the port; one of IPv6 in its brackets.
    pub fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a controller could not be reached. Each names the address.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    #[error("no controller address is known")]
    NoAddress,
    #[error("cannot resolve {address}: {reason}")]
    Resolve { address: Address, reason: String },
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: Address, reason: String },
    #[error("no answer from {address} within {after:?}")]
    Timeout { address: Address, after: Duration },
    #[error("{address} does not speak TLS: is that the controller's port?")]
    NotTls { address: Address },
    #[error("{address} refused this certificate ({alert:?})")]
    Refused { address: Address, alert: AlertDescription },
    #[error("{address} is not this fleet's controller: {fault}")]
    Certificate {
        address: Address,
        #[source]
        fault: CertificateFault,
    },
    #[error("TLS with {address} failed: {reason}")]
    Tls { address: Address, reason: String },
}

impl DialError {
    fn of_io(address: &Address, error: &io::Error) -> Self {
        let address = address.clone();
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(tls @ rustls::Error::InvalidCertificate(_)) => {
                DialError::Certificate { address, fault: fault_of(tls.clone()) }
            }
            Some(rustls::Error::InvalidMessage(_)) => DialError::NotTls { address },
            Some(rustls::Error::AlertReceived(alert)) => {
                DialError::Refused { address, alert: *alert }
            }
            Some(tls) => DialError::Tls { address, reason: tls.to_string() },
            None => DialError::Tls { address, reason: error.to_string() },
        }
    }
}

/// Makes a channel to an address by other means than TLS over TCP.
#[derive(Clone)]
struct OtherWay(Arc<dyn Fn(&Address) -> Channel + Send + Sync>);

impl fmt::Debug for OtherWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherWay")
    }
}

/// Makes channels to the controllers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dialer {
    /// Shared by all clones, and replaced as a whole.
    addresses: Arc<ArcSwap<Vec<Address>>>,
    credentials: SharedCredentials,
    /// This machine's address to connect from; nothing: as the kernel chooses.
    from: Option<IpAddr>,
    other_way: Option<OtherWay>,
    /// The address that worked last is tried first.
    preferred: Arc<AtomicUsize>,
    last_error: Arc<Mutex<Option<DialError>>>,
}

impl Dialer {
    /// At most [`ADDRESSES_MAX`] addresses are used, in this order.
    pub fn new(mut addresses: Vec<Address>, credentials: SharedCredentials) -> Self {
        addresses.truncate(ADDRESSES_MAX);
        Self {
            addresses: Arc::new(ArcSwap::from_pointee(addresses)),
            credentials,
            from: None,
            other_way: None,
            preferred: Arc::default(),
            last_error: Arc::default(),
        }
    }

    /// The same with channels that `make` makes: a simulated network. Nothing is sent by this machine's.
    pub fn through(
        addresses: Vec<Address>,
        credentials: SharedCredentials,
        make: impl Fn(&Address) -> Channel + Send + Sync + 'static,
    ) -> Self {
        let other_way = Some(OtherWay(Arc::new(make)));
        Self { other_way, ..Self::new(addresses, credentials) }
    }

    /// The same, connecting from this one of the machine's addresses: many that pretend to be machines.
    pub fn from(self, address: IpAddr) -> Self {
        Self { from: Some(address), ..self }
    }

    pub fn addresses(&self) -> Arc<Vec<Address>> {
        self.addresses.load_full()
    }

    /// From now on these are used, by all clones and siblings; existing connections stay.
    pub fn set_addresses(&self, mut addresses: Vec<Address>) {
        addresses.truncate(ADDRESSES_MAX);
        self.addresses.store(Arc::new(addresses));
    }

    /// One that goes to the same places, with its own record of what went wrong.
    pub fn sibling(&self) -> Self {
        let (addresses, other_way) = (self.addresses.clone(), self.other_way.clone());
        let new = Self::new(Vec::new(), self.credentials.clone());
        Self { addresses, other_way, from: self.from, ..new }
    }

    pub fn credentials(&self) -> &SharedCredentials {
        &self.credentials
    }

    /// One channel over all addresses: connects at the first call, to the first address that
    /// answers; when the connection is lost, the next call connects again.
    pub fn channel(&self) -> Channel {
        if let (Some(OtherWay(make)), Some(first)) = (&self.other_way, self.addresses().first()) {
            return make(first);
        }
        let dialer = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let dialer = dialer.clone();
            async move { dialer.connect().await.map(TokioIo::new) }
        });
        endpoint().connect_timeout(CONNECT_ALL_TIMEOUT).connect_with_connector_lazy(connector)
    }

    /// One channel per address, in order, for a caller that looks for the leader.
    pub fn channels(&self) -> Vec<(Address, Channel)> {
        let one = |address: &Address| {
            if let Some(OtherWay(make)) = &self.other_way {
                return (address.clone(), make(address));
            }
            let mut dialer = Self::new(vec![address.clone()], self.credentials.clone());
            (dialer.last_error, dialer.from) = (self.last_error.clone(), self.from);
            (address.clone(), dialer.channel())
        };
        self.addresses().iter().map(one).collect()
    }

    /// Why the last attempt to connect failed, or why the controller refused our certificate after
    /// it; `None` after one that succeeded. tonic hides it behind "transport error".
    pub fn last_error(&self) -> Option<DialError> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects to the first address that answers.
    async fn connect(&self) -> Result<WatchedStream, DialError> {
        let result = self.connect_any().await;
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        *last = result.as_ref().err().cloned();
        let (address, stream) = result?;
        Ok(WatchedStream { stream, address, last_error: self.last_error.clone() })
    }

    async fn connect_any(&self) -> Result<(Address, TlsStream<TcpStream>), DialError> {
        let addresses = self.addresses();
        let count = addresses.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = DialError::NoAddress;
        for index in (0..count).map(|offset| (first + offset) % count) {
            let address = &addresses[index];
            match connect_tls(address, self.credentials.client_config(), self.from).await {
                Ok(stream) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok((address.clone(), stream));
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "cannot reach this controller");
                    failure = error;
                }
            }
        }
        Err(failure)
    }
}

/// A connection that remembers a TLS alert. In TLS 1.3 the server looks at the client's certificate
/// after the client's handshake is done, so a refusal comes with the first bytes read; HTTP/2 would
/// reduce it to a text.
#[derive(Debug)]
struct WatchedStream {
    stream: TlsStream<TcpStream>,
    address: Address,
    last_error: Arc<Mutex<Option<DialError>>>,
}

impl WatchedStream {
    fn watch<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled
            && let refused @ DialError::Refused { .. } = DialError::of_io(&self.address, error)
        {
            let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(refused);
        }
        polled
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(polled)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection to a controller that proved to own the pinned CA key.
#[derive(Debug)]
pub struct PinnedConnection {
    pub channel: Channel,
    /// What the controller's certificate says.
    pub controller: PeerCertificate,
}

/// Connects to a controller of which only the CA's pin is known. Nothing but the TLS handshake has
/// been sent when this returns an error.
pub async fn dial_pinned(
    address: &Address,
    pin: SpkiPin,
) -> Result<PinnedConnection, PinnedDialError> {
    let config = Arc::new(pinned_client_config(pin)?);
    let stream = connect_tls(address, config, None).await?;
    let chain: &[CertificateDer<'_>] = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let controller = chain
        .first()
        .ok_or(CertificateFault::NoIdentity)
        .and_then(|leaf| PeerCertificate::parse(leaf))
        .map_err(|fault| DialError::Certificate { address: address.clone(), fault })?;
    // The verified connection itself becomes the channel: a second dial could end elsewhere.
    let mut once = Some(stream);
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::other("the connection was lost")) }
    });
    let channel =
        endpoint().connect_timeout(CONNECT_TIMEOUT).connect_with_connector_lazy(connector);
    Ok(PinnedConnection { channel, controller })
}

/// Why [`dial_pinned`] failed, for the person who joins.
#[derive(Debug, thiserror::Error)]
pub enum PinnedDialError {
    #[error(
        "the controller at {address} does not own the key pinned in the token. Either the token is \
         from another fleet, or was made before this one exchanged its authority (make a new one), \
         or somebody sits between this machine and the controller (man in the middle). The secret \
         was not sent. ({detail})"
    )]
    WrongPin { address: Address, detail: CertificateFault },
    #[error(
        "the certificate of {address} is not valid at the time this machine's clock shows \
         ({detail}). Set the clock (NTP) and try again; the secret was not sent"
    )]
    Clock { address: Address, detail: CertificateFault },
    #[error("cannot reach a controller: {0}; nothing was sent")]
    Unreachable(DialError),
    #[error(transparent)]
    Local(#[from] CredentialError),
}

impl From<DialError> for PinnedDialError {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Certificate {
                address,
                fault:
                    detail @ (CertificateFault::Expired { .. } | CertificateFault::NotYetValid { .. }),
            } => PinnedDialError::Clock { address, detail },
            DialError::Certificate { address, fault: detail } => {
                PinnedDialError::WrongPin { address, detail }
            }
            unreached => PinnedDialError::Unreachable(unreached),
        }
    }
}

fn endpoint() -> Endpoint {
    // The address is a formality: the connectors know where to go.
    Endpoint::from_static("http://controller.fleet.internal")
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
}

async fn connect_tls(
    address: &Address,
    config: Arc<ClientConfig>,
    from: Option<IpAddr>,
) -> Result<TlsStream<TcpStream>, DialError> {
    let connecting = async {
        let stream = connect_tcp(address, from).await?;
        let name = ServerName::try_from(SERVER_NAME)
            .map_err(|e| DialError::Tls { address: address.clone(), reason: e.to_string() })?;
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|error| DialError::of_io(address, &error))
    };
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(result) => result,
        Err(_) => Err(DialError::Timeout { address: address.clone(), after: CONNECT_TIMEOUT }),
    }
}

async fn connect_tcp(address: &Address, from: Option<IpAddr>) -> Result<TcpStream, DialError> {
    let resolved = tokio::net::lookup_host(address.0.as_str()).await.map_err(|error| {
        DialError::Resolve { address: address.clone(), reason: error.to_string() }
    })?;
    let mut reason = "the name has no address".to_owned();
    for candidate in resolved.take(ADDRESSES_MAX) {
        match connect_from(from, candidate).await {
            Ok(stream) => {
                // Latency of small messages; a failure costs only that.
                drop(stream.set_nodelay(true));
                return Ok(stream);
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(DialError::Connect { address: address.clone(), reason })
}

async fn connect_from(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let Some(from) = from else { return TcpStream::connect(to).await };
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}
