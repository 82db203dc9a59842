//! The certificate checks of both sides, and of a node that joins.
//!
//! The chain (signature, validity, not a CA) is checked by webpki; who it is and what it may be used
//! for is checked by us. The `check_*` functions hold the rules and are tested row by row; the
//! verifiers below only plug them into rustls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::id::ClusterId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

use super::identity::{CertificateFault, PeerCertificate, Role, is_authority, key_pin_of};
use super::limits::{CHAIN_LENGTH_MAX, RENEW_EXPIRED_MAX};
use super::peer::Revocations;
use super::token::SpkiPin;

/// What a verified client certificate is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Everything its owner may do.
    Valid,
    /// A node's, lately expired: renewal only.
    Expired,
}

/// The rules for peers that connect to a controller.
#[derive(Debug)]
pub struct ClientCheck {
    cluster: ClusterId,
    chain: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
}

impl ClientCheck {
    /// Peers of `cluster` whose chain ends at one of `roots`.
    pub fn new(
        cluster: ClusterId,
        roots: Arc<RootCertStore>,
        revocations: Revocations,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let chain = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .allow_unauthenticated()
            .build()?;
        Ok(Self { cluster, chain, revocations })
    }

    /// Checks a presented chain at the time `now`.
    pub fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(PeerCertificate, Standing), CertificateFault> {
        refuse_long_chain(intermediates)?;
        if is_authority(leaf)? {
            return Err(CertificateFault::IsAuthority);
        }
        let verify = |at| self.chain.verify_client_cert(leaf, intermediates, at).map_err(fault_of);
        let standing = match verify(now) {
            Ok(_) => Standing::Valid,
            Err(expired @ CertificateFault::Expired { not_after, now: seen }) => {
                if seen.saturating_sub(not_after) > RENEW_EXPIRED_MAX.as_secs() {
                    return Err(expired);
                }
                verify(UnixTime::since_unix_epoch(Duration::from_secs(not_after)))?;
                Standing::Expired
            }
            Err(fault) => return Err(fault),
        };
        let peer = PeerCertificate::parse(leaf)?;
        peer.require_cluster(&self.cluster)?;
        peer.require_client()?;
        self.revocations.check(&peer)?;
        match (standing, &peer.identity.role) {
            (Standing::Valid, _) | (Standing::Expired, Role::Node(_)) => Ok((peer, standing)),
            (Standing::Expired, _) => {
                Err(CertificateFault::Expired { not_after: peer.not_after, now: now.as_secs() })
            }
        }
    }
}

/// The rules for the controller that a client connects to.
#[derive(Debug)]
pub struct ServerCheck {
    cluster: ClusterId,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCheck {
    /// Controllers of `cluster` whose chain ends at one of `roots`.
    pub fn new(
        cluster: ClusterId,
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        Self { cluster, roots, provider }
    }

    /// Checks a presented chain at the time `now`.
    pub fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerCertificate, CertificateFault> {
        let peer = check_serving_chain(leaf, intermediates, now, &self.roots, &self.provider)?;
        peer.require_cluster(&self.cluster)?;
        Ok(peer)
    }
}

/// The rules for the controller that a new node talks to: the CA is not known yet, its pin is.
#[derive(Debug)]
pub struct PinCheck {
    pin: SpkiPin,
    provider: Arc<CryptoProvider>,
}

impl PinCheck {
    pub fn new(pin: SpkiPin, provider: Arc<CryptoProvider>) -> Self {
        Self { pin, provider }
    }

    /// Checks that the chain contains the pinned CA and that the leaf hangs on it.
    pub fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerCertificate, CertificateFault> {
        refuse_long_chain(intermediates)?;
        let mut found = Vec::new();
        for cert in intermediates {
            let pin = key_pin_of(cert)?;
            if pin != self.pin {
                found.push(pin.to_string());
                continue;
            }
            let mut roots = RootCertStore::empty();
            roots.add(cert.clone().into_owned()).map_err(fault_of)?;
            return check_serving_chain(leaf, intermediates, now, &roots, &self.provider);
        }
        if found.is_empty() {
            found.push("no CA certificate".to_owned());
        }
        Err(CertificateFault::PinMismatch { expected: self.pin, found: found.join(", ") })
    }
}

fn check_serving_chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    roots: &RootCertStore,
    provider: &CryptoProvider,
) -> Result<PeerCertificate, CertificateFault> {
    refuse_long_chain(intermediates)?;
    if is_authority(leaf)? {
        return Err(CertificateFault::IsAuthority);
    }
    let parsed = rustls::server::ParsedCertificate::try_from(leaf).map_err(fault_of)?;
    let algorithms = provider.signature_verification_algorithms.all;
    let checked =
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms);
    let peer = match checked.map_err(fault_of) {
        Ok(()) => PeerCertificate::parse(leaf)?,
        // A node's or a user's certificate lacks the server usage: say what it is instead.
        Err(CertificateFault::WrongUsage { usage }) => {
            PeerCertificate::parse(leaf)?.require_serving_controller()?;
            return Err(CertificateFault::WrongUsage { usage });
        }
        Err(fault) => return Err(fault),
    };
    peer.require_serving_controller()?;
    Ok(peer)
}

