//! Proposing a caller's command, and what its fate looks like on the wire.

use fleet_core::access::CertificateHolder;
use fleet_core::command::{AccessCommand, ClusterCommand, Command, RequestKey};
use fleet_core::{Actor, AuthMethod, Envelope, Fsm, Rejection, Reply, Timestamp};
use fleet_proto::convert::freshness::{Freshness, may_be_stale};
use fleet_proto::convert::rejection::{LEADER_TRAILER, NO_QUORUM_TRAILER, not_taken, to_status};
use fleet_proto::v1;
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::Status;

use super::Context;
use crate::clock::Standing;
use crate::raft::{Peer, ProposeError, ReadError};

/// The request's key: its id and a digest of everything the client sent.
pub(super) fn request_key<M: Message>(
    meta: Option<&v1::RequestMeta>,
    request: &M,
) -> Result<RequestKey, Status> {
    let meta = meta.filter(|meta| !meta.request_id.is_empty()).ok_or_else(|| {
        to_status(&Rejection::field("meta.request_id", "each change needs a request id"))
    })?;
    Ok(RequestKey {
        id: meta.request_id.clone(),
        made_at: Timestamp(meta.made_at_unix_ms),
        body_sha256: hex::encode(Sha256::digest(request.encode_to_vec())),
    })
}

fn elsewhere(leader: Option<&Peer>) -> Status {
    let Some(leader) = leader else {
        let none = Status::unavailable("no quorum: no controller leads right now; try again");
        return not_taken(without_quorum(none));
    };
    let problem = format!("controller {} at {} leads, not this one", leader.node, leader.address);
    let mut status = not_taken(Status::unavailable(problem));
    if let Ok(address) = leader.address.parse() {
        status.metadata_mut().insert(LEADER_TRAILER, address);
    }
    status
}

/// Marks a status: to ask another controller would not help.
fn without_quorum(mut status: Status) -> Status {
    if let Ok(value) = "1".parse() {
        status.metadata_mut().insert(NO_QUORUM_TRAILER, value);
    }
    status
}

/// What a failed proposal is on the wire.
pub(super) fn propose_status(error: &ProposeError) -> Status {
    match error {
        ProposeError::NotLeader { leader } => elsewhere(leader.as_ref()),
        ProposeError::NoQuorum => {
            not_taken(without_quorum(Status::unavailable(format!("no quorum: {error}"))))
        }
        ProposeError::OutcomeUnknown => {
            without_quorum(Status::deadline_exceeded(format!("no quorum: {error}")))
        }
        ProposeError::TooLarge { .. } => Status::invalid_argument(error.to_string()),
        ProposeError::DiskNearlyFull { .. } | ProposeError::DisksNearlyFull { .. } => {
            Status::resource_exhausted(error.to_string())
        }
        ProposeError::Fatal(_) => Status::unavailable(error.to_string()),
    }
}

/// What a failed look at the newest state is on the wire.
pub(super) fn read_status(error: &ReadError) -> Status {
    not_taken(match error {
        ReadError::NotLeader { leader } => elsewhere(leader.as_ref()),
        ReadError::NoQuorum => without_quorum(Status::unavailable(format!("no quorum: {error}"))),
        ReadError::Fatal(_) => Status::unavailable(error.to_string()),
    })
}

/// Whether a change waits until it is known what time it is. A node that renews does not: its certificate ends by
/// the wall clock, and without one no agent could say what time it is. One that joins does: it is the fleet's time
/// that ends a join token.
fn needs_the_time(actor: &Actor, command: &Command) -> bool {
    match command {
        Command::Cluster(ClusterCommand::ResetClock { .. }) => false,
        Command::Access(AccessCommand::RecordCertificate {
            holder: CertificateHolder::Node { .. },
            ..
        }) => actor.method == AuthMethod::JoinToken,
        _ => true,
    }
}

impl Context {
    /// An envelope with the leader's time.
    pub(super) fn envelope(
        &self,
        actor: Actor,
        request: Option<RequestKey>,
        command: Command,
    ) -> Envelope {
        self.clock.envelope(self.raft.read(Fsm::now), actor, request, command)
    }

    /// Proposes a user's command. What the newest state answers without the log does not reach it,
    /// so that a flood of refused requests cannot fill it.
    pub(super) async fn change(
        &self,
        actor: &Actor,
        request: Option<RequestKey>,
        command: Command,
    ) -> Result<Reply, Status> {
        let action = command.name();
        let refused = |rejection: Rejection| {
            self.refusals.note(&actor.principal(), action, rejection.code());
            to_status(&rejection)
        };
        self.check_clock(actor, &command)?;
        let envelope = self.envelope(actor.clone(), request, command);
        if self.raft.read(|fsm| fsm.answer_without_log(&envelope)).is_some() {
            self.newest().await?;
            if let Some(reply) = self.raft.read(|fsm| fsm.answer_without_log(&envelope)) {
                return reply.map_err(refused);
            }
        }
        let applied = self.raft.propose(envelope).await.map_err(|e| propose_status(&e))?;
        applied.reply.map_err(refused)
    }

    /// While nobody confirms this controller's time, a change would be dated wrongly.
    fn check_clock(&self, actor: &Actor, command: &Command) -> Result<(), Status> {
        match self.clock.standing() {
            Standing::Agreed | Standing::WallWrong { .. } => Ok(()),
            Standing::Unconfirmed { .. } if !needs_the_time(actor, command) => Ok(()),
            Standing::Unconfirmed { step_ms } => Err(not_taken(Status::unavailable(format!(
                "this controller's clock is {} s from the fleet's time and no majority of agents confirms it yet; try again in a moment, or an admin confirms it with `fleet controller reset-clock`",
                step_ms / 1_000
            )))),
        }
    }

    /// Returns when this controller does not lead any more.
    pub(super) async fn deposed(&self) {
        drop(self.raft.leadership().wait_for(|l| !l.is_leader).await);
    }

    /// [`Self::newest`], unless the caller takes an old answer: then how old it may be.
    pub(super) async fn newest_unless_stale<T>(
        &self,
        request: &tonic::Request<T>,
    ) -> Result<Option<Freshness>, Status> {
        if !may_be_stale(request) {
            return self.newest().await.map(|()| None);
        }
        Ok(Some(self.freshness()))
    }

    /// How old the state here may be.
    pub(super) fn freshness(&self) -> Freshness {
        let age = self.raft.age().map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Freshness { controller: self.raft.node(), age_ms: age }
    }

    /// Sends the caller to the leader as long as this controller never knew the newest state: a new one would
    /// tell of a fleet without members. Without a leader it answers all the same.
    pub(super) async fn caught_up(&self) -> Result<(), Status> {
        if self.raft.age().is_some() {
            return Ok(());
        }
        match self.raft.ensure_linearizable().await {
            Err(ReadError::NotLeader { leader: Some(leader) }) => Err(elsewhere(Some(&leader))),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes sure that what is read next is not older than this moment.
    pub(super) async fn newest(&self) -> Result<(), Status> {
        self.raft.ensure_linearizable().await.map_err(|e| read_status(&e))
    }
}
