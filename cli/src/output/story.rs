//! Shows what `why` tells.

use fleet_proto::json::story::Story;

use unicode_width::UnicodeWidthStr as _;

use super::text::harmless;
use super::{Column, Row};
use crate::times::Clock;

/// How far the further lines of the summary are moved to the right.
const SUMMARY_INDENT: usize = 2;
/// Where there is less room, the terminal breaks the lines by itself.
const TEXT_COLUMNS_MIN: usize = 20;

/// As a person reads it. On a terminal of `columns`, a line that is too long continues below its text.
pub(crate) fn told(story: &Story, clock: &Clock, columns: Option<usize>) -> String {
    let mut text = String::new();
    let mut line = |lead: &str, said: &str| text.push_str(&wrapped(lead, said, columns));
    line("", &format!("{}: {}", harmless(&story.id), harmless(&story.summary)));
    if let Some(start) = story.expected_start {
        line("  ", &format!("expected start: {}", clock.day_and_minute(start.0)));
    }
    for detail in &story.details {
        line("  ", &harmless(detail));
    }
    if !story.story.is_empty() {
        line("", "");
    }
    if let Some(until) = story.pruned_until {
        let until = clock.second(until.0);
        let said = format!(
            "(audit records up to {until} were pruned; what happened before is in an admin's exports only)"
        );
        line("  ", &said);
    }
    if story.older_lines > 0 {
        let older = story.older_lines;
        let said = format!(
            "({older} older lines, or more, are in the audit log: an admin's `fleet audit export`)"
        );
        line("  ", &said);
    }
    let mut day = String::new();
    for event in &story.story {
        let at = event.at.map_or_else(|| "-".to_owned(), |at| clock.second(at.0));
        // The day is said once.
        let (date, time) = at.split_once(' ').unwrap_or(("", &at));
        if date != day {
            day = date.to_owned();
            line("", date);
        }
        let actor = event.actor.as_ref().map(|actor| format!(" ({actor})")).unwrap_or_default();
        line(&format!("  {time}  "), &format!("{}{}", harmless(&event.text), harmless(&actor)));
    }
    text
}

/// `said` behind `lead`, broken at spaces; what follows the first line stands below the beginning of `said`.
fn wrapped(lead: &str, said: &str, columns: Option<usize>) -> String {
    let indent = if lead.is_empty() { SUMMARY_INDENT } else { lead.width() };
    let available = columns.map(|columns| columns.saturating_sub(indent));
    let Some(available) = available.filter(|available| *available >= TEXT_COLUMNS_MIN) else {
        return format!("{lead}{said}\n");
    };
    let (mut text, mut used) = (lead.to_owned(), 0);
    for word in said.split(' ') {
        let width = word.width();
        if used > 0 && used + 1 + width > available {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += width;
    }
    text.push('\n');
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

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn a_long_line_continues_below_its_text() {
        let said = "queued again, will continue from /data/iris/ck";
        assert_eq!(
            wrapped("  05:13  ", said, Some(40)),
            "  05:13  queued again, will continue\n         from /data/iris/ck\n"
        );
        assert_eq!(
            wrapped("", "job-a: runs on titan01 now", Some(24)),
            "job-a: runs on titan01\n  now\n"
        );
        for columns in [None, Some(10), Some(200)] {
            assert_eq!(wrapped("  ", said, columns), format!("  {said}\n"));
        }
        // A word that is longer than the line stays whole, so that it can be copied.
        let path = "/data/iris/checkpoints/step-00000050.ckpt";
        assert_eq!(wrapped("  ", path, Some(30)), format!("  {path}\n"));
    }
}
