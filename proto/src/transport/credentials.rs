//! A process's own certificate, key and CA, and replacing them while connected.
//!
//! [`SharedCredentials`] is what listeners and dialers hold: each new connection uses the newest
//! credentials, existing connections stay. Session resumption is off: a resumed session would
//! skip the checks of expiry and revocation.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;

use super::crypto_provider;
use super::files::{self, FileError};
use super::identity::{CertificateFault, PeerCertificate, is_signed_by, key_pin_of};
use super::peer::Revocations;
use super::token::SpkiPin;
use super::verify::{ClientCheck, ClientVerifier, PinCheck, ServerCheck, ServerVerifier};

/// The application protocol both sides must speak.
const ALPN_H2: &[u8] = b"h2";

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{what} is not PEM")]
    Pem {
        what: &'static str,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{what} holds no certificate")]
    Empty { what: &'static str },
    #[error("own certificate")]
    Certificate(#[from] CertificateFault),
    #[error("certificate and key do not belong together, or the key is of an unknown kind")]
    Key(#[source] rustls::Error),
    #[error("CA certificate")]
    Roots(#[source] rustls::Error),
    #[error("TLS configuration")]
    Config(#[source] rustls::Error),
    #[error("TLS configuration of client certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Certificate chain (leaf first, what others vouch, CAs last), key and trusted CAs of one process. Immutable.
pub struct Credentials {
    leaf: PeerCertificate,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Credentials {
    /// Reads PEM texts: own chain, own key, CA certificates.
    pub fn from_pem(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, CredentialError> {
        let authorities = certificates(authorities, "the CA file")?;
        let mut chain = certificates(chain, "the certificate file")?;
        let leaf = PeerCertificate::parse(chain.first().map_or(&[], |c| c.as_ref()))?;
        // A joining node finds the pinned CA in the chain; the file may hold the leaf alone.
        for authority in &authorities {
            if !chain.contains(authority) {
                chain.push(authority.clone());
            }
        }
        let what = "the key file";
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| CredentialError::Pem { what, source })?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.clone()).map_err(CredentialError::Roots)?;
        }
        let signing = crypto_provider()
            .key_provider
            .load_private_key(key.clone_key())
            .map_err(CredentialError::Key)?;
        rustls::sign::CertifiedKey::new(chain.clone(), signing)
            .keys_match()
            .map_err(CredentialError::Key)?;
        Ok(Self { leaf, chain, key, authorities, roots: Arc::new(roots) })
    }

    /// Reads PEM files; the key file must be private to its owner.
    pub fn load(chain: &Path, key: &Path, authorities: &Path) -> Result<Self, CredentialError> {
        Self::from_pem(
            &files::read_limited(chain)?,
            &files::read_private(key)?,
            &files::read_limited(authorities)?,
        )
    }

    /// What the own certificate says.
    pub fn leaf(&self) -> &PeerCertificate {
        &self.leaf
    }

    /// The trusted CA certificates, DER.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// The pin of the trusted authority that signed the own certificate; none if that is not trusted here.
    pub fn signer(&self) -> Option<SpkiPin> {
        let leaf = self.chain.first()?;
        let signed = |authority: &&CertificateDer<'_>| is_signed_by(leaf, authority) == Ok(true);
        key_pin_of(self.authorities.iter().find(signed)?).ok()
    }

    /// The own certificate.
    pub fn leaf_der(&self) -> &[u8] {
        self.chain.first().map_or(&[], |leaf| leaf.as_ref())
    }

    /// Whether peers are shown the same by these, and the same ones are trusted.
    pub fn is_same(&self, other: &Credentials) -> bool {
        self.chain == other.chain && self.authorities == other.authorities
    }

    /// Whether peers are shown this certificate too, beside the own one.
    pub fn shows(&self, certificate: &[u8]) -> bool {
        self.chain.iter().any(|shown| shown.as_ref() == certificate)
    }

    fn client_check(&self, revocations: &Revocations) -> Result<ClientCheck, CredentialError> {
        let cluster = self.leaf.identity.cluster.clone();
        let (roots, revocations) = (self.roots.clone(), revocations.clone());
        Ok(ClientCheck::new(cluster, roots, revocations, crypto_provider())?)
    }

    fn server_config(&self, check: Arc<ClientCheck>) -> Result<ServerConfig, CredentialError> {
        let provider = crypto_provider();
        let verifier = Arc::new(ClientVerifier { check, provider: provider.clone() });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(CredentialError::Config)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(CredentialError::Config)?;
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn client_config(&self) -> Result<ClientConfig, CredentialError> {
        let provider = crypto_provider();
        let cluster = self.leaf.identity.cluster.clone();
        let check = ServerCheck::new(cluster, self.roots.clone(), provider.clone());
        let verifier = Arc::new(ServerVerifier { check, provider: provider.clone() });
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(CredentialError::Config)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(CredentialError::Config)?;
        Ok(finish_client(config))
    }
}

/// The configuration of a node that has no certificate yet and knows only the CA's pin.
pub(super) fn pinned_client_config(pin: SpkiPin) -> Result<ClientConfig, CredentialError> {
    let provider = crypto_provider();
    let check = PinCheck::new(pin, provider.clone());
    let verifier = Arc::new(ServerVerifier { check, provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(CredentialError::Config)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(finish_client(config))
}

fn finish_client(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    config
}

/// The certificates of a PEM text, DER, at least one. `what` names the text in the error.
pub fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|source| CredentialError::Pem { what, source })?;
    if found.is_empty() { Err(CredentialError::Empty { what }) } else { Ok(found) }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

struct Loaded {
    credentials: Arc<Credentials>,
    check: Arc<ClientCheck>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The credentials in use; cheap to clone, all clones see a replacement.
#[derive(Clone)]
pub struct SharedCredentials {
    loaded: Arc<ArcSwap<Loaded>>,
    revocations: Revocations,
    generation: Arc<watch::Sender<u64>>,
}

impl SharedCredentials {
    pub fn new(credentials: Credentials) -> Result<Self, CredentialError> {
        let revocations = Revocations::default();
        let loaded = build(credentials, &revocations)?;
        Ok(Self {
            loaded: Arc::new(ArcSwap::from_pointee(loaded)),
            revocations,
            generation: Arc::new(watch::Sender::new(0)),
        })
    }

    /// From now on new connections use these. On an error the old ones stay.
    pub fn replace(&self, credentials: Credentials) -> Result<(), CredentialError> {
        self.loaded.store(Arc::new(build(credentials, &self.revocations)?));
        self.generation.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// The newest credentials.
    pub fn current(&self) -> Arc<Credentials> {
        self.loaded.load().credentials.clone()
    }

    /// Tells of each replacement, for a long-lived connection that wants to move to the new ones.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The list of revoked certificates that this process's listeners obey.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// What is asked of peers now.
    pub(super) fn client_check(&self) -> Arc<ClientCheck> {
        self.loaded.load().check.clone()
    }

    pub(super) fn server_config(&self) -> Arc<ServerConfig> {
        self.loaded.load().server.clone()
    }

    pub(super) fn client_config(&self) -> Arc<ClientConfig> {
        self.loaded.load().client.clone()
    }
}

fn build(credentials: Credentials, revocations: &Revocations) -> Result<Loaded, CredentialError> {
    let check = Arc::new(credentials.client_check(revocations)?);
    Ok(Loaded {
        server: Arc::new(credentials.server_config(check.clone())?),
        check,
        client: Arc::new(credentials.client_config()?),
        credentials: Arc::new(credentials),
    })
}

impl fmt::Debug for SharedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedCredentials").field(&self.current().leaf.identity).finish()
    }
}
