//! Checking a signature made by one of the fleet's audit signers, offline: CLI and controller.
//!
//! An audit export ends with a trailer that holds the signer's certificate and its signature; with
//! the CA certificate alone anybody can check both.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, SignatureScheme};

use super::crypto_provider;
use super::identity::{CertificateFault, PeerCertificate, Role, is_authority, parse_x509};
use super::verify::fault_of;

/// Why a signature is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    #[error("signer: {0}")]
    Signer(#[from] CertificateFault),
    #[error("the CA certificate cannot be used: {reason}")]
    Authority { reason: String },
    #[error("the signature does not belong to this text and this signer")]
    Mismatch,
}

/// What is signed so that a node can show of which incarnation its fleet is. Unlike any trailer of an export, which is JSON.
pub fn incarnation_text(cluster: &str, incarnation: u64) -> Vec<u8> {
    format!("fleet incarnation\n{cluster}\n{incarnation}\n").into_bytes()
}

/// Checks that `message` was signed by the key in `signer_der`, which the CA in `authority_der`
/// certified as an audit signer. The signer's certificate may have expired since: what it signed
/// in its time stays signed.
pub fn verify_audit_signature(
    authority_der: &[u8],
    signer_der: &[u8],
    message: &[u8],
    signature: &[u8],
) -> Result<PeerCertificate, SignatureFault> {
    let provider = crypto_provider();
    if !is_authority(authority_der)? {
        return Err(SignatureFault::Authority { reason: "it is not a CA certificate".to_owned() });
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority_der).into_owned()).map_err(fault_of)?;
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| SignatureFault::Authority { reason: error.to_string() })?;
    let signer = PeerCertificate::parse(signer_der)?;
    let issued_at = UnixTime::since_unix_epoch(Duration::from_secs(signer.not_before));
    let leaf = CertificateDer::from(signer_der);
    chain.verify_client_cert(&leaf, &[], issued_at).map_err(fault_of)?;
    let Role::AuditSigner(_) = signer.identity.role else {
        let found = signer.identity.role.kind();
        return Err(CertificateFault::WrongRole { expected: "audit", found }.into());
    };
    let x509 = parse_x509(signer_der)?;
    let key = x509.public_key().subject_public_key.data.as_ref();
    let algorithms = provider
        .signature_verification_algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == SignatureScheme::ECDSA_NISTP256_SHA256)
        .map(|(_, algorithms)| *algorithms)
        .unwrap_or_default();
    let verified = algorithms.iter().any(|a| a.verify_signature(key, message, signature).is_ok());
    if verified { Ok(signer) } else { Err(SignatureFault::Mismatch) }
}
