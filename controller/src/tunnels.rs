//! Streams between a user and a node, through the agent's own connection to the controller.
//!
//! Agents accept no connections, so the controller asks for a stream over the link and the agent
//! calls back with its number. The API opens, `api::agents` answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_core::name::NodeName;
use fleet_proto::convert::rejection::node_away;
use fleet_proto::v1;
use fleet_proto::v1::open_tunnel::Purpose;
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use crate::random;
use crate::sessions::Sessions;

/// How long an agent may take to call back.
const CALL_BACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams asked for and not yet answered.
const PENDING_MAX: usize = 1_024;
/// Frames under way to the agent in one stream.
pub const FRAMES_IN_FLIGHT: usize = 64;

/// Both directions of a stream to an agent.
#[derive(Debug)]
pub struct Tunnel {
    pub from_agent: Streaming<v1::TunnelFrame>,
    pub to_agent: mpsc::Sender<Result<v1::TunnelFrame, Status>>,
}

type Pending = BTreeMap<String, (NodeName, oneshot::Sender<Tunnel>)>;

/// Handle on the streams that were asked for.
#[derive(Debug, Clone)]
pub struct Tunnels {
    sessions: Sessions,
    pending: Arc<Mutex<Pending>>,
}

impl Tunnels {
    pub fn new(sessions: Sessions) -> Self {
        Self { sessions, pending: Arc::default() }
    }

    /// Asks the node's agent for a stream, of an allocation or of the node itself.
    pub async fn open(
        &self,
        node: &NodeName,
        allocation: Option<&AllocationId>,
        purpose: Purpose,
    ) -> Result<Tunnel, Status> {
        let gone = || {
            let message = format!("{node} is not connected to this controller");
            node_away(node.as_str(), Status::unavailable(message))
        };
        let agent = self.sessions.sender(node).ok_or_else(gone)?;
        let id = random::hex::<16>().map_err(|e| Status::internal(e.to_string()))?;
        let (answer, answered) = oneshot::channel();
        {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.retain(|_, (_, waiting)| !waiting.is_closed());
            if pending.len() >= PENDING_MAX {
                return Err(Status::resource_exhausted("too many streams are being opened"));
            }
            pending.insert(id.clone(), (node.clone(), answer));
        }
        let ask = v1::OpenTunnel {
            tunnel_id: id,
            allocation: allocation.map(ToString::to_string).unwrap_or_default(),
            purpose: Some(purpose),
        };
        let message = v1::controller_message::Message::OpenTunnel(ask);
        let message = v1::ControllerMessage { message: Some(message) };
        agent.send(Box::new(message)).await.map_err(|_| gone())?;
        match tokio::time::timeout(CALL_BACK_TIMEOUT, answered).await {
            Ok(Ok(tunnel)) => Ok(tunnel),
            Ok(Err(_)) | Err(_) => {
                Err(Status::unavailable(format!("{node} did not open the stream in time")))
            }
        }
    }

    /// An agent calls back with the number it was given. Another node's number is unknown to it.
    pub fn answer(&self, node: &NodeName, id: &str, tunnel: Tunnel) -> Result<(), Status> {
        let unknown = || Status::not_found("no such stream was asked for");
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.get(id).is_none_or(|(asked, _)| asked != node) {
            return Err(unknown());
        }
        let (_, waiting) = pending.remove(id).ok_or_else(unknown)?;
        waiting.send(tunnel).map_err(|_| unknown())
    }
}
