//! The agents' service: one link per agent, and the streams agents open when asked.

use std::pin::Pin;

use fleet_core::command::{Command, NodeCommand};
use fleet_core::name::NodeName;
use fleet_core::node::NodeFacts;
use fleet_core::{Actor, AuthMethod, Rejection, Who};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::transport::limits::AGENT_MESSAGE_BYTES_MAX;
use fleet_proto::v1;
use fleet_proto::v1::agent_message::Message;
use fleet_proto::v1::agents_server::{Agents, AgentsServer};
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use super::link::{Link, ToStream};
use super::propose::propose_status;
use crate::callers::NodePeer;
use crate::sessions::AGENT_QUEUE;
use crate::superseded;
use crate::tunnels::{FRAMES_IN_FLIGHT, Tunnel};

/// The service over its context.
#[derive(Debug, Clone)]
pub struct AgentsService(Context);

impl AgentsService {
    pub fn new(context: Context) -> Self {
        Self(context)
    }

    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> AgentsServer<AgentsService> {
        AgentsServer::new(self).max_decoding_message_size(AGENT_MESSAGE_BYTES_MAX)
    }
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agents for AgentsService {
    type SyncStream = Messages<v1::ControllerMessage>;
    type TunnelStream = Messages<v1::TunnelFrame>;

    async fn sync(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let NodePeer { name: node, serial } = self.0.callers.node(&request)?;
        let who = Who::Node { name: node.clone() };
        let actor = Actor { who, method: AuthMethod::Certificate, serial };
        let mut messages = request.into_inner();
        let first = messages.message().await?.and_then(|m| m.message);
        let Some(Message::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first message must be `hello`"));
        };
        let facts = parse_facts(&hello)?;
        self.check_incarnation(&node, hello.incarnation.as_ref())?;
        self.register(&node, &actor, facts).await?;
        let (to_agent, outbound) = mpsc::channel(AGENT_QUEUE);
        let connection = self.0.sessions.open(&node, &hello.agent_instance, to_agent.clone());
        self.0.sessions.shown(&node, connection, actor.serial.clone());
        tracing::info!(%node, instance = hello.agent_instance, "agent connected");
        let (stream, receiver) = mpsc::channel(AGENT_QUEUE);
        let link = Link::new(self.0.clone(), node, actor, hello.agent_instance, connection, stream);
        tokio::spawn(link.run(messages, outbound));
        let messages = ReceiverStream::new(receiver).map(|sent: ToStream| sent.map(|boxed| *boxed));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn tunnel(
        &self,
        request: Request<Streaming<v1::TunnelFrame>>,
    ) -> Result<Response<Self::TunnelStream>, Status> {
        let node = self.0.callers.node(&request)?.name;
        let mut from_agent = request.into_inner();
        let first = from_agent.message().await?.and_then(|m| m.frame);
        let Some(Frame::TunnelId(id)) = first else {
            return Err(Status::invalid_argument("the first frame must be `tunnel_id`"));
        };
        let (to_agent, frames) = mpsc::channel(FRAMES_IN_FLIGHT);
        self.0.tunnels.answer(&node, &id, Tunnel { from_agent, to_agent })?;
        Ok(Response::new(Box::pin(ReceiverStream::new(frames))))
    }
}

impl AgentsService {
    /// Refuses a node that has proof of a higher incarnation: then this controller is of before a restore, and stops.
    fn check_incarnation(
        &self,
        node: &NodeName,
        shown: Option<&v1::SignedIncarnation>,
    ) -> Result<(), Status> {
        let own = self.0.raft.incarnation();
        if own == 0 {
            // It has just joined: nothing is known here, and every number would be higher.
            return Err(Status::unavailable("this controller has no state yet"));
        }
        let Some(shown) = shown.filter(|shown| shown.incarnation > own) else { return Ok(()) };
        let number = shown.incarnation;
        let cluster = self.0.keyring.signing().cluster().to_string();
        if !superseded::is_genuine(&self.0.keyring, &cluster, shown) {
            tracing::warn!(%node, number, "a node names a higher incarnation of the fleet without proof");
            return Ok(());
        }
        self.0.superseded.tell(number, format!("node {node}"));
        Err(Status::unavailable("this controller belongs to the fleet before a restore, and stops"))
    }

    async fn register(
        &self,
        node: &NodeName,
        actor: &Actor,
        facts: NodeFacts,
    ) -> Result<(), Status> {
        // Silence is broken by this connection, so the log hears of it at once.
        let command =
            Command::Node(NodeCommand::Register { node: node.clone(), facts: Box::new(facts) });
        let envelope = self.0.envelope(actor.clone(), None, command);
        let applied = self.0.raft.propose(envelope).await.map_err(|e| propose_status(&e))?;
        applied.reply.map(|_| ()).map_err(|rejection| {
            tracing::warn!(%node, %rejection, "agent refused");
            self.0.refusals.note(&actor.principal(), "register_node", rejection.code());
            to_status(&rejection)
        })
    }
}

fn parse_facts(hello: &v1::AgentHello) -> Result<NodeFacts, Status> {
    serde_json::from_slice(&hello.facts_json)
        .map_err(|e| to_status(&Rejection::field("hello.facts_json", e.to_string())))
}
