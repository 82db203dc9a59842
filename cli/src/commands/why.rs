//! `why`: what happened to a thing, and why it is as it is.

use std::time::Duration;

use fleet_core::job::JobState;
use fleet_proto::json::story::Story;
use fleet_proto::v1::attach_input::Input;
use fleet_proto::v1::attach_output::Output;
use fleet_proto::v1::{AttachInput, AttachOpen, ExplainRequest, ListJobsRequest};
use tokio_stream::StreamExt as _;

use super::{Context, caller, job};
use crate::args::WhyArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::story::told;
use crate::output::text::{columns, harmless, print};

/// Lines of a failed job's output below its story.
const LAST_LINES: u32 = 5;
/// They are left out when they have not come by then: the story is there.
const LAST_LINES_PATIENCE: Duration = Duration::from_secs(3);
/// A line may be longer than anybody reads.
const LAST_LINES_BYTES_MAX: usize = 8 * 1024;

pub(super) async fn run(context: &Context, args: &WhyArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let id = client.resolve("", &args.id).await?;
    let (from_unix_ms, until_unix_ms) = (
        context.past("--from", args.from.as_ref())?,
        context.past("--until", args.until.as_ref())?,
    );
    if until_unix_ms > 0 && until_unix_ms <= from_unix_ms {
        return Err(Failure::usage("--until", "must be later than --from"));
    }
    let lines = args.lines.unwrap_or(0);
    let request = ExplainRequest { id, from_unix_ms, until_unix_ms, lines };
    let story = Story::from(client.call(request, async |api, r| api.explain(r).await).await?);
    if !printer.for_people() {
        print(&printer.one(&story)?)?;
        return Ok(Exit::Done);
    }
    let mut text = told(&story, &context.clock, columns());
    if story.kind == job::KIND {
        let mut printed = Vec::new();
        let asked = last_lines(&client, &story.id, &mut printed);
        // What has come by then is shown.
        drop(tokio::time::timeout(LAST_LINES_PATIENCE, asked).await);
        text.push_str(&below(&story.id, &String::from_utf8_lossy(&printed)));
    }
    print(&text)?;
    Ok(Exit::Done)
}

/// What a failed job of the caller's own printed last, as far as its node has it and answers.
async fn last_lines(client: &Client, id: &str, printed: &mut Vec<u8>) {
    let request = ListJobsRequest { ids: vec![id.to_owned()], all: true, ..Default::default() };
    let found = job::fetch(client, request).await.unwrap_or_default();
    let Some(job) = found.into_iter().find(|job| job.state.is(JobState::Failed)) else { return };
    // Whose it is not would be refused, and that on record.
    if caller(client).await.ok().as_ref() != Some(&job.owner) {
        return;
    }
    let open = AttachOpen { job: job.id, tail_lines: LAST_LINES, ..Default::default() };
    let input = tokio_stream::once(AttachInput { input: Some(Input::Open(open)) });
    let Ok(answer) = client.api().await.attach(input).await else { return };
    let mut output = answer.into_inner();
    while let Some(Ok(message)) = output.next().await {
        if let Some(Output::Stdout(more) | Output::Stderr(more)) = message.output {
            printed.extend_from_slice(&more);
            let too_many = printed.len().saturating_sub(LAST_LINES_BYTES_MAX);
            printed.drain(..too_many);
        }
    }
}

/// The lines as they stand below a story; nothing where there are none.
fn below(id: &str, printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    let last = lines.len().saturating_sub(LAST_LINES as usize);
    let shown: String =
        lines.iter().skip(last).map(|line| format!("  {}\n", harmless(line))).collect();
    if shown.trim().is_empty() {
        return String::new();
    }
    format!("\nIts last lines (`fleet logs {id}` shows all):\n{shown}")
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn the_last_lines_stand_below_the_story_without_what_would_move_the_cursor() {
        let printed = "one\ntwo\nthree\nfour\nfive\n\u{1b}[2Jsix\n";
        let shown = below("job-a", printed);
        assert!(shown.starts_with("\nIts last lines (`fleet logs job-a` shows all):\n  two\n"));
        assert!(shown.contains("six") && !shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(below("job-a", "\n \n"), "");
        assert_eq!(below("job-a", ""), "");
    }
}
