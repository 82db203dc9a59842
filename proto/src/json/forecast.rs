//! Defines the JSON of what would become of a job if it were submitted now.

use serde::Serialize;

use super::Document;
use super::values::{GpuRef, Time, text, time};
use crate::v1 as pb;

/// What would become of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobForecast {
    /// It would start at once.
    pub starts_now: bool,
    /// When it is expected to start; null: not known.
    pub starts_at: Option<Time>,
    /// The node where it starts, or is expected to; null: not known.
    pub node: Option<String>,
    /// Its GPUs there.
    pub gpus: Vec<GpuRef>,
    /// The reservation of its owner that it would start in; null: none.
    pub reservation: Option<String>,
    /// Its place in the queue, from 1; null: it would not wait in the queue.
    pub place: Option<u32>,
    /// Why it would not start at once; null: it would.
    pub reason: Option<String>,
    /// The jobs that would leave for it.
    pub leaving: Vec<Leaving>,
}

/// A job that would leave for another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leaving {
    /// Its id.
    pub job: String,
    /// The user whose job it is.
    pub owner: String,
    /// Its class.
    pub class: String,
    /// Until when fleet would wait for it to save; null: not known.
    pub until: Option<Time>,
}

impl From<pb::JobForecast> for JobForecast {
    fn from(forecast: pb::JobForecast) -> Self {
        let leaving = |of: pb::ForecastLeaving| Leaving {
            job: of.job,
            owner: of.owner,
            class: of.class,
            until: time(of.until_unix_ms),
        };
        Self {
            starts_now: forecast.starts_now,
            starts_at: time(forecast.starts_at_unix_ms),
            node: text(&forecast.node),
            gpus: forecast.gpus.into_iter().map(GpuRef::from).collect(),
            reservation: text(&forecast.reservation),
            place: (forecast.place != 0).then_some(forecast.place),
            reason: text(&forecast.reason),
            leaving: forecast.leaving.into_iter().map(leaving).collect(),
        }
    }
}

impl Document for JobForecast {
    const SCHEMA: &'static str = "fleet.job_forecast/v1";
    const LIST_SCHEMA: &'static str = "fleet.job_forecasts/v1";
    const FIELDS: &'static [&'static str] =
        &["starts_now", "starts_at", "node", "gpus", "reservation", "place", "reason", "leaving"];
}
