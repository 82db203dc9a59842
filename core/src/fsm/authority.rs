//! Applies the commands of `core::authority`: the exchange of the certificate authority.
//!
//! The order is what matters: nothing is signed by an authority that a controller could not trust, and none is
//! given up that somebody still needs, unless an admin said that these are not waited for.

use std::collections::BTreeSet;

use super::{Fsm, Turn};
use crate::access::{CertificateHolder, RENEWABLE_AFTER_EXPIRY};
use crate::actor::{Actor, AuthMethod};
use crate::authority::{
    Authorities, AuthorityEvent, CERTIFICATE_PEM_BYTES_MAX, Known, NODES_PER_COMMAND_MAX,
    PIN_BYTES_MAX, RETIRED_MAX, Rotation, Stage, Waiting,
};
use crate::event::Event;
use crate::name::NodeName;
use crate::rejection::Rejection;
use crate::reply::Reply;

/// Names in a refusal.
const NAMED_MAX: usize = 8;

impl Fsm {
    /// Which authorities sign and are trusted.
    pub fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Who has not moved to the new authority yet; nobody where none is exchanged.
    pub fn waiting_in_rotation(&self) -> Waiting {
        let Some(rotation) = &self.authorities.rotation else { return Waiting::default() };
        let done =
            |node: &&NodeName| !rotation.nodes.contains(*node) && !rotation.skipped.contains(*node);
        let nodes = self.nodes_with_certificates().into_iter().filter(done).cloned().collect();
        let old = &rotation.from.pin;
        let users = self.access.issued.values().filter(|issued| {
            let of_user = matches!(issued.holder, CertificateHolder::User { .. });
            !rotation.users_skipped
                && of_user
                && issued.authority == *old
                && issued.not_after > self.now
        });
        let (mut user_certificates, mut users_until) = (0, None);
        for issued in users {
            user_certificates += 1;
            users_until = users_until.max(Some(issued.not_after));
        }
        Waiting { nodes, user_certificates, users_until }
    }

    /// Nodes that can still come back with the certificate they have.
    fn nodes_with_certificates(&self) -> BTreeSet<&NodeName> {
        let joined = self.access.newest.iter().filter(|(_, serial)| {
            let ends = self.access.issued.get(*serial).map(|issued| issued.not_after);
            ends.is_some_and(|ends| ends + RENEWABLE_AFTER_EXPIRY > self.now)
        });
        joined.map(|(node, _)| node).collect()
    }

    pub(super) fn start_rotation(
        &mut self,
        turn: &mut Turn<'_>,
        from: &Known,
        to: &Known,
    ) -> Result<Reply, Rejection> {
        check_known("from", from)?;
        check_known("to", to)?;
        if self.authorities.rotation.is_some() {
            let why = "it is being exchanged already".to_owned();
            return Err(Rejection::Authority { why });
        }
        if self.authorities.current.as_ref().is_some_and(|current| current.pin != from.pin) {
            return Err(Rejection::field("from.pin", "is not the authority that signs"));
        }
        if to.pin == from.pin || self.authorities.retired.contains(&to.pin) {
            return Err(Rejection::field("to.pin", "must be an authority that never was one"));
        }
        let by = turn.actor.display_name();
        self.authorities.rotation = Some(Rotation {
            stage: Stage::Spreading,
            from: from.clone(),
            to: to.clone(),
            by: by.clone(),
            started_at: self.now,
            moving_since: None,
            nodes: BTreeSet::new(),
            skipped: BTreeSet::new(),
            users_skipped: false,
        });
        self.authorities.version += 1;
        let (from, to) = (from.pin.clone(), to.pin.clone());
        turn.say(Event::Authority(AuthorityEvent::RotationStarted { from, to, by }));
        Ok(Reply::Done)
    }

    /// One that was admitted a moment ago may not have the key yet.
    fn check_all_controllers(&self, ready: &BTreeSet<u64>) -> Result<(), Rejection> {
        let missing: Vec<String> = self
            .roster
            .members
            .keys()
            .filter(|id| !ready.contains(id))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let why = format!("controllers that are not ready: {}", missing.join(", "));
        Err(Rejection::Authority { why })
    }

