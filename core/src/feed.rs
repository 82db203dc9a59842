//! Calendar feeds: secret addresses at which programs for calendars read reservations.
//!
//! The types of this subject; `fsm::feeds` applies its commands. The secret itself never comes here, only its hash: the
//! state is in snapshots and backups, which more people read than should see the address.

use serde::{Deserialize, Serialize};

use crate::name::{NodeName, ProjectName, UserName};
use crate::reservation::Reservation;
use crate::time::Timestamp;

/// Most feeds of one user.
pub const FEEDS_PER_USER_MAX: usize = 20;
/// Most feeds of the whole fleet: who asks for one makes a controller compare with all.
pub const FEEDS_MAX: usize = 10_000;

/// Which reservations a feed has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedScope {
    /// Those that its user owns or may use.
    Mine,
    Node {
        name: NodeName,
    },
    Project {
        name: ProjectName,
    },
}

/// A feed on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// SHA-256 of the secret part of the address, hexadecimal.
    pub sha256: String,
    /// Who created it. It ends with what lets this user in.
    pub user: UserName,
    pub scope: FeedScope,
    pub created_at: Timestamp,
    /// The node that vouched for the user: a feed is worth no more than what it was created with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<NodeName>,
}

impl Feed {
    /// Whether the reservation belongs in it.
    pub fn has(&self, r: &Reservation) -> bool {
        match &self.scope {
            FeedScope::Mine => r.users().any(|user| *user == self.user),
            FeedScope::Node { name } => {
                r.node == *name || r.next.as_ref().is_some_and(|next| next.node == *name)
            }
            FeedScope::Project { name } => r.project == *name,
        }
    }
}

/// `reservations of node titan01`, behind the name of the user.
impl std::fmt::Display for FeedScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FeedScope::Mine => f.write_str("their own reservations"),
            FeedScope::Node { name } => write!(f, "reservations on {name}"),
            FeedScope::Project { name } => write!(f, "reservations of project {name}"),
        }
    }
}
