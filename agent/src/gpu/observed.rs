//! A value somebody measured, or why there is none.

use serde::{Deserialize, Serialize};

/// A measured value. "The card cannot" and "nobody knows" are different answers, and neither is a
/// number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observed<T> {
    Value(T),
    /// The card or its driver has no such thing: not applicable.
    NotSupported,
    Unknown {
        reason: String,
    },
}

impl<T> Observed<T> {
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotSupported | Self::Unknown { .. } => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Observed<U> {
        match self {
            Self::Value(value) => Observed::Value(with(value)),
            Self::NotSupported => Observed::NotSupported,
            Self::Unknown { reason } => Observed::Unknown { reason },
        }
    }
}
