//! Commands about the cluster itself: its beginning, its version, its clock, tokens, refusals.

use super::{Fsm, Turn};
use crate::command::{CreateJoinToken, RefusedRequests};
use crate::event::Event;
use crate::id::{ClusterId, TokenId};
use crate::name::{NodeName, TEXT_BYTES_MAX, UserName};
use crate::node::{JoinToken, MachineIdentity};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::{Millis, Timestamp};
use crate::{Who, name};

/// Longest life of a join token.
pub(crate) const TOKEN_TTL_MAX: Millis = Millis::days(7);
/// Most nodes one token may name.
pub(crate) const TOKEN_NAMES_MAX: usize = 256;
/// Most join tokens at a time.
pub(crate) const TOKENS_MAX: usize = 1_000;
/// Most lines of one batch of refusals.
pub(crate) const REFUSALS_MAX: usize = 100;

impl Fsm {
    pub(super) fn init_cluster(
        &mut self,
        turn: &mut Turn<'_>,
        cluster: &ClusterId,
        incarnation: u64,
    ) -> Result<Reply, Rejection> {
        if let Some(have) = &self.cluster {
            if have != cluster {
                return Err(Rejection::WrongCluster { have: have.to_string() });
            }
            if incarnation <= self.incarnation {
                return Ok(Reply::Done);
            }
        }
        if self.cluster.is_some() {
            self.begin_recount(turn.before);
        }
        self.cluster = Some(cluster.clone());
        self.incarnation = incarnation;
        // A restored cluster begins with one controller; none of the old ones speaks for it.
        self.roster.members.clear();
        self.roster.tokens.clear();
        self.cluster_version = self.cluster_version.max(1);
        turn.say(Event::ClusterInitialised { cluster: cluster.clone(), incarnation });
        Ok(Reply::Done)
    }

    pub(super) fn set_cluster_version(
        &mut self,
        turn: &mut Turn<'_>,
        version: u32,
    ) -> Result<Reply, Rejection> {
        if version < self.cluster_version {
            return Err(Rejection::ClusterVersion { needs: version, have: self.cluster_version });
        }
        if version > self.cluster_version {
            self.cluster_version = version;
            turn.say(Event::ClusterVersionSet { version });
        }
        Ok(Reply::Done)
    }

    /// Sets time back after a clock ran ahead. Whatever the wrong time did stays done; nothing that
    /// is still planned is moved.
    pub(super) fn reset_clock(
        &mut self,
        turn: &mut Turn<'_>,
        to: Timestamp,
    ) -> Result<Reply, Rejection> {
        let from = self.now;
        self.now = to;
        self.requests.forget_after(to);
        turn.say(Event::ClockReset { from, to });
        Ok(Reply::Done)
    }

    /// Of nodes or of controllers: an id belongs to one of them.
    pub(super) fn withdraw_token(
        &mut self,
        turn: &mut Turn<'_>,
        token: &TokenId,
    ) -> Result<Reply, Rejection> {
        let of_node = self.tokens.remove(token).is_some();
        if !of_node && self.roster.tokens.remove(token).is_none() {
            return Err(Rejection::not_found("token", token));
        }
        let by = turn.actor.display_name();
        turn.say(Event::TokenWithdrawn { token: token.clone(), by });
        Ok(Reply::Done)
    }

