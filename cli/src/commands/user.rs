//! `user list|show|disable|enable|revoke`.

use fleet_core::Rejection;
use fleet_proto::json::user::User;
use fleet_proto::v1::{
    DisableUserRequest, EnableUserRequest, GetStatusRequest, ListUsersRequest, RevokeUserRequest,
};

use super::Context;
use crate::args::{UserDisableArgs, UserEnableArgs, UserListArgs, UserRevokeArgs, UserShowArgs};
use crate::client::Client;
use crate::consent::NewUsers;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::Printer;
use crate::output::text::{print, say};

/// What it is called in messages.
const KIND: &str = "user";

async fn fetch(client: &Client, names: Vec<String>) -> Result<Vec<User>, Failure> {
    let request = ListUsersRequest { names };
    let listed = client.call(request, async |api, r| api.list_users(r).await).await?;
    Ok(listed.items.into_iter().map(User::from).collect())
}

pub(super) async fn list(context: &Context, args: &UserListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    print(&printer.list(&fetch(&client, Vec::new()).await?)?)?;
    Ok(Exit::Done)
}

pub(super) async fn show(context: &Context, args: &UserShowArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let found = fetch(&client, vec![args.user.clone()]).await?.into_iter().next();
    let Some(user) = found else {
        return Err(not_shown(&client, &args.user, "to see other users", context).await?);
    };
    print(&printer.one(&user)?)?;
    Ok(Exit::Done)
}

/// Why a user is not in the answer: the controller shows people nobody else, or nobody has that name.
async fn not_shown(
    client: &Client,
    user: &str,
    to: &str,
    context: &Context,
) -> Result<Failure, Failure> {
    let status = client.call(GetStatusRequest {}, async |api, r| api.get_status(r).await).await?;
    if !status.caller_is_admin && status.caller != user {
        let needs = format!("an admin, {to}");
        return Ok(Failure::of_rejection(Rejection::Denied { needs }, &context.clock));
    }
    let failure = Failure::of_rejection(Rejection::not_found(KIND, user), &context.clock);
    Ok(failure.hint("users are known once they came in, reserved something or ran a job"))
}

pub(super) async fn disable(context: &Context, args: &UserDisableArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    match fetch(&client, vec![args.user.clone()]).await?.first() {
        Some(user) => say(&format!(
            "{} has: running jobs {}, queued jobs {}, reservations {}.",
            user.name, user.jobs_running, user.jobs_queued, user.reservations
        )),
        None => {
            let failure = not_shown(&client, &args.user, "to disable a user", context).await?;
            if failure.exit == Exit::Denied {
                return Err(failure);
            }
            // Not refused: a user who has left may never have been here.
            say(&format!("{} was never here: check the name", args.user));
        }
    }
    args.consent.ask(&format!("Disable {}?", args.user))?;
    let disable = async |new_users| {
        let request = DisableUserRequest {
            meta: client.request_meta()?,
            user: args.user.clone(),
            reason: args.reason.clone(),
            transfer_to: args.transfer_to.clone().unwrap_or_default(),
            new_users,
        };
        client.call(request, async |api, r| api.disable_user(r).await).await
    };
    let user = match disable(args.consent.yes).await {
        Err(failure) if failure.names_unknown_users() => {
            NewUsers { yes: args.consent.yes }.ask(failure)?;
            client.ask_anew()?;
            disable(true).await
        }
        disabled => disabled,
    };
    changed(&printer, User::from(user?))
}

pub(super) async fn enable(context: &Context, args: &UserEnableArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let meta = client.request_meta()?;
    let request = EnableUserRequest { meta, user: args.user.clone() };
    let user = client.call(request, async |api, r| api.enable_user(r).await).await?;
    changed(&printer, User::from(user))
}

pub(super) async fn revoke(context: &Context, args: &UserRevokeArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    args.consent.ask(&format!("End all certificates of {}?", args.user))?;
    let meta = client.request_meta()?;
    let (user, reason) = (args.user.clone(), args.reason.clone());
    let request = RevokeUserRequest { meta, user, reason };
    let user = client.call(request, async |api, r| api.revoke_user(r).await).await?;
    changed(&printer, User::from(user))
}

fn changed(printer: &Printer, user: User) -> Result<Exit, Failure> {
    say(&format!("{}: {}, {} certificates", user.name, user.state, user.certificates));
    print(&printer.changed(&[user], |user| &user.name)?)?;
    Ok(Exit::Done)
}
