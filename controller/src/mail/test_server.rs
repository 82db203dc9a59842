//! A mail server for tests: real SMTP over a socket, with STARTTLS or TLS and a login if the test wants them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What the server does with all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manners {
    Works,
    /// It accepts connections and says nothing.
    Silent,
    /// It takes the text of a mail and does not answer.
    SilentAtTheEnd,
    /// Its disk is full.
    Full,
}

/// A mail that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) text: String,
    pub(crate) encrypted: bool,
}

impl Taken {
    /// A header, unfolded.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let (head, _) = self.text.split_once("\r\n\r\n")?;
        let unfolded = head.replace("\r\n ", " ");
        let value = unfolded.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        value.map(str::to_owned)
    }
}

struct Inside {
    acceptor: Option<TlsAcceptor>,
    at_once: bool,
    login: Option<(String, String)>,
    manners: Mutex<Manners>,
    taken: Mutex<Vec<Taken>>,
}

/// Dropping it ends it, with all connections.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    inside: Arc<Inside>,
    tasks: Option<JoinSet<()>>,
}

/// How the server is set up.
#[derive(Default)]
pub(crate) struct Setup<'a> {
    /// The folder that gets `ca.crt`; without one there is no TLS.
    pub(crate) tls: Option<&'a Path>,
    /// TLS from the first byte.
    pub(crate) at_once: bool,
    pub(crate) login: Option<(&'a str, &'a str)>,
}

impl TestServer {
    pub(crate) async fn start(setup: Setup<'_>) -> Self {
        let inside = Arc::new(Inside {
            acceptor: setup.tls.map(acceptor),
            at_once: setup.at_once,
            login: setup.login.map(|(user, password)| (user.to_owned(), password.to_owned())),
            manners: Mutex::new(Manners::Works),
            taken: Mutex::default(),
        });
        let mut server = Self { address: ([127, 0, 0, 1], 0).into(), inside, tasks: None };
        server.up().await;
        server
    }

    /// Listens, at the same port as before.
    pub(crate) async fn up(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let inside = Arc::clone(&self.inside);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, Arc::clone(&inside)));
            }
        });
        self.tasks = Some(tasks);
    }

    /// Refuses connections from now on.
    pub(crate) async fn down(&mut self) {
        if let Some(mut tasks) = self.tasks.take() {
            tasks.shutdown().await;
        }
    }

    pub(crate) fn behaves(&self, manners: Manners) {
        *self.inside.manners.lock().unwrap() = manners;
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.inside.taken.lock().unwrap().clone()
    }

    /// The recipients of all mails, in order.
    pub(crate) fn recipients(&self) -> Vec<String> {
        self.taken().into_iter().map(|taken| taken.to).collect()
    }
}

fn acceptor(folder: &Path) -> TlsAcceptor {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&own, &issuer).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn connection(stream: TcpStream, inside: Arc<Inside>) {
    let encrypted = match &inside.acceptor {
        Some(acceptor) if inside.at_once => acceptor.accept(stream).await.ok(),
        _ => {
            let Some(stream) = talk(stream, &inside, false).await else { return };
            let Some(acceptor) = &inside.acceptor else { return };
            acceptor.accept(stream).await.ok()
        }
    };
    if let Some(encrypted) = encrypted {
        talk(encrypted, &inside, true).await;
    }
}

/// The stream, where it is to be encrypted now.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    inside: &Inside,
    encrypted: bool,
) -> Option<S> {
    let mut stream = BufReader::new(stream);
    let manners = || *inside.manners.lock().unwrap();
    if manners() == Manners::Silent {
        std::future::pending::<()>().await;
    }
    // Behind STARTTLS nobody greets again.
    if !encrypted || inside.at_once {
        stream.write_all(b"220 test ESMTP\r\n").await.ok()?;
    }
    let (mut from, mut to) = (String::new(), String::new());
    let mut known = inside.login.is_none();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let address = || rest.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
        let answer = match word.to_ascii_uppercase().as_str() {
            "EHLO" if inside.acceptor.is_some() && !encrypted => "250-test\r\n250 STARTTLS",
            "EHLO" if inside.login.is_some() => "250-test\r\n250 AUTH PLAIN LOGIN",
            "EHLO" => "250 test",
            "STARTTLS" => {
                stream.write_all(b"220 go\r\n").await.ok()?;
                return Some(stream.into_inner());
            }
            "AUTH" => {
                known = inside.login.as_ref().is_none_or(|(user, password)| {
                    let plain = format!("\0{user}\0{password}");
                    let said = rest.trim_start_matches("PLAIN ");
                    base64::engine::general_purpose::STANDARD.encode(plain) == said
                });
                if known { "235 welcome" } else { "535 wrong password" }
            }
            "MAIL" if !known => "530 log in first",
            "MAIL" if manners() == Manners::Full => "452 disk full",
            "MAIL" => {
                from = address();
                "250 ok"
            }
            "RCPT" => {
                to = address();
                match to.split('@').next() {
                    Some("refused") => "550 5.1.1 no such user",
                    Some("later") => "450 4.2.0 greylisted, come back",
                    _ => "250 ok",
                }
            }
            "RSET" => "250 ok",
            "DATA" => {
                stream.write_all(b"354 go\r\n").await.ok()?;
                let text = text(&mut stream).await?;
                if manners() == Manners::SilentAtTheEnd {
                    std::future::pending::<()>().await;
                }
                let (from, to) = (from.clone(), to.clone());
                match to.starts_with("aaron@") {
                    true => "451 4.7.1 try this text again later",
                    false => {
                        inside.taken.lock().unwrap().push(Taken { from, to, text, encrypted });
                        "250 2.0.0 queued as 1"
                    }
                }
            }
            "QUIT" => {
                stream.write_all(b"221 bye\r\n").await.ok()?;
                return None;
            }
            _ => "500 what?",
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
    }
}

async fn text<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<String> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == ".\r\n" {
            return Some(text);
        }
        text.push_str(line.strip_prefix('.').unwrap_or(&line));
    }
}
