//! Shows reservations, and the rules by which they end.

use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::{Reservation, ReservationPlace, ReservationRules};
use fleet_proto::json::values::Time;

use super::tone::Tone;
use super::values::or_dash;
use super::{Column, Row};
use crate::times::{Clock, length};

fn shared(reservation: &Reservation) -> Option<String> {
    (!reservation.with.is_empty()).then(|| reservation.with.join(","))
}

/// `from … until …`.
pub(crate) fn window_shown(reservation: &Reservation, clock: &Clock) -> String {
    window(reservation.starts_at, reservation.ends_at, clock)
}

/// `titan01:0,1 (v100) from … until …`, of the place to which it moves.
pub(crate) fn place_shown(place: &ReservationPlace, clock: &Clock) -> String {
    format!("{} {}", place.gpus_shown(), window(place.starts_at, place.ends_at, clock))
}

fn window(starts_at: Option<Time>, ends_at: Option<Time>, clock: &Clock) -> String {
    let at = |at: Option<Time>| or_dash(at.map(|at| clock.day_and_minute(at.0)));
    format!("from {} until {}", at(starts_at), at(ends_at))
}

/// `ser-7h2kqd, every week on Mon …`.
fn in_series(series: &str, reservation: &Reservation) -> String {
    let rule = reservation.series_rule.iter().map(String::as_str);
    std::iter::once(series).chain(rule).collect::<Vec<_>>().join(", ")
}

/// Why it is as it is; for one that moves, what it waits for.
fn reason(reservation: &Reservation, clock: &Clock) -> String {
    let waits = reservation.next.as_ref().and(reservation.unconfirmed.as_ref());
    let reason = reservation.reason.as_ref().or(waits).cloned();
    let offered = || offer_shown(reservation, clock);
    let listed = || reservation.waiting_place.map(|_| waits_shown(reservation, clock));
    let listed = || offered().or_else(listed);
    let asks = reservation.state.is(ReservationShown::Requested);
    match reason.or_else(listed) {
        Some(reason) => reason,
        None if asks => asks_shown(reservation, clock),
        None => String::new(),
    }
}

/// `until 14:30: fleet reservation accept res-k3v9`, of one that is offered now.
pub(crate) fn offer_shown(reservation: &Reservation, clock: &Clock) -> Option<String> {
    let until = reservation.offer.as_ref()?.until?;
    let until = clock.brief(until.0);
    Some(format!("until {until}: fleet reservation accept {}", reservation.id))
}

/// `next offer Fri 08:00 at the earliest (1 of 3 not accepted)`, of one that is offered nothing now.
pub(crate) fn next_offer_shown(reservation: &Reservation, clock: &Clock) -> Option<String> {
    let offer = reservation.offer.as_ref()?;
    let next = clock.day_and_minute(offer.next?.0);
    let so_far = match offer.declined {
        0 => String::new(),
        declined => format!(" ({declined} of {} not accepted)", offer.most),
    };
    Some(format!("next offer {next} at the earliest{so_far}"))
}

/// `place 2 on the waiting list, starts by 18:00`; of one that has a place, how much earlier it may start.
pub(crate) fn waits_shown(reservation: &Reservation, clock: &Clock) -> String {
    let place = reservation.waiting_place.unwrap_or_default();
    let at = |at: Option<Time>| or_dash(at.map(|at| clock.day_and_minute(at.0)));
    match reservation.waits_for {
        Some(_) => {
            let latest = at(reservation.latest_start);
            let next = next_offer_shown(reservation, clock);
            let next = next.map(|next| format!("; {next}")).unwrap_or_default();
            format!("place {place} on the waiting list, starts by {latest} or not at all{next}")
        }
        None if reservation.state.is(ReservationShown::Offered) => {
            format!("place {place} on the waiting list until it is accepted")
        }
        None => {
            format!("place {place} on the waiting list, starts earlier if it can")
        }
    }
}

/// For the approver: `titan01:0-7 (v100) from … until …; 4 of the 16 GPUs that fit the request stay free`.
fn if_approved(reservation: &Reservation, clock: &Clock) -> Option<String> {
    let effect = reservation.approval.as_ref()?.effect.as_ref()?;
    let (place, waits) = (effect.place.as_ref(), effect.waits_for.as_ref());
    let place = place.map(|place| place_shown(place, clock));
    let place =
        place.or_else(|| waits.map(|why| format!("it would wait: {why}"))).unwrap_or_default();
    let free = format!(
        "{} of the {} GPUs that fit the request stay free",
        effect.left_free, effect.gpus_like_it
    );
    Some(match effect.owner_has {
        0 => format!("{place}; {free}"),
        has => {
            let owner = &reservation.owner;
            format!("{place}; {free}; {owner} has {has} more reserved at that time")
        }
    })
}

/// `waits for approval, starts by 18:00 or not at all`.
pub(crate) fn asks_shown(reservation: &Reservation, clock: &Clock) -> String {
    let latest = or_dash(reservation.latest_start.map(|at| clock.day_and_minute(at.0)));
    format!("waits for approval, starts by {latest} or not at all")
}

