//! One mail, as lines of RFC 5322: lettre encodes what people typed, so no text can become a header.

use std::time::{Duration, UNIX_EPOCH};

use fleet_core::Timestamp;
use lettre::message::header::{ContentType, Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};

use super::MailSettings;

/// Longest subject, in characters: programs that show lists of mails cut it off anyway.
const SUBJECT_CHARS_MAX: usize = 160;

/// A mail that is about to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Letter {
    /// One address, checked.
    pub(crate) to: String,
    pub(crate) subject: String,
    /// Plain text.
    pub(crate) body: String,
    pub(crate) at: Timestamp,
    /// Unique, and the same where the same mail is sent again: `1234-ada@fleet-cluster`.
    pub(crate) id: String,
}

/// Programs that answer mails leave these alone (RFC 3834).
#[derive(Clone)]
struct AutoSubmitted;

/// Older programs know only this one.
#[derive(Clone)]
struct Precedence;

macro_rules! fixed_header {
    ($header:ident, $name:literal, $value:literal) => {
        impl Header for $header {
            fn name() -> HeaderName {
                HeaderName::new_from_ascii_str($name)
            }

            fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
                Ok(Self)
            }

            fn display(&self) -> HeaderValue {
                HeaderValue::new(Self::name(), $value.to_owned())
            }
        }
    };
}

fixed_header!(AutoSubmitted, "Auto-Submitted", "auto-generated");
fixed_header!(Precedence, "Precedence", "bulk");

impl Letter {
    /// The bytes of the message.
    ///
    /// # Errors
    /// Where the address is none.
    pub(super) fn message(&self, settings: &MailSettings) -> Result<Message, String> {
        let to: lettre::Address =
            self.to.parse().map_err(|_| format!("no address: {}", self.to))?;
        Message::builder()
            .date(UNIX_EPOCH + Duration::from_millis(self.at.0))
            .from(settings.from.clone())
            .to(Mailbox::new(None, to))
            .subject(one_line(&self.subject))
            .message_id(Some(format!("<{}>", self.id)))
            .header(AutoSubmitted)
            .header(Precedence)
            .header(ContentType::TEXT_PLAIN)
            .body(plain(&self.body))
            .map_err(|error| error.to_string())
    }
}

/// No line breaks and nothing hidden, and not too long.
fn one_line(text: &str) -> String {
    let shown = |c: char| if is_shown(c) { c } else { ' ' };
    let line: String = text.chars().map(shown).collect();
    if line.chars().count() <= SUBJECT_CHARS_MAX {
        return line;
    }
    let cut: String = line.chars().take(SUBJECT_CHARS_MAX - 1).collect();
    format!("{}…", cut.trim_end())
}

/// The body's own line breaks stay.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c == '\n' || is_shown(c) { c } else { ' ' }).collect()
}

/// No control characters, and none that turn the direction of the text.
fn is_shown(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
