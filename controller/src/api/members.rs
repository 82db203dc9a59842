//! `fleet controller list|add|remove|transfer-leadership`: the controllers, as an admin sees them.
//!
//! Whether a removal leaves enough controllers that answer is judged here, by the leader that hears
//! them; the state machine only knows who is meant to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fleet_core::command::{Command, ControllerCommand, TokenCommand};
use fleet_core::time::Millis;
use fleet_core::{Rejection, Reply};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use futures::future::join_all;
use tonic::{Request, Status};

use super::Context;
use super::propose::request_key;
use crate::pki::token;
use crate::raft::{Progress, THERE_WITHIN};

/// How long the answer to a transfer waits for the new leader. Less than the 3 s after which `fleet` asks another
/// controller: only this answer says that the transfer may still happen.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks at it.
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// Why the fleet could not decide anything once only `left` vote, if so.
fn breaks_quorum(id: u64, left: &BTreeSet<u64>, there: &BTreeSet<u64>) -> Option<String> {
    let needed = left.len() / 2 + 1;
    let alive = left.intersection(there).count();
    if alive >= needed {
        return None;
    }
    let list =
        |ids: BTreeSet<u64>| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let dead = list(left.difference(there).copied().collect());
    Some(format!(
        "without controller {id}, {needed} of {} must answer, and {dead} does not; bring it back, or remove it first",
        left.len(),
    ))
}

