//! `logs`: what a job printed, once or on and on.

use fleet_proto::v1::AttachOpen;

use super::attach::{self, Outcome, Wanted};
use super::{Context, job};
use crate::args::LogsArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;

pub(super) async fn run(context: &Context, args: &LogsArgs) -> Result<Exit, Failure> {
    if context.json {
        return Err(Failure::usage("--json", "logs prints what the job printed, as it is"));
    }
    let client = context.client()?;
    let job = client.resolve(job::KIND, &args.id).await?;
    let open = AttachOpen {
        job,
        from_beginning: args.tail.is_none(),
        tail_lines: args.tail.unwrap_or(0),
        follow: args.follow,
        interactive: false,
        attempt: args.attempt.unwrap_or(0),
    };
    match attach::follow(context, &client, open, Wanted::default()).await? {
        Outcome::Ended(_) | Outcome::Left | Outcome::OutputClosed => Ok(Exit::Done),
        Outcome::Signalled => Ok(Exit::Failed),
    }
}
