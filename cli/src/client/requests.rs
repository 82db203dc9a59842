//! The ids of a command's requests: what makes it safe to send one again, and to type the command again.
//!
//! The controllers remember for a while how they answered each id, and answer a repeated one the same without
//! carrying it out twice. All requests of a command share one id, which the user can give again by `--request-id`;
//! the second and later ones have a number behind it. The id holds the time of the command, because the repeated
//! request must be the same to the byte: `--from +2h` is then reckoned from that time.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use fleet_proto::v1::RequestMeta;

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Between the parts of an id.
const SEPARATOR: char = '-';
/// Of an id; of one principal's requests within minutes no two are to be alike.
const RANDOM_BYTES: usize = 8;

/// What the requests of a command share: `19ac3f5e2b0-8f3a9c1d2e4b5a60`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) made_at_unix_ms: u64,
    random: u64,
}

impl RequestId {
    fn new(made_at_unix_ms: u64) -> Result<Self, Failure> {
        let mut random = [0_u8; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|error| {
            Failure::new(Exit::Failed, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Self { made_at_unix_ms, random: u64::from_be_bytes(random) })
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}{SEPARATOR}{:016x}", self.made_at_unix_ms, self.random)
    }
}

impl FromStr for RequestId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(SEPARATOR).and_then(|(at, random)| {
            let made_at_unix_ms = u64::from_str_radix(at, 16).ok()?;
            let random = u64::from_str_radix(random, 16).ok()?;
            Some(Self { made_at_unix_ms, random })
        });
        parts
            .filter(|id| id.to_string() == text)
            .ok_or("not the id of a request; the message that asks to repeat one has it")
    }
}

/// The requests of one command. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    id: Option<RequestId>,
    made: usize,
}

impl Requests {
    /// Those of a command that is typed again.
    pub(crate) fn again(id: RequestId) -> Self {
        Self(Arc::new(Mutex::new(State { id: Some(id), made: 0 })))
    }

    /// The next one; `now` is when the command began.
    pub(super) fn next(&self, now_unix_ms: u64) -> Result<RequestMeta, Failure> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = match state.id {
            Some(id) => id,
            None => *state.id.insert(RequestId::new(now_unix_ms)?),
        };
        state.made += 1;
        let request_id = match state.made {
            1 => id.to_string(),
            made => format!("{id}{SEPARATOR}{made}"),
        };
        Ok(RequestMeta { request_id, made_at_unix_ms: id.made_at_unix_ms })
    }

    /// What comes next has another id: it repeats nothing.
    pub(super) fn renew(&self, now_unix_ms: u64) -> Result<(), Failure> {
        let state = State { id: Some(RequestId::new(now_unix_ms)?), made: 0 };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(())
    }

    /// What they share, where one was made.
    pub(super) fn id(&self) -> Option<RequestId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_typed_again_makes_the_same_requests() {
        let first = Requests::default();
        let made: Vec<_> = (0..3).map(|_| first.next(1_700_000_000_000).unwrap()).collect();
        let typed = first.id().unwrap().to_string();
        let again = Requests::again(typed.parse().unwrap());
        let repeated: Vec<_> = (0..3).map(|_| again.next(1_700_000_090_000).unwrap()).collect();
        assert_eq!(made, repeated);
        assert_eq!(made[0].request_id, typed);
        assert_eq!(made[2].request_id, format!("{typed}-3"));
        assert_ne!(
            made[0].request_id,
            Requests::default().next(1_700_000_000_000).unwrap().request_id
        );
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let good = RequestId { made_at_unix_ms: 1_700_000_000_000, random: 7 }.to_string();
        assert_eq!(good.parse(), Ok(RequestId { made_at_unix_ms: 1_700_000_000_000, random: 7 }));
        for bad in
            ["", "-", "job-4k7wq2", "18bcfe56800", &good[..good.len() - 1], &format!("{good}-2")]
        {
            assert!(bad.parse::<RequestId>().is_err(), "{bad:?}");
        }
    }
}