impl Context {
    /// Addresses of all controllers, this one's own first.
    pub(super) fn addresses(&self) -> Vec<String> {
        let mut all: Vec<String> = self.advertise.iter().map(ToString::to_string).collect();
        let others: Vec<String> =
            self.raft.read(|f| f.roster().members().values().map(|c| c.address.clone()).collect());
        for address in others {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }

    /// Every controller, each asked how it stands.
    pub(super) async fn list_controllers(&self) -> v1::ListControllersResponse {
        let wanted: BTreeMap<u64, String> = self.raft.read(|fsm| {
            let members = fsm.roster().members().values();
            members.map(|member| (member.id, member.address.clone())).collect()
        });
        let now = self.raft.members();
        let mut all = wanted.clone();
        for (id, address) in now.voters.iter().chain(&now.learners) {
            all.entry(*id).or_insert_with(|| address.clone());
        }
        let figures = self.figures();
        let asking = all.into_iter().map(async |(id, address)| {
            let asked = figures.of(id, &address).await;
            let mut item = v1::Controller { id, address, ..Default::default() };
            match asked {
                Ok(figures) => {
                    item.role = figures.role;
                    item.term = Some(figures.term);
                    item.last_log_index = Some(figures.last_log_index);
                    item.applied_index = Some(figures.applied_index);
                    item.version = figures.version;
                }
                Err(silent) => {
                    item.role = "unreachable".to_owned();
                    item.problem = silent.to_string();
                }
            }
            item.voter = now.voters.contains_key(&id);
            if !now.contains(id) {
                item.role = "joining".to_owned();
            } else if !wanted.is_empty() && !wanted.contains_key(&id) {
                item.role = "leaving".to_owned();
            }
            item
        });
        let items = join_all(asking).await;
        let leader_id = self.raft.leadership().borrow().leader.unwrap_or(0);
        v1::ListControllersResponse { items, leader_id }
    }

    pub(super) async fn create_controller_token(
        &self,
        request: Request<v1::CreateControllerTokenRequest>,
    ) -> Result<v1::JoinToken, Status> {
        let caller = self.callers.user(&request).await?;
        // The secret is drawn here and shown once, so a retry makes another token: no request key.
        let ttl = match request.into_inner().ttl_ms {
            0 => token::TOKEN_TTL_DEFAULT,
            millis => Millis(millis),
        };
        let minted = token::mint_controller_token(self.keyring.signing().pin(), ttl)
            .map_err(|e| e.to_status())?;
        let command = Command::Token(TokenCommand::ForController(minted.command));
        match self.change(&caller.actor, None, command).await? {
            Reply::JoinTokenCreated { id, expires_at } => {
                let address = self.advertise.first().map(ToString::to_string).unwrap_or_default();
                let line = token::controller_join_line(&address, &minted.text);
                Ok(v1::JoinToken {
                    id: id.to_string(),
                    join_line: line.expose().to_owned(),
                    token: minted.text.expose().to_owned(),
                    expires_at_unix_ms: expires_at.0,
                })
            }
            other => Err(super::writes::unexpected(&other)),
        }
    }

    /// The controllers the leader hears now, itself included.
    fn there(&self) -> BTreeSet<u64> {
        self.heard_within(THERE_WITHIN)
    }

    fn heard_within(&self, time: Duration) -> BTreeSet<u64> {
        let progress = self.raft.progress();
        let heard = |p: &Progress| p.silent.is_some_and(|silent| silent <= time);
        let others = progress.iter().filter(|(_, p)| heard(p)).map(|(id, _)| *id);
        others.chain([self.raft.node()]).collect()
    }

    /// As `breaks_quorum`, by who answers from now on: one that has just died was heard a moment ago.
    async fn would_break_quorum(&self, id: u64, left: &BTreeSet<u64>) -> Option<String> {
        let asked = Instant::now();
        loop {
            let why = breaks_quorum(id, left, &self.heard_within(asked.elapsed()))?;
            if asked.elapsed() >= THERE_WITHIN {
                return Some(why);
            }
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }

    pub(super) async fn remove_controller(
        &self,
        request: Request<v1::RemoveControllerRequest>,
    ) -> Result<v1::ListControllersResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        self.callers.require_admin(&caller, "remove_controller")?;
        self.newest().await?;
        let id = request.id;
        let is_there = self.raft.read(|fsm| fsm.roster().members().contains_key(&id));
        let left: BTreeSet<u64> =
            self.raft.members().voters.into_keys().filter(|voter| *voter != id).collect();
        if is_there
            && !left.is_empty()
            && let Some(why) = self.would_break_quorum(id, &left).await
        {
            return Err(to_status(&Rejection::BreaksQuorum { why }));
        }
        self.change(
            &caller.actor,
            Some(key),
            Command::Controller(ControllerCommand::Remove { id }),
        )
        .await?;
        Ok(self.list_controllers().await)
    }

    pub(super) async fn transfer_leadership(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<v1::ListControllersResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let to = request.into_inner().to;
        self.callers.require_admin(&caller, "transfer_leadership")?;
        self.newest().await?;
        let (me, there, progress) = (self.raft.node(), self.there(), self.raft.progress());
        let voters = self.raft.members().voters;
        let to = match to {
            0 => {
                let others = voters.keys().filter(|id| **id != me && there.contains(id));
                let best = others.max_by_key(|id| progress.get(id).and_then(|p| p.matched));
                *best.ok_or_else(|| {
                    Status::failed_precondition("no other controller that votes answers")
                })?
            }
            id if !voters.contains_key(&id) => {
                return Err(to_status(&Rejection::not_found("controller that votes", id)));
            }
            id if !there.contains(&id) => {
                let problem = format!("controller {id} does not answer; it cannot lead");
                return Err(Status::failed_precondition(problem));
            }
            id => id,
        };
        if to != me {
            tracing::info!(to, by = %caller.name, "leadership is handed over");
            self.raft.transfer_leadership(to).await.map_err(|e| super::propose::read_status(&e))?;
            let moved =
                self.settle(|context| context.raft.leadership().borrow().leader == Some(to)).await;
            if !moved {
                let problem = format!(
                    "controller {to} did not take over within {} s, and may still do so; `fleet controller list` shows who leads",
                    SETTLE_TIMEOUT.as_secs()
                );
                return Err(Status::aborted(problem));
            }
        }
        Ok(self.list_controllers().await)
    }

    /// Waits a while until `reached`; says whether it was.
    async fn settle(&self, reached: impl Fn(&Context) -> bool) -> bool {
        let deadline = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        while tokio::time::Instant::now() < deadline {
            if reached(self) {
                return true;
            }
            tokio::time::sleep(SETTLE_POLL).await;
        }
        reached(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn judge(id: u64, left: &[u64], there: &[u64]) -> Option<String> {
        breaks_quorum(id, &left.iter().copied().collect(), &there.iter().copied().collect())
    }

    #[test]
    fn a_removal_must_leave_a_majority_that_answers() {
        assert_eq!(judge(3, &[1, 2], &[1, 2]), None, "the dead one goes");
        let why = judge(2, &[1, 3], &[1, 2]).unwrap();
        assert!(why.contains("2 of 2 must answer, and 3 does not"), "{why}");
        assert_eq!(judge(5, &[1, 2, 3, 4], &[1, 2, 3]), None);
        assert!(judge(3, &[1, 2, 4, 5], &[1, 2, 3]).unwrap().contains("4 and 5"));
        assert_eq!(judge(2, &[1], &[1, 2]), None);
    }
}
