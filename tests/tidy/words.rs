//! Words that people stumble over, in what they read: pages, help, messages, comments. The plain word is in the message.
//!
//! Called by the tests of `main.rs`. A word between backquotes or quotation marks is quoted, and allowed. A phrase is
//! found too where a line ends within it.

use crate::{Violation, code, tree::SourceFile};

/// What is refused, in small letters, and what to write instead.
const REFUSED: &[(&str, &str)] = &[
    ("anew", "again, restart, reboot"),
    ("let go of", "release"),
    ("lets go of", "releases"),
    ("letting go of", "releasing"),
    ("go on", "continue, keep running"),
    ("goes on", "continues, keeps running"),
    ("gone on", "continued"),
    ("went on", "continued"),
    ("is told", "say who warns, shows or mails what"),
    ("are told", "say who warns, shows or mails what"),
    ("be told", "say who warns, shows or mails what"),
    ("was told", "say who warned, showed or mailed what"),
    ("were told", "say who warned, showed or mailed what"),
    ("whom", "a user that …, which users"),
    ("whoever", "a user who …, anyone who …"),
    ("whosoever", "anyone who …"),
    ("who has none", "a user without …"),
    ("in vain", "without result"),
    ("no use of", "does not count as"),
    ("be had", "is available"),
    ("so long", "this long"),
    ("thereof", "the noun"),
    ("therein", "the noun"),
    ("hereby", "the noun"),
    ("stood there", "the program printed …"),
    ("lies", "is, exists, is stored in"),
    ("this very", "this exact"),
    ("that very", "that exact"),
    ("the very", "the exact"),
    ("see to", "check, manage"),
    ("sees to", "checks, manages"),
    ("comes along", "is copied"),
    ("passed over", "ignored"),
    ("has to do with", "concerns"),
    ("given back", "released"),
    ("looked at", "checked"),
];

/// Where an old word is data that was stored, which must not change.
const STORED: &[&str] = &["core/src/fsm/tests/golden.rs", "core/src/fsm/tests/nodes.rs"];

/// The refused words of a page or a printed text.
pub(crate) fn in_page(file: &SourceFile) -> Vec<Violation> {
    let lines = file.text.lines().map(|line| without_quoted(line, &['`', '"']));
    found(&file.path, lines)
}

/// The endings of other files that people read: programs, units, settings, what a package does when it is installed.
pub(crate) const OTHER_FILES: &[&str] = &[
    ".conf",
    ".pl",
    ".postinst",
    ".postrm",
    ".prerm",
    ".proto",
    ".py",
    ".service",
    ".sh",
    ".slice",
    ".toml",
    "/.ci/run",
    "/debian/control",
    "/debian/rules",
    "Makefile",
];

/// The refused words of a file that is neither a page nor Rust. In a comment a quotation mark quotes; elsewhere it holds
/// a text that is printed.
pub(crate) fn in_other(file: &SourceFile) -> Vec<Violation> {
    let lines = file.text.lines().map(|line| {
        let comment = ["#", "//"].iter().any(|mark| line.trim_start().starts_with(mark));
        without_quoted(line, if comment { &['`', '"'] } else { &['`'] })
    });
    found(&file.path, lines)
}

/// The refused words in the strings and the comments of a Rust file.
pub(crate) fn in_messages(path: &str, text: &str) -> Vec<Violation> {
    if path.starts_with("tests/tidy/") || STORED.contains(&path) {
        return Vec::new();
    }
    let code = code::only_code(text);
    let lines = text.lines().zip(code.lines()).map(|(line, code)| {
        let told: String = line
            .chars()
            .zip(code.chars())
            .map(|(c, kept)| if c == kept { ' ' } else { c })
            .collect();
        // A comment; an address within a string has no space before its slashes.
        let told = match ["// ", "///", "//!"].iter().filter_map(|mark| told.find(mark)).min() {
            Some(at) if told[..at].trim().is_empty() => &told[at..],
            Some(at) if told[..at].ends_with(' ') => &told[..at],
            _ => &told,
        };
        // In a comment a quotation mark quotes; in a string only one behind a backslash does.
        let inner = told.replace("\\\"", "\u{1}");
        match told.starts_with("//") {
            true => without_quoted(told, &['`', '"']),
            false => without_quoted(&inner, &['`', '\u{1}']),
        }
    });
    found(path, lines)
}

