//! How a node becomes a member of a fleet and stays one: `fleet-agent join`, and renewal.
//!
//! Called by `fleet-agent join` ([`join`]) and by the running agent ([`store::IdentityFolder::load`],
//! [`renewal::Renewal`]). The key is made here and never leaves. The token's secret is sent only to
//! a controller that proved, in the TLS handshake, to hold the CA pinned in the token. An expired
//! certificate stops no job: nothing here touches jobs.

pub(crate) mod leader;
pub mod moved;
pub mod renewal;
pub mod store;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet_core::Rejection;
use fleet_core::id::ClusterId;
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::convert::rejection::{from_status, leader_named};
use fleet_proto::transport::client::{Address, PinnedDialError, dial_pinned};
use fleet_proto::transport::identity::{Identity, Role};
use fleet_proto::transport::issued::{self, Accepted, IssuedFault};
use fleet_proto::transport::keys::{KeyError, OwnKey};
use fleet_proto::transport::limits::CALL_TIMEOUT;
use fleet_proto::transport::token::JoinToken;
use fleet_proto::v1::JoinRequest;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use tonic::transport::Channel;

use store::{IdentityFolder, IdentityRecord, StoreError};

/// Controllers asked, each named by the one before as the one that leads.
const LEADERS_MAX: usize = 4;
/// A difference between this machine's clock and the controller's that is worth a word.
pub const CLOCK_SKEW_NOTICE: Duration = Duration::from_secs(60);

/// The options of `fleet-agent join`.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    pub address: Address,
    pub token: JoinToken,
    pub name: NodeName,
    pub machine: Machine,
    pub folder: IdentityFolder,
    /// Leave the fleet or name that this node has now.
    pub replace: bool,
}

/// Which machine this is, as far as it can tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub machine_id: String,
    /// Empty where the firmware gives none, or for a process that is not root.
    pub dmi_uuid: String,
    pub boot_id: String,
}

impl Machine {
    /// Asks the kernel; what cannot be read is empty.
    pub fn read() -> Self {
        let line = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.trim().chars().take(MACHINE_TEXT_MAX).collect()
        };
        Self {
            machine_id: line("/etc/machine-id"),
            dmi_uuid: line("/sys/class/dmi/id/product_uuid"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
        }
    }

    /// With the id of the configuration, if that says one.
    #[must_use]
    pub fn or_configured(self, id: Option<String>) -> Self {
        Self { machine_id: id.unwrap_or(self.machine_id), ..self }
    }

    /// Whether the id tells this machine from others. Images ship the id's file empty, or with the word that systemd
    /// writes until the first boot is over (machine-id(5)). If pid 1 is another program, nothing fills the file in.
    #[must_use]
    pub fn has_id(&self) -> bool {
        !matches!(self.machine_id.as_str(), "" | "uninitialized")
    }
}

/// What gives a machine its id, with systemd and without. (`dbus-uuidgen --ensure` refuses an empty file.)
pub(crate) const MAKE_MACHINE_ID: &str = "`systemd-machine-id-setup`; without systemd `tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id`";

/// Longest machine or boot id that is passed on.
const MACHINE_TEXT_MAX: usize = 64;

/// How a join ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub identity: Identity,
    /// It was a member under this name before, and nothing was changed.
    pub already: bool,
    /// What this node was before, where that was something else.
    pub left: Option<Identity>,
    pub expires_at: Timestamp,
    /// How far this machine's clock is ahead (positive) of the controller's, in seconds.
    pub clock_ahead_seconds: i64,
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { cluster, role } = &self.identity;
        if self.already {
            return write!(
                f,
                "already joined to {cluster} as {}; nothing changed. If it was removed or revoked there, type the same with --replace",
                role.name()
            );
        }
        write!(f, "joined {cluster} as {}", role.name())?;
        if let Some(Identity { cluster, role }) = &self.left {
            let name = role.name();
            write!(
                f,
                "; it was {name} of {cluster} before: systemctl restart fleet-agent, if it runs"
            )?;
        }
        if self.clock_ahead_seconds.unsigned_abs() >= CLOCK_SKEW_NOTICE.as_secs() {
            let (seconds, side) =
                (self.clock_ahead_seconds.unsigned_abs(), self.clock_ahead_seconds);
            let side = if side > 0 { "ahead of" } else { "behind" };
            write!(f, "; this machine's clock is {seconds} s {side} the controller's, check NTP")?;
        }
        Ok(())
    }
}

