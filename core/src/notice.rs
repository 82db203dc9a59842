//! Notices: what people want to hear by mail and where, and up to which audit record they heard it.
//!
//! The types of this subject; `fsm::notices` applies its commands. The leader's shell makes the mails themselves from audit
//! records and sends them (docs/adr/0068-notices-by-mail-from-the-leader.md).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::name::UserName;
use crate::word::words;

/// Longest address, in bytes (RFC 5321 and its errata).
pub const ADDRESS_BYTES_MAX: usize = 254;

/// What a notice is about. People switch each kind off by its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// Reservations that a person owns or shares.
    Reservation,
    /// A person's own jobs.
    Job,
    /// Nodes and GPUs, for admins.
    Fleet,
}

words!(NoticeKind {
    Reservation => "reservation",
    Job => "job",
    Fleet => "fleet",
});

/// Where the mails of a person go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MailTo {
    /// The user name at the mail domain of the site.
    #[default]
    Default,
    Address {
        address: String,
    },
    Nowhere,
}

/// What one person wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeSettings {
    #[serde(default)]
    pub mail_to: MailTo,
    /// The kinds that the person does not want.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub off: BTreeSet<NoticeKind>,
}

/// A change of what one person wants. What it leaves out stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail_to: Option<MailTo>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub on: BTreeSet<NoticeKind>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub off: BTreeSet<NoticeKind>,
}

/// Which audit records people heard about: their mail was sent, or it was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// All records up to this number, for all people but those in `waiting`.
    pub until: u64,
    /// People who heard less, and up to which record: a later one waits to be sent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<UserName, u64>,
}

impl Told {
    /// Up to which record this person heard.
    pub fn of(&self, user: &UserName) -> u64 {
        self.waiting.get(user).copied().unwrap_or(self.until)
    }

    /// The last record that nobody needs any more.
    pub fn by_all(&self) -> u64 {
        self.waiting.values().copied().fold(self.until, u64::min)
    }
}

/// The replicated state of this subject.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notices {
    /// Only people who set something.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) people: BTreeMap<UserName, NoticeSettings>,
    pub(crate) told: Told,
}

impl Notices {
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }

    /// What this person wants.
    pub fn of(&self, user: &UserName) -> NoticeSettings {
        self.people.get(user).cloned().unwrap_or_default()
    }

    /// Whether this person set something.
    pub fn has(&self, user: &UserName) -> bool {
        self.people.contains_key(user)
    }

    pub fn told(&self) -> &Told {
        &self.told
    }
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeEvent {
    SettingsChanged { user: UserName, now: NoticeSettings, before: NoticeSettings, by: String },
}

impl NoticeEvent {
    /// The person that the event is about.
    pub fn user(&self) -> &UserName {
        match self {
            NoticeEvent::SettingsChanged { user, .. } => user,
        }
    }
}

/// `to ada@lab.example, all kinds`.
impl std::fmt::Display for NoticeSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.mail_to {
            MailTo::Default => f.write_str("to the default address")?,
            MailTo::Address { address } => write!(f, "to {address}")?,
            MailTo::Nowhere => f.write_str("to no address")?,
        }
        if self.off.is_empty() {
            return f.write_str(", all kinds");
        }
        let off: Vec<&str> = self.off.iter().map(|kind| kind.word()).collect();
        write!(f, ", without {}", off.join(", "))
    }
}

impl std::fmt::Display for NoticeEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoticeEvent::SettingsChanged { user, now, before, by } => {
                write!(f, "{by} set the mail of {user}: {now}; it was: {before}")
            }
        }
    }
}
