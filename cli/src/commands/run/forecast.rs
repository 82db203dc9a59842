//! `run --dry-run`: where and when a job would start, without submitting it.

use fleet_proto::json::forecast::{JobForecast, Leaving};
use fleet_proto::json::values::gpu_names;
use fleet_proto::v1::{JobSpec, TryJobRequest};

use super::{nodes_without_gpus, without_immediate};
use crate::args::{OutputArgs, RunArgs};
use crate::client::Client;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};
use crate::times::Clock;

pub(super) async fn show(
    context: &Context,
    client: &Client,
    args: &RunArgs,
    spec: JobSpec,
) -> Result<Exit, Failure> {
    let printer = context.printer(&OutputArgs::default())?;
    let wish = spec.gpus.clone();
    let owner = args.owner.clone().unwrap_or_default();
    // Nothing is submitted, so a name that nobody knows is only reported.
    let request = TryJobRequest { spec: Some(spec), owner, new_users: args.new_users.yes };
    let forecast = match client.call(request, async |api, r| api.try_job(r).await).await {
        Ok(forecast) => JobForecast::from(forecast),
        Err(failure) => {
            let failure = without_immediate(failure);
            return Err(nodes_without_gpus::beside(client, wish.as_ref(), failure).await);
        }
    };
    for line in lines(&forecast, &context.clock) {
        say(&line);
    }
    if !printer.for_people() {
        print(&printer.one(&forecast)?)?;
    }
    Ok(Exit::Done)
}

/// What people read, the last line being that nothing happened.
fn lines(forecast: &JobForecast, clock: &Clock) -> Vec<String> {
    let mut lines = Vec::new();
    let place = place(forecast);
    let at = forecast.starts_at.map(|at| clock.day_and_minute(at.0));
    if forecast.starts_now {
        let place = place.map(|place| format!(" on {place}")).unwrap_or_default();
        lines.push(format!("would start now{place}"));
    } else {
        let waits = match forecast.place {
            Some(place) => format!("would wait, place {place} in the queue"),
            None => "would wait".to_owned(),
        };
        lines.push(match &forecast.reason {
            Some(reason) => format!("{waits}: {reason}"),
            None => waits,
        });
        let place = place.map(|place| format!(", on {place}")).unwrap_or_default();
        lines.extend(at.map(|at| format!("expected start: {at}{place}")));
        lines.extend(forecast.leaving.iter().map(|of| leaves(of, clock)));
    }
    lines.push("nothing was submitted".to_owned());
    lines
}

/// `titan01:0,1 (2 v100), in reservation res-9d2fwm`.
fn place(forecast: &JobForecast) -> Option<String> {
    let node = forecast.node.as_ref()?;
    let mut text = match forecast.gpus.as_slice() {
        [] => node.clone(),
        [first, ..] => {
            let model = first.model.as_ref().map(|model| format!(" {model}")).unwrap_or_default();
            format!("{} ({}{model})", gpu_names(&forecast.gpus), forecast.gpus.len())
        }
    };
    if let Some(reservation) = &forecast.reservation {
        text.push_str(&format!(", in reservation {reservation}"));
    }
    Some(text)
}

fn leaves(of: &Leaving, clock: &Clock) -> String {
    let Leaving { job, owner, class, until } = of;
    let until = until.map(|at| format!(", saved or not by {}", clock.day_and_minute(at.0)));
    format!("{job} of {owner} (class {class}) would leave for it{}", until.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_proto::v1 as pb;

    use super::*;

    fn gpu(index: u32) -> pb::GpuRef {
        let (node, model) = ("titan01".to_owned(), "v100".to_owned());
        pb::GpuRef { node, index, model, ..pb::GpuRef::default() }
    }

    #[test]
    fn each_forecast_is_said_in_a_few_lines() {
        let clock = Clock::standing("2026-11-21T09:00:00Z", "UTC");
        let said = |forecast: pb::JobForecast| lines(&JobForecast::from(forecast), &clock);
        let (node, gpus) = ("titan01".to_owned(), vec![gpu(0), gpu(1)]);
        let starts_at_unix_ms = 1_795_251_600_000;
        let now = pb::JobForecast {
            starts_now: true,
            starts_at_unix_ms,
            node: node.clone(),
            gpus: gpus.clone(),
            reservation: "res-a".to_owned(),
            ..Default::default()
        };
        assert_eq!(
            said(now),
            [
                "would start now on titan01:0,1 (2 v100), in reservation res-a",
                "nothing was submitted"
            ]
        );
        let leaving = pb::ForecastLeaving {
            job: "job-a".to_owned(),
            owner: "ada".to_owned(),
            class: "scavenger".to_owned(),
            until_unix_ms: starts_at_unix_ms,
        };
        let waits = pb::JobForecast {
            starts_at_unix_ms,
            node,
            gpus,
            place: 2,
            reason: "job-a leaves titan01 for it".to_owned(),
            leaving: vec![leaving],
            ..Default::default()
        };
        let at = clock.day_and_minute(starts_at_unix_ms);
        assert_eq!(
            said(waits),
            [
                "would wait, place 2 in the queue: job-a leaves titan01 for it".to_owned(),
                format!("expected start: {at}, on titan01:0,1 (2 v100)"),
                format!("job-a of ada (class scavenger) would leave for it, saved or not by {at}"),
                "nothing was submitted".to_owned(),
            ]
        );
        let held = pb::JobForecast { reason: "held by ada".to_owned(), ..Default::default() };
        assert_eq!(said(held), ["would wait: held by ada", "nothing was submitted"]);
    }
}
