//! One GET or HEAD to a registry: HTTP/1.1 on a connection of its own, with TLS, redirects, and a limit on everything
//! that the other side decides. Called by [`super::remote`] and [`super::auth`].
//!
//! It must never speak plain HTTP to a host that the configuration does not name for it, nor hand credentials to another
//! host than the one they were made for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, RANGE, USER_AGENT};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::super::decode::as_u64;
use super::dial::dial;
use super::settings::Pace;
use crate::error::registry::RegistryError;

/// From the name to a finished TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// From the request to the head of its answer, and between two parts of a body.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Registries keep blobs elsewhere and send there; more often than this is a loop.
const REDIRECTS_MAX: usize = 5;
/// Most bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Where distributions keep the authorities they trust.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const AGENT: &str = concat!("fleet-agent/", env!("CARGO_PKG_VERSION"));

/// One host, and how it is spoken to.
#[derive(Clone)]
pub(super) struct Site {
    /// HOST or HOST:PORT.
    pub(super) host: String,
    /// Without TLS.
    pub(super) plain: bool,
    pace: Pace,
    tls: TlsConnector,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("host", &self.host).field("plain", &self.plain).finish()
    }
}

impl Site {
    /// Reads the trusted authorities: those of the system, and those of `ca_file`.
    pub(super) fn new(
        host: &str,
        plain: bool,
        ca_file: Option<&Path>,
        pace: Pace,
    ) -> Result<Self, RegistryError> {
        let mut roots = RootCertStore::empty();
        if let Some(system) = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists()) {
            add_roots(&mut roots, "trusted certificates", system)?;
        }
        if let Some(own) = ca_file {
            add_roots(&mut roots, "ca_file", own)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| RegistryError::Senseless {
                host: host.to_owned(),
                why: error.to_string(),
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { host: host.to_owned(), plain, pace, tls })
    }

    /// Another host with the same trust.
    pub(super) fn beside(&self, host: String, plain: bool) -> Self {
        Self { host, plain, ..self.clone() }
    }

    fn uri(&self, path: &str) -> Result<Uri, RegistryError> {
        let scheme = if self.plain { Scheme::HTTP } else { Scheme::HTTPS };
        let built =
            Uri::builder().scheme(scheme).authority(self.host.as_str()).path_and_query(path);
        built.build().map_err(|error| self.senseless(format!("{path:?}: {error}")))
    }

    fn senseless(&self, why: String) -> RegistryError {
        RegistryError::Senseless { host: self.host.clone(), why }
    }
}

fn add_roots(
    roots: &mut RootCertStore,
    what: &'static str,
    path: &Path,
) -> Result<(), RegistryError> {
    let failed = |why: String| RegistryError::Setup { what, path: path.display().to_string(), why };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| failed(e.to_string()))?;
    let certificates =
        certificates.collect::<Result<Vec<_>, _>>().map_err(|e| failed(e.to_string()))?;
    let (good, _) = roots.add_parsable_certificates(certificates);
    if good == 0 {
        return Err(failed("it holds no certificate".to_owned()));
    }
    Ok(())
}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    /// With the query.
    pub(super) path: &'a str,
    pub(super) accept: &'a str,
    /// Sent to the first host only.
    pub(super) authorization: Option<&'a str>,
    /// The first byte that is wanted.
    pub(super) from: u64,
}

