//! Who asks: the authenticated principal of a command, and what it may do.
//!
//! Deny by default: `authorize` lists, for each command, who may give it. The edge authenticates;
//! this decides. It is called by the FSM for each command, before anything else.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::fsm::Fsm;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;

/// How a principal proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// A Unix socket's peer credentials.
    LocalSocket,
    /// A client certificate.
    Certificate,
    /// A join token.
    JoinToken,
    /// The controller itself.
    Internal,
}

/// What kind of principal it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    User {
        name: UserName,
        admin: bool,
    },
    Node {
        name: NodeName,
    },
    /// The leader acting on the clock or on the plan.
    Controller,
}

/// The authenticated giver of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    pub who: Who,
    pub method: AuthMethod,
    /// Serial of the certificate, where there is one.
    pub serial: Option<String>,
}

impl Actor {
    /// The leader acting by itself.
    pub fn controller() -> Self {
        Actor { who: Who::Controller, method: AuthMethod::Internal, serial: None }
    }

    /// `user:ada`, `node:titan01`, `controller`: the principal that request ids belong to.
    pub fn principal(&self) -> String {
        match &self.who {
            Who::User { name, .. } => format!("user:{name}"),
            Who::Node { name } => format!("node:{name}"),
            Who::Controller => "controller".to_owned(),
        }
    }

    /// The name shown to people.
    pub fn display_name(&self) -> String {
        match &self.who {
            Who::User { name, .. } => name.to_string(),
            Who::Node { name } => name.to_string(),
            Who::Controller => "fleet".to_owned(),
        }
    }
}

fn denied(needs: &'static str) -> Rejection {
    Rejection::Denied { needs: needs.to_owned() }
}

fn owner_or_admin(actor: &Actor, owner: Option<&UserName>) -> Result<&'static str, Rejection> {
    match (&actor.who, owner) {
        (Who::User { admin: true, .. }, _) => Ok("admin"),
        // An unknown object is answered by its handler: not found, not denied.
        (Who::User { .. }, None) => Ok("any_user"),
        (Who::User { name, .. }, Some(owner)) if name == owner => Ok("owner"),
        (Who::User { .. } | Who::Node { .. } | Who::Controller, _) => {
            Err(denied("the owner or an admin"))
        }
    }
}

fn any_user(actor: &Actor) -> Result<&'static str, Rejection> {
    match actor.who {
        Who::User { .. } => Ok("any_user"),
        Who::Node { .. } | Who::Controller => Err(denied("a user")),
    }
}

fn admin(actor: &Actor) -> Result<&'static str, Rejection> {
    match actor.who {
        Who::User { admin: true, .. } => Ok("admin"),
        Who::User { .. } | Who::Node { .. } | Who::Controller => Err(denied("an admin")),
    }
}

fn controller(actor: &Actor) -> Result<&'static str, Rejection> {
    match actor.who {
        Who::Controller => Ok("controller"),
        Who::User { .. } | Who::Node { .. } => Err(denied("the controller itself")),
    }
}

fn that_node(actor: &Actor, node: &NodeName) -> Result<&'static str, Rejection> {
    match &actor.who {
        Who::Node { name } if name == node => Ok("that_node"),
        Who::Node { .. } | Who::User { .. } | Who::Controller => {
            Err(denied("the agent of that very node"))
        }
    }
}

/// The rule that allows `actor` to give `command`, or why it may not.
pub fn authorize(fsm: &Fsm, actor: &Actor, command: &Command) -> Result<&'static str, Rejection> {
    match command {
        Command::CreateReservation(_) | Command::SubmitJob(_) => any_user(actor),
        Command::ExtendReservation { id, .. } | Command::ReleaseReservation { id } => {
            owner_or_admin(actor, fsm.reservation(id).map(|r| &r.owner))
        }
        Command::CancelJob { id } => owner_or_admin(actor, fsm.job(id).map(|j| &j.owner)),
        Command::CordonNode { .. }
        | Command::UncordonNode { .. }
        | Command::DrainNode { .. }
        | Command::DeclareGpuFree { .. }
        | Command::ClearGpu { .. }
        | Command::ThawEvictions
        | Command::ResetClock { .. }
        | Command::CreateJoinToken(_)
        | Command::CreateControllerToken(_)
        | Command::RemoveController { .. } => admin(actor),
        Command::RegisterNode { node, .. } | Command::ReportNode { node, .. } => {
            that_node(actor, node)
        }
        Command::RedeemJoinToken { .. } => match actor.method {
            AuthMethod::JoinToken => Ok("join_token"),
            AuthMethod::LocalSocket | AuthMethod::Certificate | AuthMethod::Internal => {
                Err(denied("a join token"))
            }
        },
        Command::AdmitController(wish) => match (actor.method, &wish.token) {
            (AuthMethod::JoinToken, Some(_)) => Ok("join_token"),
            (AuthMethod::Internal, None) => controller(actor),
            (
                AuthMethod::JoinToken
                | AuthMethod::Internal
                | AuthMethod::LocalSocket
                | AuthMethod::Certificate,
                _,
            ) => Err(denied("a token for controllers")),
        },
        Command::PlaceJobs { .. }
        | Command::AdvanceTime
        | Command::SetLiveness { .. }
        | Command::SuspendNode { .. }
        | Command::RecordRefusals { .. }
        | Command::CheckState { .. }
        | Command::InitCluster { .. }
        | Command::SetClusterVersion { .. } => controller(actor),
    }
}
