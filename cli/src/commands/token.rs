//! `node token list|withdraw`: the tokens that somebody could still join with.

use fleet_proto::json::token::Token;
use fleet_proto::v1::{ListTokensRequest, WithdrawTokenRequest};

use super::Context;
use crate::args::{TokenListArgs, TokenWithdrawArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn list(context: &Context, args: &TokenListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    print(&printer.list(&fetch(&client).await?)?)?;
    Ok(Exit::Done)
}

pub(super) async fn withdraw(context: &Context, args: &TokenWithdrawArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    if args.consent.is_asked_for() {
        let known = fetch(&client).await?.into_iter().find(|token| token.id == args.id);
        if let Some(token) = known {
            say(&format!("{} is for {}.", token.id, token.meant_for()));
        }
    }
    args.consent.ask(&format!("Withdraw {}?", args.id))?;
    let request = WithdrawTokenRequest { meta: client.request_meta()?, id: args.id.clone() };
    let token = client.call(request, async |api, r| api.withdraw_token(r).await).await?;
    say(&format!("{}: withdrawn", args.id));
    print(&printer.changed(&[Token::from(token)], |token| &token.id)?)?;
    Ok(Exit::Done)
}

async fn fetch(client: &Client) -> Result<Vec<Token>, Failure> {
    let request = ListTokensRequest {};
    let listed = client.call(request, async |api, r| api.list_tokens(r).await).await?;
    Ok(listed.items.into_iter().map(Token::from).collect())
}
