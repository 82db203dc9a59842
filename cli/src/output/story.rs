//! Shows what `why` tells.

use fleet_proto::json::story::Story;

use super::text::harmless;
use super::{Column, Row};
use crate::times::Clock;

/// As it is read on a terminal.
pub(crate) fn told(story: &Story, clock: &Clock) -> String {
    let mut text = format!("{}: {}\n", harmless(&story.id), harmless(&story.summary));
    for detail in &story.details {
        text.push_str(&format!("  {}\n", harmless(detail)));
    }
    if !story.story.is_empty() {
        text.push('\n');
    }
    if story.older_lines > 0 {
        let older = story.older_lines;
        text.push_str(&format!(
            "  ({older} older lines, or more, are in the audit log: an admin's `fleet audit export`)\n"
        ));
    }
    let mut day = String::new();
    for line in &story.story {
        let at = line.at.map_or_else(|| "-".to_owned(), |at| clock.second(at.0));
        // The day is said once.
        let (date, time) = at.split_once(' ').unwrap_or(("", &at));
        if date != day {
            day = date.to_owned();
            text.push_str(&format!("{date}\n"));
        }
        let actor = line.actor.as_ref().map(|actor| format!(" ({actor})")).unwrap_or_default();
        text.push_str(&format!("  {time}  {}{}\n", harmless(&line.text), harmless(&actor)));
    }
    text
}

impl Row for Story {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("ID", |s: &Self, _| s.id.clone()),
            Column::new("SUMMARY", |s: &Self, _| s.summary.clone()),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        vec![("Id", self.id.clone()), ("Summary", self.summary.clone())]
    }
}
