//! A CA itself: its key, its certificate, and what it issues; and where they are stored.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet_core::id::ClusterId;
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE, MODE_PUBLIC};
use fleet_proto::transport::identity::{Identity, Role, key_pin_of};
use fleet_proto::transport::keys::{certificate_pem, cluster_id};
use fleet_proto::transport::secret::Secret;
use fleet_proto::transport::token::SpkiPin;
use fleet_proto::v1;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::request::SigningRequest;
use super::{
    AUDIT_SIGNER_LIFE, AUTHORITY_LIFE, BACKDATING, CONTROLLER_LIFE, NODE_LIFE, PAGE_LIFE, PkiError,
    SERIAL_BYTES, USER_LIFE, crypto, random,
};

const KEY_FILE: &str = "ca.key";
/// All that are trusted, the one that signs first.
pub const CERTIFICATE_FILE: &str = "ca.crt";
/// Keys of further authorities: `ca-PIN.key`.
const FURTHER_PREFIX: &str = "ca-";
const FURTHER_SUFFIX: &str = ".key";
/// The controller's own key and certificate.
pub const SERVER_KEY_FILE: &str = "server.key";
pub const SERVER_CERTIFICATE_FILE: &str = "server.crt";

/// A certificate that was just issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    pub identity: Identity,
    pub certificate_der: Vec<u8>,
    /// Hexadecimal, lower case: as [`fleet_proto::transport::PeerCertificate`] shows it.
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// The certificate of the page that browsers see.
#[derive(Debug)]
pub struct PageCertificate {
    /// DER; its own first, then the authority's.
    pub chain: Vec<Vec<u8>>,
    pub key_pem: Secret,
}

/// A certificate authority of one cluster.
pub struct Authority {
    cluster: ClusterId,
    unit: Option<String>,
    certificate: CertificateDer<'static>,
    pin: SpkiPin,
    not_after: Timestamp,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new cluster: random id, key (0600) and certificate in `folder`. Refuses a folder that
    /// has one; a creation that was cut short before its last file is started over.
    pub fn create(folder: &Path, now: Timestamp) -> Result<Self, PkiError> {
        let path = folder.join(CERTIFICATE_FILE);
        if path.exists() {
            return Err(PkiError::AlreadyInitialised { path });
        }
        let made = Self::make(cluster_id(random()?), None, now)?;
        files::create_private_folder(folder)?;
        let key_pem = made.key_pem();
        files::write_atomic(&folder.join(KEY_FILE), key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&path, made.certificate_pem().as_bytes(), MODE_PUBLIC)?;
        Self::load(folder)
    }

