//! What is asked of this node's dockerd: what a name means there, and the image's archive, as `docker save` writes it.
//! Called by [`super::store`] after the kernel let the user connect to the same socket.
//!
//! dockerd is root, and the agent believes it about who has which image; an archive from it is as hostile as any other.
//! The agent must never ask dockerd to change anything: it sends two GETs of docker's Engine API, in the version that
//! the daemon speaks by default.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::digest::hex_digest;
use super::text::shown;

/// From connecting to the answer of a small question. A socket of systemd's starts dockerd first.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// From asking for an archive to its first byte: many versions write all of it to a folder of their own before they send.
const ARCHIVE_MAX: Duration = Duration::from_secs(1800);
/// Between two parts of an archive.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Most bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Longest document about an image, and longest refusal.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;
/// How many bytes of an archive's end are searched for an error message.
const TAIL_BYTES: usize = 4096;
/// Longest part of dockerd's own words that is passed on.
const WORDS_BYTES_MAX: usize = 200;

/// Why dockerd did not give an image. Users read these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonError {
    #[error(
        "user {user} may not use the docker of this node: {} lets members of its group in (`docker save` and a path, or a registry, need no such right)",
        socket.display()
    )]
    Denied { user: String, socket: PathBuf },
    #[error(
        "this node has no docker, or it does not run: nothing is at {} (name a node that has it with --node)",
        socket.display()
    )]
    Absent { socket: PathBuf },
    #[error("the docker of this node does not answer: {why}")]
    Silent { why: String },
    #[error(
        "the docker of this node has no image {name}: docker stores images per node, see `docker images` there and --node{}",
        if looks_like_short_id(name) { "; by its id it is docker-daemon:sha256: and all 64 digits" } else { "" }
    )]
    Unknown { name: String },
    #[error("the docker of this node answers {status} for {name}: {words}")]
    Refused { name: String, status: u16, words: String },
    #[error("the docker of this node answers what makes no sense: {why}")]
    Senseless { why: String },
    #[error("the archive of {name} from the docker of this node broke off: {why}")]
    BrokeOff { name: String, why: String },
    #[error("nobody waits for the image any more")]
    GivenUp,
}

impl DaemonError {
    /// Whether it is the node's, and not the user's.
    #[must_use]
    pub fn is_the_nodes(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::BrokeOff { .. } | Self::Senseless { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            Self::Denied { .. } | Self::Absent { .. } | Self::Unknown { .. } | Self::GivenUp => {
                false
            }
        }
    }
}

/// As `docker images` prints them.
fn looks_like_short_id(name: &str) -> bool {
    let part = name.strip_prefix("docker.io/library/").and_then(|n| n.strip_suffix(":latest"));
    part.is_some_and(|part| part.len() == 12 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// What a name means now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// `sha256:…`: the digest of the configuration, or of a manifest where containerd keeps dockerd's images.
    pub(super) id: String,
    /// As dockerd counts them: of the unpacked layers, or of the packed ones where containerd keeps them.
    pub(super) bytes: u64,
    /// Digests of its unpacked layers, in hex.
    pub(super) layers: Vec<String>,
}

/// The daemon behind a socket.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) socket: PathBuf,
}

impl Daemon {
    /// Asks what a name, or an id, means. Both consist of letters, digits and `._-/:@[]`.
    pub(super) async fn look_up(&self, name: &str) -> Result<Found, DaemonError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Document {
            id: String,
            #[serde(default)]
            size: u64,
            #[serde(default, rename = "RootFS")]
            root: Root,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Root {
            layers: Option<Vec<String>>,
        }
        let senseless = |why: String| DaemonError::Senseless { why };
        let mut answer = self.get(&format!("/images/{name}/json"), ANSWER_MAX).await?;
        let text = answer.whole().await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(DaemonError::Unknown { name: name.to_owned() });
        }
        answer.expect_ok(name, &text)?;
        let document: Document = serde_json::from_slice(&text)
            .map_err(|error| senseless(format!("of {name}: {error}")))?;
        let hex = |digest: &str| digest.strip_prefix("sha256:").and_then(hex_digest);
        let id = hex(&document.id)
            .ok_or_else(|| senseless(format!("an id {}", shown(document.id.as_bytes()))))?;
        let layers = document.root.layers.unwrap_or_default();
        let layers = layers.iter().filter_map(|digest| hex(digest)).collect();
        Ok(Found { id: format!("sha256:{id}"), bytes: document.size, layers })
    }

    /// The archive of the image with this id, and of no other.
    pub(super) async fn archive(&self, id: &str) -> Result<Answer, DaemonError> {
        let mut answer = self.get(&format!("/images/{id}/get"), ARCHIVE_MAX).await?;
        if answer.status != StatusCode::OK {
            let text = answer.whole().await?;
            answer.expect_ok(id, &text)?;
        }
        Ok(answer)
    }

    async fn get(&self, path: &str, wait_max: Duration) -> Result<Answer, DaemonError> {
        let asked = timeout(wait_max, self.ask(path)).await;
        asked.unwrap_or_else(|_| {
            let waited = wait_max.as_secs();
            let why = format!("it takes the request and is silent for {waited} s");
            Err(DaemonError::Silent { why })
        })
    }

    async fn ask(&self, path: &str) -> Result<Answer, DaemonError> {
        let silent = |error: &dyn std::error::Error| DaemonError::Silent { why: error.to_string() };
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| silent(&error))?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let spoken = builder.handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = spoken.map_err(|error| silent(&error))?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // What went wrong is said where the answer is read.
            drop(connection.await);
        }));
        let request = Request::get(path).header(HOST, "docker").body(Empty::<Bytes>::new());
        let request =
            request.map_err(|error| DaemonError::Senseless { why: format!("{path}: {error}") })?;
        let answer = sender.send_request(request).await.map_err(|error| silent(&error))?;
        let (head, body) = answer.into_parts();
        Ok(Answer { status: head.status, body, _sender: sender, _connection: connection })
    }
}

