//! One agent's link: its reports into the log, what should be on its node out to it.
//!
//! A task per connection, spawned by the agents' service. It ends when the connection does, or when
//! this controller does not lead any more; the agent then finds the leader and says everything again.

use std::collections::VecDeque;
use std::time::Duration;

use fleet_core::command::{Command, Report};
use fleet_core::desired::DesiredNode;
use fleet_core::name::NodeName;
use fleet_core::{Actor, Rejection};
use fleet_proto::v1;
use fleet_proto::v1::agent_message::Message;
use fleet_proto::v1::controller_message::Message as Answer;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::Context;
use crate::raft::{Applied, ProposeError};
use crate::sessions::Standing;

/// Batches of reports that wait while one is being written.
const BATCHES_WAITING_MAX: usize = 16;
/// An agent that says nothing for this long has lost its connection.
const SILENCE_MAX: Duration = Duration::from_secs(30);

type Outbound = mpsc::Sender<Result<v1::ControllerMessage, Status>>;
type Written = (u64, Result<Applied, ProposeError>);

/// See the module's doc.
pub(super) struct Link {
    context: Context,
    node: NodeName,
    actor: Actor,
    instance: String,
    connection: u64,
    stream: Outbound,
    sent: Option<DesiredNode>,
    /// Addresses of the controllers, as the agent was told.
    told: Vec<String>,
    waiting: VecDeque<v1::AgentReports>,
    suspended: bool,
}

/// Why a link ends.
enum End {
    /// The agent went away.
    Closed,
    /// The agent is told why.
    Tell(Status),
}

impl Link {
    pub(super) fn new(
        context: Context,
        node: NodeName,
        actor: Actor,
        instance: String,
        connection: u64,
        stream: Outbound,
    ) -> Self {
        let (sent, told, waiting) = (None, Vec::new(), VecDeque::new());
        let suspended = false;
        Self { context, node, actor, instance, connection, stream, sent, told, waiting, suspended }
    }

    pub(super) async fn run(
        mut self,
        mut inbound: Streaming<v1::AgentMessage>,
        mut asks: mpsc::Receiver<v1::ControllerMessage>,
    ) {
        let end = self.serve(&mut inbound, &mut asks).await;
        self.context.sessions.close(&self.node, self.connection);
        match end {
            End::Closed => tracing::info!(node = %self.node, "agent disconnected"),
            End::Tell(status) => {
                tracing::info!(node = %self.node, reason = status.message(), "link closed");
                // The agent may be gone already.
                drop(self.stream.send(Err(status)).await);
            }
        }
    }

