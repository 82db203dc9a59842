//! The last lines of the log, kept in memory for a debug bundle.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of lines that are kept.
const BYTES_MAX: usize = 256 << 10;
/// Longest line; what is longer is cut.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Handle on the lines. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Recent {
    /// Adds one line, with its end.
    pub(crate) fn push(&self, line: &[u8]) {
        let line: Box<[u8]> = if line.len() > LINE_BYTES_MAX {
            [&line[..LINE_BYTES_MAX], b" [cut]\n"].concat().into()
        } else {
            line.into()
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += line.len();
        kept.lines.push_back(line);
        while kept.bytes > BYTES_MAX
            && let Some(oldest) = kept.lines.pop_front()
        {
            kept.bytes -= oldest.len();
        }
    }

    /// All lines, oldest first.
    pub(crate) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.lines.iter().flat_map(|line| line.iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_lines_make_room_and_long_ones_are_cut() {
        let recent = Recent::default();
        for n in 0..100_000 {
            recent.push(format!("line {n}\n").as_bytes());
        }
        let text = recent.text();
        assert!(text.len() <= BYTES_MAX && text.ends_with("line 99999\n"));
        assert!(text.lines().next().is_some_and(|first| first.starts_with("line ")));
        recent.push(&[b'x'; 1 << 20]);
        assert!(recent.text().ends_with("x [cut]\n"));
        assert!(recent.text().len() <= BYTES_MAX);
    }
}
