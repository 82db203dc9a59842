//! The page's certificate: one that browsers trust, from files, or one by the fleet's own authority.
//!
//! Both are checked again and again: files are exchanged by whatever renews them, the authority by its rotation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use fleet_core::time::{Millis, Timestamp};
use fleet_proto::transport::crypto_provider;
use fleet_proto::transport::files;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use crate::clock::wall;
use crate::config::WebConfig;
use crate::pki::Keyring;

/// How often the files, or the authority, are checked.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A certificate of our own is replaced at this age; it lasts three times as long.
const OWN_AGE_MAX: Millis = Millis::days(30);

/// The certificate that browsers are shown. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Certificate(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    key: ArcSwap<CertifiedKey>,
    source: Source,
    /// Of the first one.
    age: Age,
}

#[derive(Debug)]
enum Source {
    Files { certificate: PathBuf, key: PathBuf },
    Own { keyring: Keyring, name: String },
}

/// What tells one that is shown from one that should be.
#[derive(Debug, PartialEq, Eq)]
enum Age {
    /// The bytes of both files.
    Files(Vec<u8>, Vec<u8>),
    Own {
        pin: String,
        made_at: Timestamp,
    },
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }
}

impl Certificate {
    /// Reads or makes it; says what is wrong with the files.
    pub(super) fn load(config: &WebConfig, keyring: Keyring) -> anyhow::Result<Self> {
        let source = match &config.files {
            Some((certificate, key)) => {
                Source::Files { certificate: certificate.clone(), key: key.clone() }
            }
            None => Source::Own { keyring, name: host_of(&config.address.url).to_owned() },
        };
        let (key, age) = source.read()?;
        Ok(Self(Arc::new(Shown { key: ArcSwap::from_pointee(key), source, age })))
    }

    pub(super) fn server_config(&self) -> Arc<rustls::ServerConfig> {
        let builder = rustls::ServerConfig::builder_with_provider(crypto_provider());
        // It supports both versions; the list is a constant.
        let Ok(builder) = builder.with_safe_default_protocol_versions() else {
            unreachable!("ring knows TLS 1.2 and 1.3")
        };
        let shown: Arc<dyn ResolvesServerCert> = Arc::clone(&self.0) as _;
        let mut config = builder.with_no_client_auth().with_cert_resolver(shown);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Runs until `stop`: shows the newest one. One that cannot be used is said once, and the last stays in use.
    pub(super) async fn keep(&self, stop: CancellationToken) {
        let mut newer: Option<Age> = None;
        let mut failed = false;
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            if self.0.source.is_still(newer.as_ref().unwrap_or(&self.0.age)) {
                continue;
            }
            match self.0.source.read() {
                Ok((key, age)) => {
                    self.0.key.store(Arc::new(key));
                    (newer, failed) = (Some(age), false);
                    tracing::info!("the web page has another certificate");
                }
                Err(error) if !failed => {
                    tracing::error!("the web page keeps its certificate: {error:#}");
                    failed = true;
                }
                Err(_) => {}
            }
        }
    }
}

impl Source {
    fn read(&self) -> anyhow::Result<(CertifiedKey, Age)> {
        match self {
            Source::Files { certificate, key } => {
                let (chain, secret) =
                    (text("web.certificate", certificate)?, text("web.key", key)?);
                let pair = pair(&chain, &secret).with_context(|| {
                    format!(
                        "web.certificate {} and web.key {}",
                        certificate.display(),
                        key.display()
                    )
                })?;
                Ok((pair, Age::Files(chain, secret)))
            }
            Source::Own { keyring, name } => {
                let (by, made_at) = (keyring.signing(), wall());
                let own = by.issue_page(name, made_at)?;
                let chain = own.chain.into_iter().map(CertificateDer::from).collect();
                let key = PrivateKeyDer::from_pem_slice(own.key_pem.expose().as_bytes())?;
                Ok((certified(chain, key)?, Age::Own { pin: by.pin().to_string(), made_at }))
            }
        }
    }

    fn is_still(&self, age: &Age) -> bool {
        match (self, age) {
            (Source::Files { certificate, key }, Age::Files(chain, secret)) => {
                let same = |path: &Path, was: &Vec<u8>| {
                    files::read_limited(path).is_ok_and(|now| now == *was)
                };
                same(certificate, chain) && same(key, secret)
            }
            (Source::Own { keyring, .. }, Age::Own { pin, made_at }) => {
                keyring.signing().pin().to_string() == *pin && wall().since(*made_at) < OWN_AGE_MAX
            }
            (Source::Files { .. } | Source::Own { .. }, _) => false,
        }
    }
}

