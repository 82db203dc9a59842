//! Who may come in: certificates that were given out, sessions of browsers, accounts, nodes that vouch.
//!
//! The types, commands and events of this subject; `fsm::access` and `fsm::session` apply them. Keys, codes, cookies and
//! certificates themselves never come here, only what is needed to know or refuse them: serials, hashes, public parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::feed::{Feed, FeedScope};
use crate::id::{FeedId, ReservationId};
use crate::name::{NodeName, UserName};
use crate::time::{Millis, Timestamp};
use crate::word::words;

/// Certificates of one holder that are valid at a time; beyond it none is given out.
pub const CERTIFICATES_PER_HOLDER_MAX: usize = 64;
/// Accounts that are remembered.
pub const ACCOUNTS_MAX: usize = 20_000;
/// Lines of one batch of logins.
pub const LOGINS_MAX: usize = 100;
/// Longest serial number, in hexadecimal digits.
pub const SERIAL_DIGITS_MAX: usize = 64;
/// How long a code for a browser's login is good.
pub const LOGIN_CODE_LIFE: Millis = Millis::secs(60);
/// How long a browser stays logged in: as long as a certificate of a user lasts.
pub const SESSION_LIFE: Millis = Millis::hours(12);
/// How long an expired certificate of a node can still be renewed; revocations outlive it.
pub const RENEWABLE_AFTER_EXPIRY: Millis = Millis::days(30);

/// Whose certificate it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateHolder {
    Node { name: NodeName },
    User { name: UserName },
}

impl std::fmt::Display for CertificateHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CertificateHolder::Node { name } => write!(f, "node {name}"),
            CertificateHolder::User { name } => write!(f, "user {name}"),
        }
    }
}

/// For which users a node may vouch. A rooted node can claim to be any of its users, so what its word is
/// worth is the fleet's decision, not the node's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vouching {
    /// Nobody: its users need another way in.
    Off,
    /// Its users, without the rights of an admin.
    #[default]
    Users,
    /// Its users, admins as such.
    Admins,
}

words!(Vouching {
    Off => "off",
    Users => "users",
    Admins => "admins",
});

/// A certificate that was given out and has not run out; or a session of a browser, which has its place among them so
/// that all that ends a user's certificates ends it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    pub holder: CertificateHolder,
    pub not_after: Timestamp,
    /// The node that vouched for the user.
    pub via: Option<NodeName>,
    /// Pin of the authority that signed it; empty for a session, which nobody signed.
    pub authority: String,
    /// The certificate with which the node asked for this one, until it has shown this one: the answer may be lost,
    /// and then it can only ask again with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_with: Option<String>,
}

impl Issued {
    /// Whether it is a browser's session and no certificate.
    pub fn is_session(&self) -> bool {
        self.authority.is_empty()
    }
}

/// A code with which a browser can log in once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginCode {
    /// SHA-256 of the code, hexadecimal.
    pub sha256: String,
    pub expires_at: Timestamp,
    /// The node that vouches for the user who asked: a session is worth no more than what it was begun with.
    pub via: Option<NodeName>,
}

/// Why an account is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}

/// What is known of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub disabled: Option<Disabled>,
}

/// The replicated state of this subject.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// By serial number, sessions by the SHA-256 of their secret: what is valid, and the newest of each node whatever its
    /// age.
    pub issued: BTreeMap<String, Issued>,
    /// The serial number of the certificate each node got last.
    pub newest: BTreeMap<NodeName, String>,
    /// Serial numbers that are refused, and until when that must be remembered.
    pub revoked: BTreeMap<String, Timestamp>,
    pub accounts: BTreeMap<UserName, Account>,
    /// The code that each user asked for last, until it is used or another one runs out.
    pub login_codes: BTreeMap<UserName, LoginCode>,
    /// Calendar feeds, until they are removed or their users are shut out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feeds: BTreeMap<FeedId, Feed>,
    /// Nodes whose word counts more or less than [`Vouching::default`].
    pub vouching: BTreeMap<NodeName, Vouching>,
    /// Rises whenever who is let in may have changed.
    pub version: u64,
    /// When what ran out was last swept.
    pub swept_at: Timestamp,
}

