//! Digests as text.

/// The same text, if it is a SHA-256 digest in hex as images write it: 64 digits, in lower case.
pub(crate) fn hex_digest(text: &str) -> Option<String> {
    let right =
        text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    right.then(|| text.to_owned())
}
