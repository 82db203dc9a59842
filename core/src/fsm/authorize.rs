//! What a principal may do.
//!
//! Deny by default: `authorize` lists, for each command, who may give it. The edge authenticates; this decides. It is
//! called for each command, before anything else.

use super::Fsm;
use crate::access::{AccessCommand, CertificateHolder};
use crate::actor::{Actor, AuthMethod, Who};
use crate::authority::AuthorityCommand;
use crate::command::Command;
use crate::ending::EndingCommand;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;

fn denied(needs: impl Into<String>) -> Rejection {
    Rejection::Denied { needs: needs.into() }
}

fn owner_or_admin(actor: &Actor, owner: Option<&UserName>) -> Result<&'static str, Rejection> {
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
            Err(denied(format!("the agent of node {node}")))
        }
    }
}

/// What the edge let in a moment ago may be shut out by now.
fn refuse_shut_out(fsm: &Fsm, actor: &Actor) -> Result<(), Rejection> {
    if actor.serial.as_ref().is_some_and(|serial| fsm.access().revoked.contains_key(serial)) {
        return Err(denied("somebody whose certificate was not revoked"));
    }
    match &actor.who {
        Who::User { name, .. } if fsm.access().disabled(name).is_some() => {
            Err(denied("a user whose account is not disabled"))
        }
        Who::User { .. } | Who::Node { .. } | Who::Controller => Ok(()),
    }
}

fn authorize_access(actor: &Actor, command: &AccessCommand) -> Result<&'static str, Rejection> {
    match command {
        AccessCommand::RecordCertificate { holder, via, .. } => {
            may_have(actor, holder, via.as_ref())
        }
        AccessCommand::RevokeUser { user, .. } => owner_or_admin(actor, Some(user)),
        AccessCommand::RevokeNode { .. }
        | AccessCommand::RemoveNode { .. }
        | AccessCommand::SetVouching { .. }
        | AccessCommand::DisableUser { .. }
        | AccessCommand::EnableUser { .. } => admin(actor),
        AccessCommand::RecordLogins { .. } => controller(actor),
    }
}

fn authorize_authority(
    actor: &Actor,
    command: &AuthorityCommand,
) -> Result<&'static str, Rejection> {
    match command {
        AuthorityCommand::StartRotation { .. }
        | AuthorityCommand::SkipInRotation { .. }
        | AuthorityCommand::AbortRotation => admin(actor),
        AuthorityCommand::BeginMoving { .. }
        | AuthorityCommand::NoteMoved { .. }
        | AuthorityCommand::FinishRotation { .. } => controller(actor),
    }
}

/// A certificate for oneself, or as a node for one of its users. A user's certificate does not give
/// another one: it would never run out.
fn may_have(
    actor: &Actor,
    holder: &CertificateHolder,
    via: Option<&NodeName>,
) -> Result<&'static str, Rejection> {
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

/// The rule that allows `actor` to give `command`, or why it may not.
pub(super) fn authorize(
    fsm: &Fsm,
    actor: &Actor,
    command: &Command,
) -> Result<&'static str, Rejection> {
    refuse_shut_out(fsm, actor)?;
    match command {
        Command::Access(command) => authorize_access(actor, command),
        Command::Authority(command) => authorize_authority(actor, command),
        Command::Ending(EndingCommand::SetRules { .. }) | Command::Limits(_) => admin(actor),
        Command::Ending(EndingCommand::SetAtEnd { id, .. }) => {
            owner_or_admin(actor, fsm.reservation(id).map(|r| &r.owner))
        }
        Command::CreateReservation(_)
        | Command::ImportReservations { .. }
        | Command::SubmitJob(_) => any_user(actor),
        Command::ExtendReservation { id, .. } | Command::ReleaseReservation { id } => {
            owner_or_admin(actor, fsm.reservation(id).map(|r| &r.owner))
        }
        // Whose it is, its handler sees: it is several people's.
        Command::UndoImport { .. } => any_user(actor),
        Command::CancelJob { id }
        | Command::RestartJob { id, .. }
        | Command::SetJobTimeLimit { id, .. }
        | Command::RemoveJob { id }
        | Command::AskCheckpoint { id } => owner_or_admin(actor, fsm.job(id).map(|j| &j.owner)),
        Command::CordonNode { .. }
        | Command::UncordonNode { .. }
        | Command::DrainNode { .. }
        | Command::EnforceNode { .. }
        | Command::SetJobDefaults { .. }
        | Command::PruneAudit(_)
        | Command::Reboot(_)
        | Command::DeclareGpuFree { .. }
        | Command::ClearGpu { .. }
        | Command::ForgetGpu { .. }
        | Command::WithdrawToken { .. }
        | Command::OrderImagesRemoval { .. }
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
                Err(denied("a machine with a join token"))
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
            ) => Err(denied("a machine with a token for controllers")),
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
