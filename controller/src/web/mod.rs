//! The page for browsers: who has which GPU when, and a way to reserve one.
//!
//! Every controller with `[web] listen` serves it. It asks and changes by the same calls as the command line
//! ([`ask`]), in the name of a session (docs/adr/0055-a-browser-logs-in-with-a-code.md): nothing here decides anything about the
//! fleet. The scripts of the page are in `assets`, its HTML in `pages`; all of it is in the program.

mod answer;
mod ask;
mod assets;
mod attempts;
mod bookings;
mod calendar;
mod events;
mod feed;
mod feed_text;
mod fleet_page;
mod gpu_minutes;
mod gpu_page;
mod listener;
mod login;
mod mine_page;
mod origin;
mod output;
mod output_text;
mod page;
mod reports_page;
mod requests;
mod session;
mod story_page;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use fleet_proto::transport::Slots;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::api::{Context, FleetService};
use crate::config::WebConfig;
use crate::pki::Keyring;

/// Largest body of a request: a reservation.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// Windows of one browser that listen to events. A hidden one does not.
const STREAMS_OF_SESSION_MAX: usize = 16;
/// Questions to nodes at a time, of one browser and of all: outputs of jobs, minutes of GPUs.
const ASKING_OF_SESSION_MAX: usize = 4;
const ASKING_MAX: usize = 64;
/// How long a request may take, its body included. A stream of events has begun by then.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What the handlers share.
pub(crate) struct Web {
    context: Context,
    fleet: FleetService,
    attempts: attempts::Attempts,
    /// A calendar that asks for a feed that is gone must not keep people of its address from logging in.
    feed_attempts: attempts::Attempts,
    calendar: calendar::Cache,
    /// Streams of events, by session.
    streams: Arc<Slots<String>>,
    /// Questions to nodes, by session.
    asking: Arc<Slots<String>>,
    /// Ends the streams of events at a stop.
    stop: CancellationToken,
}

type Shared = Arc<Web>;

/// The page's socket, taken before anything is served.
pub(crate) struct Bound {
    socket: std::net::TcpListener,
    certificate: tls::Certificate,
    url: String,
}

/// Takes the address and reads the certificate, if there is to be a page.
pub(crate) fn bind(config: Option<&WebConfig>, keyring: &Keyring) -> anyhow::Result<Option<Bound>> {
    let Some(config) = config else { return Ok(None) };
    let socket = std::net::TcpListener::bind(config.listen)
        .with_context(|| format!("web.listen: listen on {}", config.listen))?;
    let certificate = tls::Certificate::load(config, keyring.clone())?;
    Ok(Some(Bound { socket, certificate, url: config.address.url.clone() }))
}

/// Serves until `stop`, if there is a page.
pub(crate) async fn run(bound: Option<Bound>, context: Context, stop: CancellationToken) {
    let Some(Bound { socket, certificate, url }) = bound else { return };
    let web = Arc::new(Web {
        fleet: FleetService::new(context.clone()),
        context,
        attempts: attempts::Attempts::default(),
        feed_attempts: attempts::Attempts::default(),
        calendar: calendar::Cache::default(),
        streams: Slots::new(STREAMS_OF_SESSION_MAX, listener::CONNECTIONS_MAX),
        asking: Slots::new(ASKING_OF_SESSION_MAX, ASKING_MAX),
        stop: stop.clone(),
    });
    tracing::info!(%url, "web page served");
    tokio::join!(
        listener::serve(socket, certificate.server_config(), routes(web), stop.clone()),
        certificate.keep(stop)
    );
}

fn routes(web: Shared) -> Router {
    let same_origin = middleware::from_fn_with_state(Arc::clone(&web), origin::check);
    let changing = Router::new()
        .route("/login", post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/api/v1/reservations", post(bookings::reserve))
        .route("/api/v1/reservations/{id}/extend", post(bookings::extend))
        .route("/api/v1/reservations/{id}/release", post(bookings::release))
        .route("/api/v1/reservations/{id}/accept", post(bookings::accept))
        .route("/api/v1/reservations/{id}/decline", post(bookings::decline))
        .route("/api/v1/reservations/{id}/approve", post(requests::approve))
        .route("/api/v1/reservations/{id}/deny", post(requests::deny))
        .route("/api/v1/jobs/{id}/output", get(output::output))
        .route("/api/v1/gpus/{uuid}/minutes/{from}/{until}", get(gpu_minutes::minutes))
        .route("/api/v1/events", get(events::events))
        .route_layer(same_origin);
    Router::new()
        .route("/", get(page::calendar))
        .route("/fleet", get(fleet_page::fleet))
        .route("/mine", get(mine_page::mine))
        .route("/reports", get(reports_page::now))
        .route("/reports/{month}/{by}", get(reports_page::of_month))
        .route("/job/{id}", get(story_page::job))
        .route("/reservation/{id}", get(story_page::reservation))
        .route("/node/{id}", get(story_page::node))
        .route("/gpu/{node}/{index}", get(gpu_page::gpu))
        .route("/login", get(page::login))
        .route("/feed/{file}", get(feed::feed))
        .route("/api/v1/calendar", get(calendar::calendar))
        .route("/assets/{hash}/{name}", get(assets::asset))
        .merge(changing)
        .fallback(page::nothing)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::map_response(answer::with_headers))
        .with_state(web)
}

async fn in_time(request: Request, next: Next) -> Response {
    let late = |_| answer::refused(&Status::deadline_exceeded("the request took too long"));
    tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await.unwrap_or_else(late)
}
