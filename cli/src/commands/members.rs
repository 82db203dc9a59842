//! `controller list|add|remove|transfer-leadership`: who the controllers are.

use std::time::{Duration, Instant};

use fleet_proto::json::controller::Controller;
use fleet_proto::json::token::JoinToken;
use fleet_proto::v1::{
    CreateControllerTokenRequest, ListControllersRequest, RemoveControllerRequest,
    TransferLeadershipRequest,
};

use super::Context;
use crate::args::{ControllerAddArgs, ControllerRemoveArgs, OutputArgs, TransferArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// How long a removed controller may take to be gone from the list.
const GONE_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at the list.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(in crate::commands) async fn fetch(client: &Client) -> Result<Vec<Controller>, Failure> {
    let request = ListControllersRequest {};
    let listed = client.call(request, async |api, r| api.list_controllers(r).await).await?;
    Ok(listed.items.into_iter().map(Controller::from).collect())
}

pub(super) async fn list(context: &Context, output: &OutputArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(output)?);
    print(&printer.list(&fetch(&client).await?)?)?;
    Ok(Exit::Done)
}

pub(super) async fn add(context: &Context, args: &ControllerAddArgs) -> Result<Exit, Failure> {
    let ttl_ms = context.length_of("--ttl", args.ttl.as_ref())?.unwrap_or(0);
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = CreateControllerTokenRequest { meta: client.request_meta()?, ttl_ms };
    let made = client.call(request, async |api, r| api.create_controller_token(r).await).await?;
    let token = JoinToken::from(made);
    if printer.for_people() {
        print(&format!("{}\n", token.join_line))?;
        say(
            "type that on the new controller, as root, then start it: systemctl enable --now fleet-controller",
        );
    } else {
        print(&printer.one(&token)?)?;
    }
    Ok(Exit::Done)
}

pub(super) async fn remove(
    context: &Context,
    args: &ControllerRemoveArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    if args.consent.is_asked_for() {
        say("A controller that was removed cannot come back; its machine may join as a new one.");
    }
    args.consent.ask(&format!("Remove controller {}?", args.id))?;
    let request = RemoveControllerRequest { meta: client.request_meta()?, id: args.id };
    client.call(request, async |api, r| api.remove_controller(r).await).await?;
    let deadline = Instant::now() + GONE_TIMEOUT;
    let left = loop {
        let left = fetch(&client).await?;
        if left.iter().all(|one| one.id != args.id) {
            break left;
        }
        if Instant::now() > deadline {
            say(&format!("controller {} is removed, and still leaving", args.id));
            break left;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    print(&printer.list(&left)?)?;
    Ok(Exit::Done)
}

pub(super) async fn transfer(context: &Context, args: &TransferArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let meta = client.request_meta()?;
    let request = TransferLeadershipRequest { meta, to: args.to.unwrap_or(0) };
    let after = client.call(request, async |api, r| api.transfer_leadership(r).await).await?;
    let items: Vec<Controller> = after.items.into_iter().map(Controller::from).collect();
    print(&printer.list(&items)?)?;
    Ok(Exit::Done)
}
