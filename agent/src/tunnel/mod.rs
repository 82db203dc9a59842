//! Byte streams between a user and a job: the controller asks over the link, the agent calls back.
//!
//! - [`output`]: the log from its file, and standard input. [`exec`]: a further program in the container.
//! - [`images`]: what is in the node's image store. [`gpu_minutes`]: what a GPU did minute by minute. These streams belong to
//!   no job.
//! - [`wake`]: notice of new output without polling.
//!
//! One task per stream. Nothing here blocks the shim: output is read from the log's files at the pace of
//! who reads it. Streams use connections of their own, so that a slow one never holds up the link.

mod exec;
mod gpu_minutes;
mod images;
mod output;
mod wake;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_proto::transport::client::{Address, Dialer};
use fleet_proto::v1;
use fleet_proto::v1::agents_client::AgentsClient;
use fleet_proto::v1::open_tunnel::Purpose;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::attempts::Registry;
use crate::gpu_use::GpuUses;
use fleet_image::ImageStore;

pub use wake::{Wakes, WakesError};

/// Streams over one connection: the transport allows 64 calls.
const PER_CONNECTION_MAX: usize = 48;
/// Connections for streams to one controller.
const CONNECTIONS_MAX: usize = 16;
/// Frames under way in one stream.
const FRAMES: usize = 32;
/// How long the controller may take to read the last frames and close the stream.
const FAREWELL: Duration = Duration::from_secs(30);
/// Largest piece of output in one frame.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// One end of a stream: frames to the user.
#[derive(Debug, Clone)]
struct ToUser(mpsc::Sender<v1::TunnelFrame>);

/// The user, or the connection to them, is gone.
#[derive(Debug)]
struct Gone;

impl ToUser {
    async fn send(&self, frame: Frame) -> Result<(), Gone> {
        self.0.send(v1::TunnelFrame { frame: Some(frame) }).await.map_err(|_| Gone)
    }
}

/// Frames from the user.
#[derive(Debug)]
struct FromUser(Streaming<v1::TunnelFrame>);

impl FromUser {
    /// The next frame; `None` when the user's side is closed. Safe to use in `select!`.
    async fn next(&mut self) -> Option<Frame> {
        match self.0.message().await {
            Ok(Some(message)) => message.frame,
            Ok(None) | Err(_) => None,
        }
    }
}

#[derive(Debug)]
struct Connection {
    channel: Channel,
    streams: Arc<AtomicUsize>,
}

/// Opens streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tunnels {
    registry: Registry,
    wakes: Wakes,
    dialer: Dialer,
    images: Option<ImageStore>,
    gpu_uses: Option<GpuUses>,
    /// By controller: a stream must reach the one that asked for it.
    connections: Arc<Mutex<HashMap<Address, Vec<Connection>>>>,
}

/// A place in a connection; dropping it frees the place.
#[derive(Debug)]
struct Seat {
    channel: Channel,
    streams: Arc<AtomicUsize>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tunnels {
    pub fn new(registry: Registry, wakes: Wakes, dialer: Dialer) -> Self {
        Self { registry, wakes, dialer, images: None, gpu_uses: None, connections: Arc::default() }
    }

    /// The same for a node that has images.
    pub fn with_images(self, images: ImageStore) -> Self {
        Self { images: Some(images), ..self }
    }

    /// The same for a node that measures GPUs.
    pub fn with_gpu_uses(self, gpu_uses: GpuUses) -> Self {
        Self { gpu_uses: Some(gpu_uses), ..self }
    }

    /// Calls back and serves the stream, in a task of its own.
    pub fn open(&self, address: &Address, link: &Channel, open: v1::OpenTunnel) {
        let this = self.clone();
        let seat = self.seat(address, link);
        tokio::spawn(async move {
            let id = open.tunnel_id.clone();
            if let Err(status) = this.serve(seat, open).await {
                tracing::debug!(id, reason = status.message(), "stream not opened");
            }
        });
    }

    /// A place in a connection with room, or in a new one; beyond the limit in the link's own.
    fn seat(&self, address: &Address, link: &Channel) -> Seat {
        let mut all = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.entry(address.clone()).or_default();
        let room = |c: &&Connection| c.streams.load(Ordering::Relaxed) < PER_CONNECTION_MAX;
        let found = match of.iter().find(room) {
            Some(connection) => Some((connection.channel.clone(), connection.streams.clone())),
            None if of.len() < CONNECTIONS_MAX => {
                let channels = self.dialer.channels().into_iter();
                channels.into_iter().find(|(known, _)| known == address).map(|(_, channel)| {
                    let streams = Arc::new(AtomicUsize::new(0));
                    of.push(Connection { channel: channel.clone(), streams: streams.clone() });
                    (channel, streams)
                })
            }
            None => None,
        };
        let (channel, streams) = found.unwrap_or_else(|| (link.clone(), Arc::default()));
        streams.fetch_add(1, Ordering::Relaxed);
        Seat { channel, streams }
    }

    async fn serve(&self, seat: Seat, open: v1::OpenTunnel) -> Result<(), Status> {
        let (sender, frames) = mpsc::channel(FRAMES);
        let to = ToUser(sender);
        // There is room: it is new.
        drop(to.send(Frame::TunnelId(open.tunnel_id)).await);
        let mut client = AgentsClient::new(seat.channel.clone());
        let from = client.tunnel(ReceiverStream::new(frames)).await?.into_inner();
        let mut from = FromUser(from);
        let served = match (AllocationId::parse(&open.allocation), open.purpose) {
            (_, Some(Purpose::Images(wish))) => self.images(wish, &to, &mut from).await,
            (_, Some(Purpose::GpuMinutes(wish))) => self.gpu_minutes(wish, &to).await,
            (Ok(id), Some(Purpose::Output(wish))) => self.output(&id, wish, &to, &mut from).await,
            (Ok(id), Some(Purpose::Exec(wish))) => self.exec(&id, wish, &to, &mut from).await,
            (Err(error), _) => to.send(Frame::Error(error.to_string())).await,
            (Ok(_), None) => to.send(Frame::Error("nothing was asked for".to_owned())).await,
        };
        drop(to);
        if served.is_ok() {
            // Dropping the stream resets the call: frames that are still under way would be lost.
            // So wait until the controller ends it, once it has the last frame.
            drop(timeout(FAREWELL, async { while from.next().await.is_some() {} }).await);
        }
        Ok(())
    }
}
