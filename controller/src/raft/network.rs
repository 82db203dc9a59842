//! openraft's network, client side: one gRPC channel per peer and purpose.
//!
//! How a channel comes about (TLS, which certificate) is the [`PeerConnector`]'s matter; it must make
//! sure that the other end is the controller it dialled. Every call carries a deadline from openraft.
//! A peer that cannot be reached is reported as unreachable, so that openraft backs off.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleet_proto::v1;
use fleet_proto::v1::raft_client::RaftClient;
use fleet_proto::v1::snapshot_part::Part;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use openraft::error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::called::called;
use super::member_report::Members;
use super::pipeline::{self, Pipeline};
use super::snapshot::SnapshotData;
use super::types::{Snapshot, TypeConfig, Vote};
use crate::audit::{AuditStore, Query};

/// Largest message between controllers: a batch of entries, a part of a snapshot.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Bytes of state or of audit lines in one part of a snapshot.
const PART_BYTES: usize = 1 << 20;
/// Parts in flight.
const PARTS_IN_FLIGHT: usize = 4;
/// How long a peer may take to answer entries, at least. Longer than openraft's own measure: an answer
/// that comes late still counts for the leader's lease, one that was given up does not.
const APPEND_TIMEOUT: Duration = Duration::from_millis(500);
/// A snapshot with its audit records may take this long altogether.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// The peer writes what it holds in memory before it answers where its audit log ends.
const AUDIT_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Records read at a time while they are sent.
const AUDIT_PAGE: usize = 500;

/// Makes channels to other controllers. Called often and must not wait: return a lazy channel.
pub trait PeerConnector: Send + Sync {
    /// A channel that reaches controller `node` at `address`, and only that one.
    fn channel(&self, node: u64, address: &str) -> Result<Channel, String>;

    /// Rises when channels should be made again: this controller has other credentials than before.
    fn generation(&self) -> u64 {
        0
    }
}

/// Plain TCP without TLS: for tests on the loopback interface only.
#[derive(Debug, Clone, Copy)]
pub struct PlaintextConnector;

impl PeerConnector for PlaintextConnector {
    fn channel(&self, _node: u64, address: &str) -> Result<Channel, String> {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| e.to_string())?;
        Ok(endpoint.connect_timeout(Duration::from_millis(500)).connect_lazy())
    }
}

/// Reaches nobody: for a store that is being made.
#[derive(Debug, Clone, Copy)]
pub struct NoPeers;

impl PeerConnector for NoPeers {
    fn channel(&self, node: u64, _address: &str) -> Result<Channel, String> {
        Err(format!("controller {node} cannot be there yet"))
    }
}

/// Makes a client per peer.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) cluster: String,
    pub(crate) node: u64,
    pub(crate) connector: Arc<dyn PeerConnector>,
    pub(crate) audit: AuditStore,
    pub(crate) members: Members,
}

/// The client for one peer.
pub(crate) struct Peer {
    network: Network,
    target: u64,
    address: String,
    client: Mutex<Made>,
}

/// What comes back for entries, one by one.
type Answers<'s> = BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>;

/// A client, and the generation of the channels it was made in.
type Made = (u64, Result<RaftClient<Channel>, String>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        let (address, client) = (node.addr.clone(), Mutex::new(self.client(target, &node.addr)));
        Peer { network: self.clone(), target, address, client }
    }
}

impl Network {
    fn client(&self, target: u64, address: &str) -> Made {
        let generation = self.connector.generation();
        let client = self.connector.channel(target, address).map(|channel| {
            RaftClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        });
        (generation, client)
    }
}

/// The unary calls, which differ in name only.
#[derive(Debug, Clone, Copy)]
enum Call {
    Append,
    Vote,
    PreVote,
    TransferLeader,
    AuditHead,
}

impl Peer {
    /// A client, and the generation of the credentials it shows.
    pub(super) fn client(&self) -> Result<(u64, RaftClient<Channel>), RPCError<TypeConfig>> {
        let mut made = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        // What is under way ends on the connection before, which would end some time with the certificate that was
        // shown on it.
        if made.0 != self.generation() {
            *made = self.network.client(self.target, &self.address);
        }
        match &made.1 {
            Ok(client) => Ok((made.0, client.clone())),
            Err(e) => Err(RPCError::Unreachable(Unreachable::from_string(e))),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.network.connector.generation()
    }

    /// `question` for the peer.
    pub(super) fn message<Q: Serialize>(
        &self,
        question: &Q,
    ) -> Result<v1::RaftRequest, RPCError<TypeConfig>> {
        let payload = serde_json::to_vec(question)
            .map_err(|e| RPCError::Network(NetworkError::from_string(e)))?;
        Ok(v1::RaftRequest {
            cluster_id: called(&self.network.cluster),
            from: self.network.node,
            to: self.target,
            payload,
        })
    }

    /// What the peer said of itself with an answer.
    pub(super) fn heard(&self, about: Vec<u8>) {
        self.network.members.heard(self.target, about);
    }

    async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        call: Call,
        question: &Q,
        deadline: Duration,
    ) -> Result<A, RPCError<TypeConfig>> {
        let (_, mut client) = self.client()?;
        let mut request = tonic::Request::new(self.message(question)?);
        request.set_timeout(deadline);
        let answer = async {
            match call {
                Call::Append => client.append(request).await,
                Call::Vote => client.vote(request).await,
                Call::PreVote => client.pre_vote(request).await,
                Call::TransferLeader => client.transfer_leader(request).await,
                Call::AuditHead => client.audit_head(request).await,
            }
        };
        let answer = tokio::time::timeout(deadline, answer)
            .await
            .map_err(|_| unreachable_peer(format!("no answer within {deadline:?}")))?
            .map_err(|status| unreachable_peer(describe(&status)))?;
        let answer = answer.into_inner();
        self.heard(answer.about);
        serde_json::from_slice(&answer.payload)
            .map_err(|e| RPCError::Network(NetworkError::from_string(e)))
    }

