//! Mail to people, by SMTP: where the server is, what a message looks like, and one conversation with the server.
//!
//! The leader's `notices` sends mails and the API sends one as a test. Here is nothing about the fleet: what to say, to
//! which people and how often is decided by `notices`. The password is read for each connection and never logged.

use std::sync::Arc;

mod connection;
mod message;
mod settings;
mod status;
#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;

pub(crate) use connection::{ANSWER_TIMEOUT, Connection, SendError};
pub(crate) use message::Letter;
pub(crate) use settings::address;
pub use settings::{Encryption, MailSettings, RawMail};
pub use status::MailStatus;

/// The mail of this controller: its server, and how the mails fare. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Mail {
    /// `None`: this site sends no mail.
    pub settings: Option<Arc<MailSettings>>,
    pub status: MailStatus,
}
