//! A lab's week: forty people reserve, wait, hold courses and change their minds, while nodes are drained, die and fall
//! silent. What must hold of it, judged from what nodes open and from what the audit records say.
//!
//! An hour of the lab lasts a quarter of a minute, and no shorter, since a fleet knows times that do not shrink: ten minutes until
//! a silent node's reservations get stand-ins, a minute between two tries of the waiting list. People are in `user/week.rs`,
//! `user/approvals.rs` and `user/offers.rs`, troubles in `faults.rs`. Judges: [`records`] (no GPU is promised twice; what is counted),
//! [`gates`] (what nodes open, and on time), [`waiters`] (the order of those who wait, and what becomes of them),
//! [`approvals`] (what is above the limit), [`offers`] (places that their owner has to accept).

mod approvals;
mod gates;
mod offers;
pub(crate) mod records;
mod waiters;

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::Fsm;
use fleet_core::command::Envelope;
use fleet_core::fsm::Outcome;
use fleet_core::id::ReservationId;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Timestamp;

use self::approvals::Approvals;
use self::gates::{Gates, Opened};
use self::offers::Offers;
use self::records::Record;
use self::waiters::Waiting;

/// The machines of the lab, and the GPUs of each.
pub(crate) const NODES: usize = 6;
pub(crate) const GPUS: u32 = 4;
/// The admin, and those who work there.
pub(crate) const PEOPLE: &[&str] = &[
    "root", "p01", "p02", "p03", "p04", "p05", "p06", "p07", "p08", "p09", "p10", "p11", "p12",
    "p13", "p14", "p15", "p16", "p17", "p18", "p19", "p20", "p21", "p22", "p23", "p24", "p25",
    "p26", "p27", "p28", "p29", "p30", "p31", "p32", "p33", "p34", "p35", "p36", "p37", "p38",
    "p39", "p40",
];
/// Those who may approve what is above the limit, beside the admin.
pub(crate) const APPROVERS: &[&str] = &["p01", "p02"];
/// For longer nobody reserves without approval.
pub(crate) const LONGEST_MS: u64 = 270_000;

/// What each week must have so many of: else it is too dull to prove anything.
pub(crate) const LEAST: &[(&str, u64)] = &[
    (SERVED, 20),
    (EDITED, 20),
    (MOVED, 20),
    (DATE_CHANGED, 20),
    (APPROVED, 20),
    (TAKEN_MEANWHILE, 20),
    (OFFER_ACCEPTED, 20),
    (OFFER_DECLINED, 20),
];
/// What some week of many must have.
pub(crate) const SOMETIMES: &[&str] = &[
    STAND_IN,
    SUPERSEDED,
    DENIED,
    LAPSED,
    OFFER_NOT_ANSWERED,
    OFFER_WITHDRAWN,
    "ReservationWaitOver",
];

/// All that is counted of a week.
pub(crate) fn counted() -> impl Iterator<Item = &'static str> {
    LEAST.iter().map(|(what, _)| *what).chain(SOMETIMES.iter().copied())
}

/// Somebody on the waiting list got a place.
const SERVED: &str = "WishServed";
/// An owner changed a reservation that a node had in its hands, and the change came through.
const EDITED: &str = "EditOfHandedOut";
/// Fleet moved a reservation off a node that is drained, or a GPU that is dead.
const MOVED: &str = "MovedOffBad";
/// A date of a series was changed or released, and not the others.
const DATE_CHANGED: &str = "DateChanged";
/// What is above the limit was approved.
const APPROVED: &str = "Approved";
/// It was free when its owner asked, and was not any more when it was approved.
const TAKEN_MEANWHILE: &str = "ApprovedAndTaken";
const DENIED: &str = "Denied";
/// Nobody decided in time.
const LAPSED: &str = "NotDecided";
/// What became of places that were offered.
const OFFER_ACCEPTED: &str = "OfferAccepted";
const OFFER_DECLINED: &str = "OfferDeclined";
const OFFER_NOT_ANSWERED: &str = "OfferNotAnswered";
const OFFER_WITHDRAWN: &str = "OfferWithdrawn";
const STAND_IN: &str = "StandIn";
const SUPERSEDED: &str = "StandInSettled";

/// What a node has open for one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) id: ReservationId,
    pub(crate) users: BTreeSet<UserName>,
    pub(crate) gpus: Vec<GpuUuid>,
}

/// All that is known of a week by those who judge it.
#[derive(Debug, Default)]
pub(crate) struct Week {
    records: BTreeMap<ReservationId, Record>,
    /// Who else was named when it was asked for.
    asked: BTreeMap<ReservationId, BTreeSet<UserName>>,
    waiting: BTreeMap<u64, Waiting>,
    /// The order and the earliest start of all who ever waited.
    orders: BTreeMap<ReservationId, (u64, Timestamp)>,
    approvals: Approvals,
    offers: Offers,
    gates: Gates,
    opened: BTreeMap<ReservationId, Opened>,
}

impl Week {
    /// An entry was applied, for the first time anywhere. Returns what of it counts.
    pub(crate) fn applied(
        &mut self,
        envelope: &Envelope,
        outcome: &Outcome,
        fsm: &Fsm,
        now_us: u64,
    ) -> Result<Vec<&'static str>, String> {
        if outcome.reply.is_err() {
            return Ok(Vec::new());
        }
        self.note_wishes(&envelope.command);
        let mut counted = Vec::new();
        let approved = self.judge_approvals(envelope, outcome, fsm, &mut counted)?;
        let served = self.judge_waiters(envelope, outcome, fsm)?;
        counted.extend(vec![SERVED; served]);
        if let Some(id) = approved {
            self.wait_from_now_on(&id, fsm);
        }
        self.judge_offers(envelope, outcome, fsm, &mut counted)?;
        self.count_dates(&envelope.command, &outcome.events, &mut counted);
        for event in &outcome.events {
            self.note(event, (fsm.now(), now_us), &mut counted)?;
        }
        self.judge_overlaps(&outcome.events, fsm.now())?;
        self.judge_offered(&outcome.events, fsm.now())?;
        Ok(counted)
    }
}
