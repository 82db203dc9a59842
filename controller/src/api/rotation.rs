//! `fleet controller ca`: the exchange of the certificate authority, as an admin asks for it and sees it.
//!
//! A new authority is made here, by the leader, in its own key folder, before the log hears of its public part.
//! Which controllers are ready is asked of each of them; who of the nodes and users is, the state knows.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::authority::Stage;
use fleet_core::command::{AuthorityCommand, Command};
use fleet_core::name::NodeName;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::{from_status, to_status};
use fleet_proto::convert::wish;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::propose::request_key;
use crate::clock::wall;

impl Context {
    pub(super) async fn get_authority_status(
        &self,
        request: Request<v1::GetAuthorityStatusRequest>,
    ) -> Result<v1::AuthorityStatus, Status> {
        self.callers.user(&request).await?;
        self.newest().await?;
        Ok(self.authority_status().await)
    }

    pub(super) async fn rotate_authority(
        &self,
        request: Request<v1::RotateAuthorityRequest>,
    ) -> Result<v1::AuthorityStatus, Status> {
        let caller = self.callers.user(&request).await?;
        self.callers.require_admin(&caller, "rotate_authority")?;
        self.newest().await?;
        let under_way = self.raft.read(|fsm| fsm.authorities().rotation.is_some());
        // Asking again is harmless: the rotation that is under way continues.
        if under_way {
            return Ok(self.authority_status().await);
        }
        // Drawn here, so a retry would make another one: no request key, but the look above.
        let (from, to) = self.keyring.begin(wall()).map_err(|error| {
            tracing::error!(%error, "no new authority could be made");
            error.to_status()
        })?;
        let pin = to.pin.clone();
        let command = Command::Authority(AuthorityCommand::StartRotation { from, to });
        let started = self.change(&caller.actor, None, command).await;
        if let Err(status) = started {
            // Where nobody knows how it ended, the key may be needed yet.
            let refused = from_status(&status).is_some();
            if refused && let Err(error) = self.keyring.discard(&pin) {
                tracing::warn!(%error, "the key of an authority that came to nothing stays");
            }
            return Err(status);
        }
        tracing::info!(pin, by = %caller.name, "the certificate authority is being exchanged");
        Ok(self.authority_status().await)
    }

    pub(super) async fn skip_in_rotation(
        &self,
        request: Request<v1::SkipInRotationRequest>,
    ) -> Result<v1::AuthorityStatus, Status> {
        let caller = self.callers.user(&request).await?;
        let asked = request.get_ref();
        let key = request_key(asked.meta.as_ref(), asked)?;
        let nodes: Result<BTreeSet<NodeName>, Rejection> =
            asked.nodes.iter().map(|name| wish::node("nodes", name)).collect();
        let nodes = nodes.map_err(|rejection| to_status(&rejection))?;
        if nodes.is_empty() && !asked.users {
            let nothing = "name the nodes that are not to be waited for, or say users";
            return Err(to_status(&Rejection::field("nodes", nothing)));
        }
        let command = AuthorityCommand::SkipInRotation { nodes, users: asked.users };
        self.change(&caller.actor, Some(key), Command::Authority(command)).await?;
        Ok(self.authority_status().await)
    }

    pub(super) async fn abort_rotation(
        &self,
        request: Request<v1::AbortRotationRequest>,
    ) -> Result<v1::AuthorityStatus, Status> {
        let caller = self.callers.user(&request).await?;
        self.callers.require_admin(&caller, "abort_rotation")?;
        let key = request_key(request.get_ref().meta.as_ref(), request.get_ref())?;
        self.newest().await?;
        // Going back is a change of authority, too: any leader must be able to sign with the old one.
        let back = self.raft.read(|fsm| {
            let rotation = fsm.authorities().rotation.as_ref();
            let moving = rotation.filter(|rotation| rotation.stage == Stage::Moving);
            moving.map(|rotation| rotation.from.pin.clone())
        });
        if let Some(pin) = back {
            let (_, missing) = self.figures().with_key(&pin).await;
            if let Some((id, why)) = missing.into_iter().next() {
                let why = format!("controller {id}, which has to sign with the old one: {why}");
                return Err(to_status(&Rejection::Authority { why }));
            }
        }
        let command = Command::Authority(AuthorityCommand::AbortRotation);
        self.change(&caller.actor, Some(key), command).await?;
        Ok(self.authority_status().await)
    }

    /// How the authority stands, and who is waited for.
    async fn authority_status(&self) -> v1::AuthorityStatus {
        let mut status = self.raft.read(of_state);
        let stage = self.raft.read(|fsm| {
            let rotation = fsm.authorities().rotation.as_ref();
            rotation.map(|rotation| (rotation.stage, rotation.to.pin.clone()))
        });
        let missing = match stage {
            None => BTreeMap::new(),
            Some((Stage::Spreading, pin)) => self.figures().with_key(&pin).await.1,
            Some((Stage::Moving, pin)) => self.figures().moved_to(&pin).await.1,
        };
        let waiting = missing.into_iter().map(|(id, why)| v1::WaitingController { id, why });
        status.controllers = waiting.collect();
        let signing = self.keyring.signing();
        if status.signing.is_empty() {
            status.signing = signing.pin().to_string();
        }
        if status.signing == signing.pin().to_string() {
            status.signing_until_unix_ms = signing.not_after().0;
        }
        status
    }
}

/// What the state says of it.
fn of_state(fsm: &Fsm) -> v1::AuthorityStatus {
    let all = fsm.authorities();
    let mut status = v1::AuthorityStatus {
        stage: "settled".to_owned(),
        signing: all.signing().map(|known| known.pin.clone()).unwrap_or_default(),
        ..v1::AuthorityStatus::default()
    };
    let Some(rotation) = &all.rotation else { return status };
    let waiting = fsm.waiting_in_rotation();
    status.stage = rotation.stage.word().to_owned();
    status.also_trusted.clone_from(&rotation.other().pin);
    status.started_by.clone_from(&rotation.by);
    status.started_at_unix_ms = Some(rotation.started_at.0);
    status.moving_since_unix_ms = rotation.moving_since.map(|at| at.0);
    status.nodes = waiting.nodes.iter().map(ToString::to_string).collect();
    status.user_certificates = waiting.user_certificates;
    status.users_until_unix_ms = waiting.users_until.map(|at| at.0);
    let left = rotation.skipped.iter().filter(|node| !rotation.nodes.contains(*node));
    status.skipped_nodes = left.map(ToString::to_string).collect();
    status.users_skipped = rotation.users_skipped;
    status.moved_nodes = rotation.nodes.len() as u64;
    status
}
