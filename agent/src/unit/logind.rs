//! What systemd's login manager announces of shutdowns, and how one is delayed or asked for: over D-Bus.
//!
//! Used by `shutdown`, and by `doctor` for the one property. A *delay* lock holds a shutdown up until its descriptor is
//! closed or logind's own limit is over (`InhibitDelayMaxSec=`); it can never prevent one. A *block* lock of somebody
//! else's can, and must never be gone past: dpkg may be at work under it.

use std::os::fd::OwnedFd as Descriptor;
use std::time::Duration;

use fleet_core::name::is_plain_text;
use futures::StreamExt as _;
use zbus::message::Type;
use zbus::{Connection, DynamicType, MatchRule, MessageStream, OwnedFd, OwnedVariant};

use super::ANSWER_TIMEOUT;

const NAME: &str = "org.freedesktop.login1";
const BUS_NAME: Option<&str> = Some(NAME);
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const PROPERTIES: Option<&str> = Some("org.freedesktop.DBus.Properties");
/// What `systemd-inhibit --list` shows.
const WHO: &str = "fleet-agent";
const WHY: &str = "running jobs are asked for a checkpoint first";
/// `SD_LOGIND_ROOT_CHECK_INHIBITORS` of systemd's `sd-login.h`: without it, locks do not hold for root before version 257.
const ROOT_CHECK_INHIBITORS: u64 = 1;
/// What it answers where a lock is in the way: since version 257, and before that access is denied, in these words.
const BLOCKED: &str = "org.freedesktop.login1.BlockedByInhibitorLock";
const BLOCKED_WORD: &str = "inhibitor";
/// How many characters are passed on of each text that the holder of a lock gave.
const LOCK_TEXT_CHARS_MAX: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("{action}")]
    Bus { action: &'static str, source: Box<zbus::Error> },
    #[error("the login manager did not answer within {ANSWER_TIMEOUT:?}")]
    Timeout,
    #[error("shutdowns are held up by {by}")]
    Blocked { by: String },
}

impl LogindError {
    fn answer(&self) -> Option<&zbus::Error> {
        match self {
            LogindError::Bus { source, .. } => Some(source.as_ref()),
            LogindError::Timeout | LogindError::Blocked { .. } => None,
        }
    }

    /// So answers one before version 246 to `RebootWithFlags`.
    fn is_unknown_method(&self) -> bool {
        let Some(zbus::Error::FDO(answer)) = self.answer() else { return false };
        matches!(**answer, zbus::fdo::Error::UnknownMethod(_))
    }

    /// Whether a lock of somebody's was in the way.
    fn is_of_a_lock(&self) -> bool {
        match self.answer() {
            Some(zbus::Error::MethodError(name, ..)) => name.as_str() == BLOCKED,
            Some(zbus::Error::FDO(answer)) => match &**answer {
                zbus::fdo::Error::AccessDenied(words) => words.contains(BLOCKED_WORD),
                _ => false,
            },
            _ => false,
        }
    }
}

/// A lock as `ListInhibitors` has it: what is held up, who does, why, how, and the user and process.
type Inhibitor = (String, String, String, String, u32, u32);

/// Who holds it, in words, if it keeps the machine from going down. Weak ones do not hold for root.
fn blocks_shutdowns((what, who, why, mode, uid, pid): &Inhibitor) -> Option<String> {
    if mode != "block" || !what.split(':').any(|what| what == "shutdown") {
        return None;
    }
    let plain = |text: &str| -> String {
        let plain = |c: &char| is_plain_text(c.encode_utf8(&mut [0; 4]));
        text.chars().filter(plain).take(LOCK_TEXT_CHARS_MAX).collect()
    };
    Some(format!("{} (pid {pid}, uid {uid}): {}", plain(who), plain(why)))
}

/// A connection to the system bus, for the login manager.
#[derive(Debug, Clone)]
pub struct Logind {
    connection: Connection,
}

/// While it is kept, a shutdown waits, for as long as logind allows.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not read")] Descriptor);

/// The signals `PrepareForShutdown`: `true` when one begins, `false` when it was given up.
#[derive(Debug)]
pub struct Announcements(MessageStream);

