//! One agent's link: its reports into the log, what should be on its node out to it.
//!
//! A task per connection, spawned by the agents' service. It ends when the connection does, or when
//! this controller does not lead any more; the agent then finds the leader and says everything again.

use std::collections::VecDeque;
use std::time::Duration;

use fleet_core::command::{Command, NodeCommand, Report};
use fleet_core::desired::DesiredNode;
use fleet_core::name::NodeName;
use fleet_core::{Actor, Rejection};
use fleet_proto::v1;
use fleet_proto::v1::agent_message::Message;
use fleet_proto::v1::controller_message::Message as Answer;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::{Context, free};
use crate::raft::{Applied, ProposeError};
use crate::sessions::{Standing, ToAgent};
use crate::superseded;

/// Batches of reports that wait while one is being written.
const BATCHES_WAITING_MAX: usize = 16;
/// An agent that says nothing for this long has lost its connection.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// After a look at the state, a link waits this long for each agent that is connected before it looks again: all
/// links together look at most so often, however fast the log grows. The first look after a pause is at once.
const LOOK_PAUSE_PER_AGENT: Duration = Duration::from_micros(20);
/// A shorter pause is none: the timer counts in milliseconds, and a few links may look as often as they like.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Agents that move to another authority do so one in this time, on average, and all within the other.
const MOVE_EVERY_MS: u64 = 20;
const MOVE_SPREAD_MAX_MS: u64 = 120_000;

/// What goes out on the stream.
pub(super) type ToStream = Result<ToAgent, Status>;
type Outbound = mpsc::Sender<ToStream>;
type Written = (u64, Result<Applied, Status>);

/// See the module's doc.
pub(super) struct Link {
    context: Context,
    node: NodeName,
    actor: Actor,
    instance: String,
    connection: u64,
    stream: Outbound,
    sent: Option<DesiredNode>,
    /// Addresses of the controllers that this link last sent to the agent.
    told: Vec<String>,
    /// The version of the state's authorities that this link last sent to the agent.
    told_authorities: u64,
    waiting: VecDeque<v1::AgentReports>,
    suspended: bool,
}

