//! Answers that may be old: asked for by a header, and their age told by headers.
//!
//! A listing is confirmed by a majority unless the caller says that any controller may answer. Then the
//! answer says which one did and how old it may be.

use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

/// Of a request: any controller may answer.
const STALE: &str = "fleet-stale";
/// Of an answer: the controller that gave it.
const CONTROLLER: &str = "fleet-controller";
/// Of an answer: how old it may be, in milliseconds; missing where that is not known.
const AGE: &str = "fleet-age-ms";

/// Who answered, and how old that may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    pub controller: u64,
    pub age_ms: Option<u64>,
}

/// Asks for an answer of any controller.
pub fn allow_stale<T>(request: &mut Request<T>) {
    if let Ok(value) = "1".parse() {
        request.metadata_mut().insert(STALE, value);
    }
}

/// Whether an answer of any controller will do.
pub fn may_be_stale<T>(request: &Request<T>) -> bool {
    request.metadata().contains_key(STALE)
}

impl Freshness {
    /// Writes it on an answer.
    pub fn mark<T>(self, response: &mut Response<T>) {
        let figures = [(CONTROLLER, Some(self.controller)), (AGE, self.age_ms)];
        for (name, figure) in figures {
            if let Some(value) = figure.and_then(|figure| figure.to_string().parse().ok()) {
                response.metadata_mut().insert(name, value);
            }
        }
    }

    /// Reads it off an answer; nothing on one that is confirmed.
    pub fn of(metadata: &MetadataMap) -> Option<Self> {
        let figure = |name: &str| metadata.get(name)?.to_str().ok()?.parse::<u64>().ok();
        Some(Self { controller: figure(CONTROLLER)?, age_ms: figure(AGE) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_an_answer_survives_the_wire() {
        let mut request = Request::new(());
        assert!(!may_be_stale(&request));
        allow_stale(&mut request);
        assert!(may_be_stale(&request));
        for freshness in [
            Freshness { controller: 2, age_ms: Some(1_500) },
            Freshness { controller: 3, age_ms: None },
        ] {
            let mut response = Response::new(());
            assert_eq!(Freshness::of(response.metadata()), None);
            freshness.mark(&mut response);
            assert_eq!(Freshness::of(response.metadata()), Some(freshness));
        }
    }
}
