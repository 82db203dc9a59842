//! Commands about who may come in: certificates, sessions of browsers, accounts, calendar feeds.

use super::{Act, Rule, admin, controller, denied, owner_or_admin};
use crate::access::CertificateHolder;
use crate::actor::{Actor, AuthMethod, Who};
use crate::command::AccessCommand;
use crate::fsm::access::Record;
use crate::fsm::{Fsm, Turn};
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Act for AccessCommand {
    fn who_may(&self, fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection> {
        match self {
            AccessCommand::RecordCertificate { holder, via, .. } => {
                may_have(actor, holder, via.as_ref())
            }
            AccessCommand::RevokeUser { user, .. } => owner_or_admin(actor, Some(user)),
            AccessCommand::RevokeNode { .. }
            | AccessCommand::RemoveNode { .. }
            | AccessCommand::SetVouching { .. }
            | AccessCommand::DisableUser { .. }
            | AccessCommand::EnableUser { .. } => admin(actor),
            AccessCommand::OfferLogin { user, .. } => may_offer(actor, user),
            AccessCommand::CreateFeed(wish) => may_subscribe(actor, &wish.user),
            AccessCommand::RemoveFeed { feed } => {
                owner_or_admin(actor, fsm.access().feeds.get(feed).map(|feed| &feed.user))
            }
            AccessCommand::EndSessions { user, .. } => owner_or_admin(actor, Some(user)),
            AccessCommand::RecordLogins { .. } | AccessCommand::BeginSession { .. } => {
                controller(actor)
            }
        }
    }

    fn check(&self, fsm: &Fsm, actor: &Actor) -> Result<(), Rejection> {
        match self {
            AccessCommand::RecordCertificate { serial, holder, not_after, via, authority } => {
                let record = Record::of(serial, holder, *not_after, via.as_ref(), authority);
                fsm.check_certificate(actor, &record)
            }
            AccessCommand::OfferLogin { user, sha256 } => {
                fsm.check_offer(actor, user, sha256).map(drop)
            }
            AccessCommand::BeginSession { sha256, session } => {
                fsm.check_session(sha256, session).map(drop)
            }
            AccessCommand::CreateFeed(wish) => fsm.check_feed(actor, wish).map(drop),
            AccessCommand::RevokeNode { .. }
            | AccessCommand::RemoveNode { .. }
            | AccessCommand::RevokeUser { .. }
            | AccessCommand::SetVouching { .. }
            | AccessCommand::DisableUser { .. }
            | AccessCommand::EnableUser { .. }
            | AccessCommand::EndSessions { .. }
            | AccessCommand::RemoveFeed { .. }
            | AccessCommand::RecordLogins { .. } => Ok(()),
        }
    }

    fn may_change_the_plan(&self) -> bool {
        match self {
            AccessCommand::RemoveNode { .. }
            | AccessCommand::DisableUser { .. }
            | AccessCommand::EnableUser { .. } => true,
            AccessCommand::RecordCertificate { .. }
            | AccessCommand::RevokeNode { .. }
            | AccessCommand::RevokeUser { .. }
            | AccessCommand::SetVouching { .. }
            | AccessCommand::OfferLogin { .. }
            | AccessCommand::BeginSession { .. }
            | AccessCommand::EndSessions { .. }
            | AccessCommand::CreateFeed(_)
            | AccessCommand::RemoveFeed { .. }
            | AccessCommand::RecordLogins { .. } => false,
        }
    }

    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection> {
        match self {
            AccessCommand::RecordCertificate { serial, holder, not_after, via, authority } => {
                let record = Record::of(serial, holder, *not_after, via.as_ref(), authority);
                fsm.record_certificate(turn, &record)
            }
            AccessCommand::RevokeNode { node, reason } => fsm.revoke_node(turn, node, reason),
            AccessCommand::RemoveNode { node, reason } => fsm.remove_node(turn, node, reason),
            AccessCommand::RevokeUser { user, reason } => fsm.revoke_user(turn, user, reason),
            AccessCommand::SetVouching { node, vouching } => {
                fsm.set_vouching(turn, node, *vouching)
            }
            AccessCommand::DisableUser { user, reason, transfer_to } => {
                fsm.disable_user(turn, user, reason, transfer_to.as_ref())
            }
            AccessCommand::EnableUser { user } => fsm.enable_user(turn, user),
            AccessCommand::RecordLogins { logins } => fsm.record_logins(turn, logins),
            AccessCommand::OfferLogin { user, sha256 } => fsm.offer_login(turn, user, sha256),
            AccessCommand::BeginSession { sha256, session } => {
                fsm.begin_session(turn, sha256, session)
            }
            AccessCommand::EndSessions { user, session } => {
                fsm.end_sessions(turn, user, session.as_deref())
            }
            AccessCommand::CreateFeed(wish) => fsm.create_feed(turn, wish),
            AccessCommand::RemoveFeed { feed } => fsm.remove_feed(turn, feed),
        }
    }
}

/// A browser logs in as who asks. A session does not give another one: it would never run out.
fn may_offer(actor: &Actor, user: &UserName) -> Result<Rule, Rejection> {
    that_user_at_a_terminal(actor, user)
        .ok_or_else(|| denied("the user who logs in, with `fleet web` in a terminal,"))
}

/// A feed outlives a session, so a session does not give one.
fn may_subscribe(actor: &Actor, user: &UserName) -> Result<Rule, Rejection> {
    that_user_at_a_terminal(actor, user)
        .ok_or_else(|| denied("the user of the feed, with `fleet calendar feed` in a terminal,"))
}

fn that_user_at_a_terminal(actor: &Actor, user: &UserName) -> Option<Rule> {
    let proven = match actor.method {
        AuthMethod::LocalSocket | AuthMethod::Certificate => true,
        AuthMethod::Session | AuthMethod::JoinToken | AuthMethod::Internal => false,
    };
    let is_that_user = matches!(&actor.who, Who::User { name, .. } if name == user);
    (proven && is_that_user).then_some("that_user")
}

/// A certificate for oneself, or as a node for one of its users. A user's certificate does not give
/// another one: it would never run out.
fn may_have(
    actor: &Actor,
    holder: &CertificateHolder,
    via: Option<&NodeName>,
) -> Result<Rule, Rejection> {
    match (&actor.who, holder, via) {
        (Who::Node { name }, CertificateHolder::Node { name: holder }, None) if name == holder => {
            Ok("that_node")
        }
        (Who::Node { name }, CertificateHolder::User { .. }, Some(via)) if name == via => {
            Ok("vouching_node")
        }
        (Who::User { name, .. }, CertificateHolder::User { name: holder }, None)
            if name == holder && actor.method == AuthMethod::LocalSocket =>
        {
            Ok("local_user")
        }
        // One that does not lead, for the users of its machine.
        (Who::Controller, CertificateHolder::User { .. }, None) => Ok("vouching_controller"),
        (Who::Node { .. } | Who::User { .. } | Who::Controller, _, _) => {
            Err(denied("the holder of the certificate, or a node for its users,"))
        }
    }
}
