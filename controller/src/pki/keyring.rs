//! The authorities that this controller holds and trusts: one, or two while one is exchanged for the other.
//!
//! What the replicated state says is carried out here ([`Keyring::follow`]): which one signs, which ones are
//! trusted, whose key is to be destroyed. Used by the API to issue, by `follow.rs` and `renewal.rs`. A key leaves
//! through [`Keyring::to_wire`] only; one that the state has given up is used for nothing any more.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use fleet_core::authority::{Authorities, Known};
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::SharedCredentials;
use fleet_proto::transport::credentials::Credentials;
use fleet_proto::transport::files::{self, MODE_PRIVATE, MODE_PUBLIC};
use fleet_proto::transport::identity::{Identity, Role, key_pin_of};
use fleet_proto::transport::keys::certificate_pem;
use fleet_proto::transport::secret::Secret;
use fleet_proto::transport::token::SpkiPin;
use fleet_proto::v1;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::authority::{self, CERTIFICATE_FILE, Stored};
use super::{
    Authority, Issued, PkiError, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE, crypto, random,
};

/// Bytes of randomness in the name that tells a new authority from the others of its cluster.
const UNIT_BYTES: usize = 8;

/// Handle on the authorities; cheap to clone.
#[derive(Clone)]
pub struct Keyring {
    folder: Arc<Path>,
    held: Arc<ArcSwap<InUse>>,
    own: Arc<Mutex<Own>>,
}

/// What is in use now.
struct InUse {
    signing: Arc<Authority>,
    /// Those with their keys, the one that signs first.
    authorities: Vec<Arc<Authority>>,
    /// The one that signs first.
    trusted: Vec<CertificateDer<'static>>,
    /// The one that signs, certified by the other.
    vouched: Option<CertificateDer<'static>>,
}

/// What this controller's own credentials are by now: what it tells the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// Authorities that are trusted and whose keys are held.
    pub ready: Vec<SpkiPin>,
    pub signed_by: Option<SpkiPin>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("signing", &self.signing()).finish_non_exhaustive()
    }
}

impl InUse {
    fn of(stored: Stored) -> Option<Self> {
        let authorities: Vec<_> = stored.authorities.into_iter().map(Arc::new).collect();
        let signing = authorities.first()?.clone();
        Some(Self { signing, authorities, trusted: stored.trusted, vouched: None })
    }

    fn with(&self, pin: &str) -> Option<&Arc<Authority>> {
        self.authorities.iter().find(|authority| authority.pin().to_string() == pin)
    }
}

impl Keyring {
    /// Reads what is in the folder.
    pub fn load(folder: &Path) -> Result<Self, PkiError> {
        let missing = || PkiError::NotInitialised { path: folder.join(CERTIFICATE_FILE) };
        let held = InUse::of(Authority::load_all(folder)?).ok_or_else(missing)?;
        let held = Arc::new(ArcSwap::from_pointee(held));
        Ok(Self { folder: folder.into(), held, own: Arc::default() })
    }

    /// The authority that signs now.
    pub fn signing(&self) -> Arc<Authority> {
        self.held.load().signing.clone()
    }

    /// Whether this is the pin of an authority that is trusted here.
    pub fn trusts(&self, pin: SpkiPin) -> bool {
        self.held.load().trusted.iter().any(|der| key_pin_of(der) == Ok(pin))
    }

    /// Certificates of the authorities that are trusted here, DER.
    pub fn trusted(&self) -> Vec<Vec<u8>> {
        self.held.load().trusted.iter().map(|der| der.to_vec()).collect()
    }

