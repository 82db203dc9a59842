//! Audit records: one for each state change, made while it is applied, chained by hash.
//!
//! A record is one line of JSON. The hash covers the exact bytes of the line before its `hash`
//! member, so that anybody can check a chain with a SHA-256 tool and no knowledge of fleet:
//! `hash = SHA-256("fleet-audit-v1\n" + line without ,"hash":"…"})`. `prev` inside the line is the
//! previous record's hash.

pub mod compare;
pub mod export;
pub mod prune;
pub mod verify;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::actor::Actor;
use crate::event::Event;
use crate::time::Timestamp;

/// Version of the record that this build writes.
pub const AUDIT_VERSION: u32 = 1;
/// `prev` of the first record.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Written before the bytes that are hashed, so that the hash means nothing elsewhere.
pub const HASH_DOMAIN: &[u8] = b"fleet-audit-v1\n";

/// What a command did, who gave it and why it was allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditBody {
    pub v: u32,
    /// Counts records from 1 without a gap.
    pub seq: u64,
    /// Index of the log entry that made the record.
    pub log_index: u64,
    pub at: Timestamp,
    pub actor: Actor,
    /// The command's stable name.
    pub action: String,
    /// The client's request id, where it gave one.
    pub request: Option<String>,
    /// The rule that allowed it; absent when it was refused.
    pub allowed_by: Option<String>,
    /// The rejection's code when it was refused.
    pub refused: Option<String>,
    /// Ids and names of everything it touched.
    pub objects: Vec<String>,
    pub events: Vec<Event>,
    /// Hash of the record before.
    pub prev: String,
}

/// A record with its line and hash, ready to be stored and exported as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub body: AuditBody,
    /// The whole line, `hash` included, without a line end.
    pub line: String,
    pub hash: String,
}

/// SHA-256 of a line's bytes without its hash member, hexadecimal.
pub fn hash_of_unsealed(unsealed: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(HASH_DOMAIN);
    hasher.update(unsealed.as_bytes());
    hex::encode(hasher.finalize())
}

/// Puts the hash at the end of the line.
pub fn seal(body: AuditBody) -> AuditRecord {
    // Plain data with text keys cannot fail to serialise; an empty line would break the chain
    // visibly at verification.
    let unsealed = serde_json::to_string(&body).unwrap_or_default();
    let hash = hash_of_unsealed(&unsealed);
    let open = unsealed.strip_suffix('}').unwrap_or(&unsealed);
    let line = format!("{open},\"hash\":\"{hash}\"}}");
    AuditRecord { body, line, hash }
}

/// Splits a line into the bytes its hash covers and the hash; `None` if it has no such end.
pub fn unseal(line: &str) -> Option<(String, &str)> {
    const MEMBER: &str = ",\"hash\":\"";
    let inner = line.strip_suffix("\"}")?;
    let at = inner.rfind(MEMBER)?;
    let hash = &inner[at + MEMBER.len()..];
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if hash.len() != 64 || !hash.bytes().all(hexadecimal) {
        return None;
    }
    Some((format!("{}}}", &inner[..at]), hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_line_opens_to_what_was_hashed() {
        let body = AuditBody {
            v: AUDIT_VERSION,
            seq: 1,
            log_index: 7,
            at: Timestamp(5),
            actor: Actor::controller(),
            action: "advance_time".to_owned(),
            request: None,
            allowed_by: Some("controller".to_owned()),
            refused: None,
            objects: vec![],
            events: vec![Event::ClusterVersionSet { version: 1 }],
            prev: GENESIS.to_owned(),
        };
        let record = seal(body.clone());
        let (unsealed, hash) = unseal(&record.line).expect("a sealed line");
        assert_eq!(hash, hash_of_unsealed(&unsealed));
        assert_eq!(serde_json::from_str::<AuditBody>(&unsealed).expect("the body"), body);
        // The line itself is JSON too, with the hash as one more member.
        assert_eq!(serde_json::from_str::<AuditBody>(&record.line).expect("the body"), body);
        let changed = record.line.replace("\"seq\":1", "\"seq\":2");
        let (unsealed, hash) = unseal(&changed).expect("still sealed");
        assert_ne!(hash, hash_of_unsealed(&unsealed));
    }
}
