//! What people hear by mail: shown, set, and tried with one mail. Every user may set their own, admins those of everybody.

use fleet_core::command::{Command, NoticeCommand};
use fleet_core::name::UserName;
use fleet_core::notice::{MailTo, NoticeChange, NoticeKind};
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tokio::sync::mpsc;
use tonic::{Request, Status};

use super::Context;
use super::propose::request_key;
use crate::callers::Caller;
use crate::mail;
use crate::notices::{AddressOf, TestError, address_of, send_test};

/// Replies of one test: where to, and what became of it.
const REPLIES: usize = 2;

impl Context {
    pub(super) async fn get_notices(
        &self,
        request: Request<v1::GetNoticesRequest>,
    ) -> Result<v1::NoticeSettings, Status> {
        let caller = self.callers.user(&request).await?;
        // Only the leader knows how its mails fare.
        self.newest().await?;
        let user = self.user_meant(&caller, &request.get_ref().user, "get_notices")?;
        Ok(self.notice_settings(&user))
    }

    pub(super) async fn set_notices(
        &self,
        request: Request<v1::SetNoticesRequest>,
    ) -> Result<v1::NoticeSettings, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let user = self.user_meant(&caller, &request.user, "set_notices")?;
        let change = change(&request).map_err(|rejection| to_status(&rejection))?;
        let command = Command::Notice(NoticeCommand::Set { user: user.clone(), change });
        self.change(&caller.actor, Some(key), command).await?;
        Ok(self.notice_settings(&user))
    }

    /// Sends one mail and says what the server answers, in two messages: the server may take a minute.
    pub(super) async fn test_notices(
        &self,
        request: Request<v1::TestNoticesRequest>,
    ) -> Result<mpsc::Receiver<Result<v1::TestNoticesReply, Status>>, Status> {
        let caller = self.callers.user(&request).await?;
        self.newest().await?;
        let user = self.user_meant(&caller, &request.get_ref().user, "test_notices")?;
        let settings = self.mail.settings.clone().ok_or_else(|| no_test(&TestError::NoServer))?;
        let wants = self.raft.read(|fsm| fsm.notices().of(&user));
        let address = address_of(&wants, Some(&settings), &user);
        let Some(to) = address.address().map(str::to_owned) else {
            return Err(Status::failed_precondition(no_address(&address, &user)));
        };
        let (replies, received) = mpsc::channel(REPLIES);
        let first = v1::TestNoticesReply {
            address: to.clone(),
            server: settings.server.to_string(),
            answer: String::new(),
        };
        let (context, now, server) = (self.clone(), self.clock.now(), settings.server.to_string());
        // It ends with the client, or with the server's time-outs.
        tokio::spawn(async move {
            if replies.send(Ok(first)).await.is_err() {
                return;
            }
            let sending =
                send_test((&context.raft, &context.mail), (&user, &to), &caller.name, now);
            let sent = tokio::select! {
                sent = sending => sent,
                () = replies.closed() => return,
            };
            let last = sent.map_err(|error| no_test(&error)).map(|answer| v1::TestNoticesReply {
                address: to,
                server,
                answer,
            });
            // Nobody listens any more: then nobody needs it.
            drop(replies.send(last).await);
        });
        Ok(received)
    }

    /// The caller, or for admins the user that they name.
    fn user_meant(&self, caller: &Caller, named: &str, action: &str) -> Result<UserName, Status> {
        if named.is_empty() || named == caller.name.as_str() {
            return Ok(caller.name.clone());
        }
        let user = UserName::parse(named)
            .map_err(|e| to_status(&Rejection::field("user", e.to_string())))?;
        self.callers.require_admin(caller, action)?;
        let is_known =
            |fsm: &Fsm| fsm.access().accounts.contains_key(&user) || fsm.notices().has(&user);
        if !self.raft.read(is_known) {
            return Err(to_status(&Rejection::not_found("user", &user)));
        }
        Ok(user)
    }

    fn notice_settings(&self, user: &UserName) -> v1::NoticeSettings {
        let wants = self.raft.read(|fsm| fsm.notices().of(user));
        let settings = self.mail.settings.as_deref();
        let address = address_of(&wants, settings, user);
        let kinds = NoticeKind::ALL.iter().map(|kind| v1::NoticeKindSetting {
            kind: kind.word().to_owned(),
            on: !wants.off.contains(kind),
        });
        let failing = self.mail.status.failing();
        v1::NoticeSettings {
            user: user.to_string(),
            address: address.address().unwrap_or_default().to_owned(),
            address_from: address.word().to_owned(),
            kinds: kinds.collect(),
            sends_mail: settings.is_some(),
            failing_since_unix_ms: failing.as_ref().map_or(0, |failing| failing.since.0),
            failing_why: failing.map(|failing| failing.why).unwrap_or_default(),
            refused_why: self.mail.status.refusal_of(user).unwrap_or_default(),
        }
    }
}

fn change(request: &v1::SetNoticesRequest) -> Result<NoticeChange, Rejection> {
    let mail_to = match (request.mail.as_str(), request.no_mail, request.default_mail) {
        ("", false, false) => None,
        ("", true, false) => Some(MailTo::Nowhere),
        ("", false, true) => Some(MailTo::Default),
        (text, false, false) => {
            let address = mail::address(text).map_err(|what| Rejection::field("mail", what))?;
            Some(MailTo::Address { address })
        }
        _ => {
            let problem = "an address, no mail and the default exclude each other";
            return Err(Rejection::field("mail", problem));
        }
    };
    let kinds = |field: &str, words: &[String]| {
        let kind = |word: &String| {
            NoticeKind::from_word(word).ok_or_else(|| {
                let known: Vec<&str> = NoticeKind::ALL.iter().map(|kind| kind.word()).collect();
                Rejection::field(field, format!("{word:?} is none of {}", known.join(", ")))
            })
        };
        words.iter().map(kind).collect::<Result<_, _>>()
    };
    let (on, off) = (kinds("on", &request.on)?, kinds("off", &request.off)?);
    Ok(NoticeChange { mail_to, on, off })
}

fn no_address(address: &AddressOf, user: &UserName) -> String {
    match address {
        AddressOf::Off => format!("{user} gets no mail (--no-mail); `fleet notify set` changes it"),
        AddressOf::Own(_) | AddressOf::Domain(_) | AddressOf::Unknown => format!(
            "{user} has no mail address: set one with `fleet notify set --mail ADDRESS`, or an admin sets \
             `[mail] domain` in controller.toml"
        ),
    }
}

fn no_test(error: &TestError) -> Status {
    match error {
        TestError::NoServer => Status::failed_precondition(
            "this fleet sends no mail: an admin sets `[mail] smtp` in /etc/fleet/controller.toml on each controller",
        ),
        TestError::TooMany => Status::failed_precondition(
            "10 test mails went to this address in the last hour; try again later",
        ),
        TestError::Failed(error) => {
            Status::failed_precondition(format!("no mail was sent: {error}"))
        }
    }
}
