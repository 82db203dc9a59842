//! Sentences about offers of the waiting list.

use std::fmt;

use super::event::placed;
use super::reservation::window_from;
use crate::offer::{OFFERS_MAX, OfferEvent};
use crate::time::Timestamp;
use crate::view::Names;

impl OfferEvent {
    /// With the times, as they were then.
    pub(super) fn told(&self, then: Timestamp, names: &dyn Names) -> String {
        let sentence = Sentence { event: self, names };
        match self {
            Self::Made { window, until, .. } => {
                let (window, open) = (window_from(then, *window), until.since(then));
                format!("{sentence}, {window}; the offer is open for {open}")
            }
            Self::Accepted { .. }
            | Self::Declined { .. }
            | Self::NotAnswered { .. }
            | Self::Withdrawn { .. } => sentence.to_string(),
        }
    }
}

struct Sentence<'a> {
    event: &'a OfferEvent,
    names: &'a dyn Names,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_offer(f, self.event, self.names)
    }
}

/// What happened to an offer.
pub(super) fn fmt_offer(
    f: &mut fmt::Formatter<'_>,
    event: &OfferEvent,
    names: &dyn Names,
) -> fmt::Result {
    match event {
        OfferEvent::Made { owner, node, gpus, .. } => {
            write!(f, "offered to {owner}: {}", placed(names, node, gpus))
        }
        OfferEvent::Accepted { by, .. } => write!(f, "offer accepted by {by}"),
        OfferEvent::Declined { by, declined, .. } => {
            write!(f, "offer declined by {by} ({declined} of {OFFERS_MAX} were not accepted)")
        }
        OfferEvent::NotAnswered { declined, .. } => {
            write!(
                f,
                "nobody answered the offer: that counts as declined ({declined} of {OFFERS_MAX} were not accepted)"
            )
        }
        OfferEvent::Withdrawn { why, .. } => {
            write!(f, "offer withdrawn: {why}; that does not count as declined")
        }
    }
}
