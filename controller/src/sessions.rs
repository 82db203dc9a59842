//! The agents that are connected now, as the leader's memory knows them: never replicated.
//!
//! The link (`api::link`) writes here; the scheduler's loops, the API and the tunnels read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::id::AllocationId;
use fleet_core::name::{NodeName, is_plain_text};
use fleet_core::time::Timestamp;
use fleet_proto::v1;
use tokio::sync::mpsc;

use crate::clock::wall;

/// Messages waiting for one agent; a link that does not drain them is closed.
pub const AGENT_QUEUE: usize = 64;

/// Most jobs of one node whose own words are kept, and their length in characters.
const STATUSES_MAX: usize = 1_000;
const STATUS_CHARS_MAX: usize = 200;

/// Most attempts of one node whose use is kept.
const JOB_USES_MAX: usize = 1_000;

/// A job's words as they may be shown on anybody's terminal.
fn status(said: &v1::JobStatus) -> Option<(AllocationId, String)> {
    let id = AllocationId::parse(&said.allocation).ok()?;
    let plain = |c: char| if is_plain_text(c.encode_utf8(&mut [0; 4])) { c } else { ' ' };
    let text: String = said.text.chars().take(STATUS_CHARS_MAX).map(plain).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| (id, text.to_owned()))
}

/// A message on its way to an agent. Boxed: a queue has room for dozens, at each of thousands of agents.
pub type ToAgent = Box<v1::ControllerMessage>;

/// One live connection of an agent.
#[derive(Debug)]
struct Session {
    /// Counts connections; a later one replaces an earlier one of the same node.
    connection: u64,
    instance: String,
    /// Serial number of the certificate that was shown.
    certificate: Option<String>,
    heard: Instant,
    heard_at: Timestamp,
    /// The agent's clock when it was last heard; before its first heartbeat it has said nothing of it.
    agent_time: Option<Timestamp>,
    measured: Vec<v1::MeasuredGpu>,
    measured_at: Timestamp,
    held: Vec<AllocationId>,
    /// What jobs said last of themselves.
    statuses: BTreeMap<AllocationId, String>,
    /// What running attempts use.
    job_uses: BTreeMap<AllocationId, v1::JobUse>,
    to_agent: mpsc::Sender<ToAgent>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: BTreeMap<NodeName, Session>,
    connections: u64,
    /// When each node was last heard, whether or not it is connected.
    heard: BTreeMap<NodeName, (Instant, Timestamp)>,
    /// Since when this controller leads; `None` while it does not.
    listening: Option<Instant>,
}

/// Handle on the table of sessions.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<Mutex<Table>>);

