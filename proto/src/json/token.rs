//! Defines the JSON of tokens that let nodes and controllers join: those on record, and one just made with its secret.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// A token on record. Never its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Token {
    /// Its id, `token-a`.
    pub id: String,
    /// The nodes that may join with it.
    pub names: Vec<String>,
    /// Whether it is for a controller.
    pub for_controller: bool,
    /// Those that have joined with it.
    pub used: Vec<String>,
    /// Who made it; null: not known.
    pub created_by: Option<String>,
    /// When it ends; null: not known.
    pub expires_at: Option<Time>,
}

impl From<pb::Token> for Token {
    fn from(token: pb::Token) -> Self {
        Self {
            created_by: text(&token.created_by),
            expires_at: time(token.expires_at_unix_ms),
            id: token.id,
            names: token.names,
            for_controller: token.for_controller,
            used: token.used,
        }
    }
}

impl Token {
    /// The nodes or the controller that it is for, as people say it.
    pub fn meant_for(&self) -> String {
        if self.for_controller { "a controller".to_owned() } else { self.names.join(",") }
    }
}

impl Document for Token {
    const SCHEMA: &'static str = "fleet.token/v1";
    const LIST_SCHEMA: &'static str = "fleet.tokens/v1";
    const FIELDS: &'static [&'static str] =
        &["id", "names", "for_controller", "used", "created_by", "expires_at"];
}

/// A token that lets nodes join. Holds a secret; printed once, never logged.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct JoinToken {
    /// Its id, `token-a`.
    pub id: String,
    /// The whole line to type on the node. Holds the secret.
    pub join_line: String,
    /// The secret.
    pub token: String,
    /// When it ends; null: not known.
    pub expires_at: Option<Time>,
}

impl From<pb::JoinToken> for JoinToken {
    fn from(token: pb::JoinToken) -> Self {
        Self {
            expires_at: time(token.expires_at_unix_ms),
            id: token.id,
            join_line: token.join_line,
            token: token.token,
        }
    }
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Document for JoinToken {
    const SCHEMA: &'static str = "fleet.join_token/v1";
    const LIST_SCHEMA: &'static str = "fleet.join_tokens/v1";
    const FIELDS: &'static [&'static str] = &["id", "join_line", "token", "expires_at"];
}
