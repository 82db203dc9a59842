//! The state of a reservation as people see it, what its node has not confirmed, and what is wrong with its GPUs.

use crate::id::ReservationId;
use crate::idle::Idle;
use crate::name::NodeName;
use crate::node::Liveness;
use crate::reason::{Unfit, UnfitGpu};
use crate::rejection::Rejection;
use crate::reservation::{Reservation, ReservationState, WaitOverWhy};
use crate::risk::{Pair, Risk};
use crate::state::Fsm;
use crate::state::wish::{self, Wish};
use crate::time::Timestamp;
use crate::waitlist::{WaitOver, Waiter};
use crate::window::Withdrawal;
use crate::word::words;

/// Where a reservation is in its life. Two more than the state machine keeps: one that waits for a place, and a cancelled
/// one whose node has yet to confirm it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservationShown {
    /// It is above a limit and waits for approval. It holds nothing.
    Requested,
    /// On the waiting list, without a place.
    Waiting,
    /// On the waiting list: its owner has to accept the place that it has.
    Offered,
    Scheduled,
    /// Cancelled, but its node holds it still, so its GPUs count as given.
    Cancelling,
    Active,
    Ending,
    Ended,
    Cancelled,
}

words!(ReservationShown {
    Requested => "requested",
    Waiting => "waiting",
    Offered => "offered",
    Scheduled => "scheduled",
    Cancelling => "cancelling",
    Active => "active",
    Ending => "ending",
    Ended => "ended",
    Cancelled => "cancelled",
});

impl ReservationShown {
    /// Whether it is over.
    pub fn is_over(self) -> bool {
        match self {
            Self::Ended | Self::Cancelled => true,
            Self::Requested
            | Self::Waiting
            | Self::Offered
            | Self::Scheduled
            | Self::Cancelling
            | Self::Active
            | Self::Ending => false,
        }
    }
}

/// The state of a reservation.
pub fn reservation(r: &Reservation) -> ReservationShown {
    let withdrawn = r.handed_out.as_ref().and_then(|given| given.withdrawn.as_ref());
    match r.state {
        ReservationState::Scheduled if matches!(withdrawn, Some(Withdrawal::Cancelled { .. })) => {
            ReservationShown::Cancelling
        }
        ReservationState::Offered { .. } => ReservationShown::Offered,
        ReservationState::Scheduled => ReservationShown::Scheduled,
        ReservationState::Active => ReservationShown::Active,
        ReservationState::Ending => ReservationShown::Ending,
        ReservationState::Ended => ReservationShown::Ended,
        ReservationState::Cancelled => ReservationShown::Cancelled,
    }
}

/// Since when its GPUs compute nothing, and when it is released for that; `None` where it is not idle, or nobody knows.
pub fn idle(r: &Reservation) -> Option<Idle> {
    r.usage.idle.filter(|_| r.state == ReservationState::Active)
}

/// What a node has not confirmed of a reservation that was handed to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    pub node: NodeName,
    /// No controller hears the node.
    pub is_silent: bool,
    pub what: UnconfirmedChange,
}

/// The change that waits for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnconfirmedChange {
    /// That the node has it at all.
    Taken,
    Cancelled,
    /// It goes to other GPUs.
    Moved,
    /// Its owner moved it.
    Edited,
    Ended,
    EarlierEnd,
    LaterEnd,
}

/// What the node of a reservation has yet to confirm; `None` where nothing is open.
pub fn unconfirmed(fsm: &Fsm, r: &Reservation) -> Option<Unconfirmed> {
    let given = r.handed_out.as_ref().filter(|_| r.is_unconfirmed())?;
    let what = match (&given.withdrawn, given.held_until > r.window.ends_at) {
        (Some(Withdrawal::Cancelled { .. }), _) => UnconfirmedChange::Cancelled,
        (Some(Withdrawal::Moving { .. }), _) => UnconfirmedChange::Moved,
        (Some(Withdrawal::Edited { .. }), _) => UnconfirmedChange::Edited,
        (Some(Withdrawal::Ended), _) => UnconfirmedChange::Ended,
        (None, true) => UnconfirmedChange::EarlierEnd,
        (None, false) if given.revision == given.epoch => UnconfirmedChange::Taken,
        (None, false) => UnconfirmedChange::LaterEnd,
    };
    let is_silent = fsm.node(&r.node).is_none_or(|node| node.liveness != Liveness::Ready);
    Some(Unconfirmed { node: r.node.clone(), is_silent, what })
}

/// GPUs of a reservation that take no work, and what becomes of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenGpus {
    pub gpus: Vec<UnfitGpu>,
    pub then: BrokenThen,
}

/// What becomes of a reservation with broken GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenThen {
    /// It gets others when it begins, where some are free.
    ReplacedAtStart,
    /// It waits for its node, and moves.
    Moves,
    /// It has begun, so it keeps them.
    Kept,
}

/// What is wrong with the place of one that is not over, and why it has it still; `None` where nothing is known to be.
pub fn at_risk(r: &Reservation) -> Option<&Risk> {
    r.risk.as_deref().filter(|_| r.is_open())
}

