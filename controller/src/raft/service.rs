//! The gRPC service through which other controllers reach this one's openraft.
//!
//! Every call is checked: same cluster, meant for this node, from the node that the connection's
//! certificate names ([`PeerCheck`]). The service decides nothing; it passes messages on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_proto::v1;
use fleet_proto::v1::raft_server::{Raft as RaftApi, RaftServer};
use fleet_proto::v1::snapshot_part::Part;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use openraft::raft::AppendEntriesRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::called::check_called;
use super::divergence::OwnCheck;
use super::fitness::OwnFitness;
use super::member_report::{CORE, MemberReport};
use super::network::MESSAGE_BYTES_MAX;
use super::snapshot::SNAPSHOT_BYTES_MAX;
use super::space::FreeSpace;
use super::state_age::StateAge;
use super::types::{Raft, Snapshot, SnapshotMeta, TypeConfig, Vote};
use crate::audit::{AuditError, AuditStore, Head};

/// Says whether the connection behind a request may speak for controller `from`.
pub type PeerCheck = Arc<dyn Fn(&http::Extensions, u64) -> Result<(), Status> + Send + Sync>;

/// The service. Made by [`super::RaftHandle::service`].
#[derive(Clone)]
pub struct RaftService {
    pub(super) raft: Raft,
    pub(super) audit: AuditStore,
    pub(super) cluster: String,
    pub(super) node: u64,
    pub(super) check: PeerCheck,
    pub(super) heard: StateAge,
    pub(super) applied: watch::Receiver<u64>,
    pub(super) own: OwnCheck,
    pub(super) room: FreeSpace,
    pub(super) fitness: OwnFitness,
    pub(super) cluster_version_max: u32,
    pub(super) closing: CancellationToken,
}

impl std::fmt::Debug for RaftService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftService").field("node", &self.node).finish_non_exhaustive()
    }
}

impl RaftService {
    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> RaftServer<RaftService> {
        RaftServer::new(self)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn check(&self, cluster: &str, from: u64, to: u64) -> Result<(), Status> {
        check_called(&self.cluster, cluster)?;
        if to != self.node {
            let problem = format!("this is controller {}, not {to}", self.node);
            return Err(Status::failed_precondition(problem));
        }
        if from == self.node {
            return Err(Status::failed_precondition("a controller with this one's id called"));
        }
        Ok(())
    }

    fn reply<T: Serialize>(&self, answer: &T) -> Result<Response<v1::RaftReply>, Status> {
        self.message(answer).map(Response::new)
    }

    fn message<T: Serialize>(&self, answer: &T) -> Result<v1::RaftReply, Status> {
        let json = |e: serde_json::Error| Status::internal(e.to_string());
        let payload = serde_json::to_vec(answer).map_err(json)?;
        let about = MemberReport {
            cluster_version: self.cluster_version_max,
            core: CORE.to_owned(),
            free_bytes: self.room.free_bytes(),
            check: self.own.newest(),
            look: self.fitness.newest(),
        };
        let about = serde_json::to_vec(&about).map_err(json)?;
        Ok(v1::RaftReply { payload, about })
    }

    fn open<T: DeserializeOwned>(&self, request: Request<v1::RaftRequest>) -> Result<T, Status> {
        let (_, extensions, message) = request.into_parts();
        self.read(&extensions, &message)
    }

    fn read<T: DeserializeOwned>(
        &self,
        extensions: &http::Extensions,
        message: &v1::RaftRequest,
    ) -> Result<T, Status> {
        self.check(&message.cluster_id, message.from, message.to)?;
        (self.check)(extensions, message.from)?;
        serde_json::from_slice(&message.payload).map_err(|e| {
            // Entries of a newer fleet stop here, before anything is stored: the leader keeps
            // trying, and this controller follows again once it is upgraded.
            tracing::error!(from = message.from, error = %e, "cannot read a message of another controller; is it newer than this one?");
            Status::invalid_argument(format!("payload: {e}"))
        })
    }
}

/// What came in on a stream of entries, and is not answered yet.
#[derive(Debug, Clone, Default)]
struct Taken(Arc<Mutex<TakenState>>);

#[derive(Debug, Default)]
struct TakenState {
    /// What the leader knew to be committed, for each request. As long as openraft lets requests wait.
    committed: VecDeque<u64>,
    /// Why nothing more is taken.
    refusal: Option<Status>,
}

impl Taken {
    fn state(&self) -> MutexGuard<'_, TakenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a request on; nothing after one that was refused.
    fn note(
        &self,
        read: Result<AppendEntriesRequest<TypeConfig>, Status>,
    ) -> Option<AppendEntriesRequest<TypeConfig>> {
        let mut state = self.state();
        match read {
            Ok(entries) => {
                state.committed.push_back(entries.leader_commit.map_or(0, |id| id.index));
                Some(entries)
            }
            Err(status) => {
                state.refusal = Some(status);
                None
            }
        }
    }

    fn next_committed(&self) -> u64 {
        self.state().committed.pop_front().unwrap_or_default()
    }

