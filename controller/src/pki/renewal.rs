//! Who may renew a certificate, and keeping the controller's own one fresh.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::identity::{CertificateFault, Role};
use fleet_proto::transport::limits::RENEW_EXPIRED_MAX;
use fleet_proto::transport::{PeerIdentity, Revocations, SharedCredentials};

use super::{Keyring, SigningRequest};

/// How often the controller looks at its own certificate.
pub const OWN_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Why a renewal is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewalRefused {
    #[error("only a node's certificate can be renewed, and it must be shown")]
    NotANode,
    #[error("the certificate expired more than {} days ago; join again with a new token", RENEW_EXPIRED_MAX.as_secs() / 86_400)]
    ExpiredTooLong,
    #[error("an expired certificate can be renewed for its own key only")]
    OtherKey,
    #[error("this node is not a member of the fleet any more; join again with a new token")]
    NotAMember,
    #[error(
        "an expired certificate can be renewed only if it is the last this node was given, and was not revoked; join again with a new token"
    )]
    NotTheNewest,
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
}

impl RenewalRefused {
    /// Stable code for the audit log.
    pub fn code(&self) -> &'static str {
        match self {
            RenewalRefused::NotANode => "not_a_node",
            RenewalRefused::ExpiredTooLong => "expired_too_long",
            RenewalRefused::OtherKey => "other_key",
            RenewalRefused::NotAMember => "not_a_member",
            RenewalRefused::NotTheNewest => "not_the_newest",
            RenewalRefused::Certificate(fault) => fault.code(),
        }
    }

    /// The refusal as the agent gets it.
    pub fn to_status(&self) -> tonic::Status {
        tonic::Status::unauthenticated(self.to_string())
    }
}

/// The node that may have a new certificate for this request, as far as its certificate goes. The
/// caller still checks that the replicated state knows the node.
pub fn check_renewal(
    peer: &PeerIdentity,
    request: &SigningRequest,
    revocations: &Revocations,
    now: Timestamp,
) -> Result<NodeName, RenewalRefused> {
    let certificate = peer.certificate().ok_or(RenewalRefused::NotANode)?;
    let Role::Node(name) = &certificate.identity.role else {
        return Err(RenewalRefused::NotANode);
    };
    revocations.check(certificate)?;
    let expired_for = (now.0 / 1000).saturating_sub(certificate.not_after);
    if expired_for > RENEW_EXPIRED_MAX.as_secs() {
        return Err(RenewalRefused::ExpiredTooLong);
    }
    let expired = expired_for > 0 || matches!(peer, PeerIdentity::Expired(_));
    if expired && request.key_pin() != certificate.key_pin {
        return Err(RenewalRefused::OtherKey);
    }
    Ok(name.clone())
}

/// Runs until dropped: renews the controller's own certificate at half of its life, for listeners
/// and dialers alike. A failure is logged and tried again; the old one stays in use.
pub async fn keep_own_certificate(keyring: Keyring, id: NodeName, credentials: SharedCredentials) {
    loop {
        tokio::time::sleep(OWN_CHECK_INTERVAL).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        if let Err(error) = keyring.renew_own(&id, now, &credentials) {
            tracing::error!(%error, "cannot renew the controller's own certificate");
        }
    }
}
