//! Who is at the browser: the cookie, and the user behind it.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Redirect, Response};
use fleet_core::time::Timestamp;
use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tonic::{Code, Status};

use super::{Shared, answer};
use crate::callers::{Caller, Session};
use crate::pki::token::hash_of;

/// Only for this host, only by TLS, for every path: browsers refuse a cookie of this name that is not so.
const NAME: &str = "__Host-fleet";
/// Letters of a session's secret.
const SECRET_LETTERS: usize = 64;

/// A browser that is logged in.
pub(super) struct LoggedIn {
    pub(super) session: Session,
    pub(super) caller: Caller,
}

impl FromRequestParts<Shared> for LoggedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, web: &Shared) -> Result<Self, Response> {
        let found = match session_in(&parts.headers) {
            Some(session) => {
                let mut request = tonic::Request::new(());
                request.extensions_mut().insert(session.clone());
                let caller = web.context.callers.user(&request).await;
                caller.map(|caller| LoggedIn { session, caller })
            }
            None => Err(Status::unauthenticated("you are not logged in; type `fleet web`")),
        };
        found.map_err(|status| {
            let is_api = parts.uri.path().starts_with("/api/");
            match status.code() {
                Code::Unauthenticated if !is_api => Redirect::to("/login").into_response(),
                _ => answer::refused(&status),
            }
        })
    }
}

/// The session that the browser shows. Where it shows several cookies of the name, none: no browser of ours does.
pub(super) fn session_in(headers: &HeaderMap) -> Option<Session> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut secrets = pairs
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == NAME)
        .map(|(_, secret)| secret);
    let secret = secrets.next().filter(|secret| secret.len() == SECRET_LETTERS)?;
    secrets.next().is_none().then(|| Session(hash_of(secret)))
}

/// What makes a browser keep the secret until the session ends. `Lax`: a link in a mail finds the browser logged in.
pub(super) fn cookie(secret: &str, not_after: Timestamp, now: Timestamp) -> Option<HeaderValue> {
    let seconds = not_after.since(now).0 / 1_000;
    let text =
        format!("{NAME}={secret}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={seconds}");
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What makes a browser forget it.
pub(super) fn forgotten() -> HeaderValue {
    HeaderValue::from_static("__Host-fleet=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn shown(cookies: &[&str]) -> Option<Session> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_str(cookie).unwrap());
        }
        session_in(&headers)
    }

    #[test]
    fn a_cookie_of_ours_is_found_among_others_and_only_its_hash_is_used() {
        let secret = "a".repeat(SECRET_LETTERS);
        let found = shown(&["theme=dark", &format!("x=1; __Host-fleet={secret}")]).unwrap();
        assert_eq!(found, Session(hash_of(&secret)));
        let made = cookie(&secret, Timestamp(43_200_000), Timestamp(0)).unwrap();
        let made = made.to_str().unwrap();
        assert_eq!(shown(&[made.split(';').next().unwrap()]), Some(found));
        assert!(made.ends_with("Max-Age=43200"), "{made}");
    }

    #[test]
    fn what_is_no_secret_of_ours_is_no_session() {
        let secret = "a".repeat(SECRET_LETTERS);
        for cookies in [
            vec!["__Host-fleet="],
            vec!["__Host-fleet=short"],
            vec!["fleet=x"],
            vec!["__Host-fleet"],
            vec![""],
        ] {
            assert_eq!(shown(&cookies), None, "{cookies:?}");
        }
        let twice = format!("__Host-fleet={secret}; __Host-fleet={secret}");
        assert_eq!(shown(&[&twice]), None);
    }
}
