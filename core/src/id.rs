//! Typed, prefixed ids: the text of an id tells its kind, and an id of the wrong kind does not parse.
//!
//! Ids of jobs, reservations and tokens are drawn by the proposer (a shell) and come in with the
//! command; ids of allocations and leases follow from what is already replicated. Nothing here may
//! draw randomness.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest id accepted anywhere, in bytes.
pub const ID_BYTES_MAX: usize = 80;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{text:?} is not a {kind} id: it must begin with {prefix:?}")]
    WrongPrefix { kind: &'static str, prefix: &'static str, text: String },
    #[error(
        "{text:?} is not a {kind} id: after {prefix:?} come 1 to {max} of a-z, 0-9, '.' and '-'"
    )]
    BadSuffix { kind: &'static str, prefix: &'static str, text: String, max: usize },
    #[error("{text:?} is not an allocation id: its end is not the number of an attempt")]
    NoAttempt { text: String },
}

/// As much of a text as a message has room for.
fn shown(text: &str) -> String {
    text.chars().take(ID_BYTES_MAX).collect()
}

fn check(kind: &'static str, prefix: &'static str, text: &str) -> Result<(), IdError> {
    let Some(suffix) = text.strip_prefix(prefix) else {
        return Err(IdError::WrongPrefix { kind, prefix, text: shown(text) });
    };
    let max = ID_BYTES_MAX - prefix.len();
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if suffix.is_empty() || suffix.len() > max || !suffix.bytes().all(legal) {
        return Err(IdError::BadSuffix { kind, prefix, text: shown(text), max });
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text every id of this kind begins with.
            pub const PREFIX: &'static str = $prefix;

            /// Checks and wraps a whole id text, prefix included.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check($kind, $prefix, text)?;
                Ok(Self(text.to_owned()))
            }

            /// The id as text, prefix included.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The part after the prefix.
            pub fn suffix(&self) -> &str {
                &self.0[$prefix.len()..]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                check($kind, $prefix, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

text_id!(
    /// What a user asked to run.
    JobId, "job", "job-"
);
text_id!(
    /// GPUs promised to an owner for a time window.
    ReservationId, "reservation", "res-"
);
text_id!(
    /// One import of a spreadsheet.
    ImportId, "import", "imp-"
);
text_id!(
    /// Reservations that were made together by one rule.
    SeriesId, "series", "ser-"
);
text_id!(
    /// The right to use given GPUs now.
    LeaseId, "lease", "lease-"
);
text_id!(
    /// A join token. Names the token; never contains its secret.
    TokenId, "join token", "token-"
);
text_id!(
    /// A calendar feed. Names the feed; never contains its secret.
    FeedId, "calendar feed", "feed-"
);
text_id!(
    /// One fleet: chosen at `fleet-controller init`, part of every certificate.
    ClusterId, "cluster", "fleet-"
);

/// One attempt of a job on one node.
///
/// Its text is the job's suffix and the attempt's number. It is taken apart once, where it comes in: everybody else asks
/// for the job and the number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllocationId {
    text: String,
    job: JobId,
    attempt: u32,
}

impl AllocationId {
    /// The text every id of this kind begins with.
    pub const PREFIX: &'static str = "alloc-";

    /// The id of attempt number `attempt` (from 1) of `job`.
    pub fn of_attempt(job: &JobId, attempt: u32) -> Self {
        let text = format!("{}{}-{attempt}", Self::PREFIX, job.suffix());
        Self { text, job: job.clone(), attempt }
    }

    /// Checks and wraps a whole id text, prefix included.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let (kind, prefix) = ("allocation", Self::PREFIX);
        let Some(suffix) = text.strip_prefix(prefix) else {
            return Err(IdError::WrongPrefix { kind, prefix, text: shown(text) });
        };
        // It may be longer than the id of its job, which is checked here.
        let parts = suffix.rsplit_once('-').and_then(|(job, number)| {
            let job = JobId::parse(&format!("{}{job}", JobId::PREFIX)).ok()?;
            Some((job, number.parse().ok().filter(|number| *number >= 1)?))
        });
        // One text for one attempt: not `-02` for `-2`.
        parts
            .map(|(job, number)| Self::of_attempt(&job, number))
            .filter(|id| id.text == text)
            .ok_or_else(|| IdError::NoAttempt { text: shown(text) })
    }

    /// The job.
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The id as text, prefix included.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part after the prefix.
    pub fn suffix(&self) -> &str {
        &self.text[Self::PREFIX.len()..]
    }
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for AllocationId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::parse(&text)
    }
}

