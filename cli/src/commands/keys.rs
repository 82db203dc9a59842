//! Keys of the refreshing views: quit, scroll, sort. Pure.

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
    Sort,
}

/// What each sequence of bytes asks for, the longer ones first: an arrow begins with an escape of its own.
const KEYS: [(&[u8], Key); 20] = [
    (b"\x1b[5~", Key::PageUp),
    (b"\x1b[6~", Key::PageDown),
    (b"\x1b[1~", Key::Top),
    (b"\x1b[4~", Key::Bottom),
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"\x1b[H", Key::Top),
    (b"\x1b[F", Key::Bottom),
    (b"q", Key::Quit),
    (b"Q", Key::Quit),
    (b"k", Key::Up),
    (b"j", Key::Down),
    (b"b", Key::PageUp),
    (b" ", Key::PageDown),
    (b"g", Key::Top),
    (b"G", Key::Bottom),
    (b"s", Key::Sort),
    (b"\x03", Key::Quit),
];

/// The keys in what was typed; what means nothing is ignored. A sequence that a read cuts in two is lost, which costs
/// one key.
pub(super) fn keys(mut typed: &[u8]) -> Vec<Key> {
    let mut found = Vec::new();
    while let Some((_, rest)) = typed.split_first() {
        match KEYS.iter().find(|(bytes, _)| typed.starts_with(bytes)) {
            Some((bytes, key)) => {
                found.push(*key);
                typed = &typed[bytes.len()..];
            }
            None if typed.starts_with(b"\x1b[") || typed.starts_with(b"\x1bO") => {
                // Another key: all of its sequence, up to the letter that ends it.
                let end = typed[2..].iter().position(|byte| (0x40..=0x7e).contains(byte));
                typed = end.map_or(&[][..], |end| &typed[end + 3..]);
            }
            None => typed = rest,
        }
    }
    found
}

/// The first line that is shown, of `lines` in a window of `rows`, after a key.
pub(super) fn scrolled(first: usize, key: Key, lines: usize, rows: usize) -> usize {
    let last = lines.saturating_sub(rows);
    let page = rows.saturating_sub(1).max(1);
    let wanted = match key {
        Key::Up => first.saturating_sub(1),
        Key::Down => first.saturating_add(1),
        Key::PageUp => first.saturating_sub(page),
        Key::PageDown => first.saturating_add(page),
        Key::Top => 0,
        Key::Bottom => last,
        Key::Quit | Key::Sort => first,
    };
    wanted.min(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_what_is_typed() {
        assert_eq!(keys(b"jjq"), [Key::Down, Key::Down, Key::Quit]);
        assert_eq!(keys(b"\x1b[A\x1b[6~x\x1bOB"), [Key::Up, Key::PageDown, Key::Down]);
        assert_eq!(keys(b"\x1b[99;99H?\x1bOQ\x1b[15~\x1b["), [], "what is no key is ignored");
    }

    #[test]
    fn a_view_scrolls_within_its_lines() {
        assert_eq!(scrolled(0, Key::Up, 50, 20), 0);
        assert_eq!(scrolled(0, Key::PageDown, 50, 20), 19);
        assert_eq!(scrolled(29, Key::PageDown, 50, 20), 30);
        assert_eq!(scrolled(30, Key::Down, 50, 20), 30);
        assert_eq!(scrolled(30, Key::Top, 50, 20), 0);
        assert_eq!(scrolled(7, Key::Down, 5, 20), 0, "all of it is shown");
    }
}
