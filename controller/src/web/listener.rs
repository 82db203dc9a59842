//! Accepts browsers: TLS, HTTP/1.1 and HTTP/2, each connection in a task of its own, with a limit on everything.
//!
//! A slow or hostile one costs its own place and nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at a time: one for each open page of a browser that speaks HTTP/2.
const CONNECTIONS_MAX: usize = 8_192;
/// Until TLS is agreed on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
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

/// Serves until `stop`; open streams of events end by it too.
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
    let (acceptor, places) = (TlsAcceptor::from(tls), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
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
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (acceptor, routes, stop) = (acceptor.clone(), routes.clone(), stop.clone());
                connections.spawn(async move {
                    if let Err(error) = connection(stream, address, acceptor, routes, stop).await {
                        tracing::debug!(%address, %error, "a browser's connection ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept a browser");
                tokio::time::sleep(ACCEPT_ERROR_PAUSE).await;
            }
        }
    }
    connections.shutdown().await;
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    routes: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    // Latency of small messages; a failure costs only that.
    drop(stream.set_nodelay(true));
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let stream = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await.map_err(late)??;
    let service = TowerToHyperService::new(routes.layer(Extension(address)));
    let mut builder = Builder::new(TokioExecutor::new());
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
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    ended.map_err(io::Error::other)
}