impl Announcements {
    /// `None`: the connection is gone.
    pub async fn next(&mut self) -> Option<bool> {
        loop {
            let message = self.0.next().await?.ok()?;
            match message.body().deserialize::<bool>() {
                Ok(begins) => return Some(begins),
                Err(error) => tracing::warn!(%error, "an announcement of logind is not understood"),
            }
        }
    }
}

async fn answered<T>(
    action: &'static str,
    asked: impl Future<Output = zbus::Result<T>>,
) -> Result<T, LogindError> {
    tokio::time::timeout(ANSWER_TIMEOUT, asked)
        .await
        .map_err(|_| LogindError::Timeout)?
        .map_err(|source| LogindError::Bus { action, source: Box::new(source) })
}

impl Logind {
    pub async fn connect() -> Result<Self, LogindError> {
        let connection = answered("connect to the system bus", Connection::system()).await?;
        Ok(Self { connection })
    }

    pub async fn announcements(&self) -> Result<Announcements, LogindError> {
        let listening = async {
            let rule = MatchRule::builder()
                .msg_type(Type::Signal)
                .sender(NAME)
                .path(PATH)
                .interface(MANAGER)
                .member("PrepareForShutdown")
                .build()?;
            MessageStream::for_match_rule(rule, &self.connection, None).await
        };
        Ok(Announcements(answered("listen to the login manager", listening).await?))
    }

    /// Takes a lock. Refused while a shutdown is under way.
    pub async fn hold(&self) -> Result<Lock, LogindError> {
        let body = ("shutdown", WHO, WHY, "delay");
        let taking = async {
            let reply = self.call(Some(MANAGER), "Inhibit", &body).await?;
            reply.body().deserialize::<OwnedFd>()
        };
        Ok(Lock(answered("take a lock that delays shutdowns", taking).await?.into()))
    }

    /// How long a lock can delay a shutdown, as logind has it in force.
    pub async fn delay_max(&self) -> Result<Duration, LogindError> {
        let asking = async {
            let value = self.property("InhibitDelayMaxUSec").await?;
            u64::try_from(value)
        };
        Ok(Duration::from_micros(answered("ask for InhibitDelayMaxUSec", asking).await?))
    }

    /// Whether a shutdown was announced before anybody listened.
    pub async fn is_under_way(&self) -> Result<bool, LogindError> {
        let asking = async { bool::try_from(self.property("PreparingForShutdown").await?) };
        answered("ask for PreparingForShutdown", asking).await
    }

    /// Reboots the machine, unless somebody's lock prevents it.
    pub async fn reboot(&self) -> Result<(), LogindError> {
        const ACTION: &str = "ask the login manager for a reboot";
        // Read first: a login manager that does not know the flag does not hold root to any lock.
        self.refuse_if_blocked().await?;
        let flags = ROOT_CHECK_INHIBITORS;
        let asked = answered(ACTION, self.call(Some(MANAGER), "RebootWithFlags", &flags)).await;
        match asked.map(drop) {
            Err(error) if error.is_unknown_method() => {
                // Nobody is asked for a password.
                let asking = self.call(Some(MANAGER), "Reboot", &false);
                answered(ACTION, asking).await.map(drop)
            }
            Err(error) if error.is_of_a_lock() => {
                self.refuse_if_blocked().await?;
                Err(LogindError::Blocked { by: "a lock that is gone again".to_owned() })
            }
            asked => asked,
        }
    }

    async fn refuse_if_blocked(&self) -> Result<(), LogindError> {
        let asking = async {
            let reply = self.call(Some(MANAGER), "ListInhibitors", &()).await?;
            reply.body().deserialize::<Vec<Inhibitor>>()
        };
        let locks = answered("ask who holds shutdowns up", asking).await?;
        match locks.iter().find_map(blocks_shutdowns) {
            Some(by) => Err(LogindError::Blocked { by }),
            None => Ok(()),
        }
    }

    async fn property(&self, name: &str) -> zbus::Result<OwnedVariant> {
        let reply = self.call(PROPERTIES, "Get", &(MANAGER, name)).await?;
        reply.body().deserialize()
    }

    async fn call<B: serde::Serialize + DynamicType>(
        &self,
        interface: Option<&str>,
        method: &str,
        body: &B,
    ) -> zbus::Result<zbus::Message> {
        self.connection.call_method(BUS_NAME, PATH, interface, method, body).await
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
