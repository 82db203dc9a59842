//! Applies the commands of `core::access`: certificates, accounts, vouching.
//!
//! A certificate is recorded before it is given out, so revoking a holder names every serial that is
//! valid: no clock and no promise of the holder is involved.

use super::cluster::check_text;
use super::{Fsm, Turn};
use crate::access::{
    ACCOUNTS_MAX, Access, AccessEvent, Account, CERTIFICATES_PER_HOLDER_MAX, CertificateHolder,
    Disabled, Issued, LOGINS_MAX, Login, RENEWABLE_AFTER_EXPIRY, SERIAL_DIGITS_MAX, Vouching,
};
use crate::actor::{Actor, AuthMethod, Who};
use crate::event::Event;
use crate::id::{AllocationId, JobId, ReservationId};
use crate::job::JobState;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::ReservationState;
use crate::time::{Millis, Timestamp};

/// Things named in a refusal because something is in use.
const NAMED_MAX: usize = 8;

/// What a record of a certificate says.
pub(super) struct Record<'a> {
    serial: &'a str,
    holder: &'a CertificateHolder,
    not_after: Timestamp,
    via: Option<&'a NodeName>,
    authority: &'a str,
}

impl<'a> Record<'a> {
    pub(super) fn of(
        serial: &'a str,
        holder: &'a CertificateHolder,
        not_after: Timestamp,
        via: Option<&'a NodeName>,
        authority: &'a str,
    ) -> Self {
        Self { serial, holder, not_after, via, authority }
    }
}

impl Fsm {
    pub(super) fn revoke_user(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        let holder = CertificateHolder::User { name: user.clone() };
        let has_one = self.access.issued.values().any(|i| i.holder == holder);
        if !has_one && !self.access.accounts.contains_key(user) {
            return Err(Rejection::not_found("user", user));
        }
        self.revoke(turn, &holder, reason);
        Ok(Reply::Done)
    }

    pub(super) fn record_certificate(
        &mut self,
        turn: &mut Turn<'_>,
        record: &Record<'_>,
    ) -> Result<Reply, Rejection> {
        self.check_certificate(turn.actor, record)?;
        self.sweep_certificates();
        if let CertificateHolder::User { name } = record.holder {
            self.seen(name);
        }
        let issued = Issued {
            holder: record.holder.clone(),
            not_after: record.not_after,
            via: record.via.cloned(),
            authority: record.authority.to_owned(),
            asked_with: self.asked_with(turn.actor, record.holder),
        };
        if let CertificateHolder::Node { name } = record.holder {
            self.access.newest.insert(name.clone(), record.serial.to_owned());
            self.certified_in_rotation(turn.actor, name, record.authority);
        }
        self.access.issued.insert(record.serial.to_owned(), issued);
        turn.say(Event::Access(AccessEvent::CertificateIssued {
            holder: record.holder.clone(),
            serial: record.serial.to_owned(),
            not_after: record.not_after,
            via: record.via.cloned(),
        }));
        Ok(Reply::Done)
    }

    /// The certificate that asks for another one for its node.
    fn asked_with(&self, actor: &Actor, holder: &CertificateHolder) -> Option<String> {
        let renews = matches!(holder, CertificateHolder::Node { .. })
            && actor.method == AuthMethod::Certificate;
        actor.serial.clone().filter(|_| renews)
    }

    /// The node has shown this certificate, so it has no use any more for the one it asked with: a copy of that must
    /// be worth nothing.
    pub(super) fn certificate_shown(&mut self, actor: &Actor) {
        let shown = actor.serial.as_ref().and_then(|serial| self.access.issued.get_mut(serial));
        if let Some(issued) = shown {
            issued.asked_with = None;
        }
    }

