//! Texts of cells as fleet keeps them: in one line, without hidden characters, joined where a word needs it.

use fleet_core::name::joins;

/// Characters before which `export` puts an apostrophe, so that no spreadsheet takes a note for a formula.
const FORMULAS: [char; 4] = ['=', '+', '-', '@'];

/// A note in one line: breaks become blanks, hidden characters go, and those that join an emoji or a Persian
/// word stay.
pub(super) fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix('\'').filter(|text| text.starts_with(FORMULAS)).unwrap_or(text);
    let characters: Vec<char> = text.chars().collect();
    let mut kept = String::with_capacity(text.len());
    for (at, c) in characters.iter().copied().enumerate() {
        let before = at.checked_sub(1).and_then(|at| characters.get(at)).copied();
        let shown = if matches!(c, '\u{200c}' | '\u{200d}') {
            joins(before, characters.get(at + 1).copied())
        } else {
            c.is_whitespace() || fleet_core::name::is_plain_text(c.encode_utf8(&mut [0; 4]))
        };
        if shown {
            kept.push(c);
        }
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The opposite of what [`in_one_line`] takes away at the start.
pub(super) fn no_formula(text: &str) -> String {
    if text.starts_with(FORMULAS) { format!("'{text}") } else { text.to_owned() }
}

/// A user as a sheet names one. Of a mail address the part before the @.
pub(super) fn user(text: &str) -> String {
    let text = in_one_line(text);
    match text.split_once('@') {
        Some((name, host)) if !name.is_empty() && host.contains('.') => name.to_owned(),
        _ => text,
    }
}
