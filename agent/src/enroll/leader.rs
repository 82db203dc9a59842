//! One short call to whichever controller leads. Renewal and vouching use it.

use std::time::Duration;

use fleet_proto::convert::rejection::{NO_QUORUM_TRAILER, leader_named};
use fleet_proto::transport::client::Dialer;
use fleet_proto::transport::limits::{CALL_TIMEOUT, CONNECT_ALL_TIMEOUT};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Controllers asked before giving up: each once, and some again after an election.
const TRIES_MAX: usize = 6;
/// Between two tries, once all were asked.
const PAUSE: Duration = Duration::from_millis(300);

/// Asks the controllers in turn until one answers that is not merely the wrong one.
pub(crate) async fn ask<T, F>(dialer: &Dialer, call: impl Fn(Channel) -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let channels = dialer.channels();
    let mut at = 0;
    let mut last = Status::unavailable("no controller address is known");
    // What one said that was reached is worth more than that another was not.
    let mut no_quorum = None;
    for tries in 1..=TRIES_MAX {
        let Some((_, channel)) = channels.get(at) else { return Err(last) };
        let limit = CALL_TIMEOUT + CONNECT_ALL_TIMEOUT;
        let answer = match tokio::time::timeout(limit, call(channel.clone())).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        };
        last = match answer {
            Err(status) if status.code() == Code::Unavailable => status,
            other => return other,
        };
        let named =
            leader_named(&last).and_then(|l| channels.iter().position(|(a, _)| a.to_string() == l));
        at = named.unwrap_or((at + 1) % channels.len());
        if last.metadata().contains_key(NO_QUORUM_TRAILER) {
            no_quorum = Some(last.clone());
        }
        if tries >= channels.len() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Err(no_quorum.unwrap_or(last))
}