/// The line without what is quoted; a mark without its partner quotes nothing.
fn without_quoted(line: &str, marks: &[char]) -> String {
    let mut left = line.to_owned();
    for mark in marks {
        let parts: Vec<&str> = left.split(*mark).collect();
        let open = parts.len().is_multiple_of(2);
        let last = parts.len() - 1;
        let kept = parts
            .iter()
            .enumerate()
            .filter(|(at, _)| at.is_multiple_of(2) || (open && *at == last));
        left = kept.map(|(_, part)| *part).collect::<Vec<_>>().join("…");
    }
    left
}

fn found(path: &str, lines: impl Iterator<Item = String>) -> Vec<Violation> {
    let lines: Vec<String> = lines.map(|line| line.to_lowercase()).collect();
    let mut violations = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let (end, next) = around_break(line, lines.get(at + 1).map_or("", String::as_str));
        let refused = |word: &str| has_word(line, word) || is_broken(end, next, word);
        for (word, plain) in REFUSED.iter().filter(|(word, _)| refused(word)) {
            let what = format!("\"{word}\" is not everyday English: {plain}. Rewrite the sentence");
            violations.push(Violation::new(path, at + 1, what));
        }
    }
    violations
}

/// A line and the next one, without what stands between their words: a backslash, the marks of a comment, of a quotation
/// and of a list.
fn around_break<'a>(line: &'a str, next: &'a str) -> (&'a str, &'a str) {
    let end = line.trim_end().trim_end_matches('\\').trim_end();
    let next = next.trim_start().trim_start_matches(['/', '!', '#', '>', '*']).trim_start();
    (end, next)
}

/// Whether the phrase begins at the end of one line and ends in the next.
fn is_broken(end: &str, next: &str, phrase: &str) -> bool {
    phrase.match_indices(' ').any(|(at, _)| {
        let before = end.strip_suffix(&phrase[..at]);
        let after = next.strip_prefix(&phrase[at + 1..]);
        before.is_some_and(|before| !before.ends_with(is_part))
            && after.is_some_and(|after| !after.starts_with(is_part))
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

/// Not the names of files, options and variables.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || ['_', '-', '{'].contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_word_is_found_unless_it_is_quoted() {
        let page = |text: &str| {
            in_page(&SourceFile { path: "docs/a.md".to_owned(), text: text.to_owned() })
        };
        let found = page("fine\nThe job Goes on.\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].what.contains("continues"), "{}", found[0].what);
        for fine in
            ["It said \"it goes on\".", "`anew`", "the lieslie file", "a renewed go ontology"]
        {
            assert_eq!(page(fine), [], "{fine}");
        }
        assert_eq!(page("it's 5\" long, and goes on").len(), 1, "a single mark quotes nothing");
    }

    #[test]
    fn a_phrase_is_found_where_a_line_ends_within_it() {
        let page = |text: &str| {
            in_page(&SourceFile { path: "docs/a.md".to_owned(), text: text.to_owned() })
        };
        let found = page("fine\nthe job goes\n  on, and ends\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 2);
        assert_eq!(page("> it has to\n> do with this").len(), 1);
        assert_eq!(page("where it goes\n\non Monday"), []);
        assert_eq!(page("where it goes\nonly then"), []);
        let messages = |text: &str| in_messages("agent/src/a.rs", text).len();
        assert_eq!(messages("/// The job goes\n/// on.\nfn a() {}"), 1);
        assert_eq!(messages("say(\"the job goes \\\n     on\");"), 1);
        assert_eq!(messages("let words = [\"goes\",\n    \"on\"];"), 0);
    }

    #[test]
    fn scripts_and_settings_are_read() {
        let other = |text: &str| {
            let path = "packaging/a.sh".to_owned();
            in_other(&SourceFile { path, text: text.to_owned() }).len()
        };
        assert_eq!(other("# The folder is made anew."), 1);
        assert_eq!(other("echo \"the job goes on\""), 1);
        assert_eq!(other("# nobody has to be\n# told"), 1);
        assert_eq!(other("# It printed \"goes on\", and `whom`."), 0);
    }

    #[test]
    fn messages_are_read_and_code_is_not() {
        let messages = |text: &str| in_messages("agent/src/a.rs", text).len();
        assert_eq!(messages("say(\"the job goes on\");"), 1);
        assert_eq!(messages("let anew = 1;"), 0);
        assert_eq!(messages("let a = 1; // it goes on"), 1);
        assert_eq!(messages("/// It goes on.\nfn whom() {}"), 1);
        assert_eq!(messages("say(\"it printed \\\"goes on\\\" and `whom`\");"), 0);
        assert_eq!(messages("/// It said \"it goes on\"."), 0);
        assert_eq!(messages("say(\"https://a.b goes on\");"), 1);
    }
}
