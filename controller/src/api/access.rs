//! Who may come in: revoking, removing, accounts. From the wire to a command, and the answer back.

use fleet_core::access::{CertificateHolder, Vouching};
use fleet_core::command::{AccessCommand, Command};
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Millis;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::{rejection::to_status, wish};
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::{Context, views};

fn user_name(field: &str, text: &str) -> Result<UserName, Status> {
    UserName::parse(text).map_err(|e| to_status(&Rejection::field(field, e.to_string())))
}

fn vouching(text: &str) -> Result<Vouching, Status> {
    let all = [Vouching::Off, Vouching::Users, Vouching::Admins];
    let found = all.into_iter().find(|vouching| vouching.word() == text);
    found.ok_or_else(|| {
        let problem = format!("{text:?} must be off, users or admins");
        to_status(&Rejection::field("vouches", problem))
    })
}

impl Context {
    pub(super) async fn revoke_node(
        &self,
        request: Request<v1::RevokeNodeRequest>,
    ) -> Result<v1::Revoked, Status> {
        let asked = request.get_ref().clone();
        let node = wish::node("node", &asked.node).map_err(|r| to_status(&r))?;
        let before = self.raft.read(|fsm| held_by_node(fsm, &node));
        let command = AccessCommand::RevokeNode { node, reason: asked.reason };
        self.change_access(&request, asked.meta.as_ref(), command).await?;
        Ok(v1::Revoked { certificates: before })
    }

    pub(super) async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<v1::Revoked, Status> {
        let asked = request.get_ref().clone();
        let node = wish::node("node", &asked.node).map_err(|r| to_status(&r))?;
        let before = self.raft.read(|fsm| held_by_node(fsm, &node));
        let command = AccessCommand::RemoveNode { node, reason: asked.reason };
        self.change_access(&request, asked.meta.as_ref(), command).await?;
        Ok(v1::Revoked { certificates: before })
    }

    pub(super) async fn set_vouching(
        &self,
        request: Request<v1::SetVouchingRequest>,
    ) -> Result<v1::Node, Status> {
        let asked = request.get_ref().clone();
        let vouching = vouching(&asked.vouches)?;
        let set = |node| Command::Access(AccessCommand::SetVouching { node, vouching });
        self.change_node(&request, asked.meta.as_ref(), &asked.node, set).await
    }

    pub(super) async fn revoke_user(
        &self,
        request: Request<v1::RevokeUserRequest>,
    ) -> Result<v1::User, Status> {
        let asked = request.get_ref().clone();
        let user = user_name("user", &asked.user)?;
        let command = AccessCommand::RevokeUser { user: user.clone(), reason: asked.reason };
        self.change_access(&request, asked.meta.as_ref(), command).await?;
        Ok(self.raft.read(|fsm| views::user(fsm, &user)))
    }

    pub(super) async fn disable_user(
        &self,
        request: Request<v1::DisableUserRequest>,
    ) -> Result<v1::User, Status> {
        let asked = request.get_ref().clone();
        let user = user_name("user", &asked.user)?;
        let transfer_to = match asked.transfer_to.as_str() {
            "" => None,
            name => Some(user_name("transfer_to", name)?),
        };
        let caller = self.callers.user(&request).await?;
        if caller.admin && !asked.new_users {
            let key = request_key(asked.meta.as_ref(), request.get_ref())?;
            self.refuse_unknown(transfer_to.clone(), &caller, &key).await?;
        }
        let reason = asked.reason;
        let command = AccessCommand::DisableUser { user: user.clone(), reason, transfer_to };
        self.change_access(&request, asked.meta.as_ref(), command).await?;
        Ok(self.raft.read(|fsm| views::user(fsm, &user)))
    }

    pub(super) async fn enable_user(
        &self,
        request: Request<v1::EnableUserRequest>,
    ) -> Result<v1::User, Status> {
        let asked = request.get_ref().clone();
        let user = user_name("user", &asked.user)?;
        let command = AccessCommand::EnableUser { user: user.clone() };
        self.change_access(&request, asked.meta.as_ref(), command).await?;
        Ok(self.raft.read(|fsm| views::user(fsm, &user)))
    }

    pub(super) async fn list_users(
        &self,
        request: Request<v1::ListUsersRequest>,
    ) -> Result<v1::ListUsersResponse, Status> {
        let caller = self.callers.user(&request).await?;
        self.newest().await?;
        let names = request.into_inner().names;
        let wanted = |user: &UserName| names.is_empty() || names.iter().any(|n| n == user.as_str());
        // Who else there is, and when they were here, is the admins' business.
        let may_see = |user: &UserName| caller.admin || *user == caller.name;
        let mut items: Vec<v1::User> = self.raft.read(|fsm| {
            let users = known_users(fsm);
            let shown = users.iter().filter(|user| wanted(user) && may_see(user));
            shown.map(|user| views::user(fsm, user)).collect()
        });
        let (now, seen) = (self.clock.now(), self.logins.seen());
        for user in &mut items {
            let ago = UserName::parse(&user.name).ok().and_then(|name| seen.get(&name).copied());
            let ago = ago.and_then(|ago| u64::try_from(ago.as_millis()).ok());
            let here = ago.map_or(0, |ago| (now - Millis(ago)).0);
            user.last_seen_unix_ms = user.last_seen_unix_ms.max(here);
        }
        Ok(v1::ListUsersResponse { items })
    }

    async fn change_access<T: prost::Message>(
        &self,
        request: &Request<T>,
        meta: Option<&v1::RequestMeta>,
        command: AccessCommand,
    ) -> Result<(), Status> {
        let caller = self.callers.user(request).await?;
        let key = request_key(meta, request.get_ref())?;
        self.change(&caller.actor, Some(key), Command::Access(command)).await?;
        Ok(())
    }
}

/// Certificates that go when this node is revoked: its own, and those it vouched for.
fn held_by_node(fsm: &Fsm, node: &NodeName) -> u32 {
    let own = CertificateHolder::Node { name: node.clone() };
    let issued = fsm.access().issued.values();
    let count = issued.filter(|i| i.holder == own || i.via.as_ref() == Some(node)).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Everybody with an account, a job or a reservation.
fn known_users(fsm: &Fsm) -> std::collections::BTreeSet<UserName> {
    let accounts = fsm.access().accounts.keys();
    let jobs = fsm.jobs().values().filter(|j| !j.state.is_final()).map(|j| &j.owner);
    let reservations = fsm.open_reservations().map(|r| &r.owner);
    let waiting = fsm.waitlist().without_place().map(|waiter| &waiter.wish.owner);
    accounts.chain(jobs).chain(reservations).chain(waiting).cloned().collect()
}
