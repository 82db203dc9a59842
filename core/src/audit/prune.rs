//! Prunes the audit log: the oldest records leave the controllers, and one record stays as the anchor of what follows.
//!
//! The anchor is the record of the prune itself. It holds number and hash of the last record that left, so that the
//! records which stay still form one chain with an export of those that left. An admin can name that hash only from
//! an export: nothing leaves the controllers that nobody has exported.

use serde::{Deserialize, Serialize};

use super::AuditBody;
use crate::event::Event;
use crate::time::{Millis, Timestamp};

/// No record that is younger than this leaves the controllers.
pub const KEEP_MIN: Millis = Millis::days(30);

/// The records that left: those from 1 to `through` are in exports only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    /// Number of the last record that left.
    pub through: u64,
    /// Its hash: `prev` of the first record that stayed.
    pub hash: String,
    /// Time of the newest record that left.
    pub until: Timestamp,
    /// How many left with the last prune.
    pub records: u64,
    pub at: Timestamp,
    pub by: String,
}

impl Pruned {
    /// What an anchor says; `None`: the record is not one.
    pub fn of(body: &AuditBody) -> Option<Pruned> {
        body.events.iter().find_map(|event| match event {
            Event::AuditPruned { through, hash, until, records, by } => Some(Pruned {
                through: *through,
                hash: hash.clone(),
                until: *until,
                records: *records,
                at: body.at,
                by: by.clone(),
            }),
            _ => None,
        })
    }

    /// Number of the first record that stayed.
    pub fn first_kept(&self) -> u64 {
        self.through + 1
    }
}

/// What is to leave: all records up to `through`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prune {
    pub through: u64,
    /// Hash of record `through`. The controller that proposes has compared it with its own record.
    pub hash: String,
    /// Time of the newest record up to `through`.
    pub until: Timestamp,
}
