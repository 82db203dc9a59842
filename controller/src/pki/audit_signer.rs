//! Signs the trailer of audit exports and the fleet's incarnation, with a key and certificate of its own: the CA key signs
//! certificates only. `fleet audit verify` checks with
//! [`fleet_proto::transport::signature::verify_audit_signature`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::files::{self, MODE_PRIVATE, MODE_PUBLIC};
use fleet_proto::transport::identity::{Identity, PeerCertificate, Role, is_signed_by};
use fleet_proto::transport::keys::{OwnKey, certificate_pem};
use fleet_proto::transport::secret::Secret;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{Authority, PkiError, crypto};

const KEY_FILE: &str = "audit.key";
const CERTIFICATE_FILE: &str = "audit.crt";

/// A signature and who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSignature {
    /// The signer's certificate, DER.
    pub certificate_der: Vec<u8>,
    /// ECDSA P-256 with SHA-256, ASN.1.
    pub signature: Vec<u8>,
}

/// The audit signer of one controller.
pub struct AuditSigner(ArcSwap<Pair>);

struct Pair {
    key: KeyPair,
    certificate_der: Vec<u8>,
}

impl fmt::Debug for AuditSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditSigner(redacted)")
    }
}

impl AuditSigner {
    /// The signer from `folder`; made there when there is none, or its certificate is used up or of another
    /// authority.
    pub fn load_or_create(
        authority: &Authority,
        folder: &Path,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let pair = Pair::load_or_create(authority, folder, id, now)?;
        Ok(Self(ArcSwap::from_pointee(pair)))
    }

    /// The same for the one that is in use.
    pub fn renew(
        &self,
        authority: &Authority,
        folder: &Path,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<(), PkiError> {
        self.0.store(Arc::new(Pair::load_or_create(authority, folder, id, now)?));
        Ok(())
    }

    /// Signs the bytes of a trailer, or of an incarnation's text.
    pub fn sign(&self, message: &[u8]) -> Result<AuditSignature, PkiError> {
        let pair = self.0.load();
        let signature = pair.key.sign(message).map_err(crypto("sign an audit export"))?;
        Ok(AuditSignature { certificate_der: pair.certificate_der.clone(), signature })
    }
}

impl Pair {
    fn load_or_create(
        authority: &Authority,
        folder: &Path,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let key_path = folder.join(KEY_FILE);
        let certificate_path = folder.join(CERTIFICATE_FILE);
        if certificate_path.exists()
            && let Some(signer) = Self::load(authority, &key_path, &certificate_path, id, now)?
        {
            return Ok(signer);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("make a key"))?;
        let issued = match authority.issue_audit_signer(&key, id, now) {
            Ok(issued) => issued,
            // Rather the clock than ten years: an old signer serves until somebody sets it right.
            Err(error @ PkiError::AuthorityExpired { .. }) if certificate_path.exists() => {
                let whenever = Timestamp(0);
                let old = Self::load(authority, &key_path, &certificate_path, id, whenever)?;
                return old.ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let key_pem = Secret::new(key.serialize_pem());
        let certificate = certificate_pem(&issued.certificate_der);
        files::write_atomic(&key_path, key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&certificate_path, certificate.as_bytes(), MODE_PUBLIC)?;
        Ok(Self { key, certificate_der: issued.certificate_der })
    }

    /// `None` when the pair on disk is whole but not to be used any more.
    fn load(
        authority: &Authority,
        key_path: &Path,
        certificate_path: &Path,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Option<Self>, PkiError> {
        let damaged =
            |path: &Path, reason: String| PkiError::Damaged { path: path.to_owned(), reason };
        let pem = files::read_limited(certificate_path)?;
        let certificate = CertificateDer::from_pem_slice(&pem)
            .map_err(|error| damaged(certificate_path, error.to_string()))?;
        let key_pem = String::from_utf8(files::read_private(key_path)?)
            .map_err(|_| damaged(key_path, "not text".to_owned()))?;
        let key =
            KeyPair::from_pem(&key_pem).map_err(|error| damaged(key_path, error.to_string()))?;
        let own = OwnKey::from_pem(&Secret::new(key_pem))
            .map_err(|error| damaged(key_path, error.to_string()))?;
        let leaf = PeerCertificate::parse(&certificate)?;
        let expected = Identity::new(authority.cluster().clone(), Role::AuditSigner(id.clone()));
        let usable = own.matches(&certificate)?
            && leaf.identity == expected
            && is_signed_by(&certificate, authority.certificate_der())?
            && now.0 / 1000 < leaf.not_after;
        Ok(usable.then(|| Self { key, certificate_der: certificate.to_vec() }))
    }
}
