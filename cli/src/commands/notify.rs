//! `notify show|set|test`: what a user hears by mail, and where.

use fleet_proto::json::notices::NoticeSettings;
use fleet_proto::v1::{GetNoticesRequest, SetNoticesRequest, TestNoticesRequest};

use super::Context;
use crate::args::{NoticeKindArg, NotifySetArgs, NotifyShowArgs, NotifyTestArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn show(context: &Context, args: &NotifyShowArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = GetNoticesRequest { user: args.user.clone().unwrap_or_default() };
    let settings = client.call(request, async |api, r| api.get_notices(r).await).await?;
    print(&printer.one(&NoticeSettings::from(settings))?)?;
    Ok(Exit::Done)
}

pub(super) async fn set(context: &Context, args: &NotifySetArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let words = |kinds: &[NoticeKindArg]| kinds.iter().map(|k| k.word().to_owned()).collect();
    let changes_nothing = args.mail.is_none()
        && !args.no_mail
        && !args.default_mail
        && args.on.is_empty()
        && args.off.is_empty();
    if changes_nothing {
        let problem = "say what to change: --mail, --no-mail, --default-mail, --on or --off";
        return Err(Failure::usage("notify set", problem));
    }
    if args.mail.as_deref() == Some("") {
        return Err(Failure::usage("--mail", "the address is empty; --no-mail sends no mail"));
    }
    let request = SetNoticesRequest {
        meta: client.request_meta()?,
        user: args.user.clone().unwrap_or_default(),
        mail: args.mail.clone().unwrap_or_default(),
        no_mail: args.no_mail,
        default_mail: args.default_mail,
        on: words(&args.on),
        off: words(&args.off),
    };
    let settings = client.call(request, async |api, r| api.set_notices(r).await).await?;
    print(&printer.one(&NoticeSettings::from(settings))?)?;
    Ok(Exit::Done)
}

pub(super) async fn test(context: &Context, args: &NotifyTestArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let request = TestNoticesRequest { user: args.user.clone().unwrap_or_default() };
    let mut replies = client.call(request, async |api, r| api.test_notices(r).await).await?;
    let mut answer = None;
    while let Some(reply) = replies.message().await.map_err(|status| client.failure(&status))? {
        match reply.answer.is_empty() {
            true => say(&format!("sending a mail to {} through {}", reply.address, reply.server)),
            false => answer = Some(reply),
        }
    }
    let Some(reply) = answer else {
        let problem = "the connection ended before the mail server answered";
        return Err(Failure::new(Exit::Failed, problem.to_owned()));
    };
    print(&format!("{} took the mail to {}: {}\n", reply.server, reply.address, reply.answer))?;
    Ok(Exit::Done)
}
