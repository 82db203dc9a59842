//! Who a certificate says its owner is: one URI SAN, `fleet://<cluster>/<role>/<name>`.
//!
//! Everything that reads an identity out of a certificate goes through [`PeerCertificate::parse`].
//! It says nothing about trust: the chain is checked by [`super::verify`].

use std::fmt;
use std::str::FromStr;

use fleet_core::id::ClusterId;
use fleet_core::name::{NodeName, UserName};
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, Validity, X509Certificate};

use super::limits::CERTIFICATE_BYTES_MAX;
use super::token::SpkiPin;

const SCHEME: &str = "fleet://";
/// Longest identity URI accepted, in bytes.
const URI_BYTES_MAX: usize = 256;

/// What a certificate's owner is in the fleet, and its name there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A controller, by its id: may serve, and may be a peer of other controllers.
    Controller(NodeName),
    /// An agent, by its node's name.
    Node(NodeName),
    /// A person, by account name.
    User(UserName),
    /// Signs audit exports for a controller; can open no connection.
    AuditSigner(NodeName),
}

impl Role {
    /// The word used for this role in the URI and in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Role::Controller(_) => "controller",
            Role::Node(_) => "node",
            Role::User(_) => "user",
            Role::AuditSigner(_) => "audit",
        }
    }

    /// The owner's name within its role.
    pub fn name(&self) -> &str {
        match self {
            Role::Controller(name) | Role::Node(name) | Role::AuditSigner(name) => name.as_str(),
            Role::User(name) => name.as_str(),
        }
    }
}

/// A cluster and a role in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub cluster: ClusterId,
    pub role: Role,
}

impl Identity {
    pub fn new(cluster: ClusterId, role: Role) -> Self {
        Self { cluster, role }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role.kind(), self.role.name())
    }
}

/// Why a text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} is not a fleet identity: {rule}")]
pub struct IdentityError {
    pub uri: String,
    pub rule: String,
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(uri: &str) -> Result<Self, IdentityError> {
        let bad =
            |rule: String| IdentityError { uri: uri.chars().take(URI_BYTES_MAX).collect(), rule };
        if uri.len() > URI_BYTES_MAX {
            return Err(bad(format!("longer than {URI_BYTES_MAX} bytes")));
        }
        let rest = uri.strip_prefix(SCHEME).ok_or_else(|| bad(format!("no {SCHEME}")))?;
        let parts: Vec<&str> = rest.split('/').collect();
        let &[cluster, kind, name] = parts.as_slice() else {
            return Err(bad("not of the form fleet://CLUSTER/ROLE/NAME".to_owned()));
        };
        let cluster = ClusterId::parse(cluster).map_err(|e| bad(e.to_string()))?;
        let node = || NodeName::parse(name).map_err(|e| bad(e.to_string()));
        let role = match kind {
            "controller" => Role::Controller(node()?),
            "node" => Role::Node(node()?),
            "user" => Role::User(UserName::parse(name).map_err(|e| bad(e.to_string()))?),
            "audit" => Role::AuditSigner(node()?),
            _ => return Err(bad("no such role".to_owned())),
        };
        Ok(Self { cluster, role })
    }
}

/// Why a certificate is refused. The messages are shown to people: each says what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    #[error("the certificate cannot be read: {reason}")]
    Unreadable { reason: String },
    #[error("the certificate belongs to a certificate authority, not to a peer")]
    IsAuthority,
    #[error("the certificate was not issued by an authority that is trusted here")]
    UntrustedIssuer,
    #[error("the certificate's signature or chain is wrong: {reason}")]
    BadChain { reason: String },
    #[error("the certificate expired at unix time {not_after}, it is now {now}")]
    Expired { not_after: u64, now: u64 },
    #[error(
        "the certificate is valid from unix time {not_before}, it is now {now}: a clock is wrong"
    )]
    NotYetValid { not_before: u64, now: u64 },
    #[error("the certificate names no identity (no URI SAN)")]
    NoIdentity,
    #[error("the certificate names {count} identities (URI SANs), exactly one is allowed")]
    ManyIdentities { count: usize },
    #[error(transparent)]
    BadIdentity(#[from] IdentityError),
    #[error("the certificate belongs to cluster {found}, this is {expected}")]
    OtherCluster { expected: ClusterId, found: ClusterId },
    #[error("the certificate's owner is a {found}, expected a {expected}")]
    WrongRole { expected: &'static str, found: &'static str },
    #[error("the certificate is not marked for {usage} authentication")]
    WrongUsage { usage: &'static str },
    #[error("the certificate was revoked")]
    Revoked,
    #[error("no certificate in the presented chain has the pinned key {expected}; found {found}")]
    PinMismatch { expected: SpkiPin, found: String },
}

impl CertificateFault {
    /// A stable word for why a certificate was refused, for counts and the audit log.
    pub fn code(&self) -> &'static str {
        match self {
            CertificateFault::Unreadable { .. } => "certificate_unreadable",
            CertificateFault::IsAuthority => "certificate_is_authority",
            CertificateFault::UntrustedIssuer => "certificate_untrusted",
            CertificateFault::BadChain { .. } => "certificate_bad_chain",
            CertificateFault::Expired { .. } => "certificate_expired",
            CertificateFault::NotYetValid { .. } => "certificate_not_yet_valid",
            CertificateFault::NoIdentity
            | CertificateFault::ManyIdentities { .. }
            | CertificateFault::BadIdentity(_) => "certificate_bad_identity",
            CertificateFault::OtherCluster { .. } => "certificate_other_cluster",
            CertificateFault::WrongRole { .. } => "certificate_wrong_role",
            CertificateFault::WrongUsage { .. } => "certificate_wrong_usage",
            CertificateFault::Revoked => "certificate_revoked",
            CertificateFault::PinMismatch { .. } => "certificate_pin_mismatch",
        }
    }
}

