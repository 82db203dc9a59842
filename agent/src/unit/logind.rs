//! What systemd's login manager announces of shutdowns, and how one is delayed or asked for: over D-Bus.
//!
//! Used by `shutdown`, and by `doctor` for the one property. A *delay* lock holds a shutdown up until its descriptor is
//! closed or logind's own limit is over (`InhibitDelayMaxSec=`); it can never prevent one.

use std::os::fd::OwnedFd as Descriptor;
use std::time::Duration;

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

#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("{action}")]
    Bus { action: &'static str, source: Box<zbus::Error> },
    #[error("the login manager did not answer within {ANSWER_TIMEOUT:?}")]
    Timeout,
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

    /// Has the machine boot anew, as far as nobody's lock prevents it.
    pub async fn reboot(&self) -> Result<(), LogindError> {
        // Nobody is asked for a password.
        let asking = async { self.call(Some(MANAGER), "Reboot", &false).await };
        answered("ask the login manager for a reboot", asking).await.map(drop)
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
