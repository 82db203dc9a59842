//! Serves calendar feeds: `GET /feed/SECRET.ics`, without a login, as programs for calendars have none.
//!
//! Every controller answers with what it knows itself. Nothing here changes anything, and no log has the secret.

use std::net::SocketAddr;
use std::time::Instant;

use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse as _, Response};
use fleet_proto::transport::identity::sha256;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{Shared, feed_text};

/// Behind the secret in the address: some programs go by it.
const ENDING: &str = ".ics";
/// When an address that asked too often may ask again, in seconds.
const WAIT_S: HeaderValue = HeaderValue::from_static("60");

pub(super) async fn feed(
    State(web): State<Shared>,
    Extension(address): Extension<SocketAddr>,
    Path(file): Path<String>,
    asked: HeaderMap,
) -> Response {
    let (from, now) = (address.ip(), Instant::now());
    // Until the answer is made: this bounds the work for one address.
    let Some(_place) = web.feed_attempts.begin(from, now) else {
        let problem = "too many wrong addresses of feeds from your address; wait a minute\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, WAIT_S)], problem).into_response();
    };
    let Some(feed) = web.context.feed(file.strip_suffix(ENDING).unwrap_or(&file)) else {
        web.feed_attempts.was_wrong(from, now);
        let problem = "there is no such calendar feed; `fleet calendar feed list` lists yours\n";
        return (StatusCode::NOT_FOUND, problem).into_response();
    };
    let page = web.context.web.as_ref().map(|web| web.url.as_str()).unwrap_or_default();
    answer(feed_text::text(&feed, page), asked.get(IF_NONE_MATCH))
}

fn answer(body: String, known: Option<&HeaderValue>) -> Response {
    let tag = format!("\"{}\"", hex::encode(&sha256(body.as_bytes())[..16]));
    let is_known = known.and_then(|known| known.to_str().ok()).is_some_and(|known| {
        // A proxy that packs the answer calls the tag weak.
        known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag)
    });
    let Ok(tag) = HeaderValue::from_str(&tag) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut headers = HeaderMap::from_iter([
        (ETAG, tag),
        (CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
    ]);
    if is_known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/calendar; charset=utf-8"));
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_program_that_has_the_text_does_not_get_it_again() {
        let first = answer("BEGIN".to_owned(), None);
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CONTENT_TYPE], "text/calendar; charset=utf-8");
        assert!(first.headers()[CACHE_CONTROL].to_str().unwrap().starts_with("private"));
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}")] {
            let known = HeaderValue::from_str(&known).unwrap();
            let again = answer("BEGIN".to_owned(), Some(&known));
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known:?}");
            assert_eq!(again.headers()[ETAG], tag.as_str());
            assert_eq!(answer("OTHER".to_owned(), Some(&known)).status(), StatusCode::OK);
        }
    }
}
