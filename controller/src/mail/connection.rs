//! One conversation with the mail server, and what its refusals mean.
//!
//! Several mails go over one connection. A refusal of one recipient concerns one person; a server that takes nothing at
//! all concerns everybody.

use std::time::Duration;

use lettre::transport::smtp::authentication::Mechanism;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Response;

use super::{Encryption, Letter, MailSettings};
use crate::blocking::blocking;

/// How long the server may take to let fleet in, and to take one mail.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Codes that say something of fleet's own standing at the server, wherever they come (RFC 4954).
const ABOUT_THE_LOGIN: [u16; 5] = [421, 503, 530, 535, 538];
/// Longest answer that is shown.
const SHOWN_CHARS_MAX: usize = 300;

/// Why a mail was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The server, or the way to it: no other mail has a better chance now.
    Server(String),
    /// The server takes nothing for this person for now.
    Later(String),
    /// The server takes nothing for this person.
    Refused(String),
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::Server(why) | SendError::Later(why) | SendError::Refused(why) => {
                f.write_str(why)
            }
        }
    }
}

/// An open connection. Dropping it ends it.
pub(crate) struct Connection<'a> {
    settings: &'a MailSettings,
    smtp: AsyncSmtpConnection,
    timeout: Duration,
}

impl<'a> Connection<'a> {
    /// Connects, encrypts and logs in.
    ///
    /// # Errors
    /// Always `Server`.
    pub(crate) async fn open(
        settings: &'a MailSettings,
        timeout: Duration,
    ) -> Result<Self, SendError> {
        let opened = tokio::time::timeout(timeout, Box::pin(greet(settings))).await;
        let smtp = opened.map_err(|_| silent(settings, timeout))??;
        Ok(Self { settings, smtp, timeout })
    }

    /// Hands over one mail; what the server answered.
    ///
    /// # Errors
    /// See [`SendError`]. Behind all but `Server` the connection can be used again.
    pub(crate) async fn send(&mut self, letter: &Letter) -> Result<String, SendError> {
        let message = letter.message(self.settings).map_err(SendError::Refused)?;
        let timeout = self.timeout;
        let sent = tokio::time::timeout(timeout, Box::pin(self.hand_over(&message))).await;
        sent.map_err(|_| silent(self.settings, timeout))?
    }

    async fn hand_over(&mut self, message: &lettre::Message) -> Result<String, SendError> {
        let envelope = message.envelope();
        let from = Mail::new(envelope.from().cloned(), Vec::new());
        self.smtp.command(from).await.map_err(|e| self.server(&e))?;
        for to in envelope.to() {
            let taken = self.smtp.command(Rcpt::new(to.clone(), Vec::new())).await;
            if let Err(error) = taken {
                return Err(self.about_person(error).await);
            }
        }
        if let Err(error) = self.smtp.command(Data).await {
            return Err(self.about_person(error).await);
        }
        match self.smtp.message(&message.formatted()).await {
            Ok(answer) => Ok(said(&answer)),
            Err(error) if error.is_permanent() => Err(self.about_person(error).await),
            // A full disk, a scanner that is away: as bad for the next mail.
            Err(error) => Err(self.server(&error)),
        }
    }

    /// The server waits for the next mail afterwards.
    async fn about_person(&mut self, error: lettre::transport::smtp::Error) -> SendError {
        let code = error.status().map(u16::from);
        let is_general = code.is_none_or(|code| ABOUT_THE_LOGIN.contains(&code));
        if is_general {
            return self.server(&error);
        }
        let why = explained(&error);
        if let Err(error) = self.smtp.command(Rset).await {
            return self.server(&error);
        }
        if error.is_permanent() { SendError::Refused(why) } else { SendError::Later(why) }
    }

    fn server(&self, error: &lettre::transport::smtp::Error) -> SendError {
        failed(self.settings, error)
    }

    /// Says goodbye; how that ends does not matter.
    pub(crate) async fn close(mut self) {
        drop(tokio::time::timeout(Duration::from_secs(1), Box::pin(self.smtp.quit())).await);
    }
}

async fn greet(settings: &MailSettings) -> Result<AsyncSmtpConnection, SendError> {
    let own = |error: anyhow::Error| SendError::Server(format!("{error:#}"));
    let files = settings.clone();
    // The trust store of the machine, and files that may be anywhere.
    let read = blocking(move || anyhow::Ok((files.tls()?, files.credentials()?))).await;
    let (tls, credentials) = read.map_err(|e| own(e.into()))?.map_err(own)?;
    let (at_once, later) = match settings.encryption {
        Encryption::Tls => (tls, None),
        Encryption::Starttls | Encryption::None => (None, tls),
    };
    let port = settings.server.to_string();
    let port = port.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or(25);
    let name = client_name();
    let server = |error: lettre::transport::smtp::Error| failed(settings, &error);
    let there = (settings.host(), port);
    let smtp = AsyncSmtpConnection::connect_tokio1(there, None, &name, at_once, None).await;
    let mut smtp = smtp.map_err(server)?;
    if let Some(tls) = later {
        smtp.starttls(tls, &name).await.map_err(server)?;
    }
    if let Some(credentials) = credentials {
        let mechanisms = [Mechanism::Plain, Mechanism::Login];
        smtp.auth(&mechanisms, &credentials).await.map_err(server)?;
    }
    Ok(smtp)
}

fn client_name() -> ClientId {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).map_or_else(ClientId::default, ClientId::Domain)
}

fn silent(settings: &MailSettings, timeout: Duration) -> SendError {
    SendError::Server(format!("{} did not answer within {} s", settings.server, timeout.as_secs()))
}

fn failed(settings: &MailSettings, error: &lettre::transport::smtp::Error) -> SendError {
    SendError::Server(format!("{}: {}", settings.server, explained(error)))
}

/// The error with its causes, on one line.
fn explained(error: &lettre::transport::smtp::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    shown(&text)
}

fn said(answer: &Response) -> String {
    shown(&format!("{} {}", answer.code(), answer.message().collect::<Vec<_>>().join(" ")))
}

/// What a server says is a stranger's text.
fn shown(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(SHOWN_CHARS_MAX).collect::<String>().trim().to_owned()
}
