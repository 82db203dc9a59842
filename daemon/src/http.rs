//! Plain HTTP for monitoring: `/metrics`, `/healthz`, `/readyz`; over root's own socket also the
//! log's level and the debug bundle.
//!
//! The caller binds the listeners; nothing listens unless asked. Over the network everything is
//! read-only and nothing is a secret; there is no TLS and no login. HTTP/1.1, small limits: a
//! scraper gone wild costs a few connections and nothing else.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::bundle::Bundle;
use crate::logging::Logging;
use crate::metrics::{self, Exposition};
use crate::progress::Progress;

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take to say what it wants, and may sit idle afterwards.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest life of a connection, whatever it does.
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(600);
/// Headers of a request.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Body of a request: a log level.
const BODY_BYTES_MAX: usize = 2 << 10;
/// How long a question to a program's own socket may take, and how long the answer may be.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// After an accept error (no file descriptors left) the loop rests this long.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);

/// What a program shows.
pub trait Inside: Send + Sync + 'static {
    /// Why the program cannot do its work right now; empty when it can.
    fn not_ready(&self) -> Vec<String>;
    /// The parts of a debug bundle and the name of its folder. Blocks a little.
    fn bundle(&self) -> (Bundle, String);
}

/// Everything the endpoints need. Cheap to clone.
#[derive(Clone)]
pub struct Endpoints {
    pub inside: Arc<dyn Inside>,
    pub exposition: Exposition,
    pub progress: Progress,
    pub logging: Logging,
    /// Over root's own socket: also what changes something or tells more.
    pub for_root: bool,
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints").field("for_root", &self.for_root).finish_non_exhaustive()
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

fn lines(items: &[String]) -> String {
    items.iter().map(|line| format!("{line}\n")).collect()
}

impl Endpoints {
    async fn handle(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        match (path.as_str(), get) {
            ("/metrics", true) => {
                answer(StatusCode::OK, metrics::CONTENT_TYPE, self.exposition.text())
            }
            ("/healthz", true) => self.healthz(),
            ("/readyz", true) => self.readyz(),
            ("/log-level", true) if self.for_root => {
                text(StatusCode::OK, format!("{}\n", self.logging.level()))
            }
            ("/log-level", false) if self.for_root && *request.method() == Method::PUT => {
                self.set_level(request).await
            }
            ("/debug-bundle", true) if self.for_root => self.bundle().await,
            ("", true) => text(StatusCode::OK, "/metrics\n/healthz\n/readyz\n"),
            ("/metrics" | "/healthz" | "/readyz" | "", false) => {
                let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                refusal
            }
            _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
        }
    }

    fn healthz(&self) -> Answer {
        let stuck: Vec<String> = self.progress.stuck().iter().map(ToString::to_string).collect();
        if stuck.is_empty() {
            return text(StatusCode::OK, "ok\n");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, lines(&stuck))
    }

    fn readyz(&self) -> Answer {
        let mut reasons: Vec<String> =
            self.progress.stuck().iter().map(ToString::to_string).collect();
        reasons.extend(self.inside.not_ready());
        if reasons.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, lines(&reasons))
    }

    async fn set_level(&self, request: Request<Incoming>) -> Answer {
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
        let Ok(body) = body else {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "that is no log level\n");
        };
        let level = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        match self.logging.set(&level, "root") {
            Ok(now) => text(StatusCode::OK, format!("{now}\n")),
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }

    async fn bundle(&self) -> Answer {
        let inside = Arc::clone(&self.inside);
        let made = tokio::task::spawn_blocking(move || {
            let (bundle, folder) = inside.bundle();
            bundle.archive(&folder, unix_seconds())
        });
        match made.await {
            Ok(Ok(bytes)) => answer(StatusCode::OK, "application/gzip", bytes),
            Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

/// The wall clock, for the times in an archive.
pub fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Serves what comes in, until dropped.
pub async fn serve<S, C>(endpoints: Endpoints, incoming: S)
where
    S: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = std::pin::pin!(incoming);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        // A client that comes when it is full waits in the kernel's queue.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let stream = match incoming.next().await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection was not accepted");
                sleep(ACCEPT_ERROR_PAUSE).await;
                continue;
            }
            None => return,
        };
        let endpoints = endpoints.clone();
        connections.spawn(async move {
            serve_one(endpoints, stream).await;
            drop(place);
        });
    }
}

async fn serve_one<C: AsyncRead + AsyncWrite + Unpin>(endpoints: Endpoints, stream: C) {
    let service = service_fn(|request| {
        let endpoints = endpoints.clone();
        async move {
            let head = *request.method() == Method::HEAD;
            let mut answer = endpoints.handle(request).await;
            if head {
                *answer.body_mut() = Full::default();
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_LIFE_MAX, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "monitoring connection"),
    }
}

/// Takes an address. Says where it listens, port resolved.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true)?;
    tracing::info!(listen = %listener.local_addr()?, "serving metrics to anyone who asks");
    Ok(listener)
}

/// Serves the network, until dropped.
pub async fn serve_tcp(endpoints: Endpoints, listener: std::net::TcpListener) {
    match TcpListener::from_std(listener) {
        Ok(listener) => serve(endpoints, accept(listener)).await,
        Err(error) => tracing::error!(%error, "monitoring is not served"),
    }
}

/// Asks a program's own socket; returns the status and the body.
pub async fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let asking = async {
        let stream = UnixStream::connect(socket).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .body(Full::new(Bytes::from(body.to_owned())))?;
        let answer = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?;
            Ok::<_, anyhow::Error>((status, body.to_bytes().to_vec()))
        };
        tokio::select! {
            answer = answer => answer,
            // It ends with an error, or when the answer is whole and will be taken up next.
            Err(error) = connection => Err(error.into()),
        }
    };
    timeout(ASK_TIMEOUT, asking).await?
}

/// Connections of a TCP listener as a stream.
pub fn accept(listener: TcpListener) -> impl Stream<Item = io::Result<tokio::net::TcpStream>> {
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

#[cfg(test)]
mod tests;