    pub(super) fn check_certificate(
        &self,
        actor: &Actor,
        record: &Record<'_>,
    ) -> Result<(), Rejection> {
        let digits = record.serial.bytes().all(|b| b.is_ascii_hexdigit());
        if record.serial.is_empty() || record.serial.len() > SERIAL_DIGITS_MAX || !digits {
            let problem = format!("1 to {SERIAL_DIGITS_MAX} hexadecimal digits");
            return Err(Rejection::field("serial", problem));
        }
        if self.access.issued.contains_key(record.serial) {
            return Err(Rejection::IdTaken { id: record.serial.to_owned() });
        }
        self.check_authority(record.authority)?;
        match record.holder {
            CertificateHolder::User { name } => self.check_enabled(name)?,
            // Joining, a node is not known yet; later it has to be.
            CertificateHolder::Node { name } if actor.method != AuthMethod::JoinToken => {
                if !self.nodes.contains_key(name) && self.access.newest_of(name).is_none() {
                    return Err(Rejection::not_found("node", name));
                }
            }
            CertificateHolder::Node { .. } => {}
        }
        if let Some(node) = record.via {
            if !self.nodes.contains_key(node) {
                return Err(Rejection::not_found("node", node));
            }
            if self.access.vouching_of(node) == Vouching::Off {
                let needs = format!("a node that may vouch for its users, which {node} may not");
                return Err(Rejection::Denied { needs });
            }
        }
        if self.access.valid_of(record.holder, self.now) >= CERTIFICATES_PER_HOLDER_MAX {
            let what = format!("valid certificates of {}", record.holder);
            return Err(Rejection::LimitReached {
                what,
                limit: CERTIFICATES_PER_HOLDER_MAX as u64,
            });
        }
        Ok(())
    }

    /// Refuses to do anything new for an account that was closed.
    pub(super) fn check_enabled(&self, user: &UserName) -> Result<(), Rejection> {
        match self.access.disabled(user) {
            None => Ok(()),
            Some(why) => {
                let needs = format!("an open account: {user} was disabled by {}", why.by);
                Err(Rejection::Denied { needs })
            }
        }
    }

    /// Drops what has run out, once a minute. The newest certificate of a node stays: it is the one
    /// that may be renewed after it expired.
    pub(super) fn sweep_certificates(&mut self) {
        let now = self.now;
        if now.since(self.access.swept_at) < Millis::minutes(1) {
            return;
        }
        self.access.swept_at = now;
        let Access { issued, newest, revoked, .. } = &mut self.access;
        revoked.retain(|_, until| *until > now);
        issued.retain(|serial, issued| match &issued.holder {
            CertificateHolder::Node { name } => {
                issued.not_after > now || newest.get(name) == Some(serial)
            }
            CertificateHolder::User { .. } => issued.not_after > now,
        });
    }

    /// Refuses every certificate of the holder that is still good for anything.
    fn revoke(&mut self, turn: &mut Turn<'_>, holder: &CertificateHolder, reason: &str) {
        if let CertificateHolder::User { name } = holder {
            self.access.login_codes.remove(name);
            self.end_feeds(turn, |_, feed| feed.user == *name);
        }
        let serials: Vec<String> = self
            .access
            .issued
            .iter()
            .filter(|(_, issued)| issued.holder == *holder)
            .map(|(serial, _)| serial.clone())
            .collect();
        self.revoke_serials(turn, holder, serials, reason);
    }

    fn revoke_serials(
        &mut self,
        turn: &mut Turn<'_>,
        holder: &CertificateHolder,
        serials: Vec<String>,
        reason: &str,
    ) {
        if serials.is_empty() {
            return;
        }
        for serial in &serials {
            if let Some(issued) = self.access.issued.remove(serial) {
                let until = issued.not_after.max(self.now) + RENEWABLE_AFTER_EXPIRY;
                self.access.revoked.insert(serial.clone(), until);
            }
        }
        if let CertificateHolder::Node { name } = holder {
            self.access.newest.remove(name);
        }
        self.access.version += 1;
        turn.say(Event::Access(AccessEvent::CertificatesRevoked {
            holder: holder.clone(),
            serials,
            by: turn.actor.display_name(),
            reason: reason.to_owned(),
        }));
    }

    /// Those that only this node's word stands behind.
    fn revoke_vouched(&mut self, turn: &mut Turn<'_>, node: &NodeName, reason: &str) {
        self.access.login_codes.retain(|_, code| code.via.as_ref() != Some(node));
        self.end_feeds(turn, |_, feed| feed.via.as_ref() == Some(node));
        let mut by_holder = std::collections::BTreeMap::<CertificateHolder, Vec<String>>::new();
        for (serial, issued) in &self.access.issued {
            if issued.via.as_ref() == Some(node) {
                by_holder.entry(issued.holder.clone()).or_default().push(serial.clone());
            }
        }
        for (holder, serials) in by_holder {
            self.revoke_serials(turn, &holder, serials, reason);
        }
    }

    pub(super) fn revoke_node(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        if !self.nodes.contains_key(node) && self.access.newest_of(node).is_none() {
            return Err(Rejection::not_found("node", node));
        }
        self.shut_out_node(turn, node, reason);
        Ok(Reply::Done)
    }

