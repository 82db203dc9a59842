//! The handle to consensus: propose, read, learn who leads. Cheap to clone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fleet_core::command::ClusterCommand;
use fleet_core::{Command, Envelope, Fsm, Rejection, Reply, Who};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::error::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{Instant as _, ReadPolicy};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::divergence::{self, OwnCheck};
use super::fitness::{Look, OwnFitness};
use super::log_store::LogStore;
use super::logged::Logged;
use super::measures::{self, LogMeasures, ProposalMeasures};
use super::member_report::{CORE, MemberReport, Members};
use super::service::{PeerCheck, RaftService};
use super::space::{FREE_BYTES_MIN, FreeSpace};
use super::start::RaftConfig;
use super::state_age::StateAge;
use super::state_machine::View;
use super::types::{Raft, TypeConfig};
use super::versions::Versions;
use crate::audit::AuditStore;
use crate::fatal::{Fatal, FatalHook};

/// Largest command, encoded: an import of 10,000 lines has about 2 MiB.
pub(crate) const ENTRY_BYTES_MAX: usize = 4 << 20;
/// How long a proposal may take.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long confirming leadership may take.
const READ_TIMEOUT: Duration = LEADERLESS_MAX;
/// A leader that is silent for longer than this and than two elections is not named to anybody any more.
const LEADER_SILENT_MAX: Duration = Duration::from_secs(3);
/// A leader that no majority followed for this long answers no agent: another may lead by now. Far below the margin
/// after which a silent node's job is started elsewhere.
const QUORUM_SILENCE_MAX: Duration = Duration::from_secs(2);
/// How long a leader that a majority follows is waited for: an election is over within this, unless they are slow.
/// Less than a client gives its first try, so that it hears why there is no answer.
const LEADERLESS_MAX: Duration = Duration::from_millis(2_500);
/// How often a leader that waits for a majority looks whether it has one.
const UNFOLLOWED_CHECK: Duration = Duration::from_millis(250);
/// Pause before a proposal that was surely not taken is offered again.
const RETRY_PAUSE: Duration = Duration::from_millis(25);
/// How long each stop of a part may take at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A proposal that went through the log: the FSM's answer, a refusal included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub log_index: u64,
    pub reply: Result<Reply, Rejection>,
}

/// Another controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub node: u64,
    pub address: String,
}

/// Why a proposal has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was written here.
    #[error("this controller does not lead{}", leader.as_ref().map_or_else(String::new, |l| format!("; controller {} at {} does", l.node, l.address)))]
    NotLeader { leader: Option<Peer> },
    /// Nothing was written: no leader, or no majority behind it.
    #[error("no majority of controllers answered; nothing was changed")]
    NoQuorum,
    /// It may still be applied: ask again with the same request id.
    #[error(
        "no majority confirmed it in time; it may or may not take effect, ask again with the same request id"
    )]
    OutcomeUnknown,
    #[error("the command has {bytes} bytes, more than the {ENTRY_BYTES_MAX} allowed")]
    TooLarge { bytes: usize },
    /// Only users' commands are refused; reports of nodes and the leader's own are still taken.
    #[error(
        "the disk of controller {controller} is nearly full: {dir} ({disk}) has {free_mib} MiB left, and {min_mib} MiB are kept for the controllers themselves. Nothing was changed, and jobs keep running. Delete what is not fleet's there, or make the disk larger"
    )]
    DiskNearlyFull { controller: u64, free_mib: u64, min_mib: u64, dir: String, disk: String },
    #[error(
        "too many controllers have a full disk: {controllers}. {min_mib} MiB are kept for the controllers themselves. Nothing was changed, and jobs keep running. Make room in `data_dir` there"
    )]
    DisksNearlyFull { controllers: String, min_mib: u64 },
    #[error("this controller is stopping: {0}")]
    Fatal(String),
}

/// Why leadership could not be confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("this controller does not lead")]
    NotLeader { leader: Option<Peer> },
    #[error("no majority of controllers answered")]
    NoQuorum,
    #[error("this controller is stopping: {0}")]
    Fatal(String),
}

/// Why the set of controllers was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the controllers stay as they are: {0}")]
pub struct MemberError(pub(super) String);

/// Who leads, as this controller knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    pub is_leader: bool,
    pub term: u64,
    pub leader: Option<u64>,
}

