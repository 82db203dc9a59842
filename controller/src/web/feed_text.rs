//! Writes the reservations of a feed as iCalendar (RFC 5545, RFC 7986), with the crate `icalendar`: it folds and escapes.
//!
//! The text depends on the feed alone, not on the time: the same reservations give the same bytes, so that a program that
//! has them is answered 304. Pure.

use chrono::{DateTime, Utc};
use fleet_core::feed::FeedScope;
use fleet_core::time::Timestamp;
use fleet_proto::json::values::Time;
use icalendar::{Alarm, Calendar, Component as _, Event, EventLike as _, EventStatus, Property};

use crate::api::{FeedNow, FeedReservation};

/// Who wrote it, as the standard wants it.
const PRODUCT: &str = "-//fleet//calendar feed//EN";
/// How often programs should ask; some ask once or twice a day all the same.
const REFRESH: &str = "PT15M";
/// Before the start of one's own reservation.
const ALARM: &str = "-PT15M";

/// The whole feed; `page` is the address of the web page.
pub(super) fn text(feed: &FeedNow, page: &str) -> String {
    let mut calendar = Calendar::empty();
    let name = match &feed.feed.scope {
        FeedScope::Mine => format!("GPUs of {}", feed.feed.user),
        FeedScope::Node { name } => format!("GPUs of {name}"),
        FeedScope::Project { name } => format!("GPUs of project {name}"),
    };
    for (key, value) in [("VERSION", "2.0"), ("PRODID", PRODUCT), ("CALSCALE", "GREGORIAN")] {
        calendar.append_property((key, value));
    }
    calendar.name(&plain(&name));
    let refresh =
        Property::new("REFRESH-INTERVAL", REFRESH).add_parameter("VALUE", "DURATION").done();
    calendar.append_property(refresh).append_property(("X-PUBLISHED-TTL", REFRESH));
    for reservation in &feed.reservations {
        calendar.push(event(reservation, &feed.cluster, page));
    }
    calendar.to_string()
}

fn event(r: &FeedReservation, cluster: &str, page: &str) -> Event {
    let shown = &r.shown;
    let changed_at = r.changed_at.unwrap_or(r.created_at);
    let url = format!("{page}/reservation/{}", r.id);
    let mut event = Event::new();
    event
        .uid(&format!("{}@{cluster}", r.id))
        .timestamp(utc(changed_at))
        .created(utc(r.created_at))
        .last_modified(utc(changed_at))
        .sequence(u32::try_from(shown.revision).unwrap_or(u32::MAX))
        .starts(utc(r.starts_at))
        .ends(utc(r.ends_at))
        .summary(&plain(&summary(r)))
        .description(&plain(&description(r, &url)))
        .url(&url)
        // GPUs work without their user: nobody is busy all that time.
        .append_property(("TRANSP", "TRANSPARENT"));
    if r.is_cancelled {
        return event.status(EventStatus::Cancelled).done();
    }
    event.status(EventStatus::Confirmed);
    if r.is_own {
        let mut alarm = Alarm::display(&plain(&summary(r)), -chrono::Duration::minutes(15));
        // Without these two the crate takes the time of now and a random id: the text would never be the same.
        alarm.uid(&format!("{}-alarm@{cluster}", r.id)).timestamp(utc(changed_at));
        event.alarm(alarm.append_property(("TRIGGER", ALARM)).done());
    }
    event.done()
}

/// `2 GPUs on titan01 (ada)`.
fn summary(r: &FeedReservation) -> String {
    let (count, shown) = (r.shown.gpus.len(), &r.shown);
    let gpus = if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
    let node = shown.node.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
    format!("{gpus}{node} ({})", shown.owner)
}

fn description(r: &FeedReservation, url: &str) -> String {
    let shown = &r.shown;
    let with = Some(shown.with.join(", ")).filter(|with| !with.is_empty());
    let next = shown.next.as_ref().map(|next| {
        let when = match (next.starts_at, next.ends_at) {
            (Some(from), Some(until)) => format!(", {} to {}", minute(from), minute(until)),
            _ => String::new(),
        };
        format!("{}{when}", next.gpus_shown())
    });
    let lines = [
        ("Reservation", Some(r.id.to_string())),
        ("GPUs", Some(shown.gpus_shown())),
        ("User", Some(shown.owner.clone())),
        ("Shared with", with),
        ("Project", Some(shown.project.clone())),
        ("Note", shown.note.clone()),
        ("State", Some(shown.state.to_string())),
        ("Reason", shown.reason.clone()),
        ("Unconfirmed", shown.unconfirmed.clone()),
        ("Moves to", next),
        ("Series", shown.series_rule.clone()),
    ];
    let mut text = String::new();
    for (title, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{title}: {value}\n"));
        }
    }
    text + url
}

/// Without what would end a line or means nothing in a calendar. Newlines stay: the crate escapes them.
fn plain(text: &str) -> String {
    text.replace("\r\n", "\n").chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

fn minute(at: Time) -> String {
    utc(Timestamp(at.0)).format("%Y-%m-%d %H:%M UTC").to_string()
}

/// Whole seconds, in UTC: a program shows them in the zone of its user.
fn utc(at: Timestamp) -> DateTime<Utc> {
    i64::try_from(at.0).ok().and_then(DateTime::from_timestamp_millis).unwrap_or_default()
}

#[cfg(test)]
mod tests;