    /// Its certificates, those it vouched for, and the tokens by which it could get another one.
    fn shut_out_node(&mut self, turn: &mut Turn<'_>, node: &NodeName, reason: &str) {
        self.revoke(turn, &CertificateHolder::Node { name: node.clone() }, reason);
        self.revoke_vouched(turn, node, reason);
        for token in self.tokens.values_mut() {
            token.names.retain(|name| name != node);
            token.used.remove(node);
        }
    }

    /// Only a node on which nothing is promised, held or running can go.
    pub(super) fn remove_node(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        reason: &str,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        if !self.nodes.contains_key(node) {
            return Err(Rejection::not_found("node", node));
        }
        let jobs = self.allocations.on(node).map(|a| a.id.to_string());
        let coming = self.reservations.coming_to(node).map(|(r, _)| r);
        let promised = self.reservations.open_on(node).chain(coming);
        let leases = self.leases.on(node).map(|l| l.id.to_string());
        let mut by: Vec<String> =
            jobs.chain(promised.map(|r| r.id.to_string())).chain(leases).collect();
        if !by.is_empty() {
            by.truncate(NAMED_MAX);
            return Err(Rejection::InUse { what: format!("node {node}"), by });
        }
        self.shut_out_node(turn, node, reason);
        self.access.vouching.remove(node);
        self.drop_gpus_of(node);
        self.leave_files_of(turn, node);
        self.nodes.remove(node);
        turn.say(Event::Access(AccessEvent::NodeRemoved {
            node: node.clone(),
            by: turn.actor.display_name(),
            reason: reason.to_owned(),
        }));
        Ok(Reply::Done)
    }

    pub(super) fn set_vouching(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeName,
        vouching: Vouching,
    ) -> Result<Reply, Rejection> {
        if !self.nodes.contains_key(node) {
            return Err(Rejection::not_found("node", node));
        }
        if self.access.vouching_of(node) == vouching {
            return Ok(Reply::Done);
        }
        if vouching == Vouching::default() {
            self.access.vouching.remove(node);
        } else {
            self.access.vouching.insert(node.clone(), vouching);
        }
        self.access.version += 1;
        let by = turn.actor.display_name();
        turn.say(Event::Access(AccessEvent::VouchingSet { node: node.clone(), vouching, by }));
        if vouching == Vouching::Off {
            self.revoke_vouched(turn, node, "its node may not vouch any more");
        }
        Ok(Reply::Done)
    }

    /// Notes that a user was here; the account begins with the first time.
    pub(super) fn seen(&mut self, user: &UserName) {
        let now = self.now;
        if let Some(account) = self.access.accounts.get_mut(user) {
            account.last_seen = now;
            return;
        }
        if self.access.accounts.len() >= ACCOUNTS_MAX {
            let quiet = self.access.accounts.iter().filter(|(_, a)| a.disabled.is_none());
            let Some(oldest) = quiet.min_by_key(|(_, a)| a.last_seen).map(|(u, _)| u.clone())
            else {
                return;
            };
            self.access.accounts.remove(&oldest);
        }
        let account = Account { first_seen: now, last_seen: now, disabled: None };
        self.access.accounts.insert(user.clone(), account);
    }

    pub(super) fn record_logins(
        &mut self,
        turn: &mut Turn<'_>,
        logins: &[Login],
    ) -> Result<Reply, Rejection> {
        if logins.len() > LOGINS_MAX {
            let what = "logins in one batch".to_owned();
            return Err(Rejection::LimitReached { what, limit: LOGINS_MAX as u64 });
        }
        for Login { user, method, from, requests } in logins {
            self.seen(user);
            turn.say(Event::Access(AccessEvent::UserLoggedIn {
                user: user.clone(),
                method: method.clone(),
                from: from.clone(),
                requests: *requests,
            }));
        }
        Ok(Reply::Done)
    }