/// Figures for `status` and the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftStatus {
    pub node: u64,
    /// `leader`, `follower`, `candidate`, `learner`.
    pub role: &'static str,
    pub leadership: Leadership,
    pub last_log_index: u64,
    pub committed_index: u64,
    pub applied_index: u64,
    pub snapshot_index: Option<u64>,
    pub purged_index: Option<u64>,
    pub voters: Vec<Peer>,
    pub learners: Vec<Peer>,
    /// On the leader: the last entry each member is known to hold.
    pub replicated: BTreeMap<u64, Option<u64>>,
    /// Set once consensus has stopped for good.
    pub stopped: Option<String>,
}

/// The handle.
#[derive(Clone)]
pub struct RaftHandle {
    pub(super) raft: Raft,
    pub(super) view: Arc<View>,
    pub(super) log: LogStore,
    audit: AuditStore,
    leadership: watch::Receiver<Leadership>,
    heard: StateAge,
    members: Members,
    own: OwnCheck,
    fitness: OwnFitness,
    proposals: ProposalMeasures,
    /// The clock of consensus stands; see [`Self::rest_while_alone`].
    parked: Arc<AtomicBool>,
    cluster: String,
    node: u64,
    room: FreeSpace,
    versions: Versions,
    /// Cancelled when other controllers are to end what they have open here.
    closing: CancellationToken,
}

impl std::fmt::Debug for RaftHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftHandle").field("node", &self.node).finish_non_exhaustive()
    }
}