fn text(field: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    files::read_limited(path).with_context(|| format!("{field}: read {}", path.display()))
}

fn pair(chain: &[u8], secret: &[u8]) -> anyhow::Result<CertifiedKey> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.context("the certificate is not PEM")?;
    anyhow::ensure!(!chain.is_empty(), "there is no certificate in it");
    certified(chain, PrivateKeyDer::from_pem_slice(secret).context("the key is not PEM")?)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<CertifiedKey> {
    let key = crypto_provider().key_provider.load_private_key(key);
    let certified = CertifiedKey::new(chain, key.context("a key of an unknown kind")?);
    certified.keys_match().context("they do not belong together")?;
    Ok(certified)
}

/// `ctl1.lab` of `https://ctl1.lab:8443`.
fn host_of(url: &str) -> &str {
    let authority = url.strip_prefix("https://").unwrap_or(url);
    let end = match authority.rfind(':') {
        // The colons of an IPv6 address are in brackets.
        Some(colon) if !authority[colon..].contains(']') => colon,
        Some(_) | None => authority.len(),
    };
    authority[..end].trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_proto::transport::keys::certificate_pem;

    use super::*;
    use crate::pki::Authority;

    /// A certificate for a page and its key, PEM.
    fn made(folder: &Path) -> (Vec<u8>, Vec<u8>) {
        let authority = Authority::create(folder, wall()).unwrap();
        let made = authority.issue_page("gpus.lab", wall()).unwrap();
        let chain: String = made.chain.iter().map(|der| certificate_pem(der)).collect();
        (chain.into_bytes(), made.key_pem.expose().as_bytes().to_vec())
    }

    #[test]
    fn files_are_taken_when_they_change_and_refused_when_they_do_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["one", "two"].map(|name| made(&dir.path().join(name)));
        let [certificate, key] = ["page.crt", "page.key"].map(|name| dir.path().join(name));
        let source = Source::Files { certificate: certificate.clone(), key: key.clone() };
        let missing = format!("{:#}", source.read().unwrap_err());
        assert!(missing.contains("web.certificate: read") && missing.contains("page.crt"));
        std::fs::write(&certificate, &first.0).unwrap();
        std::fs::write(&key, &first.1).unwrap();
        let (_, age) = source.read().unwrap();
        assert!(source.is_still(&age));
        // Half of a renewal: the first stays in use.
        std::fs::write(&certificate, &second.0).unwrap();
        assert!(!source.is_still(&age));
        let half = format!("{:#}", source.read().unwrap_err());
        assert!(half.contains("do not belong together") && half.contains("web.key"), "{half}");
        std::fs::write(&key, &second.1).unwrap();
        let (_, newer) = source.read().unwrap();
        assert!(source.is_still(&newer) && newer != age);
        std::fs::write(&key, "nothing").unwrap();
        assert!(format!("{:#}", source.read().unwrap_err()).contains("the key is not PEM"));
    }

    #[test]
    fn the_fleets_authority_signs_one_again_before_it_ends_or_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        Authority::create(dir.path(), wall()).unwrap();
        let keyring = Keyring::load(dir.path()).unwrap();
        let source = Source::Own { keyring, name: "gpus.lab".to_owned() };
        let (shown, age) = source.read().unwrap();
        assert_eq!(shown.cert.len(), 2, "with its authority");
        assert!(source.is_still(&age));
        let Age::Own { pin, .. } = age else { panic!("{age:?}") };
        let old = Age::Own { pin, made_at: wall() - OWN_AGE_MAX };
        assert!(!source.is_still(&old));
        assert!(!source.is_still(&Age::Own { pin: "another".to_owned(), made_at: wall() }));
    }

    #[test]
    fn a_certificate_is_for_the_host_of_the_url() {
        for (url, host) in [
            ("https://ctl1.lab:8443", "ctl1.lab"),
            ("https://gpus.lab", "gpus.lab"),
            ("https://10.0.0.1:8443", "10.0.0.1"),
            ("https://[fd00::1]:8443", "fd00::1"),
            ("https://[fd00::1]", "fd00::1"),
        ] {
            assert_eq!(host_of(url), host);
        }
    }
}