/// Whether a message came from the node's newest connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Current,
    /// A newer connection of another instance has taken the name, and this one still speaks.
    Superseded,
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection; returns its number.
    pub fn open(&self, node: &NodeName, instance: &str, to_agent: mpsc::Sender<ToAgent>) -> u64 {
        let mut table = self.table();
        table.connections += 1;
        let connection = table.connections;
        let (heard, heard_at) = (Instant::now(), wall());
        table.heard.insert(node.clone(), (heard, heard_at));
        let session = Session {
            connection,
            instance: instance.to_owned(),
            certificate: None,
            heard,
            heard_at,
            agent_time: None,
            measured: Vec::new(),
            measured_at: heard_at,
            held: Vec::new(),
            statuses: BTreeMap::new(),
            job_uses: BTreeMap::new(),
            to_agent,
        };
        table.sessions.insert(node.clone(), session);
        connection
    }

    /// Notes which certificate was shown on a connection.
    pub fn shown(&self, node: &NodeName, connection: u64, serial: Option<String>) {
        let mut table = self.table();
        if let Some(session) = table.sessions.get_mut(node)
            && session.connection == connection
        {
            session.certificate = serial;
        }
    }

    /// The certificates of the connected agents, by their serial numbers.
    pub fn certificates(&self) -> Vec<(NodeName, String)> {
        let table = self.table();
        let sessions = table.sessions.iter();
        sessions.filter_map(|(node, s)| Some((node.clone(), s.certificate.clone()?))).collect()
    }

    /// Notes that something was heard on a connection.
    pub fn heard(&self, node: &NodeName, connection: u64, instance: &str) -> Standing {
        let mut table = self.table();
        let now = (Instant::now(), wall());
        match table.sessions.get_mut(node) {
            Some(session) if session.connection == connection => {
                (session.heard, session.heard_at) = now;
                table.heard.insert(node.clone(), now);
                Standing::Current
            }
            Some(session) if session.instance != instance => Standing::Superseded,
            // The same agent reconnected; what still arrives on its old connection is old news.
            Some(_) | None => Standing::Current,
        }
    }

    /// Takes over what a heartbeat says.
    pub fn beat(&self, node: &NodeName, connection: u64, beat: v1::AgentHeartbeat) {
        let mut table = self.table();
        let Some(session) = table.sessions.get_mut(node) else { return };
        if session.connection != connection {
            return;
        }
        session.agent_time = Some(Timestamp(beat.now_unix_ms));
        session.measured = beat.gpus;
        session.measured_at = session.heard_at;
        session.statuses = beat.statuses.iter().take(STATUSES_MAX).filter_map(status).collect();
        let measured_at_unix_ms = session.measured_at.0;
        let used = |one: v1::MeasuredJob| {
            let id = AllocationId::parse(&one.allocation).ok()?;
            Some((id, v1::JobUse { measured_at_unix_ms, ..one.r#use? }))
        };
        session.job_uses = beat.jobs.into_iter().take(JOB_USES_MAX).filter_map(used).collect();
        session.held =
            beat.allocations.iter().filter_map(|id| AllocationId::parse(id).ok()).collect();
    }

    /// Ends a connection, unless a newer one has taken its place.
    pub fn close(&self, node: &NodeName, connection: u64) {
        let mut table = self.table();
        if table.sessions.get(node).is_some_and(|s| s.connection == connection) {
            table.sessions.remove(node);
        }
    }

    /// How long ago the node was heard by this process; `None` is never.
    pub fn silence(&self, node: &NodeName) -> Option<Duration> {
        self.table().heard.get(node).map(|(heard, _)| heard.elapsed())
    }

    /// This controller leads from now on.
    pub fn listen(&self) {
        self.table().listening = Some(Instant::now());
    }

    /// How long this leader has listened for the node without hearing it once; `None` where it heard it, or does not
    /// lead.
    pub fn unheard_for(&self, node: &NodeName) -> Option<Duration> {
        let table = self.table();
        let listening = table.listening.filter(|_| !table.heard.contains_key(node))?;
        Some(listening.elapsed())
    }

    /// When the node was last heard.
    pub fn heard_at(&self, node: &NodeName) -> Option<Timestamp> {
        self.table().heard.get(node).map(|(_, at)| *at)
    }

    /// What the connected agents say the time is now, as far as they said anything.
    pub fn agent_times(&self) -> Vec<Timestamp> {
        let table = self.table();
        let age = |heard: Instant| u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX);
        table
            .sessions
            .values()
            .filter_map(|s| Some(s.agent_time? + fleet_core::time::Millis(age(s.heard))))
            .collect()
    }

    /// Whether the node's agent has sent a heartbeat to this process, and is connected.
    pub fn is_heard(&self, node: &NodeName) -> bool {
        self.table().sessions.get(node).is_some_and(|session| session.agent_time.is_some())
    }

    /// What the node's agent last measured of a GPU, and when.
    pub fn measured(&self, node: &NodeName, uuid: &str) -> Option<(v1::MeasuredGpu, Timestamp)> {
        let table = self.table();
        let session = table.sessions.get(node)?;
        let gpu = session.measured.iter().find(|gpu| gpu.uuid == uuid)?;
        Some((gpu.clone(), session.measured_at))
    }

    /// The allocations the agent has records of, as far as it said.
    pub fn held(&self, node: &NodeName) -> Vec<AllocationId> {
        self.table().sessions.get(node).map(|s| s.held.clone()).unwrap_or_default()
    }

    /// This long for each agent that is connected.
    pub fn pause(&self, each: Duration) -> Duration {
        each * u32::try_from(self.connected()).unwrap_or(u32::MAX)
    }

    /// How many agents are connected.
    pub fn connected(&self) -> usize {
        self.table().sessions.len()
    }

    /// What an attempt said last of itself, while its node is connected.
    pub fn status(&self, node: &NodeName, allocation: &AllocationId) -> Option<String> {
        self.table().sessions.get(node)?.statuses.get(allocation).cloned()
    }

    /// What an attempt uses, as its node last measured it, while that is connected.
    pub fn job_use(&self, node: &NodeName, allocation: &AllocationId) -> Option<v1::JobUse> {
        self.table().sessions.get(node)?.job_uses.get(allocation).copied()
    }

    /// Where to send messages for a node, while it is connected.
    pub fn sender(&self, node: &NodeName) -> Option<mpsc::Sender<ToAgent>> {
        self.table().sessions.get(node).map(|s| s.to_agent.clone())
    }

    /// Forgets every session: this controller does not lead any more.
    pub fn clear(&self) {
        let mut table = self.table();
        table.sessions.clear();
        table.heard.clear();
        table.listening = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Found by the simulation: a controller whose clock was wrong took the agents that had only just
    /// connected for witnesses of it.
    #[test]
    fn an_agent_that_has_not_said_the_time_is_no_witness_of_ours() {
        let sessions = Sessions::default();
        let node = NodeName::parse("titan01").unwrap();
        let (to_agent, _kept) = mpsc::channel(1);
        let connection = sessions.open(&node, "a", to_agent);
        sessions.heard(&node, connection, "a");
        assert_eq!(sessions.agent_times(), []);
        let now_unix_ms = 1_900_000_000_000;
        let beat = v1::AgentHeartbeat { now_unix_ms, ..v1::AgentHeartbeat::default() };
        sessions.beat(&node, connection, beat);
        assert!(sessions.agent_times().iter().all(|time| *time >= Timestamp(now_unix_ms)));
        assert_eq!(sessions.agent_times().len(), 1);
    }

    #[test]
    fn a_node_is_unheard_until_it_speaks_to_this_leader() {
        let sessions = Sessions::default();
        let [heard, silent] = ["titan01", "titan02"].map(|name| NodeName::parse(name).unwrap());
        assert_eq!(sessions.unheard_for(&silent), None, "this controller does not lead");
        sessions.listen();
        assert!(sessions.unheard_for(&heard).is_some());
        let (to_agent, _kept) = mpsc::channel(1);
        let connection = sessions.open(&heard, "a", to_agent);
        sessions.heard(&heard, connection, "a");
        assert_eq!(sessions.unheard_for(&heard), None);
        assert!(sessions.unheard_for(&silent).is_some());
        sessions.clear();
        assert_eq!(sessions.unheard_for(&silent), None);
    }

    #[test]
    fn what_a_job_uses_is_known_while_its_node_says_so() {
        let sessions = Sessions::default();
        let node = NodeName::parse("titan01").unwrap();
        let id = AllocationId::parse("alloc-a-1").unwrap();
        let (to_agent, _kept) = mpsc::channel(1);
        let connection = sessions.open(&node, "a", to_agent);
        let used = v1::JobUse { pids: Some(3), ..v1::JobUse::default() };
        let job = v1::MeasuredJob { allocation: id.to_string(), r#use: Some(used) };
        let beat = v1::AgentHeartbeat { jobs: vec![job], ..v1::AgentHeartbeat::default() };
        sessions.beat(&node, connection, beat);
        let known = sessions.job_use(&node, &id).unwrap();
        assert_eq!((known.pids, known.memory_bytes), (Some(3), None));
        assert_ne!(known.measured_at_unix_ms, 0);
        sessions.beat(&node, connection, v1::AgentHeartbeat::default());
        assert_eq!(sessions.job_use(&node, &id), None, "the node does not say so any more");
    }

    #[test]
    fn what_a_job_says_is_harmless_on_a_terminal_and_short() {
        let said = |text: &str| {
            let allocation = "alloc-a-1".to_owned();
            status(&v1::JobStatus { allocation, text: text.to_owned() }).map(|(_, text)| text)
        };
        assert_eq!(said("epoch 3, loss 0.2").unwrap(), "epoch 3, loss 0.2");
        assert_eq!(said("\x1b[2Jgone\u{202e}").unwrap(), "[2Jgone");
        assert_eq!(said("\t\n"), None);
        assert_eq!(said(&"x".repeat(5_000)).unwrap().len(), STATUS_CHARS_MAX);
    }
}