impl RaftHandle {
    pub(super) fn new(
        raft: Raft,
        view: Arc<View>,
        log: LogStore,
        audit: AuditStore,
        members: Members,
        own: OwnCheck,
        config: &RaftConfig,
    ) -> RaftHandle {
        let leadership = follow_leadership(&raft, config.node, config.fatal.clone());
        RaftHandle {
            raft,
            view,
            log,
            audit,
            leadership,
            heard: StateAge::default(),
            members,
            own,
            fitness: OwnFitness::default(),
            proposals: ProposalMeasures::default(),
            parked: Arc::default(),
            cluster: config.cluster.clone(),
            node: config.node,
            room: FreeSpace::of(&config.dir),
            versions: config.versions,
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.raft
    }

    /// This controller's id.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// The audit log.
    pub fn audit(&self) -> &AuditStore {
        &self.audit
    }

    /// Puts a command through the log and waits until it is applied here.
    pub async fn propose(&self, envelope: Envelope) -> Result<Applied, ProposeError> {
        self.propose_within(envelope, PROPOSE_TIMEOUT).await
    }

    /// [`Self::propose`] with another deadline. A proposal that was surely not taken (no leader yet,
    /// lease just expired) is offered again until then.
    pub async fn propose_within(
        &self,
        envelope: Envelope,
        timeout: Duration,
    ) -> Result<Applied, ProposeError> {
        let (command, began) = (envelope.command.name(), Instant::now());
        let result = self.offer(envelope, timeout).await;
        let outcome = match &result {
            Ok(Applied { reply: Ok(_), .. }) => measures::APPLIED,
            Ok(Applied { reply: Err(_), .. }) => measures::REFUSED,
            Err(ProposeError::NotLeader { .. }) => measures::NOT_LEADER,
            Err(ProposeError::NoQuorum) => measures::NO_QUORUM,
            Err(ProposeError::OutcomeUnknown) => measures::UNKNOWN,
            Err(
                ProposeError::TooLarge { .. }
                | ProposeError::DiskNearlyFull { .. }
                | ProposeError::DisksNearlyFull { .. }
                | ProposeError::Fatal(_),
            ) => measures::NOT_TAKEN,
        };
        self.proposals.count(command, outcome, began.elapsed());
        result
    }

    async fn offer(&self, envelope: Envelope, timeout: Duration) -> Result<Applied, ProposeError> {
        let logged = Logged::new(envelope)
            .map_err(|e| ProposeError::Fatal(format!("the command cannot be encoded: {e}")))?;
        let (envelope, bytes) = (logged.envelope(), logged.bytes());
        if bytes > ENTRY_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes });
        }
        // A member that does not know the command would stop at it.
        let (needs, have) =
            ((self.versions.needed_by)(&envelope.command), self.read(Fsm::cluster_version));
        if needs > have.max(1) {
            let reply = Err(Rejection::ClusterVersion { needs, have });
            return Ok(Applied { log_index: 0, reply });
        }
        if matches!(envelope.actor.who, Who::User { .. }) {
            self.check_space(FREE_BYTES_MIN)?;
        }
        let deadline = tokio::time::Instant::now() + timeout;
        let leader_by = deadline.min(tokio::time::Instant::now() + LEADERLESS_MAX);
        loop {
            let writing = self.raft.client_write(logged.clone());
            // Dropping it takes nothing back: it is written here, and may be confirmed later.
            let written = tokio::select! {
                written = writing => written,
                () = tokio::time::sleep_until(deadline) => return Err(ProposeError::OutcomeUnknown),
                () = self.unfollowed_too_long() => return Err(ProposeError::OutcomeUnknown),
            };
            let forward = match written {
                Ok(written) => {
                    let reply = written.data.reply.ok_or_else(|| {
                        ProposeError::Fatal("a command was applied without a reply".to_owned())
                    })?;
                    return Ok(Applied { log_index: written.log_id.index, reply });
                }
                Err(RaftError::Fatal(fatal)) => return Err(ProposeError::Fatal(fatal.to_string())),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => forward,
                Err(RaftError::APIError(ClientWriteError::LogEntryDiscarded(_))) => {
                    return Err(ProposeError::OutcomeUnknown);
                }
                Err(RaftError::APIError(other)) => {
                    return Err(ProposeError::Fatal(other.to_string()));
                }
            };
            if let Some(leader) = self.heard_leader(peer_of(&forward)) {
                return Err(ProposeError::NotLeader { leader: Some(leader) });
            }
            if tokio::time::Instant::now() + RETRY_PAUSE >= leader_by {
                return Err(ProposeError::NoQuorum);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Returns when this controller leads and no majority has followed it for [`LEADERLESS_MAX`]: what was written
    /// here meanwhile is not confirmed soon.
    async fn unfollowed_too_long(&self) {
        loop {
            tokio::time::sleep(UNFOLLOWED_CHECK).await;
            if self.unfollowed().is_some_and(|silent| silent >= LEADERLESS_MAX) {
                return;
            }
        }
    }

    /// Whether this controller could lead, as it finds itself.
    pub fn fitness(&self) -> &OwnFitness {
        &self.fitness
    }

    /// How another member found itself, if it said so in the last seconds. For the leader only.
    pub fn look_of(&self, node: u64) -> Option<Look> {
        self.members.look(node)
    }

    /// Bytes left on the disk; `None` if it cannot be asked.
    pub fn free_bytes(&self) -> Option<u64> {
        self.room.free_bytes()
    }

    /// Why users' commands are refused for want of space, if they are.
    pub fn space_problem(&self) -> Option<ProposeError> {
        self.check_space(FREE_BYTES_MIN).err()
    }

    /// Refuses when the disk has less than `min` bytes left, or when so many members' disks have that one more
    /// failure would leave no quorum. A disk that cannot be asked says so by itself when it is written.
    pub(super) fn check_space(&self, min: u64) -> Result<(), ProposeError> {
        let min_mib = min >> 20;
        if let Some(free) = self.room.free_bytes().filter(|free| *free < min) {
            return Err(ProposeError::DiskNearlyFull {
                controller: self.node,
                free_mib: free >> 20,
                min_mib,
                dir: self.room.dir().display().to_string(),
                disk: self.room.disk(),
            });
        }
        let low = self.members_low_on_space(min);
        if !low.is_empty() && low.len() * 2 >= self.status().voters.len() {
            let said = |(node, free): &(u64, u64)| format!("{node} ({} MiB left)", free >> 20);
            let controllers = low.iter().map(said).collect::<Vec<_>>().join(", ");
            return Err(ProposeError::DisksNearlyFull { controllers, min_mib });
        }
        Ok(())
    }

    /// Other voters whose disk has less than `min` bytes left, as they last said.
    fn members_low_on_space(&self, min: u64) -> Vec<(u64, u64)> {
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        let voters = m.membership_config.voter_ids().filter(|node| *node != self.node);
        let low = voters.filter_map(|node| {
            let free = self.members.free_bytes(node)?;
            (free < min).then_some((node, free))
        });
        low.collect()
    }

    /// What an operator should know of the disks, one sentence each.
    pub fn space_warnings(&self) -> Vec<String> {
        let own = self.room.free_bytes().filter(|free| *free < FREE_BYTES_MIN);
        let own = own.map(|free| (self.node, free));
        let low = own.into_iter().chain(self.members_low_on_space(FREE_BYTES_MIN));
        low.map(|(node, free)| {
            format!(
                "the disk of controller {node} is nearly full ({} MiB left); below {} MiB users' commands are refused: make room in its `data_dir`",
                free >> 20,
                FREE_BYTES_MIN >> 20
            )
        })
        .collect()
    }

    /// The highest cluster version that every member can run at, if all of them said so just now.
    pub fn version_all_can(&self) -> Option<u32> {
        let status = self.status();
        let others = status.voters.iter().chain(&status.learners).filter(|p| p.node != self.node);
        let mut version = self.versions.max;
        for peer in others {
            version = version.min(self.members.of(peer.node)?.cluster_version);
        }
        Some(version)
    }

    /// The next `CheckState`, with what most controllers had after the last one; and what is wrong, where
    /// none has a majority. `None` where there is nobody to compare with.
    pub fn next_state_check(&self) -> Option<(Command, Option<String>)> {
        let voters = self.status().voters;
        let first = Command::Cluster(ClusterCommand::CheckState {
            index: 0,
            core: CORE.to_owned(),
            digest: None,
        });
        let needs = (self.versions.needed_by)(&first);
        if voters.len() < 2 || self.read(Fsm::cluster_version) < needs {
            return None;
        }
        let core = CORE.to_owned();
        let Some(own) = self.own.newest() else { return Some((first, None)) };
        let others: Vec<MemberReport> = voters
            .iter()
            .filter(|peer| peer.node != self.node)
            .filter_map(|peer| self.members.of(peer.node))
            .collect();
        let (digest, problem) = match divergence::agreed(&own, others.iter()) {
            None => (None, None),
            Some(Ok(digest)) => (Some(digest), None),
            Some(Err(digests)) => {
                let index = own.index;
                let problem = format!(
                    "after log entry {index} the controllers' states differ and none has a majority: {digests:?}"
                );
                (None, Some(problem))
            }
        };
        Some((
            Command::Cluster(ClusterCommand::CheckState { index: own.index, core, digest }),
            problem,
        ))
    }

    /// Changes the state of this replica alone, as nothing ever must.
    #[cfg(test)]
    pub(super) fn change_state_for_test(&self, change: impl FnOnce(&mut Fsm)) {
        self.view.write(change);
    }

    /// Runs `reader` on the state as applied here. It must be short and must not block: applying
    /// waits for it. May lag behind other controllers; see [`Self::ensure_linearizable`].
    pub fn read<T>(&self, reader: impl FnOnce(&Fsm) -> T) -> T {
        self.view.read(reader)
    }

    /// Returns once this controller is known to lead and has applied all that was committed before
    /// the call: a read after it sees everything acknowledged anywhere.
    pub async fn ensure_linearizable(&self) -> Result<(), ReadError> {
        let leader_by = tokio::time::Instant::now() + LEADERLESS_MAX;
        loop {
            let refused = match self.confirm_leadership().await {
                Err(ReadError::NotLeader { leader }) => match self.heard_leader(leader) {
                    Some(leader) => return Err(ReadError::NotLeader { leader: Some(leader) }),
                    None => ReadError::NoQuorum,
                },
                other => return other,
            };
            if tokio::time::Instant::now() + RETRY_PAUSE >= leader_by {
                return Err(refused);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Another controller that leads, if it was heard lately: one that is dead is nobody to send people to.
    fn heard_leader(&self, leader: Option<Peer>) -> Option<Peer> {
        let most = LEADER_SILENT_MAX.max(self.election_max() * 2);
        let lately = self.heard.silence().is_some_and(|silence| silence <= most);
        leader.filter(|leader| lately && leader.node != self.node)
    }

    /// Longest that a follower waits for a silent leader.
    fn election_max(&self) -> Duration {
        Duration::from_millis(self.raft.config().election_timeout_max)
    }

    async fn confirm_leadership(&self) -> Result<(), ReadError> {
        let confirming = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        match tokio::time::timeout(READ_TIMEOUT, confirming).await {
            Err(_) => Err(ReadError::NoQuorum),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::Fatal(fatal))) => Err(ReadError::Fatal(fatal.to_string())),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
                Err(ReadError::NotLeader { leader: peer_of(&forward) })
            }
            Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) => {
                Err(ReadError::NoQuorum)
            }
        }
    }

    /// Whether this controller leads and a majority followed it a moment ago. One that leads alone cannot
    /// decide anything, and another may lead by now.
    pub fn leads_a_quorum(&self) -> bool {
        self.leadership.borrow().is_leader
            && self.unfollowed().is_some_and(|silent| silent < QUORUM_SILENCE_MAX)
    }

    /// How long ago a leader was heard. On the leader itself, how long ago a majority followed it: one that
    /// nobody follows may have been replaced long ago, or even removed, without ever hearing of it.
    pub fn leader_silence(&self) -> Option<Duration> {
        if self.leadership.borrow().is_leader { self.unfollowed() } else { self.heard.silence() }
    }

    /// How old the state as applied here may be: since when this controller has not been told that it
    /// is the newest. Nothing where it never was.
    pub fn age(&self) -> Option<Duration> {
        if self.leadership.borrow().is_leader {
            return self.unfollowed();
        }
        self.heard.age(*self.view.applied().borrow())
    }

    /// As a leader: since when no majority has said that it follows. A single controller is its own majority.
    fn unfollowed(&self) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        let memberships = [&m.membership_config, &m.committed_membership_config];
        if memberships.iter().all(|one| one.voter_ids().eq([self.node])) {
            return Some(Duration::ZERO);
        }
        m.last_quorum_acked.map(|at| at.elapsed())
    }

    /// Index of the last entry applied here, and every change of it.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.view.applied()
    }

    /// Who leads, and every change of it.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The cluster's incarnation as applied here; 0 before the first command.
    pub fn incarnation(&self) -> u64 {
        self.read(Fsm::incarnation)
    }

    /// Figures for people and metrics.
    pub fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        let membership = m.membership_config.membership();
        let peer = |id: u64| Peer {
            node: id,
            address: membership.get_node(&id).map(|n| n.addr.clone()).unwrap_or_default(),
        };
        let index = |id: &Option<super::types::LogId>| id.map(|id| id.index);
        let replicated = m.replication.iter().flatten();
        RaftStatus {
            node: self.node,
            role: match m.state {
                openraft::ServerState::Leader => "leader",
                openraft::ServerState::Follower => "follower",
                openraft::ServerState::Candidate => "candidate",
                openraft::ServerState::Learner | openraft::ServerState::Shutdown => "learner",
            },
            leadership: *self.leadership.borrow(),
            last_log_index: m.last_log_index.unwrap_or(0),
            committed_index: index(&m.local_committed).unwrap_or(0),
            applied_index: index(&m.last_applied).unwrap_or(0),
            snapshot_index: index(&m.snapshot),
            purged_index: index(&m.purged),
            voters: membership.voter_ids().map(peer).collect(),
            learners: membership.learner_ids().map(peer).collect(),
            replicated: replicated.map(|(id, at)| (*id, index(at))).collect(),
            stopped: m.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// What the log counts.
    pub fn log_measures(&self) -> LogMeasures {
        self.log.measures()
    }

    /// What became of proposals made here.
    pub fn proposal_measures(&self) -> &ProposalMeasures {
        &self.proposals
    }

    /// Evictions begun here since the start: after a new checkpoint, and without one.
    pub fn evictions(&self) -> [u64; 2] {
        self.view.evictions()
    }

    /// Returns once the loop of consensus has taken up this question behind all that waits for it.
    pub async fn comes_round(&self) -> Result<(), ReadError> {
        let asked = self.raft.with_raft_state(|_| ()).await;
        asked.map_err(|error| ReadError::Fatal(error.to_string()))
    }

    /// Parks the clock of consensus while this controller leads and is the only one there is: nobody
    /// needs its heartbeats and nobody else can be elected, so it need not wake seven times a second.
    /// Run it while leading. It ends when dropped; then, and as soon as there is another member,
    /// learners included, the clock runs again.
    pub async fn rest_while_alone(&self) {
        let clock = ParkedClock(self);
        let mut metrics = self.raft.server_metrics();
        loop {
            clock.park(is_alone(&metrics.borrow_watched(), self.node));
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether the clock of consensus stands.
    #[cfg(test)]
    pub(super) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// The service for other controllers. `check` ties a connection to the id it claims.
    pub fn service(&self, check: PeerCheck) -> RaftService {
        RaftService {
            raft: self.raft.clone(),
            audit: self.audit.clone(),
            cluster: self.cluster.clone(),
            node: self.node,
            check,
            heard: self.heard.clone(),
            applied: self.view.applied(),
            own: self.own.clone(),
            room: self.room.clone(),
            fitness: self.fitness.clone(),
            cluster_version_max: self.versions.max,
            closing: self.closing.clone(),
        }
    }

    /// Ends the streams of other controllers, which end by themselves only when their leader does: for a server
    /// that lets open requests finish.
    pub fn end_streams(&self) {
        self.closing.cancel();
    }

    /// Makes a snapshot now, without waiting for the next one that is due.
    pub async fn snapshot(&self) -> Result<(), ReadError> {
        self.view.snapshots.ask();
        self.raft.trigger().snapshot().await.map_err(|e| ReadError::Fatal(e.to_string()))
    }

    /// Stops taking part, then syncs and closes the stores. Call once, last.
    pub async fn shutdown(&self) {
        self.end_streams();
        let stop = async {
            if let Err(error) = self.raft.shutdown().await {
                tracing::warn!(%error, "consensus did not stop cleanly");
            }
            if let Err(error) = self.log.close().await {
                tracing::warn!(%error, "the log did not close cleanly");
            }
            if let Err(error) = self.audit.close().await {
                tracing::warn!(%error, "the audit log did not close cleanly");
            }
        };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, stop).await.is_err() {
            tracing::warn!("the stores did not close in time; nothing acknowledged is lost");
        }
    }
}

/// The clock of elections and heartbeats; it runs again when this is dropped.
struct ParkedClock<'a>(&'a RaftHandle);