    pub(super) fn begin_moving(
        &mut self,
        turn: &mut Turn<'_>,
        controllers: &BTreeSet<u64>,
    ) -> Result<Reply, Rejection> {
        self.check_all_controllers(controllers)?;
        let now = self.now;
        let rotation = self.authorities.rotation.as_mut().ok_or_else(none_under_way)?;
        if rotation.stage == Stage::Moving {
            return Ok(Reply::Done);
        }
        rotation.stage = Stage::Moving;
        rotation.moving_since = Some(now);
        self.authorities.version += 1;
        let (authority, trusted_too) = (rotation.to.pin.clone(), rotation.from.pin.clone());
        turn.say(Event::Authority(AuthorityEvent::AuthoritySigns { authority, trusted_too }));
        Ok(Reply::Done)
    }

    pub(super) fn note_moved(
        &mut self,
        turn: &mut Turn<'_>,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<Reply, Rejection> {
        check_count(nodes)?;
        let rotation = self.authorities.rotation.as_mut().ok_or_else(none_under_way)?;
        if rotation.stage != Stage::Moving {
            return Err(Rejection::Authority { why: "the old authority still signs".to_owned() });
        }
        let new: Vec<NodeName> =
            nodes.iter().filter(|node| !rotation.nodes.contains(*node)).cloned().collect();
        if !new.is_empty() {
            rotation.nodes.extend(new.iter().cloned());
            let authority = rotation.to.pin.clone();
            turn.say(Event::Authority(AuthorityEvent::NodesMoved { authority, nodes: new }));
        }
        Ok(Reply::Done)
    }

    /// Only nodes that are waited for: a name that was mistyped must not look as if it had been heeded.
    pub(super) fn skip_in_rotation(
        &mut self,
        turn: &mut Turn<'_>,
        nodes: &BTreeSet<NodeName>,
        users: bool,
    ) -> Result<Reply, Rejection> {
        check_count(nodes)?;
        let known = self.nodes_with_certificates();
        if let Some(stranger) = nodes.iter().find(|node| !known.contains(node)) {
            return Err(Rejection::not_found("node with a certificate", stranger));
        }
        let rotation = self.authorities.rotation.as_mut().ok_or_else(none_under_way)?;
        if let Some(moved) = nodes.iter().find(|node| rotation.nodes.contains(*node)) {
            let why = format!("{moved} has moved to the new authority already");
            return Err(Rejection::Authority { why });
        }
        let new: Vec<NodeName> =
            nodes.iter().filter(|node| !rotation.skipped.contains(*node)).cloned().collect();
        let users = users && !rotation.users_skipped;
        if new.is_empty() && !users {
            return Ok(Reply::Done);
        }
        rotation.skipped.extend(new.iter().cloned());
        rotation.users_skipped |= users;
        let by = turn.actor.display_name();
        let skipped = AuthorityEvent::SkippedInRotation { nodes: new, users, by };
        turn.say(Event::Authority(skipped));
        Ok(Reply::Done)
    }

    pub(super) fn finish_rotation(
        &mut self,
        turn: &mut Turn<'_>,
        controllers: &BTreeSet<u64>,
    ) -> Result<Reply, Rejection> {
        self.check_all_controllers(controllers)?;
        let waiting = self.waiting_in_rotation();
        let rotation = self.authorities.rotation.as_ref().ok_or_else(none_under_way)?;
        if rotation.stage != Stage::Moving {
            return Err(Rejection::Authority { why: "the old authority still signs".to_owned() });
        }
        if !waiting.is_over() {
            let mut names: Vec<String> = waiting.nodes.iter().map(ToString::to_string).collect();
            names.truncate(NAMED_MAX);
            if waiting.user_certificates > 0 {
                names.push(format!("{} certificates of users", waiting.user_certificates));
            }
            let what = format!("the authority {}", rotation.from.pin);
            return Err(Rejection::InUse { what, by: names });
        }
        let Rotation { from, to, nodes, skipped, .. } = rotation.clone();
        let locked_out: Vec<NodeName> =
            skipped.into_iter().filter(|node| !nodes.contains(node)).collect();
        self.settle(Known { vouched: String::new(), ..to.clone() }, &from.pin);
        self.access.issued.retain(|_, issued| issued.authority != from.pin);
        let issued = &self.access.issued;
        self.access.newest.retain(|_, serial| issued.contains_key(serial));
        let (from, to) = (from.pin, to.pin);
        turn.say(Event::Authority(AuthorityEvent::RotationFinished { from, to, locked_out }));
        Ok(Reply::Done)
    }