impl Access {
    /// What the word of this node is worth.
    pub fn vouching_of(&self, node: &NodeName) -> Vouching {
        self.vouching.get(node).copied().unwrap_or_default()
    }

    /// Why the account is closed, if it is.
    pub fn disabled(&self, user: &UserName) -> Option<&Disabled> {
        self.accounts.get(user)?.disabled.as_ref()
    }

    /// Whether the holder of this certificate acts with an admin's rights, where it is one: not
    /// when only a node's word stands behind it, or nobody knows whose.
    pub fn admin_through(&self, serial: &str) -> bool {
        let trusted = |node| self.vouching_of(node) == Vouching::Admins;
        self.issued.get(serial).is_some_and(|issued| issued.via.as_ref().is_none_or(trusted))
    }

    /// Whose session this is, if it has not run out.
    pub fn session(&self, id: &str, now: Timestamp) -> Option<&UserName> {
        let issued = self.issued.get(id).filter(|i| i.is_session() && i.not_after > now)?;
        match &issued.holder {
            CertificateHolder::User { name } => Some(name),
            CertificateHolder::Node { .. } => None,
        }
    }

    /// Ids of the sessions of a user.
    pub fn sessions_of(&self, user: &UserName) -> impl Iterator<Item = &String> {
        let holder = CertificateHolder::User { name: user.clone() };
        let sessions = self.issued.iter().filter(|(_, issued)| issued.is_session());
        sessions.filter(move |(_, issued)| issued.holder == holder).map(|(id, _)| id)
    }

    /// The certificate this node got last.
    pub fn newest_of(&self, node: &NodeName) -> Option<&str> {
        self.newest.get(node).map(String::as_str)
    }

    /// When that one ends.
    pub fn newest_ends(&self, node: &NodeName) -> Option<Timestamp> {
        Some(self.issued.get(self.newest_of(node)?)?.not_after)
    }

    /// Whether this expired certificate of the node may still be renewed: only the last one it got, or the one that
    /// it asked with for that one and may have got no answer; and none once it was shut out. A later one than is on
    /// record was given out after the backup that this fleet was restored from.
    pub fn may_renew_expired(&self, node: &NodeName, serial: &str, not_after: Timestamp) -> bool {
        let Some(newest) = self.newest_of(node) else { return false };
        newest == serial
            || self.issued.get(newest).is_some_and(|issued| {
                issued.asked_with.as_deref() == Some(serial) || not_after > issued.not_after
            })
    }

    /// How many certificates of this holder are valid.
    pub fn valid_of(&self, holder: &CertificateHolder, now: Timestamp) -> usize {
        self.issued.values().filter(|i| i.holder == *holder && i.not_after > now).count()
    }
}

/// People who came in, counted, so that many calls make few records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    pub user: UserName,
    /// `local_socket`, `certificate`, `session`.
    pub method: String,
    /// Where from: the controller's socket, the certificate's serial number, or the session's id.
    pub from: String,
    pub requests: u64,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessEvent {
    CertificateIssued {
        holder: CertificateHolder,
        serial: String,
        not_after: Timestamp,
        via: Option<NodeName>,
    },
    LoginOffered {
        user: UserName,
        expires_at: Timestamp,
    },
    SessionBegan {
        user: UserName,
        session: String,
        not_after: Timestamp,
        via: Option<NodeName>,
    },
    SessionsEnded {
        user: UserName,
        sessions: Vec<String>,
        by: String,
    },
    FeedCreated {
        feed: FeedId,
        user: UserName,
        scope: FeedScope,
    },
    FeedsEnded {
        user: UserName,
        feeds: Vec<FeedId>,
        by: String,
    },
    CertificatesRevoked {
        holder: CertificateHolder,
        serials: Vec<String>,
        by: String,
        reason: String,
    },
    NodeRemoved {
        node: NodeName,
        by: String,
        reason: String,
    },
    VouchingSet {
        node: NodeName,
        vouching: Vouching,
        by: String,
    },
    UserDisabled {
        user: UserName,
        by: String,
        reason: String,
    },
    UserEnabled {
        user: UserName,
        by: String,
    },
    ReservationTransferred {
        reservation: ReservationId,
        from: UserName,
        to: UserName,
    },
    UserLoggedIn {
        user: UserName,
        method: String,
        from: String,
        requests: u64,
    },
}

