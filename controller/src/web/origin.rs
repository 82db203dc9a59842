//! Whether a request comes from the page itself, and not from somebody else's page in the same browser.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use tonic::Status;

use super::{Shared, answer};

/// What a browser says of the page that asks (Fetch Metadata, W3C).
const FETCH_SITE: &str = "sec-fetch-site";

/// Lets through what the page itself asks.
pub(super) async fn check(State(web): State<Shared>, request: Request, next: Next) -> Response {
    let url = web.context.web.as_ref().map_or("", |web| web.url.as_str());
    if is_same(request.headers(), request.uri(), url) {
        return next.run(request).await;
    }
    let problem = format!("your browser sent this from another site; open {url} and try again");
    answer::refused(&Status::permission_denied(problem))
}

/// A browser says at least one of the two about what changes something; what says neither is no browser's page. `url` is how
/// browsers reach this page: a proxy may ask under another host.
fn is_same(headers: &HeaderMap, uri: &Uri, url: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = uri.authority().map(http::uri::Authority::as_str).or(text(HOST.as_str()));
    let site = text(FETCH_SITE);
    let origin = text(ORIGIN.as_str());
    let of_host = |origin: &str| {
        origin == url || origin.strip_prefix("https://").is_some_and(|o| Some(o) == host)
    };
    (site.is_some() || origin.is_some())
        && site.is_none_or(|site| site == "same-origin")
        && origin.is_none_or(of_host)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn asked(headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        is_same(&map, &Uri::from_static("/logout"), "https://gpus.lab")
    }

    #[test]
    fn only_the_page_itself_asks() {
        let host = ("host", "ctl1.lab:8443");
        let table: [(&[(&'static str, &str)], bool); 9] = [
            (&[host, ("origin", "https://gpus.lab"), ("sec-fetch-site", "same-origin")], true),
            (&[host, ("sec-fetch-site", "same-origin")], true),
            (&[host, ("origin", "https://ctl1.lab:8443")], true),
            (&[host, ("origin", "https://ctl1.lab:8443"), ("sec-fetch-site", "same-origin")], true),
            (&[host, ("origin", "https://ctl1.lab:8443"), ("sec-fetch-site", "same-site")], false),
            (&[host, ("origin", "https://evil.lab"), ("sec-fetch-site", "same-origin")], false),
            (&[host, ("origin", "http://ctl1.lab:8443")], false),
            (&[host, ("origin", "null")], false),
            (&[host], false),
        ];
        for (headers, same) in table {
            assert_eq!(asked(headers), same, "{headers:?}");
        }
    }

    #[test]
    fn http_2_names_its_host_in_the_address() {
        let mut headers = HeaderMap::new();
        headers.insert("origin", "https://ctl1.lab:8443".parse().unwrap());
        assert!(is_same(&headers, &Uri::from_static("https://ctl1.lab:8443/logout"), ""));
        assert!(!is_same(&headers, &Uri::from_static("https://ctl2.lab:8443/logout"), ""));
    }
}
