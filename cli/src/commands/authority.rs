//! `controller ca status|rotate|skip|abort`: the certificate authority, and its exchange for another one.

use fleet_proto::json::authority::AuthorityStatus;
use fleet_proto::v1::{
    AbortRotationRequest, GetAuthorityStatusRequest, RotateAuthorityRequest, SkipInRotationRequest,
};

use super::{Context, watch};
use crate::args::{
    AbortArgs, AuthorityStatusArgs, AuthorityVerb, OutputArgs, RotateArgs, SkipArgs,
};
use crate::consent::Consent;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn run(context: &Context, verb: Option<AuthorityVerb>) -> Result<Exit, Failure> {
    match verb {
        None => status(context, &AuthorityStatusArgs::default()).await,
        Some(AuthorityVerb::Status(args)) => status(context, &args).await,
        Some(AuthorityVerb::Rotate(args)) => rotate(context, &args).await,
        Some(AuthorityVerb::Skip(args)) => skip(context, args).await,
        Some(AuthorityVerb::Abort(args)) => abort(context, &args).await,
    }
}

async fn status(context: &Context, args: &AuthorityStatusArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    watch::show(&client, args.watch, async || {
        let request = GetAuthorityStatusRequest {};
        let found = client.call(request, async |api, r| api.get_authority_status(r).await).await?;
        printer.one(&AuthorityStatus::from(found))
    })
    .await
}

fn confirmed(consent: Consent, what: &[&str], question: &str) -> Result<(), Failure> {
    if consent.is_asked_for() {
        what.iter().for_each(|line| say(line));
    }
    consent.ask(question)
}

fn show(
    context: &Context,
    output: &OutputArgs,
    after: fleet_proto::v1::AuthorityStatus,
) -> Result<Exit, Failure> {
    print(&context.printer(output)?.one(&AuthorityStatus::from(after))?)?;
    Ok(Exit::Done)
}

async fn rotate(context: &Context, args: &RotateArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let what = [
        "Controllers, nodes and users get certificates of a new authority; nothing that runs is touched.",
        "Once everybody has moved, the old one is trusted no more: a node that was away must be waited for.",
    ];
    confirmed(args.consent, &what, "Exchange the certificate authority?")?;
    let request = RotateAuthorityRequest { meta: client.request_meta()? };
    let after = client.call(request, async |api, r| api.rotate_authority(r).await).await?;
    show(context, &args.output, after)
}

async fn skip(context: &Context, args: SkipArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let nodes =
        format!("To come back, these must join again with a new token: {}", args.nodes.join(", "));
    let mut what = Vec::new();
    if !args.nodes.is_empty() {
        what.push(nodes.as_str());
    }
    if args.users {
        what.push("Users' certificates of the old authority end at once with it.");
    }
    confirmed(args.consent, &what, "Continue without them?")?;
    let SkipArgs { nodes, users, output, .. } = args;
    let request = SkipInRotationRequest { meta: client.request_meta()?, nodes, users };
    let after = client.call(request, async |api, r| api.skip_in_rotation(r).await).await?;
    show(context, &output, after)
}

async fn abort(context: &Context, args: &AbortArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let what = ["The authority before signs again; what has moved moves back."];
    confirmed(args.consent, &what, "Give the exchange up?")?;
    let request = AbortRotationRequest { meta: client.request_meta()? };
    let after = client.call(request, async |api, r| api.abort_rotation(r).await).await?;
    show(context, &args.output, after)
}
