//! Names that people choose or machines report: nodes, users, projects, GPUs, free text.
//!
//! Each has one grammar, checked when it enters, so that no later part has to fear control
//! characters, terminal escapes, path separators or look-alikes in them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest free text (a note, a reason), in bytes.
pub const TEXT_BYTES_MAX: usize = 512;
/// Longest display name of a job, in bytes.
pub const JOB_NAME_BYTES_MAX: usize = 64;

/// Why a text is not a legal name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a legal {kind}: {rule}")]
pub struct NameError {
    pub kind: &'static str,
    pub rule: &'static str,
    pub text: String,
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $legal:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps a name.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                let legal: fn(&str) -> bool = $legal;
                if legal(text) {
                    return Ok(Self(text.to_owned()));
                }
                let text = text.chars().take(80).collect();
                Err(NameError { kind: $kind, rule: $rule, text })
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

fn all(text: &str, max: usize, first: fn(u8) -> bool, rest: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match bytes.split_first() {
        Some((head, tail)) => bytes.len() <= max && first(*head) && tail.iter().all(|b| rest(*b)),
        None => false,
    }
}

fn lower_or_digit(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

checked_name!(
    /// A node's name, as people say it: `titan01`.
    NodeName, "node name", "1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
    |text| all(text, 63, lower_or_digit, |b| lower_or_digit(b) || matches!(b, b'.' | b'_' | b'-'))
);
checked_name!(
    /// An account name, resolved through NSS on the node.
    UserName, "user name", "1 to 32 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with a letter or '_'",
    |text| all(
        text,
        32,
        |b| b.is_ascii_alphabetic() || b == b'_',
        |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')
    )
);
checked_name!(
    /// A Unix group, as a name service knows it, or `*`.
    GroupName, "group name", "1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', '@', '+', '\\' and spaces, beginning with a letter, a digit or '_'; or *",
    |text| text == "*" || all(
        text,
        64,
        |b| b.is_ascii_alphanumeric() || b == b'_',
        |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b'+' | b'\\' | b' ')
    )
);
checked_name!(
    /// The project that owns an object; `default` unless told otherwise.
    ProjectName, "project name", "1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
    |text| all(text, 63, lower_or_digit, |b| lower_or_digit(b) || matches!(b, b'.' | b'_' | b'-'))
);
checked_name!(
    /// A class of jobs; `normal` unless told otherwise.
    ClassName, "class name", "1 to 32 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
    |text| all(text, 32, lower_or_digit, |b| lower_or_digit(b) || matches!(b, b'.' | b'_' | b'-'))
);
checked_name!(
    /// A GPU's UUID as NVML prints it: `GPU-` and hexadecimal groups.
    GpuUuid, "GPU UUID", "\"GPU-\" and up to 60 of 0-9, a-f and '-'",
    |text| text.strip_prefix("GPU-").is_some_and(|rest| all(
        rest,
        60,
        |b| b.is_ascii_hexdigit(),
        |b| b.is_ascii_hexdigit() || b == b'-'
    ))
);

impl ProjectName {
    /// The project of everything that names none.
    pub fn default_project() -> Self {
        Self("default".to_owned())
    }
}

impl ClassName {
    /// The class of every job that names none.
    pub fn normal() -> Self {
        Self("normal".to_owned())
    }
}

/// Whether a free text may be stored and shown: no control characters, no line separators, no
/// bidirectional overrides (they make a terminal show something else than what is stored).
pub fn is_plain_text(text: &str) -> bool {
    text.chars().all(|c| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    })
}

/// Whether a note holds nothing hidden. Unlike a name it may hold the two characters that join and part letters, where
/// a word or an emoji needs them: ZERO WIDTH NON-JOINER in Persian, ZERO WIDTH JOINER in a family of emoji.
pub fn is_plain_note(text: &str) -> bool {
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let plain = match c {
            NON_JOINER | JOINER => joins(before, rest.peek().copied()),
            _ => is_plain_text(c.encode_utf8(&mut [0; 4])),
        };
        if !plain {
            return false;
        }
        before = Some(c);
    }
    true
}

/// Whether a note holds one of the characters that join letters.
pub fn has_joiner(text: &str) -> bool {
    text.contains([NON_JOINER, JOINER])
}

const NON_JOINER: char = '\u{200c}';
const JOINER: char = '\u{200d}';

/// Whether a character that joins letters does something between these two. Between Latin, Greek or Cyrillic letters it
/// is only a way to make two texts look the same.
pub fn joins(before: Option<char>, after: Option<char>) -> bool {
    let joined = |c: char| c >= '\u{590}' && is_plain_text(c.encode_utf8(&mut [0; 4]));
    before.is_some_and(joined) && after.is_some_and(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_no_surprise() {
        assert!(NodeName::parse("titan01").is_ok());
        assert!(UserName::parse("Ada.Lovelace").is_ok());
        assert!(GpuUuid::parse("GPU-4cf1a0b2-1111-2222-3333-444455556666").is_ok());
        for bad in ["", "-a", "a b", "a/b", "a\n", "тitan", "a\u{202e}b", &"a".repeat(64)] {
            assert!(NodeName::parse(bad).is_err(), "{bad:?}");
            assert!(UserName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(GpuUuid::parse("GPU-").is_err());
        assert!(GpuUuid::parse("gpu-12").is_err());
    }

    #[test]
    fn notes_may_hold_what_joins_an_emoji_or_a_persian_word() {
        for good in ["می\u{200c}خواهم", "👩\u{200d}🔬 runs", "❤\u{fe0f}\u{200d}🔥"] {
            assert!(is_plain_note(good) && has_joiner(good), "{good:?}");
            assert!(!is_plain_text(good), "{good:?}");
        }
        for bad in
            ["a\u{200d}b", "\u{200d}🔬", "🔬\u{200d}", "a\u{200b}b", "é\u{200c}é", "\u{202e}x"]
        {
            assert!(!is_plain_note(bad), "{bad:?}");
        }
    }

    #[test]
    fn text_with_overrides_is_not_plain() {
        assert!(is_plain_text("Größe: 3 × 4, 日本"));
        for bad in ["a\tb", "a\x1b[2J", "a\u{202e}b", "a\u{2028}b"] {
            assert!(!is_plain_text(bad), "{bad:?}");
        }
    }
}