    fn refused(&self) -> Option<Status> {
        self.state().refusal.take()
    }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl RaftApi for RaftService {
    async fn append(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let entries: AppendEntriesRequest<TypeConfig> = self.open(request)?;
        let committed = entries.leader_commit.map_or(0, |id| id.index);
        let answer = self.raft.append_entries(entries).await.map_err(stopped)?;
        if answer.is_success() {
            self.heard.note(committed, *self.applied.borrow());
        }
        self.reply(&answer)
    }

    type AppendStreamStream = BoxStream<'static, Result<v1::RaftReply, Status>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<v1::RaftRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let (_, extensions, messages) = request.into_parts();
        let (service, taken) = (self.clone(), Taken::default());
        let entries = messages.scan((), {
            let (service, taken) = (service.clone(), taken.clone());
            move |(), message| {
                let read = message.and_then(|message| service.read(&extensions, &message));
                std::future::ready(taken.note(read))
            }
        });
        let answers = self.raft.stream_append(entries).map({
            let taken = taken.clone();
            move |answer| {
                let (answer, committed) = (answer.map_err(stopped)?, taken.next_committed());
                if answer.is_ok() {
                    service.heard.note(committed, *service.applied.borrow());
                }
                service.message(&answer)
            }
        });
        let refused = stream::once(async move { taken.refused() }).filter_map(async |r| r.map(Err));
        let closed = self.closing.clone().cancelled_owned();
        Ok(Response::new(answers.chain(refused).take_until(closed).boxed()))
    }

    async fn vote(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let answer = self.raft.vote(self.open(request)?).await.map_err(stopped)?;
        self.reply(&answer)
    }

    async fn pre_vote(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let answer = self.raft.pre_vote(self.open(request)?).await.map_err(stopped)?;
        self.reply(&answer)
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let answer =
            self.raft.handle_transfer_leader(self.open(request)?).await.map_err(stopped)?;
        if answer.is_ok() {
            self.fitness.handed_over();
        }
        self.reply(&answer)
    }

    async fn audit_head(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let () = self.open(request)?;
        self.audit.flush().await.map_err(stopped)?;
        let head = self.audit.head().map_err(stopped)?;
        self.reply(&(head.seq, head.hash))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::SnapshotPart>>,
    ) -> Result<Response<v1::RaftReply>, Status> {
        let (_, extensions, mut parts) = request.into_parts();
        let Some(v1::SnapshotPart { part: Some(Part::Begin(begin)) }) = parts.message().await?
        else {
            return Err(Status::invalid_argument("a snapshot begins with its description"));
        };
        self.check(&begin.cluster_id, begin.from, begin.to)?;
        (self.check)(&extensions, begin.from)?;
        let bad =
            |what: &str, e: serde_json::Error| Status::invalid_argument(format!("{what}: {e}"));
        let vote: Vote = serde_json::from_slice(&begin.vote).map_err(|e| bad("vote", e))?;
        let meta: SnapshotMeta = serde_json::from_slice(&begin.meta).map_err(|e| bad("meta", e))?;
        if begin.state_bytes > SNAPSHOT_BYTES_MAX {
            return Err(Status::resource_exhausted("the snapshot is too large"));
        }
        let state = self.receive(&begin, &mut parts).await?;
        let snapshot = Snapshot { meta, snapshot: Arc::new(state) };
        let answer = self.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        self.reply(&answer)
    }
}

impl RaftService {
    /// Stores the audit records as they come, checked against the chain, and collects the state.
    async fn receive(
        &self,
        begin: &v1::SnapshotBegin,
        parts: &mut Streaming<v1::SnapshotPart>,
    ) -> Result<Vec<u8>, Status> {
        let stored = |e: AuditError| Status::invalid_argument(e.to_string());
        if begin.audit_pruned_through > 0 {
            let hash = begin.audit_pruned_hash.clone();
            let floor = Head { seq: begin.audit_pruned_through, hash };
            self.audit.begin_behind(floor).await.map_err(stored)?;
        }
        let mut state = Vec::new();
        while let Some(part) = parts.message().await? {
            match part.part {
                Some(Part::AuditLines(lines)) => {
                    let lines = String::from_utf8(lines)
                        .map_err(|_| Status::invalid_argument("audit lines are not text"))?;
                    self.audit.fetched(lines).await.map_err(stored)?;
                }
                Some(Part::State(bytes)) => {
                    if (state.len() + bytes.len()) as u64 > begin.state_bytes {
                        return Err(Status::invalid_argument("more state than was announced"));
                    }
                    state.extend_from_slice(&bytes);
                }
                Some(Part::Begin(_)) | None => {
                    return Err(Status::invalid_argument("an unexpected part of a snapshot"));
                }
            }
        }
        if state.len() as u64 != begin.state_bytes
            || hex::encode(Sha256::digest(&state)) != begin.state_sha256
        {
            return Err(Status::data_loss("the snapshot does not match its checksum"));
        }
        Ok(state)
    }
}
