//! `fleet-controller join`: becoming one more controller of a cluster that exists.
//!
//! The key is made here and never leaves. The token's secret is sent only to a controller that proved,
//! in the TLS handshake, to hold the authority pinned in the token. What this controller needs to lead
//! one day, the authority's keys, it fetches afterwards with its own new certificate. Repeating a join
//! that was cut short is harmless: the same key gets the same number.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::Rejection;
use fleet_core::controller::Controller;
use fleet_core::name::NodeName;
use fleet_core::state::FORMAT;
use fleet_proto::convert::rejection::{from_status, leader_named};
use fleet_proto::transport::client::{Address, AddressError, PinnedDialError, dial_pinned};
use fleet_proto::transport::credentials::CredentialError;
use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE, MODE_PUBLIC};
use fleet_proto::transport::identity::{Identity, Role, key_pin_of};
use fleet_proto::transport::issued::{self, Accepted, IssuedFault};
use fleet_proto::transport::keys::{KeyError, OwnKey};
use fleet_proto::transport::limits::CALL_TIMEOUT;
use fleet_proto::transport::token::{JoinToken, TokenFormatError};
use fleet_proto::transport::{Dialer, Secret, SharedCredentials};
use fleet_proto::v1;
use fleet_proto::v1::controllers_client::ControllersClient;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use tonic::{Code, Status};

use crate::config::Config;
use crate::identity::ControllerIdentity;
use crate::owner::{self, OtherOwner};
use crate::pki::{Authority, Keyring, PkiError, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE};
use crate::raft::{self, FatalHook, RaftConfig, StartError, Versions};

/// The key of a join that is under way, below the folder of the keys.
const PENDING_KEY: &str = "join.key";
/// Controllers asked until one leads, and how often one that has no leader is asked again.
const TRIES_MAX: u32 = 20;
/// Pause before the next try.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What is typed: `TOKEN@HOST:PORT`.
#[derive(Debug, Clone)]
pub struct Invitation {
    pub token: JoinToken,
    pub address: Address,
}

/// Why a text is no invitation. Never repeats it: it holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    #[error("expected TOKEN@HOST:PORT, as `fleet controller add` prints it")]
    Form,
    #[error(transparent)]
    Token(#[from] TokenFormatError),
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let (token, address) = text.rsplit_once('@').ok_or(InvitationError::Form)?;
        Ok(Self { token: token.parse()?, address: address.parse()? })
    }
}

/// How a join ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub cluster: String,
    pub id: u64,
    /// It was a member before, and nothing was changed.
    pub already: bool,
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Joined { cluster, id, already } = self;
        match already {
            true => write!(f, "already controller {id} of {cluster}; nothing changed"),
            false => write!(
                f,
                "joined {cluster} as controller {id}; start it (`systemctl enable --now fleet-controller`), it votes once it has caught up"
            ),
        }
    }
}

