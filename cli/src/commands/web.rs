//! `web`: a browser logs in, or all of them out.

use fleet_proto::v1::{CreateLoginCodeRequest, EndSessionsRequest};

use super::Context;
use crate::args::WebArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

pub(super) async fn run(context: &Context, args: &WebArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let meta = client.request_meta()?;
    if args.log_out {
        let request = EndSessionsRequest { meta, session: String::new() };
        let ended = client.call(request, async |api, r| api.end_sessions(r).await).await?;
        say(&match ended.sessions {
            0 => "no browser was logged in".to_owned(),
            1 => "1 browser is logged out".to_owned(),
            count => format!("{count} browsers are logged out"),
        });
        return Ok(Exit::Done);
    }
    let request = CreateLoginCodeRequest { meta };
    let made = client.call(request, async |api, r| api.create_login_code(r).await).await?;
    // Behind the #: a browser sends that to nobody, and no log has it.
    let address = |page: &String| format!("{page}/login#{}", made.code);
    let mut pages = made.pages.iter().map(address);
    let first = pages.next().ok_or_else(|| Failure::new(Exit::Failed, "no web page was named"))?;
    say("Open this in a browser within a minute, and press the button; it works once:");
    print(&format!("{first}\n"))?;
    let others: Vec<String> = pages.collect();
    if !others.is_empty() {
        say(&format!("if that does not answer: {}", others.join(" or ")));
    }
    Ok(Exit::Done)
}
