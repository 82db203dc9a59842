//! The CA itself: its key, its certificate, and what it issues.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use fleet_core::id::ClusterId;
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_proto::transport::credentials::Credentials;
use fleet_proto::transport::files::{self, MODE_PRIVATE, MODE_PUBLIC};
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
    AUDIT_SIGNER_LIFE, AUTHORITY_LIFE, BACKDATING, CONTROLLER_LIFE, NODE_LIFE, PkiError,
    SERIAL_BYTES, USER_LIFE, crypto, random,
};

const KEY_FILE: &str = "ca.key";
const CERTIFICATE_FILE: &str = "ca.crt";
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

/// The certificate authority of one cluster.
pub struct Authority {
    cluster: ClusterId,
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
        let cluster = cluster_id(random()?);
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("make the CA key"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "fleet");
        params.distinguished_name.push(DnType::CommonName, cluster.as_str());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(new_serial()?);
        set_validity(&mut params, now, AUTHORITY_LIFE);
        let certificate = params.self_signed(&key).map_err(crypto("sign the CA certificate"))?;
        files::create_private_folder(folder)?;
        let key_pem = Secret::new(key.serialize_pem());
        files::write_atomic(&folder.join(KEY_FILE), key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&path, certificate.pem().as_bytes(), MODE_PUBLIC)?;
        Self::load(folder)
    }

    /// Reads what [`Authority::create`] wrote.
    pub fn load(folder: &Path) -> Result<Self, PkiError> {
        let path = folder.join(CERTIFICATE_FILE);
        if !path.exists() {
            return Err(PkiError::NotInitialised { path });
        }
        let damaged = |reason: String| PkiError::Damaged { path: path.clone(), reason };
        let pem = files::read_limited(&path)?;
        let certificate =
            CertificateDer::from_pem_slice(&pem).map_err(|error| damaged(error.to_string()))?;
        let (cluster, not_after) = read_authority(&certificate).map_err(damaged)?;
        let pin = key_pin_of(&certificate)?;

        let key_path = folder.join(KEY_FILE);
        let damaged = |reason: String| PkiError::Damaged { path: key_path.clone(), reason };
        let key_pem = String::from_utf8(files::read_private(&key_path)?)
            .map_err(|_| damaged("not text".to_owned()))?;
        let key = KeyPair::from_pem(&key_pem).map_err(|error| damaged(error.to_string()))?;
        if SpkiPin::of_spki(&key.subject_public_key_info()) != pin {
            return Err(damaged(format!("it is not the key of {}", path.display())));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(crypto("read the CA"))?;
        Ok(Self { cluster, certificate, pin, not_after, issuer })
    }

    /// Writes down what another controller gave of itself: `create` for one that joins.
    pub fn install(folder: &Path, keys: &[v1::AuthorityKey]) -> Result<Self, PkiError> {
        let key = keys.first().ok_or_else(|| PkiError::Damaged {
            path: folder.join(KEY_FILE),
            reason: "no key came from the other controller".to_owned(),
        })?;
        files::create_private_folder(folder)?;
        let certificate = certificate_pem(&key.certificate_der);
        files::write_atomic(&folder.join(KEY_FILE), key.key_pem.as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&folder.join(CERTIFICATE_FILE), certificate.as_bytes(), MODE_PUBLIC)?;
        Self::load(folder)
    }

    /// All of it, private keys included, for another controller.
    pub fn to_wire(&self) -> Vec<v1::AuthorityKey> {
        let key_pem = self.issuer.key().serialize_pem();
        vec![v1::AuthorityKey { certificate_der: self.certificate.to_vec(), key_pem }]
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
        self.issue(&request.key, Role::Node(name.clone()), NODE_LIFE, now)
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

    pub(super) fn issue_audit_signer(
        &self,
        key: &KeyPair,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Issued, PkiError> {
        self.issue(key, Role::AuditSigner(id.clone()), AUDIT_SIGNER_LIFE, now)
    }

    /// This controller's own credentials from `folder`; makes a new key and certificate when there
    /// are none, when they cannot be used, or when half of their life is over.
    pub fn own_credentials(
        &self,
        folder: &Path,
        id: &NodeName,
        now: Timestamp,
    ) -> Result<Credentials, PkiError> {
        let key_path = folder.join(SERVER_KEY_FILE);
        let certificate_path = folder.join(SERVER_CERTIFICATE_FILE);
        let authority_path = folder.join(CERTIFICATE_FILE);
        let old = match Credentials::load(&certificate_path, &key_path, &authority_path) {
            Ok(own) if self.is_fresh(&own, id, now) => return Ok(own),
            Ok(own) => {
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
        let issued = match (
            self.issue(&key, Role::Controller(id.clone()), CONTROLLER_LIFE, now),
            old,
        ) {
            (Ok(issued), _) => issued,
            // Rather the clock than ten years: with the old one an admin can still look and set it right.
            (Err(error @ PkiError::AuthorityExpired { .. }), Some(old)) => {
                tracing::error!(%error, "keeping the controller's own certificate; is this machine's clock right?");
                return Ok(old);
            }
            (Err(error), _) => return Err(error),
        };
        let chain = certificate_pem(&issued.certificate_der);
        let key_pem = Secret::new(key.serialize_pem());
        // Key first: a crash in between leaves a pair that does not match, which is made anew.
        files::write_atomic(&key_path, key_pem.expose().as_bytes(), MODE_PRIVATE)?;
        files::write_atomic(&certificate_path, chain.as_bytes(), MODE_PUBLIC)?;
        let authority = self.certificate_pem();
        let own = Credentials::from_pem(
            chain.as_bytes(),
            key_pem.expose().as_bytes(),
            authority.as_bytes(),
        )?;
        Ok(own)
    }

    fn is_fresh(&self, own: &Credentials, id: &NodeName, now: Timestamp) -> bool {
        let leaf = own.leaf();
        let expected = Identity::new(self.cluster.clone(), Role::Controller(id.clone()));
        let issued_here = own.authorities().iter().any(|a| a.as_ref() == self.certificate.as_ref());
        let half = leaf.not_before + leaf.not_after.saturating_sub(leaf.not_before) / 2;
        leaf.identity == expected
            && issued_here
            && leaf.not_before <= now.0 / 1000
            && now.0 / 1000 < half
    }

    fn issue(
        &self,
        key: &impl PublicKeyData,
        role: Role,
        life: Duration,
        now: Timestamp,
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
        let (not_before, not_after) = set_validity(&mut params, now, life);
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

impl Issued {
    /// The reply to the one who asked. `controllers` are the addresses it should use.
    pub fn to_wire(
        &self,
        authority: &Authority,
        now: Timestamp,
        controllers: Vec<String>,
    ) -> v1::IssuedCertificate {
        v1::IssuedCertificate {
            certificate_der: self.certificate_der.clone(),
            ca_der: authority.certificate_der().to_vec(),
            cluster_id: authority.cluster().to_string(),
            identity: self.identity.to_string(),
            serial: self.serial.clone(),
            not_before_unix_ms: self.not_before.0,
            not_after_unix_ms: self.not_after.0,
            now_unix_ms: now.0,
            controllers,
            trusted_der: vec![authority.certificate_der().to_vec()],
        }
    }
}

/// Cluster id and end of validity, from a CA certificate of ours.
fn read_authority(der: &[u8]) -> Result<(ClusterId, Timestamp), String> {
    let (_, cert) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    if !cert.is_ca() {
        return Err("it is not a CA certificate".to_owned());
    }
    let name = cert.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let name = name.ok_or_else(|| "it names no cluster".to_owned())?;
    let cluster = ClusterId::parse(name).map_err(|error| error.to_string())?;
    let seconds = u64::try_from(cert.validity().not_after.timestamp()).unwrap_or(0);
    Ok((cluster, Timestamp(seconds.saturating_mul(1000))))
}

/// Sets the validity, in whole seconds, and returns it.
fn set_validity(
    params: &mut CertificateParams,
    now: Timestamp,
    life: Duration,
) -> (Timestamp, Timestamp) {
    let now = Duration::from_secs(now.0 / 1000);
    let (from, until) = (now.saturating_sub(BACKDATING), now.saturating_add(life));
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
