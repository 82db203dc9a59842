//! Tokens to join with, of nodes and of controllers: which there are, and withdrawing them. Never their secrets.

use fleet_core::command::{Command, TokenCommand};
use fleet_core::controller::ControllerToken;
use fleet_core::id::TokenId;
use fleet_core::node::JoinToken;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::propose::request_key;

impl Context {
    pub(super) async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<v1::ListTokensResponse, Status> {
        let caller = self.callers.user(&request).await?;
        self.callers.require_admin(&caller, "list_tokens")?;
        self.newest().await?;
        Ok(v1::ListTokensResponse { items: self.raft.read(usable) })
    }

    pub(super) async fn withdraw_token(
        &self,
        request: Request<v1::WithdrawTokenRequest>,
    ) -> Result<v1::Token, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = TokenId::parse(&request.id)
            .map_err(|error| to_status(&Rejection::field("id", error.to_string())))?;
        let before = self.raft.read(|fsm| usable(fsm).into_iter().find(|t| t.id == id.as_str()));
        let command = Command::Token(TokenCommand::Withdraw { token: id.clone() });
        self.change(&caller.actor, Some(key), command).await?;
        // A repeated request finds nothing of it any more.
        Ok(before.unwrap_or(v1::Token { id: id.to_string(), ..v1::Token::default() }))
    }
}

/// Those that somebody new could join with.
fn usable(fsm: &Fsm) -> Vec<v1::Token> {
    let now = fsm.now();
    let has_names = |token: &&JoinToken| token.names.iter().any(|n| !token.used.contains_key(n));
    let nodes = fsm.tokens().values().filter(|token| token.expires_at > now).filter(has_names);
    let unused = |token: &&ControllerToken| token.used.is_none() && token.expires_at > now;
    let controllers = fsm.roster().tokens().filter(unused);
    nodes.map(of_node).chain(controllers.map(of_controller)).collect()
}

fn of_node(token: &JoinToken) -> v1::Token {
    v1::Token {
        id: token.id.to_string(),
        names: token.names.iter().map(ToString::to_string).collect(),
        for_controller: false,
        used: token.used.keys().map(ToString::to_string).collect(),
        created_by: token.created_by.to_string(),
        expires_at_unix_ms: token.expires_at.0,
    }
}

fn of_controller(token: &ControllerToken) -> v1::Token {
    v1::Token {
        id: token.id.to_string(),
        names: Vec::new(),
        for_controller: true,
        used: Vec::new(),
        created_by: token.created_by.to_string(),
        expires_at_unix_ms: token.expires_at.0,
    }
}