    /// One with a new key, in memory only. `unit` tells it from others of the same cluster.
    pub(super) fn make(
        cluster: ClusterId,
        unit: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("make the CA key"))?;
        let params = authority_params(&cluster, unit, now)?;
        let certificate = params.self_signed(&key).map_err(crypto("sign the CA certificate"))?;
        Self::of(certificate.der().clone(), key)
    }

    fn of(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self, PkiError> {
        let path = PathBuf::from(CERTIFICATE_FILE);
        let damaged = |reason: String| PkiError::Damaged { path, reason };
        let Named { cluster, unit, not_after } = read_authority(&certificate).map_err(damaged)?;
        let pin = key_pin_of(&certificate)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(crypto("read the CA"))?;
        Ok(Self { cluster, unit, certificate, pin, not_after, issuer })
    }

    /// The name and key of `other`, certified by this one: for a peer that knows only this one.
    pub(super) fn vouch(&self, other: &Authority, now: Timestamp) -> Result<String, PkiError> {
        let params = authority_params(&other.cluster, other.unit.as_deref(), now)?;
        let signed = params.signed_by(other.issuer.key(), &self.issuer);
        Ok(certificate_pem(signed.map_err(crypto("vouch for an authority"))?.der()))
    }

    /// Reads the one that signs.
    pub fn load(folder: &Path) -> Result<Self, PkiError> {
        let found = Self::load_all(folder)?.authorities.into_iter().next();
        found.ok_or_else(|| PkiError::NotInitialised { path: folder.join(CERTIFICATE_FILE) })
    }

    /// Reads all whose keys are here, the one that signs first. There is that one, or it is an error.
    pub(super) fn load_all(folder: &Path) -> Result<Stored, PkiError> {
        let path = folder.join(CERTIFICATE_FILE);
        if !path.exists() {
            return Err(PkiError::NotInitialised { path });
        }
        let damaged = |reason: String| PkiError::Damaged { path: path.clone(), reason };
        let pem = files::read_limited(&path)?;
        let trusted: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let trusted: Vec<CertificateDer<'static>> = trusted.map_err(|e| damaged(e.to_string()))?;
        if trusted.is_empty() {
            return Err(damaged("it holds no certificate".to_owned()));
        }
        let mut authorities = Vec::new();
        for (at, certificate) in trusted.iter().enumerate() {
            read_authority(certificate).map_err(damaged)?;
            let pin = key_pin_of(certificate)?;
            match find_key(folder, pin)? {
                Some(key) => authorities.push(Self::of(certificate.clone(), key)?),
                // Only trusted: the authority that signs is the first, and has its key here.
                None if at > 0 => {}
                None => {
                    let (path, of) = (folder.join(KEY_FILE), path.display());
                    let reason = format!("it is not the key of {of}");
                    return Err(PkiError::Damaged { path, reason });
                }
            }
        }
        Ok(Stored { authorities, trusted })
    }

    /// Writes down what another controller gave of itself: `create` for one that joins.
    pub fn install(folder: &Path, keys: &[v1::AuthorityKey]) -> Result<Self, PkiError> {
        if keys.is_empty() {
            return Err(PkiError::Damaged {
                path: folder.join(KEY_FILE),
                reason: "no key came from the other controller".to_owned(),
            });
        }
        files::create_private_folder(folder)?;
        let mut trusted = String::new();
        for key in keys {
            store_key(folder, key_pin_of(&key.certificate_der)?, key.key_pem.as_bytes())?;
            trusted.push_str(&certificate_pem(&key.certificate_der));
        }
        files::write_atomic(&folder.join(CERTIFICATE_FILE), trusted.as_bytes(), MODE_PUBLIC)?;
        Self::load(folder)
    }

    /// With its key from the folder, if that is there.
    pub(super) fn with_key_of(
        folder: &Path,
        certificate: &CertificateDer<'static>,
    ) -> Result<Option<Self>, PkiError> {
        let key = find_key(folder, key_pin_of(certificate)?)?;
        key.map(|key| Self::of(certificate.clone(), key)).transpose()
    }

    /// All of it, private key included, for another controller.
    pub(super) fn to_wire(&self) -> v1::AuthorityKey {
        let key_pem = self.issuer.key().serialize_pem();
        v1::AuthorityKey { certificate_der: self.certificate.to_vec(), key_pem }
    }

    /// For this controller's own folder.
    pub(super) fn key_pem(&self) -> Secret {
        Secret::new(self.issuer.key().serialize_pem())
    }

    /// When its certificate ends.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// What a join token carries.
    pub fn pin(&self) -> SpkiPin {
        self.pin
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    pub fn certificate_pem(&self) -> String {
        certificate_pem(&self.certificate)
    }

    /// A node's certificate: client only, 24 h.
    pub fn issue_node(
        &self,
        request: &SigningRequest,
        name: &NodeName,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue_node_from(request, name, now, now)
    }

    /// The same, good from `from` on: for a controller that does not know whether its clock is right.
    pub fn issue_node_from(
        &self,
        request: &SigningRequest,
        name: &NodeName,
        from: Timestamp,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue_from(&request.key, Role::Node(name.clone()), NODE_LIFE, (from, now))
    }

    /// A user's certificate: client only, 12 h at most.
    pub fn issue_user(
        &self,
        request: &SigningRequest,
        user: &UserName,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        if ttl < Duration::from_secs(1) || ttl > USER_LIFE {
            return Err(PkiError::Lifetime { max: USER_LIFE });
        }
        self.issue(&request.key, Role::User(user.clone()), ttl, now)
    }

    /// A controller's certificate: server, and client of the other controllers.
    pub fn issue_controller(
        &self,
        request: &SigningRequest,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue(&request.key, Role::Controller(id.clone()), CONTROLLER_LIFE, now)
    }

    /// The same for a key that was made here.
    pub(super) fn issue_own(
        &self,
        key: &KeyPair,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue(key, Role::Controller(id.clone()), CONTROLLER_LIFE, now)
    }

    pub(super) fn issue_audit_signer(
        &self,
        key: &KeyPair,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue(key, Role::AuditSigner(id.clone()), AUDIT_SIGNER_LIFE, now)
    }

    /// A certificate for the page that browsers see, with a key of its own. It has a host's name and none of the fleet: no
    /// agent and no controller takes it for anybody.
    pub fn issue_page(&self, host: &str, now: Timestamp) -> Result<PageCertificate, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map_err(crypto("make the key of the web page"))?;
        let mut hosts = vec![host.to_owned()];
        hosts.extend(
            ["localhost", "127.0.0.1"].map(str::to_owned).into_iter().filter(|h| h != host),
        );
        let mut params = CertificateParams::new(hosts).map_err(crypto("name the page's host"))?;
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(new_serial()?);
        set_validity(&mut params, (now, now), PAGE_LIFE);
        let signed = params.signed_by(&key, &self.issuer);
        let signed = signed.map_err(crypto("sign the web page's certificate"))?;
        let chain = vec![signed.der().to_vec(), self.certificate.to_vec()];
        Ok(PageCertificate { chain, key_pem: Secret::new(key.serialize_pem()) })
    }

    fn issue(
        &self,
        key: &impl PublicKeyData,
        role: Role,
        life: Duration,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue_from(key, role, life, (now, now))
    }

    fn issue_from(
        &self,
        key: &impl PublicKeyData,
        role: Role,
        life: Duration,
        (from, now): (Timestamp, Timestamp),
    ) -> Result<Issued, PkiError> {
        let identity = Identity::new(self.cluster.clone(), role);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uri = identity.to_string().try_into().map_err(crypto("write the identity"))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match identity.role {
            Role::Controller(_) => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Role::Node(_) | Role::User(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Role::AuditSigner(_) => Vec::new(),
        };
        params.use_authority_key_identifier_extension = true;
        let serial = new_serial()?;
        params.serial_number = Some(serial.clone());
        let (not_before, not_after) = set_validity(&mut params, (from, now), life);
        if not_after > self.not_after {
            return Err(PkiError::AuthorityExpired { not_after: self.not_after.0 / 1000 });
        }
        let certificate =
            params.signed_by(key, &self.issuer).map_err(crypto("sign a certificate"))?;
        Ok(Issued {
            identity,
            certificate_der: certificate.der().to_vec(),
            serial: hex::encode(serial.to_bytes()),
            not_before,
            not_after,
        })
    }
}

/// What a CA certificate of ours says.
struct Named {
    cluster: ClusterId,
    unit: Option<String>,
    not_after: Timestamp,
}

fn read_authority(der: &[u8]) -> Result<Named, String> {
    let (_, cert) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    if !cert.is_ca() {
        return Err("it is not a CA certificate".to_owned());
    }
    let name = cert.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let name = name.ok_or_else(|| "it names no cluster".to_owned())?;
    let cluster = ClusterId::parse(name).map_err(|error| error.to_string())?;
    let unit = cert.subject().iter_organizational_unit().next();
    let unit = unit.and_then(|unit| unit.as_str().ok()).map(str::to_owned);
    let seconds = u64::try_from(cert.validity().not_after.timestamp()).unwrap_or(0);
    Ok(Named { cluster, unit, not_after: Timestamp(seconds.saturating_mul(1000)) })
}

/// A CA certificate of ours. Each name must come out the same to the byte whenever it is written.
fn authority_params(
    cluster: &ClusterId,
    unit: Option<&str>,
    now: Timestamp,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "fleet");
    params.distinguished_name.push(DnType::CommonName, cluster.as_str());
    if let Some(unit) = unit {
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    }
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(new_serial()?);
    set_validity(&mut params, (now, now), AUTHORITY_LIFE);
    Ok(params)
}

