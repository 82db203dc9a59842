//! Connecting, and one connection from its hello to its end.

use std::time::Duration;

use fleet_core::desired::{DESIRED_VERSION, DesiredNode};
use fleet_core::id::AllocationId;
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use fleet_proto::convert::rejection::leader_named;
use fleet_proto::transport::client::{Address, Dialer};
use fleet_proto::transport::limits::{ADDRESSES_MAX, AGENT_MESSAGE_BYTES_MAX, CONNECT_TIMEOUT};
use fleet_proto::v1;
use fleet_proto::v1::agent_message::Message;
use fleet_proto::v1::agents_client::AgentsClient;
use fleet_proto::v1::controller_message::Message as Answer;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::backoff::Backoff;
use crate::ahead::Contact;
use crate::attempts::Registry;
use crate::clock;
use crate::enroll::store::IdentityFolder;
use crate::fence::{Fence, Standing};
use crate::inventory::View;
use crate::job_use::JobUses;
use crate::outbox::{Batch, Outbox};
use crate::terminals::free_gpus::FreeGpus;
use crate::tunnel::Tunnels;

/// How often the agent says that it is there.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
/// A document that may have been sent longer ago than this is not acted upon. Well below the shortest
/// silence after which a controller may give work to others.
const FRESH_MAX: Duration = Duration::from_secs(20);
/// When this many attempts were removed, the agent reports early: the controller names each of them in
/// every document until it knows.
const GONE_MAX: usize = 16;
/// But not more often than this.
const BEAT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A controller that says nothing for this long is gone: it answers every heartbeat.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long a controller may take to accept the agent: the registration goes through the log.
const ACCEPT_MAX: Duration = Duration::from_secs(10);
/// After a link that worked is lost, the next is begun within this time, at a moment drawn by lot.
const LOST_SPREAD: Duration = Duration::from_millis(500);
/// How long a start waits for company: a job that ends within it is one entry in the log instead of two.
const COMPANY_MAX: Duration = Duration::from_millis(10);
/// Messages that wait for the connection.
const QUEUE: usize = 64;

/// What the link is made of.
#[derive(Debug)]
pub struct LinkParts {
    pub node: NodeName,
    pub dialer: Dialer,
    pub fence: Fence,
    pub outbox: Outbox,
    pub view: View,
    pub registry: Registry,
    /// What running attempts use.
    pub job_uses: JobUses,
    pub tunnels: Tunnels,
    /// The newest document that may be acted upon.
    pub desired: watch::Sender<Option<DesiredNode>>,
    /// When the heartbeat was sent, since boot, that a controller answered last.
    pub heard: watch::Sender<Duration>,
    pub pulse: Pulse,
    /// Where addresses that the controllers tell are kept; nothing where the configuration says them.
    pub addresses: Option<IdentityFolder>,
    pub line: Contact,
    /// Asked for with a heartbeat.
    pub elsewhere: FreeGpus,
    /// Which authorities the fleet has, as a controller says; renewal follows it.
    pub authorities: watch::Sender<Option<v1::Authorities>>,
}

/// The task that keeps the connection.
#[derive(Debug)]
pub struct Link {
    parts: LinkParts,
    backoff: Backoff,
}

/// A connection on which a controller has accepted this agent.
struct Connection {
    channel: Channel,
    to: mpsc::Sender<v1::AgentMessage>,
    inbound: Streaming<v1::ControllerMessage>,
    /// Since boot, when the controller was asked.
    asked: Duration,
}

/// What a connection is used for, until it is lost; with a new certificate it continues over another one.
struct Session<'a> {
    parts: &'a mut LinkParts,
    channel: Channel,
    address: Address,
    to: mpsc::Sender<v1::AgentMessage>,
    under_way: Option<(u64, Batch)>,
    /// Until then starts wait for something else to be said with them.
    company_until: Option<Instant>,
    number: u64,
    /// A document was taken on this connection.
    useful: bool,
    /// When the last heartbeat was sent.
    beaten: Instant,
    /// When, since boot, the newest question was sent that the controller has answered.
    answered: Duration,
    /// A document that may be old.
    held_back: Option<DesiredNode>,
}

impl Link {
    pub fn new(parts: LinkParts) -> Self {
        Self { parts, backoff: Backoff::new() }
    }

