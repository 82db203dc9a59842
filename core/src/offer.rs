//! Offers: a place for a reservation on the waiting list that its owner has to accept in time.
//!
//! The types of this subject, and when an offer may be open (pure). `fsm/offers.rs` makes, accepts and ends offers
//! (docs/adr/0071-offers-of-the-waiting-list.md). The place of an open offer is a reservation in the state `Offered`.

use serde::{Deserialize, Serialize};

use crate::id::ReservationId;
use crate::name::{GpuUuid, NodeName, UserName};
use crate::rejection::Rejection;
use crate::time::{Millis, Timestamp, Window};

/// How long an offer is open. Its place begins at the earliest when the offer ends.
pub const OFFER_OPEN: Millis = Millis::minutes(30);
/// An offer that the latest start cuts short is open for at least this long, or it is not made.
pub const OFFER_OPEN_MIN: Millis = Millis::minutes(5);
/// The next offer is made at the earliest this long after the last one was declined, or ended without an answer.
pub const OFFER_PAUSE: Millis = Millis::hours(4);
/// After so many offers that were not accepted, the wait is over.
pub const OFFERS_MAX: u32 = 3;
/// Most quiet windows of one reservation: one for each day that it may wait, and one more at either end.
pub const OFFER_QUIET_MAX: usize = 368;

/// When a reservation on the list may be offered, and what became of its offers so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferTerms {
    /// No offer is open in these. The first comes first, and none begins before the one before it ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    quiet: Vec<Window>,
    /// Offers that its owner declined or did not answer.
    #[serde(default, skip_serializing_if = "is_none")]
    declined: u32,
    /// When the last of them ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(declined: &u32) -> bool {
    *declined == 0
}

impl OfferTerms {
    /// Of a wish that waits from `now` to `latest_start`, with the windows as somebody sent them.
    ///
    /// # Errors
    /// The windows are not in order, too many, or leave no time for an offer.
    pub(crate) fn checked(
        quiet: &[Window],
        now: Timestamp,
        latest_start: Timestamp,
    ) -> Result<Self, Rejection> {
        let refuse = |problem: String| Err(Rejection::field("offer", problem));
        if quiet.len() > OFFER_QUIET_MAX {
            return refuse(format!("at most {OFFER_QUIET_MAX} quiet windows"));
        }
        let has_length = quiet.iter().all(|window| window.starts_at < window.ends_at);
        let is_sorted = quiet.windows(2).all(|two| two[0].ends_at <= two[1].starts_at);
        if !has_length || !is_sorted {
            return refuse("the quiet windows must be in order, and none may overlap".to_owned());
        }
        let terms = Self { quiet: quiet.to_vec(), ..Self::default() };
        if terms.next_at(now, latest_start).is_none() {
            return refuse(format!(
                "an offer is open for {OFFER_OPEN} ({OFFER_OPEN_MIN} at the least), and these hours leave no time for one \
                 before the latest start: give other hours, or a longer --wait"
            ));
        }
        Ok(terms)
    }

    /// Offers that were not accepted.
    pub fn declined(&self) -> u32 {
        self.declined
    }

    /// When the last offer was declined, or ended without an answer.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at
    }

    /// Until when an offer that is made at that time is open; `None` if none may be made then.
    pub fn open_until(&self, at: Timestamp, latest_start: Timestamp) -> Option<Timestamp> {
        let until = latest_start.min(at + OFFER_OPEN);
        let open = Window { starts_at: at, ends_at: until };
        let is_paused = self.paused_until().is_some_and(|paused| at < paused);
        let is_long_enough = until.since(at) >= OFFER_OPEN_MIN;
        let is_quiet = self.quiet.iter().any(|quiet| quiet.overlaps(&open));
        (!is_paused && is_long_enough && !is_quiet).then_some(until)
    }

    /// The first time from `from` on at which an offer may be made.
    pub fn next_at(&self, from: Timestamp, latest_start: Timestamp) -> Option<Timestamp> {
        let from = self.paused_until().map_or(from, |paused| from.max(paused));
        // Within a time that is not quiet, what may be done late may be done early.
        let ends = self.quiet.iter().map(|quiet| quiet.ends_at).filter(|at| *at > from);
        let mut tries = std::iter::once(from).chain(ends);
        tries.find(|at| self.open_until(*at, latest_start).is_some())
    }

    fn paused_until(&self) -> Option<Timestamp> {
        self.ended_at.map(|at| at + OFFER_PAUSE)
    }

    /// One more was not accepted.
    pub(crate) fn was_not_accepted(&mut self, at: Timestamp) {
        self.declined += 1;
        self.ended_at = Some(at);
    }
}

