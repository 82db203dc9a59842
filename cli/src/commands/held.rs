//! `held`: what the caller holds on this machine, by its own agent. At a login too, where it must never be in the way.

use std::time::Duration;

use fleet_proto::json::held::held;

use super::{Context, local};
use crate::args::HeldArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::held::{greeting, visible};
use crate::output::text::{print, say};

/// How long a login waits for the agent.
const LOGIN_MAX: Duration = Duration::from_millis(500);

pub(super) async fn run(context: &Context, args: &HeldArgs) -> Result<Exit, Failure> {
    if args.login {
        at_login(context).await;
        return Ok(Exit::Done);
    }
    let printer = context.printer(&args.output)?;
    let Some(here) = local::held(context, local::ANSWER_TIMEOUT).await else {
        let problem = "no agent answers on this machine";
        let hint = "`fleet reservation list --me` asks the controllers";
        return Err(Failure::new(Exit::Unreachable, problem).hint(hint));
    };
    print(&printer.list(&held(&here))?)?;
    Ok(Exit::Done)
}

/// What cannot be known in time is nothing, and no error.
async fn at_login(context: &Context) {
    let Some(here) = local::held(context, LOGIN_MAX).await else { return };
    if let Some(line) = greeting(&here, &context.clock) {
        say(&line);
    }
    if let Some(uuids) = visible(&here) {
        // Nobody may be reading.
        drop(print(&format!("{uuids}\n")));
    }
}
