//! The text of a join token and the pin in it: `fleet1.<token id>.<secret>.<pin>`.
//!
//! The pin is SHA-256 over the CA's public key (SubjectPublicKeyInfo); with it a new node knows
//! that it talks to the right fleet before it says the secret.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fleet_core::id::TokenId;

use super::identity::sha256;
use super::secret::Secret;

const VERSION: &str = "fleet1";
/// Longest token text accepted, in bytes.
const TOKEN_BYTES_MAX: usize = 256;
/// Bytes of randomness in a secret.
pub const SECRET_BYTES: usize = 32;

/// SHA-256 of a public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpkiPin([u8; 32]);

impl SpkiPin {
    /// The pin of a DER SubjectPublicKeyInfo.
    pub fn of_spki(spki_der: &[u8]) -> Self {
        Self(sha256(spki_der))
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for SpkiPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for SpkiPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpkiPin({self})")
    }
}

impl FromStr for SpkiPin {
    type Err = TokenFormatError;

    fn from_str(text: &str) -> Result<Self, TokenFormatError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenFormatError::Pin)?;
        Ok(Self(bytes.try_into().map_err(|_| TokenFormatError::Pin)?))
    }
}

/// Why a text is not a join token. Never repeats the text: it may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFormatError {
    #[error("the join token is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "the join token does not have the form {VERSION}.ID.SECRET.PIN: was it cut off when copied?"
    )]
    Form,
    #[error(
        "the join token does not begin with {VERSION}: it may be from another version of fleet"
    )]
    Version,
    #[error("the id in the join token is not a token id")]
    Id,
    #[error("the secret in the join token is damaged")]
    Secret,
    #[error("the pin in the join token is damaged: it must be 43 characters of base64url")]
    Pin,
}

/// A join token, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub id: TokenId,
    pub secret: Secret,
    pub pin: SpkiPin,
}

impl JoinToken {
    /// The text to hand to the person who joins a node. It contains the secret.
    pub fn to_text(&self) -> Secret {
        Secret::new(format!("{VERSION}.{}.{}.{}", self.id, self.secret.expose(), self.pin))
    }
}

impl FromStr for JoinToken {
    type Err = TokenFormatError;

    fn from_str(text: &str) -> Result<Self, TokenFormatError> {
        let text = text.trim();
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenFormatError::TooLong);
        }
        let parts: Vec<&str> = text.split('.').collect();
        if !text.starts_with(VERSION) {
            return Err(TokenFormatError::Version);
        }
        let &[version, id, secret, pin] = parts.as_slice() else {
            return Err(TokenFormatError::Form);
        };
        if version != VERSION {
            return Err(TokenFormatError::Version);
        }
        let id = TokenId::parse(id).map_err(|_| TokenFormatError::Id)?;
        let bytes = URL_SAFE_NO_PAD.decode(secret).map_err(|_| TokenFormatError::Secret)?;
        if bytes.len() != SECRET_BYTES {
            return Err(TokenFormatError::Secret);
        }
        Ok(Self { id, secret: Secret::new(secret.to_owned()), pin: pin.parse()? })
    }
}

/// The text of a secret made of these random bytes.
pub fn secret_text(bytes: &[u8; SECRET_BYTES]) -> Secret {
    Secret::new(URL_SAFE_NO_PAD.encode(bytes))
}
