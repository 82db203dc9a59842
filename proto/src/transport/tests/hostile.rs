//! Hostile and broken peers: none may cost the others anything.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::fixture::{Ca, Leaf, Server, wait_until, who_am_i};
use crate::transport::DialError;
use crate::transport::client::{PinnedDialError, dial_pinned};
use crate::transport::credentials::pinned_client_config;
use crate::transport::identity::CertificateFault;
use crate::transport::server::ListenerLimits;

fn quick() -> ListenerLimits {
    ListenerLimits { handshake_timeout: Duration::from_millis(300), ..ListenerLimits::default() }
}

/// Reads until the peer closes; true if it did within 5 s.
async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
    match read.await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe
        ),
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_silent_peer_is_closed_in_time() {
    let ca = Ca::new();
    let server = Server::with(ca.shared(&Leaf::controller()), quick());
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let began = Instant::now();
    assert!(is_closed(&mut silent).await);
    assert!(began.elapsed() >= Duration::from_millis(250));
    server.refused("handshake_timeout", 1).await;
}

#[tokio::test]
async fn slow_peers_are_closed_and_hinder_nobody() {
    let ca = Ca::new();
    let limits = ListenerLimits { handshakes_per_source: 8, ..quick() };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    // A TLS record header that promises 512 bytes, and then one byte at a time.
    let slow = |address| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252]).await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if stream.write_all(&[3]).await.is_err() {
                return began.elapsed();
            }
        }
        panic!("a slow peer was served for {:?}", began.elapsed());
    };
    let slow: Vec<_> = (0..6).map(|_| tokio::spawn(slow(server.address))).collect();
    let node = ca.shared(&Leaf::node("titan01"));
    let began = Instant::now();
    who_am_i(server.dialer(&node).channel()).await.unwrap();
    // One after the other, the slow ones would take 1.8 s.
    assert!(began.elapsed() < Duration::from_millis(1500), "hindered: {:?}", began.elapsed());
    for task in slow {
        assert!(task.await.unwrap() < Duration::from_secs(4));
    }
    server.refused("handshake_timeout", 6).await;
}

/// A connection from a loopback address of its own that says nothing.
async fn silent_from(source: [u8; 4], server: &Server) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(server.address).await.unwrap()
}

#[tokio::test]
async fn the_oldest_unfinished_handshake_of_an_address_gives_way() {
    let ca = Ca::new();
    let limits = ListenerLimits {
        handshakes_per_source: 3,
        handshake_timeout: Duration::from_secs(60),
        ..ListenerLimits::default()
    };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(silent_from([127, 0, 0, 1], &server).await);
    }
    // From the same address, which has as many unfinished ones as it may.
    let node = ca.shared(&Leaf::node("titan01"));
    who_am_i(server.dialer(&node).channel()).await.unwrap();
    server.refused("too_many_handshakes", 1).await;
    assert!(is_closed(&mut held[0]).await, "the oldest");
}

#[tokio::test]
async fn addresses_that_take_all_handshakes_lock_nobody_out() {
    let ca = Ca::new();
    let limits = ListenerLimits {
        handshakes_per_source: 8,
        handshakes: 16,
        handshake_timeout: Duration::from_secs(60),
        ..ListenerLimits::default()
    };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    let node = ca.shared(&Leaf::node("titan01"));
    let mut held = Vec::new();
    for source in 2..6 {
        for _ in 0..20 {
            held.push(silent_from([127, 0, 0, source], &server).await);
        }
    }
    for _ in 0..12 {
        who_am_i(server.dialer(&node).channel()).await.unwrap();
        drop(anonymous(&server, &ca).await);
    }
    server.refused("too_many_handshakes", 65).await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections_without_a_certificate() {
    let ca = Ca::new();
    let limits = ListenerLimits { anonymous_per_source: 2, ..ListenerLimits::default() };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    let shake = async |stream| {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let config = Arc::new(pinned_client_config(ca.pin()).unwrap());
        TlsConnector::from(config).connect(name, stream).await.unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(shake(silent_from([127, 0, 0, 2], &server).await).await);
    }
    assert!(is_closed(&mut shake(silent_from([127, 0, 0, 2], &server).await).await).await);
    let mut other = shake(silent_from([127, 0, 0, 3], &server).await).await;
    let early = tokio::time::timeout(Duration::from_millis(300), is_closed(&mut other)).await;
    assert!(early.is_err(), "another address has places of its own");
}

#[tokio::test]
async fn a_peer_that_hangs_up_is_counted_and_refused_nothing() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    // A handshake record that promises more bytes than come.
    TcpStream::connect(server.address).await.unwrap().write_all(&[22, 3, 1, 1, 0]).await.unwrap();
    server.refused("closed", 1).await;
    assert_eq!(server.refusals.counts().len(), 1);
}

#[tokio::test]
async fn plain_text_on_the_tls_port_is_refused() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 64]]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        assert!(is_closed(&mut stream).await);
    }
    server.refused("not_tls", 3).await;
}

#[tokio::test]
async fn a_client_says_when_the_other_side_speaks_no_tls() {
    let ca = Ca::new();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string().parse().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = socket.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        drop(stream.read(&mut [0; 16]).await);
    });
    let error = dial_pinned(&address, ca.pin()).await.unwrap_err();
    assert!(matches!(error, PinnedDialError::Unreachable(DialError::NotTls { .. })), "{error}");
}