/// The authorities in a folder.
pub(super) struct Stored {
    /// With their keys, the one that signs first.
    pub(super) authorities: Vec<Authority>,
    /// All that are trusted.
    pub(super) trusted: Vec<CertificateDer<'static>>,
}

/// Where keys may lie: that of the first authority has no pin in its name.
pub(super) fn key_files(folder: &Path) -> Result<Vec<PathBuf>, PkiError> {
    let failed = |source| {
        let (action, path) = ("read", folder.to_owned());
        PkiError::File(FileError::Io { action, path, source })
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let further = name.starts_with(FURTHER_PREFIX) && name.ends_with(FURTHER_SUFFIX);
        if name == KEY_FILE || further {
            found.push(folder.join(name));
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn read_key(path: &Path) -> Result<(SpkiPin, KeyPair), PkiError> {
    let damaged = |reason: String| PkiError::Damaged { path: path.to_owned(), reason };
    let pem = String::from_utf8(files::read_private(path)?)
        .map_err(|_| damaged("not text".to_owned()))?;
    let key = KeyPair::from_pem(&pem).map_err(|error| damaged(error.to_string()))?;
    Ok((SpkiPin::of_spki(&key.subject_public_key_info()), key))
}

fn find_key(folder: &Path, pin: SpkiPin) -> Result<Option<KeyPair>, PkiError> {
    for path in key_files(folder)? {
        let (of, key) = read_key(&path)?;
        if of == pin {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Writes a key down under its own name.
pub(super) fn store_key(folder: &Path, pin: SpkiPin, pem: &[u8]) -> Result<(), PkiError> {
    let name = format!("{FURTHER_PREFIX}{}{FURTHER_SUFFIX}", short(pin));
    Ok(files::write_atomic(&folder.join(name), pem, MODE_PRIVATE)?)
}

/// A pin as part of a file's name.
pub(super) fn short(pin: SpkiPin) -> String {
    hex::encode(&pin.as_bytes()[..8])
}

/// Sets the validity, in whole seconds, and returns it.
fn set_validity(
    params: &mut CertificateParams,
    (from, now): (Timestamp, Timestamp),
    life: Duration,
) -> (Timestamp, Timestamp) {
    let [from, now] = [from, now].map(|at| Duration::from_secs(at.0 / 1000));
    let (from, until) = (from.saturating_sub(BACKDATING), now.saturating_add(life));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + from;
    params.not_after = epoch + until;
    (Timestamp(from.as_secs() * 1000), Timestamp(until.as_secs() * 1000))
}

/// A random positive serial of fixed length, so that its hexadecimal form is the same everywhere.
fn new_serial() -> Result<SerialNumber, PkiError> {
    let mut bytes: [u8; SERIAL_BYTES] = random()?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}
