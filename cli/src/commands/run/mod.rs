//! `run`: submits a job; unless detached, shows it to its end and passes its exit code on. `attach`: the same again.

mod forecast;
mod spec;

use std::io::IsTerminal;

use fleet_core::job::JobState;
use fleet_proto::json::job::{Job, Spec};
use fleet_proto::v1::{AttachOpen, SubmitJobRequest};

use super::attach::{self, Outcome, Wanted};
use super::{Context, gpu, job, nodes_without_gpus, reservation};
use crate::args::{AttachArgs, OutputArgs, RunArgs};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use spec::Here;

pub(super) use spec::{stop_after_ms, variables};

pub(super) async fn run(context: &Context, args: &RunArgs) -> Result<Exit, Failure> {
    if context.json && !args.detach && !args.dry_run {
        return Err(Failure::usage(
            "--json",
            "needs --detach or --dry-run: otherwise the job's output is shown",
        ));
    }
    if args.tty && args.interactive && !std::io::stdin().is_terminal() {
        let failure = Failure::usage("--tty", "standard input is not a terminal");
        return Err(failure.hint("leave --tty out"));
    }
    let mut spec = spec::build(context, args, &Here::find()?)?;
    let client = context.client()?;
    if let Some(text) = &args.reservation {
        spec.reservation = client.resolve(reservation::KIND, text).await?;
    }
    let wish = gpu::wish(&client, &args.wish).await?;
    spec.gpus = Some(wish.clone());
    if args.dry_run {
        return forecast::show(context, &client, args, spec).await;
    }
    let (owner, output_file) = (args.owner.clone().unwrap_or_default(), spec.output_file.clone());
    let submit = async |new_users| {
        let (meta, spec, owner) = (client.request_meta()?, Some(spec.clone()), owner.clone());
        let request = SubmitJobRequest { meta, spec, owner, new_users };
        client.call(request, async |api, r| api.submit_job(r).await).await
    };
    let submitted = match submit(args.new_users.yes).await {
        Err(failure) if failure.names_unknown_users() => {
            args.new_users.ask(failure)?;
            client.ask_anew()?;
            submit(true).await
        }
        submitted => submitted,
    };
    let job = match submitted {
        Ok(job) => Job::from(job),
        Err(failure) => {
            return Err(nodes_without_gpus::beside(
                &client,
                Some(&wish),
                without_immediate(failure),
            )
            .await);
        }
    };
    if args.detach {
        return detached(context, &job, &output_file);
    }
    let open = AttachOpen {
        job: job.id.clone(),
        from_beginning: true,
        follow: true,
        interactive: args.interactive,
        ..Default::default()
    };
    let raw = args.tty && args.interactive;
    let wanted = Wanted { interactive: args.interactive, tty: raw, foreground: true };
    let outcome = attach::follow(context, &client, open, wanted).await;
    Ok(finish(&job.id, outcome))
}

/// Back to a job that waits or runs.
pub(super) async fn attach(context: &Context, args: &AttachArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let job = job::one(&client, &args.job).await?;
    if job.is_final() {
        let message =
            format!("{} has ended already: {}", job.id, job.state.word().replace('_', " "));
        let hint = format!("`fleet logs {}` shows what it printed", job.id);
        return Err(Failure::new(Exit::Conflict, message).hint(hint));
    }
    let wants = |of: fn(&Spec) -> bool| job.spec.as_ref().is_some_and(of);
    let interactive = wants(|spec| spec.interactive) && !args.no_stdin;
    let tty = wants(|spec| spec.tty) && interactive;
    if tty && !std::io::stdin().is_terminal() {
        let message = format!("{} has a terminal, but standard input is not one", job.id);
        return Err(Failure::new(Exit::Usage, message).hint("--no-stdin only watches it"));
    }
    let open = AttachOpen {
        job: job.id.clone(),
        tail_lines: args.tail,
        follow: true,
        interactive,
        ..Default::default()
    };
    let wanted = Wanted { interactive, tty, foreground: true };
    let outcome = attach::follow(context, &client, open, wanted).await;
    Ok(finish(&job.id, outcome))
}

