//! Words for enums: one list gives the word of each variant, all variants, and the way back.

/// An enum whose variants are words that people and programs see.
pub trait Word: Copy + PartialEq + 'static {
    /// The word of this variant.
    fn word(self) -> &'static str;

    /// The variant of a word; `None` for a word of a newer version.
    fn from_word(word: &str) -> Option<Self>;
}

/// Gives an enum without data `ALL`, `word` and `from_word`.
///
/// ```ignore
/// words!(Severity { Notice => "notice", Degraded => "degraded", Fatal => "fatal" });
/// ```
///
/// A variant that is missing from the list does not compile. The words are part of the API: they stand in JSON, in CSV
/// and in metrics, so a released one never changes.
macro_rules! words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every variant, in the order in which they are shown.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that people and programs see.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// The variant of a word; `None` for a word of a newer version.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }

        impl $crate::word::Word for $name {
            fn word(self) -> &'static str {
                self.word()
            }

            fn from_word(word: &str) -> Option<Self> {
                Self::from_word(word)
            }
        }
    };
}

pub(crate) use words;
