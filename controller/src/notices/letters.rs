//! Puts what one person hears into one mail: subject, text, the command that shows more, and how to stop it. Pure.

use std::collections::BTreeSet;

use fleet_core::Timestamp;
use fleet_core::name::UserName;
use fleet_core::notice::NoticeKind;
use fleet_core::time::Window;
use jiff::tz::TimeZone;
use sha2::{Digest as _, Sha256};

use super::events::Notice;
use crate::mail::Letter;

/// Things that one mail names; more are counted.
const NAMED_MAX: usize = 50;
/// Longest line of what people typed.
const SENTENCE_CHARS_MAX: usize = 500;

/// What mails say of this site.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// Of the fleet, for the ids of mails.
    pub(super) cluster: String,
    pub(super) zone: TimeZone,
    pub(super) page: Option<String>,
}

/// One mail of all these, the oldest first; there must be one at least. `left_out`: notices that are not among them.
pub(super) fn letter(
    user: &UserName,
    address: &str,
    notices: &[Notice],
    left_out: usize,
    now: Timestamp,
    site: &Site,
) -> Letter {
    let count = notices.len() + left_out;
    let first = notices.first().map(|notice| sentence(notice, site)).unwrap_or_default();
    let subject = match count {
        1 => first,
        count => format!("{count} things happened: {first}"),
    };
    let mut lines = vec![format!("Hello {user},"), String::new()];
    for notice in notices.iter().take(NAMED_MAX) {
        lines.push(format!("{}  {}", site.minute(notice.at), sentence(notice, site)));
    }
    let unnamed = left_out + notices.len().saturating_sub(NAMED_MAX);
    if unnamed > 0 {
        lines.push(format!("{unnamed} more are not listed here."));
    }
    lines.push(String::new());
    lines.push("More:".to_owned());
    lines.extend(commands(notices).into_iter().map(|command| format!("  {command}")));
    if let Some(page) = &site.page {
        lines.push(String::new());
        lines.push(page.clone());
    }
    lines.push(String::new());
    // The line by which mail programs know what is below the text.
    lines.push("-- ".to_owned());
    let kinds: BTreeSet<NoticeKind> = notices.iter().map(|notice| notice.kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    lines.push(format!("To stop these mails: fleet notify set --off {}", kinds.join(",")));
    Letter {
        to: address.to_owned(),
        subject: format!("[fleet] {subject}"),
        body: lines.join("\n") + "\n",
        at: now,
        id: format!("{}-{user}@{}", content_id(notices), site.cluster),
    }
}

/// The same for the same notices, also from another leader, and another one for others: mail programs show mails of one id once.
fn content_id(notices: &[Notice]) -> String {
    let mut hash = Sha256::new();
    for notice in notices {
        hash.update(notice.seq.to_be_bytes());
        for text in [&notice.about, &notice.sentence] {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        }
    }
    let index = |notice: Option<&Notice>| notice.map_or(0, |notice| notice.log_index);
    let (from, to) = (index(notices.first()), index(notices.last()));
    format!("{from}.{to}.{}", hex::encode(&hash.finalize()[..8]))
}

/// The mail of `fleet notify test`.
pub(super) fn test_letter(
    user: &UserName,
    address: &str,
    asked_by: &UserName,
    now: Timestamp,
    site: &Site,
) -> Letter {
    let mut lines = vec![
        format!("Hello {user},"),
        String::new(),
        format!(
            "{asked_by} asked fleet for this mail. Mail from fleet reaches you at this address."
        ),
        String::new(),
    ];
    lines.extend(site.page.iter().flat_map(|page| [page.clone(), String::new()]));
    lines.extend(["-- ".to_owned(), "Your settings: fleet notify show".to_owned()]);
    Letter {
        to: address.to_owned(),
        subject: "[fleet] Test".to_owned(),
        body: lines.join("\n") + "\n",
        at: now,
        id: format!("test-{}-{user}@{}", now.0, site.cluster),
    }
}

/// With the times of a reservation, where they are new.
fn sentence(notice: &Notice, site: &Site) -> String {
    let mut text: String = notice.sentence.chars().take(SENTENCE_CHARS_MAX).collect();
    // A note may hold line breaks; each notice is one line.
    text = text.replace(['\n', '\r'], " ");
    if let Some(window) = notice.window {
        text = format!("{text} ({})", site.span(window));
    }
    match notice.offered_until {
        Some(until) => format!("{text}. Accept it before {}", site.minute(until)),
        None => text,
    }
}

/// What to type for more, each once.
fn commands(notices: &[Notice]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for notice in notices {
        let answers =
            ["accept", "decline"].map(|verb| format!("fleet reservation {verb} {}", notice.about));
        let answers = answers.into_iter().filter(|_| notice.offered_until.is_some());
        let more = match notice.about.as_str() {
            "" => "fleet status".to_owned(),
            about => format!("fleet why {about}"),
        };
        for command in answers.chain([more]) {
            if !commands.contains(&command) && commands.len() < NAMED_MAX {
                commands.push(command);
            }
        }
    }
    commands
}

impl Site {
    fn format(&self, at: Timestamp, format: &str) -> String {
        let ms = i64::try_from(at.0).ok();
        match ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
            Some(at) => at.to_zoned_datetime(self.zone.clone()).strftime(format).to_string(),
            None => format!("{} ms", at.0),
        }
    }

    /// `Mon 2026-11-30 09:00 CET`.
    fn minute(&self, at: Timestamp) -> String {
        self.format(at, "%a %Y-%m-%d %H:%M %Z")
    }

    /// `Mon 2026-11-30 09:00 to 17:00 CET`.
    fn span(&self, window: Window) -> String {
        let (from, until) = (window.starts_at, window.ends_at);
        let day = "%a %Y-%m-%d";
        let end = match self.format(from, day) == self.format(until, day) {
            true => "%H:%M %Z",
            false => "%a %Y-%m-%d %H:%M %Z",
        };
        // Where the clocks change in between, each has its own.
        let start = match self.format(from, "%Z") == self.format(until, "%Z") {
            true => "%a %Y-%m-%d %H:%M",
            false => "%a %Y-%m-%d %H:%M %Z",
        };
        format!("{} to {}", self.format(from, start), self.format(until, end))
    }
}
