//! The certificate authority that the product's types ask for. Nothing is encrypted in a simulation; it is
//! made before a run begins, on another thread, so that making keys draws nothing from the seed.

use std::path::Path;
use std::sync::Arc;

use fleet_controller::pki::{AuditSigner, Authority, Keyring};
use fleet_core::name::NodeName;
use fleet_core::time::Timestamp;
use fleet_proto::transport::SharedCredentials;

use crate::scene::BEGIN_MS;

/// See the module's doc.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    pub(crate) folder: std::path::PathBuf,
    pub(crate) authority: Arc<Authority>,
    pub(crate) keyring: Keyring,
    pub(crate) signer: Arc<AuditSigner>,
    pub(crate) credentials: SharedCredentials,
}

fn owner() -> NodeName {
    NodeName::parse("controller-1").expect("a legal name")
}

impl Pki {
    /// Reads what is in `folder`, or makes it.
    pub(crate) fn open(folder: &Path) -> Pki {
        let now = Timestamp(BEGIN_MS);
        let authority = match Authority::load(folder) {
            Ok(authority) => authority,
            Err(_) => Authority::create(folder, now).expect("a new authority"),
        };
        let signer =
            AuditSigner::load_or_create(&authority, folder, &owner(), now).expect("a signer");
        let keyring = Keyring::load(folder).expect("what was made");
        let own = keyring.own_credentials(&owner(), now).expect("credentials");
        let credentials = SharedCredentials::new(own).expect("usable credentials");
        let folder = folder.to_owned();
        Pki {
            folder,
            authority: Arc::new(authority),
            keyring,
            signer: Arc::new(signer),
            credentials,
        }
    }
}
