//! The kinds of card the fake knows, by the names people use for them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of card. What each can do is in the library's own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// GeForce GTX TITAN X: Maxwell, no ECC.
    TitanX,
    /// TITAN X (Pascal): no ECC.
    TitanXPascal,
    /// Tesla V100-PCIE-16GB: Volta, ECC, page retirement, no NVLink.
    V100Pcie,
    /// Tesla V100-SXM2-32GB: Volta, six NVLinks, wired like a DGX-1.
    V100Sxm2,
    /// A100-SXM4-40GB: Ampere, row remapping, NVSwitch.
    A100,
}

impl Profile {
    pub const ALL: [Profile; 5] =
        [Self::TitanX, Self::TitanXPascal, Self::V100Pcie, Self::V100Sxm2, Self::A100];

    /// The name in control files and in `fleet dev --gpus`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TitanX => "titan-x",
            Self::TitanXPascal => "titan-x-pascal",
            Self::V100Pcie => "v100-pcie",
            Self::V100Sxm2 => "v100-sxm2",
            Self::A100 => "a100",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no GPU profile {0:?}; there are titan-x, titan-x-pascal, v100-pcie, v100-sxm2 and a100")]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        let known = Self::ALL.into_iter().find(|profile| profile.name() == text);
        known.ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}
