//! The fleet's own certificate authority: made at `fleet-controller init`, used by the API to let
//! nodes and users in.
//!
//! [`Authority`] issues, and [`Keyring`] holds the one or two that there are; [`SigningRequest`] is what it issues for, with everything in it ignored but
//! the key; [`token`] mints and checks join tokens; [`renewal`] decides who may renew and keeps the
//! controller's own certificate fresh; [`AuditSigner`] signs audit exports.
//!
//! Nothing here touches the replicated state: the API proposes commands and calls these functions.
//! A name that a peer asks for in its request must never end up in a certificate.

mod audit_signer;
mod authority;
pub mod follow;
mod keyring;
pub mod renewal;
mod request;
pub mod token;

#[cfg(test)]
mod keyring_tests;
#[cfg(test)]
mod tests;

pub use audit_signer::{AuditSignature, AuditSigner};
pub use authority::{
    Authority, CERTIFICATE_FILE as AUTHORITY_CERTIFICATE_FILE, Issued, SERVER_CERTIFICATE_FILE,
    SERVER_KEY_FILE,
};
pub use keyring::{Keyring, Own};
pub use request::SigningRequest;

use std::path::PathBuf;
use std::time::Duration;

use fleet_proto::transport::credentials::CredentialError;
use fleet_proto::transport::files::FileError;
use fleet_proto::transport::identity::CertificateFault;

/// Life of the CA certificate.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Life of a controller's certificate; renewed at half of it.
pub const CONTROLLER_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Life of a node's certificate; the agent renews it at half of it.
pub const NODE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Life of a user's certificate, unless less is asked for, and the most that can be.
pub const USER_LIFE: Duration = Duration::from_secs(12 * 3600);
/// Life of the web page's certificate, where the fleet's authority signs it; made again at a third of it.
pub const PAGE_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Life of the audit signer's certificate.
pub const AUDIT_SIGNER_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);
/// Certificates begin this long before they are issued, for peers whose clock is behind.
pub const BACKDATING: Duration = Duration::from_secs(10 * 60);
/// Bytes of randomness in a serial number.
pub const SERIAL_BYTES: usize = 16;
/// A signing request, DER.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Why the authority cannot do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} exists: this controller was initialised before; its CA is never replaced", path.display())]
    AlreadyInitialised { path: PathBuf },
    #[error("{} does not exist: run `fleet-controller init` first", path.display())]
    NotInitialised { path: PathBuf },
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the CA certificate expires at unix time {not_after}: it cannot issue beyond that")]
    AuthorityExpired { not_after: u64 },
    #[error("csr_der: {reason}")]
    Request { reason: String },
    #[error("ttl: must be between 1 s and {} s", max.as_secs())]
    Lifetime { max: Duration },
    #[error("certificate")]
    Certificate(#[from] CertificateFault),
    #[error("credentials")]
    Credentials(#[from] CredentialError),
    #[error("cannot {action}")]
    Crypto {
        action: &'static str,
        #[source]
        source: rcgen::Error,
    },
    #[error("the system gives no random bytes: {reason}")]
    Random { reason: String },
}

impl PkiError {
    /// The status that a client gets: its own mistakes in full, ours without detail.
    pub fn to_status(&self) -> tonic::Status {
        match self {
            PkiError::Request { .. } | PkiError::Lifetime { .. } => {
                tonic::Status::invalid_argument(self.to_string())
            }
            PkiError::File(_)
            | PkiError::AlreadyInitialised { .. }
            | PkiError::NotInitialised { .. }
            | PkiError::Damaged { .. }
            | PkiError::AuthorityExpired { .. }
            | PkiError::Certificate(_)
            | PkiError::Credentials(_)
            | PkiError::Crypto { .. }
            | PkiError::Random { .. } => {
                tonic::Status::internal("the certificate authority failed; its log says why")
            }
        }
    }
}

fn crypto(action: &'static str) -> impl FnOnce(rcgen::Error) -> PkiError {
    move |source| PkiError::Crypto { action, source }
}

fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| PkiError::Random { reason: error.to_string() })?;
    Ok(bytes)
}