#[tokio::test]
async fn older_tls_is_refused() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der.clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(crate::transport::crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let error = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap_err();
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    server.refused("tls", 1).await;
}

#[tokio::test]
async fn a_wrong_pin_sends_nothing_but_the_handshake() {
    let (expected, impostor) = (Ca::new(), Ca::new());
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string().parse().unwrap();
    let config = impostor.shared(&Leaf::controller()).server_config();
    let said = Arc::new(Mutex::new(None));
    let record = said.clone();
    tokio::spawn(async move {
        let (stream, _) = socket.accept().await.unwrap();
        let mut bytes = Vec::new();
        if let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await {
            drop(stream.read_to_end(&mut bytes).await);
        }
        *record.lock().unwrap() = Some(bytes);
    });
    let error = dial_pinned(&address, expected.pin()).await.unwrap_err();
    let PinnedDialError::WrongPin { detail, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(detail, CertificateFault::PinMismatch { .. }), "{detail}");
    wait_until("the impostor's record", || said.lock().unwrap().is_some()).await;
    assert_eq!(said.lock().unwrap().as_deref(), Some(&[][..]), "application data was sent");
}

/// A TLS connection without a certificate that says nothing more.
async fn anonymous(server: &Server, ca: &Ca) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let config = Arc::new(pinned_client_config(ca.pin()).unwrap());
    TlsConnector::from(config).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn peers_without_a_certificate_cannot_stay_or_crowd_out_others() {
    let ca = Ca::new();
    let limits = ListenerLimits {
        anonymous_connections: 2,
        anonymous_lifetime: Duration::from_secs(2),
        ..ListenerLimits::default()
    };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    let mut first = anonymous(&server, &ca).await;
    let _second = anonymous(&server, &ca).await;
    let mut third = anonymous(&server, &ca).await;
    assert!(is_closed(&mut third).await);
    server.refused("too_many_connections", 1).await;
    let node = ca.shared(&Leaf::node("titan01"));
    who_am_i(server.dialer(&node).channel()).await.unwrap();
    assert!(is_closed(&mut first).await, "its time is over");
    anonymous(&server, &ca).await;
}

#[tokio::test]
async fn one_peer_cannot_take_all_connections() {
    let ca = Ca::new();
    let limits = ListenerLimits { connections_per_peer: 2, ..ListenerLimits::default() };
    let server = Server::with(ca.shared(&Leaf::controller()), limits);
    let (greedy, modest) = (ca.shared(&Leaf::node("greedy")), ca.shared(&Leaf::node("modest")));
    let (first, second) = (server.dialer(&greedy).channel(), server.dialer(&greedy).channel());
    who_am_i(first.clone()).await.unwrap();
    who_am_i(second.clone()).await.unwrap();
    who_am_i(server.dialer(&greedy).channel()).await.unwrap_err();
    server.refused("too_many_connections", 1).await;
    who_am_i(server.dialer(&modest).channel()).await.unwrap();
    who_am_i(first).await.unwrap();
}

#[tokio::test]
async fn a_revoked_peer_is_cut_off_while_it_is_silent() {
    let ca = Ca::new();
    let server = Server::start(&ca);
    let node = ca.shared(&Leaf::node("titan01"));
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(node.client_config());
    let mut stream = connector.connect(name, stream).await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(&mut stream);
    writing.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let quiet = Duration::from_millis(300);
    let early = tokio::time::timeout(quiet, is_closed(&mut reading)).await;
    assert!(early.is_err(), "it stays while it is trusted");
    let serial = node.current().leaf().serial.clone();
    server.credentials.revocations().replace(std::collections::BTreeSet::from([serial]));
    assert!(is_closed(&mut reading).await);
}

#[tokio::test]
async fn a_refusal_is_heard_by_a_client_that_talks_at_once() {
    let (ca, other) = (Ca::new(), Ca::new());
    let server = Server::start(&ca);
    // Trusts the server, but another CA vouches for it.
    let (der, key) = other.leaf(&Leaf::node("titan01"));
    let pem = crate::transport::keys::certificate_pem;
    let (chain, authority) = (pem(&der), pem(&ca.der));
    let foreign = crate::transport::Credentials::from_pem(
        chain.as_bytes(),
        key.as_bytes(),
        authority.as_bytes(),
    );
    let foreign = crate::transport::SharedCredentials::new(foreign.unwrap()).unwrap();
    for _ in 0..20 {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(foreign.client_config());
        let mut stream = connector.connect(name, stream).await.unwrap();
        // These bytes are unread on the server's side when it refuses: closing at once would reset
        // the connection, and the next write would fail before the refusal is read.
        stream.write_all(&[0; 64 * 1024]).await.unwrap();
        stream.get_ref().0.readable().await.unwrap();
        stream.write_all(&[0; 1024]).await.unwrap();
        stream.flush().await.unwrap();
        let error = stream.read(&mut [0; 16]).await.unwrap_err();
        assert!(error.to_string().contains("UnknownCA"), "{error}");
    }
}