/// The other one of a reservation and its stand-in, as long as both are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandIn {
    /// It has one on that node, since its own does not answer.
    Has(ReservationId, NodeName),
    For(ReservationId, NodeName),
}

/// Whether it has a stand-in or is one.
pub fn stand_in(fsm: &Fsm, r: &Reservation) -> Option<StandIn> {
    let open = |id| fsm.reservation(id).filter(|other| other.is_open() && r.is_open());
    match r.pair.as_deref()? {
        Pair::HasStandIn(id) => open(id).map(|at| StandIn::Has(id.clone(), at.node.clone())),
        Pair::StandsInFor(id) => open(id).map(|of| StandIn::For(id.clone(), of.node.clone())),
        Pair::HadStandIn => None,
    }
}

/// What is wrong with the GPUs of one that is not over; `None` where nothing is.
pub fn broken(fsm: &Fsm, r: &Reservation) -> Option<BrokenGpus> {
    let then = match r.state {
        ReservationState::Scheduled if r.next.is_some() => BrokenThen::Moves,
        ReservationState::Scheduled => BrokenThen::ReplacedAtStart,
        ReservationState::Active => BrokenThen::Kept,
        // It is withdrawn, and another place is offered.
        ReservationState::Offered { .. }
        | ReservationState::Ending
        | ReservationState::Ended
        | ReservationState::Cancelled => return None,
    };
    let node = fsm.node(&r.node)?;
    let gpus = r.gpus.iter().filter_map(|uuid| wish::broken(node, fsm.gpu(uuid)?));
    // A driver that does not answer will, or its node is not ready, which is said of the node.
    let gpus: Vec<UnfitGpu> = gpus.filter(|gpu| gpu.why != Unfit::Silent).collect();
    (!gpus.is_empty()).then_some(BrokenGpus { gpus, then })
}

/// One on the waiting list, or that left it without a place.
#[derive(Debug, Clone, Copy)]
pub enum Listed<'a> {
    Waits(&'a Waiter),
    Over(&'a WaitOver),
}

impl<'a> Listed<'a> {
    /// All of them that have no place: those that wait first, in their order.
    pub fn all(fsm: &'a Fsm) -> impl Iterator<Item = Listed<'a>> {
        let over = fsm.waitlist().over().map(Listed::Over);
        fsm.waitlist().without_place().map(Listed::Waits).chain(over)
    }

    pub fn of(fsm: &'a Fsm, id: &ReservationId) -> Option<Listed<'a>> {
        let over = || fsm.waitlist().was_over(id).map(Listed::Over);
        fsm.waitlist().waits(id).map(Listed::Waits).or_else(over)
    }

    pub fn waiter(self) -> &'a Waiter {
        match self {
            Listed::Waits(waiter) => waiter,
            Listed::Over(over) => &over.waiter,
        }
    }

    pub fn shown(self) -> ReservationShown {
        match self {
            Listed::Waits(waiter) if waiter.asks() => ReservationShown::Requested,
            Listed::Waits(_) => ReservationShown::Waiting,
            Listed::Over(over) => match over.why {
                WaitOverWhy::Cancelled { .. } | WaitOverWhy::Denied { .. } => {
                    ReservationShown::Cancelled
                }
                WaitOverWhy::TooLate
                | WaitOverWhy::Refused { .. }
                | WaitOverWhy::NotApproved
                | WaitOverWhy::NotAccepted { .. } => ReservationShown::Ended,
            },
        }
    }

    /// `2 v100 GPUs for 4h`.
    pub fn wanted(self) -> String {
        let waiter = self.waiter();
        let gpus = Wish::new(&waiter.wish.gpus).text_of_gpus();
        match &waiter.wish.gpus.node {
            Some(node) => format!("{gpus} on {node} for {}", waiter.length()),
            None => format!("{gpus} for {}", waiter.length()),
        }
    }

    /// Why it has no place.
    pub fn why(self, fsm: &Fsm) -> String {
        match self {
            Listed::Waits(waiter) if waiter.asks() => {
                let above = waiter.approval.as_ref().map(|approval| approval.above.as_str());
                format!("waits for approval, above a limit: {}", above.unwrap_or_default())
            }
            Listed::Waits(waiter) => match fsm.what_it_waits_for(waiter) {
                Some(Rejection::GpusHeld { wanted, .. }) => format!("waits for {wanted}"),
                Some(other) => other.to_string(),
                None if waiter.offer.is_some() => offer_to_come(waiter, fsm.now()),
                None => {
                    "waits for jobs of lower classes to leave; it gets its place within minutes"
                        .to_owned()
                }
            },
            Listed::Over(over) => over.why.to_string(),
        }
    }
}

/// Why it is not offered yet what is free.
fn offer_to_come(waiter: &Waiter, now: Timestamp) -> String {
    let next = waiter.offer.as_ref().and_then(|terms| terms.next_at(now, waiter.latest_start));
    match next {
        Some(at) if at > now => {
            format!("its next offer comes in {} at the earliest", at.since(now))
        }
        Some(_) => "waits until jobs end by themselves: no job leaves for an offer".to_owned(),
        None => "no time is left for an offer before its latest start".to_owned(),
    }
}
