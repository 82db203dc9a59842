//! Text that must never reach a log: its `Debug` shows nothing.

use std::fmt;

/// A token's secret or a private key in PEM. Not `Display`, not `Serialize`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself. Call it only where the secret is written to its file or sent to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Written by hand (see `build.rs`): a derived one would print the token's secret.
impl fmt::Debug for crate::v1::JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("token_id", &self.token_id)
            .field("name", &self.name)
            .field("machine_id", &self.machine_id)
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

/// The same for a controller's.
impl fmt::Debug for crate::v1::JoinControllerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinControllerRequest")
            .field("token_id", &self.token_id)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Who has the code logs in.
impl fmt::Debug for crate::v1::LoginCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginCode")
            .field("expires_at_unix_ms", &self.expires_at_unix_ms)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

/// Anyone who has an address reads the feed.
impl fmt::Debug for crate::v1::NewFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewFeed").field("feed", &self.feed).finish_non_exhaustive()
    }
}

/// The fleet's private key.
impl fmt::Debug for crate::v1::AuthorityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityKey(redacted)")
    }
}
