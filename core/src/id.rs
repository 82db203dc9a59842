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
}

fn check(kind: &'static str, prefix: &'static str, text: &str) -> Result<(), IdError> {
    let shown = || text.chars().take(ID_BYTES_MAX).collect::<String>();
    let Some(suffix) = text.strip_prefix(prefix) else {
        return Err(IdError::WrongPrefix { kind, prefix, text: shown() });
    };
    let max = ID_BYTES_MAX - prefix.len();
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if suffix.is_empty() || suffix.len() > max || !suffix.bytes().all(legal) {
        return Err(IdError::BadSuffix { kind, prefix, text: shown(), max });
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
    /// One attempt of a job: the job's suffix and the attempt's number.
    AllocationId, "allocation", "alloc-"
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
    /// The right to use given GPUs now.
    LeaseId, "lease", "lease-"
);
text_id!(
    /// A join token. Names the token; never contains its secret.
    TokenId, "join token", "token-"
);
text_id!(
    /// One fleet: chosen at `fleet-controller init`, part of every certificate.
    ClusterId, "cluster", "fleet-"
);

impl AllocationId {
    /// The id of attempt number `attempt` (from 1) of `job`.
    pub fn of_attempt(job: &JobId, attempt: u32) -> Self {
        Self(format!("{}{}-{attempt}", Self::PREFIX, job.suffix()))
    }

    /// The job and the number of the attempt, the opposite of [`of_attempt`](Self::of_attempt).
    pub fn attempt_of(&self) -> Option<(JobId, u32)> {
        let (job, attempt) = self.suffix().rsplit_once('-')?;
        let job = JobId::parse(&format!("{}{job}", JobId::PREFIX)).ok()?;
        Some((job, attempt.parse().ok()?))
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
        assert_eq!(id.attempt_of(), Some((job, 12)));
        assert_eq!(AllocationId::parse("alloc-4k7wq2").unwrap().attempt_of(), None);
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
