//! Text on a terminal: as wide as there is room, colour only where it is wanted.

use std::io::{self, IsTerminal, Write};

use nix::sys::stat::{SFlag, fstat};
use terminal_size::Width;
use unicode_width::UnicodeWidthStr;

use crate::errors::Failure;
pub(crate) use crate::text::{harmless, say};

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

/// Whether the terminal shows more than ASCII, as the locale says.
pub(crate) fn is_utf8() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
    let locale = locale.to_lowercase();
    locale.ends_with("utf-8") || locale.ends_with("utf8")
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
