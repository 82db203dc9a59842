//! A certificate signing request: only its key and its signature count.

use fleet_proto::transport::token::SpkiPin;
use rcgen::{PublicKeyData, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::{PkiError, REQUEST_BYTES_MAX};

/// A request whose sender owns the key in it. Names and extensions it asked for are gone.
#[derive(Debug, Clone)]
pub struct SigningRequest {
    pub(super) key: SubjectPublicKeyInfo,
}

impl SigningRequest {
    /// Reads PKCS#10 DER and checks its signature; only P-256 and Ed25519 keys are accepted.
    pub fn parse(der: &[u8]) -> Result<Self, PkiError> {
        let bad = |reason: String| PkiError::Request { reason };
        if der.len() > REQUEST_BYTES_MAX {
            let found = der.len();
            return Err(bad(format!("{found} bytes, at most {REQUEST_BYTES_MAX} are allowed")));
        }
        let (rest, request) = X509CertificationRequest::from_der(der)
            .map_err(|error| bad(format!("not a PKCS#10 request: {error}")))?;
        if !rest.is_empty() {
            return Err(bad("bytes after the end of the request".to_owned()));
        }
        request
            .verify_signature()
            .map_err(|_| bad("its signature does not belong to the key in it".to_owned()))?;
        let key =
            SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
                .map_err(|error| bad(format!("public key: {error}")))?;
        if key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256
            && key.algorithm() != &rcgen::PKCS_ED25519
        {
            return Err(bad("public key: only P-256 and Ed25519 are accepted".to_owned()));
        }
        Ok(Self { key })
    }

    /// The pin of the key in the request.
    pub fn key_pin(&self) -> SpkiPin {
        SpkiPin::of_spki(&self.key.subject_public_key_info())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_hostile_bytes::throw_at;
    use fleet_proto::transport::keys::OwnKey;

    use super::*;

    #[test]
    fn hostile_signing_requests() {
        let good = OwnKey::generate().unwrap().signing_request().unwrap();
        let signed = |der: &[u8]| {
            let (_, request) = X509CertificationRequest::from_der(der).unwrap();
            request.certification_request_info.raw.to_vec()
        };
        let good_part = signed(&good);
        throw_at(&[good], |der| {
            // Somebody who changes the key, or anything else that is signed, cannot sign for it.
            let read = SigningRequest::parse(der);
            assert!(read.is_err() || signed(der) == good_part, "a forged one");
            read.is_ok()
        });
    }
}
