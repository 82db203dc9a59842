//! Fair share: what people have used of the fleet, so that who had less comes first.
//!
//! Use is counted in GPUs times the time for which somebody had them, and fades: after one half-life it counts half. All
//! arithmetic is in whole numbers, so each replica works out the same. Who is charged, and for what, is in
//! `fsm/fair_share.rs`; the order in which jobs are served by it is in `scheduler/order.rs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::{ProjectName, UserName};
use crate::stored::is_default;
use crate::time::{Millis, Timestamp};

/// Time after which use counts half, where no admin said otherwise.
pub const HALF_LIFE_DEFAULT: Millis = Millis::days(7);
/// Shorter ones forget a night's work by noon.
pub const HALF_LIFE_MIN: Millis = Millis::hours(1);
/// Longer ones would not fit the numbers, and nobody remembers that long.
pub const HALF_LIFE_MAX: Millis = Millis::days(90);
/// Cores that count as one GPU, for work that runs without a GPU.
pub const CORES_PER_GPU: u64 = 16;
/// Beyond this many accounts, those are dropped that are not [`WORTH_KEEPING`].
pub const ACCOUNTS_KEPT: usize = 10_000;
/// One GPU for one second.
const WORTH_KEEPING: Amount = Amount(1_000_000);

/// 1 in the fractions of this file.
const ONE: u128 = 1 << FRACTION_BITS;
/// As many as leave room for the largest product below: 90 days times 1/ln 2 times 1.
const FRACTION_BITS: u32 = 62;
/// 1/ln 2, times 2^32.
const INVERSE_LN2: u128 = 6_196_328_018;

/// 2^(-1/2), 2^(-1/4), 2^(-1/8), ..., each the square root of the one before.
const ROOTS: [u128; FRACTION_BITS as usize] = roots();

const fn roots() -> [u128; FRACTION_BITS as usize] {
    let mut roots = [0; FRACTION_BITS as usize];
    let mut last = ONE / 2;
    let mut at = 0;
    while at < roots.len() {
        last = (last * ONE).isqrt();
        roots[at] = last;
        at += 1;
    }
    roots
}

/// What is left of 1 after that time, as a fraction.
fn left_after(time: Millis, half_life: Millis) -> u128 {
    if time == Millis::ZERO {
        return ONE;
    }
    let half_life = u128::from(half_life.0.max(1));
    let time = u128::from(time.0);
    let Some(halvings) = u32::try_from(time / half_life).ok().filter(|n| *n < FRACTION_BITS) else {
        return 0;
    };
    let rest = ((time % half_life) << FRACTION_BITS) / half_life;
    let mut left = ONE;
    for (bit, root) in (0..FRACTION_BITS).rev().zip(ROOTS) {
        if rest >> bit & 1 == 1 {
            left = (left * root) >> FRACTION_BITS;
        }
    }
    left >> halvings
}

/// A number of GPUs, in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate(pub u64);

impl Rate {
    /// Of work on that many GPUs, or without one on that many thousandths of a core.
    pub fn of(gpus: usize, cpu_millis: u64) -> Self {
        match gpus {
            0 => Rate(cpu_millis / CORES_PER_GPU),
            gpus => Rate((gpus as u64).saturating_mul(1_000)),
        }
    }

    /// Having that for this long, without fading.
    pub fn times(self, length: Millis) -> Amount {
        Amount(self.0.saturating_mul(length.0))
    }
}

/// GPUs times time: thousandths of a GPU times milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Amount(pub u64);

impl Amount {
    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }

    /// That many GPU-hours.
    pub fn of_gpu_hours(hours: u32) -> Amount {
        Rate::of(1, 0).times(Millis::hours(u64::from(hours)))
    }

    /// Nothing where the other is more.
    pub fn minus(self, other: Amount) -> Option<Amount> {
        self.0.checked_sub(other.0).map(Amount)
    }

    /// GPU-milliseconds, rounded down.
    pub fn gpu_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// What is left of it after that time.
    pub(crate) fn faded(self, time: Millis, half_life: Millis) -> Amount {
        let left = (u128::from(self.0) * left_after(time, half_life)) >> FRACTION_BITS;
        Amount(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// What having that for this long comes to at the end of it, with what faded on the way.
    fn gained(rate: Rate, length: Millis, half_life: Millis) -> Amount {
        let half_life = half_life.min(HALF_LIFE_MAX);
        let most = u128::from(half_life.0) * INVERSE_LN2;
        let gone = ONE - left_after(length, half_life);
        let of_one = (most * gone) >> FRACTION_BITS;
        let all = (of_one * u128::from(rate.0)) >> 32;
        Amount(u64::try_from(all).unwrap_or(u64::MAX))
    }
}

/// `12.3 GPU-hours`.
impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} GPU-hours", gpu_hours(self.gpu_millis()))
    }
}