    pub(super) fn create_join_token(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &CreateJoinToken,
    ) -> Result<Reply, Rejection> {
        if wish.names.is_empty() || wish.names.len() > TOKEN_NAMES_MAX {
            let problem = format!("1 to {TOKEN_NAMES_MAX} node names are needed");
            return Err(Rejection::field("names", problem));
        }
        if wish.ttl == Millis::ZERO || wish.ttl > TOKEN_TTL_MAX {
            return Err(Rejection::field("ttl", format!("must be at most {TOKEN_TTL_MAX}")));
        }
        let hexadecimal = wish.secret_sha256.bytes().all(|b| b.is_ascii_hexdigit());
        if wish.secret_sha256.len() != 64 || !hexadecimal {
            return Err(Rejection::field("secret_sha256", "must be 64 hexadecimal digits"));
        }
        let Who::User { name: created_by, .. } = &turn.actor.who else {
            return Err(Rejection::Denied { needs: "a user".to_owned() });
        };
        if self.tokens.contains_key(&wish.id) {
            return Err(Rejection::IdTaken { id: wish.id.to_string() });
        }
        let now = self.now;
        self.tokens.retain(|_, token| token.expires_at > now);
        if self.tokens.len() >= TOKENS_MAX {
            let what = "join tokens".to_owned();
            return Err(Rejection::LimitReached { what, limit: TOKENS_MAX as u64 });
        }
        let expires_at = now + wish.ttl;
        let token = JoinToken {
            id: wish.id.clone(),
            secret_sha256: wish.secret_sha256.clone(),
            names: wish.names.clone(),
            used: std::collections::BTreeMap::new(),
            created_by: UserName::clone(created_by),
            expires_at,
        };
        self.tokens.insert(wish.id.clone(), token);
        turn.say(Event::JoinTokenCreated {
            token: wish.id.clone(),
            names: wish.names.clone(),
            expires_at,
        });
        Ok(Reply::JoinTokenCreated { id: wish.id.clone(), expires_at })
    }

    /// The secret was compared by the edge; this decides whether the token still allows the name.
    pub(super) fn redeem_join_token(
        &mut self,
        turn: &mut Turn<'_>,
        id: &TokenId,
        node: &NodeName,
        machine: &MachineIdentity,
    ) -> Result<Reply, Rejection> {
        let now = self.now;
        let refused =
            |why: &str| Rejection::TokenRefused { id: id.to_string(), why: why.to_owned() };
        let token = self.tokens.get(id).ok_or_else(|| refused("unknown or expired"))?;
        if token.expires_at <= now {
            return Err(refused("expired"));
        }
        if !token.names.contains(node) {
            return Err(refused("it does not name this node"));
        }
        match token.used.get(node) {
            Some(by) if by == machine => return Ok(Reply::Done),
            Some(_) => return Err(refused("another machine used it for this node")),
            None => {}
        }
        if let Some(known) = self.nodes.get(node)
            && known.facts.machine != *machine
        {
            let why = "its machine id differs from the one that joined before".to_owned();
            return Err(Rejection::NodeIdentity { node: node.clone(), why });
        }
        self.check_no_clone(node, machine)?;
        let token = self.tokens.get_mut(id).ok_or_else(|| refused("unknown or expired"))?;
        token.used.insert(node.clone(), machine.clone());
        turn.say(Event::JoinTokenRedeemed { token: id.clone(), node: node.clone() });
        Ok(Reply::Done)
    }

    pub(super) fn record_refusals(
        &mut self,
        turn: &mut Turn<'_>,
        refusals: &[RefusedRequests],
    ) -> Result<Reply, Rejection> {
        if refusals.len() > REFUSALS_MAX {
            let what = "refusals in one batch".to_owned();
            return Err(Rejection::LimitReached { what, limit: REFUSALS_MAX as u64 });
        }
        for refused in refusals {
            turn.say(Event::RequestsRefused {
                principal: refused.principal.clone(),
                action: refused.action.clone(),
                code: refused.code.clone(),
                count: refused.count,
            });
        }
        Ok(Reply::Done)
    }
}

/// Checks a free text that will be stored and shown.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), Rejection> {
    check_length(field, text)?;
    if !name::is_plain_text(text) {
        return Err(Rejection::field(field, "no control characters and no hidden characters"));
    }
    Ok(())
}

pub(super) fn check_length(field: &str, text: &str) -> Result<(), Rejection> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Rejection::field(field, format!("at most {TEXT_BYTES_MAX} bytes")));
    }
    Ok(())
}