fn without_immediate(failure: Failure) -> Failure {
    match failure.rejection.as_deref() {
        Some(fleet_core::Rejection::NotNow { .. } | fleet_core::Rejection::GpusHeld { .. }) => {
            failure.hint("without --immediate the job waits in the queue")
        }
        _ => failure,
    }
}

/// `output_file`: with the place for the job's id.
fn detached(context: &Context, job: &Job, output_file: &str) -> Result<Exit, Failure> {
    let printer = context.printer(&OutputArgs::default())?;
    let mut sentence = match job.place {
        Some(place) => format!("{}, place {place}", job.state),
        None => job.state.to_string(),
    };
    if let Some(reason) = &job.reason {
        sentence.push_str(&format!(": {reason}"));
    }
    say(&format!("{} is {sentence}", job.id));
    say(&format!("follow it: fleet logs -f {}", job.id));
    if !output_file.is_empty() {
        say(&format!("output: {}", output_file.replace(spec::JOB_PLACE, &job.id)));
    }
    print(&printer.changed(std::slice::from_ref(job), |job| &job.id)?)?;
    Ok(Exit::Done)
}

/// The exit code, and a word where the code alone would not tell.
fn finish(id: &str, outcome: Result<Outcome, Failure>) -> Exit {
    let goes_on = format!("fleet: {id} keeps running. Log: fleet logs -f {id}");
    match outcome {
        // What is missing was said when it was found; the exit code is the program's own.
        Ok(Outcome::Ended { job, .. }) => ended(&job),
        Ok(Outcome::Left | Outcome::OutputClosed) => {
            say(&format!("{goes_on}, or return with: fleet attach {id}"));
            Exit::Done
        }
        Ok(Outcome::Signalled) => {
            say(&goes_on);
            Exit::OwnFailure
        }
        Err(failure) => {
            failure.report();
            say(&format!("fleet: how {id} ends is not known here; ask with: fleet why {id}"));
            Exit::OwnFailure
        }
    }
}

fn ended(job: &Job) -> Exit {
    let reason = job.reason.as_deref().unwrap_or("no reason is known");
    match (job.state.known(), job.exit_code) {
        // Nothing to explain: the program ended by itself.
        (Some(JobState::Completed), Some(code)) => Exit::of_program(code),
        (Some(JobState::Failed), Some(code))
            if code != 0 && (job.reason.is_none() || reason == format!("exit code {code}")) =>
        {
            Exit::of_program(code)
        }
        (_, code) => {
            let state = job.state.word().replace('_', " ");
            say(&format!("fleet: {} is {state}: {reason}", job.id));
            // Some answer the stop signal with 0: they have not finished all the same.
            code.filter(|code| *code != 0).map_or(Exit::OwnFailure, Exit::of_program)
        }
    }
}

#[cfg(test)]
mod tests {
    use fleet_proto::v1 as pb;

    use super::*;

    fn code(state: &str, exit_code: Option<i32>) -> u8 {
        let job = pb::Job { state: state.to_owned(), exit_code, ..Default::default() };
        finish("job-a", Ok(Outcome::Ended { job: Box::new(Job::from(job)), missing: None })).code()
    }

    #[test]
    fn the_programs_code_is_passed_on_and_its_absence_is_125() {
        assert_eq!(code("completed", Some(0)), 0);
        assert_eq!(code("failed", Some(3)), 3);
        assert_eq!(code("failed", Some(139)), 139);
        assert_eq!(code("cancelled", Some(143)), 143);
        assert_eq!(code("timed_out", Some(137)), 137);
        for state in ["timed_out", "cancelled", "failed"] {
            assert_eq!(code(state, Some(0)), 125, "{state}");
        }
        assert_eq!(code("failed", None), 125);
        assert_eq!(code("cancelled", None), 125);
    }

    #[test]
    fn leaving_a_job_is_no_failure_but_losing_it_is() {
        assert_eq!(finish("job-a", Ok(Outcome::Left)).code(), 0);
        assert_eq!(finish("job-a", Ok(Outcome::OutputClosed)).code(), 0);
        assert_eq!(finish("job-a", Ok(Outcome::Signalled)).code(), 125);
        let lost = Failure::new(Exit::Unreachable, "gone");
        assert_eq!(finish("job-a", Err(lost)).code(), 125);
    }
}
