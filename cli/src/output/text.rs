//! Text on a terminal: names from outside made harmless, colour only where it is wanted.

use std::io::{self, IsTerminal, Write};

use nix::sys::stat::{SFlag, fstat};
use terminal_size::Width;
use unicode_width::UnicodeWidthStr;

use crate::errors::Failure;

/// Shows control characters and characters that reorder text as escapes, so that no name can move
/// the cursor, recolour the screen or pose as another name.
pub(crate) fn harmless(text: &str) -> String {
    if fleet_core::name::is_plain_note(text) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if fleet_core::name::is_plain_text(c.encode_utf8(&mut [0; 4])) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// Whether standard output may be coloured.
pub(crate) fn colour_wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal()
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The columns that a table may take: those of the terminal, else what a program says in `COLUMNS` that shows a pipe on
/// one, as `watch` does. Nothing where the output is for a file, or nobody says so.
pub(crate) fn columns() -> Option<usize> {
    if let Some((Width(columns), _)) = terminal_size::terminal_size_of(io::stdout()) {
        return Some(usize::from(columns));
    }
    let mode = SFlag::from_bits_truncate(fstat(io::stdout()).ok()?.st_mode);
    if !mode.contains(SFlag::S_IFIFO) {
        return None;
    }
    let said = std::env::var("COLUMNS").ok()?;
    said.parse().ok().filter(|columns| *columns > 0)
}

/// The text in at most so many cells of the terminal, with `…` where something is missing.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        shown.push(c);
        // One cell is for the dots. Some characters change the width of the one before.
        if shown.width() >= width {
            shown.pop();
            break;
        }
    }
    shown.push('…');
    shown
}

/// Writes a result to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Says a sentence on standard error: all that is not the result.
pub(crate) fn say(text: &str) {
    // Without a standard error there is nobody to tell.
    drop(writeln!(io::stderr(), "{}", harmless(text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_play_tricks_on_a_terminal() {
        assert_eq!(harmless("Größe 3 × 4, 日本"), "Größe 3 × 4, 日本");
        assert_eq!(harmless("a\x1b[2Jb\nc\td"), "a\\u{1b}[2Jb\\nc\\td");
        assert_eq!(harmless("x\u{202e}y\u{200b}\u{9b}z"), "x\\u{202e}y\\u{200b}\\u{9b}z");
    }
}
