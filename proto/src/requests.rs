//! What all requests have in common.

use crate::v1::RequestMeta;

/// A request of the API. It is implemented at build time, for each message that a method takes.
pub trait ApiRequest {
    /// The id and time of a change; nothing where the method only reads.
    fn meta(&self) -> Option<&RequestMeta>;

    /// Whether it only asks what a change would do.
    fn is_dry_run(&self) -> bool;

    /// Whether the controllers answer a repeated change as before, and do nothing twice.
    fn is_repeatable(&self) -> bool;
}

#[allow(unused_qualifications, reason = "generated code")]
mod generated {
    use super::{ApiRequest, RequestMeta};

    include!(concat!(env!("OUT_DIR"), "/requests.rs"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn what_changes_something_has_an_id_and_what_is_shown_once_is_not_repeatable() {
        let meta = || Some(RequestMeta { request_id: "x".to_owned(), made_at_unix_ms: 1 });
        let reserve = v1::CreateReservationRequest { meta: meta(), ..Default::default() };
        assert_eq!((reserve.meta(), reserve.is_repeatable()), (meta().as_ref(), true));
        assert!(!reserve.is_dry_run());
        assert!(v1::CreateReservationRequest { dry_run: true, ..reserve }.is_dry_run());
        let token = v1::CreateJoinTokenRequest { meta: meta(), ..Default::default() };
        assert_eq!((token.meta(), token.is_repeatable()), (meta().as_ref(), false));
        assert_eq!(v1::ListJobsRequest::default().meta(), None);
    }
}