    /// Connects, serves, and connects again, until dropped.
    pub async fn run(mut self) {
        let mut next = 0;
        let mut last_problem = String::new();
        loop {
            let channels = self.parts.dialer.channels();
            if channels.is_empty() {
                tracing::error!("no controller address is known");
                self.parts.pulse.during(sleep(self.backoff.pause(random()))).await;
                continue;
            }
            let at = next % channels.len();
            let (address, channel) = channels[at].clone();
            let (useful, status) = self.connect(address.clone(), channel).await;
            if useful {
                self.backoff.reset();
            }
            let problem = self.explain(&status);
            if problem == last_problem {
                tracing::debug!(%address, problem, "no link");
            } else {
                tracing::warn!(%address, problem, "no link to a controller");
                last_problem = problem;
            }
            next = self.next_address(at, &status);
            // Another address is tried at once while there is one that was not.
            if useful {
                // All agents lost the same leader at the same moment.
                let pause = LOST_SPREAD.mul_f64(f64::from(random()) / f64::from(u16::MAX));
                self.parts.pulse.during(sleep(pause)).await;
            } else if at + 1 >= channels.len() {
                self.parts.pulse.during(sleep(self.backoff.pause(random()))).await;
            }
        }
    }

    /// A controller that does not lead names the one that does.
    fn next_address(&self, at: usize, status: &Status) -> usize {
        let known = self.parts.dialer.addresses();
        leader_named(status)
            .and_then(|leader| known.iter().position(|address| address.to_string() == leader))
            .unwrap_or(at + 1)
    }

    fn explain(&self, status: &Status) -> String {
        let dialled = self.parts.dialer.last_error();
        dialled.map_or_else(|| status.message().to_owned(), |error| error.to_string())
    }

    async fn connect(&mut self, address: Address, channel: Channel) -> (bool, Status) {
        let Connection { channel, to, inbound, asked } = match self.parts.open(channel).await {
            Ok(connection) => connection,
            Err(status) => return (false, status),
        };
        tracing::info!(%address, "linked to the controller");
        let mut session = Session {
            parts: &mut self.parts,
            channel,
            address,
            to,
            under_way: None,
            company_until: None,
            number: 0,
            useful: false,
            beaten: Instant::now(),
            answered: asked,
            held_back: None,
        };
        session.parts.line.linked();
        let status = session.serve(inbound).await;
        session.parts.line.lost();
        (session.useful, status)
    }
}

impl LinkParts {
    /// Takes over where the controllers are. What cannot be read is left out; none at all changes nothing.
    /// The one in use stays: it is known to be reached from here.
    fn learn_addresses(&self, told: &[String], in_use: &Address) {
        let Some(folder) = &self.addresses else { return };
        let mut new: Vec<Address> = told.iter().filter_map(|text| text.parse().ok()).collect();
        if new.is_empty() {
            return;
        }
        new.truncate(ADDRESSES_MAX - 1);
        if !new.contains(in_use) {
            new.push(in_use.clone());
        }
        // Each controller names itself first: another order is no change.
        let known = self.dialer.addresses();
        if known.len() == new.len() && new.iter().all(|address| known.contains(address)) {
            return;
        }
        tracing::info!(controllers = ?told, "the controllers' addresses changed");
        self.dialer.set_addresses(new.clone());
        // Known in memory all the same; the next start asks the old ones, which tell it again.
        let own = self.dialer.credentials().current();
        if let Err(error) = folder.store_addresses(&own.leaf().identity, &new) {
            tracing::warn!(%error, "the controllers' addresses are not stored");
        }
    }

    /// Says hello, and has the outbox send everything again once the controller accepts that.
    async fn open(&mut self, channel: Channel) -> Result<Connection, Status> {
        let facts = self.view.facts.borrow().clone();
        let facts_json =
            serde_json::to_vec(&facts).map_err(|error| Status::internal(error.to_string()))?;
        let hello = v1::AgentHello {
            facts_json,
            agent_instance: facts.agent_instance.clone(),
            now_unix_ms: clock::now().0,
            incarnation: self.fence.signed(),
        };
        let asked = clock::since_boot();
        let (to, messages) = mpsc::channel(QUEUE);
        // There is room: it is new.
        drop(to.try_send(v1::AgentMessage { message: Some(Message::Hello(hello)) }));
        let mut client =
            AgentsClient::new(channel.clone()).max_decoding_message_size(AGENT_MESSAGE_BYTES_MAX);
        let call = client.sync(ReceiverStream::new(messages));
        let call = timeout(CONNECT_TIMEOUT + ACCEPT_MAX, call);
        let inbound = match self.pulse.during(call).await {
            Ok(answer) => answer?.into_inner(),
            Err(_) => return Err(Status::deadline_exceeded("not accepted in time")),
        };
        self.outbox.begin(&facts);
        Ok(Connection { channel, to, inbound, asked })
    }
}

