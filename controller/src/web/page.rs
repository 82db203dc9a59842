//! The pages as HTML: what all have in common, the calendar's, and those without anything of the fleet.

use askama::Template;
use axum::extract::State;
use axum::response::{Html, IntoResponse as _, Response};
use fleet_core::id::{JobId, ReservationId};
use http::StatusCode;
use tonic::Status;

use super::assets::{self, Assets};
use super::session::LoggedIn;
use super::{Shared, Web, answer};
use crate::callers::Caller;

/// What each page shows around its own.
pub(super) struct Page {
    pub(super) title: &'static str,
    /// Who is logged in; empty where nobody is.
    pub(super) user: String,
    pub(super) admin: bool,
    pub(super) cluster: String,
    /// Which of the tabs it is; empty for none.
    pub(super) here: &'static str,
    pub(super) assets: &'static Assets,
    /// How many requests wait for the decision of the user.
    pub(super) to_decide: usize,
    /// The fleet's time.
    pub(super) now_ms: u64,
    /// Where the other controllers have their pages, with blanks between them.
    pub(super) controllers: String,
    /// That what is shown may be old.
    pub(super) stale: Option<String>,
}

#[derive(Template)]
#[template(path = "calendar.html")]
struct Calendar {
    page: Page,
}

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    page: Page,
}

#[derive(Template)]
#[template(path = "problem.html")]
struct Problem {
    page: Page,
    message: String,
    hint: Option<String>,
}

impl Web {
    pub(super) fn page(
        &self,
        title: &'static str,
        here: &'static str,
        caller: Option<&Caller>,
    ) -> Page {
        let pages = self.context.web_pages();
        Page {
            title,
            user: caller.map(|caller| caller.name.to_string()).unwrap_or_default(),
            admin: caller.is_some_and(|caller| caller.admin),
            cluster: self.context.keyring.signing().cluster().to_string(),
            here,
            assets: assets::all(),
            to_decide: caller.map_or(0, |caller| self.to_decide(&caller.actor).len()),
            now_ms: self.context.clock.now().0,
            controllers: pages.get(1..).unwrap_or_default().join(" "),
            stale: None,
        }
    }

    /// A page that says why there is no other.
    pub(super) fn problem(&self, caller: Option<&Caller>, status: &Status) -> Response {
        let page = self.page("Problem", "", caller);
        let (message, hint) = (status.message().to_owned(), None);
        (answer::number_of(status), shown(&Problem { page, message, hint })).into_response()
    }
}

/// Where the page of a job or a reservation is, by its id.
pub(super) fn link_to(id: &str) -> Option<String> {
    let kinds = [(JobId::PREFIX, "job"), (ReservationId::PREFIX, "reservation")];
    let (_, kind) = kinds.into_iter().find(|(prefix, _)| id.starts_with(prefix))?;
    Some(format!("/{kind}/{id}"))
}

/// A page as an answer.
pub(super) fn shown(page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => Html(html).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

pub(super) async fn calendar(State(web): State<Shared>, user: LoggedIn) -> Response {
    shown(&Calendar { page: web.page("Calendar", "calendar", Some(&user.caller)) })
}

pub(super) async fn login(State(web): State<Shared>) -> Response {
    shown(&Login { page: web.page("Log in", "", None) })
}

pub(super) async fn nothing(State(web): State<Shared>, user: LoggedIn) -> Response {
    let page = web.page("Not found", "", Some(&user.caller));
    let message = "There is no such page.".to_owned();
    let hint = Some("The tabs above lead to those that there are.".to_owned());
    (StatusCode::NOT_FOUND, shown(&Problem { page, message, hint })).into_response()
}