/// Why a controller could not join. The messages are for the person at the keyboard.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(
        "{folder} belongs to controller {id} of {cluster}, whose authority is not the one in the token; use another data_dir"
    )]
    OtherCluster { folder: String, id: u64, cluster: String },
    #[error(
        "{0} holds keys, but controller.json is not there: this was a controller that lost its store. Remove it from its fleet (`fleet controller remove`), and join with an empty data_dir"
    )]
    Remains(String),
    #[error(transparent)]
    Owner(#[from] OtherOwner),
    #[error("advertise: it names no address by which the others could reach this controller")]
    NoAddress,
    #[error(transparent)]
    Dial(#[from] PinnedDialError),
    #[error("the controller at {address} refused: {reason}")]
    Refused { address: Address, reason: String },
    #[error("no controller that leads was found: {reason}; joining again is harmless")]
    NoLeader { reason: String },
    #[error("the authority's keys did not come: {0}; joining again is harmless")]
    Keys(String),
    #[error("the keys that came are not those of the pinned authority")]
    OtherAuthority,
    #[error(transparent)]
    Reply(#[from] IssuedFault),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Local(#[from] CredentialError),
    #[error(transparent)]
    Store(#[from] StartError),
    #[error("{0:#}")]
    Identity(anyhow::Error),
}

/// Joins the cluster that the invitation is from.
pub async fn join(config: &Config, invitation: &Invitation) -> Result<Joined, JoinError> {
    owner::check(&config.data_dir, "join …")?;
    let pki = config.pki_dir();
    if let Some(joined) = existing(config, invitation)? {
        return Ok(joined);
    }
    let address = config.advertise.first().ok_or(JoinError::NoAddress)?;
    files::create_private_folder(&config.data_dir)?;
    files::create_private_folder(&pki)?;
    let key = pending_key(&pki.join(PENDING_KEY))?;
    let (asked, reply) = ask(invitation, &key, address).await?;
    let id = reply.controller_id;
    let expected = NodeName::parse(&Controller::name(id)).map_err(|_| IssuedFault::Missing)?;
    let is_me = |identity: &Identity| identity.role == Role::Controller(expected.clone());
    let pin = invitation.token.pin;
    let accepted = issued::accept(reply.certificate, &key, &[pin], expected.as_str(), is_me)?;
    let cluster = accepted.leaf.identity.cluster.to_string();
    let keys = fetch_keys(&asked, &key, &accepted).await?;
    let pinned = keys.iter().any(|k| key_pin_of(&k.certificate_der) == Ok(pin));
    if !pinned {
        return Err(JoinError::OtherAuthority);
    }
    make_store(config, &cluster, id).await?;
    Authority::install(&pki, &keys)?;
    let key_pem = key.to_pem();
    files::write_atomic(&pki.join(SERVER_KEY_FILE), key_pem.expose().as_bytes(), MODE_PRIVATE)?;
    let certificate = accepted.certificate_pem.as_bytes();
    files::write_atomic(&pki.join(SERVER_CERTIFICATE_FILE), certificate, MODE_PUBLIC)?;
    let mut identity = ControllerIdentity::new(cluster.clone(), id);
    identity.joined_through = Some(asked.to_string());
    identity.store(&config.data_dir).map_err(JoinError::Identity)?;
    // From here on it is a member; a pending key that stays is of no use to anybody.
    drop(std::fs::remove_file(pki.join(PENDING_KEY)));
    Ok(Joined { cluster, id, already: false })
}

/// The membership there is, if it is of the same fleet; an error if it is of another.
fn existing(config: &Config, invitation: &Invitation) -> Result<Option<Joined>, JoinError> {
    let pki = config.pki_dir();
    let Some(identity) = ControllerIdentity::find(&config.data_dir).map_err(JoinError::Identity)?
    else {
        let unfinished = pki.join(PENDING_KEY).exists();
        return match pki.join(SERVER_KEY_FILE).exists() && !unfinished {
            true => Err(JoinError::Remains(config.data_dir.display().to_string())),
            false => Ok(None),
        };
    };
    let ControllerIdentity { cluster, node: id, .. } = identity;
    if Keyring::load(&pki)?.trusts(invitation.token.pin) {
        return Ok(Some(Joined { cluster, id, already: true }));
    }
    let folder = config.data_dir.display().to_string();
    Err(JoinError::OtherCluster { folder, id, cluster })
}

/// The key of an earlier try, or a new one.
fn pending_key(path: &Path) -> Result<OwnKey, JoinError> {
    if path.exists() {
        let pem = String::from_utf8(files::read_private(path)?).unwrap_or_default();
        return Ok(OwnKey::from_pem(&Secret::new(pem))?);
    }
    let key = OwnKey::generate()?;
    files::write_atomic(path, key.to_pem().expose().as_bytes(), MODE_PRIVATE)?;
    Ok(key)
}

/// Asks until the leader has answered. Gives its address too.
async fn ask(
    invitation: &Invitation,
    key: &OwnKey,
    address: &Address,
) -> Result<(Address, v1::JoinControllerResponse), JoinError> {
    let token = &invitation.token;
    let mut target = invitation.address.clone();
    let mut reason = String::new();
    for _ in 0..TRIES_MAX {
        let connection = match dial_pinned(&target, token.pin).await {
            Ok(connection) => connection,
            // One that was only named by another may be gone meanwhile.
            Err(error) if target != invitation.address => {
                reason = error.to_string();
                target = invitation.address.clone();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut request = tonic::Request::new(v1::JoinControllerRequest {
            token_id: token.id.to_string(),
            secret: token.secret.expose().to_owned(),
            csr_der: key.signing_request()?,
            address: address.to_string(),
            format: FORMAT.to_owned(),
        });
        request.set_timeout(CALL_TIMEOUT);
        let mut client = EnrollmentClient::new(connection.channel);
        let status = match client.join_controller(request).await {
            Ok(reply) => return Ok((target, reply.into_inner())),
            Err(status) => status,
        };
        if !may_pass(&status) {
            let reason = status.message().to_owned();
            return Err(JoinError::Refused { address: target, reason });
        }
        reason = status.message().to_owned();
        match leader_named(&status).and_then(|text| text.parse().ok()) {
            Some(leader) if leader != target => target = leader,
            _ => tokio::time::sleep(RETRY_PAUSE).await,
        }
    }
    Err(JoinError::NoLeader { reason })
}

/// Whether the same request may be answered in a moment: nobody leads, or the fleet has just begun.
fn may_pass(status: &Status) -> bool {
    let unanswered = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    unanswered.contains(&status.code())
        || matches!(from_status(status), Some(Rejection::NotNow { .. }))
}

/// The authority's keys, by mutual TLS from the controller that admitted this one.
async fn fetch_keys(
    address: &Address,
    key: &OwnKey,
    accepted: &Accepted,
) -> Result<Vec<v1::AuthorityKey>, JoinError> {
    let credentials = fleet_proto::transport::Credentials::from_pem(
        accepted.certificate_pem.as_bytes(),
        key.to_pem().expose().as_bytes(),
        accepted.authority_pem.as_bytes(),
    )?;
    let dialer = Dialer::new(vec![address.clone()], SharedCredentials::new(credentials)?);
    let mut request = tonic::Request::new(v1::GetAuthorityRequest {});
    request.set_timeout(CALL_TIMEOUT);
    let reply = ControllersClient::new(dialer.channel()).get_authority(request).await;
    reply.map(|reply| reply.into_inner().keys).map_err(|status| {
        let dialled = dialer.last_error().map(|error| error.to_string());
        JoinError::Keys(dialled.unwrap_or_else(|| status.message().to_owned()))
    })
}

/// An empty store that waits for a leader. From now on an empty folder is never taken for it.
async fn make_store(config: &Config, cluster: &str, id: u64) -> Result<(), JoinError> {
    let raft = raft::start(RaftConfig {
        versions: Versions::BUILT,
        cluster: cluster.to_owned(),
        node: id,
        dir: config.data_dir.join("raft"),
        create: true,
        members: BTreeMap::new(),
        connector: Arc::new(raft::NoPeers),
        fatal: FatalHook::exit_process(),
    })
    .await?;
    raft.shutdown().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_bad_invitation_is_explained_without_its_secret() {
        assert_eq!("fleet1.x".parse::<Invitation>().unwrap_err(), InvitationError::Form);
        let secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0MDE";
        for text in [
            format!("fleet1.token-a.{secret}@fleet.lab:7443"),
            format!("fleet1.token-a.{secret}.short@fleet.lab:7443"),
            format!("fleet1.token-a.{secret}.{secret}@fleet.lab"),
        ] {
            let error = text.parse::<Invitation>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
        }
        let good = format!("fleet1.token-a.{secret}.{secret}@[::1]:7443");
        let invitation: Invitation = good.parse().unwrap();
        assert_eq!(invitation.address.to_string(), "[::1]:7443");
        assert!(!format!("{invitation:?}").contains(&format!("Secret(\"{secret}")));
    }
}