impl Session<'_> {
    async fn serve(&mut self, mut inbound: Streaming<v1::ControllerMessage>) -> Status {
        let mut beat = interval(HEARTBEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_at = Instant::now() + SILENCE_MAX;
        let outbox = self.parts.outbox.clone();
        let mut certificate = self.parts.dialer.credentials().changes();
        loop {
            if self.under_way.is_none()
                && !self.waits_for_company()
                && let Some(batch) = outbox.next_batch(clock::now())
                && let Err(status) = self.report(batch).await
            {
                return status;
            }
            let step = tokio::select! {
                () = self.parts.pulse.asked() => Ok(()),
                message = inbound.message() => match message {
                    Ok(Some(message)) => {
                        silent_at = Instant::now() + SILENCE_MAX;
                        self.hear(message)
                    }
                    Ok(None) => Err(Status::unavailable("the controller closed the link")),
                    Err(status) => Err(status),
                },
                _ = beat.tick() => self.beat().await,
                Ok(()) = certificate.changed() => {
                    if let Some(newer) = self.move_over().await {
                        inbound = newer;
                        silent_at = Instant::now() + SILENCE_MAX;
                    }
                    Ok(())
                }
                () = outbox.changed(), if self.under_way.is_none() => Ok(()),
                () = sleep_until(self.company_until.unwrap_or(silent_at)),
                    if self.company_until.is_some() => Ok(()),
                () = sleep_until(silent_at) => {
                    Err(Status::deadline_exceeded("the controller does not answer"))
                }
            };
            if let Err(status) = step {
                return status;
            }
            if self.parts.registry.gone_since_told() >= GONE_MAX
                && self.beaten.elapsed() >= BEAT_AGAIN_AFTER
                && let Err(status) = self.beat().await
            {
                return status;
            }
        }
    }

    /// Whether what there is to say, starts only, may wait a moment longer.
    fn waits_for_company(&mut self) -> bool {
        let now = Instant::now();
        let until = match self.parts.outbox.has_only_starts() {
            true => *self.company_until.get_or_insert(now + COMPANY_MAX),
            false => now,
        };
        if until <= now {
            self.company_until = None;
        }
        until > now
    }

    /// The controller ends a connection when the certificate that was shown on it ends. With a new certificate
    /// the agent opens another connection before it closes this one; tunnels stay on theirs until they end.
    async fn move_over(&mut self) -> Option<Streaming<v1::ControllerMessage>> {
        let channels = self.parts.dialer.channels();
        let (_, channel) = channels.into_iter().find(|(address, _)| *address == self.address)?;
        match self.parts.open(channel).await {
            Ok(connection) => {
                tracing::info!(address = %self.address, "linked with the new certificate");
                (self.channel, self.to) = (connection.channel, connection.to);
                self.answered = connection.asked;
                (self.under_way, self.number, self.held_back) = (None, 0, None);
                Some(connection.inbound)
            }
            Err(status) => {
                let reason = status.message();
                tracing::info!(reason, "the link stays on the connection that it has");
                None
            }
        }
    }

    async fn send(&self, message: Message) -> Result<(), Status> {
        let message = v1::AgentMessage { message: Some(message) };
        self.to.send(message).await.map_err(|_| Status::unavailable("the link is closed"))
    }

    async fn report(&mut self, batch: Batch) -> Result<(), Status> {
        let reports_json = serde_json::to_vec(&batch.reports)
            .map_err(|error| Status::internal(error.to_string()))?;
        self.number += 1;
        let number = self.number;
        self.under_way = Some((number, batch));
        self.send(Message::Reports(v1::AgentReports { number, reports_json })).await
    }

    async fn beat(&mut self) -> Result<(), Status> {
        let gpus = self.parts.view.measured.borrow().clone();
        self.beaten = Instant::now();
        let allocations = self.parts.registry.tell_ids().iter().map(ToString::to_string).collect();
        let status =
            |(id, text): (AllocationId, String)| v1::JobStatus { allocation: id.to_string(), text };
        let statuses = self.parts.registry.statuses().into_iter().map(status).collect();
        self.send(Message::Heartbeat(v1::AgentHeartbeat {
            sent_boottime_ms: clock::boot_ms(),
            now_unix_ms: clock::now().0,
            gpus,
            allocations,
            statuses,
            wants_free: self.parts.elsewhere.is_wanted(),
            jobs: self.parts.job_uses.to_wire(),
        }))
        .await
    }

    fn hear(&mut self, message: v1::ControllerMessage) -> Result<(), Status> {
        match message.message {
            Some(Answer::Acknowledge(answer)) => self.acknowledged(&answer),
            Some(Answer::Desired(document)) => return self.take(&document),
            Some(Answer::Echo(echo)) => {
                let sent = Duration::from_millis(echo.sent_boottime_ms);
                let time = Timestamp(echo.now_unix_ms);
                self.parts.line.answered(sent, (!echo.time_unconfirmed).then_some(time));
                self.echoed(sent);
                if let Some(free) = echo.free {
                    self.parts.elsewhere.heard(sent, free);
                }
            }
            Some(Answer::OpenTunnel(open)) => {
                self.parts.tunnels.open(&self.address, &self.channel, open);
            }
            Some(Answer::Controllers(told)) => {
                self.parts.learn_addresses(&told.addresses, &self.address);
            }
            Some(Answer::Authorities(told)) => {
                self.parts.authorities.send_if_modified(|known| {
                    let new = known.as_ref() != Some(&told);
                    *known = Some(told);
                    new
                });
            }
            Some(Answer::Incarnation(signed)) => {
                if let Err(error) = self.parts.fence.learn(&signed) {
                    tracing::warn!(%error, "the proof of the fleet's incarnation is not stored");
                }
            }
            // From a newer controller: nothing this agent could do.
            None => tracing::warn!("a message of an unknown kind"),
        }
        Ok(())
    }

    /// Messages come in order, so what follows an answer is not older than the question was. A process that
    /// was stopped for a while finds old orders in its buffers, and must not take them for new ones.
    fn is_fresh(&self) -> bool {
        clock::since_boot().saturating_sub(self.answered) <= FRESH_MAX
    }

    fn echoed(&mut self, sent: Duration) {
        self.answered = self.answered.max(sent);
        self.parts.heard.send_replace(sent);
        if self.is_fresh()
            && let Some(desired) = self.held_back.take()
        {
            self.parts.desired.send_replace(Some(desired));
        }
    }

    fn acknowledged(&mut self, answer: &v1::Acknowledge) {
        let Some((number, batch)) = self.under_way.take() else { return };
        if number != answer.number {
            self.under_way = Some((number, batch));
            return;
        }
        let refused = !answer.refused.is_empty();
        if refused {
            tracing::error!(reports = batch.reports.len(), why = answer.refused, "reports refused");
        }
        self.parts.outbox.answered(&batch, refused);
    }

    fn take(&mut self, document: &v1::Desired) -> Result<(), Status> {
        let standing = Standing {
            incarnation: document.incarnation,
            term: document.term,
            applied_index: document.applied_index,
        };
        let desired: DesiredNode = serde_json::from_slice(&document.desired_json)
            .map_err(|error| Status::invalid_argument(format!("desired_json: {error}")))?;
        if desired.v > DESIRED_VERSION || desired.node != self.parts.node {
            return Err(Status::invalid_argument("the document is not for this agent"));
        }
        let before = self.parts.fence.highest().incarnation;
        let admitted = self.parts.fence.admit(standing);
        if admitted.as_ref().is_ok_and(|good| *good) && standing.incarnation > before {
            self.parts.outbox.windows_again();
        }
        match admitted {
            Ok(true) if self.is_fresh() => {
                self.useful = true;
                self.held_back = None;
                self.parts.desired.send_replace(Some(desired));
            }
            Ok(true) => {
                tracing::warn!("a document may be old: it waits for the controller's next answer");
                self.held_back = Some(desired);
            }
            Ok(false) => {
                let highest = self.parts.fence.highest();
                tracing::warn!(?standing, ?highest, "an outdated document is ignored");
            }
            // Not acted upon; the controller sends it again with the next connection.
            Err(error) => return Err(Status::internal(error.to_string())),
        }
        Ok(())
    }
}

/// Bits to spread pauses by; their quality does not matter.
fn random() -> u16 {
    let mut bytes = [0; 2];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u16::from_le_bytes(bytes),
        Err(_) => u16::MAX,
    }
}