/// An answer; its body comes by parts.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    host: String,
    /// Which of the places that were asked it is; theirs to set.
    pub(super) place: usize,
    body: Incoming,
    pace: Pace,
    /// How long the agent waited for parts, and their bytes, since the last check of the pace.
    waited: Duration,
    came: u64,
    /// The connection lives as long as its answer is read.
    _sender: SendRequest<Empty<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Answer {
    /// The next part; `None` at the end.
    pub(super) async fn part(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let began = Instant::now();
            let next = timeout(SILENCE_MAX, self.body.frame()).await;
            self.waited += began.elapsed();
            let next = next.map_err(|_| self.unreachable("it fell silent in the middle"))?;
            let Some(frame) = next else { return Ok(None) };
            let frame = frame.map_err(|error| self.unreachable(&error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.came += as_u64(data.len());
                self.keeps_pace()?;
                return Ok(Some(data));
            }
        }
    }

    /// Drops as good as silence hold a pull up for hours. Only what the other side takes counts, not our disk.
    fn keeps_pace(&mut self) -> Result<(), RegistryError> {
        if self.waited < self.pace.over {
            return Ok(());
        }
        let came = std::mem::take(&mut self.came);
        self.waited = Duration::ZERO;
        if came >= self.pace.bytes_min {
            return Ok(());
        }
        Err(RegistryError::Slow { host: self.host.clone(), kib: self.pace.kib_per_second() })
    }

    /// The whole body, if it is short.
    pub(super) async fn whole(&mut self, bytes_max: usize) -> Result<Vec<u8>, RegistryError> {
        let mut whole = Vec::new();
        while let Some(part) = self.part().await? {
            if whole.len() + part.len() > bytes_max {
                let why = format!("a document of more than {bytes_max} bytes");
                return Err(RegistryError::Senseless { host: self.host.clone(), why });
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole)
    }

    fn unreachable(&self, why: &str) -> RegistryError {
        RegistryError::Unreachable { host: self.host.clone(), why: why.to_owned() }
    }
}

/// Asks a site, and the sites that it redirects to.
pub(super) async fn ask(site: &Site, ask: &Ask<'_>) -> Result<Answer, RegistryError> {
    let mut uri = site.uri(ask.path)?;
    let mut authorization = ask.authorization;
    for _ in 0..=REDIRECTS_MAX {
        let answer = one(site, &uri, &Ask { authorization, ..ask.clone() }).await?;
        if !answer.status.is_redirection() {
            return Ok(answer);
        }
        let next = answer.headers.get(LOCATION).and_then(|to| to.to_str().ok());
        let next = next.and_then(|to| follow(&uri, to));
        let next = next.ok_or_else(|| site.senseless("it redirects to nowhere".to_owned()))?;
        if next.scheme() != Some(&Scheme::HTTPS) && !site.plain {
            return Err(site.senseless("it redirects to plain HTTP".to_owned()));
        }
        if next.authority() != uri.authority() || next.scheme() != uri.scheme() {
            authorization = None;
        }
        uri = next;
    }
    Err(site.senseless(format!("it redirects more than {REDIRECTS_MAX} times")))
}

/// A redirect's target, seen from where it was said.
fn follow(from: &Uri, to: &str) -> Option<Uri> {
    if !to.starts_with('/') || to.starts_with("//") {
        let uri: Uri = to.parse().ok()?;
        return (uri.scheme().is_some() && uri.authority().is_some()).then_some(uri);
    }
    let built = Uri::builder().scheme(from.scheme()?.clone()).authority(from.authority()?.clone());
    built.path_and_query(to).build().ok()
}

async fn one(site: &Site, uri: &Uri, ask: &Ask<'_>) -> Result<Answer, RegistryError> {
    let authority = uri.authority().ok_or_else(|| site.senseless("no host".to_owned()))?;
    let host = authority.as_str().to_owned();
    let failed = |why: String| RegistryError::Unreachable { host: host.clone(), why };
    let connected = timeout(CONNECT_MAX, connect(site, uri, authority)).await;
    let (mut sender, connection) = connected
        .map_err(|_| failed(format!("no connection within {} s", CONNECT_MAX.as_secs())))??;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http::Request::builder()
        .method(ask.method.clone())
        .uri(path)
        .header(HOST, authority.as_str())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, ask.accept);
    if let Some(authorization) = ask.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    if ask.from > 0 {
        request = request.header(RANGE, format!("bytes={}-", ask.from));
    }
    let request = request.body(Empty::new()).map_err(|error| site.senseless(error.to_string()))?;
    let answer = timeout(SILENCE_MAX, sender.send_request(request)).await;
    let answer = answer.map_err(|_| failed("it takes the request and is silent".to_owned()))?;
    let (head, body) = answer.map_err(|error| failed(with_cause(&error)))?.into_parts();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        host,
        place: 0,
        body,
        pace: site.pace,
        waited: Duration::ZERO,
        came: 0,
        _sender: sender,
        _connection: connection,
    })
}

type Connection = (SendRequest<Empty<Bytes>>, AbortOnDropHandle<()>);

async fn connect(
    site: &Site,
    uri: &Uri,
    authority: &Authority,
) -> Result<Connection, RegistryError> {
    let host = authority.as_str().to_owned();
    let tls = uri.scheme() == Some(&Scheme::HTTPS);
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let unreachable = |why| RegistryError::Unreachable { host: host.clone(), why };
    let tcp = dial(name, port).await.map_err(unreachable)?;
    // Small requests, large answers: nothing to wait for.
    drop(tcp.set_nodelay(true));
    if !tls {
        return speak(host, tcp).await;
    }
    let name = ServerName::try_from(name.to_owned())
        .map_err(|error| site.senseless(format!("{host}: {error}")))?;
    let stream = site.tls.connect(name, tcp).await;
    speak(host.clone(), stream.map_err(|error| of_tls(host, &error))?).await
}

fn of_tls(host: String, error: &std::io::Error) -> RegistryError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(why)) => {
            RegistryError::Untrusted { host, why: format!("{why:?}") }
        }
        Some(rustls::Error::InvalidMessage(_)) => RegistryError::NotTls { host },
        _ => RegistryError::Unreachable { host, why: error.to_string() },
    }
}

async fn speak(
    host: String,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Connection, RegistryError> {
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX);
    let spoken = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) =
        spoken.map_err(|error| RegistryError::Unreachable { host, why: with_cause(&error) })?;
    let task = tokio::spawn(async move {
        // What went wrong is said where the answer is read.
        drop(connection.await);
    });
    Ok((sender, AbortOnDropHandle::new(task)))
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn redirects_are_seen_from_where_they_were_said() {
        let from: Uri = "https://a:5000/v2/x?y".parse().unwrap();
        for (to, expected) in [
            ("/b?c", Some("https://a:5000/b?c")),
            ("https://cdn.example/z", Some("https://cdn.example/z")),
            ("b", None),
            ("", None),
            ("//cdn/z", None),
        ] {
            let found = follow(&from, to).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expected, "{to:?}");
        }
    }
}
