//! Stops a controller from before a restore from a backup: the fleet continues under a higher incarnation, and no
//! node would hear what this controller promises. It does not start again.
//!
//! Two can tell it, with proof: a controller of the restored fleet, by its certificate (`leader/predecessors.rs`
//! there, `api/controllers.rs` here), and a node that shows the restored fleet's signature ([`signed`], `api/agents.rs`).
//! A controller that learned it passes it on to the others from before the restore.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fleet_proto::transport::files::{self, MODE_PRIVATE};
use fleet_proto::transport::signature::{incarnation_text, verify_audit_signature};
use fleet_proto::v1;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::peers::Peers;
use crate::pki::{AuditSigner, Keyring, PkiError};
use crate::raft::RaftHandle;

const FILE: &str = "superseded.json";
/// Version of the file that this build writes.
const VERSION: u32 = 1;

/// This controller's fleet continues without it; starting it again would not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "this controller belongs to the fleet before a restore: {told_by} has incarnation {incarnation}, and nodes follow the restored controllers only. To use this machine again, move its data_dir away, keep it, and join"
)]
pub struct Superseded {
    v: u32,
    pub incarnation: u64,
    /// Who said so: `node titan01`, `controller 1790000000`.
    pub told_by: String,
}

/// Where those who hear of it tell it. Clones are the same.
#[derive(Debug, Clone)]
pub struct Notice(Arc<watch::Sender<Option<Superseded>>>);

impl Default for Notice {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Notice {
    /// `told_by` has proved that it belongs to `incarnation`, which is higher than this controller's.
    pub fn tell(&self, incarnation: u64, told_by: String) {
        self.0.send_if_modified(|known| {
            let is_news = known.is_none();
            if is_news {
                *known = Some(Superseded { v: VERSION, incarnation, told_by });
            }
            is_news
        });
    }

    /// Returns once somebody has told it.
    pub async fn told(&self) -> Superseded {
        let mut known = self.0.subscribe();
        let told = known.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        match told {
            Some(told) => told,
            // The sender is here: it is never gone.
            None => std::future::pending().await,
        }
    }
}

impl Superseded {
    /// Keeps it for the next start.
    pub fn store(&self, data_dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        files::write_atomic(&data_dir.join(FILE), &text, MODE_PRIVATE)?;
        Ok(())
    }

    /// What was kept by an earlier run.
    pub fn find(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = data_dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        serde_json::from_str(&text).map(Some).with_context(|| format!("read {}", path.display()))
    }
}

/// Passes what this controller learned on to the others from before the restore: its source may not reach them.
pub async fn pass_on(raft: &RaftHandle, peers: &Peers, incarnation: u64) {
    let me = raft.node();
    let others = raft.members().voters.into_iter().filter(|(id, _)| *id != me);
    let told = others.map(async |(_, address)| peers.tell_incarnation(&address, incarnation).await);
    join_all(told).await;
}

/// The fleet's word that it is at `incarnation`, for its nodes to show.
pub fn signed(
    signer: &AuditSigner,
    cluster: &str,
    incarnation: u64,
) -> Result<v1::SignedIncarnation, PkiError> {
    let signature = signer.sign(&incarnation_text(cluster, incarnation))?;
    Ok(v1::SignedIncarnation {
        incarnation,
        signer_der: signature.certificate_der,
        signature: signature.signature,
    })
}

/// Whether an authority that is trusted here vouches for the signer of `shown`.
pub fn is_genuine(keyring: &Keyring, cluster: &str, shown: &v1::SignedIncarnation) -> bool {
    let text = incarnation_text(cluster, shown.incarnation);
    let vouches = |authority: &Vec<u8>| {
        verify_audit_signature(authority, &shown.signer_der, &text, &shown.signature).is_ok()
    };
    keyring.trusted().iter().any(vouches)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_core::name::NodeName;

    use super::*;
    use crate::clock::wall;
    use crate::pki::Authority;

    #[test]
    fn only_what_an_authority_of_the_fleet_vouches_for_is_genuine() {
        let (own, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = NodeName::parse("controller-7").unwrap();
        let signer_in = |folder: &Path| {
            let authority = Authority::create(folder, wall()).unwrap();
            let cluster = authority.cluster().to_string();
            (AuditSigner::load_or_create(&authority, folder, &name, wall()).unwrap(), cluster)
        };
        let (signer, cluster) = signer_in(own.path());
        let (stranger, _) = signer_in(foreign.path());
        let keyring = Keyring::load(own.path()).unwrap();
        let word = signed(&signer, &cluster, 17).unwrap();
        assert!(is_genuine(&keyring, &cluster, &word));
        let higher = v1::SignedIncarnation { incarnation: 18, ..word.clone() };
        assert!(!is_genuine(&keyring, &cluster, &higher), "it was not signed for this number");
        assert!(!is_genuine(&keyring, "fleet-other", &word), "nor for this fleet");
        let foreign = signed(&stranger, &cluster, 17).unwrap();
        assert!(!is_genuine(&keyring, &cluster, &foreign));
        assert!(!is_genuine(&keyring, &cluster, &v1::SignedIncarnation::default()));
    }

    #[tokio::test]
    async fn what_was_told_first_is_kept_for_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Superseded::find(dir.path()).unwrap(), None);
        let notice = Notice::default();
        notice.tell(17, "node titan01".to_owned());
        notice.tell(18, "node titan02".to_owned());
        let told = notice.told().await;
        assert_eq!((told.incarnation, told.told_by.as_str()), (17, "node titan01"));
        told.store(dir.path()).unwrap();
        assert_eq!(Superseded::find(dir.path()).unwrap(), Some(told));
    }
}