/// `active`; `idle 2h` of an active one whose GPUs compute nothing; `offered 29m` of one that is still open for 29 minutes.
fn state(reservation: &Reservation, clock: &Clock) -> String {
    if let Some(since) = reservation.idle_since {
        return format!("idle {}", about(clock.now_ms().saturating_sub(since.0)));
    }
    match reservation.offer.as_ref().and_then(|offer| offer.until) {
        Some(until) => {
            format!("{} {}", reservation.state, about(until.0.saturating_sub(clock.now_ms())))
        }
        None => reservation.state.to_string(),
    }
}

/// A length in its largest unit: `2h`.
fn about(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m")];
    let unit = units.into_iter().find(|(scale, _)| ms >= *scale);
    unit.map_or("0m".to_owned(), |(scale, unit)| format!("{}{unit}", ms / scale))
}

/// Since when it is idle, and what happens when.
fn idle(reservation: &Reservation, clock: &Clock) -> Option<String> {
    let since = format!("since {}", clock.second(reservation.idle_since?.0));
    Some(match reservation.idle_release_at {
        Some(at) => format!("{since}; released at {} if it stays idle", clock.second(at.0)),
        None => since,
    })
}

impl Row for Reservation {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("RESERVATION", |r: &Self, _| r.id.clone()),
            Column::new("OWNER", |r: &Self, _| r.owner.clone()).clip_to(8),
            Column::new("PROJECT", |r: &Self, _| r.project.clone()).wide(),
            Column::new("STATE", state).state(|r| Tone::of(&r.state)).rank(1),
            Column::new("GPUS", |r: &Self, _| r.gpus_shown()).clip(),
            Column::when("FROM", |r: &Self| r.starts_at),
            Column::when("UNTIL", |r: &Self| r.ends_at),
            Column::new("AT END", |r: &Self, _| or_dash(r.at_end.clone())).wide(),
            Column::new("WITH", |r: &Self, _| or_dash(shared(r))).wide(),
            Column::new("SERIES", |r: &Self, _| or_dash(r.series.clone())).wide(),
            Column::new("NOTE", |r: &Self, _| r.note.clone().unwrap_or_default()).clip().rank(3),
            Column::new("REASON", |r: &Self, clock| reason(r, clock)).clip().rank(2),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("Reservation", self.id.clone()),
            ("Owner", format!("{}, project {}", self.owner, self.project)),
            ("State", self.state.to_string()),
            ("GPUs", self.gpus_shown()),
            ("From", or_dash(self.starts_at.map(|at| clock.second(at.0)))),
            ("Until", or_dash(self.ends_at.map(|at| clock.second(at.0)))),
        ];
        let approval = self.approval.as_ref();
        let optional = [
            ("With", shared(self)),
            ("Import", self.import.clone()),
            ("Series", self.series.as_ref().map(|series| in_series(series, self))),
            ("At end", self.at_end.clone()),
            ("Note", self.note.clone()),
            ("Needed for", approval.map(|approval| approval.reason.clone())),
            ("Limit", approval.map(|approval| approval.above.clone())),
            ("Approved by", approval.and_then(|approval| approval.given_by.clone())),
            ("If approved", if_approved(self, clock)),
            ("Reason", self.reason.clone()),
            ("Offered", offer_shown(self, clock)),
            ("Waiting", self.waiting_place.map(|_| waits_shown(self, clock))),
            ("Idle", idle(self, clock)),
            ("Unconfirmed", self.unconfirmed.clone()),
            ("Moves to", self.next.as_ref().map(|next| place_shown(next, clock))),
            ("Made", self.created_at.map(|at| clock.second(at.0))),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines
    }
}

/// What stands for a time that never comes.
pub(crate) const NEVER: &str = "never";

fn or_never(ms: Option<u64>) -> String {
    ms.map_or(NEVER.to_owned(), length)
}

fn idle_below(rules: &ReservationRules) -> String {
    format!("{} %", rules.idle_below_percent)
}

impl Row for ReservationRules {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("AT END", |rules: &Self, _| rules.at_end.clone()),
            Column::new("NO SHOW", |rules: &Self, _| or_never(rules.no_show_ms)),
            Column::new("GRACE", |rules: &Self, _| length(rules.grace_ms)),
            Column::new("IDLE AFTER", |rules: &Self, _| or_never(rules.idle_after_ms)),
            Column::new("IDLE BELOW", |rules: &Self, _| idle_below(rules)),
            Column::new("IDLE RELEASE", |rules: &Self, _| or_never(rules.idle_release_ms)),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("At end", self.at_end.clone()),
            ("No show", or_never(self.no_show_ms)),
            ("Grace", length(self.grace_ms)),
            ("Idle after", or_never(self.idle_after_ms)),
            ("Idle below", idle_below(self)),
            ("Idle release", or_never(self.idle_release_ms)),
        ]
    }
}