/// Why a node could not join. The messages are for the person at the keyboard.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("this node is {node} of {cluster} already; use --replace to leave that")]
    OtherMembership { cluster: ClusterId, node: NodeName },
    #[error(
        "this machine has no id: /etc/machine-id is not there, empty or not filled in yet. Make one, then join again: {MAKE_MACHINE_ID}"
    )]
    NoMachineId,
    #[error(transparent)]
    Dial(#[from] PinnedDialError),
    #[error("the connection to {address} broke: {reason}; joining again is harmless")]
    Broken { address: Address, reason: String },
    #[error("no answer from {address} within {} s; joining again is harmless", CALL_TIMEOUT.as_secs())]
    NoAnswer { address: Address },
    #[error("the token was refused: {reason}")]
    TokenRefused { reason: String },
    #[error("the name {name} cannot be used: {reason}")]
    NameRefused { name: NodeName, reason: String },
    #[error("this machine cannot join as {name}: {reason}")]
    MachineRefused { name: NodeName, reason: String },
    #[error("the controller at {address} refused: {reason}")]
    Refused { address: Address, reason: String },
    #[error(transparent)]
    Reply(#[from] IssuedFault),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Joins the fleet the token belongs to. Repeating it is harmless: a member stays one, and an
/// attempt that was cut short is finished.
pub async fn join(options: &JoinOptions) -> Result<Joined, JoinError> {
    if let Some(joined) = existing_membership(options)? {
        return Ok(joined);
    }
    if !options.machine.has_id() {
        return Err(JoinError::NoMachineId);
    }
    let key = options.folder.pending_key()?;
    let (cluster, reply) = ask_the_leader(options, &key).await?;
    let expected = Identity::new(cluster.clone(), Role::Node(options.name.clone()));
    let pin = options.token.pin;
    let accepted =
        issued::accept(reply, &key, &[pin], &expected.to_string(), |found| *found == expected)?;
    let now = wall_clock();
    // What is damaged tells of no other membership.
    let before = options.folder.record().ok().flatten().map(|record| record.identity());
    let left = before.filter(|before| *before != expected);
    let record = IdentityRecord {
        v: store::RECORD_VERSION,
        cluster,
        node: options.name.clone(),
        controllers: controllers(&options.address, &accepted),
        joined_at: now,
    };
    options.folder.commit(&record, &key, &accepted)?;
    Ok(Joined {
        identity: expected,
        already: false,
        left,
        expires_at: Timestamp(accepted.leaf.not_after.saturating_mul(1000)),
        clock_ahead_seconds: seconds_between(now.0, accepted.now_unix_ms),
    })
}

/// The membership this node has, if it is the wanted one and usable; an error if it has another.
fn existing_membership(options: &JoinOptions) -> Result<Option<Joined>, JoinError> {
    // The old membership is to go, damaged or not.
    if options.replace {
        return Ok(None);
    }
    let Some(record) = options.folder.record()? else {
        return Ok(None);
    };
    let same_authority = options.folder.authority_pins()?.contains(&options.token.pin);
    if !same_authority || record.node != options.name {
        let IdentityRecord { cluster, node, .. } = record;
        return Err(JoinError::OtherMembership { cluster, node });
    }
    // A membership that is incomplete, damaged or expired is replaced: the caller joins again with the token.
    let Ok((_, credentials)) = options.folder.load() else {
        return Ok(None);
    };
    let leaf = credentials.leaf();
    let now = wall_clock().0 / 1000;
    if now < leaf.not_before || now >= leaf.not_after {
        return Ok(None);
    }
    Ok(Some(Joined {
        identity: leaf.identity.clone(),
        already: true,
        left: None,
        expires_at: Timestamp(leaf.not_after.saturating_mul(1000)),
        clock_ahead_seconds: 0,
    }))
}

/// Asks the controller that was named, and the one that leads, if that is another.
async fn ask_the_leader(
    options: &JoinOptions,
    key: &OwnKey,
) -> Result<(ClusterId, Option<fleet_proto::v1::IssuedCertificate>), JoinError> {
    let mut address = options.address.clone();
    for _ in 0..LEADERS_MAX {
        let connection = dial_pinned(&address, options.token.pin).await?;
        let cluster = connection.controller.identity.cluster;
        let status = match ask(options, key, connection.channel).await {
            Ok(reply) => return Ok((cluster, reply)),
            Err(AskError::Join(error)) => return Err(error),
            Err(AskError::Status(status)) => status,
        };
        match leader_named(&status).and_then(|text| text.parse::<Address>().ok()) {
            Some(leader) if leader != address => address = leader,
            Some(_) | None => return Err(explain_status(options, &status)),
        }
    }
    let reason = "the controllers name one another as their leader".to_owned();
    Err(JoinError::Broken { address, reason })
}

/// Why one controller gave no certificate.
enum AskError {
    Status(Box<tonic::Status>),
    Join(JoinError),
}

async fn ask(
    options: &JoinOptions,
    key: &OwnKey,
    channel: Channel,
) -> Result<Option<fleet_proto::v1::IssuedCertificate>, AskError> {
    let csr_der = key.signing_request().map_err(|error| AskError::Join(error.into()))?;
    let mut request = tonic::Request::new(JoinRequest {
        token_id: options.token.id.to_string(),
        secret: options.token.secret.expose().to_owned(),
        name: options.name.to_string(),
        csr_der,
        machine_id: options.machine.machine_id.clone(),
        dmi_uuid: options.machine.dmi_uuid.clone(),
        boot_id: options.machine.boot_id.clone(),
    });
    request.set_timeout(CALL_TIMEOUT);
    // The header above is a request to the server; this is the limit that holds.
    let mut client = EnrollmentClient::new(channel);
    let call = tokio::time::timeout(CALL_TIMEOUT + Duration::from_secs(1), client.join(request));
    match call.await {
        Ok(Ok(reply)) => Ok(reply.into_inner().certificate),
        Ok(Err(status)) => Err(AskError::Status(Box::new(status))),
        Err(_) => Err(AskError::Join(JoinError::NoAnswer { address: options.address.clone() })),
    }
}

/// The address that was joined through comes first, then those the controller named.
fn controllers(address: &Address, accepted: &Accepted) -> Vec<String> {
    let mut all = vec![address.to_string()];
    for text in &accepted.controllers {
        match text.parse::<Address>() {
            Ok(_) if all.contains(text) => {}
            Ok(_) => all.push(text.clone()),
            Err(error) => tracing::warn!(%error, "the controller named an address that is none"),
        }
    }
    all.truncate(fleet_proto::transport::limits::ADDRESSES_MAX);
    all
}

fn explain_status(options: &JoinOptions, status: &tonic::Status) -> JoinError {
    let reason = status.message().to_owned();
    let (address, name) = (options.address.clone(), options.name.clone());
    if let Some(Rejection::MachineIdTaken { .. }) = from_status(status) {
        return JoinError::MachineRefused { name, reason };
    }
    match status.code() {
        tonic::Code::Unauthenticated => JoinError::TokenRefused { reason },
        tonic::Code::PermissionDenied | tonic::Code::AlreadyExists => {
            JoinError::NameRefused { name, reason }
        }
        tonic::Code::DeadlineExceeded => JoinError::NoAnswer { address },
        tonic::Code::Unavailable | tonic::Code::Cancelled => JoinError::Broken { address, reason },
        _ if std::error::Error::source(status).is_some() => JoinError::Broken { address, reason },
        _ => JoinError::Refused { address, reason },
    }
}

fn wall_clock() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

fn seconds_between(ours_ms: u64, theirs_ms: u64) -> i64 {
    let seconds = i64::try_from(ours_ms.abs_diff(theirs_ms) / 1000).unwrap_or(i64::MAX);
    if ours_ms >= theirs_ms { seconds } else { -seconds }
}

/// The folder below the agent's state folder that holds the identity.
pub fn identity_folder(state: &std::path::Path) -> PathBuf {
    state.join("identity")
}
