//! What a job printed, as text for a page: the last lines, without what would move a cursor, colour a screen or reorder
//! letters. Who writes the HTML still escapes it.

use fleet_core::name::{is_plain_note, is_plain_text};

/// Lines that are shown.
pub(super) const LINES_MAX: u32 = 200;
/// Bytes that are kept of what came, and at most shown.
const BYTES_MAX: usize = 64 * 1024;

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';

/// The end of what was printed.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let too_many = self.bytes.len().saturating_sub(BYTES_MAX);
        self.is_cut |= too_many > 0;
        self.bytes.drain(..too_many);
    }

    /// The last lines, and whether there were others before them.
    pub(super) fn text(&self) -> (String, bool) {
        let whole = String::from_utf8_lossy(&self.bytes);
        let lines_max = usize::try_from(LINES_MAX).unwrap_or(usize::MAX);
        let (mut shown, mut bytes, mut is_cut) = (Vec::new(), 0, self.is_cut);
        for line in whole.lines().rev() {
            let line = plain(line);
            let room = BYTES_MAX - bytes;
            if shown.len() == lines_max || room == 0 {
                is_cut = true;
                break;
            }
            // Of a line that is too long by itself the end is shown.
            let from = line.ceil_char_boundary((line.len() + 1).saturating_sub(room));
            is_cut |= from > 0;
            bytes += line.len() - from + 1;
            shown.push(line.get(from..).unwrap_or_default().to_owned());
            if from > 0 {
                break;
            }
        }
        shown.reverse();
        let mut text = shown.join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        (text, is_cut)
    }
}

/// A line as a terminal would leave it: what was written over is gone, and so are colours. All else that is no letter is
/// shown as an escape.
fn plain(line: &str) -> String {
    if is_plain_note(line) {
        return line.to_owned();
    }
    let seen = without_sequences(line);
    let last = seen.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default();
    let mut shown = String::with_capacity(last.len());
    for c in last.chars() {
        if c == '\t' || is_plain_text(c.encode_utf8(&mut [0; 4])) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// Without the sequences that steer a terminal (ECMA-48). One that has no end ends with the line.
fn without_sequences(line: &str) -> String {
    let mut seen = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c != ESCAPE {
            seen.push(c);
            continue;
        }
        match rest.next_if(|next| (' '..='~').contains(next)) {
            // A control sequence: parameters, then one letter.
            Some('[') => {
                while rest.next_if(|next| (' '..='?').contains(next)).is_some() {}
                rest.next_if(|next| ('@'..='~').contains(next));
            }
            // A text for the terminal, such as its title.
            Some(']' | 'P' | 'X' | '^' | '_') => {
                while let Some(next) = rest.next() {
                    let ends = next == ESCAPE && rest.next_if_eq(&'\\').is_some();
                    if ends || next == BELL {
                        break;
                    }
                }
            }
            // A character set: one more letter.
            Some(' '..='/') => {
                while rest.next_if(|next| (' '..='/').contains(next)).is_some() {}
                rest.next_if(|next| ('0'..='~').contains(next));
            }
            Some(_) | None => {}
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn text(printed: &[u8]) -> (String, bool) {
        let mut tail = Tail::default();
        for part in printed.chunks(7) {
            tail.push(part);
        }
        tail.text()
    }

    #[test]
    fn a_line_is_what_a_terminal_would_leave_of_it() {
        let table = [
            ("plain <script>", "plain <script>"),
            ("\u{1b}[1;31mred\u{1b}[0m and \u{1b}(Bplain", "red and plain"),
            (" 10%\r 50%\r100%", "100%"),
            ("dos\r", "dos"),
            ("\u{1b}]0;a title\u{7}seen", "seen"),
            ("\u{1b}]8;;https://evil\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("before\u{1b}]0;no end", "before"),
            ("\u{1b}[2J\u{1b}[Hclean", "clean"),
            ("cut\u{1b}[", "cut"),
            ("cut\u{1b}", "cut"),
            ("a\tb", "a\tb"),
            ("bell\u{7} and back\u{8}", "bell\\u{7} and back\\u{8}"),
            ("nul\0", "nul\\u{0}"),
            ("abc\u{202e}txt.exe", "abc\\u{202e}txt.exe"),
            ("\u{9b}31mc1", "\\u{9b}31mc1"),
            ("naïve 日本", "naïve 日本"),
            ("\u{1b}日本", "日本"),
        ];
        for (printed, shown) in table {
            assert_eq!(plain(printed), shown, "{printed:?}");
        }
    }

    #[test]
    fn the_last_lines_are_shown_and_what_was_before_is_said() {
        assert_eq!(text(b""), (String::new(), false));
        assert_eq!(text(b"one\ntwo"), ("one\ntwo\n".to_owned(), false));
        let all: String = (1..=LINES_MAX).map(|at| format!("{at}\n")).collect();
        assert_eq!(text(all.as_bytes()), (all.clone(), false));
        let (shown, is_cut) = text(format!("0\n{all}").as_bytes());
        assert!(is_cut && shown == all);
    }

    #[test]
    fn no_output_is_too_large() {
        let long = "x".repeat(BYTES_MAX - 1);
        let (shown, is_cut) = text(long.as_bytes());
        assert!(!is_cut && shown.len() == BYTES_MAX);
        // Each of these takes more bytes when it is shown.
        let one_line = vec![1_u8; BYTES_MAX / 2];
        let too_many = vec![1_u8; 3 * BYTES_MAX];
        for printed in [one_line, too_many, b"\x01\x02\n".repeat(BYTES_MAX)] {
            let (shown, is_cut) = text(&printed);
            assert!(is_cut && shown.len() <= BYTES_MAX, "{}", shown.len());
        }
        // Half a letter at the cut.
        let (shown, is_cut) = text("ä".repeat(BYTES_MAX).as_bytes());
        assert!(is_cut && shown.len() <= BYTES_MAX);
    }
}
