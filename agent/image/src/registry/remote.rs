//! Manifests and blobs of one image, from the first place that has them: the mirrors in their order, then the registry.
//! Called by [`super::pull`].
//!
//! If a place fails, the next one is asked. If all have failed and the failure may be temporary, all are asked again
//! after a pause. If that fails too, the error shown is the registry's own.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use fleet_core::image::RegistryRef;
use http::header::{HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, StatusCode};
use tokio::time::sleep;
use tracing::debug;

use super::auth::{Credentials, Demand, demand, find, token};
use super::http::{Answer, Ask, Site, ask};
use super::settings::{Settings, Whereabouts, host_of};
use crate::error::registry::{RegistryError, words};

/// How often all places are asked for one thing, without a byte of progress.
pub(super) const TRIES_MAX: u32 = 5;
/// First and longest pause between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The longest pause a registry may ask for.
const ASKED_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 16 * 1024;
const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// How many tries a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// There is a copy here already.
    Once,
    Usual,
}

struct Place {
    site: Site,
    /// What the image's repository is called there.
    repository: String,
    credentials: Option<Credentials>,
    /// It sent too slowly, or broke off: the others are asked first.
    last: Cell<bool>,
    /// What was accepted last: a header of its own for each place.
    authorization: RefCell<Option<String>>,
}

/// One image at all the places where it may be.
pub(in super::super) struct Remote {
    name: RegistryRef,
    places: Vec<Place>,
}

impl Remote {
    pub(in super::super) fn new(
        name: &RegistryRef,
        settings: &Settings,
    ) -> Result<Self, RegistryError> {
        let mut places = Vec::new();
        for Whereabouts { registry, repository, how } in settings.places(name) {
            let site =
                Site::new(host_of(&registry), how.insecure, how.ca_file.as_deref(), settings.pace)?;
            let file = settings.credentials_file.as_deref();
            let credentials = file.map(|file| find(file, &registry)).transpose()?.flatten();
            places.push(Place {
                site,
                repository,
                credentials,
                last: Cell::default(),
                authorization: RefCell::default(),
            });
        }
        Ok(Self { name: name.clone(), places })
    }

    /// As people know it.
    pub(super) fn registry(&self) -> &str {
        &self.name.registry
    }

    /// The digest that a tag means now, if the registry says it without more.
    pub(super) async fn digest_of_tag(
        &self,
        patience: Patience,
    ) -> Result<Option<String>, RegistryError> {
        let path = format!("manifests/{}", self.name.wanted());
        let answer = patiently(patience, || self.ask_once(&Method::HEAD, &path, 0)).await?;
        let said = answer.headers.get(CONTENT_DIGEST).and_then(|value| value.to_str().ok());
        Ok(said.map(ToOwned::to_owned))
    }

    /// A manifest or index, by tag or digest; not verified.
    pub(super) async fn manifest(
        &self,
        wanted: &str,
        bytes_max: u64,
        patience: Patience,
    ) -> Result<Vec<u8>, RegistryError> {
        self.document(&format!("manifests/{wanted}"), bytes_max, patience).await
    }

    /// A small blob; not verified.
    pub(super) async fn small_blob(
        &self,
        digest: &str,
        bytes_max: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        self.document(&format!("blobs/{digest}"), bytes_max, Patience::Usual).await
    }

    /// The place where this answer came from is asked last from now on.
    pub(super) fn ask_last(&self, answer: &Answer) {
        if let Some(place) = self.places.get(answer.place) {
            place.last.set(true);
        }
    }

    /// A blob from this byte on. The caller reads, resumes and verifies; each call is one try at each place.
    pub(super) async fn blob(&self, digest: &str, from: u64) -> Result<Answer, RegistryError> {
        self.ask_once(&Method::GET, &format!("blobs/{digest}"), from).await
    }

