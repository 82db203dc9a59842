//! Keys made where they are used, and the request to have one certified. Agent and CLI use it.

use fleet_core::id::ClusterId;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

use super::identity::CertificateFault;
use super::identity::key_pin_of;
use super::secret::Secret;
use super::token::SpkiPin;

/// Why a key cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub struct KeyError {
    action: &'static str,
    #[source]
    source: rcgen::Error,
}

fn failed(action: &'static str) -> impl FnOnce(rcgen::Error) -> KeyError {
    move |source| KeyError { action, source }
}

/// An own private key (P-256). It never leaves the machine.
pub struct OwnKey(KeyPair);

impl OwnKey {
    /// Makes a new key.
    pub fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        Ok(Self(pair.map_err(failed("make a key"))?))
    }

    /// Reads a key from its PEM text.
    pub fn from_pem(pem: &Secret) -> Result<Self, KeyError> {
        Ok(Self(KeyPair::from_pem(pem.expose()).map_err(failed("read the key"))?))
    }

    /// The PEM text, for the key's file.
    pub fn to_pem(&self) -> Secret {
        Secret::new(self.0.serialize_pem())
    }

    /// A signing request (PKCS#10, DER). It carries no name: the controller decides that.
    pub fn signing_request(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request =
            params.serialize_request(&self.0).map_err(failed("make a signing request"))?;
        Ok(request.der().to_vec())
    }

    /// Whether this certificate is about this key.
    pub fn matches(&self, certificate_der: &[u8]) -> Result<bool, CertificateFault> {
        let own = SpkiPin::of_spki(&rcgen::PublicKeyData::subject_public_key_info(&self.0));
        Ok(key_pin_of(certificate_der)? == own)
    }
}

impl std::fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnKey(redacted)")
    }
}

/// PEM of a DER certificate.
pub fn certificate_pem(der: &[u8]) -> String {
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in body.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// Draws the id of a new cluster from these random bytes: `fleet-` and eight letters or digits.
pub fn cluster_id(random: [u8; 8]) -> ClusterId {
    let text: String = random.iter().map(|byte| alphabet_letter(*byte)).collect();
    match ClusterId::parse(&format!("{}{text}", ClusterId::PREFIX)) {
        Ok(id) => id,
        Err(error) => unreachable!("the alphabet holds only legal letters: {error}"),
    }
}

/// A letter or digit that cannot be mistaken for another (no i, l, o, 0, 1).
pub fn alphabet_letter(byte: u8) -> char {
    const ALPHABET: &[u8; 31] = b"23456789abcdefghjkmnpqrstuvwxyz";
    char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])
}
