//! Who was turned away at the door, for the part that keeps the audit log.
//!
//! The gate and the TLS listener tell; the controller counts into its audit log. All words here are of a
//! fixed set or from a verified certificate, so that nobody can write into that log by knocking.

use std::fmt;
use std::sync::Arc;

use super::identity::CertificateFault;
use super::peer::PeerIdentity;

/// Longest name of a call that is passed on; ours are shorter.
const CALL_BYTES_MAX: usize = 40;
/// What stands for a call that no service of ours can have.
const OTHER_CALL: &str = "other_call";
/// What is said of a connection that was refused before any call.
pub(super) const CONNECT: &str = "connect";

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// As [`PeerIdentity::principal`].
    pub principal: String,
    /// The call in snake case.
    pub action: String,
    /// Why, in one stable word.
    pub code: &'static str,
}

/// Where refusals are reported. Cheap to clone; by default nowhere.
#[derive(Clone, Default)]
pub struct Denials(Option<Arc<dyn Fn(Denial) + Send + Sync>>);

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Denials").field(&self.0.is_some()).finish()
    }
}

impl Denials {
    /// `tell` must be quick: it is called where the refusal happens.
    pub fn to(tell: impl Fn(Denial) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub(super) fn of_call(&self, peer: Option<&PeerIdentity>, path: &str, code: &'static str) {
        if let Some(tell) = &self.0 {
            let principal = peer.map_or_else(|| "unknown".to_owned(), PeerIdentity::principal);
            tell(Denial { principal, action: action(path), code });
        }
    }

    /// A certificate that was refused proves nothing about who showed it.
    pub(super) fn of_certificate(&self, fault: &CertificateFault) {
        if let Some(tell) = &self.0 {
            let (principal, action) = ("anonymous".to_owned(), CONNECT.to_owned());
            tell(Denial { principal, action, code: fault.code() });
        }
    }
}

/// `/fleet.v1.Fleet/SubmitJob` as the audit log says it: `submit_job`. Peers choose the path.
fn action(path: &str) -> String {
    let call = path.rsplit('/').next().unwrap_or_default();
    let plain = !call.is_empty()
        && call.len() <= CALL_BYTES_MAX
        && call.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !plain {
        return OTHER_CALL.to_owned();
    }
    let mut snake = String::with_capacity(call.len() + 4);
    for (at, letter) in call.chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::action;

    #[test]
    fn a_path_becomes_a_word_whatever_a_peer_sends() {
        assert_eq!(action("/fleet.v1.Fleet/SubmitJob"), "submit_job");
        assert_eq!(action("/fleet.v1.Agents/Sync"), "sync");
        for path in ["", "/", "/a/b/c-d", "/x/\"}, {", &"A".repeat(41), "/x/Ärger"] {
            assert_eq!(action(path), "other_call", "{path}");
        }
    }
}
