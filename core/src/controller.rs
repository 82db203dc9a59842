//! The controllers of a cluster: which there are meant to be, and the tokens that let another one in.
//!
//! This is the wish; who votes is consensus's own business, and the leader makes it follow
//! (`controller/src/leader/members.rs`). An id is given once and never again: a controller that lost
//! its disk comes back as somebody else, or two votes could be cast under one name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::TokenId;
use crate::name::UserName;
use crate::time::Timestamp;

/// Most controllers of one cluster: more would only make each write slower.
pub const CONTROLLERS_MAX: usize = 7;
/// Longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 261;
/// Most tokens for controllers at a time.
pub const CONTROLLER_TOKENS_MAX: usize = 16;

/// One controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    pub id: u64,
    /// `host:port`, where agents, users and the other controllers reach it.
    pub address: String,
    pub admitted_at: Timestamp,
}

impl Controller {
    /// `controller-2`: in certificates, in the audit log, and to people.
    pub fn name(id: u64) -> String {
        format!("controller-{id}")
    }
}

/// Which controller a token was used for, and the key it showed: asking again gives the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    pub controller: u64,
    pub key_sha256: String,
}

/// A token for one controller as it is replicated: never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerToken {
    pub id: TokenId,
    /// SHA-256 of the secret, hexadecimal.
    pub secret_sha256: String,
    pub used: Option<TokenUse>,
    pub created_by: UserName,
    pub expires_at: Timestamp,
}

/// All controllers, and what was ever given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// The highest id that was ever given.
    pub(crate) highest: u64,
    pub(crate) members: BTreeMap<u64, Controller>,
    pub(crate) tokens: BTreeMap<TokenId, ControllerToken>,
}

impl Roster {
    pub fn members(&self) -> &BTreeMap<u64, Controller> {
        &self.members
    }

    pub fn token(&self, id: &TokenId) -> Option<&ControllerToken> {
        self.tokens.get(id)
    }

    pub fn tokens(&self) -> impl Iterator<Item = &ControllerToken> {
        self.tokens.values()
    }

    /// The id the next controller gets.
    pub fn next_id(&self) -> u64 {
        self.highest + 1
    }

    /// Whether a controller had this id and was removed: it never speaks for the fleet again.
    pub fn was_removed(&self, id: u64) -> bool {
        id <= self.highest && !self.members.contains_key(&id)
    }
}
