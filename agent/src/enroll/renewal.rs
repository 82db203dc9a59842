//! Renews the node's certificate at half of its life, and replaces it in the running agent.
//!
//! Also takes up what somebody else put into the folder: `fleet-agent join --replace` after a
//! revocation needs no restart. Failing to renew is logged and tried again for ever: the agent and
//! its jobs go on regardless.

use std::sync::Arc;
use std::time::Duration;

use fleet_proto::transport::client::{DialError, Dialer};
use fleet_proto::transport::credentials::CredentialError;
use fleet_proto::transport::identity::{CertificateFault, PeerCertificate, key_pin_of};
use fleet_proto::transport::issued::{self, IssuedFault};
use fleet_proto::transport::keys::KeyError;
use fleet_proto::transport::limits::CALL_TIMEOUT;
use fleet_proto::transport::token::SpkiPin;
use fleet_proto::v1::RenewRequest;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use tokio::sync::Notify;

use super::leader;
use super::store::{IdentityFolder, StoreError};
use super::wall_clock;

/// The wall clock is looked at this often: a machine may sleep, or its clock be set.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after the first failure; doubled with each further one.
pub const RETRY_MIN: Duration = Duration::from_secs(30);
/// The longest pause.
pub const RETRY_MAX: Duration = Duration::from_secs(15 * 60);
/// Renewals of many nodes that joined together are spread over this part of the certificate's life.
const JITTER_DIVISOR: u64 = 10;

/// Why a renewal failed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    #[error(transparent)]
    Connection(DialError),
    #[error("the controller refused: {reason}")]
    Refused { reason: String },
    #[error("no answer in time")]
    NoAnswer,
    #[error(transparent)]
    Reply(#[from] IssuedFault),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error("own CA certificate: {0}")]
    Authority(#[from] CertificateFault),
}

/// The renewal task of a running agent.
#[derive(Debug, Clone)]
pub struct Renewal {
    folder: IdentityFolder,
    dialer: Dialer,
    check_interval: Duration,
    retry_min: Duration,
    reload: Arc<Notify>,
}

impl Renewal {
    /// Renews through the same controllers, with its own record of what went wrong.
    pub fn new(folder: IdentityFolder, dialer: &Dialer) -> Self {
        Self {
            folder,
            dialer: dialer.sibling(),
            check_interval: CHECK_INTERVAL,
            retry_min: RETRY_MIN,
            reload: Arc::default(),
        }
    }

    /// Makes it look into the folder at once.
    pub fn reload(&self) -> Arc<Notify> {
        self.reload.clone()
    }

    /// The same with other pauses.
    #[cfg(test)]
    pub(super) fn with_pauses(mut self, check_interval: Duration, retry_min: Duration) -> Self {
        self.check_interval = check_interval;
        self.retry_min = retry_min;
        self
    }

    /// Runs until dropped.
    pub async fn run(self) {
        let mut failures = 0;
        loop {
            match self.take_up() {
                Ok(false) => {}
                Ok(true) => {
                    failures = 0;
                    tracing::info!("the certificate in the identity folder is used from now on");
                }
                Err(error) => tracing::warn!(%error, "the identity folder cannot be used"),
            }
            if !is_due(self.dialer.credentials().current().leaf(), wall_clock().0 / 1000) {
                self.pause(self.check_interval).await;
                continue;
            }
            match self.renew().await {
                Ok(leaf) => {
                    failures = 0;
                    tracing::info!(serial = %leaf.serial, not_after = leaf.not_after, "certificate renewed");
                }
                Err(error) => {
                    failures += 1;
                    let pause = pause_after(failures, self.retry_min);
                    let not_after = self.dialer.credentials().current().leaf().not_after;
                    tracing::warn!(%error, failures, not_after, ?pause, "cannot renew the certificate");
                    self.pause(pause).await;
                }
            }
        }
    }

    async fn pause(&self, length: Duration) {
        tokio::select! {
            () = tokio::time::sleep(length) => {}
            () = self.reload.notified() => {}
        }
    }

    /// Uses the stored certificate if it is another one for the same identity. True if it was.
    fn take_up(&self) -> Result<bool, RenewalError> {
        let (_, stored) = self.folder.load()?;
        let credentials = self.dialer.credentials();
        let current = credentials.current();
        if stored.leaf().serial == current.leaf().serial {
            return Ok(false);
        }
        if stored.leaf().identity != current.leaf().identity {
            let now = stored.leaf().identity.to_string();
            tracing::warn!(now, "this node joined under another identity: restart the agent");
            return Ok(false);
        }
        credentials.replace(stored)?;
        Ok(true)
    }

    /// Renews once, whatever the certificate's age: stores the new one, then uses it.
    pub async fn renew(&self) -> Result<PeerCertificate, RenewalError> {
        let credentials = self.dialer.credentials();
        let current = credentials.current();
        let key = self.folder.key()?;
        let message = RenewRequest { csr_der: key.signing_request()? };
        let answer = leader::ask(&self.dialer, |channel| {
            let mut request = tonic::Request::new(message.clone());
            request.set_timeout(CALL_TIMEOUT);
            async move { EnrollmentClient::new(channel).renew(request).await }
        });
        let reply = match answer.await {
            Ok(reply) => reply.into_inner().certificate,
            Err(status) => return Err(self.explain(&status)),
        };
        let pins: Result<Vec<SpkiPin>, CertificateFault> =
            current.authorities().iter().map(|authority| key_pin_of(authority)).collect();
        let expected = &current.leaf().identity;
        let same = |found: &fleet_proto::transport::Identity| found == expected;
        let accepted = issued::accept(reply, &key, &pins?, &expected.to_string(), same)?;
        self.folder.renewed(&accepted)?;
        credentials.replace(accepted.credentials)?;
        Ok(accepted.leaf)
    }

    fn explain(&self, status: &tonic::Status) -> RenewalError {
        if let Some(error) = self.dialer.last_error() {
            return RenewalError::Connection(error);
        }
        match status.code() {
            tonic::Code::DeadlineExceeded => RenewalError::NoAnswer,
            _ => RenewalError::Refused { reason: status.message().to_owned() },
        }
    }
}

/// Whether it is time to renew: half of the life is over, plus this certificate's share of jitter.
/// A certificate from the future is due as well: the clock was set back, a new one cannot hurt.
pub(super) fn is_due(leaf: &PeerCertificate, now: u64) -> bool {
    let life = leaf.not_after.saturating_sub(leaf.not_before);
    // The serial is random and stays the same over restarts.
    let share =
        leaf.serial.bytes().fold(0_u64, |sum, b| sum.wrapping_mul(31) + u64::from(b)) % 1000;
    let jitter = life / JITTER_DIVISOR * share / 1000;
    now < leaf.not_before || now >= leaf.not_before + life / 2 + jitter
}

pub(super) fn pause_after(failures: u32, first: Duration) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(RETRY_MAX)
}