    /// The account is closed at once; work it has running goes at its next checkpoint.
    pub(super) fn disable_user(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        reason: &str,
        transfer_to: Option<&UserName>,
    ) -> Result<Reply, Rejection> {
        check_reason(reason)?;
        if matches!(&turn.actor.who, Who::User { name, .. } if name == user) {
            return Err(Rejection::field("user", "nobody can disable their own account"));
        }
        if let Some(to) = transfer_to {
            if to == user {
                return Err(Rejection::field("transfer_to", "is the user who is disabled"));
            }
            self.check_enabled(to)?;
        }
        let (by, at) = (turn.actor.display_name(), self.now);
        let account = self.access.accounts.entry(user.clone());
        let account = account.or_insert(Account { first_seen: at, last_seen: at, disabled: None });
        if account.disabled.is_none() {
            let reason = reason.to_owned();
            account.disabled = Some(Disabled { by: by.clone(), reason: reason.clone(), at });
            self.access.version += 1;
            let user = user.clone();
            turn.say(Event::Access(AccessEvent::UserDisabled { user, by, reason }));
        }
        self.revoke(turn, &CertificateHolder::User { name: user.clone() }, reason);
        self.clear_waitlist_of(turn, user, transfer_to);
        self.clear_reservations_of(turn, user, transfer_to);
        self.unshare(turn, user);
        self.clear_jobs_of(turn, user);
        self.end_reservations_of_disabled(turn);
        Ok(Reply::Done)
    }

    fn clear_reservations_of(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        transfer_to: Option<&UserName>,
    ) {
        let all: Vec<ReservationId> =
            self.reservations.open_of(user).map(|r| r.id.clone()).collect();
        for id in all {
            self.dissolve_pair(turn, &id);
        }
        let planned: Vec<ReservationId> = self
            .reservations
            .open_of(user)
            .filter(|r| r.state == ReservationState::Scheduled)
            .map(|r| r.id.clone())
            .collect();
        for id in planned {
            let Some(to) = transfer_to else {
                // It is open: it was just found so.
                drop(self.release_reservation(turn, &id));
                continue;
            };
            self.give_to(turn, &id, to);
            turn.say(Event::Access(AccessEvent::ReservationTransferred {
                reservation: id,
                from: user.clone(),
                to: to.clone(),
            }));
        }
    }

    fn clear_jobs_of(&mut self, turn: &mut Turn<'_>, user: &UserName) {
        // All jobs, and all attempts below: only when an account is closed or opened again.
        let queued: Vec<JobId> = self
            .jobs
            .values()
            .filter(|j| j.owner == *user && j.state == JobState::Queued)
            .map(|j| j.id.clone())
            .collect();
        for id in queued {
            // It has not ended: it was just found queued.
            drop(self.cancel_job(turn, &id));
        }
        self.review_jobs_of(turn, user);
    }

    fn review_jobs_of(&mut self, turn: &mut Turn<'_>, user: &UserName) {
        let running: Vec<AllocationId> =
            self.allocations.values().filter(|a| a.owner == *user).map(|a| a.id.clone()).collect();
        for id in running {
            self.review_allocation(turn, &id);
        }
    }

    /// A reservation of a closed account ends as soon as no job runs under it. Called when an account
    /// is closed and whenever an attempt ended.
    pub(super) fn end_reservations_of_disabled(&mut self, turn: &mut Turn<'_>) {
        let closed = self.access.accounts.iter().filter(|(_, account)| account.disabled.is_some());
        let mut over: Vec<ReservationId> = closed
            .flat_map(|(owner, _)| self.reservations.open_of(owner))
            .filter(|r| r.state == ReservationState::Active)
            .filter(|r| !self.has_children(r.lease.as_ref()))
            .map(|r| r.id.clone())
            .collect();
        over.sort();
        for id in over {
            self.end_reservation(turn, &id, "its owner's account is closed");
        }
    }

    /// Whether jobs run under the lease of a reservation.
    pub(super) fn has_children(&self, lease: Option<&crate::id::LeaseId>) -> bool {
        let Some(node) = lease.and_then(|id| self.leases.get(id)).map(|lease| &lease.node) else {
            return false;
        };
        self.allocations.on(node).any(|a| {
            let own = a.lease.as_ref().and_then(|l| self.leases.get(l));
            own.is_some_and(|l| l.parent.as_ref() == lease)
        })
    }

    pub(super) fn enable_user(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
    ) -> Result<Reply, Rejection> {
        let account = self.access.accounts.get_mut(user);
        let account = account.ok_or_else(|| Rejection::not_found("user", user))?;
        if account.disabled.take().is_some() {
            self.access.version += 1;
            let (user, by) = (user.clone(), turn.actor.display_name());
            turn.say(Event::Access(AccessEvent::UserEnabled { user: user.clone(), by }));
            self.review_jobs_of(turn, &user);
        }
        Ok(Reply::Done)
    }
}

fn check_reason(reason: &str) -> Result<(), Rejection> {
    check_text("reason", reason)?;
    if reason.trim().is_empty() {
        return Err(Rejection::field("reason", "needed, because others will read it"));
    }
    Ok(())
}