fn refuse_long_chain(intermediates: &[CertificateDer<'_>]) -> Result<(), CertificateFault> {
    if intermediates.len() < CHAIN_LENGTH_MAX {
        return Ok(());
    }
    let reason = format!("more than {CHAIN_LENGTH_MAX} certificates");
    Err(CertificateFault::BadChain { reason })
}

/// What a rustls error says about a certificate.
pub(super) fn fault_of(error: Error) -> CertificateFault {
    let Error::InvalidCertificate(error) = error else {
        return CertificateFault::BadChain { reason: error.to_string() };
    };
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            CertificateFault::Expired { not_after: not_after.as_secs(), now: time.as_secs() }
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            CertificateFault::NotYetValid { not_before: not_before.as_secs(), now: time.as_secs() }
        }
        CertificateError::UnknownIssuer => CertificateFault::UntrustedIssuer,
        // The same name, another key: another CA that calls itself like ours.
        CertificateError::BadSignature => CertificateFault::UntrustedIssuer,
        CertificateError::Revoked => CertificateFault::Revoked,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            CertificateFault::WrongUsage { usage: "this kind of" }
        }
        CertificateError::Other(ref other) => match other.0.downcast_ref::<CertificateFault>() {
            Some(fault) => fault.clone(),
            None => CertificateFault::BadChain { reason: error.to_string() },
        },
        other => CertificateFault::BadChain { reason: other.to_string() },
    }
}

/// The same, for rustls: chosen so that the peer gets the TLS alert that tells it what is wrong.
fn error_of(fault: CertificateFault) -> Error {
    let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
    Error::InvalidCertificate(match fault {
        CertificateFault::Expired { not_after, now } => {
            CertificateError::ExpiredContext { time: at(now), not_after: at(not_after) }
        }
        CertificateFault::NotYetValid { not_before, now } => {
            CertificateError::NotValidYetContext { time: at(now), not_before: at(not_before) }
        }
        CertificateFault::Revoked => CertificateError::Revoked,
        CertificateFault::UntrustedIssuer => CertificateError::UnknownIssuer,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

/// [`ClientCheck`] as rustls wants it.
pub(super) struct ClientVerifier {
    pub(super) check: Arc<ClientCheck>,
    pub(super) provider: Arc<CryptoProvider>,
}

/// [`ServerCheck`] or [`PinCheck`] as rustls wants it.
pub(super) struct ServerVerifier<C> {
    pub(super) check: C,
    pub(super) provider: Arc<CryptoProvider>,
}

/// What a [`ServerVerifier`] asks.
pub(super) trait ServerRules: Send + Sync {
    fn accept(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerCertificate, CertificateFault>;
}

impl ServerRules for ServerCheck {
    fn accept(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerCertificate, CertificateFault> {
        self.check(leaf, intermediates, now)
    }
}

impl ServerRules for PinCheck {
    fn accept(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerCertificate, CertificateFault> {
        self.check(leaf, intermediates, now)
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientVerifier")
    }
}

impl<C> fmt::Debug for ServerVerifier<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerVerifier")
    }
}

/// TLS 1.2 is never offered; an implementation that asks for it anyway is refused.
fn no_tls12() -> Error {
    Error::PeerIncompatible(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig)
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        // A node without a certificate may enrol; `peer::Gate` refuses it everything else.
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.check.check(leaf, intermediates, now);
        checked.map(|_| ClientCertVerified::assertion()).map_err(error_of)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl<C: ServerRules> ServerCertVerifier for ServerVerifier<C> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let checked = self.check.accept(leaf, intermediates, now);
        checked.map(|_| ServerCertVerified::assertion()).map_err(error_of)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
