//! A short certificate for a user, got where somebody vouches for them, and kept in the user's own
//! folder: for the CLI, which talks to the controllers over the network with it.
//!
//! Key and certificate are one file, so that two commands that renew at the same time cannot mix
//! theirs.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use tonic::transport::Channel;

use super::client::Address;
use super::credentials::{CredentialError, Credentials};
use super::files::{self, FileError, MODE_PRIVATE, MODE_PUBLIC};
use super::identity::{Role, key_pin_of};
use super::issued::{self, Accepted, IssuedFault};
use super::keys::{KeyError, OwnKey};
use super::limits::CALL_TIMEOUT;
use crate::v1::enrollment_client::EnrollmentClient;
use crate::v1::{IssuedCertificate, UserCertificateRequest};

/// Why no user certificate is available.
#[derive(Debug, thiserror::Error)]
pub enum UserCertificateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{}", .0.message())]
    Refused(Box<tonic::Status>),
    #[error(transparent)]
    Reply(#[from] IssuedFault),
}

/// The folder of a user's credentials: `user.pem` (key and certificate), `ca.crt`, `controllers`.
#[derive(Debug, Clone)]
pub struct UserFolder(PathBuf);

/// A key that wants a certificate.
#[derive(Debug)]
pub struct Wanted {
    key: OwnKey,
    /// The signing request, DER.
    pub csr_der: Vec<u8>,
}

impl Wanted {
    /// A new key. It stays in this process until it has its certificate.
    pub fn new() -> Result<Self, UserCertificateError> {
        let key = OwnKey::generate()?;
        let csr_der = key.signing_request()?;
        Ok(Self { key, csr_der })
    }

    /// The signing request as one line of text, for carrying it to another machine.
    pub fn to_line(&self) -> String {
        STANDARD.encode(&self.csr_der)
    }

    /// Checks the answer: a user's certificate for this key.
    fn accept(&self, reply: Option<IssuedCertificate>) -> Result<Accepted, UserCertificateError> {
        let authority = reply.as_ref().map_or(&[] as &[u8], |reply| &reply.ca_der);
        let pin = key_pin_of(authority).map_err(IssuedFault::Certificate)?;
        let is_user = |identity: &super::Identity| matches!(identity.role, Role::User(_));
        Ok(issued::accept(reply, &self.key, &[pin], "a user", is_user)?)
    }
}

impl UserFolder {
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Key and certificate.
    pub fn pair(&self) -> PathBuf {
        self.0.join("user.pem")
    }

    /// The authorities that are trusted.
    pub fn authorities(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    /// What was stored before; it may have expired ([`Credentials::leaf`] tells).
    pub fn load(&self) -> Result<Credentials, CredentialError> {
        Credentials::load(&self.pair(), &self.pair(), &self.authorities())
    }

    /// The controllers that were named with the certificate.
    pub fn addresses(&self) -> Vec<Address> {
        let bytes = files::read_limited(&self.0.join("controllers")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Drops the certificate, so that the next one who looks asks for another.
    pub fn forget(&self) {
        // Gone already is as good; another failure is met again when a new one is stored.
        drop(std::fs::remove_file(self.pair()));
    }

    /// Asks for a new certificate with a new key, and stores both. `channel` must lead to a Unix
    /// socket of a controller or an agent: that socket is what makes the reply trustworthy.
    pub async fn renew(&self, channel: Channel) -> Result<Credentials, UserCertificateError> {
        let wanted = Wanted::new()?;
        let reply = signed(channel, wanted.csr_der.clone()).await?;
        self.store(wanted, reply)
    }

    /// Checks the answer to a wish, and stores it with its key.
    pub fn store(
        &self,
        wanted: Wanted,
        reply: Option<IssuedCertificate>,
    ) -> Result<Credentials, UserCertificateError> {
        let accepted = wanted.accept(reply)?;
        self.keep(&wanted.key, &accepted)?;
        Ok(accepted.credentials)
    }

    /// Stores a certificate with its key.
    pub fn keep(&self, key: &OwnKey, accepted: &Accepted) -> Result<(), FileError> {
        files::create_private_folder(&self.0)?;
        files::write_atomic(&self.authorities(), accepted.authority_pem.as_bytes(), MODE_PUBLIC)?;
        let controllers = accepted.controllers.join("\n") + "\n";
        files::write_atomic(&self.0.join("controllers"), controllers.as_bytes(), MODE_PUBLIC)?;
        let mut pair = key.to_pem().expose().to_owned();
        pair.push_str(&accepted.certificate_pem);
        files::write_atomic(&self.pair(), pair.as_bytes(), MODE_PRIVATE)
    }
}

/// A new key and a certificate for it, stored nowhere. `channel` must lead to a Unix socket of a
/// controller or an agent.
pub async fn ask(channel: Channel) -> Result<(OwnKey, Accepted), UserCertificateError> {
    let wanted = Wanted::new()?;
    let reply = signed(channel, wanted.csr_der.clone()).await?;
    let accepted = wanted.accept(reply)?;
    Ok((wanted.key, accepted))
}

/// Has a request signed by the peer at the other end of a Unix socket.
pub async fn signed(
    channel: Channel,
    csr_der: Vec<u8>,
) -> Result<Option<IssuedCertificate>, UserCertificateError> {
    let mut request = tonic::Request::new(UserCertificateRequest { csr_der });
    request.set_timeout(CALL_TIMEOUT);
    let answer = EnrollmentClient::new(channel).user_certificate(request).await;
    let answer = answer.map_err(|status| UserCertificateError::Refused(Box::new(status)))?;
    Ok(answer.into_inner().certificate)
}

/// An answer as one line of text, for carrying it to another machine.
pub fn to_line(reply: &IssuedCertificate) -> String {
    STANDARD.encode(reply.encode_to_vec())
}

/// The answer in a line that [`to_line`] made.
pub fn from_line(line: &str) -> Option<IssuedCertificate> {
    let bytes = STANDARD.decode(line.trim()).ok()?;
    IssuedCertificate::decode(bytes.as_slice()).ok()
}
