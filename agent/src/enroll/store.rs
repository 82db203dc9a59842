//! The node's identity on disk: `agent.key`, `agent.crt`, `ca.crt`, `identity.json`.
//!
//! Each file is replaced whole. `identity.json` is written last: without it there is no membership,
//! and a join that was cut short is started over with the same key (`agent.key.new`).

use std::path::{Path, PathBuf};

use fleet_core::id::ClusterId;
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::client::{Address, AddressError};
use fleet_proto::transport::credentials::{CredentialError, Credentials};
use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE, MODE_PUBLIC};
use fleet_proto::transport::identity::{CertificateFault, Identity, Role, key_pin_of};
use fleet_proto::transport::issued::Accepted;
use fleet_proto::transport::keys::{KeyError, OwnKey};
use fleet_proto::transport::secret::Secret;
use fleet_proto::transport::token::SpkiPin;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

/// Version of `identity.json` written by this program; a newer one is not read.
pub const RECORD_VERSION: u32 = 1;

const KEY: &str = "agent.key";
const PENDING_KEY: &str = "agent.key.new";
const CERTIFICATE: &str = "agent.crt";
const AUTHORITY: &str = "ca.crt";
const RECORD: &str = "identity.json";

/// What is wrong with the stored identity.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} was written by a newer version of fleet (v{found})", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("this node has not joined a fleet: run `fleet-agent join`")]
    NotJoined,
    #[error("{}: {source}; run `fleet-agent join` again", folder.display())]
    Credentials {
        folder: PathBuf,
        #[source]
        source: CredentialError,
    },
    #[error("{}: agent.crt belongs to {found}, identity.json says {expected}; run `fleet-agent join` again", folder.display())]
    Mixed { folder: PathBuf, expected: String, found: String },
    #[error("this node joined as {found} meanwhile: restart the agent")]
    Left { found: String },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{}: {source}", path.display())]
    Certificate {
        path: PathBuf,
        #[source]
        source: CertificateFault,
    },
    #[error("{}: {source}", path.display())]
    Address {
        path: PathBuf,
        #[source]
        source: AddressError,
    },
}

/// `identity.json`: of which fleet this node is a member, and under which name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRecord {
    pub v: u32,
    pub cluster: ClusterId,
    pub node: NodeName,
    /// Controllers, `host:port`, in the order they are tried.
    pub controllers: Vec<String>,
    pub joined_at: Timestamp,
}

impl IdentityRecord {
    pub(super) fn identity(&self) -> Identity {
        Identity::new(self.cluster.clone(), Role::Node(self.node.clone()))
    }
}

/// The folder with the four files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFolder(PathBuf);