impl From<AllocationId> for String {
    fn from(id: AllocationId) -> String {
        id.text
    }
}

/// Orders grants: a higher epoch is a later grant. Restoring a backup raises `incarnation`, so that
/// grants made after it are higher than all that were made before.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    pub incarnation: u64,
    /// Index of the log entry that made the grant.
    pub index: u64,
}

impl ReservationId {
    /// The id of the `ordinal`-th thing that a command gave an id, where that is a stand-in for another reservation.
    pub fn of_stand_in(epoch: Epoch, ordinal: u32) -> Self {
        Self(format!("{}s{}-{}-{ordinal}", Self::PREFIX, epoch.incarnation, epoch.index))
    }
}

impl LeaseId {
    /// The id of the `ordinal`-th lease granted under `epoch`.
    pub fn granted(epoch: Epoch, ordinal: u32) -> Self {
        Self(format!("{}{}-{}-{ordinal}", Self::PREFIX, epoch.incarnation, epoch.index))
    }

    /// The lease of what root granted on a node without controllers, until one takes it over.
    pub fn of_grant(id: &ReservationId) -> Self {
        Self(format!("{}{}", Self::PREFIX, id.suffix()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_names_its_job_and_attempt() {
        let job = JobId::parse("job-4k7wq2").unwrap();
        let id = AllocationId::of_attempt(&job, 12);
        assert_eq!((id.job(), id.attempt()), (&job, 12));
        assert_eq!(AllocationId::parse("alloc-4k7wq2-12").unwrap(), id);
        let longest = JobId::parse(&format!("job-{}", "a".repeat(ID_BYTES_MAX - 4))).unwrap();
        let id = AllocationId::of_attempt(&longest, u32::MAX);
        assert_eq!(AllocationId::parse(id.as_str()).unwrap(), id);
        let dashed = AllocationId::parse("alloc-a-b-3").unwrap();
        assert_eq!((dashed.job().as_str(), dashed.attempt()), ("job-a-b", 3));
        for bad in ["alloc-4k7wq2", "alloc-a-0", "alloc-a-01", "alloc-a-+1", "alloc--1", "alloc-a-"]
        {
            assert!(matches!(AllocationId::parse(bad), Err(IdError::NoAttempt { .. })), "{bad}");
        }
    }

    #[test]
    fn an_id_of_another_kind_does_not_parse() {
        assert!(JobId::parse("job-4k7wq2").is_ok());
        assert!(matches!(JobId::parse("res-4k7wq2"), Err(IdError::WrongPrefix { .. })));
        for bad in
            ["job-", "job-A", "job-a b", "job-a\n", "job-ä", &format!("job-{}", "a".repeat(99))]
        {
            assert!(matches!(JobId::parse(bad), Err(IdError::BadSuffix { .. })), "{bad:?}");
        }
    }

    #[test]
    fn ids_are_plain_text_in_json() {
        let id: JobId = serde_json::from_str("\"job-a1\"").expect("a legal id");
        assert_eq!(serde_json::to_string(&id).expect("text"), "\"job-a1\"");
        assert!(serde_json::from_str::<JobId>("\"alloc-a1\"").is_err());
        assert_eq!(AllocationId::of_attempt(&id, 2).as_str(), "alloc-a1-2");
    }
}