/// GPU-hours with one digit, as people see them everywhere: `12.3`.
pub fn gpu_hours(gpu_ms: u64) -> String {
    let tenths = gpu_ms.saturating_add(180_000) / 360_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// What one person used in one project, as it stood at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    amount: Amount,
    at: Timestamp,
    last: Timestamp,
}

impl Used {
    /// What is left of it now.
    pub fn now(&self, now: Timestamp, half_life: Millis) -> Amount {
        self.amount.faded(now.since(self.at), half_life)
    }

    /// When something was added last.
    pub fn last(&self) -> Timestamp {
        self.last
    }

    fn settle(&mut self, now: Timestamp, half_life: Millis) {
        self.amount = self.now(now, half_life);
        self.at = now;
    }

    fn add(&mut self, use_of: UseOf, now: Timestamp, half_life: Millis) {
        self.settle(now, half_life);
        self.amount = self.amount.plus(use_of.now(now, half_life));
        self.last = now;
    }
}

/// So much, from then until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UseOf {
    pub rate: Rate,
    pub from: Timestamp,
    pub to: Timestamp,
}

impl UseOf {
    /// What is left of it now. Use that is yet to come counts nothing.
    pub fn now(&self, now: Timestamp, half_life: Millis) -> Amount {
        let to = self.to.min(now);
        let gained = Amount::gained(self.rate, to.since(self.from), half_life);
        gained.faded(now.since(to), half_life)
    }
}

/// Which users used what, and how fast that fades.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairShare {
    pub half_life: Millis,
    #[serde(default, skip_serializing_if = "is_default")]
    used: BTreeMap<ProjectName, BTreeMap<UserName, Used>>,
}

impl Default for FairShare {
    fn default() -> Self {
        Self { half_life: HALF_LIFE_DEFAULT, used: BTreeMap::new() }
    }
}

impl FairShare {
    /// Whether nobody used anything and no admin set anything.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What ended: work that still runs is not among it.
    pub fn used(&self) -> impl Iterator<Item = (&ProjectName, &UserName, &Used)> {
        let of = |(project, people)| {
            let people: &BTreeMap<UserName, Used> = people;
            people.iter().map(move |(user, used)| (project, user, used))
        };
        self.used.iter().flat_map(of)
    }

    /// Another half-life, from now on: what was used by now counts as it does now.
    pub(crate) fn set_half_life(&mut self, half_life: Millis, now: Timestamp) {
        for used in self.used.values_mut().flat_map(BTreeMap::values_mut) {
            used.settle(now, self.half_life);
        }
        self.half_life = half_life;
    }

    pub(crate) fn charge(
        &mut self,
        (project, user): (&ProjectName, &UserName),
        use_of: UseOf,
        now: Timestamp,
    ) {
        if use_of.to <= use_of.from || use_of.rate == Rate(0) {
            return;
        }
        let half_life = self.half_life;
        let people = self.used.entry(project.clone()).or_default();
        people.entry(user.clone()).or_default().add(use_of, now, half_life);
        if self.used.values().map(BTreeMap::len).sum::<usize>() > ACCOUNTS_KEPT {
            self.drop_empty(now);
        }
    }

    /// The fleet's time was set back: nothing was used in a time to come.
    pub(crate) fn turn_back(&mut self, now: Timestamp) {
        for used in self.used.values_mut().flat_map(BTreeMap::values_mut) {
            (used.at, used.last) = (used.at.min(now), used.last.min(now));
        }
    }

    fn drop_empty(&mut self, now: Timestamp) {
        let half_life = self.half_life;
        for people in self.used.values_mut() {
            people.retain(|_, used| used.now(now, half_life) > WORTH_KEEPING);
        }
        self.used.retain(|_, people| !people.is_empty());
    }
}

#[cfg(test)]
mod tests;
