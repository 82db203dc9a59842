//! The page of reports: who held how many GPU-hours in a month, and how many of those were used.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use fleet_core::Rejection;
use fleet_core::fair_share::gpu_hours;
use fleet_core::usage::UsageBy;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::json::usage::UsageRow;
use fleet_proto::month::Month;
use fleet_proto::v1;
use jiff::tz::TimeZone;
use tonic::Status;

use super::Shared;
use super::ask::ask;
use super::page::{Page, shown};
use super::session::LoggedIn;

#[derive(Template)]
#[template(path = "reports.html")]
struct Reports {
    page: Page,
    month: String,
    before: Option<String>,
    /// Not where that has not begun.
    after: Option<String>,
    by: &'static str,
    kinds: Vec<&'static str>,
    /// The total last.
    rows: Vec<Row>,
    from: Option<String>,
    until: Option<String>,
    /// In which the month begins and ends.
    zone: String,
    complete_from: Option<String>,
    measured_left_out: bool,
    left_out: u64,
}

struct Row {
    total: bool,
    name: String,
    link: Option<String>,
    held: String,
    used: String,
    idle: String,
    unknown: String,
    reserved: String,
    in_jobs: String,
    jobs: String,
    lost: String,
    job_count: u64,
    reservation_count: u64,
}

impl Row {
    fn of(row: UsageRow, by: UsageBy) -> Self {
        let link = row.name.as_ref().filter(|_| by == UsageBy::Node);
        // Without a name: reservations among classes.
        let unnamed = if row.total { "total" } else { "reservations" };
        Self {
            total: row.total,
            link: link.map(|name| format!("/node/{name}")),
            name: row.name.unwrap_or_else(|| unnamed.to_owned()),
            held: gpu_hours(row.held_gpu_ms),
            used: gpu_hours(row.used_gpu_ms),
            idle: gpu_hours(row.idle_gpu_ms),
            unknown: gpu_hours(row.unknown_gpu_ms),
            reserved: gpu_hours(row.reserved_gpu_ms),
            in_jobs: gpu_hours(row.in_jobs_gpu_ms),
            jobs: gpu_hours(row.jobs_gpu_ms),
            lost: gpu_hours(row.lost_gpu_ms),
            job_count: row.jobs,
            reservation_count: row.reservations,
        }
    }
}

/// This month, by user.
pub(super) async fn now(State(web): State<Shared>, user: LoggedIn) -> Response {
    report(&web, &user, None, UsageBy::User).await
}

pub(super) async fn of_month(
    State(web): State<Shared>,
    Path((month, by)): Path<(String, String)>,
    user: LoggedIn,
) -> Response {
    let refused = |rejection| web.problem(Some(&user.caller), &to_status(&rejection));
    let Some(by) = UsageBy::from_word(&by) else {
        return refused(Rejection::not_found("report", by));
    };
    match Month::parse(&month) {
        Some(month) => report(&web, &user, Some(month), by).await,
        None => refused(Rejection::not_found("month", month)),
    }
}

async fn report(web: &Shared, user: &LoggedIn, month: Option<Month>, by: UsageBy) -> Response {
    let (session, refused) = (&user.session, |status| web.problem(Some(&user.caller), &status));
    let zone = TimeZone::system();
    let Some((this, month, request)) = asked(web, month, by, &zone) else {
        return refused(Status::invalid_argument("no clock has that month"));
    };
    let usage = match ask!(web, session, request, get_usage) {
        Ok(usage) => usage,
        Err(status) => return refused(status),
    };
    let (left_out, measured_left_out) = (usage.rows_left_out, usage.measured_left_out);
    let rows = UsageRow::all(usage);
    let (mut from, mut until, mut complete_from) = (None, None, None);
    if let Some(total) = rows.last() {
        let shown = |at: Option<fleet_proto::json::values::Time>| at.map(|at| at.to_string());
        (from, until) = (shown(total.from), shown(total.until));
        complete_from = shown(total.complete_from);
    }
    shown(&Reports {
        page: web.page("Reports", "reports", Some(&user.caller)),
        before: month.before().map(|month| month.to_string()),
        after: month.after().filter(|after| *after <= this).map(|month| month.to_string()),
        month: month.to_string(),
        by: by.word(),
        kinds: UsageBy::ALL.iter().map(|by| by.word()).collect(),
        rows: rows.into_iter().map(|row| Row::of(row, by)).collect(),
        from,
        until,
        zone: zone.iana_name().unwrap_or("UTC").to_owned(),
        complete_from,
        measured_left_out,
        left_out,
    })
}

/// The month that it is, the one that is shown, and what is asked of it.
fn asked(
    web: &Shared,
    month: Option<Month>,
    by: UsageBy,
    zone: &TimeZone,
) -> Option<(Month, Month, v1::GetUsageRequest)> {
    let now = i64::try_from(web.context.clock.now().0).ok()?;
    let this = Month::at(jiff::Timestamp::from_millisecond(now).ok()?, zone);
    let month = month.unwrap_or(this);
    let (from, until) = month.span(zone)?;
    let ms = |at: jiff::Timestamp| u64::try_from(at.as_millisecond()).unwrap_or(0);
    let request = v1::GetUsageRequest {
        from_unix_ms: ms(from),
        until_unix_ms: ms(until),
        by: by.word().to_owned(),
        owner: String::new(),
    };
    Some((this, month, request))
}
