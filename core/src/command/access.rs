//! Commands about who may come in: certificates, sessions of browsers, accounts, calendar feeds.

use serde::{Deserialize, Serialize};

use crate::access::{CertificateHolder, Login, Vouching};
use crate::feed::FeedScope;
use crate::id::FeedId;
use crate::name::{NodeName, UserName};
use crate::time::Timestamp;

/// A secret address at which programs for calendars read reservations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateFeed {
    pub id: FeedId,
    /// Of the secret part of the address, hexadecimal.
    pub sha256: String,
    pub user: UserName,
    pub scope: FeedScope,
}

/// What is decided or recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessCommand {
    /// A certificate is about to be given out. It is not when this is refused.
    RecordCertificate {
        serial: String,
        holder: CertificateHolder,
        not_after: Timestamp,
        via: Option<NodeName>,
        authority: String,
    },
    /// All certificates of a node, and those it vouched for, are refused from now on.
    RevokeNode {
        node: NodeName,
        reason: String,
    },
    /// The node leaves the fleet.
    RemoveNode {
        node: NodeName,
        reason: String,
    },
    /// All certificates of a user are refused from now on; the user can get new ones.
    RevokeUser {
        user: UserName,
        reason: String,
    },
    SetVouching {
        node: NodeName,
        vouching: Vouching,
    },
    DisableUser {
        user: UserName,
        reason: String,
        /// Who gets the reservations that have not begun; cancelled without.
        transfer_to: Option<UserName>,
    },
    EnableUser {
        user: UserName,
    },
    RecordLogins {
        logins: Vec<Login>,
    },
    /// A browser can log in as the user who asks, once, with the code of this hash.
    OfferLogin {
        user: UserName,
        /// Of the code, hexadecimal.
        sha256: String,
    },
    /// A browser showed the code of this hash.
    BeginSession {
        /// Of the code, hexadecimal.
        sha256: String,
        /// SHA-256 of the session's secret, hexadecimal: its id from now on.
        session: String,
    },
    /// Browsers of this user are logged out: that of one session, or all.
    EndSessions {
        user: UserName,
        session: Option<String>,
    },
    /// A calendar feed for the user who asks.
    CreateFeed(CreateFeed),
    /// Nobody reads the feed any more.
    RemoveFeed {
        feed: FeedId,
    },
}

impl AccessCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            AccessCommand::RecordCertificate { .. } => "record_certificate",
            AccessCommand::RevokeNode { .. } => "revoke_node",
            AccessCommand::RemoveNode { .. } => "remove_node",
            AccessCommand::RevokeUser { .. } => "revoke_user",
            AccessCommand::SetVouching { .. } => "set_vouching",
            AccessCommand::DisableUser { .. } => "disable_user",
            AccessCommand::EnableUser { .. } => "enable_user",
            AccessCommand::RecordLogins { .. } => "record_logins",
            AccessCommand::OfferLogin { .. } => "offer_login",
            AccessCommand::BeginSession { .. } => "begin_session",
            AccessCommand::EndSessions { .. } => "end_sessions",
            AccessCommand::CreateFeed(_) => "create_feed",
            AccessCommand::RemoveFeed { .. } => "remove_feed",
        }
    }
}
