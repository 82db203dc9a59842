//! Applies the commands about notices by mail: what people want, and how far the leader came with telling them.

use super::cluster::check_text;
use super::{Fsm, Turn};
use crate::access::ACCOUNTS_MAX;
use crate::actor::{Actor, Who};
use crate::event::Event;
use crate::name::UserName;
use crate::notice::{ADDRESS_BYTES_MAX, MailTo, NoticeChange, NoticeEvent, Notices, Told};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Fsm {
    /// What people want to hear by mail, and what they heard.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(super) fn check_notices(
        &self,
        actor: &Actor,
        user: &UserName,
        change: &NoticeChange,
    ) -> Result<(), Rejection> {
        if let Some(MailTo::Address { address }) = &change.mail_to {
            if address.is_empty() || address.len() > ADDRESS_BYTES_MAX {
                let problem =
                    format!("1 to {ADDRESS_BYTES_MAX} bytes, this address has {}", address.len());
                return Err(Rejection::field("mail", problem));
            }
            check_text("mail", address)?;
        }
        if let Some(kind) = change.on.intersection(&change.off).next() {
            let problem = format!("{} cannot be on and off together", kind.word());
            return Err(Rejection::field("on", problem));
        }
        // A user who asks for themselves has an account a moment later.
        let is_own = matches!(&actor.who, Who::User { name, .. } if name == user);
        let has_settings = self.notices.people.contains_key(user);
        if !is_own && !has_settings && !self.access.accounts.contains_key(user) {
            return Err(Rejection::not_found("user", user));
        }
        if self.notices.people.len() >= ACCOUNTS_MAX && !has_settings {
            let what = "people with settings for their mail".to_owned();
            return Err(Rejection::LimitReached { what, limit: ACCOUNTS_MAX as u64 });
        }
        Ok(())
    }

    pub(super) fn set_notices(
        &mut self,
        turn: &mut Turn<'_>,
        user: &UserName,
        change: &NoticeChange,
    ) -> Result<Reply, Rejection> {
        self.check_notices(turn.actor, user, change)?;
        let before = self.notices.of(user);
        let mut now = before.clone();
        if let Some(mail_to) = &change.mail_to {
            now.mail_to = mail_to.clone();
        }
        now.off.extend(&change.off);
        now.off.retain(|kind| !change.on.contains(kind));
        if now == before {
            return Ok(Reply::Done);
        }
        match now == Default::default() {
            true => drop(self.notices.people.remove(user)),
            false => drop(self.notices.people.insert(user.clone(), now.clone())),
        }
        let (user, by) = (user.clone(), turn.actor.display_name());
        turn.say(Event::Notice(NoticeEvent::SettingsChanged { user, now, before, by }));
        Ok(Reply::Done)
    }

    /// Never back: what was sent is not sent again. It makes no audit record, as the next pass would begin with it.
    pub(super) fn note_told(&mut self, told: &Told) -> Result<Reply, Rejection> {
        let have = &self.notices.told;
        if told.until < have.until || told.until > self.audit_seq {
            let problem = format!("must be {} to {}", have.until, self.audit_seq);
            return Err(Rejection::field("until", problem));
        }
        let is_behind = |(user, at): (&UserName, &u64)| *at < told.until && *at >= have.of(user);
        if told.waiting.len() > ACCOUNTS_MAX || !told.waiting.iter().all(is_behind) {
            let problem = "each person heard less than the others, and not less than before";
            return Err(Rejection::field("waiting", problem));
        }
        self.notices.told = told.clone();
        Ok(Reply::Done)
    }
}
