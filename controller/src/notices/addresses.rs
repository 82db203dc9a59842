//! Where the mail of a person goes, and the one mail that a person asks for as a test.

use std::collections::BTreeSet;

use fleet_core::Fsm;
use fleet_core::name::UserName;
use fleet_core::notice::{MailTo, NoticeKind, NoticeSettings};
use fleet_core::time::Timestamp;

use super::letters::{Site, test_letter};
use crate::mail::{ANSWER_TIMEOUT, Connection, Mail, MailSettings, SendError};
use crate::raft::RaftHandle;

/// Where the mail of a person goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressOf {
    /// The person's own choice, or an admin's.
    Own(String),
    /// The user name at the site's domain.
    Domain(String),
    /// The person wants none.
    Off,
    /// The site has no mail domain.
    Unknown,
}

impl AddressOf {
    pub(crate) fn address(&self) -> Option<&str> {
        match self {
            AddressOf::Own(address) | AddressOf::Domain(address) => Some(address),
            AddressOf::Off | AddressOf::Unknown => None,
        }
    }

    /// For programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            AddressOf::Own(_) => "own",
            AddressOf::Domain(_) => "domain",
            AddressOf::Off => "off",
            AddressOf::Unknown => "none",
        }
    }
}

/// Where this person's mail goes.
pub(crate) fn address_of(
    wants: &NoticeSettings,
    settings: Option<&MailSettings>,
    user: &UserName,
) -> AddressOf {
    match &wants.mail_to {
        MailTo::Address { address } => AddressOf::Own(address.clone()),
        MailTo::Nowhere => AddressOf::Off,
        MailTo::Default => settings
            .and_then(|settings| settings.default_address(user.as_str()))
            .map_or(AddressOf::Unknown, AddressOf::Domain),
    }
}

/// The address and the unwanted kinds of a person; nothing where no mail may go.
pub(super) fn wants(
    fsm: &Fsm,
    settings: &MailSettings,
    user: &UserName,
) -> Option<(String, BTreeSet<NoticeKind>)> {
    if fsm.access().disabled(user).is_some() {
        return None;
    }
    let wants = fsm.notices().of(user);
    let address = address_of(&wants, Some(settings), user);
    Some((address.address()?.to_owned(), wants.off))
}

/// Why no test mail was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TestError {
    NoServer,
    TooMany,
    Failed(SendError),
}

/// Sends one mail to this address now: what the server answered.
///
/// # Errors
/// See [`TestError`].
pub(crate) async fn send_test(
    (raft, mail): (&RaftHandle, &Mail),
    (user, address): (&UserName, &str),
    asked_by: &UserName,
    now: Timestamp,
) -> Result<String, TestError> {
    let settings = mail.settings.clone().ok_or(TestError::NoServer)?;
    if !mail.status.may_test(address, now) {
        return Err(TestError::TooMany);
    }
    let letter = test_letter(user, address, asked_by, now, &Site::of(raft, mail));
    let failed = |error: SendError| {
        if matches!(error, SendError::Server(_)) {
            mail.status.was_no_test(address);
        }
        TestError::Failed(error)
    };
    let opened = Connection::open(&settings, ANSWER_TIMEOUT).await;
    let mut connection = opened.map_err(failed)?;
    let answer = connection.send(&letter).await.map_err(failed)?;
    connection.close().await;
    Ok(answer)
}

impl Site {
    pub(super) fn of(raft: &RaftHandle, mail: &Mail) -> Self {
        let cluster = raft.read(|fsm| fsm.cluster().map(ToString::to_string)).unwrap_or_default();
        let page = mail.settings.as_ref().and_then(|settings| settings.page.clone());
        Self { cluster, zone: jiff::tz::TimeZone::system(), page }
    }
}
