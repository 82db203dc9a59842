//! What the tracker takes in: one thing seen, in words free of NVML.

use serde::{Deserialize, Serialize};

use super::Shortage;
use crate::gpu::Architecture;
use crate::name::GpuUuid;
use crate::time::Timestamp;

/// A measured value, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known<T> {
    Value(T),
    /// The card has no such thing: says nothing, good or bad.
    NotApplicable,
    /// The card should have it, but the driver did not report it.
    Unknown,
}

impl<T: Copy> Known<T> {
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotApplicable | Self::Unknown => None,
        }
    }
}

/// One sample of one GPU, as far as health depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// A reading no newer than the last one is ignored.
    pub sampled_at: Timestamp,
    pub temperature_c: Known<u32>,
    pub slowdown_c: Known<u32>,
    /// NVML's mask; see [`super::throttle`].
    pub throttle_reasons: Known<u64>,
    /// Since the driver was loaded.
    pub ecc_corrected: Known<u64>,
    pub ecc_uncorrected: Known<u64>,
    pub retired_single_bit: Known<u32>,
    pub retired_double_bit: Known<u32>,
    pub retirement_pending: Known<bool>,
    pub remapped_uncorrected: Known<u32>,
    pub remap_pending: Known<bool>,
    pub remap_failed: Known<bool>,
    pub pcie_width: Known<u32>,
    pub pcie_width_max: Known<u32>,
    pub reset_required: bool,
}

/// One thing seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    Measured {
        gpu: GpuUuid,
        reading: Box<Reading>,
    },
    /// It was there and is no more.
    Lost {
        gpu: GpuUuid,
        reason: String,
    },
    /// Nobody can tell how it is.
    NotAnswering {
        gpu: GpuUuid,
        reason: String,
    },
    /// The driver told of an error; without a code it did not say which.
    Xid {
        gpu: GpuUuid,
        architecture: Architecture,
        code: Option<u32>,
    },
    /// The driver told of an uncorrectable memory error.
    DoubleBitEcc {
        gpu: GpuUuid,
    },
    /// The driver can be asked.
    DriverAnswers,
    /// The driver as a whole cannot be asked, though there are or were GPUs.
    DriverSilent {
        reason: String,
    },
    /// GPUs that cannot be named are in trouble.
    Unnamed {
        problems: Vec<String>,
    },
    /// All that the node lacks to begin anything, each with what was seen.
    Short {
        of: Vec<(Shortage, String)>,
    },
}
