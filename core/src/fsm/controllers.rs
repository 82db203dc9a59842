//! Commands about the controllers themselves: admission, removal.
//!
//! What is decided here is who is meant to be a member. That no change costs the cluster its quorum
//! is checked by the edge before it proposes (it knows who answers) and by consensus afterwards.

use super::{Fsm, Turn};
use crate::command::AdmitController;
use crate::controller::{ADDRESS_BYTES_MAX, CONTROLLERS_MAX, Controller, Roster, TokenUse};
use crate::event::Event;
use crate::name;
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Fsm {
    /// The controllers there are meant to be.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The first controller admits itself; any other one shows a token. The secret was compared by
    /// the edge.
    pub(super) fn admit_controller(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &AdmitController,
    ) -> Result<Reply, Rejection> {
        check_address(&wish.address)?;
        if let Some(id) = self.admitted_before(wish)? {
            return Ok(Reply::ControllerAdmitted { id });
        }
        let first = wish.token.is_none();
        if first && !self.roster.members.is_empty() {
            return Err(Rejection::Denied {
                needs: "a machine with a token for controllers".to_owned(),
            });
        }
        if !first && self.roster.members.is_empty() {
            // Its number would be the one that the first controller has.
            let why = "the first controller has not admitted itself yet; try again".to_owned();
            return Err(Rejection::NotNow { why });
        }
        if wish.id == 0 || (!first && wish.id <= self.roster.highest) {
            return Err(Rejection::IdTaken { id: Controller::name(wish.id) });
        }
        if self.roster.members.len() >= CONTROLLERS_MAX {
            let what = "controllers".to_owned();
            return Err(Rejection::LimitReached { what, limit: CONTROLLERS_MAX as u64 });
        }
        if let Some(other) = self.roster.members.values().find(|c| c.address == wish.address) {
            let other = other.id;
            let problem = format!(
                "controller {other} has this address; if it lost its disk, remove it first: fleet controller remove {other}"
            );
            return Err(Rejection::field("address", problem));
        }
        self.roster.highest = self.roster.highest.max(wish.id);
        let (id, address) = (wish.id, wish.address.clone());
        let member = Controller { id, address: address.clone(), admitted_at: self.now };
        self.roster.members.insert(id, member);
        if let Some(token) = wish.token.as_ref().and_then(|id| self.roster.tokens.get_mut(id)) {
            token.used = Some(TokenUse { controller: id, key_sha256: wish.key_sha256.clone() });
        }
        turn.say(Event::ControllerAdmitted { controller: id, address, token: wish.token.clone() });
        Ok(Reply::ControllerAdmitted { id })
    }

    /// The id that the token was used for by the same key, if it was; a refusal if it is not good.
    fn admitted_before(&self, wish: &AdmitController) -> Result<Option<u64>, Rejection> {
        let Some(id) = &wish.token else { return Ok(None) };
        let refused =
            |why: &str| Rejection::TokenRefused { id: id.to_string(), why: why.to_owned() };
        let token = self.roster.tokens.get(id).ok_or_else(|| refused("unknown or expired"))?;
        if token.expires_at <= self.now {
            return Err(refused("expired"));
        }
        check_sha256("key_sha256", &wish.key_sha256)?;
        match &token.used {
            None => Ok(None),
            Some(used) if self.roster.was_removed(used.controller) => {
                Err(refused("the controller that used it was removed"))
            }
            Some(used) if used.key_sha256 == wish.key_sha256 => Ok(Some(used.controller)),
            Some(_) => Err(refused("another controller used it")),
        }
    }

    pub(super) fn remove_controller(
        &mut self,
        turn: &mut Turn<'_>,
        id: u64,
    ) -> Result<Reply, Rejection> {
        if !self.roster.members.contains_key(&id) {
            return Err(Rejection::not_found("controller", id));
        }
        if self.roster.members.len() == 1 {
            let why = format!("controller {id} is the only one there is");
            return Err(Rejection::BreaksQuorum { why });
        }
        self.roster.members.remove(&id);
        let by = turn.actor.display_name();
        turn.say(Event::ControllerRemoved { controller: id, by });
        Ok(Reply::Done)
    }
}

pub(super) fn check_sha256(field: &str, text: &str) -> Result<(), Rejection> {
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(Rejection::field(field, "must be 64 hexadecimal digits"))
}

fn check_address(address: &str) -> Result<(), Rejection> {
    if address.is_empty() || address.len() > ADDRESS_BYTES_MAX || !name::is_plain_text(address) {
        let problem = format!("must be HOST:PORT, at most {ADDRESS_BYTES_MAX} bytes");
        return Err(Rejection::field("address", problem));
    }
    Ok(())
}