/// An answer, whose body comes by parts.
pub(super) struct Answer {
    status: StatusCode,
    body: Incoming,
    /// The connection lives as long as its answer is read.
    _sender: http1::SendRequest<Empty<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Answer {
    /// The next part; `None` at the end.
    async fn part(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let next = timeout(SILENCE_MAX, self.body.frame()).await;
            let next = next.map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, "it fell silent in the middle")
            })?;
            let Some(frame) = next else { return Ok(None) };
            let broken = |error: hyper::Error| {
                io::Error::new(io::ErrorKind::UnexpectedEof, error.to_string())
            };
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole body, if it is short.
    async fn whole(&mut self) -> Result<Vec<u8>, DaemonError> {
        let mut whole = Vec::new();
        let silent = |error: io::Error| DaemonError::Silent { why: error.to_string() };
        while let Some(part) = self.part().await.map_err(silent)? {
            if whole.len() + part.len() > DOCUMENT_BYTES_MAX {
                let why = format!("a document of more than {DOCUMENT_BYTES_MAX} bytes");
                return Err(DaemonError::Senseless { why });
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole)
    }

    fn expect_ok(&self, name: &str, text: &[u8]) -> Result<(), DaemonError> {
        #[derive(Default, Deserialize)]
        struct Said {
            message: String,
        }
        if self.status == StatusCode::OK {
            return Ok(());
        }
        let said: Said = serde_json::from_slice(text).unwrap_or_default();
        let (name, status) = (name.to_owned(), self.status.as_u16());
        Err(DaemonError::Refused { name, status, words: words(&said.message) })
    }
}

fn words(text: &str) -> String {
    shown(&text.as_bytes()[..text.len().min(WORDS_BYTES_MAX)])
}

/// Where the network runs, and whether anybody still waits for what comes.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) handle: Handle,
    /// Cancelled when nobody does.
    pub(super) gone: CancellationToken,
}

impl Waiter {
    /// On a thread of its own, which is none of the runtime's.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, DaemonError> {
        self.handle.block_on(async {
            tokio::select! {
                done = work => Ok(done),
                () = self.gone.cancelled() => Err(DaemonError::GivenUp),
            }
        })
    }
}

/// An archive, as a thread reads it.
pub(super) struct Archive<'a> {
    answer: Answer,
    waiter: &'a Waiter,
    /// What has come and was not read yet.
    rest: Bytes,
    /// The last of what was read.
    tail: Vec<u8>,
}

impl<'a> Archive<'a> {
    pub(super) fn new(answer: Answer, waiter: &'a Waiter) -> Self {
        Self { answer, waiter, rest: Bytes::new(), tail: Vec::new() }
    }

    /// What dockerd says where something goes wrong in the middle: it ends the archive with a document, and the answer as if
    /// all were well (moby, `getImagesGet` in api/server/router/image).
    pub(super) fn last_words(&mut self) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Said {
            error_detail: Detail,
        }
        #[derive(Deserialize)]
        struct Detail {
            message: String,
        }
        let mut more = [0; TAIL_BYTES];
        let mut left = self.by_ref().take(TAIL_BYTES as u64);
        // What is left may be an error of its own.
        while left.read(&mut more).is_ok_and(|count| count > 0) {}
        let mark = b"{\"errorDetail\"";
        let at = self.tail.windows(mark.len()).rposition(|window| window == mark)?;
        let mut said = serde_json::Deserializer::from_slice(&self.tail[at..]).into_iter::<Said>();
        Some(words(&said.next()?.ok()?.error_detail.message))
    }
}

impl Read for Archive<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let next = self.waiter.wait(self.answer.part());
            let given_up = |error| io::Error::new(io::ErrorKind::UnexpectedEof, error);
            match next.map_err(given_up)?? {
                None => return Ok(0),
                Some(part) => self.rest = part,
            }
        }
        let count = buf.len().min(self.rest.len());
        let part = self.rest.split_to(count);
        buf[..count].copy_from_slice(&part);
        self.tail.extend_from_slice(&part[count.saturating_sub(TAIL_BYTES)..]);
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
        Ok(count)
    }
}