impl ParkedClock<'_> {
    fn park(&self, parked: bool) {
        self.0.raft.runtime_config().tick(!parked);
        self.0.parked.store(parked, Ordering::Relaxed);
    }
}

impl Drop for ParkedClock<'_> {
    fn drop(&mut self) {
        self.park(false);
    }
}

/// Whether `node` leads and is the only member, by the newest and by the committed membership.
fn is_alone(metrics: &openraft::metrics::RaftServerMetrics<TypeConfig>, node: u64) -> bool {
    let memberships = [&metrics.membership_config, &metrics.committed_membership_config];
    metrics.state == openraft::ServerState::Leader
        && memberships.iter().all(|one| one.membership().nodes().map(|(id, _)| *id).eq([node]))
}

fn peer_of(forward: &ForwardToLeader<TypeConfig>) -> Option<Peer> {
    let node = forward.leader_id?;
    Some(Peer { node, address: forward.leader_node.as_ref().map(|n| n.addr.clone())? })
}

/// Turns openraft's metrics into changes of leadership only. Ends with openraft; if that ended by
/// itself, the process must not live on without it.
fn follow_leadership(raft: &Raft, node: u64, fatal: FatalHook) -> watch::Receiver<Leadership> {
    let mut metrics = raft.server_metrics();
    let whole = raft.metrics();
    let current = move |m: &openraft::metrics::RaftServerMetrics<TypeConfig>| Leadership {
        is_leader: m.state == openraft::ServerState::Leader && m.current_leader == Some(node),
        term: m.vote.leader_id().term,
        leader: m.current_leader,
    };
    let (sender, receiver) = watch::channel(current(&metrics.borrow_watched()));
    tokio::spawn(async move {
        while metrics.changed().await.is_ok() {
            let now = current(&metrics.borrow_watched());
            sender.send_if_modified(|last| std::mem::replace(last, now) != now);
        }
        sender.send_if_modified(|last| std::mem::take(&mut last.is_leader));
        let ended = whole.borrow_watched().running_state.clone();
        if let Err(reason) = ended
            && reason != openraft::error::Fatal::Stopped
        {
            fatal.stop(&Fatal::Consensus { detail: reason.to_string() });
        }
    });
    receiver
}