    /// What this controller can do by now.
    pub fn own(&self) -> Own {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All keys, for another controller. The one that signs comes first.
    pub fn to_wire(&self) -> Vec<v1::AuthorityKey> {
        self.held.load().authorities.iter().map(|authority| authority.to_wire()).collect()
    }

    /// The reply to a caller that asked for a certificate. `controllers` are the addresses the caller should use.
    pub fn reply(
        &self,
        issued: &Issued,
        by: &Authority,
        now: Timestamp,
        controllers: Vec<String>,
    ) -> v1::IssuedCertificate {
        let held = self.held.load();
        let of_signing = by.pin() == held.signing.pin();
        let vouched = held.vouched.iter().filter(|_| of_signing).map(|der| der.to_vec());
        v1::IssuedCertificate {
            certificate_der: issued.certificate_der.clone(),
            ca_der: by.certificate_der().to_vec(),
            cluster_id: by.cluster().to_string(),
            identity: issued.identity.to_string(),
            serial: issued.serial.clone(),
            not_before_unix_ms: issued.not_before.0,
            not_after_unix_ms: issued.not_after.0,
            now_unix_ms: now.0,
            controllers,
            trusted_der: held.trusted.iter().map(|der| der.to_vec()).collect(),
            vouched_der: vouched.collect(),
        }
    }

    /// Makes a new authority beside the one that signs; its key is stored before anybody hears of it. Nothing
    /// changes before the state says so.
    pub fn begin(&self, now: Timestamp) -> Result<(Known, Known), PkiError> {
        let old = self.signing();
        let unit = format!("authority {}", hex::encode(random::<UNIT_BYTES>()?));
        let new = Authority::make(old.cluster().clone(), Some(&unit), now)?;
        let key = new.key_pem();
        authority::store_key(&self.folder, new.pin(), key.expose().as_bytes())?;
        let known = |of: &Authority, by: &Authority| {
            let (pin, certificate) = (of.pin().to_string(), of.certificate_pem());
            Ok::<_, PkiError>(Known { pin, certificate, vouched: by.vouch(of, now)? })
        };
        Ok((known(&old, &new)?, known(&new, &old)?))
    }

    /// Destroys the key of an authority that did not come to anything.
    pub fn discard(&self, pin: &str) -> Result<(), PkiError> {
        for path in authority::key_files(&self.folder)? {
            if authority::read_key(&path)?.0.to_string() == pin {
                files::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Stores the keys that another controller gave, of those that the state trusts.
    pub fn take(&self, keys: &[v1::AuthorityKey], state: &Authorities) -> Result<(), PkiError> {
        for key in keys {
            let secret = Secret::new(key.key_pem.clone());
            let pair = KeyPair::from_pem(secret.expose()).map_err(crypto("read a key"))?;
            let pin = SpkiPin::of_spki(&rcgen::PublicKeyData::subject_public_key_info(&pair));
            let wanted = state.trusted().iter().any(|known| known.pin == pin.to_string());
            if wanted && self.held.load().with(&pin.to_string()).is_none() {
                authority::store_key(&self.folder, pin, secret.expose().as_bytes())?;
            }
        }
        Ok(())
    }

    /// Does as the state says. True once all that it says is so; until then a key is missing here.
    pub fn follow(&self, state: &Authorities) -> Result<bool, PkiError> {
        let trusted = state.trusted();
        let Some(signing) = trusted.first() else { return Ok(true) };
        let held = self.held.load_full();
        let (mut authorities, mut certificates, mut complete) = (Vec::new(), Vec::new(), true);
        for known in &trusted {
            let certificate = self.certificate(&known.certificate)?;
            let found = match held.with(&known.pin) {
                Some(authority) => Some(authority.clone()),
                None => Authority::with_key_of(&self.folder, &certificate)?.map(Arc::new),
            };
            complete &= found.is_some();
            authorities.extend(found);
            certificates.push(certificate);
        }
        // Without the new authority's key, the one before keeps signing, as long as it is trusted.
        let first = authorities.first().cloned().unwrap_or_else(|| held.signing.clone());
        let signs = first.pin().to_string() == signing.pin;
        let vouched = match signing.vouched.as_str() {
            pem if signs && !pem.is_empty() => Some(self.certificate(pem)?),
            _ => None,
        };
        if signs {
            self.keep_retired(&certificates)?;
            self.store_trusted(&certificates)?;
            self.destroy(&state.retired)?;
        }
        let held = InUse { signing: first, authorities, trusted: certificates, vouched };
        self.held.store(Arc::new(held));
        Ok(complete)
    }

    fn certificate(&self, pem: &str) -> Result<CertificateDer<'static>, PkiError> {
        CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| PkiError::Damaged {
            path: self.folder.join(CERTIFICATE_FILE),
            reason: format!("the replicated certificate of an authority: {error}"),
        })
    }

    /// Exports of the audit log that were signed under an authority are checked with its certificate.
    fn keep_retired(&self, trusted: &[CertificateDer<'static>]) -> Result<(), PkiError> {
        for old in Authority::load_all(&self.folder)?.trusted {
            if !trusted.contains(&old) {
                let name = format!("retired-{}.crt", authority::short(key_pin_of(&old)?));
                let pem = certificate_pem(&old);
                files::write_atomic(&self.folder.join(name), pem.as_bytes(), MODE_PUBLIC)?;
            }
        }
        Ok(())
    }

    fn store_trusted(&self, trusted: &[CertificateDer<'static>]) -> Result<(), PkiError> {
        let path = self.folder.join(CERTIFICATE_FILE);
        let pem: String = trusted.iter().map(|der| certificate_pem(der)).collect();
        if files::read_limited(&path)? != pem.as_bytes() {
            files::write_atomic(&path, pem.as_bytes(), MODE_PUBLIC)?;
        }
        Ok(())
    }

    fn destroy(&self, retired: &[String]) -> Result<(), PkiError> {
        for path in authority::key_files(&self.folder)? {
            let pin = authority::read_key(&path)?.0.to_string();
            if retired.contains(&pin) {
                files::remove(&path)?;
                tracing::info!(pin, "the key of an authority that was given up is destroyed");
            }
        }
        Ok(())
    }

    /// Has `shared` use this controller's own certificate as it should be now: of the authority that signs, fresh,
    /// with all authorities that are trusted. Makes one, or a new one, where it is not so.
    pub fn renew_own(
        &self,
        id: &NodeName,
        now: Timestamp,
        shared: &SharedCredentials,
    ) -> Result<(), PkiError> {
        let own = self.own_credentials(id, now)?;
        let current = shared.current();
        if !current.is_same(&own) {
            shared.replace(own)?;
        }
        self.note(&shared.current());
        Ok(())
    }

    fn note(&self, own: &Credentials) {
        let held = self.held.load();
        let trusted = own.authorities();
        let ready = held.authorities.iter().filter(|a| trusted.contains(a.certificate()));
        let ready = ready.map(|authority| authority.pin()).collect();
        let own = Own { ready, signed_by: own.signer() };
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = own;
    }

    /// This controller's own credentials; makes a new key and certificate when there are none, when they cannot be
    /// used, are of another authority than the one that signs, or when half of their life is over.
    pub fn own_credentials(&self, id: &NodeName, now: Timestamp) -> Result<Credentials, PkiError> {
        let held = self.held.load_full();
        let key_path = self.folder.join(SERVER_KEY_FILE);
        let certificate_path = self.folder.join(SERVER_CERTIFICATE_FILE);
        let trusted: String = held.trusted.iter().map(|der| certificate_pem(der)).collect();
        let stored = files::read_limited(&certificate_path)
            .and_then(|chain| Ok((chain, files::read_private(&key_path)?)))
            .map_err(PkiError::from)
            .and_then(|(chain, key)| {
                let own = Credentials::from_pem(&chain, &key, trusted.as_bytes())?;
                Ok((own, Secret::new(String::from_utf8_lossy(&key).into_owned())))
            });
        let old = match stored {
            Ok((own, key)) if held.is_fresh(&own, id, now) => {
                return held.chained(own.leaf_der(), &key, &trusted).map_err(PkiError::from);
            }
            Ok((own, _)) => {
                tracing::info!(controller = %id, "renewing the controller's own certificate");
                Some(own)
            }
            Err(error) => {
                let reason = error.to_string();
                tracing::info!(controller = %id, reason, "making the controller's own certificate");
                None
            }
        };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("make a key"))?;
        let issued = match (held.signing.issue_own(&key, id, now), old) {
            (Ok(issued), _) => issued,
            // Rather the clock than ten years: with the old one an admin can still look and set it right.
            (Err(error @ PkiError::AuthorityExpired { .. }), Some(old)) => {
                tracing::error!(%error, "keeping the controller's own certificate; is this machine's clock right?");
                return Ok(old);
            }
            (Err(error), _) => return Err(error),
        };
        let key_pem = Secret::new(key.serialize_pem());
        let leaf = certificate_pem(&issued.certificate_der);
        // Key first: a crash in between leaves a pair that does not match, which is made again.
        files::write_atomic(&key_path, key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&certificate_path, leaf.as_bytes(), MODE_PUBLIC)?;
        Ok(held.chained(&issued.certificate_der, &key_pem, &trusted)?)
    }
}

impl InUse {
    /// The leaf with what vouches for its authority now.
    fn chained(
        &self,
        leaf: &[u8],
        key: &Secret,
        trusted: &str,
    ) -> Result<Credentials, fleet_proto::transport::credentials::CredentialError> {
        let mut chain = certificate_pem(leaf);
        chain.extend(self.vouched.iter().map(|der| certificate_pem(der)));
        Credentials::from_pem(chain.as_bytes(), key.expose().as_bytes(), trusted.as_bytes())
    }

    fn is_fresh(&self, own: &Credentials, id: &NodeName, now: Timestamp) -> bool {
        let leaf = own.leaf();
        let role = Role::Controller(id.clone());
        let expected = Identity::new(self.signing.cluster().clone(), role);
        let half = leaf.not_before + leaf.not_after.saturating_sub(leaf.not_before) / 2;
        leaf.identity == expected
            && own.signer() == Some(self.signing.pin())
            && leaf.not_before <= now.0 / 1000
            && now.0 / 1000 < half
    }
}
