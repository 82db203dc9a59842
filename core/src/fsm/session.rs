//! Applies the commands by which a browser logs in and out (docs/adr/0055-a-browser-logs-in-with-a-code.md).
//!
//! A code is good once, for a minute, at every controller. A session has its place among the certificates of its user, so
//! what ends those ends it.

use super::{Fsm, Turn};
use crate::access::{
    AccessEvent, CERTIFICATES_PER_HOLDER_MAX, CertificateHolder, Issued, LOGIN_CODE_LIFE,
    LoginCode, SESSION_LIFE, Vouching,
};
use crate::actor::Actor;
use crate::event::Event;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;

/// Digits of a SHA-256, hexadecimal.
const SHA256_DIGITS: usize = 64;

impl Fsm {
    /// The node whose word stands behind the one who asks.
    pub(super) fn check_offer(
        &self,
        actor: &Actor,
        user: &UserName,
        sha256: &str,
    ) -> Result<Option<NodeName>, Rejection> {
        check_sha256("sha256", sha256)?;
        self.check_user_asks(actor, user)
    }

    /// The node whose word stands behind a user who asks for something that lasts longer than the request.
    pub(super) fn check_user_asks(
        &self,
        actor: &Actor,
        user: &UserName,
    ) -> Result<Option<NodeName>, Rejection> {
        self.check_enabled(user)?;
        let Some(serial) = &actor.serial else { return Ok(None) };
        let Some(shown) = self.access.issued.get(serial) else {
            return Err(Rejection::Denied { needs: "a user with a certificate on record".into() });
        };
        Ok(shown.via.clone())
    }

    pub(super) fn offer_login(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        sha256: &str,
    ) -> Result<Reply, Rejection> {
        let via = self.check_offer(turn.actor, user, sha256)?;
        let (now, sha256) = (self.now, sha256.to_owned());
        let expires_at = now + LOGIN_CODE_LIFE;
        self.access.login_codes.retain(|_, code| code.expires_at > now);
        let code = LoginCode { sha256, expires_at, via };
        self.access.login_codes.insert(user.clone(), code);
        turn.say(Event::Access(AccessEvent::LoginOffered { user: user.clone(), expires_at }));
        Ok(Reply::Done)
    }

    /// Who logs in with this code, and the node that vouches for them.
    pub(super) fn check_session(
        &self,
        sha256: &str,
        session: &str,
    ) -> Result<(UserName, Option<NodeName>), Rejection> {
        check_sha256("session", session)?;
        let mut codes = self.access.login_codes.iter();
        let found = codes.find(|(_, code)| code.sha256 == sha256 && code.expires_at > self.now);
        let Some((user, code)) = found else {
            let why = "it was used before, is older than a minute, or is not whole; \
                       type `fleet web` for another one";
            return Err(Rejection::CodeRefused { why: why.to_owned() });
        };
        self.check_enabled(user)?;
        if let Some(node) = &code.via
            && self.access.vouching_of(node) == Vouching::Off
        {
            let needs = format!("a node that may vouch for its users, which {node} may not");
            return Err(Rejection::Denied { needs });
        }
        if self.access.issued.contains_key(session) {
            return Err(Rejection::IdTaken { id: session.to_owned() });
        }
        let holder = CertificateHolder::User { name: user.clone() };
        if self.access.valid_of(&holder, self.now) >= CERTIFICATES_PER_HOLDER_MAX {
            let what = format!("valid certificates and logins of {user}");
            return Err(Rejection::LimitReached {
                what,
                limit: CERTIFICATES_PER_HOLDER_MAX as u64,
            });
        }
        Ok((user.clone(), code.via.clone()))
    }

    pub(super) fn begin_session(
        &mut self,
        turn: &mut Turn<'_>,
        sha256: &str,
        session: &str,
    ) -> Result<Reply, Rejection> {
        let (user, via) = self.check_session(sha256, session)?;
        self.sweep_certificates();
        self.seen(&user);
        self.access.login_codes.remove(&user);
        let not_after = self.now + SESSION_LIFE;
        let (holder, authority) = (CertificateHolder::User { name: user.clone() }, String::new());
        let begun = Issued { holder, not_after, via: via.clone(), authority, asked_with: None };
        self.access.issued.insert(session.to_owned(), begun);
        let (name, session) = (user.clone(), session.to_owned());
        let began = AccessEvent::SessionBegan { user: name, session, not_after, via };
        turn.say(Event::Access(began));
        Ok(Reply::SessionBegan { user, not_after })
    }

    /// All browsers log in again, and all calendars subscribe again.
    pub(super) fn forget_sessions(&mut self) {
        self.access.login_codes.clear();
        self.access.feeds.clear();
        self.access.issued.retain(|_, issued| !issued.is_session());
        self.access.version += 1;
    }

    /// Nothing to end is fine: it has ended.
    pub(super) fn end_sessions(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        session: Option<&str>,
    ) -> Result<Reply, Rejection> {
        let wanted = |id: &&String| session.is_none_or(|session| id.as_str() == session);
        let sessions: Vec<String> = self.access.sessions_of(user).filter(wanted).cloned().collect();
        if session.is_none() {
            self.access.login_codes.remove(user);
        }
        if sessions.is_empty() {
            return Ok(Reply::Done);
        }
        // Who shows one is not known any more; nothing need be remembered to refuse it.
        self.access.issued.retain(|id, _| !sessions.contains(id));
        self.access.version += 1;
        let (user, by) = (user.clone(), turn.actor.display_name());
        turn.say(Event::Access(AccessEvent::SessionsEnded { user, sessions, by }));
        Ok(Reply::Done)
    }
}

pub(super) fn check_sha256(field: &str, text: &str) -> Result<(), Rejection> {
    if text.len() == SHA256_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(Rejection::field(field, format!("{SHA256_DIGITS} hexadecimal digits")))
}
