//! Accepts browsers: TLS, HTTP/1.1 and HTTP/2, each connection in a task of its own, with a limit on everything.
//!
//! A slow or hostile one costs its own place and nothing else; those of one address never take all places.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::{Extension, Router};
use fleet_proto::transport::{Slots, Source};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at a time: one for each open page of a browser that speaks HTTP/2.
pub(super) const CONNECTIONS_MAX: usize = 8_192;
/// Of one address, which may be a building behind a router.
const CONNECTIONS_OF_ONE_MAX: usize = 512;
/// Until TLS is agreed on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at a time, and those of one address.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKES_OF_ONE_MAX: usize = 32;
/// Until the first request is there.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Until the headers of a request are there.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a connection is asked whether it is still there, and how long it may take to say so.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests of one connection at a time.
const STREAMS_MAX: u32 = 64;
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// What one connection of HTTP/1.1 may have buffered: its headers.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// After an accept error (no file descriptors left) the loop rests this long.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);
/// How long open requests may take to finish at a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const ALPN_H2: &[u8] = b"h2";

/// What each connection needs.
#[derive(Clone)]
struct Doors {
    acceptor: TlsAcceptor,
    routes: Router,
    handshakes: Arc<Slots<Source>>,
    stop: CancellationToken,
}

/// Serves until `stop`; open requests may finish then, and streams of events end by it too.
pub(super) async fn serve(
    socket: std::net::TcpListener,
    tls: Arc<rustls::ServerConfig>,
    routes: Router,
    stop: CancellationToken,
) {
    let listener = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the web page is not served"),
    };
    let places = Slots::new(CONNECTIONS_OF_ONE_MAX, CONNECTIONS_MAX);
    let handshakes = Slots::new(HANDSHAKES_OF_ONE_MAX, HANDSHAKES_MAX);
    let acceptor = TlsAcceptor::from(tls);
    let doors = Doors { acceptor, routes, handshakes, stop: stop.clone() };
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, address)) => {
                // None left: the newest is closed.
                let Some(place) = places.take(Source::from(address.ip())) else { continue };
                let doors = doors.clone();
                connections.spawn(async move {
                    if let Err(error) = doors.connection(stream, address).await {
                        tracing::debug!(%address, %error, "a browser's connection ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept a browser");
                sleep(ACCEPT_ERROR_PAUSE).await;
            }
        }
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    drop(timeout(DRAIN_TIMEOUT, ended).await);
    connections.shutdown().await;
}

impl Doors {
    async fn connection(self, stream: TcpStream, address: SocketAddr) -> io::Result<()> {
        // Latency of small messages; a failure costs only that.
        drop(stream.set_nodelay(true));
        let place = self.handshakes.take(Source::from(address.ip()));
        let place = place.ok_or_else(|| io::Error::other("too many handshakes"))?;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let shaken = timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await;
        let stream = shaken.map_err(late)??;
        drop(place);
        let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_H2);
        let asked = Arc::new(AtomicBool::new(false));
        let routes = self.routes.layer(Extension(address)).layer(middleware::from_fn({
            let asked = Arc::clone(&asked);
            move |request: Request, next: Next| {
                asked.store(true, Ordering::Relaxed);
                next.run(request)
            }
        }));
        let builder = builder(speaks_h2);
        let serving =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = &mut serving => ended,
            () = silent(&asked) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            () = self.stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        ended.map_err(io::Error::other)
    }
}

/// Returns where no request has come in time; a connection that only stays open takes a place from others.
async fn silent(asked: &AtomicBool) {
    sleep(FIRST_REQUEST_TIMEOUT).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// The protocol is what TLS agreed on: looking for it in the first bytes would wait for them without a limit.
fn builder(speaks_h2: bool) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if speaks_h2 { builder.http2_only() } else { builder.http1_only() };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX);
    builder
}