impl IdentityFolder {
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// This node's own certificate.
    pub fn certificate(&self) -> PathBuf {
        self.file(CERTIFICATE)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The membership on record, if there is one.
    pub fn record(&self) -> Result<Option<IdentityRecord>, StoreError> {
        let path = self.file(RECORD);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = files::read_limited(&path)?;
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let damaged = |error: serde_json::Error| {
            let path = path.clone();
            StoreError::Damaged { path, reason: error.to_string() }
        };
        let Version { v } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if v > RECORD_VERSION {
            return Err(StoreError::Newer { path, found: v });
        }
        Ok(Some(serde_json::from_slice(&bytes).map_err(damaged)?))
    }

    /// Record and credentials of a joined node. The certificate may have expired: the agent still
    /// starts, keeps its jobs, and renews.
    pub fn load(&self) -> Result<(IdentityRecord, Credentials), StoreError> {
        let record = self.record()?.ok_or(StoreError::NotJoined)?;
        let credentials =
            Credentials::load(&self.file(CERTIFICATE), &self.file(KEY), &self.file(AUTHORITY))
                .map_err(|source| StoreError::Credentials { folder: self.0.clone(), source })?;
        let expected = record.identity();
        let found = &credentials.leaf().identity;
        if *found != expected {
            let (folder, expected) = (self.0.clone(), expected.to_string());
            return Err(StoreError::Mixed { folder, expected, found: found.to_string() });
        }
        Ok((record, credentials))
    }

    /// The addresses on record.
    pub fn addresses(&self, record: &IdentityRecord) -> Result<Vec<Address>, StoreError> {
        let parse = |text: &String| {
            let failed = |source| StoreError::Address { path: self.file(RECORD), source };
            text.parse().map_err(failed)
        };
        record.controllers.iter().map(parse).collect()
    }

    /// Replaces the addresses on record, if it is still that of this membership.
    pub fn store_addresses(&self, of: &Identity, addresses: &[Address]) -> Result<(), StoreError> {
        let mut record = self.record()?.ok_or(StoreError::NotJoined)?;
        let found = record.identity();
        if found != *of {
            return Err(StoreError::Left { found: found.to_string() });
        }
        record.controllers = addresses.iter().map(ToString::to_string).collect();
        let path = self.file(RECORD);
        let json = serde_json::to_vec_pretty(&record).map_err(|error| StoreError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        Ok(files::write_atomic(&path, &json, MODE_PUBLIC)?)
    }

    /// The key in use.
    pub fn key(&self) -> Result<OwnKey, StoreError> {
        self.read_key(KEY)
    }

    /// The pins of the stored authorities.
    pub fn authority_pins(&self) -> Result<Vec<SpkiPin>, StoreError> {
        let path = self.file(AUTHORITY);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let pem = files::read_limited(&path)?;
        let found: Result<Vec<CertificateDer<'_>>, _> =
            CertificateDer::pem_slice_iter(&pem).collect();
        let Some(found) = found.ok().filter(|found| !found.is_empty()) else {
            return Err(StoreError::Damaged { path, reason: "not a certificate".to_owned() });
        };
        let pins: Result<Vec<SpkiPin>, CertificateFault> =
            found.iter().map(|der| key_pin_of(der)).collect();
        pins.map_err(|source| StoreError::Certificate { path, source })
    }

    /// The key for a join: the one of an attempt that was cut short, else a new one, stored first.
    pub(super) fn pending_key(&self) -> Result<OwnKey, StoreError> {
        let path = self.file(PENDING_KEY);
        if path.exists()
            && let Ok(key) = self.read_key(PENDING_KEY)
        {
            return Ok(key);
        }
        let key = OwnKey::generate()?;
        files::create_private_folder(&self.0)?;
        files::write_atomic(&path, key.to_pem().expose().as_bytes(), MODE_PRIVATE)?;
        Ok(key)
    }

    /// Makes a finished join the membership of this node.
    pub(super) fn commit(
        &self,
        record: &IdentityRecord,
        key: &OwnKey,
        accepted: &Accepted,
    ) -> Result<(), StoreError> {
        let path = self.file(RECORD);
        let json = serde_json::to_vec_pretty(record).map_err(|error| StoreError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        let authority = accepted.authority_pem.as_bytes();
        files::write_atomic(&self.file(AUTHORITY), authority, MODE_PUBLIC)?;
        files::write_atomic(&self.file(KEY), key.to_pem().expose().as_bytes(), MODE_PRIVATE)?;
        self.replace_certificate(&accepted.certificate_pem)?;
        files::write_atomic(&path, &json, MODE_PUBLIC)?;
        // What is left of a removal that fails is used by the next join, harmlessly.
        drop(std::fs::remove_file(self.file(PENDING_KEY)));
        Ok(())
    }

    /// Stores a renewed certificate for the same key, and the authorities to trust from now on.
    pub(super) fn renewed(&self, accepted: &Accepted) -> Result<(), StoreError> {
        let authorities = accepted.authority_pem.as_bytes();
        files::write_atomic(&self.file(AUTHORITY), authorities, MODE_PUBLIC)?;
        self.replace_certificate(&accepted.certificate_pem)
    }

    fn replace_certificate(&self, pem: &str) -> Result<(), StoreError> {
        Ok(files::write_atomic(&self.file(CERTIFICATE), pem.as_bytes(), MODE_PUBLIC)?)
    }

    fn read_key(&self, name: &str) -> Result<OwnKey, StoreError> {
        let path = self.file(name);
        let pem = String::from_utf8(files::read_private(&path)?)
            .map_err(|_| StoreError::Damaged { path, reason: "not text".to_owned() })?;
        Ok(OwnKey::from_pem(&Secret::new(pem))?)
    }
}