    /// One authority is left; the other one's key is to be destroyed.
    fn settle(&mut self, current: Known, retired: &str) {
        let all = &mut self.authorities;
        all.current = Some(current);
        all.rotation = None;
        all.retired.push(retired.to_owned());
        if all.retired.len() > RETIRED_MAX {
            all.retired.remove(0);
        }
        all.version += 1;
    }

    pub(super) fn abort_rotation(&mut self, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        let rotation = self.authorities.rotation.as_mut().ok_or_else(none_under_way)?;
        let back_to = rotation.from.pin.clone();
        let at_once = rotation.stage == Stage::Spreading;
        let by = turn.actor.display_name();
        if at_once {
            let (from, to) = (rotation.from.clone(), rotation.to.pin.clone());
            self.settle(Known { vouched: String::new(), ..from }, &to);
        } else {
            std::mem::swap(&mut rotation.from, &mut rotation.to);
            rotation.nodes.clear();
            rotation.skipped.clear();
            rotation.users_skipped = false;
            rotation.moving_since = Some(self.now);
            self.authorities.version += 1;
        }
        turn.say(Event::Authority(AuthorityEvent::RotationAborted { back_to, at_once, by }));
        Ok(Reply::Done)
    }

    /// Refuses to record a certificate of an authority that is trusted no more: it was signed a moment before.
    pub(super) fn check_authority(&self, pin: &str) -> Result<(), Rejection> {
        let trusted = self.authorities.trusted();
        if trusted.is_empty() || trusted.iter().any(|known| known.pin == pin) {
            return Ok(());
        }
        let why = "it was exchanged meanwhile; try again".to_owned();
        Err(Rejection::Authority { why })
    }

    /// A node got one more certificate; by the old authority it has not moved. One that joins has nothing else, so
    /// by the new one it has.
    pub(super) fn certified_in_rotation(&mut self, actor: &Actor, node: &NodeName, pin: &str) {
        let Some(rotation) = &mut self.authorities.rotation else { return };
        if rotation.to.pin != pin {
            rotation.nodes.remove(node);
        } else if actor.method == AuthMethod::JoinToken {
            rotation.nodes.insert(node.clone());
        }
    }
}

fn none_under_way() -> Rejection {
    Rejection::Authority { why: "no exchange is under way".to_owned() }
}

fn check_count(nodes: &BTreeSet<NodeName>) -> Result<(), Rejection> {
    if nodes.len() <= NODES_PER_COMMAND_MAX {
        return Ok(());
    }
    let (what, limit) = ("nodes at a time".to_owned(), NODES_PER_COMMAND_MAX as u64);
    Err(Rejection::LimitReached { what, limit })
}

fn check_known(field: &str, known: &Known) -> Result<(), Rejection> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if known.pin.is_empty() || known.pin.len() > PIN_BYTES_MAX || !known.pin.bytes().all(legal) {
        let problem = format!("1 to {PIN_BYTES_MAX} letters of base64url");
        return Err(Rejection::field(format!("{field}.pin"), problem));
    }
    for (name, pem) in [("certificate", &known.certificate), ("vouched", &known.vouched)] {
        if pem.is_empty() || pem.len() > CERTIFICATE_PEM_BYTES_MAX || !pem.is_ascii() {
            let problem = format!("PEM of 1 to {CERTIFICATE_PEM_BYTES_MAX} bytes");
            return Err(Rejection::field(format!("{field}.{name}"), problem));
        }
    }
    Ok(())
}
