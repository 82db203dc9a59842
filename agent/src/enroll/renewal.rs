//! Renews the node's certificate at half of its life, and replaces it in the running agent. Where the fleet
//! exchanges its certificate authority it does so as soon as the new one signs, and once more when the old one is
//! given up.
//!
//! Also takes up what somebody else put into the folder: `fleet-agent join --replace` after a
//! revocation needs no restart. Failing to renew is logged and tried again for ever: the agent and
//! its jobs keep running regardless.

use std::sync::Arc;
use std::time::Duration;

use fleet_proto::transport::client::{DialError, Dialer};
use fleet_proto::transport::credentials::{CredentialError, Credentials};
use fleet_proto::transport::identity::{CertificateFault, PeerCertificate, key_pin_of};
use fleet_proto::transport::issued::{self, IssuedFault};
use fleet_proto::transport::keys::KeyError;
use fleet_proto::transport::limits::CALL_TIMEOUT;
use fleet_proto::transport::token::SpkiPin;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use fleet_proto::v1::{Authorities, RenewRequest};
use tokio::sync::{Notify, watch};

use super::leader;
use super::store::{IdentityFolder, StoreError};
use super::wall_clock;

/// How often the task checks the wall clock: a machine may sleep, or somebody may set its clock.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after the first failure; doubled with each further one.
pub const RETRY_MIN: Duration = Duration::from_secs(30);
/// The longest pause.
pub const RETRY_MAX: Duration = Duration::from_secs(15 * 60);
/// Renewals of many nodes that joined together are spread over this part of the certificate's life.
const JITTER_DIVISOR: u64 = 10;

/// How finely that is done.
const SHARES: u32 = 1_000;
/// The longest time that controllers may spread the renewals of a move over.
const SPREAD_MAX: Duration = Duration::from_secs(600);

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

/// What is in the identity folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakenUp {
    /// The certificate that is in use.
    Nothing,
    /// Another one of this membership, which is in use now.
    Another,
    /// Another membership, which this agent takes up only when it is restarted.
    Elsewhere,
}

/// The renewal task of a running agent.
#[derive(Debug, Clone)]
pub struct Renewal {
    folder: IdentityFolder,
    dialer: Dialer,
    check_interval: Duration,
    retry_min: Duration,
    reload: Arc<Notify>,
    /// Which authorities the fleet has, as far as a controller said.
    told: watch::Receiver<Option<Authorities>>,
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
            told: watch::channel(None).1,
        }
    }

    /// The same, which also renews when these say that the fleet has other authorities than this node.
    pub fn following(mut self, told: watch::Receiver<Option<Authorities>>) -> Self {
        self.told = told;
        self
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
    pub async fn run(mut self) {
        let mut failures = 0;
        loop {
            match self.take_up() {
                Ok(TakenUp::Nothing) => {}
                Ok(TakenUp::Another) => {
                    failures = 0;
                    tracing::info!("the certificate in the identity folder is used from now on");
                }
                Ok(TakenUp::Elsewhere) => {
                    // The folder is the other membership's: nothing of this one's may be put into it.
                    self.pause(self.check_interval).await;
                    continue;
                }
                Err(error) => tracing::warn!(%error, "the identity folder cannot be used"),
            }
            let due = is_due(self.dialer.credentials().current().leaf(), wall_clock().0 / 1000);
            if !due && !self.must_move().await {
                self.pause(self.check_interval).await;
                continue;
            }
            match self.renew().await {
                Ok(leaf) => {
                    failures = 0;
                    tracing::info!(serial = %leaf.serial, not_after = leaf.not_after, "certificate renewed");
                    if is_due(&leaf, wall_clock().0 / 1000) {
                        let (not_before, not_after) = (leaf.not_before, leaf.not_after);
                        tracing::warn!(
                            not_before,
                            not_after,
                            "the new certificate is to be renewed already: whose clock is right?"
                        );
                        self.pause(self.check_interval).await;
                    } else if self.differs() {
                        // The controller that signed had not heard of the new authorities yet: in a moment it has.
                        self.pause(self.retry_min).await;
                    }
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

    async fn pause(&mut self, length: Duration) {
        tokio::select! {
            () = tokio::time::sleep(length) => {}
            () = self.reload.notified() => {}
            Ok(()) = self.told.changed() => {}
        }
    }

    /// Whether this node's certificate, or its trust, is not by the authorities that the fleet has.
    fn differs(&self) -> bool {
        let told = self.told.borrow();
        told.as_ref().is_some_and(|told| is_elsewhere(&self.dialer.credentials().current(), told))
    }

    /// The same, at this node's turn: all of them hear of it in the same moment.
    async fn must_move(&self) -> bool {
        if !self.differs() {
            return false;
        }
        let spread = self.told.borrow().as_ref().map_or(0, |told| told.spread_ms);
        let spread = Duration::from_millis(spread).min(SPREAD_MAX);
        let share = share_of(&self.dialer.credentials().current().leaf().serial);
        tokio::time::sleep(spread * share / SHARES).await;
        self.differs()
    }

    /// Uses the stored certificate if it is another one for the same identity.
    fn take_up(&self) -> Result<TakenUp, RenewalError> {
        let (_, stored) = self.folder.load()?;
        let credentials = self.dialer.credentials();
        let current = credentials.current();
        if stored.leaf().serial == current.leaf().serial {
            return Ok(TakenUp::Nothing);
        }
        if stored.leaf().identity != current.leaf().identity {
            let now = stored.leaf().identity.to_string();
            tracing::warn!(now, "this node joined under another identity: restart the agent");
            return Ok(TakenUp::Elsewhere);
        }
        credentials.replace(stored)?;
        Ok(TakenUp::Another)
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
    let jitter = life / JITTER_DIVISOR * u64::from(share_of(&leaf.serial)) / u64::from(SHARES);
    now < leaf.not_before || now >= leaf.not_before + life / 2 + jitter
}

/// Where this node stands among all, in [`SHARES`]: the serial is random and stays the same over restarts.
fn share_of(serial: &str) -> u32 {
    serial.bytes().fold(0_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b))) % SHARES
}

/// Whether the own certificate is of another authority than the one that signs, or one is trusted that the fleet
/// does not trust any more.
pub(super) fn is_elsewhere(own: &Credentials, told: &Authorities) -> bool {
    let signed_elsewhere = own.signer().is_none_or(|pin| pin.to_string() != told.signing);
    let mut trusted = own.authorities().iter().filter_map(|der| key_pin_of(der).ok());
    signed_elsewhere || trusted.any(|pin| !told.trusted.contains(&pin.to_string()))
}

pub(super) fn pause_after(failures: u32, first: Duration) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(RETRY_MAX)
}