/// Why a link ends.
enum End {
    /// The agent went away.
    Closed,
    /// The controller ends the link, and sends the agent this reason.
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
        let (suspended, told_authorities) = (false, 0);
        Self {
            context,
            node,
            actor,
            instance,
            connection,
            stream,
            sent,
            told,
            told_authorities,
            waiting,
            suspended,
        }
    }

    pub(super) async fn run(
        mut self,
        mut inbound: Streaming<v1::AgentMessage>,
        mut asks: mpsc::Receiver<ToAgent>,
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
        asks: &mut mpsc::Receiver<ToAgent>,
    ) -> End {
        let mut applied = self.context.raft.applied();
        let mut look_at = Instant::now();
        let mut leadership = self.context.raft.leadership();
        let mut writing = None;
        let begun = match self.send_incarnation().await {
            Ok(()) => self.send_desired().await,
            ended => ended,
        };
        if let Err(end) = begun {
            return end;
        }
        loop {
            if writing.is_none()
                && let Some(batch) = self.waiting.pop_front()
            {
                writing = Some(self.write(batch));
            }
            let step = tokio::select! {
                message = tokio::time::timeout(SILENCE_MAX, inbound.message()),
                    if self.waiting.len() < BATCHES_WAITING_MAX => match message {
                    Ok(Ok(Some(message))) => self.hear(message).await,
                    Ok(Ok(None) | Err(_)) => Err(End::Closed),
                    Err(_) => Err(End::Tell(Status::deadline_exceeded("nothing was heard for too long"))),
                },
                written = answered(&mut writing) => {
                    writing = None;
                    match written {
                        Some((number, result)) => self.acknowledge(number, result).await,
                        None => Err(End::Tell(Status::internal("the reports were not written"))),
                    }
                }
                Some(ask) = asks.recv() => self.pass_on(ask).await,
                changed = changed_after(look_at, &mut applied) => match changed {
                    Ok(()) => {
                        let pause = self.context.sessions.pause(LOOK_PAUSE_PER_AGENT);
                        if pause >= LOOK_PAUSE_MIN {
                            look_at = Instant::now() + pause;
                        }
                        self.send_desired().await
                    }
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

    async fn send(&self, answer: Answer) -> Result<(), End> {
        self.pass_on(Box::new(v1::ControllerMessage { message: Some(answer) })).await
    }

    async fn pass_on(&self, message: ToAgent) -> Result<(), End> {
        self.stream.send(Ok(message)).await.map_err(|_| End::Closed)
    }

    fn echo(&self, beat: &v1::AgentHeartbeat) -> v1::HeartbeatEcho {
        let now = self.context.clock.now();
        let free = || self.context.raft.read(|fsm| free::near(fsm, &self.node, now));
        v1::HeartbeatEcho {
            sent_boottime_ms: beat.sent_boottime_ms,
            now_unix_ms: now.0,
            time_unconfirmed: self.context.clock.is_unconfirmed(),
            free: beat.wants_free.then(free),
        }
    }

    async fn hear(&mut self, message: v1::AgentMessage) -> Result<(), End> {
        let standing = self.context.sessions.heard(&self.node, self.connection, &self.instance);
        if standing == Standing::Superseded {
            // Rare, and large: not in every link.
            Box::pin(self.suspend()).await;
        }
        match message.message {
            Some(Message::Heartbeat(beat)) => {
                // An answer says: the fleet is led. What cannot decide anything must not keep an agent from keeping
                // its calendar, nor a shim from its `--stop-after`.
                let echo = self.context.raft.leads_a_quorum().then(|| self.echo(&beat));
                self.context.sessions.beat(&self.node, self.connection, beat);
                if let Some(echo) = echo {
                    self.send(Answer::Echo(echo)).await?;
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
        let command = Command::Node(NodeCommand::Suspend { node: self.node.clone(), reason });
        let envelope = self.context.envelope(Actor::controller(), None, command);
        if let Err(error) = self.context.raft.propose(envelope).await {
            tracing::warn!(node = %self.node, %error, "the node could not be suspended");
            self.suspended = false;
        }
    }

    /// Begins to write a batch, beside everything else; gives where the answer comes.
    fn write(&self, batch: v1::AgentReports) -> oneshot::Receiver<Written> {
        let (written, answer) = oneshot::channel();
        let reports: Vec<Report> = match serde_json::from_slice(&batch.reports_json) {
            Ok(reports) => reports,
            Err(error) => {
                let rejection = Rejection::field("reports_json", error.to_string());
                let applied = Applied { log_index: 0, reply: Err(rejection) };
                // The receiver is here.
                drop(written.send((batch.number, Ok(applied))));
                return answer;
            }
        };
        let found = reports.iter().any(|report| matches!(report, Report::Found(_)));
        let command = Command::Node(NodeCommand::Report { node: self.node.clone(), reports });
        let envelope = self.context.envelope(self.actor.clone(), None, command);
        let raft = self.context.raft.clone();
        tokio::spawn(async move {
            let result = settled(found, raft.propose(envelope).await);
            // The link may have ended meanwhile.
            drop(written.send((batch.number, result)));
        });
        answer
    }

    async fn acknowledge(&self, number: u64, result: Result<Applied, Status>) -> Result<(), End> {
        let refused = match result {
            Ok(Applied { reply: Ok(_), .. }) => String::new(),
            Ok(Applied { reply: Err(rejection), .. }) => {
                tracing::warn!(node = %self.node, %rejection, "reports refused");
                rejection.to_string()
            }
            Err(status) => return Err(End::Tell(status)),
        };
        let acknowledge = v1::Acknowledge { number, refused };
        self.send(Answer::Acknowledge(acknowledge)).await
    }

    /// Gives the agent the proof of this incarnation, for controllers of before a restore. A fleet that was never
    /// restored has none.
    async fn send_incarnation(&self) -> Result<(), End> {
        let (incarnation, is_restored) =
            self.context.raft.read(|fsm| (fsm.incarnation(), fsm.restored().is_some()));
        if !is_restored {
            return Ok(());
        }
        let cluster = self.context.keyring.signing().cluster().to_string();
        match superseded::signed(&self.context.signer, &cluster, incarnation) {
            Ok(signed) => self.send(Answer::Incarnation(signed)).await,
            Err(error) => {
                tracing::error!(%error, "the incarnation cannot be signed");
                Ok(())
            }
        }
    }

    /// Tells where the controllers are, if that changed.
    async fn send_addresses(&mut self) -> Result<(), End> {
        let addresses = self.context.addresses();
        if addresses == self.told {
            return Ok(());
        }
        self.told.clone_from(&addresses);
        self.send(Answer::Controllers(v1::ControllerAddresses { addresses })).await
    }

    /// Tells which authorities the fleet has, once it ever exchanged one, and when that changes.
    async fn send_authorities(&mut self) -> Result<(), End> {
        let told = self.told_authorities;
        let newer = self.context.raft.read(|fsm| {
            let all = fsm.authorities();
            let signing = all.signing().filter(|_| all.version != told)?.pin.clone();
            let trusted = all.trusted().iter().map(|known| known.pin.clone()).collect();
            let nodes = u64::try_from(fsm.nodes().len()).unwrap_or(u64::MAX);
            let spread_ms = nodes.saturating_mul(MOVE_EVERY_MS).min(MOVE_SPREAD_MAX_MS);
            Some((all.version, v1::Authorities { signing, trusted, spread_ms }))
        });
        let Some((version, authorities)) = newer else { return Ok(()) };
        self.told_authorities = version;
        self.send(Answer::Authorities(authorities)).await
    }

    /// Sends what should be on the node if that changed, after making sure that this controller
    /// still leads: a deposed leader must not order anything.
    async fn send_desired(&mut self) -> Result<(), End> {
        self.send_addresses().await?;
        self.send_authorities().await?;
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
        self.send(Answer::Desired(message)).await
    }
}

/// What became of a batch. An attempt that was found after a restore is not refused for good by members that do not know its
/// kind yet: the agent would forget it. It comes back and says everything again.
fn settled(found: bool, result: Result<Applied, ProposeError>) -> Result<Applied, Status> {
    match result {
        Ok(Applied { reply: Err(rejection @ Rejection::ClusterVersion { .. }), .. }) if found => {
            Err(Status::unavailable(format!(
                "what this node runs is not known here yet: {rejection}"
            )))
        }
        Ok(applied) => Ok(applied),
        Err(error) => Err(super::propose::propose_status(&error)),
    }
}

/// What became of the batch that is being written, if one is; nothing where its task broke off.
async fn answered(writing: &mut Option<oneshot::Receiver<Written>>) -> Option<Written> {
    match writing {
        Some(answer) => answer.await.ok(),
        None => std::future::pending().await,
    }
}

/// Returns when something was applied, but not before `at`.
async fn changed_after(
    at: Instant,
    applied: &mut watch::Receiver<u64>,
) -> Result<(), watch::error::RecvError> {
    sleep_until(at).await;
    applied.changed().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A restored fleet's controller, before it knows that all members can run the newer version.
    #[test]
    fn what_was_found_is_not_refused_for_good_by_an_older_fleet() {
        let refused = |rejection| Ok(Applied { log_index: 0, reply: Err(rejection) });
        let version = || Rejection::ClusterVersion { needs: 13, have: 12 };
        let status = settled(true, refused(version())).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(status.message().contains("needs version 13"), "{status}");
        let told =
            |found, rejection| settled(found, refused(rejection)).unwrap().reply.unwrap_err();
        assert_eq!(
            told(false, version()),
            version(),
            "an agent ahead of its fleet keeps its state"
        );
        let bad = || Rejection::field("reports_json", "is none");
        assert_eq!(told(true, bad()), bad());
        let lost = settled(true, Err(ProposeError::NoQuorum)).unwrap_err();
        assert_eq!(lost.code(), tonic::Code::Unavailable);
    }

    #[tokio::test]
    async fn the_first_change_is_seen_at_once_and_the_next_ones_together_after_the_pause() {
        let (index, mut applied) = watch::channel(0_u64);
        index.send_replace(1);
        changed_after(Instant::now(), &mut applied).await.unwrap();
        let at = Instant::now() + Duration::from_millis(50);
        for number in 2..100 {
            index.send_replace(number);
        }
        changed_after(at, &mut applied).await.unwrap();
        assert!(Instant::now() >= at);
        assert!(!applied.has_changed().unwrap(), "all of them were seen");
    }
}
