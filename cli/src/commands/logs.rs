//! `logs`: what a job printed, once or on and on.

use fleet_proto::v1::{AttachOpen, MissingOutput};

use super::attach::{self, Outcome, Wanted};
use super::{Context, job};
use crate::args::LogsArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

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
        // Scripts must not take a part for the whole.
        Outcome::Ended { missing: Some(missing), .. } => Err(failure(missing)),
        Outcome::Ended { job, missing: None } => {
            if args.attempt.is_none()
                && let Some(hint) = earlier(&job.id, job.attempt)
            {
                say(&hint);
            }
            Ok(Exit::Done)
        }
        Outcome::Left | Outcome::OutputClosed => Ok(Exit::Done),
        Outcome::Signalled => Ok(Exit::Failed),
    }
}

fn failure(missing: MissingOutput) -> Failure {
    match missing.unreachable {
        true => Failure::new(Exit::Unreachable, missing.why)
            .hint("the same command shows the output when the node can be reached again"),
        false => Failure::new(Exit::Failed, missing.why),
    }
}

/// Output of earlier attempts is not shown unless it is asked for.
fn earlier(id: &str, newest: u32) -> Option<String> {
    let last = newest.checked_sub(1).filter(|last| *last > 0)?;
    let which =
        if last == 1 { "attempt 1 came".to_owned() } else { format!("attempts 1 to {last} came") };
    Some(format!("hint: {which} before this one: fleet logs --attempt {last} {id}"))
}

#[cfg(test)]
mod tests {
    use super::earlier;

    #[test]
    fn earlier_attempts_are_hinted_at() {
        assert_eq!((earlier("job-a", 0), earlier("job-a", 1)), (None, None));
        let hint = |newest| earlier("job-a", newest).unwrap_or_default();
        assert_eq!(hint(2), "hint: attempt 1 came before this one: fleet logs --attempt 1 job-a");
        assert!(hint(4).contains("attempts 1 to 3 came"));
    }
}