    /// `path`: from the repository on, which has another name at each place.
    async fn document(
        &self,
        path: &str,
        bytes_max: u64,
        patience: Patience,
    ) -> Result<Vec<u8>, RegistryError> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        patiently(patience, async || {
            let mut answer = self.ask_once(&Method::GET, path, 0).await?;
            let whole = answer.whole(bytes_max).await;
            if whole.as_ref().is_err_and(RegistryError::is_passing) {
                // A document cannot be resumed, so the next try is at another place.
                self.ask_last(&answer);
            }
            whole
        })
        .await
    }

    async fn ask_once(
        &self,
        method: &Method,
        path: &str,
        from: u64,
    ) -> Result<Answer, RegistryError> {
        let mut last = None;
        let mut order: Vec<(usize, &Place)> = self.places.iter().enumerate().collect();
        order.sort_by_key(|(_, place)| place.last.get());
        for (number, place) in order {
            match self.ask_place(place, method, path, from).await {
                Ok(mut answer) => {
                    answer.place = number;
                    return Ok(answer);
                }
                Err(error) => {
                    debug!(%error, host = place.site.host, "registry");
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or(RegistryError::GivenUp))
    }

    async fn ask_place(
        &self,
        place: &Place,
        method: &Method,
        path: &str,
        from: u64,
    ) -> Result<Answer, RegistryError> {
        let site = &place.site;
        let path = &format!("/v2/{}/{path}", place.repository);
        let known = place.authorization.borrow().clone();
        let mut asked = Ask {
            method: method.clone(),
            path,
            accept: MANIFEST_TYPES,
            authorization: known.as_deref(),
            from,
        };
        let first = ask(site, &asked).await?;
        if first.status != StatusCode::UNAUTHORIZED {
            return self.judged(place, first).await;
        }
        // Without a token yet, or with one that has run out.
        let demands = first.headers.get_all(WWW_AUTHENTICATE).into_iter();
        let demanded = demands.filter_map(|value| demand(value.to_str().ok()?)).next();
        let fresh = match (demanded, &place.credentials) {
            (Some(Demand::Bearer { realm, service, scope }), credentials) => {
                let usual = format!("repository:{}:pull", place.repository);
                let scope = scope.unwrap_or(usual);
                let wish = (realm.as_str(), service.as_deref(), scope.as_str());
                let token =
                    token(site, wish, credentials.as_ref()).await.map_err(|e| self.named(e))?;
                format!("Bearer {token}")
            }
            (Some(Demand::Basic), Some(credentials)) => credentials.basic(),
            (Some(Demand::Basic) | None, _) => return self.judged(place, first).await,
        };
        drop(first);
        *place.authorization.borrow_mut() = Some(fresh.clone());
        asked.authorization = Some(&fresh);
        self.judged(place, ask(site, &asked).await?).await
    }

    /// A refusal of the token server is one of the image.
    fn named(&self, error: RegistryError) -> RegistryError {
        match error {
            RegistryError::Unauthorized { host, known, words, .. } => {
                RegistryError::Unauthorized { host, name: self.name.to_string(), known, words }
            }
            other => other,
        }
    }

    async fn judged(&self, place: &Place, mut answer: Answer) -> Result<Answer, RegistryError> {
        let status = answer.status;
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(answer);
        }
        let (host, name) = (place.site.host.clone(), self.name.to_string());
        let words = words(&answer.whole(REFUSAL_BYTES_MAX).await.unwrap_or_default());
        Err(match status {
            StatusCode::NOT_FOUND => RegistryError::Unknown { host, name, words },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let known = place.credentials.is_some();
                RegistryError::Unauthorized { host, name, known, words }
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let asked = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let asked = asked.and_then(|text| text.parse().ok()).map(Duration::from_secs);
                sleep(asked.unwrap_or_default().min(ASKED_PAUSE_MAX)).await;
                RegistryError::TooMany { host, words }
            }
            status if status.is_server_error() => {
                RegistryError::Unreachable { host, why: format!("status {status}") }
            }
            status => RegistryError::Refused { host, name, status: status.as_u16(), words },
        })
    }
}

/// Tries as often as that may help.
async fn patiently<T>(
    patience: Patience,
    once: impl AsyncFn() -> Result<T, RegistryError>,
) -> Result<T, RegistryError> {
    let tries = if patience == Patience::Once { 1 } else { TRIES_MAX };
    let mut attempt = 1;
    loop {
        match once().await {
            Err(error) if error.is_passing() && attempt < tries => {
                debug!(%error, attempt, "registry is asked again");
                pause(attempt).await;
                attempt += 1;
            }
            other => return other,
        }
    }
}

/// The pause behind a failed try, counted from 1: doubled each time.
pub(super) async fn pause(attempt: u32) {
    let doubled = PAUSE.0.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    sleep(doubled.min(PAUSE.1)).await;
}
