//! Keeps what listeners obey in step with the replicated state: which certificates are revoked, which authority
//! signs and which ones are trusted.
//!
//! A task for each on every controller, leader or not, spawned by `server.rs` before it listens. They only follow;
//! what is so is decided by the state machine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fleet_core::authority::Authorities;
use fleet_core::name::NodeName;
use fleet_proto::transport::{Revocations, SharedCredentials};

use super::{AuditSigner, Keyring, PkiError};
use crate::clock::wall;
use crate::peers::Peers;
use crate::raft::RaftHandle;

/// Pause before the other controllers are asked again for a key that is missing here.
const FETCH_AGAIN: Duration = Duration::from_millis(500);

/// Takes over what is known now, so that nobody slips in; the future does so until the state machine is gone.
pub fn revocations(raft: RaftHandle, list: Revocations) -> impl Future<Output = ()> + Send {
    let mut applied = raft.applied();
    applied.borrow_and_update();
    let mut followed = take_over(&raft, &list, None);
    async move {
        while applied.changed().await.is_ok() {
            applied.borrow_and_update();
            followed = take_over(&raft, &list, followed);
        }
    }
}

/// Replaces the list if another one is wanted than `followed`; says which one it is now.
fn take_over(raft: &RaftHandle, list: &Revocations, followed: Option<u64>) -> Option<u64> {
    let version = raft.read(|fsm| fsm.access().version);
    if followed != Some(version) {
        let revoked: BTreeSet<String> =
            raft.read(|fsm| fsm.access().revoked.keys().cloned().collect());
        tracing::info!(certificates = revoked.len(), "revoked certificates are refused");
        list.replace(revoked);
    }
    Some(version)
}

/// What the task for authorities works with.
#[derive(Debug)]
pub struct Following {
    pub raft: RaftHandle,
    pub keyring: Keyring,
    pub peers: Peers,
    pub id: NodeName,
    pub credentials: SharedCredentials,
    pub signer: Arc<AuditSigner>,
    /// The folder of the audit signer's key.
    pub folder: PathBuf,
}

/// Follows the exchange of authorities until the state machine is gone: fetches a key that is missing here, and
/// has listeners, dialers and the audit signer use what the state says.
pub async fn authorities(following: Following) {
    let mut applied = following.raft.applied();
    let mut followed = None;
    loop {
        applied.borrow_and_update();
        let newer = following.raft.read(|fsm| {
            let state = fsm.authorities();
            (followed != Some(state.version)).then(|| state.clone())
        });
        if let Some(state) = newer {
            match following.take_over(&state) {
                Ok(true) => {
                    followed = Some(state.version);
                    continue;
                }
                Ok(false) => following.fetch(&state).await,
                Err(error) => tracing::error!(%error, "cannot follow the authorities"),
            }
            tokio::time::sleep(FETCH_AGAIN).await;
        } else if applied.changed().await.is_err() {
            return;
        }
    }
}

impl Following {
    /// True once nothing is missing.
    fn take_over(&self, state: &Authorities) -> Result<bool, PkiError> {
        let before = self.keyring.signing().pin();
        let complete = self.keyring.follow(state)?;
        self.keyring.renew_own(&self.id, wall(), &self.credentials)?;
        let signing = self.keyring.signing();
        if signing.pin() != before {
            tracing::info!(pin = %signing.pin(), "another authority signs from now on");
        }
        self.signer.renew(&signing, &self.folder, &self.id, wall())?;
        Ok(complete)
    }

    /// Asks the others, one after the other, until one has given what is missing.
    async fn fetch(&self, state: &Authorities) {
        let me = self.raft.node();
        let others: Vec<(u64, String)> = self.raft.read(|fsm| {
            let members = fsm.roster().members().values().filter(|member| member.id != me);
            members.map(|member| (member.id, member.address.clone())).collect()
        });
        for (id, address) in others {
            let taken = match self.peers.authority_keys(id, &address).await {
                Ok(keys) => self.keyring.take(&keys, state).map_err(|error| error.to_string()),
                Err(problem) => Err(problem),
            };
            match taken.and_then(|()| self.keyring.follow(state).map_err(|e| e.to_string())) {
                Ok(true) => {
                    tracing::info!(from = id, "fetched the key of the new authority");
                    return;
                }
                Ok(false) => {}
                Err(problem) => {
                    tracing::warn!(from = id, problem, "the new authority's key did not come");
                }
            }
        }
    }
}
