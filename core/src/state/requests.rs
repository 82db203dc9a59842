//! The table of answered requests: a retry gets the first answer again.
//!
//! Keyed by principal and request id, so that nobody can read another's answers. Kept for a window of FSM
//! time, or until there are too many: then the first answers go, and from then on no request of the same
//! principal is taken that was made as early as those and is not known. So a request is refused where its
//! answer may be forgotten, and never carried out twice; and a wrong clock harms its owner only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::RequestKey;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::{Millis, Timestamp};

/// How long answers are kept, and how far a client's clock may be off.
pub const REQUEST_WINDOW: Millis = Millis::minutes(10);
/// Most answers kept.
pub(crate) const REQUESTS_KEPT_MAX: usize = 200_000;
/// How many go at once when there are as many: looking through all of them must be rare.
const FORGOTTEN_AT_ONCE: usize = REQUESTS_KEPT_MAX / 10;
/// Between principal, which never holds it, and request id.
const SEPARATOR: char = '|';
/// Longest request id, in bytes.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    body_sha256: String,
    /// By the client's clock.
    made_at: Timestamp,
    at: Timestamp,
    reply: Result<Reply, Rejection>,
}

/// See the module's doc.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestTable {
    /// Keyed by `principal|id`.
    answers: BTreeMap<String, Answer>,
    /// When the oldest answers were last dropped.
    swept_at: Timestamp,
    /// Answers to a principal's requests made until then, by its own clock, may have been forgotten early.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forgotten: BTreeMap<String, Timestamp>,
}

impl RequestTable {
    /// The answer to give instead of applying, if there is one.
    pub(crate) fn answered(
        &self,
        principal: &str,
        key: &RequestKey,
        now: Timestamp,
    ) -> Option<Result<Reply, Rejection>> {
        if key.id.is_empty() || key.id.len() > REQUEST_ID_BYTES_MAX || !key.id.is_ascii() {
            let problem = format!("must be 1 to {REQUEST_ID_BYTES_MAX} ASCII characters");
            return Some(Err(Rejection::field("request_id", problem)));
        }
        if let Some(answer) = self.answers.get(&table_key(principal, key)) {
            if answer.body_sha256 != key.body_sha256 {
                return Some(Err(Rejection::RequestReused { id: key.id.clone() }));
            }
            return Some(answer.reply.clone());
        }
        let apart = now.since(key.made_at).max(key.made_at.since(now));
        if apart > REQUEST_WINDOW {
            let (made_at_ms, now_ms) = (key.made_at.0, now.0);
            return Some(Err(Rejection::RequestTooOld { made_at_ms, now_ms }));
        }
        let until = self.forgotten.get(principal)?;
        (key.made_at <= *until)
            .then_some(Err(Rejection::RequestForgotten { made_at_ms: key.made_at.0 }))
    }

    pub(crate) fn remember(
        &mut self,
        principal: String,
        key: &RequestKey,
        now: Timestamp,
        reply: Result<Reply, Rejection>,
    ) {
        let (body_sha256, made_at) = (key.body_sha256.clone(), key.made_at);
        let answer = Answer { body_sha256, made_at, at: now, reply };
        self.answers.insert(table_key(&principal, key), answer);
        // An answer must outlive every retry that is still accepted: made_at may be a window ahead.
        let keep = Millis(2 * REQUEST_WINDOW.0);
        if now.since(self.swept_at) > Millis::minutes(1) {
            self.swept_at = now;
            self.answers.retain(|_, answer| now.since(answer.at) <= keep);
            // What was made before that is too old, known or not.
            self.forgotten.retain(|_, until| now.since(*until) <= keep);
        }
        if self.answers.len() > REQUESTS_KEPT_MAX {
            self.forget_first();
        }
    }

    /// Forgets the answers that were given first.
    fn forget_first(&mut self) {
        let mut given: Vec<Timestamp> = self.answers.values().map(|a| a.at).collect();
        let (_, last, _) = given.select_nth_unstable(FORGOTTEN_AT_ONCE);
        let forgotten = &mut self.forgotten;
        self.answers.retain(|table_key, answer| {
            let keep = answer.at > *last;
            if !keep && let Some((principal, _)) = table_key.split_once(SEPARATOR) {
                let until = forgotten.entry(principal.to_owned()).or_default();
                *until = (*until).max(answer.made_at);
            }
            keep
        });
    }

    /// After the clock was set back, answers of the future would refuse everything.
    pub(crate) fn forget_after(&mut self, to: Timestamp) {
        self.swept_at = self.swept_at.min(to);
        for until in self.forgotten.values_mut() {
            *until = (*until).min(to);
        }
        for answer in self.answers.values_mut() {
            answer.at = answer.at.min(to);
        }
    }
}

fn table_key(principal: &str, key: &RequestKey) -> String {
    format!("{principal}{SEPARATOR}{}", key.id)
}
