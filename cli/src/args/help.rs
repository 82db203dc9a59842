//! The help of `fleet` itself: what people type every day, then all verbs in groups.
//!
//! clap shows it; `args` puts it together with the rest. Every verb that is shown is in exactly one group, which a test
//! holds. Lines are short enough for 60 columns, since clap breaks a line that is longer without its column.

use clap::{Command, Subcommand as _};

use super::Verb;

/// clap's own, but for its list of verbs.
pub(crate) const TEMPLATE: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\nOptions:\n{options}{after-help}";

/// The columns of the longest verb.
const VERB_COLUMNS: usize = 13;
/// The columns of the longest line of every day.
const LINE_COLUMNS: usize = 26;

/// What a person types every day, and what it does.
const DAILY: [(&str, &str); 5] = [
    ("fleet status", "Which GPUs are free"),
    ("fleet reserve -G 1 -t 8h", "Reserve a GPU for 8 hours"),
    ("fleet run -G 1 -- CMD", "Run CMD as a job with a GPU"),
    ("fleet logs -f @last", "Follow your newest job's output"),
    ("fleet why @last", "What happened to it, and why"),
];

/// All verbs that are shown.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Reservations", &["reserve", "extend", "release", "ssh", "docker", "held", "reservation"]),
    (
        "Jobs",
        &["run", "ps", "logs", "attach", "exec", "cp", "cancel", "job", "checkpoint", "image"],
    ),
    (
        "See what happens",
        &["status", "calendar", "share", "usage", "web", "notify", "top", "why", "doctor"],
    ),
    ("Run the fleet", &["node", "gpu", "user", "project", "class", "controller", "audit"]),
    ("This machine", &["login", "dev", "completion"]),
];

/// The daily lines and the groups, as text.
pub(crate) fn overview() -> String {
    let all = Verb::augment_subcommands(Command::new("fleet"));
    let mut text = "Every day:\n".to_owned();
    for (line, does) in DAILY {
        text.push_str(&format!("  {line:LINE_COLUMNS$}{does}\n"));
    }
    for (title, verbs) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for verb in verbs {
            let about = all.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {verb:VERB_COLUMNS$}{about}\n"));
        }
    }
    text.push_str("\nfleet help VERB explains a verb, with examples.");
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::Cli;

    /// A verb and its description stay on one line of this width.
    const COLUMNS: usize = 60;

    #[test]
    fn every_verb_is_in_one_group_and_fits_a_line() {
        let cli = Cli::command();
        let shown = cli.get_subcommands().filter(|verb| !verb.is_hide_set());
        for verb in shown {
            let groups = GROUPS.iter().filter(|(_, verbs)| verbs.contains(&verb.get_name()));
            assert_eq!(groups.count(), 1, "put `{}` into one group", verb.get_name());
            let about = verb.get_about().unwrap().to_string();
            let columns = 2 + VERB_COLUMNS + about.chars().count();
            assert!(columns <= COLUMNS, "`{}` takes {columns} columns: {about}", verb.get_name());
        }
        for verb in GROUPS.iter().flat_map(|(_, verbs)| *verbs) {
            assert!(cli.find_subcommand(verb).is_some_and(|verb| !verb.is_hide_set()), "{verb}");
        }
    }

    #[test]
    fn what_is_typed_every_day_can_be_typed() {
        for (line, does) in DAILY {
            assert!(
                line.len() < LINE_COLUMNS && 2 + LINE_COLUMNS + does.len() <= COLUMNS,
                "{line}"
            );
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
