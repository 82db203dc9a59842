//! Tokens: the right of a machine to join, as a node or as a controller.

use super::controllers::check_sha256;
use super::{Fsm, Turn};
use crate::actor::Who;
use crate::command::{CreateControllerToken, CreateJoinToken};
use crate::controller::{CONTROLLER_TOKENS_MAX, ControllerToken};
use crate::event::Event;
use crate::id::TokenId;
use crate::name::{NodeName, UserName};
use crate::node::{JoinToken, MachineIdentity};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Millis;

/// Longest life of a join token.
const TOKEN_TTL_MAX: Millis = Millis::days(7);
/// Most nodes one token may name.
const TOKEN_NAMES_MAX: usize = 256;
/// Most join tokens at a time.
const TOKENS_MAX: usize = 1_000;

impl Fsm {
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
        check_sha256("secret_sha256", &wish.secret_sha256)?;
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

    pub(super) fn create_controller_token(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &CreateControllerToken,
    ) -> Result<Reply, Rejection> {
        if wish.ttl == Millis::ZERO || wish.ttl > TOKEN_TTL_MAX {
            return Err(Rejection::field("ttl", format!("must be at most {TOKEN_TTL_MAX}")));
        }
        check_sha256("secret_sha256", &wish.secret_sha256)?;
        let Who::User { name: created_by, .. } = &turn.actor.who else {
            return Err(Rejection::Denied { needs: "a user".to_owned() });
        };
        if self.tokens.contains_key(&wish.id) || self.roster.tokens.contains_key(&wish.id) {
            return Err(Rejection::IdTaken { id: wish.id.to_string() });
        }
        let now = self.now;
        self.roster.tokens.retain(|_, token| token.expires_at > now);
        if self.roster.tokens.len() >= CONTROLLER_TOKENS_MAX {
            let what = "tokens for controllers".to_owned();
            return Err(Rejection::LimitReached { what, limit: CONTROLLER_TOKENS_MAX as u64 });
        }
        let expires_at = now + wish.ttl;
        let token = ControllerToken {
            id: wish.id.clone(),
            secret_sha256: wish.secret_sha256.clone(),
            used: None,
            created_by: created_by.clone(),
            expires_at,
        };
        self.roster.tokens.insert(wish.id.clone(), token);
        turn.say(Event::ControllerTokenCreated { token: wish.id.clone(), expires_at });
        Ok(Reply::JoinTokenCreated { id: wish.id.clone(), expires_at })
    }
}
