//! Who asks: the authenticated principal of a command. What it may do is decided in [`crate::fsm`].

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::name::{GroupName, NodeName, UserName};

/// How a principal proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// A Unix socket's peer credentials.
    LocalSocket,
    /// A client certificate.
    Certificate,
    /// A session of a browser, begun by a code that one of the above asked for.
    Session,
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
        /// Of their Unix groups those that have limits or are in a project.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        groups: BTreeSet<GroupName>,
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
    /// Serial of the certificate, or the id of the session, where there is one.
    pub serial: Option<String>,
}

impl Actor {
    /// Whether it is a person who administers the fleet.
    pub fn is_admin(&self) -> bool {
        matches!(self.who, Who::User { admin: true, .. })
    }

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