    async fn serve(
        &mut self,
        inbound: &mut Streaming<v1::AgentMessage>,
        asks: &mut mpsc::Receiver<v1::ControllerMessage>,
    ) -> End {
        let mut applied = self.context.raft.applied();
        let mut leadership = self.context.raft.leadership();
        let (written_tx, mut written) = mpsc::channel::<Written>(1);
        let mut writing = false;
        if let Err(end) = self.send_desired().await {
            return end;
        }
        loop {
            if !writing && let Some(batch) = self.waiting.pop_front() {
                writing = self.write(batch, written_tx.clone()).await;
            }
            let step = tokio::select! {
                message = tokio::time::timeout(SILENCE_MAX, inbound.message()),
                    if self.waiting.len() < BATCHES_WAITING_MAX => match message {
                    Ok(Ok(Some(message))) => self.hear(message).await,
                    Ok(Ok(None) | Err(_)) => Err(End::Closed),
                    Err(_) => Err(End::Tell(Status::deadline_exceeded("nothing was heard for too long"))),
                },
                Some((number, result)) = written.recv() => {
                    writing = false;
                    self.acknowledge(number, result).await
                }
                Some(ask) = asks.recv() => self.send(ask).await,
                changed = applied.changed() => match changed {
                    Ok(()) => self.send_desired().await,
                    Err(_) => Err(End::Tell(Status::unavailable("this controller is stopping"))),
                },
                changed = leadership.changed() => {
                    let leads = changed.is_ok() && leadership.borrow().is_leader;
                    if leads { Ok(()) } else { Err(End::Tell(Status::unavailable("this controller does not lead any more"))) }
                }
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn send(&self, message: v1::ControllerMessage) -> Result<(), End> {
        self.stream.send(Ok(message)).await.map_err(|_| End::Closed)
    }

    async fn hear(&mut self, message: v1::AgentMessage) -> Result<(), End> {
        let standing = self.context.sessions.heard(&self.node, self.connection, &self.instance);
        if standing == Standing::Superseded {
            self.suspend().await;
        }
        match message.message {
            Some(Message::Heartbeat(beat)) => {
                let echo = v1::HeartbeatEcho {
                    sent_boottime_ms: beat.sent_boottime_ms,
                    now_unix_ms: self.context.clock.now().0,
                    time_unconfirmed: self.context.clock.is_unconfirmed(),
                };
                self.context.sessions.beat(&self.node, self.connection, beat);
                // An answer says: the fleet is led. What cannot decide anything must not keep an agent from keeping
                // its calendar, nor a shim from its `--stop-after`.
                if self.context.raft.leads_a_quorum() {
                    self.send(v1::ControllerMessage { message: Some(Answer::Echo(echo)) }).await?;
                }
                self.send_desired().await
            }
            Some(Message::Reports(reports)) => {
                self.waiting.push_back(reports);
                Ok(())
            }
            Some(Message::Hello(_)) | None => {
                Err(End::Tell(Status::invalid_argument("`hello` comes once, and first")))
            }
        }
    }

    /// Two live agents speak under this node's name: nothing is placed there until somebody looked.
    async fn suspend(&mut self) {
        if std::mem::replace(&mut self.suspended, true) {
            return;
        }
        tracing::error!(node = %self.node, instance = self.instance, "two live agents speak under one name");
        let reason =
            "two live agents speak under this name; stop one of them, then uncordon".to_owned();
        let command = Command::SuspendNode { node: self.node.clone(), reason };
        let envelope = self.context.envelope(Actor::controller(), None, command);
        if let Err(error) = self.context.raft.propose(envelope).await {
            tracing::warn!(node = %self.node, %error, "the node could not be suspended");
            self.suspended = false;
        }
    }

    /// Begins to write a batch; the answer comes over `written`. Says whether it was begun.
    async fn write(&mut self, batch: v1::AgentReports, written: mpsc::Sender<Written>) -> bool {
        let reports: Vec<Report> = match serde_json::from_slice(&batch.reports_json) {
            Ok(reports) => reports,
            Err(error) => {
                let rejection = Rejection::field("reports_json", error.to_string());
                let applied = Applied { log_index: 0, reply: Err(rejection) };
                // The receiver is the caller's own and has room: nothing else is being written.
                return written.send((batch.number, Ok(applied))).await.is_ok();
            }
        };
        let command = Command::ReportNode { node: self.node.clone(), reports };
        let envelope = self.context.envelope(self.actor.clone(), None, command);
        let raft = self.context.raft.clone();
        tokio::spawn(async move {
            let result = raft.propose(envelope).await;
            // The link may have ended meanwhile.
            drop(written.send((batch.number, result)).await);
        });
        true
    }

    async fn acknowledge(
        &self,
        number: u64,
        result: Result<Applied, ProposeError>,
    ) -> Result<(), End> {
        let refused = match result {
            Ok(Applied { reply: Ok(_), .. }) => String::new(),
            Ok(Applied { reply: Err(rejection), .. }) => {
                tracing::warn!(node = %self.node, %rejection, "reports refused");
                rejection.to_string()
            }
            Err(error) => return Err(End::Tell(super::propose::propose_status(&error))),
        };
        let acknowledge = v1::Acknowledge { number, refused };
        self.send(v1::ControllerMessage { message: Some(Answer::Acknowledge(acknowledge)) }).await
    }

    /// Tells where the controllers are, if that changed.
    async fn send_addresses(&mut self) -> Result<(), End> {
        let addresses = self.context.addresses();
        if addresses == self.told {
            return Ok(());
        }
        self.told.clone_from(&addresses);
        let told = Answer::Controllers(v1::ControllerAddresses { addresses });
        self.send(v1::ControllerMessage { message: Some(told) }).await
    }

    /// Sends what should be on the node if that changed, after making sure that this controller
    /// still leads: a deposed leader must not order anything.
    async fn send_desired(&mut self) -> Result<(), End> {
        self.send_addresses().await?;
        let held = self.context.sessions.held(&self.node);
        let desired = self.context.raft.read(|fsm| fsm.desired(&self.node, &held));
        if self.sent.as_ref() == Some(&desired) {
            return Ok(());
        }
        if let Err(error) = self.context.raft.ensure_linearizable().await {
            return Err(End::Tell(super::propose::read_status(&error)));
        }
        let leadership = *self.context.raft.leadership().borrow();
        if !leadership.is_leader {
            return Err(End::Tell(Status::unavailable("this controller does not lead any more")));
        }
        // Read again: the confirmation covers what is read after it.
        let (desired, incarnation, applied_index) = self
            .context
            .raft
            .read(|fsm| (fsm.desired(&self.node, &held), fsm.incarnation(), fsm.applied()));
        let desired_json = serde_json::to_vec(&desired)
            .map_err(|e| End::Tell(Status::internal(format!("encode: {e}"))))?;
        let term = leadership.term;
        let message = v1::Desired { incarnation, term, applied_index, desired_json };
        self.sent = Some(desired);
        self.send(v1::ControllerMessage { message: Some(Answer::Desired(message)) }).await
    }
}