impl AccessEvent {
    /// Ids and names of what the event is about.
    pub fn objects(&self) -> Vec<String> {
        use AccessEvent as E;
        match self {
            E::CertificateIssued { holder, via, .. } => {
                let mut objects = vec![name_of(holder)];
                objects.extend(via.iter().map(ToString::to_string));
                objects
            }
            E::CertificatesRevoked { holder, .. } => vec![name_of(holder)],
            E::NodeRemoved { node, .. } | E::VouchingSet { node, .. } => vec![node.to_string()],
            E::SessionBegan { user, via, .. } => {
                let mut objects = vec![user.to_string()];
                objects.extend(via.iter().map(ToString::to_string));
                objects
            }
            E::FeedCreated { feed, user, .. } => vec![feed.to_string(), user.to_string()],
            E::FeedsEnded { user, feeds, .. } => {
                let feeds = feeds.iter().map(ToString::to_string);
                feeds.chain([user.to_string()]).collect()
            }
            E::LoginOffered { user, .. }
            | E::SessionsEnded { user, .. }
            | E::UserDisabled { user, .. }
            | E::UserEnabled { user, .. }
            | E::UserLoggedIn { user, .. } => vec![user.to_string()],
            E::ReservationTransferred { reservation, from, to } => {
                vec![reservation.to_string(), from.to_string(), to.to_string()]
            }
        }
    }
}

fn name_of(holder: &CertificateHolder) -> String {
    match holder {
        CertificateHolder::Node { name } => name.to_string(),
        CertificateHolder::User { name } => name.to_string(),
    }
}

impl std::fmt::Display for AccessEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use AccessEvent as E;
        match self {
            E::CertificateIssued { holder, serial, via, .. } => {
                write!(f, "certificate {serial} given to {holder}")?;
                via.as_ref().map_or(Ok(()), |node| write!(f, ", vouched for by {node}"))
            }
            E::LoginOffered { user, .. } => write!(f, "{user} asked for a code to log in with"),
            E::SessionBegan { user, via, .. } => {
                write!(f, "{user} logged in with a browser")?;
                via.as_ref().map_or(Ok(()), |node| write!(f, ", vouched for by {node}"))
            }
            E::SessionsEnded { user, sessions, by } => {
                let count = sessions.len();
                write!(f, "{count} sessions of {user} ended by {by}")
            }
            E::FeedCreated { feed, user, scope } => {
                write!(f, "{user} created calendar feed {feed}: {scope}")
            }
            E::FeedsEnded { user, feeds, by } => {
                let feeds: Vec<&str> = feeds.iter().map(FeedId::as_str).collect();
                write!(f, "calendar feeds of {user} ended by {by}: {}", feeds.join(", "))
            }
            E::CertificatesRevoked { holder, serials, by, reason } => {
                let count = serials.len();
                write!(f, "{count} certificates of {holder} revoked by {by}: {reason}")
            }
            E::NodeRemoved { node, by, reason } => {
                write!(f, "{node} removed from the fleet by {by}: {reason}")
            }
            E::VouchingSet { node, vouching, by } => {
                write!(f, "{node} may vouch for: {} (by {by})", vouching.word())
            }
            E::UserDisabled { user, by, reason } => write!(f, "{user} disabled by {by}: {reason}"),
            E::UserEnabled { user, by } => write!(f, "{user} enabled by {by}"),
            E::ReservationTransferred { from, to, .. } => {
                write!(f, "reservation given from {from} to {to}")
            }
            E::UserLoggedIn { user, method, requests, .. } => {
                write!(f, "{user} made {requests} requests ({method})")
            }
        }
    }
}