/// What happened to the offer of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferEvent {
    Made {
        reservation: ReservationId,
        owner: UserName,
        node: NodeName,
        gpus: Vec<GpuUuid>,
        window: Window,
        /// Its owner accepts it before then.
        until: Timestamp,
    },
    /// The reservation is an ordinary one from now on.
    Accepted { reservation: ReservationId, by: String },
    /// It keeps its place on the list.
    Declined {
        reservation: ReservationId,
        by: String,
        /// Offers that were not accepted so far, with this one.
        declined: u32,
    },
    /// Nobody answered. It keeps its place on the list.
    NotAnswered { reservation: ReservationId, declined: u32 },
    /// The place cannot be kept. This does not count as declined.
    Withdrawn { reservation: ReservationId, why: String },
}

impl OfferEvent {
    /// The reservation that the event is about.
    pub fn reservation(&self) -> &ReservationId {
        match self {
            OfferEvent::Made { reservation, .. }
            | OfferEvent::Accepted { reservation, .. }
            | OfferEvent::Declined { reservation, .. }
            | OfferEvent::NotAnswered { reservation, .. }
            | OfferEvent::Withdrawn { reservation, .. } => reservation,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(minutes: u64) -> Timestamp {
        Timestamp(0) + Millis::minutes(minutes)
    }

    fn window(from: u64, until: u64) -> Window {
        Window { starts_at: at(from), ends_at: at(until) }
    }

    fn terms(quiet: &[Window]) -> OfferTerms {
        OfferTerms { quiet: quiet.to_vec(), ..OfferTerms::default() }
    }

    #[test]
    fn an_offer_is_open_outside_of_quiet_hours_only() {
        let terms = terms(&[window(60, 120)]);
        let last = at(600);
        assert_eq!(terms.open_until(at(30), last), Some(at(60)), "it ends as they begin");
        assert_eq!(terms.open_until(at(31), last), None);
        assert_eq!(terms.open_until(at(119), last), None);
        assert_eq!(terms.open_until(at(120), last), Some(at(150)));
        assert_eq!(terms.next_at(at(31), last), Some(at(120)));
        assert_eq!(terms.open_until(at(590), last), Some(last), "what is left is enough");
        assert_eq!(terms.open_until(at(595), last), Some(last));
        assert_eq!(terms.open_until(at(596), last), None);
        assert_eq!(terms.next_at(at(596), last), None);
    }

    #[test]
    fn after_an_offer_there_is_a_pause() {
        let mut terms = terms(&[window(240, 300)]);
        terms.was_not_accepted(at(30));
        assert_eq!(terms.next_at(at(31), at(900)), Some(at(300)), "the pause ends in quiet hours");
        terms.was_not_accepted(at(300));
        assert_eq!((terms.declined(), terms.ended_at()), (2, Some(at(300))));
        assert_eq!(terms.next_at(at(301), at(900)), Some(at(540)));
        assert_eq!(terms.open_until(at(539), at(900)), None);
    }

    #[test]
    fn terms_without_time_for_an_offer_are_refused() {
        let check = |quiet: &[Window], last| OfferTerms::checked(quiet, at(0), at(last));
        assert!(check(&[window(0, 595)], 600).is_ok(), "five minutes are left");
        assert!(check(&[window(0, 596)], 600).is_err());
        assert!(check(&[], 4).is_err());
        assert!(check(&[], 5).is_ok());
        for wrong in [[window(9, 9), window(10, 12)], [window(10, 12), window(11, 13)]] {
            let refused = check(&wrong, 600).unwrap_err().to_string();
            assert!(refused.contains("in order"), "{refused}");
        }
        let many: Vec<Window> = (0..369).map(|n| window(n * 2, n * 2 + 1)).collect();
        assert!(check(&many, 9_000).is_err());
        assert!(check(&many[..368], 9_000).is_ok());
    }

    proptest! {
        /// Trying every minute finds the same time.
        #[test]
        fn the_next_time_is_the_first_at_which_one_may_be_made(
            lengths in proptest::collection::vec((0..90_u64, 1..90_u64), 0..8),
            from in 0..400_u64,
            last in 0..600_u64,
            ended in proptest::option::of(0..400_u64),
        ) {
            let mut quiet = Vec::new();
            let mut begin = 0;
            for (gap, length) in lengths {
                quiet.push(window(begin + gap, begin + gap + length));
                begin += gap + length;
            }
            let terms = OfferTerms { ended_at: ended.map(at), ..terms(&quiet) };
            let naive = (from..1_000).find(|minute| terms.open_until(at(*minute), at(last)).is_some());
            prop_assert_eq!(terms.next_at(at(from), at(last)), naive.map(at));
        }
    }
}
