//! How the controllers stand: this one knows of itself, the others are asked.
//!
//! The API shows it; the exchange of the certificate authority waits for it, in the leader's loop and in what an admin sees.

use std::collections::{BTreeMap, BTreeSet};

use fleet_proto::v1;
use futures::future::join_all;

use crate::peers::{Peers, Silent};
use crate::pki::Keyring;
use crate::raft::RaftHandle;

/// Asks for figures. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Figures {
    pub raft: RaftHandle,
    pub keyring: Keyring,
    pub peers: Peers,
}

impl Figures {
    /// How this controller stands.
    pub(crate) fn own(&self) -> v1::ControllerFigures {
        let (status, own) = (self.raft.status(), self.keyring.own());
        v1::ControllerFigures {
            controller_id: status.node,
            role: status.role.to_owned(),
            term: status.leadership.term,
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leader_id: status.leadership.leader.unwrap_or(0),
            authorities: own.ready.iter().map(ToString::to_string).collect(),
            incarnation: self.raft.incarnation(),
            signed_by: own.signed_by.map(|pin| pin.to_string()).unwrap_or_default(),
        }
    }

    /// How a controller stands: this one knows, others are asked.
    pub(crate) async fn of(&self, id: u64, address: &str) -> Result<v1::ControllerFigures, Silent> {
        if id == self.raft.node() {
            return Ok(self.own());
        }
        self.peers.figures(id, address).await
    }

    /// Asks every controller on the roster how it stands: who is `ready`, and why the others are not.
    async fn all_that_are(
        &self,
        ready: impl Fn(&v1::ControllerFigures) -> Result<(), String>,
    ) -> (BTreeSet<u64>, BTreeMap<u64, String>) {
        let members: Vec<(u64, String)> = self.raft.read(|fsm| {
            let members = fsm.roster().members().values();
            members.map(|member| (member.id, member.address.clone())).collect()
        });
        let asking = members.into_iter().map(async |(id, address)| {
            let figures = self.of(id, &address).await.map_err(|silent| silent.to_string());
            (id, figures.and_then(|figures| ready(&figures)))
        });
        let (mut there, mut missing) = (BTreeSet::new(), BTreeMap::new());
        for (id, found) in join_all(asking).await {
            match found {
                Ok(()) => drop(there.insert(id)),
                Err(why) => drop(missing.insert(id, why)),
            }
        }
        (there, missing)
    }

    /// Controllers that hold the key of this authority and trust it, and why the others do not.
    pub(crate) async fn with_key(&self, pin: &str) -> (BTreeSet<u64>, BTreeMap<u64, String>) {
        self.all_that_are(|figures| match figures.authorities.iter().any(|had| had == pin) {
            true => Ok(()),
            false => Err("has not fetched the new authority's key yet".to_owned()),
        })
        .await
    }

    /// Controllers whose own certificate is of this authority, and why the others' are not.
    pub(crate) async fn moved_to(&self, pin: &str) -> (BTreeSet<u64>, BTreeMap<u64, String>) {
        self.all_that_are(|figures| match figures.signed_by == pin {
            true => Ok(()),
            false => Err("still shows a certificate of the old authority".to_owned()),
        })
        .await
    }
}
