//! What the node of a reservation has not confirmed, and what is wrong with its GPUs.

use std::fmt;

use super::event::placed;
use super::list;
use crate::name::{NodeName, UserName};
use crate::reservation::{Edit, GpuRequest, WaitOverWhy};
use crate::risk::{Keeps, Risk, RiskEvent};
use crate::state::wish::Wish;
use crate::time::{Millis, Timestamp, Window};
use crate::view::Names;
use crate::view::Unconfirmed;
use crate::view::reservation::{BrokenGpus, BrokenThen, StandIn, UnconfirmedChange as Change};

/// Most GPUs that are named with what is wrong.
const BROKEN_NAMED_MAX: usize = 3;

impl fmt::Display for BrokenGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, more) = self.gpus.split_at(self.gpus.len().min(BROKEN_NAMED_MAX));
        write!(f, "{}", list(named))?;
        if !more.is_empty() {
            write!(f, ", and {} more", more.len())?;
        }
        match self.then {
            BrokenThen::ReplacedAtStart => {
                write!(f, "; fleet replaces it at the start if another GPU is free")
            }
            BrokenThen::Kept => write!(f, "; to get another GPU, reserve again"),
            BrokenThen::Moves => Ok(()),
        }
    }
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match self.is_silent {
            true => format!("{}, which is not heard,", self.node),
            false => self.node.to_string(),
        };
        match self.what {
            Change::Cancelled => write!(
                f,
                "it is cancelled once {node} confirms it; until then its GPUs count as given"
            ),
            Change::Moved => {
                write!(f, "it moves to other GPUs once {node} has released these")
            }
            Change::Edited => {
                write!(
                    f,
                    "it waits for {node} to release it; then it moves. Until then both places count as taken"
                )
            }
            Change::Ended => {
                write!(f, "{node} has not confirmed its end; until then its GPUs count as given")
            }
            Change::EarlierEnd => write!(
                f,
                "{node} has not confirmed the earlier end; until then its GPUs count as given"
            ),
            Change::Taken => write!(
                f,
                "{node} has not confirmed it; without a controller it would not start there"
            ),
            Change::LaterEnd => write!(
                f,
                "{node} has not confirmed the new end; without a controller the old one holds"
            ),
        }
    }
}

/// `in 2h for 1h`, of a window as it is seen then.
pub(super) fn window_from(then: Timestamp, window: Window) -> String {
    let lasts = window.ends_at.since(window.starts_at.max(then));
    match window.starts_at.since(then) {
        Millis::ZERO => format!("from now for {lasts}"),
        begins => format!("in {begins} for {lasts}"),
    }
}

/// What an edit changed, from what to what.
pub(super) struct Edited<'a> {
    pub(super) by: &'a str,
    pub(super) edit: &'a Edit,
    pub(super) waits_for: Option<&'a NodeName>,
    /// The moment from which lengths are counted; without it no times are named.
    pub(super) then: Option<Timestamp>,
    pub(super) names: &'a dyn Names,
}

impl fmt::Display for Edited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f)
    }
}

impl Edited<'_> {
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match (&self.edit.window, self.then) {
            (Some((was, is)), Some(then)) => {
                let (was, is) = (window_from(then, *was), window_from(then, *is));
                parts.push(format!("time {is} (before: {was})"));
            }
            (Some(_), None) => parts.push("time".to_owned()),
            (None, _) => {}
        }
        if let Some((was, is)) = &self.edit.place {
            let [was, is] = [was, is].map(|(node, gpus)| placed(self.names, node, gpus));
            parts.push(format!("GPUs {is} (before: {was})"));
        }
        if let Some((was, is)) = &self.edit.with {
            let none = || "nobody".to_owned();
            let [was, is] = [was, is].map(|with| match with.is_empty() {
                true => none(),
                false => list(&with.iter().collect::<Vec<_>>()),
            });
            parts.push(format!("shared with {is} (before: {was})"));
        }
        if let Some((was, is)) = &self.edit.note {
            parts.push(format!("note {is:?} (before: {was:?})"));
        }
        write!(f, "{} changed the reservation: {}", self.by, parts.join("; "))?;
        match self.waits_for {
            Some(node) => write!(f, "; it waits for {node} to release the old place"),
            None => Ok(()),
        }
    }
}

