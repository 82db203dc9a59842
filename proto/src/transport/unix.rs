//! Unix sockets: a listener where the kernel says who connects, and the client's channel to it.
//!
//! The socket may be open to everybody (mode 0666): the peer's uid, not access to the file, decides.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::limits::{CONNECT_TIMEOUT, CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX};
use super::peer::PeerIdentity;
use super::refusals::Refusals;
use super::server::{PeerIo, PeerKey, PeerStream};
use super::slots::Slots;

/// Longest socket path the kernel takes, in bytes. A longer one is reached through its folder; only the
/// name in it must be short.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Longest name of a socket within its folder: what `/proc/self/fd/NUMBER/` leaves.
const SOCKET_NAME_BYTES_MAX: usize = 80;
/// Linux: only a handle on the folder, which users need not be able to list.
const O_PATH: i32 = 0o10_000_000;
/// Accept errors (no file descriptors left) handled in one go before others get their turn.
const ACCEPT_ERRORS_MAX: usize = 8;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("the name of the socket {} has more than {SOCKET_NAME_BYTES_MAX} bytes", path.display())]
    TooLong { path: PathBuf },
    #[error("another process already serves {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} exists and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A way to a socket that the kernel takes, however long its path is. The folder is held meanwhile.
struct Reached {
    path: PathBuf,
    _folder: Option<File>,
}

fn reach(path: &Path) -> Result<Reached, SocketError> {
    if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(Reached { path: path.to_owned(), _folder: None });
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(SocketError::TooLong { path: path.to_owned() });
    };
    if name.len() > SOCKET_NAME_BYTES_MAX {
        return Err(SocketError::TooLong { path: path.to_owned() });
    }
    let opened = OpenOptions::new().read(true).custom_flags(O_PATH).open(folder);
    let failed = |source| SocketError::Io { action: "reach", path: path.to_owned(), source };
    let folder = opened.map_err(failed)?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok(Reached { path: short, _folder: Some(folder) })
}

/// A listener on a path. Dropping it removes the socket file.
#[derive(Debug)]
pub struct UnixListener {
    socket: tokio::net::UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file: only ours is removed.
    file: Option<(u64, u64)>,
    peers: Arc<Slots<PeerKey>>,
    refusals: Refusals,
}

impl UnixListener {
    /// Binds `path` with the given mode. A stale socket is replaced, a served one is not.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, SocketError> {
        let reached = reach(path)?;
        remove_stale(path, &reached)?;
        let failed =
            |action| move |source| SocketError::Io { action, path: path.to_owned(), source };
        let socket = tokio::net::UnixListener::bind(&reached.path).map_err(failed("bind"))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(failed("chmod"))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            file: file_of(path),
            peers: Slots::new(CONNECTIONS_PER_PEER_MAX, CONNECTIONS_MAX),
            refusals: Refusals::default(),
        })
    }

    /// Refused connections by kind.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    fn admit(&self, stream: UnixStream) -> Option<PeerStream> {
        let credentials = match stream.peer_cred() {
            Ok(credentials) => credentials,
            Err(error) => {
                self.refusals.note("no_peer_credentials", &self.path.display(), &error);
                return None;
            }
        };
        let (uid, gid, pid) = (credentials.uid(), credentials.gid(), credentials.pid());
        let peer = PeerIdentity::Local { uid, gid, pid };
        let Some(slot) = self.peers.take(PeerKey::Uid(uid)) else {
            self.refusals.note("too_many_connections", &peer, &"too many connections");
            return None;
        };
        Some(PeerStream::new(PeerIo::Unix(stream), peer, None, slot))
    }
}

/// Device and inode of what is at this path.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn remove_stale(path: &Path, reached: &Reached) -> Result<(), SocketError> {
    let failed = |action| move |source| SocketError::Io { action, path: path.to_owned(), source };
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("inspect")(error)),
    };
    if !kind.is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    // A connection that is accepted, or would be as soon as there is room, means: it is served.
    match std::os::unix::net::UnixStream::connect(&reached.path) {
        Ok(_) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed("remove"))
        }
        Err(error) => Err(failed("probe")(error)),
    }
}

impl Stream for UnixListener {
    type Item = Result<PeerStream, io::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for _ in 0..ACCEPT_ERRORS_MAX {
            match self.socket.poll_accept(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok((stream, _))) => {
                    if let Some(stream) = self.admit(stream) {
                        return Poll::Ready(Some(Ok(stream)));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.refusals.note("accept_failed", &self.path.display(), &error);
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        // A file that is left is replaced by the next start; one that is not ours stays.
        if self.file.is_some() && file_of(&self.path) == self.file {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A channel to a Unix socket. Connects at the first call and again when the connection is lost.
pub fn channel(path: &Path) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move {
            let reached = reach(&path).map_err(io_error)?;
            UnixStream::connect(&reached.path).await.map(TokioIo::new)
        }
    });
    // The address is a formality: the connector knows the path.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector_lazy(connector)
}

/// A missing folder gives the error that the kernel would give for the socket.
fn io_error(error: SocketError) -> io::Error {
    match error {
        SocketError::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidInput, other.to_string()),
    }
}
