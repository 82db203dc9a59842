//! What all requests have in common.

use crate::v1::RequestMeta;

/// A request of the API. It is implemented at build time, for each message that a method takes.
pub trait ApiRequest {
    /// The id and time of a change; nothing where the method only reads.
    fn meta(&self) -> Option<&RequestMeta>;
}

#[allow(unused_qualifications, reason = "generated code")]
mod generated {
    use super::{ApiRequest, RequestMeta};

    include!(concat!(env!("OUT_DIR"), "/requests.rs"));
}
