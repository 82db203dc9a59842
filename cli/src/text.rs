//! Makes text from outside harmless on a terminal, and says sentences on standard error.
//!
//! Below all else in this program, so that errors and questions can use it as results do.

use std::io::{self, Write as _};

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
