//! CPU and memory, counted together.

/// CPU and memory of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
}

impl Share {
    /// Each of the two by a rule of its own.
    pub(crate) fn map2(self, other: Self, rule: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_millis: rule(self.cpu_millis, other.cpu_millis),
            memory_bytes: rule(self.memory_bytes, other.memory_bytes),
        }
    }

    pub(crate) fn min(self, other: Self) -> Self {
        self.map2(other, u64::min)
    }

    pub(crate) fn max(self, other: Self) -> Self {
        self.map2(other, u64::max)
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        self.map2(other, u64::saturating_sub)
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.map2(other, u64::saturating_add)
    }

    pub(crate) fn times(self, count: u64) -> Self {
        self.map2(self, |one, _| one.saturating_mul(count))
    }

    pub(crate) fn fits_in(self, room: Self) -> bool {
        self.cpu_millis <= room.cpu_millis && self.memory_bytes <= room.memory_bytes
    }
}
