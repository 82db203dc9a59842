//! Checking a certificate that a controller just issued, before it is stored: agent and CLI.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::credentials::{CredentialError, Credentials};
use super::crypto_provider;
use super::identity::{
    CertificateFault, Identity, PeerCertificate, is_authority, is_signed_by, key_pin_of,
};
use super::keys::{OwnKey, certificate_pem};
use super::limits::CHAIN_LENGTH_MAX;
use super::peer::Revocations;
use super::token::SpkiPin;
use super::verify::{ClientCheck, fault_of};
use crate::v1::IssuedCertificate;

/// Why an issued certificate is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum IssuedFault {
    #[error("the controller's reply holds no certificate")]
    Missing,
    #[error("the controller's reply: {0}")]
    Certificate(#[from] CertificateFault),
    #[error("the controller's reply: the CA certificate is not the pinned one")]
    OtherAuthority,
    #[error("the controller's reply: the certificate is for {found}, asked was for {expected}")]
    OtherIdentity { expected: String, found: Identity },
    #[error("the controller's reply: the certificate is for another key")]
    OtherKey,
    #[error("the controller's reply cannot be used")]
    Credentials(#[from] CredentialError),
}

/// A reply that passed the checks.
#[derive(Debug)]
pub struct Accepted {
    pub leaf: PeerCertificate,
    /// PEM for the certificate's file.
    pub certificate_pem: String,
    /// PEM of every authority to trust from now on, the one that signed first: for the CA's file.
    pub authority_pem: String,
    pub credentials: Credentials,
    /// Addresses of controllers, as the controller told them.
    pub controllers: Vec<String>,
    /// The controller's clock, unix milliseconds.
    pub now_unix_ms: u64,
}

/// Checks a reply: our key, a CA we know by its pin or by one we know, and an identity for which `expected`
/// holds.
pub fn accept(
    reply: Option<IssuedCertificate>,
    key: &OwnKey,
    authorities: &[SpkiPin],
    expected: &str,
    is_expected: impl Fn(&Identity) -> bool,
) -> Result<Accepted, IssuedFault> {
    let reply = reply.ok_or(IssuedFault::Missing)?;
    let roots = known_roots(&reply, authorities)?;
    let leaf = PeerCertificate::parse(&reply.certificate_der)?;
    if !is_expected(&leaf.identity) {
        let expected = expected.to_owned();
        return Err(IssuedFault::OtherIdentity { expected, found: leaf.identity });
    }
    // By the certificate's own time: this machine's clock may be wrong, which is reported elsewhere.
    let issued_at = UnixTime::since_unix_epoch(Duration::from_secs(leaf.not_before));
    let provider = crypto_provider();
    let cluster = leaf.identity.cluster.clone();
    let check = ClientCheck::new(cluster, Arc::new(roots), Revocations::default(), provider)
        .map_err(CredentialError::Verifier)?;
    let vouched: Vec<CertificateDer<'_>> =
        reply.vouched_der.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    check.check(&CertificateDer::from(reply.certificate_der.as_slice()), &vouched, issued_at)?;
    if !is_signed_by(&reply.certificate_der, &reply.ca_der)? {
        return Err(IssuedFault::OtherAuthority);
    }
    if !key.matches(&reply.certificate_der)? {
        return Err(IssuedFault::OtherKey);
    }
    let certificate = certificate_pem(&reply.certificate_der);
    let authority = bundle(&reply)?;
    let credentials = Credentials::from_pem(
        certificate.as_bytes(),
        key.to_pem().expose().as_bytes(),
        authority.as_bytes(),
    )?;
    Ok(Accepted {
        leaf,
        certificate_pem: certificate,
        authority_pem: authority,
        credentials,
        controllers: reply.controllers,
        now_unix_ms: reply.now_unix_ms,
    })
}

/// Those of the authorities in the reply that we know by their pins. One that we do not know counts by what one
/// of these vouches.
fn known_roots(
    reply: &IssuedCertificate,
    authorities: &[SpkiPin],
) -> Result<RootCertStore, IssuedFault> {
    let mut roots = RootCertStore::empty();
    let others = reply.trusted_der.iter().take(CHAIN_LENGTH_MAX);
    for der in std::iter::once(&reply.ca_der).chain(others) {
        if is_authority(der)? && authorities.contains(&key_pin_of(der)?) {
            roots.add(CertificateDer::from(der.as_slice()).into_owned()).map_err(fault_of)?;
        }
    }
    if roots.is_empty() || !is_authority(&reply.ca_der)? {
        return Err(IssuedFault::OtherAuthority);
    }
    Ok(roots)
}

/// The authority that signed and the others that the fleet trusts: it is the fleet that says so.
fn bundle(reply: &IssuedCertificate) -> Result<String, IssuedFault> {
    let mut pem = certificate_pem(&reply.ca_der);
    for other in reply.trusted_der.iter().take(CHAIN_LENGTH_MAX) {
        if *other == reply.ca_der {
            continue;
        }
        if !is_authority(other)? {
            return Err(IssuedFault::OtherAuthority);
        }
        pem.push_str(&certificate_pem(other));
    }
    Ok(pem)
}
