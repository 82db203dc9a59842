//! Log entries on their way to one peer: one stream, several requests in flight, answers in their order.
//!
//! Made by the network for each of openraft's sessions of replication. A request goes out while those before it
//! are still being synced over there. Nothing here sends anything twice: what is not answered in time ends the
//! session, and openraft begins another one with what the peer lacks.

use std::collections::VecDeque;
use std::time::Duration;

use fleet_proto::v1;
use futures::{Stream, StreamExt, stream};
use openraft::error::{RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::network::{Peer, describe};
use super::types::TypeConfig;

/// Requests without an answer. The one that brings the news of a commit must not hold up the next entries; more
/// than a few would only wait over there.
const IN_FLIGHT_MAX: usize = 8;

/// What openraft takes from a session.
type Answer = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// A stream just opened.
pub(super) struct Opened {
    /// Of the credentials that it was opened with.
    generation: u64,
    requests: mpsc::Sender<v1::RaftRequest>,
    answers: Streaming<v1::RaftReply>,
}

/// Opens a stream to `peer`. It may take `patience`.
pub(super) async fn open(peer: &Peer, patience: Duration) -> Result<Opened, RPCError<TypeConfig>> {
    let (generation, mut client) = peer.client()?;
    let (requests, outgoing) = mpsc::channel(IN_FLIGHT_MAX);
    let opening = client.append_stream(ReceiverStream::new(outgoing));
    match tokio::time::timeout(patience, opening).await {
        Err(_) => Err(late(patience)),
        Ok(Err(status)) => Err(refused(&status)),
        Ok(Ok(answers)) => Ok(Opened { generation, requests, answers: answers.into_inner() }),
    }
}

/// One session over a stream.
pub(super) struct Pipeline<'p> {
    peer: &'p Peer,
    generation: u64,
    /// None once nothing more is to be sent.
    requests: Option<mpsc::Sender<v1::RaftRequest>>,
    answers: Streaming<v1::RaftReply>,
    /// When each request without an answer was sent.
    waiting: VecDeque<Instant>,
    patience: Duration,
}

impl<'p> Pipeline<'p> {
    /// An answer may take `patience`.
    pub(super) fn over(peer: &'p Peer, opened: Opened, patience: Duration) -> Self {
        let Opened { generation, requests, answers } = opened;
        let (requests, waiting) = (Some(requests), VecDeque::new());
        Self { peer, generation, requests, answers, waiting, patience }
    }

    /// Sends what `input` has and gives the answers, until either ends.
    pub(super) fn run<S>(self, input: S) -> impl Stream<Item = Answer> + Send + 'p
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        stream::unfold(Some((self, input)), |state| async {
            let (mut pipeline, mut input) = state?;
            let answer = pipeline.next(&mut input).await.transpose()?;
            // After an error, and after what only another session can put right, nothing more comes.
            let goes_on = matches!(answer, Ok(Ok(_)));
            Some((answer, goes_on.then_some((pipeline, input))))
        })
    }

    async fn next<S>(
        &mut self,
        input: &mut S,
    ) -> Result<Option<StreamAppendResult<TypeConfig>>, RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
    {
        loop {
            if self.requests.is_none() && self.waiting.is_empty() {
                return Ok(None);
            }
            let room = self.requests.is_some() && self.waiting.len() < IN_FLIGHT_MAX;
            let since = self.waiting.front().copied();
            tokio::select! {
                biased;
                answer = self.answers.message() => return self.answered(answer).map(Some),
                request = input.next(), if room => self.send(request.as_ref())?,
                () = tokio::time::sleep_until(since.unwrap_or_else(Instant::now) + self.patience),
                    if since.is_some() => return Err(late(self.patience)),
            }
        }
    }

    /// Sends a request; with none, or with other credentials than at the beginning, the stream comes to its end.
    fn send(
        &mut self,
        request: Option<&AppendEntriesRequest<TypeConfig>>,
    ) -> Result<(), RPCError<TypeConfig>> {
        let Some(request) = request else {
            self.requests = None;
            return Ok(());
        };
        let message = self.peer.message(request)?;
        // The channel has room for all that may be in flight, so this fails only if the stream is gone: then the
        // answers say why.
        if let Some(requests) = &self.requests
            && requests.try_send(message).is_err()
        {
            tracing::debug!("the stream of entries is gone");
        }
        self.waiting.push_back(Instant::now());
        if self.generation != self.peer.generation() {
            self.requests = None;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        answer: Result<Option<v1::RaftReply>, Status>,
    ) -> Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>> {
        let reply = answer.map_err(|status| refused(&status))?.ok_or_else(|| {
            RPCError::Unreachable(Unreachable::from_string("the peer ended the stream"))
        })?;
        self.waiting.pop_front();
        self.peer.heard(reply.about);
        serde_json::from_slice(&reply.payload)
            .map_err(|e| RPCError::Unreachable(Unreachable::from_string(e)))
    }
}

fn refused(status: &Status) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(describe(status)))
}

fn late(patience: Duration) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(format!("no answer within {patience:?}")))
}
