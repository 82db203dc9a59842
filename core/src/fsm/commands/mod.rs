//! What the state machine knows of each command, one file for each noun: who may give it, what can be refused before it
//! is in the log, whether the plan may change by it, and what it does.
//!
//! Deny by default: each command names who may give it. The edge authenticates; this decides.

use super::{Fsm, Turn};
use crate::actor::{Actor, Who};
use crate::command::Command;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;

mod access;
mod audit;
mod authority;
mod classes;
mod cluster;
mod controllers;
mod ending;
mod gpus;
mod jobs;
mod limits;
mod nodes;
mod notices;
mod projects;
mod reboot;
mod reservations;
mod tokens;

/// The rule that allows a command, for the audit.
pub(super) type Rule = &'static str;

/// A command as `apply` sees it.
pub(super) trait Act {
    /// The rule that allows `actor` to give it.
    ///
    /// # Errors
    /// `Denied`, with who may.
    fn who_may(&self, fsm: &Fsm, actor: &Actor) -> Result<Rule, Rejection>;

    /// The refusal that `act` would give, without changing anything. For what users send often, so that it does not
    /// fill the log; the others are checked where they are applied alone.
    ///
    /// # Errors
    /// As `act` would.
    fn check(&self, _fsm: &Fsm, _actor: &Actor) -> Result<(), Rejection> {
        Ok(())
    }

    /// Whether something may be placed after it that could not before, or the reverse.
    fn may_change_the_plan(&self) -> bool;

    /// Does it.
    ///
    /// # Errors
    /// The refusal; nothing has changed then.
    fn act(&self, fsm: &mut Fsm, turn: &mut Turn<'_>) -> Result<Reply, Rejection>;
}

/// The command as what its noun says of it.
pub(super) fn of(command: &Command) -> &dyn Act {
    match command {
        Command::Cluster(command) => command,
        Command::Controller(command) => command,
        Command::Token(command) => command,
        Command::Node(command) => command,
        Command::Gpu(command) => command,
        Command::Reservation(command) => command,
        Command::Job(command) => command,
        Command::Access(command) => command,
        Command::Authority(command) => command,
        Command::Ending(command) => command,
        Command::Reboot(command) => command,
        Command::Limits(command) => command,
        Command::Project(command) => command,
        Command::Class(command) => command,
        Command::Audit(command) => command,
        Command::Notice(command) => command,
    }
}

/// The rule that allows `actor` to give `command`, or why it may not. What the edge let in a moment ago may be shut
/// out by now.
pub(super) fn authorize(fsm: &Fsm, actor: &Actor, command: &Command) -> Result<Rule, Rejection> {
    if actor.serial.as_ref().is_some_and(|serial| fsm.access().revoked.contains_key(serial)) {
        return Err(denied("somebody whose certificate was not revoked"));
    }
    match &actor.who {
        Who::User { name, .. } if fsm.access().disabled(name).is_some() => {
            return Err(denied("a user whose account is not disabled"));
        }
        Who::User { .. } | Who::Node { .. } | Who::Controller => {}
    }
    of(command).who_may(fsm, actor)
}

fn denied(needs: impl Into<String>) -> Rejection {
    Rejection::Denied { needs: needs.into() }
}

fn owner_or_admin(actor: &Actor, owner: Option<&UserName>) -> Result<Rule, Rejection> {
    match (&actor.who, owner) {
        (Who::User { admin: true, .. }, _) => Ok("admin"),
        // An unknown object is answered by its handler: not found, not denied.
        (Who::User { .. }, None) => Ok("any_user"),
        (Who::User { name, .. }, Some(owner)) if name == owner => Ok("owner"),
        (Who::User { .. } | Who::Node { .. } | Who::Controller, _) => {
            let owner = owner.map_or("the owner", UserName::as_str);
            Err(denied(format!("{owner} or an admin")))
        }
    }
}

fn any_user(actor: &Actor) -> Result<Rule, Rejection> {
    match actor.who {
        Who::User { .. } => Ok("any_user"),
        Who::Node { .. } | Who::Controller => Err(denied("a user")),
    }
}

fn admin(actor: &Actor) -> Result<Rule, Rejection> {
    match actor.who {
        Who::User { admin: true, .. } => Ok("admin"),
        Who::User { .. } | Who::Node { .. } | Who::Controller => Err(denied("an admin")),
    }
}

fn controller(actor: &Actor) -> Result<Rule, Rejection> {
    match actor.who {
        Who::Controller => Ok("controller"),
        Who::User { .. } | Who::Node { .. } => Err(denied("the controller itself")),
    }
}

fn that_node(actor: &Actor, node: &NodeName) -> Result<Rule, Rejection> {
    match &actor.who {
        Who::Node { name } if name == node => Ok("that_node"),
        Who::Node { .. } | Who::User { .. } | Who::Controller => {
            Err(denied(format!("the agent of node {node}")))
        }
    }
}