/// An edit that waited for its node is done.
pub(super) fn fmt_done(f: &mut fmt::Formatter<'_>, gpus: &str) -> fmt::Result {
    write!(f, "the reservation moved to {gpus}")
}

/// An edit that waited for its node came too late.
pub(super) fn fmt_lapsed(f: &mut fmt::Formatter<'_>, node: &NodeName) -> fmt::Result {
    write!(
        f,
        "the reservation stays as it was: its new time passed before {node} had released the old place"
    )
}

/// The account of somebody who shared it was closed.
pub(super) fn fmt_unshared(f: &mut fmt::Formatter<'_>, user: &UserName) -> fmt::Result {
    write!(f, "no longer shared with {user}, whose account is closed")
}

/// It got no place, so it waits for one.
pub(super) fn fmt_waits(
    f: &mut fmt::Formatter<'_>,
    owner: &UserName,
    gpus: &GpuRequest,
    place: u32,
) -> fmt::Result {
    write!(f, "{owner} waits for {}, place {place} on the waiting list", Wish::new(gpus).text())
}

impl fmt::Display for WaitOverWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLate => f.write_str("no place was free by its latest start"),
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::Refused { why } => f.write_str(why),
            Self::Denied { by, why } => write!(f, "denied by {by}: {why}"),
            Self::NotApproved => f.write_str("nobody approved it by its latest start"),
            Self::NotAccepted { offers: 1 } => f.write_str("its offer was not accepted"),
            Self::NotAccepted { offers } => write!(f, "none of its {offers} offers was accepted"),
        }
    }
}

/// Fleet gave it another place, or will as soon as its node has released the one it has.
pub(super) fn fmt_moved(
    f: &mut fmt::Formatter<'_>,
    gpus: &str,
    why: &str,
    waits_for: Option<&NodeName>,
) -> fmt::Result {
    match waits_for {
        Some(node) => write!(f, "moves to {gpus} once {node} has released the old place: {why}"),
        None => write!(f, "moved to {gpus}: {why}"),
    }
}

/// What became of one whose place is or was bad.
pub(super) fn fmt_risk(
    f: &mut fmt::Formatter<'_>,
    event: &RiskEvent,
    names: &dyn Names,
) -> fmt::Result {
    match event {
        RiskEvent::Stays { what, keeps, others, .. } => {
            write!(f, "{what}; {keeps}")?;
            match others {
                Some((node, gpus)) => write!(f, "; free for it: {}", placed(names, node, gpus)),
                None => Ok(()),
            }
        }
        RiskEvent::Over { .. } => write!(f, "its node and GPUs can be used again"),
        RiskEvent::StandsIn { reservation, stand_in, node } => {
            write!(f, "{node} is silent, so {stand_in} stands in for {reservation}")
        }
        RiskEvent::Superseded { reservation, kept } => {
            write!(f, "{reservation} is released, since {kept} is kept in its place")
        }
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.keeps)
    }
}

impl fmt::Display for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(id, node) => {
                write!(f, "its stand-in is {id} on {node}")
            }
            Self::For(id, node) => {
                write!(f, "stand-in for {id}, whose node {node} fell silent")
            }
        }
    }
}

impl fmt::Display for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "it names this node or these GPUs, so fleet gives it no others",
            Self::NothingFree => "fleet gives it other GPUs as soon as some are free",
            Self::MovedLately => "it was moved less than an hour ago, so it stays for now",
            Self::Queued => "fleet searches other GPUs for it within minutes",
            Self::Frozen => "too many nodes went bad at once, so fleet does not move it now",
            Self::Begun => "to get other GPUs, reserve again",
        })
    }
}

/// It left the waiting list without a place.
pub(super) fn fmt_wait_over(f: &mut fmt::Formatter<'_>, why: &WaitOverWhy) -> fmt::Result {
    match why {
        WaitOverWhy::Denied { .. } => write!(f, "{why}"),
        WaitOverWhy::TooLate
        | WaitOverWhy::Cancelled { .. }
        | WaitOverWhy::Refused { .. }
        | WaitOverWhy::NotApproved
        | WaitOverWhy::NotAccepted { .. } => write!(f, "removed from the waiting list: {why}"),
    }
}
