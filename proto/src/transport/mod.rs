//! How the parts of fleet reach each other: mutual TLS 1.3 over TCP, and Unix sockets.
//!
//! Used by the controller (server, and client of its peers), the agent and the CLI. Identity is one
//! URI in the certificate (`fleet://<cluster>/node/titan01`), parsed here and nowhere else; host
//! names play no part. A peer without a certificate may only enrol ([`peer::Gate`]).
//!
//! * server: [`server::TlsListener`] and [`unix::UnixListener`] give connections to tonic; handlers
//!   ask [`peer::PeerIdentity::of`] who calls;
//! * client: [`client::Dialer`] (several addresses), [`unix::channel`];
//! * [`credentials::SharedCredentials`]: certificates that can be replaced while connected.
//!
//! This module must never log a secret or a key, and never trust a name it did not read from a
//! verified certificate or from the kernel.

pub mod client;
pub mod credentials;
pub mod denial;
pub mod files;
mod handshakes;
pub mod identity;
pub mod issued;
pub mod keys;
pub mod limits;
pub mod peer;
pub mod refusals;
pub mod secret;
pub mod server;
pub mod signature;
mod slots;
pub mod token;
pub mod unix;
pub mod user;
pub mod verify;

#[cfg(test)]
mod tests;

pub use client::{Address, DialError, Dialer};
pub use credentials::{Credentials, SharedCredentials};
pub use denial::{Denial, Denials};
pub use handshakes::Source;
pub use identity::{CertificateFault, Identity, PeerCertificate, Role};
pub use peer::{Gate, PeerIdentity, Revocations};
pub use secret::Secret;
pub use server::TlsListener;
pub use slots::{Slot, Slots};
pub use token::{JoinToken, SpkiPin};
pub use unix::UnixListener;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one TLS provider of this project: ring. Also installs it as the process default, so that a
/// library which asks for the default cannot end up with none.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            let provider = rustls::crypto::ring::default_provider();
            // A second install (a test harness that was first) is not an error: it is also ring.
            drop(provider.clone().install_default());
            Arc::new(provider)
        })
        .clone()
}
