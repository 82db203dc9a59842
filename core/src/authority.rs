//! The certificate authority of the fleet as the replicated state knows it, and its exchange for another one.
//!
//! The types, commands and events of this subject; `fsm::authority` applies them. Private keys never come here:
//! each controller keeps them in its own folder. What is here says which authority signs, which ones are
//! trusted, and who still has to move ([`Rotation`]).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::name::NodeName;
use crate::time::Timestamp;
use crate::word::words;

/// Longest certificate, as PEM.
pub const CERTIFICATE_PEM_BYTES_MAX: usize = 12 * 1024;
/// Longest pin of a key.
pub const PIN_BYTES_MAX: usize = 64;
/// Authorities that are remembered as given up.
pub const RETIRED_MAX: usize = 32;
/// Nodes in one command.
pub const NODES_PER_COMMAND_MAX: usize = 1_000;
/// One authority: its public parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Of its key: what join tokens carry.
    pub pin: String,
    /// Signed by itself, PEM.
    pub certificate: String,
    /// The same name and key, signed by the other authority of the rotation, PEM. A program that
    /// trusts only the other authority accepts this one because of it, until the rotation ends.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vouched: String,
}

/// How far a rotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Controllers fetch the new key and trust both; the old one signs.
    Spreading,
    /// The new one signs; nodes, users and controllers exchange their certificates; both are trusted.
    Moving,
}

words!(Stage {
    Spreading => "spreading",
    Moving => "moving",
});

/// An exchange of one authority for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    pub stage: Stage,
    /// The one that goes.
    pub from: Known,
    /// The one that stays.
    pub to: Known,
    pub by: String,
    pub started_at: Timestamp,
    /// When the new one began to sign.
    pub moving_since: Option<Timestamp>,
    /// Nodes that were seen with a certificate of the new one.
    pub nodes: BTreeSet<NodeName>,
    /// Nodes that are not waited for: they have to join again.
    pub skipped: BTreeSet<NodeName>,
    /// Users' certificates of the old one are not waited for: they get others by themselves.
    pub users_skipped: bool,
}

impl Rotation {
    /// The one that signs now.
    pub fn signing(&self) -> &Known {
        match self.stage {
            Stage::Spreading => &self.from,
            Stage::Moving => &self.to,
        }
    }

    /// The one that is trusted beside it.
    pub fn other(&self) -> &Known {
        match self.stage {
            Stage::Spreading => &self.to,
            Stage::Moving => &self.from,
        }
    }
}

/// The replicated state of this subject.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorities {
    /// The one and only, unless a rotation is under way. `None` until the first rotation ended: then it is the
    /// one that every controller has had from the beginning.
    pub current: Option<Known>,
    pub rotation: Option<Rotation>,
    /// Pins of those that were given up, oldest first: their keys are to be destroyed.
    pub retired: Vec<String>,
    /// Rises with each change of who is trusted or signs.
    pub version: u64,
}

impl Authorities {
    /// Whether nothing ever happened here.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }

    /// The one that signs now, where the state knows it.
    pub fn signing(&self) -> Option<&Known> {
        self.rotation.as_ref().map(Rotation::signing).or(self.current.as_ref())
    }

    /// All that are trusted, the one that signs first; empty where the state does not know it.
    pub fn trusted(&self) -> Vec<&Known> {
        match &self.rotation {
            Some(rotation) => vec![rotation.signing(), rotation.other()],
            None => self.current.iter().collect(),
        }
    }
}

/// Who a rotation waits for, as far as the state knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Nodes that were not seen with a certificate of the new authority.
    pub nodes: Vec<NodeName>,
    /// Users' certificates of the old one that are still valid.
    pub user_certificates: u64,
    /// When the last of these ends.
    pub users_until: Option<Timestamp>,
}

impl Waiting {
    /// Whether nodes and users have all moved.
    pub fn is_over(&self) -> bool {
        self.nodes.is_empty() && self.user_certificates == 0
    }
}

/// What changed. Authorities are named by the pins of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityEvent {
    RotationStarted { from: String, to: String, by: String },
    AuthoritySigns { authority: String, trusted_too: String },
    NodesMoved { authority: String, nodes: Vec<NodeName> },
    SkippedInRotation { nodes: Vec<NodeName>, users: bool, by: String },
    RotationFinished { from: String, to: String, locked_out: Vec<NodeName> },
    RotationAborted { back_to: String, at_once: bool, by: String },
}

impl AuthorityEvent {
    /// Ids and names of what the event is about.
    pub fn objects(&self) -> Vec<String> {
        use AuthorityEvent as E;
        let names = |nodes: &[NodeName]| nodes.iter().map(ToString::to_string).collect();
        match self {
            E::RotationStarted { from, to, .. } => vec![from.clone(), to.clone()],
            E::AuthoritySigns { authority, .. } => vec![authority.clone()],
            E::NodesMoved { nodes, .. } | E::SkippedInRotation { nodes, .. } => names(nodes),
            E::RotationFinished { from, to, locked_out } => {
                let mut objects: Vec<String> = names(locked_out);
                objects.extend([from.clone(), to.clone()]);
                objects
            }
            E::RotationAborted { back_to, .. } => vec![back_to.clone()],
        }
    }
}

fn list(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

impl std::fmt::Display for AuthorityEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use AuthorityEvent as E;
        match self {
            E::RotationStarted { from, to, by } => {
                write!(f, "{by} began to exchange the authority {from} for {to}")
            }
            E::AuthoritySigns { authority, trusted_too } => {
                write!(f, "the authority {authority} signs now; {trusted_too} is trusted too")
            }
            E::NodesMoved { authority, nodes } => {
                write!(f, "{} moved to the authority {authority}", list(nodes))
            }
            E::SkippedInRotation { nodes, users, by } => {
                let users = if *users { "users' certificates" } else { "" };
                let and = if users.is_empty() || nodes.is_empty() { "" } else { " and " };
                write!(
                    f,
                    "the authority's exchange continues without {}{and}{users}, ordered by {by}",
                    list(nodes)
                )
            }
            E::RotationFinished { from, to, locked_out } => {
                write!(f, "the authority {from} is trusted no more, only {to}")?;
                if locked_out.is_empty() {
                    Ok(())
                } else {
                    write!(f, "; locked out: {}", list(locked_out))
                }
            }
            E::RotationAborted { back_to, at_once: true, by } => {
                write!(f, "{by} gave up the authority's exchange: {back_to} stays")
            }
            E::RotationAborted { back_to, at_once: false, by } => {
                write!(f, "{by} turned the authority's exchange round: back to {back_to}")
            }
        }
    }
}
