//! Join tokens: minted for an admin, checked when a node joins.
//!
//! The replicated record ([`fleet_core::node::JoinToken`]) holds only a hash of the secret. These
//! functions are pure but for the randomness of a new token; that a name is used once is decided by
//! the state machine when `RedeemJoinToken` is applied.

use fleet_core::command::{CreateControllerToken, CreateJoinToken};
use fleet_core::id::TokenId;
use fleet_core::name::NodeName;
use fleet_core::node::{JoinToken as TokenRecord, MachineIdentity};
use fleet_core::time::{Millis, Timestamp};
use fleet_proto::transport::identity::sha256;
use fleet_proto::transport::keys::alphabet_letter;
use fleet_proto::transport::secret::Secret;
use fleet_proto::transport::token::{JoinToken, SECRET_BYTES, SpkiPin, secret_text};

use super::{PkiError, random};

/// How long a token is good unless told otherwise.
pub const TOKEN_TTL_DEFAULT: Millis = Millis::hours(1);
/// The longest a token may be good.
pub const TOKEN_TTL_MAX: Millis = Millis::days(7);
/// Node names in one token.
pub const TOKEN_NAMES_MAX: usize = 256;
/// Letters in a token's id.
const ID_LETTERS: usize = 10;

/// Why a token is not minted or not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("names: 1 to {TOKEN_NAMES_MAX} node names are needed, found {found}")]
    Names { found: usize },
    #[error("names: {name} is there twice")]
    DuplicateName { name: NodeName },
    #[error("ttl: must be more than 0 and at most {TOKEN_TTL_MAX}")]
    Ttl,
    #[error("the join token is unknown or its secret is wrong")]
    Wrong,
    #[error("the join token expired {ago} ago; make a new one with `fleet node token create`")]
    Expired { ago: Millis },
    #[error("the join token does not allow the name {name}; it allows: {allowed}")]
    NameNotAllowed { name: NodeName, allowed: String },
    #[error("the join token was already used for {name}, by another machine")]
    AlreadyUsed { name: NodeName },
    #[error(transparent)]
    Random(#[from] RandomFailed),
}

/// The system gave no random bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RandomFailed(String);

impl TokenError {
    /// The refusal as the agent gets it.
    pub fn to_status(&self) -> tonic::Status {
        let code = match self {
            TokenError::Names { .. } | TokenError::DuplicateName { .. } | TokenError::Ttl => {
                tonic::Code::InvalidArgument
            }
            TokenError::Wrong | TokenError::Expired { .. } => tonic::Code::Unauthenticated,
            TokenError::NameNotAllowed { .. } => tonic::Code::PermissionDenied,
            TokenError::AlreadyUsed { .. } => tonic::Code::AlreadyExists,
            TokenError::Random(_) => tonic::Code::Internal,
        };
        tonic::Status::new(code, self.to_string())
    }
}

/// A new token: the text for the admin, and the command that makes it known.
#[derive(Debug, Clone)]
pub struct MintedToken {
    /// Shown once, never stored.
    pub text: Secret,
    pub command: CreateJoinToken,
}

/// Makes a token for these node names.
pub fn mint_token(
    pin: SpkiPin,
    names: Vec<NodeName>,
    ttl: Millis,
) -> Result<MintedToken, TokenError> {
    if names.is_empty() || names.len() > TOKEN_NAMES_MAX {
        return Err(TokenError::Names { found: names.len() });
    }
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(TokenError::DuplicateName { name: name.clone() });
        }
    }
    if ttl == Millis::ZERO || ttl > TOKEN_TTL_MAX {
        return Err(TokenError::Ttl);
    }
    let (id, text, secret_sha256) = draw(pin)?;
    Ok(MintedToken { text, command: CreateJoinToken { id, secret_sha256, names, ttl } })
}

/// A new token for a controller: the text for the admin, and the command that makes it known.
#[derive(Debug, Clone)]
pub struct MintedControllerToken {
    /// Shown once, never stored.
    pub text: Secret,
    pub command: CreateControllerToken,
}

/// Makes a token for one more controller.
pub fn mint_controller_token(
    pin: SpkiPin,
    ttl: Millis,
) -> Result<MintedControllerToken, TokenError> {
    if ttl == Millis::ZERO || ttl > TOKEN_TTL_MAX {
        return Err(TokenError::Ttl);
    }
    let (id, text, secret_sha256) = draw(pin)?;
    Ok(MintedControllerToken { text, command: CreateControllerToken { id, secret_sha256, ttl } })
}

/// A drawn token: its id, its text, and what is stored of its secret.
fn draw(pin: SpkiPin) -> Result<(TokenId, Secret, String), TokenError> {
    let failed = |error: PkiError| TokenError::Random(RandomFailed(error.to_string()));
    let letters: [u8; ID_LETTERS] = random().map_err(failed)?;
    let letters: String = letters.iter().map(|byte| alphabet_letter(*byte)).collect();
    let id = TokenId::parse(&format!("{}{letters}", TokenId::PREFIX))
        .map_err(|error| TokenError::Random(RandomFailed(error.to_string())))?;
    let secret = secret_text(&random::<SECRET_BYTES>().map_err(failed)?);
    let secret_sha256 = hash_of(secret.expose());
    Ok((id.clone(), JoinToken { id, secret, pin }.to_text(), secret_sha256))
}

/// Whether this secret opens this token for this name and machine now. Says nothing about the token
/// to somebody who does not know the secret.
pub fn verify_secret(
    record: &TokenRecord,
    secret: &str,
    name: &NodeName,
    machine: &MachineIdentity,
    now: Timestamp,
) -> Result<(), TokenError> {
    if !is_secret_of(secret, &record.secret_sha256) {
        return Err(TokenError::Wrong);
    }
    if now >= record.expires_at {
        return Err(TokenError::Expired { ago: now.since(record.expires_at) });
    }
    if !record.names.contains(name) {
        let allowed: Vec<&str> = record.names.iter().map(NodeName::as_str).collect();
        let allowed = allowed.join(", ");
        return Err(TokenError::NameNotAllowed { name: name.clone(), allowed });
    }
    match record.used.get(name) {
        Some(earlier) if earlier != machine => Err(TokenError::AlreadyUsed { name: name.clone() }),
        Some(_) | None => Ok(()),
    }
}

/// The command line to paste on the new node.
pub fn join_line(address: &str, text: &Secret, name: &NodeName) -> Secret {
    Secret::new(format!("fleet-agent join {address} --token {} --name {name}", text.expose()))
}

/// The command line to paste on the new controller, as root: what root itself would make, the service could not open.
pub fn controller_join_line(address: &str, text: &Secret) -> Secret {
    Secret::new(format!("runuser -u fleet -- fleet-controller join {}@{address}", text.expose()))
}

/// Whether `sha256` was stored for this secret. Takes as long either way.
pub fn is_secret_of(secret: &str, sha256: &str) -> bool {
    are_equal_hashes(&hash_of(secret), sha256)
}

/// Whether two hashes are the same. Takes as long either way.
pub fn are_equal_hashes(shown: &str, stored: &str) -> bool {
    equal_in_constant_time(shown.as_bytes(), stored.as_bytes())
}

/// What is stored of a secret.
pub fn hash_of(secret: &str) -> String {
    hex::encode(sha256(secret.as_bytes()))
}

fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |sum, (x, y)| std::hint::black_box(sum | (x ^ y)));
    a.len() == b.len() && differing == 0
}
