//! A short certificate for a local user, got over the controller's Unix socket and kept in the
//! user's own folder: for the CLI, where it talks to the controller over the network afterwards.

use std::path::{Path, PathBuf};

use tonic::transport::Channel;

use super::credentials::{CredentialError, Credentials};
use super::files::{self, FileError, MODE_PRIVATE, MODE_PUBLIC};
use super::identity::{Role, key_pin_of};
use super::issued::{self, Accepted, IssuedFault};
use super::keys::{KeyError, OwnKey};
use super::limits::CALL_TIMEOUT;
use crate::v1::UserCertificateRequest;
use crate::v1::enrollment_client::EnrollmentClient;

/// Why no user certificate could be had.
#[derive(Debug, thiserror::Error)]
pub enum UserCertificateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the controller refused: {}", .0.message())]
    Refused(Box<tonic::Status>),
    #[error(transparent)]
    Reply(#[from] IssuedFault),
}

/// Where a user's credentials lie: `user.key`, `user.crt`, `ca.crt`.
#[derive(Debug, Clone)]
pub struct UserFolder(PathBuf);

impl UserFolder {
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// What was stored before; it may have expired ([`Credentials::leaf`] tells).
    pub fn load(&self) -> Result<Credentials, CredentialError> {
        let Self(folder) = self;
        Credentials::load(
            &folder.join("user.crt"),
            &folder.join("user.key"),
            &folder.join("ca.crt"),
        )
    }

    /// Asks for a new certificate with a new key, and stores both. `channel` must lead to the
    /// controller's Unix socket: that socket is what makes the reply trustworthy.
    pub async fn renew(&self, channel: Channel) -> Result<Credentials, UserCertificateError> {
        let (key, accepted) = ask(channel).await?;
        let Self(folder) = self;
        files::create_private_folder(folder)?;
        let key_pem = key.to_pem();
        files::write_atomic(&folder.join("user.key"), key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(
            &folder.join("ca.crt"),
            accepted.authority_pem.as_bytes(),
            MODE_PUBLIC,
        )?;
        let certificate = accepted.certificate_pem.as_bytes();
        files::write_atomic(&folder.join("user.crt"), certificate, MODE_PUBLIC)?;
        Ok(accepted.credentials)
    }
}

/// A new key and a certificate for it, stored nowhere. `channel` must lead to the controller's Unix
/// socket.
pub async fn ask(channel: Channel) -> Result<(OwnKey, Accepted), UserCertificateError> {
    let key = OwnKey::generate()?;
    let message = UserCertificateRequest { csr_der: key.signing_request()? };
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    let reply = EnrollmentClient::new(channel)
        .user_certificate(request)
        .await
        .map_err(|status| UserCertificateError::Refused(Box::new(status)))?
        .into_inner()
        .certificate;
    let authority = reply.as_ref().map_or(&[] as &[u8], |reply| &reply.ca_der);
    let pin = key_pin_of(authority).map_err(IssuedFault::Certificate)?;
    let is_user = |identity: &super::Identity| matches!(identity.role, Role::User(_));
    let accepted = issued::accept(reply, &key, pin, "a user", is_user)?;
    Ok((key, accepted))
}