/// What a certificate says, read but not yet trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    pub identity: Identity,
    /// Hexadecimal, lower case.
    pub serial: String,
    /// Unix seconds.
    pub not_before: u64,
    pub not_after: u64,
    /// SHA-256 of the public key (SubjectPublicKeyInfo).
    pub key_pin: SpkiPin,
    /// Extended key usage, explicitly present.
    pub client_auth: bool,
    pub server_auth: bool,
}

impl PeerCertificate {
    /// Reads a leaf certificate; refuses CAs and anything but exactly one identity.
    pub fn parse(der: &[u8]) -> Result<Self, CertificateFault> {
        let cert = parse_x509(der)?;
        if cert.is_ca() {
            return Err(CertificateFault::IsAuthority);
        }
        let identity = identity_of(&cert)?;
        let usage = cert.extended_key_usage().map_err(unreadable)?;
        let (client_auth, server_auth) =
            usage.map_or((false, false), |u| (u.value.client_auth, u.value.server_auth));
        Ok(Self {
            identity,
            serial: hex::encode(cert.raw_serial()),
            not_before: unsigned(cert.validity().not_before.timestamp()),
            not_after: unsigned(cert.validity().not_after.timestamp()),
            key_pin: SpkiPin::of_spki(cert.public_key().raw),
            client_auth,
            server_auth,
        })
    }

    /// Refuses another cluster's certificate.
    pub fn require_cluster(&self, expected: &ClusterId) -> Result<(), CertificateFault> {
        if self.identity.cluster == *expected {
            return Ok(());
        }
        Err(CertificateFault::OtherCluster {
            expected: expected.clone(),
            found: self.identity.cluster.clone(),
        })
    }

    /// Refuses anyone but a controller that may serve.
    pub fn require_serving_controller(&self) -> Result<(), CertificateFault> {
        let Role::Controller(_) = self.identity.role else {
            return Err(CertificateFault::WrongRole {
                expected: "controller",
                found: self.identity.role.kind(),
            });
        };
        if self.server_auth {
            Ok(())
        } else {
            Err(CertificateFault::WrongUsage { usage: "server" })
        }
    }

    /// Refuses a certificate that is not meant to open connections.
    pub fn require_client(&self) -> Result<(), CertificateFault> {
        if let Role::AuditSigner(_) = self.identity.role {
            return Err(CertificateFault::WrongRole {
                expected: "controller, node or user",
                found: self.identity.role.kind(),
            });
        }
        if self.client_auth {
            Ok(())
        } else {
            Err(CertificateFault::WrongUsage { usage: "client" })
        }
    }
}

/// The pin of any certificate's public key, CA or leaf.
pub fn key_pin_of(der: &[u8]) -> Result<SpkiPin, CertificateFault> {
    Ok(SpkiPin::of_spki(parse_x509(der)?.public_key().raw))
}

/// Whether the key of the certificate `by` signed `der`.
pub fn is_signed_by(der: &[u8], by: &[u8]) -> Result<bool, CertificateFault> {
    let by = parse_x509(by)?;
    Ok(parse_x509(der)?.verify_signature(Some(by.public_key())).is_ok())
}

/// Whether the certificate belongs to an authority.
pub fn is_authority(der: &[u8]) -> Result<bool, CertificateFault> {
    Ok(parse_x509(der)?.is_ca())
}

/// From when to when any certificate is good, CA or leaf, in Unix seconds.
pub fn validity_of(der: &[u8]) -> Result<(u64, u64), CertificateFault> {
    let cert = parse_x509(der)?;
    let Validity { not_before, not_after } = cert.validity();
    Ok((unsigned(not_before.timestamp()), unsigned(not_after.timestamp())))
}

/// SHA-256 of some bytes, for pins and hashes of secrets.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub(super) fn parse_x509(der: &[u8]) -> Result<X509Certificate<'_>, CertificateFault> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        let reason = format!("{} bytes, at most {CERTIFICATE_BYTES_MAX} are allowed", der.len());
        return Err(CertificateFault::Unreadable { reason });
    }
    let (rest, cert) = X509Certificate::from_der(der).map_err(unreadable)?;
    if rest.is_empty() {
        Ok(cert)
    } else {
        Err(CertificateFault::Unreadable { reason: "bytes after its end".to_owned() })
    }
}

fn identity_of(cert: &X509Certificate<'_>) -> Result<Identity, CertificateFault> {
    let san = cert.subject_alternative_name().map_err(unreadable)?;
    let names = san.as_ref().map(|s| s.value.general_names.as_slice()).unwrap_or_default();
    let uris: Vec<&str> = names
        .iter()
        .filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None })
        .collect();
    match uris.as_slice() {
        [] => Err(CertificateFault::NoIdentity),
        [uri] => Ok(uri.parse::<Identity>()?),
        many => Err(CertificateFault::ManyIdentities { count: many.len() }),
    }
}

fn unreadable(error: impl fmt::Display) -> CertificateFault {
    CertificateFault::Unreadable { reason: error.to_string() }
}

fn unsigned(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0)
}