    /// Sends the parts of a snapshot into `parts`: audit records first, then the state.
    async fn send_parts(
        network: Network,
        begin: v1::SnapshotBegin,
        audit: std::ops::RangeInclusive<u64>,
        state: SnapshotData,
        parts: mpsc::Sender<v1::SnapshotPart>,
    ) -> Result<(), String> {
        let send = async |part| {
            let part = v1::SnapshotPart { part: Some(part) };
            parts.send(part).await.map_err(|_| "the peer stopped receiving".to_owned())
        };
        send(Part::Begin(begin)).await?;
        let mut next = *audit.start();
        while next <= *audit.end() {
            let query = Query { from_seq: Some(next), limit: AUDIT_PAGE, ..Query::default() };
            let page = network.audit.query(query).await.map_err(|e| e.to_string())?;
            let mut lines = Vec::new();
            for record in page.records.iter().filter(|r| r.body.seq <= *audit.end()) {
                if !lines.is_empty() && lines.len() + record.line.len() > PART_BYTES {
                    send(Part::AuditLines(std::mem::take(&mut lines))).await?;
                }
                lines.extend_from_slice(record.line.as_bytes());
                lines.push(b'\n');
                next = record.body.seq + 1;
            }
            if lines.is_empty() {
                return Err(format!("audit record {next} is missing here"));
            }
            send(Part::AuditLines(lines)).await?;
        }
        for chunk in state.chunks(PART_BYTES) {
            send(Part::State(chunk.to_vec())).await?;
        }
        Ok(())
    }

    async fn snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let (_, mut client) = self.client()?;
        let broken = |e: String| StreamingError::Unreachable(Unreachable::from_string(e));
        let fsm = fleet_core::Fsm::from_snapshot(&snapshot.snapshot)
            .map_err(|e| broken(e.to_string()))?;
        let wanted = fsm.audit_head().0;
        let (have, _hash): (u64, String) =
            self.call(Call::AuditHead, &(), AUDIT_HEAD_TIMEOUT).await?;
        // Written before it is read: a record below the floor is nowhere any more.
        self.network.audit.flush().await.map_err(|e| broken(e.to_string()))?;
        let floor = self.network.audit.floor().map_err(|e| broken(e.to_string()))?;
        let json = |e: serde_json::Error| broken(e.to_string());
        let begin = v1::SnapshotBegin {
            cluster_id: called(&self.network.cluster),
            from: self.network.node,
            to: self.target,
            vote: serde_json::to_vec(&vote).map_err(json)?,
            meta: serde_json::to_vec(&snapshot.meta).map_err(json)?,
            state_bytes: snapshot.snapshot.len() as u64,
            state_sha256: hex::encode(Sha256::digest(&*snapshot.snapshot)),
            audit_pruned_through: floor.seq,
            audit_pruned_hash: floor.hash,
        };
        let (parts, stream) = mpsc::channel(PARTS_IN_FLIGHT);
        let sending = Self::send_parts(
            self.network.clone(),
            begin,
            have.max(floor.seq) + 1..=wanted,
            Arc::clone(&snapshot.snapshot),
            parts,
        );
        let mut request = tonic::Request::new(ReceiverStream::new(stream));
        request.set_timeout(SNAPSHOT_TIMEOUT);
        let (sent, answer) = tokio::join!(sending, client.install_snapshot(request));
        let answer = answer.map_err(|status| broken(describe(&status)))?;
        sent.map_err(broken)?;
        serde_json::from_slice(&answer.into_inner().payload).map_err(json)
    }
}

pub(super) fn describe(status: &tonic::Status) -> String {
    format!("{}: {}", status.code(), status.message())
}

fn unreachable_peer(problem: String) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(problem))
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Call::Append, &rpc, option.soft_ttl().max(APPEND_TIMEOUT)).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Answers<'s>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let patience = option.soft_ttl().max(APPEND_TIMEOUT);
            let opened = pipeline::open(self, patience).await?;
            Ok(Pipeline::over(self, opened, patience).run(input).boxed())
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Call::Vote, &rpc, option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Call::PreVote, &rpc, option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let sending = tokio::time::timeout(SNAPSHOT_TIMEOUT, self.snapshot(vote, snapshot));
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = sending => sent.unwrap_or_else(|_| {
                let problem = format!("the snapshot was not taken within {SNAPSHOT_TIMEOUT:?}");
                Err(StreamingError::Unreachable(Unreachable::from_string(problem)))
            }),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(Call::TransferLeader, &rpc, option.soft_ttl()).await
    }
}
